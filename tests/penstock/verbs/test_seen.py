"""`penstock seen`: the steps of a saved plan that held a sample."""

import json
from pathlib import Path

import loader


def test_steps_of_a_sample(cli, sample_root):
    path, plan_hash = sample_root
    plan = loader.open_plan(loader.Root(path), plan_hash)
    _, key = plan.batch_ids(7)[2]
    done = cli("seen", plan_hash, "d", key, "--before", 8, "--json", root=path)
    assert done.code == 0
    found = [(one["step"], one["slot"]) for one in done.json["seen"]]
    assert found[-1] == (7, 2)
    assert len(found) == 4, "48 slots of 13 samples"
    assert all(plan.batch_ids(step)[slot] == ("d", key) for step, slot in found)
    lines = cli("seen", plan_hash, "d", key, "--before", 8, root=path).out.splitlines()
    assert lines[0].split() == ["step", "slot", "epoch"]
    assert [tuple(map(int, line.split()[:2])) for line in lines[1:]] == found


def test_refusals(cli, sample_root):
    path, plan_hash = sample_root
    done = cli("seen", plan_hash, "d", "nobody", "--before", 8, root=path)
    assert (done.code, done.out) == (2, "")
    assert "key = 'nobody': no view of source 'd' has a sample of this key" in done.err
    done = cli("seen", "nope", "d", "k1", "--before", 8, root=path)
    assert "no run 'nope' has left a trail" in done.err
    done = cli("seen", plan_hash, "d", "k1", root=path)
    assert "pass --before STEP" in done.err


def test_steps_of_a_run_are_those_on_its_trail(cli, own, tmp_path):
    with loader.Root(own) as root:
        plan = loader.plan({"d": root.open("d@4").select("cls")}, seed=3, global_batch=6)
        trail = loader.Trail(root, "big-7")
        with loader.Loader(plan, 0, 1, framework="numpy", workers=0, steps=8, trail=trail) as batches:
            for _ in batches:
                pass
            (tmp_path / "state.json").write_text(json.dumps(batches.state_dict()))
    _, key = plan.batch_ids(7)[2]
    wanted = cli("seen", plan.hash, "d", key, "--before", 8, "--json", root=own).json
    assert wanted["seen"][-1]["step"] == 7
    for where in ("big-7", "big-7@7"):
        assert cli("seen", where, "d", key, "--json", root=own).json == wanted
    # A state names its past alone, which plans of other fields share: any of them has these samples.
    found = cli("seen", str(tmp_path / "state.json"), "d", key, "--json", root=own).json
    assert found | {"plan": wanted["plan"]} == wanted
    earlier = cli("seen", "big-7@6", "d", key, "--json", root=own).json
    assert earlier["seen"] == [one for one in wanted["seen"] if one["step"] < 7]


def test_substitute_is_seen_in_the_slot_of_a_corrupt_sample(cli, own):
    with loader.Root(own) as root:
        version = root.open("d@4")
        (address,) = version.address([4], ["x.npy"])
    at = address.fields["x.npy"]
    shard = Path(own, at.path)
    data = bytearray(shard.read_bytes())
    data[at.offset] ^= 1
    shard.write_bytes(data)
    with loader.Root(own) as root:
        plan = loader.plan({"d": root.open("d@4").select("x.npy")}, seed=3, global_batch=6)
        trail, options = (
            loader.Trail(root, "big-8"),
            {"framework": "numpy", "workers": 0, "corrupt_budget": 1},
        )
        with loader.Loader(plan, 0, 1, steps=8, trail=trail, **options) as batches:
            held = {(batch.step, slot): key for batch in batches for slot, (_, key) in enumerate(batch.ids)}
    planned = plan.steps_of("d", address.key, before=8)
    assert planned
    assert cli("seen", "big-8", "d", address.key, "--json", root=own).json["seen"] == []
    place = planned[0][:2]
    found = cli("seen", "big-8", "d", held[place], "--json", root=own).json["seen"]
    assert [(one["step"], one["slot"]) for one in found] == [
        one for one, key in sorted(held.items()) if key == held[place]
    ]
    (line,) = [
        line.split()
        for line in cli("seen", "big-8", "d", held[place], root=own).out.splitlines()
        if line.split()[:2] == [str(n) for n in place]
    ]
    assert line[3:] == ["substitute", "1"]
