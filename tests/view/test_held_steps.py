"""Trainings that held a sample: their slots on its pages, under every plan of a run, also in the place of another."""

import numpy as np
import pytest

import loader
from penstock.cli import main
from penstock.view import sample_relations as sample_relations_module
from penstock.view.inspect.sample_record import sample_record
from penstock.view.open_data import OpenData
from penstock.view.replays.training import Training
from penstock.view.sample_relations import MOST_HELD, find_sample_slots
from tests.view.conftest import BATCH, train, write_photos
from tests.view.recipes import plain
from tests.view.test_web import Served


def train_with_trail(root, plan, run, steps, start=0):
    """Train some steps with a trail; return (step, slot) -> key of what was delivered."""
    trail = loader.Trail(root, run, ranks="all")
    with loader.Loader(
        plan, 0, 1, steps=steps, trail=trail, framework="numpy", workers=0, corrupt_budget=1
    ) as batches:
        if start:
            batches.seek(start)
        return {(one.step, slot): key for one in batches for slot, (_, key) in enumerate(one.ids)}


def check_held(root, run, delivered, version):
    """Every sample of a version is told in the slots that were delivered with it."""
    training = Training(root, run)
    keys = version.keys(np.arange(len(version)))
    for ordinal, key in enumerate(keys):
        (held,) = find_sample_slots([training], version.dataset, key, ordinal)
        wanted = [place for place, one in sorted(delivered.items()) if one == key]
        assert [(one.step, one.slot) for one in held.slots] == wanted
        assert (held.training, held.n_slots, held.error) == (run, len(wanted), "")
    training.close()
    return len(set(delivered.values()) & set(keys))


def test_run_that_went_on_under_another_plan_is_asked_by_both(root, plan):
    delivered = train_with_trail(root, plan, "one", steps=4)
    other = plan.quarantined({"photos": sorted(set(delivered.values()))[:5]}, 3)
    delivered |= train_with_trail(root, other, "one", steps=8, start=3)
    assert check_held(root, "one", delivered, root.open("photos@1")) == 14
    again = {key for (step, _), key in delivered.items() if step == 3}
    assert again != {key for _, key in plan.batch_ids(3)}


def test_substitute_is_told_in_the_slot_that_it_filled(root, tmp_path):
    version = write_photos(root)
    (address,) = version.address(np.array([2]), ["jpg"])
    path = tmp_path / "root" / address.fields["jpg"].path
    data = bytearray(path.read_bytes())
    data[address.fields["jpg"].offset + 9] ^= 1
    path.write_bytes(data)
    with loader.Root(tmp_path / "root") as root:
        plan = loader.plan({"photos": root.open("photos@1").select("jpg")}, seed=3, global_batch=BATCH)
        delivered = train_with_trail(root, plan, "one", steps=6)
        assert address.key not in delivered.values()
        assert check_held(root, "one", delivered, root.open("photos@1")) == 13
        training = Training(root, "one")
        stood_in = [
            (one.step, one.slot)
            for ordinal, key in enumerate(version.keys(np.arange(14)))
            for one in find_sample_slots([training], "photos", key, ordinal)[0].slots
            if one.attempt
        ]
        training.close()
        planned = {(one.step, one.slot) for one in plan.steps_of("photos", address.key, before=6)}
    assert set(stood_in) == planned
    assert planned


def test_version_of_other_ordinals_is_looked_up_by_key(root, plan):
    delivered = train_with_trail(root, plan, "one", steps=3)
    gone = delivered[0, 0]
    later = root.exclude("photos@1", [gone], reason="r")
    assert check_held(root, "one", delivered, later) == len(set(delivered.values()) - {gone})
    fewer = loader.plan({"photos": later.select("jpg", "cls")}, seed=3, global_batch=BATCH)
    assert check_held(root, "two", train_with_trail(root, fewer, "two", steps=3), root.open("photos@1"))


def test_last_200_slots_are_told(root):
    with root.write("few") as writer:
        writer.add("k", {"cls": 1})
    plan = loader.plan({"few": root.open("few@1").select()}, seed=1, global_batch=4, allow_repeats=True)
    train_with_trail(root, plan, "long", steps=60)
    training = Training(root, "long")
    (held,) = find_sample_slots([training], "few", "k", 0)
    training.close()
    assert (held.n_slots, len(held.slots)) == (240, MOST_HELD)
    assert (held.slots[-1].step, held.slots[0].step) == (59, 10)


@pytest.fixture
def two_runs(root, plan):
    """A viewer with the runs `one` and `two` open, of which only the first held p/3."""
    train(root, plan, "one", recipe=plain, steps=3)
    without = loader.plan(
        {"photos": plan.sources["photos"].view.where("note = 'n0'")}, seed=3, global_batch=BATCH
    )
    train(root, without, "two", recipe=plain, steps=1)
    train(root, plan, "closed", recipe=plain, steps=1)
    opened = OpenData(root)
    for run in ("two", "one"):
        opened.training(run)
    yield opened
    opened.close()


def test_trainings_that_are_open_are_asked(root, plan, two_runs):
    version = root.open("photos@1")
    ordinal = version.keys(np.arange(14)).index("p/3")
    record = sample_record(version, ordinal, two_runs.run_search())
    assert [(one.training, one.n_slots) for one in record.trainings] == [
        ("two", 0),
        ("one", len(plan.steps_of("photos", "p/3", before=3))),
    ]
    assert record.to_json()["trainings"][0] == {
        "training": "two",
        "n_slots": 0,
        "planned": False,
        "slots": [],
        "error": "",
    }


def test_plan_that_is_gone_is_said_and_the_others_are_told(root, two_runs, tmp_path):
    for path in (tmp_path / "root" / "plans").iterdir():
        if path.name.startswith(two_runs.training("two").plan_hash(0)):
            path.unlink()
    version = root.open("photos@1")
    record = sample_record(version, version.keys(np.arange(14)).index("p/3"), two_runs.run_search())
    two, one = record.trainings
    assert (one.error, bool(one.slots)) == ("", True)
    assert "InvalidPlan" in two.error
    assert not two.slots


def test_pages_lead_to_the_steps(root, plan, tmp_path):
    train(root, plan, "one", recipe=plain, steps=3)
    train(root, plan, "other", recipe=plain, steps=2)
    version = root.open("photos@1")
    step, slot, *_ = plan.steps_of("photos", "p/3", before=3)[0]
    ordinal = version.keys(np.arange(14)).index("p/3")
    with Served(tmp_path / "root", recipe=None) as served:
        sample = f"/v/photos/1/s/{ordinal}"
        assert "2 other runs were not searched" in served.get(sample).text
        here = served.get(f"/r/one/{step}/{slot}.json").json()["trainings"]
        assert [(one["training"], one["slots"][0]["step"]) for one in here] == [("one", step)]
        assert f'href="../../../../r/one/{step}/{slot}"' in served.get(sample).text
        served.get("/r/other")
        assert [one["training"] for one in served.get(f"{sample}.json").json()["trainings"]] == [
            "other",
            "one",
        ]
        there = served.get(f"/r/one/{step}/{slot}").text
    assert f'href="../../../r/other/{step}/{slot}"' in there


@pytest.fixture
def many(root, plan, tmp_path):
    """A root with seven runs that nobody opened, of which one cannot be read; and a sample that they held."""
    for i in range(7):
        train(root, plan, f"run-{i}", recipe=plain, steps=3)
    (rows,) = (tmp_path / "root/trails/run-3/0-of-1").glob("*.parquet")
    rows.write_bytes(b"PAR1 no table PAR1")
    version = root.open("photos@1")
    return version.keys(np.arange(14)).index("p/3")


def run_states(served, path):
    """The runs that a page has asked, those with an error, and those that it has not asked."""
    record = served.get(path.replace("?", ".json?", 1) if "?" in path else f"{path}.json").json()
    found = record["trainings"]
    return (
        [one["training"] for one in found],
        [one["training"] for one in found if one["error"]],
        record["runs_left"],
    )


def test_page_names_the_runs_that_it_did_not_ask_and_asks_them(many, plan, tmp_path, monkeypatch):
    runs = [f"run-{i}" for i in (3, 6, 5, 4, 2, 1, 0)]  # newest first: the log of run-3 was written again
    step, slot, *_ = plan.steps_of("photos", "p/3", before=3)[0]
    served = Served(tmp_path / "root", recipe=None)
    try:
        sample, its_slot = f"/v/photos/1/s/{many}", f"/r/run-2/{step}/{slot}"
        assert run_states(served, sample) == ([], [], runs)
        assert run_states(served, its_slot) == (["run-2"], [], [one for one in runs if one != "run-2"])
        page = served.get(f"{its_slot}?world=1&rank=0").text
        assert "6 other runs were not searched" in page
        assert "?world=1&amp;rank=0&amp;trainings=run-3#trainings" in page
        assert run_states(served, f"{sample}?trainings=run-0") == (runs, ["run-3"], [])
        assert run_states(served, f"{its_slot}?trainings=run-0")[1:] == (["run-3"], [])
        page = served.get(f"{sample}?trainings=run-0").text
        for run in set(runs) - {"run-3"}:
            assert f'href="../../../../r/{run}/{step}/{slot}"' in page
        assert "is not a readable Parquet file" in page
        monkeypatch.setattr(sample_relations_module, "MOST_ASKED", 2)
        assert run_states(served, f"{sample}?trainings=run-4") == (
            ["run-4", "run-2", "run-1"],
            [],
            ["run-0", "run-3", "run-6", "run-5"],
        )
        monkeypatch.setattr(sample_relations_module, "ASK_S", -1.0)
        assert run_states(served, f"{sample}?trainings=run-4")[0] == ["run-4", "run-2"]
    finally:
        served.close()


def test_slot_as_text_tells_that_other_runs_were_not_asked(many, root, capsys):
    assert main(["batch", "run-2@1", "--slot", "0", "--root", root.url]) == 0
    assert "6 other runs were not searched:" in capsys.readouterr().out
