"""`penstock seen`: the steps of a saved plan that held a sample."""

import loader


def test_the_steps_of_a_sample(cli, filled):
    path, plan_hash = filled
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


def test_refusals(cli, filled):
    path, plan_hash = filled
    done = cli("seen", plan_hash, "d", "nobody", "--before", 8, root=path)
    assert (done.code, done.out) == (2, "")
    assert "key = 'nobody': no view of source 'd' has a sample of this key" in done.err
    done = cli("seen", "p-0", "d", "k1", "--before", 8, root=path)
    assert "has no plan 'p-0'" in done.err
