"""What loaders of one run that follow one another leave behind: leases, run log, threads."""

import threading
from pathlib import Path

import pytest

import loader
from loader.api.successive_loaders import SuccessiveLoaders
from loader.dataset.log.leases import list_leases

DECISIONS = 6


def add(root: loader.Root, number: int) -> None:
    """Publish a version with eight samples more."""
    with root.write("photos") as writer:
        for sample in range(8 * number, 8 * number + 8):
            writer.add(f"{sample:03d}", {"cls": sample})


class Stepwise(SuccessiveLoaders):
    """A step for each version: its newest eight samples."""

    def __init__(self, root: loader.Root, trail: loader.Trail | None = None) -> None:
        options = {"rank": 0, "world_size": 1, "workers": 0, "framework": "numpy", "trail": trail}
        super().__init__(options, root, has_decisions=True)
        self.n_leased: list[int] = []

    def __next__(self) -> loader.Batch:
        step = 0
        if self._loader is not None:
            step = self._loader.step
        if step == DECISIONS:
            raise StopIteration
        assert self._own_root is not None
        add(self._own_root, step)
        version = self._own_root.open("photos@latest")
        self.n_leased.append(most_leased(self._own_root))
        newest = loader.listed(version, range(8 * step, 8 * step + 8))
        plan = loader.plan({"p": newest}, seed=5, global_batch=8, boundary="mask", first_step=step)
        self._switch_plan(plan, step, steps=step + 1)
        return next(self.loader)


def most_leased(root: loader.Root) -> int:
    return max((len(lease.versions) for lease in list_leases(root.store)), default=0)


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    return loader.Root(tmp_path / "root")


def test_run_leases_the_versions_of_its_last_two_plans(root: loader.Root) -> None:
    add(root, 99)
    other = root.open("photos@1")  # of another user of the same root
    with Stepwise(root) as batches:
        assert [batch.step for batch in batches] == list(range(DECISIONS))
        assert max(batches.n_leased) == 3  # the newest, and those of two plans
        leases = list(list_leases(root.store))
        assert sorted(len(lease.versions) for lease in leases) == [1, 2]
    assert [lease.versions for lease in list_leases(root.store)] == [(other.id,)]


def test_run_log_of_all_decisions_has_one_start_and_few_objects(root: loader.Root) -> None:
    others = set(threading.enumerate())
    with Stepwise(root, loader.Trail(root, "r")) as batches:
        digests = [batch.digest for batch in batches]
    left = {thread.name for thread in set(threading.enumerate()) - others}
    assert left <= {"penstock-leases"}
    trail = loader.read_trail(root, "r")
    assert trail.steps["digest"].to_list() == digests
    assert len(trail.starts) == 1
    assert len(list(root.store.list("trails/r/"))) <= 3


def test_loader_that_cannot_take_over_is_closed(root: loader.Root, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    close = loader.Loader.close

    def seek(self: loader.Loader, step: int) -> None:
        raise ZeroDivisionError(step)

    def record_close(self: loader.Loader) -> None:
        closed.append(self)
        close(self)

    with Stepwise(root) as batches:
        next(batches)
        with monkeypatch.context() as patch:
            patch.setattr(loader.Loader, "seek", seek)
            patch.setattr(loader.Loader, "close", record_close)
            with pytest.raises(ZeroDivisionError):
                next(batches)
        assert len(closed) == 1
        assert closed[0] is not batches.loader
