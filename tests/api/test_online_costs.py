"""Objects, requests and leases of a run's decisions, counted at two sizes."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import loader
from loader.dataset.shards.shards_file import ShardsFile
from loader.run.recipe.world import World
from tests.dataset.stores import Counting
from tests.rollouts.rollout_roots import online, publish_groups

EARLY = range(9, 14)
LATE = range(16, 21)
"""Steps between two merges of tables, which come every seven versions."""


def test_decision_costs_the_same_at_a_later_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening included: of the tables of shards a run reads and decodes what was published since its last step."""
    root = loader.Root("memory://api-decision-costs")
    root.create()
    n_decoded: Counter[int] = Counter()  # step -> rows of tables of shards
    n_requests: dict[int, int] = {}
    read_group = ShardsFile.read_group

    def read(file: ShardsFile, group: int, names: list[str] | None = None) -> pa.Table:
        table = read_group(file, group, names)
        n_decoded[step] += table.num_rows
        return table

    monkeypatch.setattr(ShardsFile, "read_group", read)
    with online(root, groups=3, max_lag=1000) as batches:
        own: Any = batches._decisions._root
        for step in range(LATE.stop):
            publish_groups(root, f"t{step}", 3)
            n_decoded[step] = 0  # without the publisher's
            before = {info.key for info in root.store.list("")}
            counted = Counting(root.store)
            own.store = batches._decisions._records._store = counted
            next(batches)
            n_requests[step] = counted.total
            new = {info.key for info in root.store.list("")} - before
            folders = Counter(key.split("/")[0] for key in new)
            assert folders.keys() <= {"lists", "packs", "plans", "follows", "leases"}, folders
            assert folders.total() <= 5, folders
            for info in root.store.list("leases/"):
                lease = json.loads(root.store.get(info.key).data)
                assert len(lease["versions"]) <= 3, lease
    assert max(n_requests[step] for step in LATE) <= max(n_requests[step] for step in EARLY)
    # Two threads may decode a table at once: now and then a step has a few rows more.
    assert min(n_decoded[step] for step in LATE) <= min(n_decoded[step] for step in EARLY)


class StarvedJob:
    """A job whose rollouts come one group at a time, until it stops."""

    world = World.of(0, 1)

    def __init__(self, root: loader.Root, txn: str, n_publications: int) -> None:
        self.leases: list[list[str]] = []
        self._root = root
        self._txn = txn
        self._n_publications = n_publications
        self.n_looks = 0

    def first(self, call: Callable[[], Any]) -> Any:
        return call()

    def stopping(self) -> bool:
        for info in self._root.store.list("leases/"):
            lease = json.loads(self._root.store.get(info.key).data)
            self.leases.append(lease["versions"])
        self.n_looks += 1
        publish_groups(self._root, f"{self._txn}-{self.n_looks}", 1)
        return self.n_looks >= self._n_publications


def test_starved_run_releases_the_versions_that_it_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loader.api.online.SLICE_S", 0)  # one look per slice
    root = loader.Root("memory://api-starved-run")
    root.create()
    publish_groups(root, "first", 4)
    with online(root, groups=3, max_lag=1000) as batches:
        for _ in batches:
            break
    job = StarvedJob(root, "early", n_publications=3)
    with online(root, groups=100, max_lag=1000, run="hungry", job=job) as batches:
        publish_groups(root, "second", 1)
        assert next(batches, None) is None
    assert job.n_looks == 3
    assert set(map(len, job.leases)) == {1}, "the version that it read last"

    job = StarvedJob(root, "late", n_publications=3)
    with online(root, groups=3, max_lag=1000, job=job) as batches:
        while next(batches, None) is not None:
            pass
    assert job.n_looks == 3
    assert max(map(len, job.leases)) <= 3, "two plans' versions, and the one that it read last"
