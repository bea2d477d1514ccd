"""A run that is stopped and fails stays one run in each tracker, with each step once."""

import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import loader
from loader.errors import InvalidRuntime, MissingDependency
from penstock.checkpoints import Checkpoints
from penstock.train import Run
from penstock.train.trackers import feed, run_trackers

STEPS = 30
RUN = "big-7"
Log = list[tuple[int, dict[str, float]]]


class Planted(Exception):
    """Ends a start as an error of the script does."""


def train(root: str, attempt: int, last: int, error: type[Exception] | None, *trackers: str) -> None:
    """Train until a signal or an error at a step; a checkpoint follows every fourth."""
    with Run.joined(name=RUN, checkpoints=root, record=root, trackers=trackers) as run:
        plan = loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)
        state = {"weight": torch.zeros(1)}
        batches = loader.Loader(plan, run.world, trail=run.trail(), steps=STEPS, workers=0)
        with batches, Checkpoints(run.checkpoints, run.name) as saved:
            for batch in run.steps(batches, saved, state, save_every=4):
                run.note(loss=torch.tensor(batch.step / 2), attempt=attempt)
                if batch.step == last and error is not None:
                    raise error
                if batch.step == last:
                    os.kill(os.getpid(), signal.SIGTERM)


def start(root: str, attempt: int, last: int, error: type[Exception] | None, *trackers: str) -> None:
    """Train, and end as the launcher expects: 75 after a signal, else the error."""
    ended = {Planted: Planted, None: SystemExit}[error]
    if last < STEPS:
        with pytest.raises(ended):
            train(root, attempt, last, error, *trackers)
    else:
        train(root, attempt, last, error, *trackers)


STARTS: list[tuple[int, type[Exception] | None]] = [
    (5, None),
    (10, Planted),  # the next one begins at 8 again
    (13, Planted),  # ... at 12
    (17, None),
    (21, Planted),
    (STEPS, None),
]


def first_attempts() -> dict[int, int]:
    """Return step -> the first start that did it."""
    attempts: dict[int, int] = {}
    for attempt, (last, _) in enumerate(STARTS):
        for step in range(len(attempts), min(STEPS, last + 1)):
            attempts[step] = attempt
    return attempts


class MlflowStore:
    """MLflow's client over a database of this machine."""

    def __init__(self, folder: Path, environ: pytest.MonkeyPatch) -> None:
        environ.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        environ.setenv("MLFLOW_EXPERIMENT_NAME", "vision")
        environ.setenv("MLFLOW_DISABLE_TELEMETRY", "true")

    def run(self) -> Any:
        """Return the one run."""
        from mlflow import MlflowClient

        client = MlflowClient()
        experiment = client.get_experiment_by_name("vision")
        (run,) = client.search_runs([experiment.experiment_id])
        return run

    def steps(self) -> Log:
        """Return all points, one entry each."""
        from mlflow import MlflowClient

        run = self.run()
        history = [
            (point.step, {name: point.value})
            for name in ("loss", "attempt")
            for point in MlflowClient().get_metric_history(run.info.run_id, name)
        ]
        return merged(history)


def merged(points: Log) -> Log:
    """Return one entry per step for points of different metrics, and another for a metric's second point."""
    rows: Log = []
    for step, values in points:
        row = next((row for at, row in rows if at == step and not row.keys() & values.keys()), None)
        if row is None:
            rows.append((step, dict(values)))
        else:
            row |= values
    return sorted(rows, key=lambda row: row[0])


class WandbFiles:
    """Files of offline runs, as W&B's core wrote them: a log of LevelDB with records of protobuf."""

    def __init__(self, folder: Path, environ: pytest.MonkeyPatch) -> None:
        self.folder, self.environ = folder, environ
        for name, value in {"MODE": "offline", "SILENT": "true", "ERROR_REPORTING": "false"}.items():
            environ.setenv(f"WANDB_{name}", value)

    def begin(self, attempt: int) -> None:
        """Let W&B read its variables as a new process does. It names files by second; these starts are faster."""
        import wandb

        wandb.teardown()
        (self.folder / str(attempt)).mkdir()
        self.environ.setenv("WANDB_DIR", str(self.folder / str(attempt)))

    def records(self) -> Iterator[Any]:
        """Yield the records of all starts."""
        import wandb
        from wandb.proto import wandb_internal_pb2

        wandb.teardown()  # W&B's core closes its files after `finish`
        for file in sorted(self.folder.glob("*/wandb/offline-run-*/*.wandb")):
            data, at, record = file.read_bytes(), 7, b""
            while at + 7 <= len(data):
                if (left := 2**15 - at % 2**15) < 7:
                    at += left
                    continue
                _, nbytes, kind = struct.unpack("<IHB", data[at : at + 7])
                record += data[at + 7 : at + 7 + nbytes]
                at += 7 + nbytes
                if kind in (1, 4):  # whole, or the last part
                    yield wandb_internal_pb2.Record.FromString(record)
                    record = b""

    def steps(self) -> Log:
        """Return all rows of the history."""
        rows: Log = []
        for record in self.records():
            if record.WhichOneof("record_type") == "history":
                items = {item.nested_key[0]: float(item.value_json) for item in record.history.item}
                rows.append((record.history.step.num, {name: items[name] for name in ("loss", "attempt")}))
        return rows


class TensorboardFolder:
    """The folder of a run, read as TensorBoard reads it."""

    def __init__(self, folder: Path, environ: pytest.MonkeyPatch) -> None:
        self.folder = folder
        environ.setenv("TENSORBOARD_LOGGING_DIR", str(folder))

    def events(self) -> Any:
        """Return what TensorBoard shows."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        (run,) = self.folder.iterdir()
        assert run.name == RUN
        events = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0})
        return events.Reload()

    def steps(self) -> Log:
        """Return all points, one entry each."""
        events = self.events()
        return merged(
            [(one.step, {name: one.value}) for name in ("loss", "attempt") for one in events.Scalars(name)]
        )


READERS: dict[str, Callable[[Path, pytest.MonkeyPatch], Any]] = {
    "mlflow": MlflowStore,
    "wandb": WandbFiles,
    "tensorboard": TensorboardFolder,
}


@pytest.mark.filterwarnings("default::DeprecationWarning")  # MLflow, of SQLAlchemy
@pytest.mark.parametrize("tracker", READERS)
def test_five_restarts_are_one_run_with_each_step_once(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str
) -> None:
    reader = READERS[tracker](tmp_path / "tracked", monkeypatch)
    (tmp_path / "tracked").mkdir()
    for attempt, (last, error) in enumerate(STARTS):
        if tracker == "wandb":
            reader.begin(attempt)
        start(root, attempt, last, error, tracker)
    expected = [(step, {"loss": step / 2, "attempt": float(n)}) for step, n in first_attempts().items()]
    assert reader.steps() == expected
