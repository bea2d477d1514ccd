"""A run in MLflow, found by its tag `penstock.run` in the experiment of MLFLOW_EXPERIMENT_ID or _NAME.

Also registers a checkpoint as a version of a model, with its plan and the versions of its data.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from loader.dataset.root import Root
from loader.errors import InvalidRuntime, MissingDependency
from loader.redaction import redact
from loader.storage.mirror import primary_store

from ...checkpoints import marker
from .run_facts import RunFacts, TrackedVersion
from .tracker import RunEnd, TrackedStep

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric

TAG = "penstock.run"
STEP = "penstock.step"
"""Metric with the last step of each batch; its newest value is the last step that MLflow has."""
MAX_METRICS = 1000
"""Most metrics per request of MLflow."""
_DIGEST_CHARS = 36
_NAME_CHARS = 250
_NAME = re.compile(r"[^\w./ -]")
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowRun:
    """See `Tracker`."""

    knows_steps = True
    settle_s = 0.0

    def __init__(self, run: str) -> None:
        self._run = run
        self._id = ""
        self._client: MlflowClient | None = None

    def begin(self, facts: RunFacts, last: int) -> int:
        """See `Tracker.begin`."""
        from mlflow import MlflowClient
        from mlflow.entities import RunTag

        client = self._client = MlflowClient()
        experiment = _experiment(client)
        self._id = run_id(client, self._run, experiment)
        if self._id:
            client.update_run(self._id, "RUNNING")
        else:
            run = client.create_run(experiment, run_name=self._run, tags={TAG: self._run})
            self._id = run.info.run_id
        tags = facts.tags()
        if facts.code:
            tags["mlflow.source.git.commit"] = facts.code.removesuffix("-dirty")
        client.log_batch(self._id, tags=[RunTag(name, text) for name, text in tags.items()])
        client.log_inputs(self._id, [_input(version) for version in facts.versions])
        return int(client.get_run(self._id).data.metrics.get(STEP, -1))

    def log(self, steps: Sequence[TrackedStep]) -> None:
        """See `Tracker.log`. A request has whole steps, so that its last one is `STEP`."""
        assert self._client is not None
        for metrics in _requests(steps):
            self._client.log_batch(self._id, metrics)

    def close(self, end: RunEnd, checkpoint: str) -> None:
        """See `Tracker.close`."""
        assert self._client is not None
        if checkpoint:
            self._client.set_tag(self._id, "penstock.checkpoint", checkpoint)
        if end == "again":
            self._client.update_run(self._id, "SCHEDULED")
        else:
            self._client.set_terminated(self._id, _STATUS[end])


def run_id(client: "MlflowClient", run: str, experiment: str | None = None) -> str:
    """Return MLflow's id of a run, in one experiment or the newest of all; "" if there is none."""
    experiments = [experiment] if experiment else [one.experiment_id for one in client.search_experiments()]
    runs = client.search_runs(
        experiments, f"tags.`{TAG}` = '{run}'", max_results=1, order_by=["attributes.start_time DESC"]
    )
    return str(runs[0].info.run_id) if runs else ""


def _experiment(client: "MlflowClient") -> str:
    if experiment := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return experiment
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if not name:
        return "0"
    known = client.get_experiment_by_name(name)
    return str(client.create_experiment(name) if known is None else known.experiment_id)


def _input(version: TrackedVersion) -> "DatasetInput":
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=version.name,
        digest=version.id[:_DIGEST_CHARS],
        source_type=urlsplit(version.url).scheme or "local",
        source=json.dumps({"uri": version.url}),
    )
    tags = {
        "mlflow.data.context": "training",
        "penstock.source": version.source,
        "penstock.version": version.id,
    }
    return DatasetInput(dataset=dataset, tags=[InputTag(key=key, value=text) for key, text in tags.items()])


def _requests(steps: Sequence[TrackedStep]) -> "Iterator[list[Metric]]":
    from mlflow.entities import Metric

    metrics: list[Metric] = []
    for number, row in enumerate(steps):
        at_ms = row.at_us // 1000
        metrics += [
            Metric(_NAME.sub("_", name)[:_NAME_CHARS], value, at_ms, row.step)
            for name, value in row.values.items()
        ]
        following = len(steps[number + 1].values) if number + 1 < len(steps) else MAX_METRICS
        if len(metrics) + following >= MAX_METRICS:
            yield [*metrics, Metric(STEP, float(row.step), at_ms, row.step)]
            metrics = []


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersion:
    """A version of a registered model."""

    model: str
    """Name of the model."""
    version: str
    """Number of the version, as MLflow's text."""
    source: str
    """URL of the checkpoint's marker."""
    tags: dict[str, str]
    """Run, step, plan and versions of the data."""
    is_new: bool
    """False if it was registered before."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def register(root: Root, run: str, step: int, model: str) -> ModelVersion:
    """Return the model version of a checkpoint; make it, and the model, if they are not there.

    Raises: CheckpointNotFound; Corrupt; MissingDependency; InvalidRuntime, with MLflow's error.
    """
    store = primary_store(root.store)
    checkpoint = marker.read(store, run, step)
    source = f"{store.url}/{marker.marker_key(run, step)}"
    tags = {"penstock.run": run, "penstock.step": str(step)}
    if checkpoint.plan is not None:
        tags["penstock.plan"] = checkpoint.plan
    for version in checkpoint.versions:
        tags[f"penstock.version.{version['source']}"] = f"{version['name']} {version['id']}"
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as error:
        raise MissingDependency(
            "checkpoints register needs MLflow: pip install 'penstock-data[mlflow]'"
        ) from error
    client = MlflowClient()
    try:
        with suppress(MlflowException):  # it exists
            client.create_registered_model(model)
        versions = client.search_model_versions(f"name = '{model}'")
        known = [version for version in versions if version.source == source]
        result = (
            known[0]
            if known
            else client.create_model_version(model, source, run_id=run_id(client, run) or None, tags=tags)
        )
    except MlflowException as error:
        raise InvalidRuntime(
            f"MLflow did not register {source} as {model!r}: {redact(str(error))}; check the name, and "
            "MLFLOW_TRACKING_URI"
        ) from error
    return ModelVersion(
        model=model,
        version=str(result.version),
        source=source,
        tags=dict(result.tags),
        is_new=not known,
    )
