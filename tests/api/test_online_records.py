"""Records of a run that cannot be created, that several processes create at once, or that are missing."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import loader
from loader.errors import Corrupt, Forbidden, InvalidSample, PlanMismatch
from tests.proxy_stores import ProxyStore
from tests.refusals import refusal
from tests.rollouts import rollout_roots
from tests.rollouts.rollout_roots import REF, digests, group, publish, publish_groups, sample
from tests.servers.patience import PATIENCE_S

REMEDY = "Allow the job to create objects under follows/, lists/, packs/ and plans/"


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    """A root with four transactions of three groups."""
    new_root = loader.Root(tmp_path / "root")
    new_root.create()
    for number in range(4):
        publish_groups(new_root, f"t{number}", 3)
    return new_root


def online(root: loader.Root, run: str = "big", **arguments: Any) -> loader.OnlineBatches:
    """Return batches of a run to which no rollout is stale."""
    return rollout_roots.online(root, run, max_lag=50, **arguments)


def without_write_access(root: loader.Root, folder: str) -> loader.Root:
    """Return the root for a job that may not create objects in a folder; "" stands for all."""

    def refuse(store: Any, key: str, data: bytes) -> Any:
        if key.startswith(folder):
            raise Forbidden(f"PUT {key}: 403")
        return store.put_if_absent(key, data)

    restricted = loader.Root(root.url)
    restricted.store = ProxyStore(restricted.store, put_if_absent=refuse)
    return restricted


def record_key(step: int, run: str = "big") -> str:
    return f"follows/{run}/{step:019d}.json"


@pytest.mark.parametrize("folder", ["", "follows/", "lists/", "plans/"])
def test_root_without_write_access_is_refused_with_the_folders_that_a_run_needs(
    root: loader.Root, folder: str
) -> None:
    with online(without_write_access(root, folder)) as batches, pytest.raises(Forbidden) as caught:
        next(batches)
    assert REMEDY in str(caught.value)
    assert f"PUT {folder}" in str(caught.value)
    assert not list(root.store.list("follows/"))


def test_decided_steps_need_no_write_access(root: loader.Root) -> None:
    with online(root) as batches:
        whole = digests(batches, 3)
    restricted = without_write_access(root, "")
    with online(restricted, steps=3) as batches:
        assert digests(batches) == whole
    with refusal(Forbidden, what="follows/again/like/big.json", where=root.url):
        online(restricted, "again", like="big")


def test_packing_table_that_cannot_be_stored_costs_only_the_work(root: loader.Root) -> None:
    with online(root, "other", steps=1) as batches:
        whole = digests(batches)
    root.store.delete_many([info.key for info in root.store.list("packs/")])
    with online(without_write_access(root, "packs/"), steps=1) as batches:
        assert digests(batches) == whole
    assert not list(root.store.list("packs/"))


def test_processes_that_decide_at_once_train_the_same_steps(root: loader.Root) -> None:
    """Each decides for itself, one of them over a version that the other has not seen; one record of each counts."""
    barrier = Barrier(2, timeout=PATIENCE_S)

    def train(number: int) -> dict[int, int]:
        own_root = loader.Root(root.url)
        trained = {}
        with online(own_root) as batches:
            for step in range(2):
                barrier.wait()
                if number:
                    publish_groups(own_root, f"late{step}", 2)
                trained |= digests(batches, step + 1)
        return trained

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(train, (0, 1))
    assert first == second
    assert len(first) == 2
    assert [info.key for info in root.store.list("follows/")] == [record_key(0), record_key(1)]


@pytest.mark.parametrize("missing", [0, 1])
def test_missing_record_before_later_ones_is_named_by_each_start(root: loader.Root, missing: int) -> None:
    """A decision in its place would train the groups of a later step a second time."""
    states = []
    with online(root) as batches:
        for step in range(3):
            digests(batches, step + 1)
            states.append(json.loads(json.dumps(batches.state_dict())))
    root.store.delete_many([record_key(missing)])
    publish_groups(root, "t4", 3)
    fault = {"what": f"record {record_key(missing)}", "where": root.url}
    for _ in range(2):
        with online(root) as batches, refusal(Corrupt, **fault):
            digests(batches, 3)
    with online(root) as batches:
        with refusal(PlanMismatch, what="state", where=f"run 'big', step {missing}"):
            batches.load_state_dict(states[missing])
        batches.load_state_dict(states[2])
        assert next(batches).step == 3
    with online(root, "again", like="big", steps=3) as batches, refusal(Corrupt, **fault):
        digests(batches)
    assert not list(root.store.list(record_key(missing)))


def test_record_that_appears_meanwhile_is_not_missing(
    root: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow process finds no record, and the records of the faster one when it lists them."""
    with online(root) as fast, online(root) as slow:
        store = slow._decisions._records._store
        trained = {}

        def list_late(inner: Any, prefix: str = "", start_after: str | None = None) -> Any:
            if not trained:
                trained.update(digests(fast, 2))
            return inner.list(prefix, start_after)

        proxy = ProxyStore(store, list=list_late)
        monkeypatch.setattr(slow._decisions._records, "_store", proxy)
        assert digests(slow, 2) == trained


def test_rollout_without_a_group_is_named(root: loader.Root) -> None:
    key, fields, metadata = sample("t9/g/0", "g", 0)
    publish(root, "t9", [[*group("t9", "h", 2, 0), (key, fields, {**metadata, "group_id": None})]])
    with online(root) as batches, pytest.raises(InvalidSample) as caught:
        digests(batches, 5)
    assert "sample 't9/g/0' has no group_id, as 1 undecided samples" in str(caught.value)
    assert "root.exclude('rl', ['t9/g/0'], reason=...)" in str(caught.value)
    with refusal(InvalidSample, what="group_id", where="rl@5, sample 't9/g/0'", given=1):
        loader.backlog(root, REF, "new")
