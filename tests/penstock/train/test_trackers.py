"""A run that is stopped and fails stays one run in each tracker, with each step once."""

import json
import os
import random
import signal
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import loader
from loader.errors import InvalidRuntime, MissingDependency
from penstock.checkpoints import Checkpoints
from penstock.train import Run
from penstock.train.trackers import feed, run_trackers, tensorboard_run
from penstock.train.trackers.run_facts import commit
from tests.penstock.train.conftest import Rank
from tests.refusals import refusal

pytestmark = pytest.mark.server  # for MLflow, W&B and TensorBoard
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


def train_and_end(root: str, attempt: int, last: int, error: type[Exception] | None, *trackers: str) -> None:
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

    def facts(self) -> tuple[dict[str, str], list[tuple[str, ...]], str]:
        """Return the tags; each dataset's name, digest, address and source; and the state."""
        run = self.run()
        inputs = [
            (
                *(one.dataset.name, one.dataset.digest, json.loads(one.dataset.source)["uri"]),
                *(tag.value for tag in one.tags if tag.key == "penstock.source"),
            )
            for one in run.inputs.dataset_inputs
        ]
        return run.data.tags, inputs, run.info.status

    def steps(self, names: Sequence[str] = ("loss", "attempt")) -> Log:
        """Return all points, one entry each."""
        from mlflow import MlflowClient

        run = self.run()
        history = [
            (point.step, {name: point.value})
            for name in names
            for point in MlflowClient().get_metric_history(run.info.run_id, name)
        ]
        return merge_points(history)


def merge_points(points: Log) -> Log:
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
                if (rest := 2**15 - at % 2**15) < 7:
                    at += rest
                    continue
                _, nbytes, kind = struct.unpack("<IHB", data[at : at + 7])
                record += data[at + 7 : at + 7 + nbytes]
                at += 7 + nbytes
                if kind in (1, 4):  # whole, or the last part
                    yield wandb_internal_pb2.Record.FromString(record)
                    record = b""

    def facts(self) -> tuple[dict[str, str], list[tuple[str, ...]], str]:
        """Return the configuration; each artifact's name, version, reference and source; and exit codes."""
        config: dict[str, str] = {}
        artifacts, codes, ids = set(), [], set()
        for record in self.records():
            kind = record.WhichOneof("record_type")
            if kind in ("run", "config"):
                updates = record.run.config.update if kind == "run" else record.config.update
                keys = {one.key or one.nested_key[0]: json.loads(one.value_json) for one in updates}
                config |= keys
            if kind == "run":
                ids.add(record.run.run_id)
            if kind == "artifact":
                assert record.artifact.type == "dataset"
                facts = json.loads(record.artifact.metadata)
                (entry,) = record.artifact.manifest.contents
                artifacts.add((entry.path, facts["id"][:36], entry.ref, facts["source"]))
            if kind == "exit":
                codes.append(record.exit.exit_code)
        assert ids == {RUN}
        return config, sorted(artifacts), " ".join(map(str, codes))

    def steps(self, names: Sequence[str] = ("loss", "attempt")) -> Log:
        """Return all rows of the history."""
        rows: Log = []
        for record in self.records():
            if record.WhichOneof("record_type") == "history":
                items = {item.nested_key[0]: item.value_json for item in record.history.item}
                values = {name: float(items[name]) for name in names if name in items}
                rows.append((record.history.step.num, values))
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

    def facts(self) -> tuple[dict[str, str], list[tuple[str, ...]], str]:
        """Return the facts, versions and end of the newest text."""
        texts = [
            self.events().Tensors(f"{name}/text_summary")[-1].tensor_proto.string_val[0].decode()
            for name in ("penstock", "penstock_end")
        ]
        lines = [line.removeprefix("- ").split(": ", 1) for line in texts[0].splitlines()]
        facts = {name: text.strip("`") for name, text in lines if text.startswith("`")}
        end, checkpoint = texts[1].split()
        versions = [(name, *text.split(", ")) for name, text in lines if not text.startswith("`")]
        inputs = [(of, id[:36], url, name) for name, of, id, url in versions]
        return facts | {"penstock.checkpoint": checkpoint}, inputs, end

    def steps(self, names: Sequence[str] = ("loss", "attempt")) -> Log:
        """Return all points, one entry each."""
        events = self.events()
        return merge_points([(one.step, {name: one.value}) for name in names for one in events.Scalars(name)])


READERS: dict[str, Callable[[Path, pytest.MonkeyPatch], Any]] = {
    "mlflow": MlflowStore,
    "wandb": WandbFiles,
    "tensorboard": TensorboardFolder,
}


def check_registration(cli: Callable[..., Any], root: str, run_id: str) -> None:
    """Register two checkpoints of the run twice: two versions of a model that name data and plan."""
    from mlflow import MlflowClient

    for _ in range(2):
        for number, step in ((1, 28), (2, STEPS)):
            done = cli(
                "checkpoints", "register", f"{RUN}@{step}", "--mlflow", "points model", "--json", root=root
            )
            assert (done.code, done.json["version"]) == (0, str(number)), done.err
    newest, earlier = MlflowClient().search_model_versions("name = 'points model'")
    assert (newest.run_id, newest.source) == (
        run_id,
        f"{loader.Root(root).store.url}/checkpoints/{RUN}/steps/{STEPS:012d}.json",
    )
    assert newest.tags == {
        "penstock.run": RUN,
        "penstock.step": str(STEPS),
        "penstock.plan": loader.plan_of(loader.Root(root), RUN).hash,
        "penstock.version.points": f"points@1 {loader.Root(root).open('points@1').id}",
    }
    assert earlier.tags["penstock.step"] == "28"
    for name, place, text in (
        ("a/b", f"{RUN}@28", "MLflow did not register"),
        ("m", f"{RUN}@27", "has no checkpoint of step 27"),
        ("m", RUN, "RUN@STEP is needed"),
    ):
        done = cli("checkpoints", "register", place, "--mlflow", name, root=root)
        assert done.code == 2
        assert text in done.err


@pytest.mark.filterwarnings("default::DeprecationWarning")  # MLflow, of SQLAlchemy
@pytest.mark.parametrize(
    "tracker", ["mlflow", "tensorboard", pytest.param("wandb", marks=pytest.mark.nightly)]
)
def test_five_restarts_are_one_run_with_each_step_once(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Any], tracker: str
) -> None:
    reader = READERS[tracker](tmp_path / "tracked", monkeypatch)
    (tmp_path / "tracked").mkdir()
    monkeypatch.setenv("PENSTOCK_VIEW_URL", "https://view.example/")
    for module in (feed, run_trackers):
        monkeypatch.setattr(module, "CLOSE_S", 100)  # these starts share a process, which lives on
    for attempt, (last, error) in enumerate(STARTS):
        if tracker == "wandb":
            reader.begin(attempt)
        train_and_end(root, attempt, last, error, tracker)
    expected = [(step, {"loss": step / 2, "attempt": float(n)}) for step, n in first_attempts().items()]
    assert reader.steps() == expected
    if tracker == "mlflow":
        check_registration(cli, root, reader.run().info.run_id)
    facts, inputs, end = reader.facts()
    store, version = loader.Root(root).store, loader.Root(root).open("points@1")
    plan = loader.plan_of(loader.Root(root), RUN)
    assert {name: text for name, text in facts.items() if name.startswith("penstock.")} == {
        "penstock.run": RUN,
        "penstock.plan": plan.hash,
        "penstock.code": commit(),
        "penstock.trail": "https://view.example/r/big-7",
        "penstock.checkpoints": f"{store.url}/checkpoints/{RUN}/",
        "penstock.checkpoint": f"{store.url}/checkpoints/{RUN}/steps/{STEPS:012d}.json",
        "penstock.version.points": f"points@1 {version.id}",
    }
    address = f"file://{root}/penstock.json" if tracker == "wandb" else store.url
    assert inputs == [("points@1", version.id[:36], address, "points")]
    assert end == {"mlflow": "FINISHED", "wandb": "75 1 1 75 1 0", "tensorboard": "finished"}[tracker]


def test_steps_that_a_tracker_missed_come_from_the_trail(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first start finds no place to write: it trains on, and the next one sends what the trail has."""
    monkeypatch.setattr(feed, "CLOSE_S", 0)
    (tmp_path / "file").touch()
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "file"))
    train_and_end(root, 0, 9, None, "tensorboard")
    assert "tensorboard failed, and is tried again: NotADirectoryError" in caplog.text
    reader = TensorboardFolder(tmp_path / "tracked", monkeypatch)
    train_and_end(root, 1, STEPS, None, "tensorboard")
    assert [(step, values["attempt"]) for step, values in reader.steps()] == [
        (step, 0 if step < 10 else 1) for step in range(STEPS)
    ]


def test_tracker_that_fails_for_a_while_gets_every_step(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = TensorboardFolder(tmp_path / "tracked", monkeypatch)
    store = loader.Root(root).store

    class Busy(tensorboard_run.TensorboardRun):
        """Fails after its first batches, so that it has steps that no record names."""

        n = 0

        def log(self, steps: Any) -> None:
            super().log(steps)
            Busy.n += 1
            if Busy.n <= 2:
                raise OSError("planted")

    monkeypatch.setitem(run_trackers.TRACKERS, "tensorboard", Busy)
    train_and_end(root, 0, STEPS, None, "tensorboard")
    assert Busy.n > 2
    assert [step for step, _ in reader.steps()] == list(range(STEPS))
    key = f"trainings/{RUN}/trackers/tensorboard.json"
    assert json.loads(store.get(key).data) == {"format": 1, "step": STEPS - 1}


def test_run_without_a_record_or_a_note_is_tracked(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = TensorboardFolder(tmp_path / "tracked", monkeypatch)
    weight = torch.zeros(())
    with Run.joined(name=RUN, trackers=["tensorboard"]) as run:
        plan = loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)
        with loader.Loader(plan, run.world, steps=6, workers=0) as batches:
            for batch in run.steps(batches):
                weight += 1
                if batch.step % 2:
                    run.note(weight=weight)
    assert [(one.step, one.value) for one in reader.events().Scalars("weight")] == [(1, 2), (3, 4), (5, 6)]
    assert reader.events().Tensors("penstock/text_summary")


def test_trackers_are_checked_before_the_run_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusal(InvalidRuntime, what="trackers", given="comet", accepted=["mlflow", "wandb", "tensorboard"]):
        Run.joined(trackers=["comet"])
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingDependency, match=r"pip install 'penstock-data\[mlflow\]'"):
        Run.joined(trackers=["mlflow"])
    monkeypatch.setenv("PENSTOCK_TRACKERS", "comet,wandb")
    with refusal(InvalidRuntime, what="trackers", given="comet"):
        Run.joined()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refusal(InvalidRuntime, what="MASTER_ADDR", where="environment"):  # only the first rank has trackers
        Run.joined()


PREFIXES = ("MLFLOW_", "WANDB_", "TENSORBOARD_")


@pytest.mark.filterwarnings("default::DeprecationWarning")  # MLflow, of SQLAlchemy
@pytest.mark.parametrize(("trackers", "flush_s"), [(["mlflow", "tensorboard"], 0.3), (["wandb"], 20)])
def test_ranks_killed_at_random_moments_leave_one_run_in_each_tracker(
    root: str,
    start: Callable[..., list[Rank]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trackers: list[str],
    flush_s: float,
) -> None:
    """Real processes and SIGKILL. Files of offline W&B may have a batch twice, of which its server takes the first."""
    chance = random.Random(5)
    readers = {}
    for name in trackers:
        (tmp_path / name).mkdir()
        readers[name] = READERS[name](tmp_path / name, monkeypatch)
    common = {"PENSTOCK_RECORD": root, "PENSTOCK_RUN": RUN, "PENSTOCK_TRACKERS": ",".join(trackers)}
    for attempt in range(6):
        if "wandb" in readers:
            readers["wandb"].begin(attempt)
        tracked = {name: text for name, text in os.environ.items() if name.startswith(PREFIXES)}
        last = attempt == 5
        options = ("--steps", 500, "--save-every", 10, "--flush-s", flush_s, "--step-s", 0 if last else 0.05)
        ranks = start(2, *options, PENSTOCK_ATTEMPT=str(attempt), **common, **tracked)
        if not last:
            ranks[0].wait_for("took", chance.randrange(20, 100))
            # Stopped first, none sees the other's end.
            for number in (signal.SIGSTOP, signal.SIGKILL) if attempt else (signal.SIGTERM,):
                for rank in ranks:
                    rank.signal(number)
        assert {rank.status() for rank in ranks} == {0 if last else -signal.SIGKILL if attempt else 75}
    trail = set(loader.read_trail(loader.Root(root), RUN).steps["step"])
    assert len(trail) > 400, "it lacks at most what it held when it was killed"
    for name, reader in readers.items():
        steps = reader.steps(["number"])
        numbers = {step: values["number"] for step, values in steps}
        assert trail <= numbers.keys() <= set(range(500)), name
        assert all(number == step for step, number in numbers.items())
        assert name == "wandb" or len(steps) == len(numbers), name
