"""The demo's Dagster runs: in this process, recorded in an instance that `make ui` opens afterwards."""

import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg

import loader
from assets.arrivals.batch_manifests import Manifest, manifests
from assets.arrivals.make_batches import discover
from assets.pipeline.stages import SAMPLES
from assets.spec import DatasetSpec
from dagster_project.datasets.demo import SPEC
from dagster_project.definitions import batch_partitions, build_defs
from dagster_project.sensors.alerting import why_failed
from loader.storage import open_store
from penstock.stages import StageRecord, current_record
from resources.compute import ComputeResource

SETTINGS = Path(__file__).resolve().parents[2] / "deploy" / "one_machine" / "dagster.yaml"
DATASET = SPEC.name
STAGES = ("raw_objects", "media", "units", "features", "samples", "version")
"""As the closing table has them; all featurizers are one row."""

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the demo keeps things. source: the landing place, a folder or URL; spec: the dataset, by default the
    demo's own; engine: where heavy work runs, see `penstock.compute.pool`; cluster: file of a cluster, "" for none."""

    root: Path
    home: Path
    source: str
    spec: DatasetSpec = SPEC
    engine: str = "local"
    cluster: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished Dagster run. message: why it failed, empty when it did not; checks: name -> passed;
    seconds: stage -> how long it took."""

    id: str
    success: bool
    message: str
    checks: dict[str, bool]
    seconds: dict[str, float]


class Pipeline:
    """The project's jobs over one root, one landing place and one Dagster instance."""

    def __init__(self, places: Places) -> None:
        self.places = places
        write_settings(places.home)
        os.environ["PENSTOCK_ROOT"] = str(places.root)
        os.environ["PENSTOCK_LANDING"] = places.source
        logging.getLogger("dagster").setLevel(logging.CRITICAL)
        self._instance = dg.DagsterInstance.from_config(str(places.home))
        compute = ComputeResource(engine=places.engine, cluster=places.cluster)
        self._defs = build_defs({"compute": compute}, [places.spec])

    def discover(self) -> list[Manifest]:
        """Make batches of what has arrived in the source; all of its batches, the earlier ones too."""
        landing = open_store(self.places.source)
        try:
            with loader.Root(self.places.root) as root:
                root.create()
                discover(root.store, landing, DATASET)
                return [found for found in manifests(root.store, DATASET) if found.landing == landing.url]
        finally:
            landing.close()

    def ingest(self, batch: str) -> Run:
        """raw_objects to samples of a batch."""
        self._instance.add_dynamic_partitions(str(batch_partitions(self.places.spec).name), [batch])
        return self._run(f"{DATASET}_ingest", partition_key=batch)

    def release(self) -> Run:
        """version."""
        return self._run(f"{DATASET}_release")

    def status_of(self, run_id: str) -> str:
        """'ingest, SUCCESS' for a run that the instance knows, else 'unknown'."""
        run = self._instance.get_run_by_id(run_id)
        return f"job {run.job_name}, {run.status.value}" if run else "unknown"

    def close(self) -> None:
        """Close the instance's databases."""
        self._instance.dispose()

    def _run(self, job: str, **options: Any) -> Run:
        result = self._defs.resolve_job_def(job).execute_in_process(
            instance=self._instance, run_config=_QUIET, raise_on_error=False, **options
        )
        failed = [event for event in result.all_events if event.is_step_failure]
        message = why_failed(failed[0]) if failed else ""
        checks = {found.check_name: found.passed for found in result.get_asset_check_evaluations()}
        seconds: dict[str, float] = {}
        for event in result.all_events:
            if event.is_step_success:
                stage = str(event.step_key).removeprefix(f"{DATASET}__")
                stage = "features" if stage.startswith("feature_") else stage
                seconds[stage] = seconds.get(stage, 0.0) + event.step_success_data.duration_ms / 1000
        return Run(
            id=result.run_id,
            success=result.success,
            message=message,
            checks=checks,
            seconds=seconds,
        )


def write_settings(home: Path) -> None:
    """Make the folder a DAGSTER_HOME; settings that somebody changed are left alone."""
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():
        shutil.copyfile(SETTINGS, settings)


def record_of(root: loader.Root, stage: str, batch: str) -> StageRecord | None:
    """The stage's current record for a batch."""
    return current_record(root.store, DATASET, stage, batch)


def is_published(root: loader.Root, batch: str) -> bool:
    """Whether a version has everything that the batch gave."""
    cut = record_of(root, SAMPLES, batch)
    if cut is None or cut.verdict != "published":
        return False
    transaction = root.state.txns.get(cut.body["txn"])
    return not cut.body["parts"] or (transaction is not None and transaction.status == "committed")
