"""`Run.steps` over each iterable of batches that the documentation offers to a script."""

import gc
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import loader
from loader.errors import InvalidRuntime
from penstock.checkpoints import Checkpoints
from penstock.train import Run, intervals
from penstock.train.run import AGAIN
from penstock.train.run_folder import RunFolder
from penstock.train.stop import Stop
from tests.refusals import refusal
from tests.servers.processes import python

STEPS = 8
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.13


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without a launcher's environment or a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    of_others = {process.pid for process in multiprocessing.active_children()}
    yield
    gc.collect()
    for process in multiprocessing.active_children():  # a StatefulDataLoader keeps them as long as itself
        if process.pid not in of_others:
            process.kill()
            process.join()


def a_plan(root: str) -> loader.Plan:
    return loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)


def digests(root: str) -> dict[int, int]:
    with loader.Loader(a_plan(root), 0, 1, framework="numpy", workers=0) as batches:
        return {step: batches.batch_at(step).digest for step in range(STEPS)}


def stateful_data_loader(root: str) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader  # no part of the environment that pip brings

    return StatefulDataLoader(
        loader.torch_dataset(a_plan(root), 0, 1, steps=STEPS), batch_size=None, num_workers=2
    )


SOURCES: dict[str, Callable[[str], Any]] = {
    "Loader": lambda root: loader.Loader(a_plan(root), 0, 1, steps=STEPS),
    "micro batches": lambda root: loader.Loader(a_plan(root), 0, 1, steps=STEPS, micro_batch=12),
    "device": lambda root: loader.Loader(a_plan(root), 0, 1, steps=STEPS, device="cpu"),
    "follow": lambda root: loader.follow(
        loader.Root(root), a_plan(root), run="big", every=3, rank=0, world_size=1, steps=STEPS
    ),
    "torch_dataset": lambda root: loader.torch_dataset(a_plan(root), 0, 1, steps=STEPS),
    "DataLoader": lambda root: DataLoader(
        loader.torch_dataset(a_plan(root), 0, 1, steps=STEPS), batch_size=None, num_workers=0
    ),
    "DataLoader with workers": lambda root: DataLoader(
        loader.torch_dataset(a_plan(root), 0, 1, steps=STEPS), batch_size=None, num_workers=2
    ),
    "StatefulDataLoader": stateful_data_loader,
    "on": lambda root: loader.on(
        DataLoader(loader.torch_dataset(a_plan(root), 0, 1, steps=STEPS), batch_size=None), "cpu"
    ),
}


NAMES = [
    pytest.param(name, marks=pytest.mark.server) if name == "StatefulDataLoader" else name for name in SOURCES
]


def add_version(root: str) -> None:
    with loader.Root(root).write("points") as writer:
        writer.add("new", {"cls": 200})


def run_steps(root: str, source: Any, leave_after: int | None = None) -> dict[int, int]:
    """Return step -> digest of one start, which saves and is asked to stop in step `leave_after`."""
    digest_of_step: dict[int, int] = {}
    state = {"weight": torch.zeros(1)}
    with (
        Run.joined(name="points", checkpoints=root, record=root) as run,
        Checkpoints(root, "points") as saved,
    ):
        for batch in run.steps(source, saved, state):
            digest_of_step[batch.step] = (digest_of_step.get(batch.step, 0) + batch.digest) % 2**64
            if batch.step == leave_after:
                run.ask_to_stop()
    return digest_of_step


@pytest.mark.parametrize("name", NAMES)
def test_source_stops_and_goes_on_at_its_step(root: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "EVERY_S", 0.0)
    with pytest.raises(SystemExit) as stopped:
        run_steps(root, SOURCES[name](root), leave_after=2)
    assert stopped.value.code == AGAIN
    assert Checkpoints(root, "points").steps() == [3]
    rest = run_steps(root, SOURCES[name](root))
    assert rest == {step: digest for step, digest in digests(root).items() if step >= 3}
    assert Checkpoints(root, "points").steps() == [3, STEPS]


def test_workers_of_a_dataloader_end_with_the_loop_that_a_stop_leaves(root: str) -> None:
    source = SOURCES["DataLoader with workers"](root)
    run = Run.joined(name="points", checkpoints=root, record=root)
    with suppress(SystemExit), run:
        for _ in run.steps(source):
            assert len(multiprocessing.active_children()) == 2
            run.ask_to_stop()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("name", NAMES)
def test_intervals_of_a_source_have_its_samples(
    root: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "EVERY_S", 0.0)
    run_steps(root, SOURCES[name](root))
    folder = RunFolder(loader.Root(root).store, "points")
    rows = folder.intervals(folder.interval_keys())
    assert rows["end_step"].max() == STEPS
    assert rows["samples"].sum() == 24 * (STEPS - 1), (
        "without those of the first batch, after which counting begins"
    )
    assert (rows["wait_s"] >= 0).all()


def test_intervals_of_a_followed_run_go_on_under_a_new_version(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intervals, "EVERY_S", 0.0)
    state = {"weight": torch.zeros(1)}
    steps: list[int] = []
    for n_starts in (1, 2):
        source = SOURCES["follow"](root)
        run = Run.joined(name="points", checkpoints=root, record=root)
        saved = Checkpoints(root, "points")
        with suppress(SystemExit), run, saved:
            for batch in run.steps(source, saved, state):
                steps.append(batch.step)
                if batch.step == 1:
                    add_version(root)
                if batch.step == 4:
                    run.ask_to_stop()
        assert source.plan.sources.keys() > a_plan(root).sources.keys()
        folder = RunFolder(loader.Root(root).store, "points")
        rows = folder.intervals([key for key in folder.interval_keys() if key.attempt == n_starts])
        n_counted = source.step - rows["first_step"].min() - 1  # without the first batch
        assert rows["samples"].sum() == 24 * n_counted
        assert all((rows[name] >= 0).all() for name in ("wait_s", "samples", "bytes", "plan_s", "collate_s"))
    assert steps == list(range(STEPS))


def test_iterable_without_a_position_is_refused(root: str) -> None:
    with loader.Loader(a_plan(root), 0, 1, steps=STEPS) as batches, Run.joined(name="points") as run:
        with refusal(InvalidRuntime, what="run.steps()", given="generator"):
            next(run.steps(batches.with_status()))
        with refusal(InvalidRuntime, what="run.steps()", given="DataLoader"):
            next(run.steps(DataLoader([1, 2, 3])))  # type: ignore[arg-type]


def iterate_batches(steps: Iterator[loader.Batch]) -> Iterator[loader.Batch]:
    while True:
        yield next(steps)


def run_by_next(root: str, *, wraps: bool, stop: Stop) -> None:
    """Take batches by `next`, without a loop, and stop in step 2."""
    with Run.joined(name="points", checkpoints=root, record=root) as run:
        steps = run.steps(SOURCES["Loader"](root))
        iterator = iterate_batches(steps) if wraps else steps
        while True:
            batch = next(iterator)
            if batch.step == 2:
                run._requests.stop = stop


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize(("stop", "status"), [(Stop.AGAIN, AGAIN), (Stop.DONE, 0)])
def test_next_after_a_stop_ends_with_the_status_of_the_stop(
    root: str, wraps: bool, stop: Stop, status: int
) -> None:
    with pytest.raises(SystemExit) as end:
        run_by_next(root, wraps=wraps, stop=stop)
    assert end.value.code == status


def test_next_after_the_last_step_raises_as_any_iterator_does(root: str) -> None:
    with pytest.raises(StopIteration):
        run_by_next(root, wraps=False, stop=Stop.NO)


WITHOUT_CONTEXT = """
import os, signal, sys
import loader, torch
from penstock.checkpoints import Checkpoints
from penstock.train import Run

root, stops = sys.argv[1], sys.argv[2] == "stops"
run = Run.joined(name="points", checkpoints=root, record=root)
plan = loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)
batches = loader.Loader(plan, run.world, steps=4)
for batch in run.steps(batches, Checkpoints(root, "points"), {"weight": torch.zeros(1)}):
    if stops and batch.step == 1:
        os.kill(os.getpid(), signal.SIGTERM)
print("uploads the final model")
"""


def test_run_without_a_context_ends_with_the_status_of_its_stop(root: str) -> None:
    """Otherwise the script went on as after its last step, and its launcher took the run for finished."""
    stopped = python("-c", WITHOUT_CONTEXT, root, "stops")
    assert stopped.returncode == AGAIN, stopped.stderr
    assert stopped.stdout == ""
    finished = python("-c", WITHOUT_CONTEXT, root, "ends")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "uploads the final model\n"
    folder = RunFolder(loader.Root(root).store, "points")
    names = [(event.attempt, event.name) for event in folder.events()]
    assert (1, "stopped") in names
    assert names[-1] == (2, "ended")
