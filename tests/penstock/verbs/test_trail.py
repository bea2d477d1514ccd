"""`penstock trail`: runs and their steps, held against the stored bytes and against each other."""

import shutil

import pytest

import loader
from loader.storage import open_store
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.migrate.mirror_update import migrate
from penstock.upkeep.verify.root import verify_root

STEPS = 5


def refuse(numbers):
    def decode(data, rng):
        if int(data) in numbers:
            raise ValueError("not to be read")
        return int(data)

    return decode


@pytest.fixture
def root(tmp_path):
    with loader.Root(tmp_path / "root") as made:
        with made.write("d") as writer:
            for i in range(40):
                writer.add(f"k{i:02d}", {"cls": i})
        yield made


def train(root, run, seed=3, bad=(), world_size=1, ranks="all"):
    plan = loader.plan({"d": root.open("d@1")}, seed=seed, global_batch=8)
    for rank in range(world_size):
        trail = loader.Trail(root, run, ranks=ranks)
        options = {"decode": {"cls": refuse(bad)}, "framework": "numpy", "workers": 0, "corrupt_budget": 1.0}
        with loader.Loader(plan, rank, world_size, steps=STEPS, trail=trail, **options) as batches:
            for _ in batches:
                pass
    return plan


def test_runs_are_listed(cli, root, tmp_path):
    assert cli("trail", "ls", root=root.url).out == f"{root.url} has no trails\n"
    plan = train(root, "big-7", world_size=2)
    train(root, "other", seed=4)
    done = cli("trail", "ls", "--json", root=root.url)
    assert done.code == 0
    one, two = done.json
    assert (one["run"], one["steps"], one["first"], one["last"], one["ranks"]) == (
        "big-7",
        STEPS,
        0,
        STEPS - 1,
        2,
    )
    assert one["plans"] == [plan.hash]
    assert two["run"] == "other"
    header, *rows = cli("trail", "ls", root=root.url).out.splitlines()
    assert header.split()[:4] == ["run", "steps", "first", "last"]
    assert rows[0].split()[:5] == ["big-7", "5", "0", "4", "2"]
    assert plan.hash in rows[0]
    train(root, "other", seed=4, bad=[int(plan.batch_ids(2)[1][1][1:])])
    (tmp_path / "root" / "trails" / "bad").mkdir()
    (tmp_path / "root" / "trails" / "bad" / f"start-{0:016x}.json").write_text("{}")
    done = cli("trail", "ls", "--json", root=root.url)
    assert done.code == 1
    problems = {row["run"]: row["problem"] for row in done.json}
    assert "not a start of a trail" in problems["bad"]
    assert "two different records, the first is" in problems["other"]
    assert not problems["big-7"]
    done = cli("trail", "ls", "nope", root=root.url)
    assert done.code == 2
    assert "no trail of run 'nope'; it has: bad, big-7, other" in done.err


def test_objects_of_no_run_do_not_stop_a_list_of_trails(cli, root):
    train(root, "big-7")
    for key in ("trails/stray", "trails/ x/rows.json", "trails/x/rows.json", "trails/..x/é"):
        root.store.put(key, b"{")
    done = cli("trail", "ls", "--json", root=root.url)
    assert (done.code, [one["run"] for one in done.json]) == (0, ["big-7"])


def test_run_is_held_against_the_stored_bytes(cli, root, tmp_path):
    bad = [3, 17, 30]
    train(root, "r", bad=bad, world_size=2)
    done = cli("trail", "verify", "r", root=root.url)
    assert (done.code, done.out) == (
        0,
        f"r: {2 * STEPS} records of {STEPS} steps; the stored bytes equal the training's\n",
    )
    train(root, "sound", world_size=2)  # of the same plan: its ledger is not of this run
    assert cli("trail", "verify", "sound", root=root.url).code == 0
    loader.Root(tmp_path / "elsewhere").create()
    shutil.move(tmp_path / "root" / "ledgers", tmp_path / "elsewhere" / "ledgers")
    done = cli("trail", "verify", "r", "--json", root=root.url)
    assert done.code == 1
    plan = loader.open_plan(root, loader.read_trail(root, "r").starts[0].plan)
    held = {
        (step, slot // 4)
        for step in range(STEPS)
        for slot, (_, key) in enumerate(plan.batch_ids(step))
        if int(key[1:]) in bad
    }
    assert {(row["step"], row["rank"]) for row in done.json["problems"]} == held
    assert "the training got digest" in done.json["problems"][0]["problem"]
    assert f"{len(held)} differ, 0 could not be checked" in cli("trail", "verify", "r", root=root.url).out
    assert cli("trail", "verify", "r", "--ledger", tmp_path / "elsewhere", root=root.url).code == 0
    shutil.rmtree(tmp_path / "root" / "plans")
    done = cli("trail", "verify", "r", root=root.url)
    assert done.code == 1
    assert f"0 differ, {2 * STEPS} could not be checked" in done.out


def test_versions_that_are_gone_are_told(cli, root, tmp_path):
    train(root, "r")
    root.exclude("d@1", ["k03"], reason="blurred")
    record = root.retire("d@1", reason="too old") or root.record("d@1", retired=True)
    assert cli("trail", "verify", "r", root=root.url).code == 0
    (tmp_path / "root" / record.manifest).unlink()
    done = cli("trail", "verify", "r", root=root.url)
    assert done.code == 1
    assert "its data is deleted" in done.out.splitlines()[0]


def keys(root):
    return [info.key for info in root.store.list("trails/")]


def test_no_collector_deletes_a_trail_or_its_plan(cli, root, tmp_path):
    plan = train(root, "r")
    root.exclude("d@1", ["k03"], reason="blurred")
    root.retire("d@1", reason="too old")
    manifest = tmp_path / "root" / root.record("d@1", retired=True).manifest
    before = keys(root)
    root.close()  # gives its leases back
    assert cli("gc", "plan", root=root.url).code == 0
    assert cli("gc", "sweep", "--grace", "0h", "--apply", root=root.url).code == 0
    assert not manifest.exists()
    later = loader.Root(root.url)
    assert keys(later) == before
    assert (tmp_path / "root" / "plans" / f"{plan.hash}.json").exists()
    done = cli("trail", "ls", "--json", root=root.url)
    assert (done.code, done.json[0]["steps"]) == (0, STEPS)
    assert "its data is deleted" in cli("trail", "verify", "r", root=root.url).out


def test_mirror_has_the_trails(root, tmp_path):
    train(root, "r")
    place = open_store(str(tmp_path / "mirror"))
    assert migrate(root, place, Pace()).failures == {}
    mirror = loader.Root(place.url)
    assert keys(mirror) == keys(root)
    assert loader.read_trail(mirror, "r").steps.equals(loader.read_trail(root, "r").steps)
    train(root, "r")
    assert migrate(root, place, Pace()).failures == {}
    assert keys(mirror) == keys(root)


def test_check_of_the_root_finds_an_edited_trail(root):
    train(root, "r")
    assert (verify_root(root).problems, verify_root(root).foreign) == ([], [])
    rows, start = keys(root)
    data = root.store.get(start).data
    root.store.put(start, data.replace(b'"code": ""', b'"code": "x"'))
    (problem,) = verify_root(root).problems
    assert (problem.address, "its content belongs to trails/r/start-" in problem.what) == (start, True)
    root.store.put(start, data)
    root.store.put(rows, root.store.get(rows).data[:-9])
    (problem,) = verify_root(root).problems
    assert (problem.address, "its content has sha256" in problem.what) == (rows, True)


def test_steps_are_looked_at_together(cli, root):
    plan = train(root, "one")
    told = cli("trail", "window", "one", "--from", "1", "--to", "2", "--json", root=root.url).json
    held = {key for step in (1, 2) for _, key in plan.batch_ids(step)}
    assert (told["first"], told["last"], told["n_slots"], told["n_samples"]) == (1, 2, 16, len(held))
    assert told["sources"] == [{"source": "d", "planned": 16.0, "delivered": 16}]
    text = cli("trail", "window", "one", root=root.url).out
    assert text.startswith(f"one steps 0 to {STEPS - 1}: 40 slots, 40 different samples, 0 padding")
    assert cli("trail", "window", "one", "--to", "-1", root=root.url).code != 0


def test_two_runs_are_compared(cli, root):
    plan = train(root, "one")
    train(root, "same")
    done = cli("trail", "against", "one", "same", root=root.url)
    assert (done.code, done.out) == (0, f"{STEPS} steps are equal\n")
    _, key = plan.batch_ids(2)[3]
    held = [
        (step, ids.index(("d", key)))
        for step, ids in enumerate(map(plan.batch_ids, range(STEPS)))
        if ("d", key) in ids
    ]
    train(root, "corrupt", bad=[int(key[1:])])
    done = cli("trail", "against", "one", "corrupt", "--json", root=root.url)
    assert done.code == 1
    assert (done.json["step"], done.json["rank"], done.json["world_size"]) == (held[0][0], 0, 1)
    (differs,) = done.json["slots"]
    planned, came = differs["samples"]
    assert (differs["slot"], planned["source"], planned["key"]) == (held[0][1], "d", key)
    assert (planned["version"], planned["attempt"]) == ("d@1", 0)
    assert came["key"] != key
    assert came["attempt"] > 0
    assert done.json["n_differing"] == len({step for step, _ in held})
    _, beside = plan.batch_ids(held[0][0])[held[0][1] - 1]
    train(root, "other", bad=[int(beside[1:])])  # each run has its own substitutions of one ledger
    done = cli("trail", "against", "corrupt", "other", "--json", root=root.url)
    assert (done.json["step"], len(done.json["slots"])) == (held[0][0], 2)
    train(root, "seeded", seed=4)
    done = cli("trail", "against", "one", "seeded", root=root.url)
    first, count, header, row, *_ = done.out.splitlines()
    assert first.startswith("step 0, rank 0 of 1, is the first that differs, in ")
    assert count == f"{STEPS} of {STEPS} steps in common differ"
    assert header.split() == ["slot", "first", "run", "second", "run"]
    assert row.split()[1:3] == ["d", plan.batch_ids(0)[int(row.split()[0])][1]]
    train(root, "two", world_size=2)  # all ranks together are the same batch
    assert cli("trail", "against", "one", "two", root=root.url).code == 0
    done = cli("trail", "against", "two", "seeded", root=root.url)
    assert done.out.splitlines()[0] == first
    train(root, "half", world_size=2, ranks="first")
    done = cli("trail", "against", "one", "half", root=root.url)
    assert done.code == 1
    assert "no step in common" in done.out
