"""Objects, requests and leases of a run's decisions, counted at two sizes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import loader
from tests.dataset.stores import Counting
from tests.rollouts.rollout_roots import online, publish_groups

LAST = 60


def requests_of_a_decision(root: loader.Root, step: int) -> Counter[tuple[str, str]]:
    """Return verb and folder -> requests of the decision of a step, opening included, once it has its groups."""
    counted = Counting(root.store)
    batches: Any = online(root, groups=3, max_lag=1000)
    with batches:
        batches.seek(step)
        batches._decisions._root.store = counted
        batches._decisions._records._store = counted
        next(batches)
    return counted.calls


def test_decision_costs_the_same_at_a_later_step(tmp_path: Path) -> None:
    root = loader.Root(tmp_path / "root")
    root.create()
    calls = {}
    for step in range(LAST + 1):
        publish_groups(root, f"t{step}", 3)
        if step in (10, LAST):
            calls[step] = requests_of_a_decision(root, step)
            continue
        with online(root, groups=3, max_lag=1000) as batches:
            batches.seek(step)
            before = {info.key for info in root.store.list("")}
            next(batches)
            new = {info.key for info in root.store.list("")} - before
            made = [
                key for key in new if key.split("/")[0] in ("lists", "packs", "plans", "follows", "views")
            ]
            assert len(made) <= 5, made
            for info in root.store.list("leases/"):
                lease = json.loads(root.store.get(info.key).data)
                assert len(lease["versions"]) <= 3, lease
    assert (
        calls[LAST].total() <= calls[10].total() + 2
    )  # a read of the tables of shards, which are merged now and then
