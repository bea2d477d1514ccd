"""`penstock verify` over the records of `loader.online` and `loader.follow`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loader
from loader.dataset.log.denies import Target
from penstock.upkeep.takedown.takedown_run import run_takedown
from penstock.upkeep.verify.root import verify_root
from tests.rollouts.rollout_roots import decision_keys, digests, online, publish_groups

FIRST = f"follows/big/{0:019d}.json"
SECOND = f"follows/big/{1:019d}.json"
LIKE = "follows/again/like/big.json"


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    """Run `big` with two decisions, run `again` that repeats it."""
    root = loader.Root(tmp_path / "root")
    root.create()
    publish_groups(root, "t0", 3)
    publish_groups(root, "t1", 3)
    with online(root) as batches:
        digests(batches, 2)
    online(root, "again", like="big").close()
    return root


def problems(root: loader.Root) -> dict[str, str]:
    return {problem.address: problem.what for problem in verify_root(root).problems}


def json_body(root: loader.Root, key: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(root.store.get(key).data)
    return body


def test_healthy_records_have_no_problem(root: loader.Root) -> None:
    assert {info.key for info in root.store.list("follows/")} == {FIRST, SECOND, LIKE}
    assert problems(root) == {}


DAMAGE: list[tuple[dict[str, Any], str]] = [
    ({"run": "other"}, "it is of step 0 of run 'other'"),
    ({"plan": "p-1"}, "'p-1' is not a hash of a plan"),
    ({"steps": 0}, "one step at least"),
    ({"cursor": {}}, "KeyError: 'parts'"),
    ({"format": 3}, "has format 3; this penstock reads up to 2: upgrade"),
    ({"plan": f"p-{'0' * 64}"}, f"plans/p-{'0' * 64}.json is missing, and no takedown deleted it"),
]


def test_damaged_decision_is_named(root: loader.Root) -> None:
    body = json_body(root, FIRST)
    for change, says in DAMAGE:
        data = json.dumps({**body, **change})
        root.store.put(FIRST, data.encode())
        ((key, what),) = problems(root).items()
        assert key == FIRST
        assert says in what


def test_record_that_is_cut_short_or_under_another_name_is_named(root: loader.Root) -> None:
    data = root.store.get(FIRST).data
    like = root.store.get(LIKE).data
    wrong = {
        SECOND: data[:-9],
        "follows/other/0.json": data,
        f"follows/other/{0:019d}.json": data,
        f"follows/big/{0:019d}/p-{'1' * 64}.json": root.store.get(SECOND).data,
        "follows/other/like/big.json": like,
    }
    for key, stored in wrong.items():
        root.store.put(key, stored)
    whats = problems(root)
    assert whats.keys() == wrong.keys()
    for what in whats.values():
        assert "it was damaged, edited or renamed; restore it from a mirror" in what
    assert "is of step 0 of run 'big'" in whats[f"follows/other/{0:019d}.json"]
    assert "is of run 'again' like 'big'" in whats["follows/other/like/big.json"]


def test_missing_plan_of_a_decision_is_named(root: loader.Root, cli: Callable[..., Any]) -> None:
    """Also if the root has a takedown: this decision's version is not retired."""
    with root.write("other") as writer:
        writer.add("k", {"cls": 1})
    root.log.deny([Target(kind="sample", value="k", dataset="other")], reason="asked", by="desk")
    plan = json_body(root, SECOND)["plan"]
    root.store.delete_many([f"plans/{plan}.json"])
    run = cli("verify", root=root.url)
    assert run.code == 1
    assert (
        f"{SECOND}: its plans/{plan}.json is missing, and no takedown deleted it: restore that plan"
        in run.out
    )


def test_plan_that_a_takedown_deleted_is_no_problem(root: loader.Root) -> None:
    """Neither before nor after a restart has replaced the decision."""
    with online(root) as batches:
        batches.seek(1)
        next(batches)
        (key, *_) = decision_keys(batches)
    number = root.log.deny([Target(kind="sample", value=key, dataset="rl")], reason="asked", by="desk").n
    run_takedown(root, number, apply=True)
    plan = json_body(root, SECOND)["plan"]
    assert not list(root.store.list(f"plans/{plan}"))
    assert problems(root) == {}
    with online(root) as batches:
        batches.seek(1)
        next(batches)
    (replacement,) = (info.key for info in root.store.list(f"follows/big/{1:019d}/"))
    assert problems(root) == {}
    root.store.put(replacement, b"{}")
    assert problems(root).keys() == {replacement}


def test_records_of_a_followed_dataset_are_checked(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    with root.write("photos") as writer:
        for number in range(8):
            writer.add(f"k{number}", {"cls": number})
    plan = loader.plan({"photos": root.open("photos@1")}, seed=1, global_batch=2)
    options = {"rank": 0, "world_size": 1, "framework": "numpy", "workers": 0, "steps": 3}
    with loader.follow(root, plan, run="big", every=2, **options) as batches:
        assert [batch.step for batch in batches] == [0, 1, 2]
    key = f"follows/big/{2:019d}.json"
    assert problems(root) == {}
    body = json_body(root, key)
    for change, says in (
        ({"step": 3}, "it is of step 3 of run 'big'"),
        ({"before": 1}, "1 is not a hash of a plan"),
        ({"plan": f"p-{'0' * 64}"}, "is missing, and no takedown deleted it"),
    ):
        data = json.dumps({**body, **change})
        root.store.put(key, data.encode())
        ((address, what),) = problems(root).items()
        assert address == key
        assert says in what
