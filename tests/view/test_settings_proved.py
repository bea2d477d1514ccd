"""Trainings in many settings are looked back on: every step is proved to its tensors, or the reason why not is told."""

import json
from itertools import pairwise

import numpy as np
import pytest

import loader
from loader.errors import Corrupt
from penstock.cli import main
from penstock.view.inspect.step_record import default_part, part_of
from penstock.view.replays import replays
from penstock.view.replays.training import Training
from tests.refusals import refusal
from tests.view import recipes
from tests.view.test_proofs import ALL, Viewed, proved, text_of

STEPS = 6
PACK = loader.pack("tokens.npy", 32, pad_id=0)


def write(root, dataset, numbers):
    """Publish a version of small samples, in three buckets."""
    with root.write(dataset, part_samples=7) as writer:
        for i in numbers:
            fields = {"x.npy": np.full((2, 3), i, np.float32), "cls": i % 3}
            writer.add(f"{dataset}/{i:03d}", fields, metadata={"bucket": f"b{i % 3}"})
    return root.open(f"{dataset}@latest")


def carry(root, plan, got, steps=STEPS, world_size=1, start=0, recorded="all", news=None, **options):
    """Carry steps of a plan out as the run `it`, rank by rank; got: step -> rank, world size -> its batch.

    news: step -> something that happens before it, while the run follows its dataset by three steps.
    """
    for step in [step for step in got if step >= start]:
        del got[step]
    for rank in range(world_size):
        trail = loader.Trail(root, "it", ranks=recorded, tensors_every=1)
        told = {"framework": "numpy", "workers": 0, "corrupt_budget": 1, "trail": trail, "steps": steps}
        told |= recipes.jittered() if plan.pack is None else {}
        if news is None:
            batches = loader.Loader(plan, rank, world_size, **told, **options)
        else:
            batches = loader.follow(
                root, plan, run="it", every=3, rank=rank, world_size=world_size, **told, **options
            )
        with batches:
            if start:
                batches.seek(start)
            for batch in batches:
                if trail.records(rank):
                    got.setdefault(batch.step, {})[rank, world_size] = batch
                if news and rank == 0 and batch.step + 1 in news:
                    news[batch.step + 1]()


def planned(root, n=17, batch=6, **options):
    return loader.plan({"a": write(root, "a", range(n))}, seed=3, global_batch=batch, **options)


def epochs(root, got):
    carry(root, planned(root, n=11), got, steps=None, epochs=3, world_size=2)


def mask(root, got):
    carry(root, planned(root, boundary="mask"), got, world_size=4)


def mixture(root, got):
    views = {name: write(root, name, range(n)) for name, n in (("a", 17), ("b", 13))}
    weights = [(0, {"a": 3, "b": 1}), (3, {"a": 1, "b": 2})]
    carry(root, loader.plan(views, seed=3, global_batch=6, schedule=weights), got, world_size=3)


def ramp(root, got):
    carry(root, planned(root, batch=[(0, 3), (2, 5), (4, 12)]), got, world_size=2)


def buckets(root, got):
    by = loader.bucket("bucket", batch={"b0": 2, "b1": 6, "b2": 5})
    carry(root, planned(root, n=31, bucket_by=by), got, world_size=2)


def following(root, got):
    news = {2: lambda: write(root, "a", range(17, 29)), 5: lambda: root.exclude("a@2", ["a/003"], reason="r")}
    carry(root, planned(root), got, steps=8, world_size=2, news=news)


def packed(root, got):
    random = np.random.default_rng(0)
    with root.write("docs", part_samples=9) as writer:
        for i in range(60):
            tokens = random.integers(1, 60, random.integers(1, 50)).astype(np.uint16)
            writer.add(f"docs/{i:03d}", {"tokens.npy": tokens})
    carry(
        root, loader.plan({"docs": root.open("docs@1")}, seed=3, global_batch=4, pack=PACK), got, world_size=2
    )


def listed(root, got):
    view = loader.listed(write(root, "a", range(17)), [*range(16, 4, -1), 3, 7, 3, 5])
    carry(root, loader.plan({"a": view}, seed=3, global_batch=6), got, world_size=2)


def quarantine(root, got):
    plan = planned(root, quarantine={"a": ["a/001", "a/002"]})
    carry(root, plan, got, steps=3, world_size=2)
    carry(root, plan.quarantined({"a": ["a/007", "a/008"]}, 3), got, start=3, world_size=2)


def resumed(root, got):
    plan = planned(root)
    carry(root, plan, got, steps=4, world_size=3)
    carry(root, plan, got, start=3, world_size=2)


def rewound(root, got, ranks=(3, 1)):
    plan = planned(root)
    carry(root, plan, got, steps=5, world_size=ranks[0])
    other = plan.quarantined({"a": ["a/007", "a/008", "a/001", "a/003"]}, 1)
    carry(root, other, got, start=1, world_size=ranks[1])


def rewound_to_more(root, got):
    rewound(root, got, (1, 3))


def another_plan(root, got):
    carry(root, planned(root), got, steps=3, world_size=2)
    views = {"a": write(root, "a", range(17, 19)), "b": write(root, "b", range(13))}
    carry(root, loader.plan(views, seed=4, global_batch=8), got, start=3, world_size=2)


def retired(root, got):
    carry(root, planned(root), got, world_size=2)
    write(root, "a", range(17, 20))
    root.retire("a@1", reason="r")


def first_rank(root, got):
    carry(root, planned(root), got, world_size=3, recorded="first")


def one_rank(root, got):
    carry(root, planned(root), got, world_size=3, recorded=(2,))


SETTINGS = [
    *(epochs, mixture, buckets, packed, quarantine, rewound, another_plan, first_rank),
    *(
        pytest.param(setting, marks=pytest.mark.nightly)
        for setting in (mask, ramp, following, listed, resumed, rewound_to_more, retired, one_rank)
    ),
]


def bits(value):
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes()


def check_parts(viewed, got):
    """Every recorded part is proved to its tensors, and holds them."""
    for step, parts in got.items():
        for (rank, world_size), batch in parts.items():
            values, record = viewed.step(step, rank, world_size)
            assert proved(record) == ALL, record.proofs
            assert (record.digest, values.ids) == (batch.digest, batch.ids)
            for row in np.flatnonzero(batch.mask).tolist():
                shown = {name: bits(value) for name, value in values.slots[row].items()}
                assert shown == {name: bits(column[row]) for name, column in batch.fields.items()}
        assert default_part(viewed.training, step) == min(parts)


def check_other_worlds(viewed, step, parts):
    """At another world size the recorded ranks prove the bytes, or it is told how many of them are recorded."""
    world_size = next(iter(parts))[1]
    other = 1 if world_size > 1 else 2
    for rank in range(other):
        record = viewed.step(step, rank, other)[1]
        whole = len(parts) == world_size
        assert proved(record) == ALL | {"bytes": True if whole else None, "tensors": None}
        n = "all" if whole else len(parts)
        assert text_of(record, "bytes") == f"digests of {n} ranks of {world_size} equal the trail's"


def check_slots(viewed, step, parts):
    """Pages of the step's last slots hold the rows of its batch."""
    if len(parts) < next(iter(parts))[1]:
        return
    rows = [(batch, row) for _, batch in sorted(parts.items()) for row in range(len(batch))]
    for slot in [slot for slot, (batch, row) in enumerate(rows) if batch.mask[row]][-2:]:
        batch, row = rows[slot]
        values, record = viewed.slot(step, slot)
        assert (values.source, record.key) == batch.ids[row]
        assert {name: bits(one) for name, one in values.trained.items()} == {
            name: bits(column[row]) for name, column in batch.fields.items()
        }


def check_seen(folder, got, capsys):
    """A sample is seen in the slots that held it, each step under its own plan."""
    places = {}
    for step, parts in got.items():
        keys = [one and one[1] for _, batch in sorted(parts.items()) for one in batch.ids]
        for slot, key in enumerate(keys):
            if key is not None:
                places.setdefault(key, []).append([step, slot])
    for key in sorted(places)[1::7]:
        assert main(["seen", "it", key.partition("/")[0], key, "--root", folder, "--json"]) == 0
        seen = json.loads(capsys.readouterr().out)["seen"]
        assert [[one["step"], one["slot"]] for one in seen] == places[key]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda one: one.__name__)
def test_every_setting_is_proved_to_its_tensors(tmp_path, setting, capsys):
    folder, got = str(tmp_path / "root"), {}
    with loader.Root(folder) as root:
        setting(root, got)
        with Viewed(root, "it", recipes.plain if setting is packed else recipes.jittered) as viewed:
            check_parts(viewed, got)
            for step in sorted(got)[-2:]:
                check_other_worlds(viewed, step, got[step])
                check_slots(viewed, step, got[step])
        assert all(a + 1 == b for a, b in pairwise(sorted(got)))
    assert main(["trail", "verify", "it", "--root", folder]) == 0
    assert main(["trail", "against", "it", "it", "--root", folder]) == 0
    capsys.readouterr()
    if setting not in (packed, first_rank, one_rank):
        check_seen(folder, got, capsys)


def test_part_that_is_asked_for_is_shown(tmp_path, capsys):
    with loader.Root(tmp_path) as root:
        one_rank(root, {})
        training = Training(root, "it")
        assert [part_of(training, 1, *one) for one in ((), (0,), (None, 2), (1, 2))] == [
            (2, 3),
            (0, 3),
            (0, 2),
            (1, 2),
        ]
        training.close()
    assert main(["batch", "it@1", "--rank", "0", "--root", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rank"] == 0


def test_ranks_of_two_plans_are_no_whole_batch(tmp_path):
    with loader.Root(tmp_path) as root:
        plan, got = planned(root), {}
        carry(root, plan, got, steps=4, world_size=2)
        killed = plan.quarantined({"a": ["a/007", "a/008", "a/001", "a/003"]}, 1)
        carry(root, killed, got, steps=4, start=1, world_size=2, recorded="first")  # before the other wrote
        trail = loader.read_trail(root, "it")
        assert trail.whole["step"].to_list() == [0]
        carry(root, killed, got, steps=4, start=1, world_size=2)
        whole = loader.read_trail(root, "it").whole
        sums = [sum(batch.digest for batch in got[step].values()) % 2**64 for step in range(1, 4)]
        assert whole["digest"].to_list()[1:] == sums


def test_start_that_is_lost_is_named(tmp_path):
    with loader.Root(tmp_path) as root:
        carry(root, planned(root), {})
        (start,) = (tmp_path / "trails/it").glob("start-*.json")
        start.unlink()
        with refusal(Corrupt, what=start.name, where=f"{root.url}/trails/it/"):
            loader.read_trail(root, "it")


def test_substitutions_of_a_training_that_runs_are_found(tmp_path, monkeypatch):
    """The ledger was read before they were written."""
    monkeypatch.setattr(replays, "REREAD_S", 0)
    folder, got = tmp_path / "root", {}
    with loader.Root(folder) as root:
        plan = planned(root)
        carry(root, plan, got, steps=2)
        (place,) = (one.fields["x.npy"] for one in root.open("a@1").address(np.array([4]), ["x.npy"]))
    with loader.Root(folder) as root:
        training = Training(root, "it")
        assert training.digest(1, 0, 1) == got[1][0, 1].digest
        data = bytearray((folder / place.path).read_bytes())
        data[place.offset + place.nbytes - 1] ^= 1
        (folder / place.path).write_bytes(data)
        with loader.Root(folder) as writer:
            carry(writer, loader.open_plan(writer, plan.hash), got, start=2)
        training = training.refresh()
        assert any(batch.substitutions for parts in got.values() for batch in parts.values())
        assert {step: training.digest(step, 0, 1) for step in got} == {
            step: parts[0, 1].digest for step, parts in got.items()
        }
        training.close()


def test_run_is_shown_without_its_plan(tmp_path, capsys):
    with loader.Root(tmp_path) as root:
        rewound(root, {})
        first, other = loader.read_trail(root, "it").starts
    (tmp_path / f"plans/{first.plan}.json").unlink()
    assert main(["trail", "show", "it", "--root", str(tmp_path), "--json"]) == 0
    starts = json.loads(capsys.readouterr().out)["starts"]
    assert [(one["plan"], one["versions"]) for one in starts] == [(first.plan, []), (other.plan, ["a@1"])]
    for verb in (["batch", "it@0"], ["seen", "it", "a", "a/005"]):
        assert main([*verb, "--root", str(tmp_path)]) == 2
        assert f"has no plan '{first.plan}'" in capsys.readouterr().err


def test_substitutions_that_lie_in_another_ledger_are_named(tmp_path):
    folder, got = tmp_path / "root", {}
    with loader.Root(folder) as root:
        plan = planned(root)
        (place,) = (one.fields["x.npy"] for one in root.open("a@1").address(np.array([4]), ["x.npy"]))
        plan.save(root)
    path = folder / place.path
    good = path.read_bytes()
    bad = bytearray(good)
    bad[place.offset + place.nbytes - 1] ^= 1
    path.write_bytes(bad)
    with loader.Root(folder) as root, loader.Root(tmp_path / "ledger") as ledger:
        carry(root, loader.open_plan(root, plan.hash), got, ledger=ledger)
    path.write_bytes(good)
    hit = [step for step, parts in got.items() if parts[0, 1].substitutions]
    with loader.Root(folder) as root, Viewed(root, "it", recipes.jittered) as viewed:
        records = {step: viewed.step(step, 0, 1)[1] for step in got}
    assert hit == [step for step, record in records.items() if proved(record)["bytes"] is False]
    assert all(
        "1 substituted slots: the ledgers of this root" in text_of(records[step], "bytes") for step in hit
    )
