"""A run in MLflow, found by its tag `penstock.run` in the experiment of MLFLOW_EXPERIMENT_ID or _NAME."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

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
_DIGEST_CHARS, _NAME_CHARS = 36, 250
_NAME = re.compile(r"[^\w./ -]")
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowRun:
    """See `Tracker`."""

    knows_steps, settle_s = True, 0.0

    def __init__(self, run: str) -> None:
        self._run, self._id = run, ""
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
