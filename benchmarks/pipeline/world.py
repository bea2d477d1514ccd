"""A root and a Dagster instance with many batches: manifests, log, versions and the events of every stage are real in
form and number, the media and shards behind them are not there."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from logging import INFO
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.events import DagsterEvent, DagsterEventType, StepMaterializationData
from dagster._core.instance.utils import RUNLESS_JOB_NAME, RUNLESS_RUN_ID
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

import loader
from assets.arrivals.make_batches import discover
from assets.sources import BatchLimits
from assets.spec import DatasetSpec, Feature, Upkeep
from benchmarks.scale import publish
from dagster_project.definitions import batch_partitions, build_defs
from loader.storage import open_store
from penstock.stages import StageRecord, Upstream, append_record, fingerprint
from resources.alerts import AlertsResource
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

DATASET = "d"
STAGES = ("raw_objects", "media", "units", "feature_phash", "samples")
SPEC = DatasetSpec(
    name=DATASET,
    features=(Feature(name="phash"),),
    batch=BatchLimits(max_objects=1, max_wait_s=0),
    upkeep=Upkeep(refresh="0 3 * * *"),
)
_LISTED_AT_ONCE = 1_000  # keys in an answer of S3


class Far:
    """A store that counts requests, and answers each so many seconds later."""

    def __init__(self, store: Any) -> None:
        self._store, self.url = store, store.url
        self.requests, self.latency_s = 0, 0.0

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)

        def call(*given: Any, **named: Any) -> Any:
            self._ask()
            return verb(*given, **named)

        return call if callable(verb) and name != "close" else verb

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[Any]:
        for position, info in enumerate(self._store.list(prefix, start_after)):
            if position % _LISTED_AT_ONCE == 0:
                self._ask()
            yield info

    def _ask(self) -> None:
        self.requests += 1
        time.sleep(self.latency_s)


class FarRoot(RootResource):
    """The root behind such a store."""

    def far(self) -> Far:
        return _FAR.setdefault(self.url, Far(open_store(self.url)))

    def root(self) -> loader.Root:
        root = super().root()
        root._use(self.far())  # type: ignore[arg-type]
        return root


_FAR: dict[str, Far] = {}


class World:
    """home: the DAGSTER_HOME, whose dagster.yaml is there; folder: where root and landing place are made."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.root_url, self.landing = str(folder / "root"), folder / "landing"
        self.landing.mkdir(parents=True)
        self.instance = dg.DagsterInstance.from_config(str(home))
        self.root = loader.Root(self.root_url)
        self.root.create()
        self.resource = FarRoot(url=self.root_url)
        self.resources: dict[str, Any] = {
            "compute": ComputeResource(engine="inline"),
            "root": self.resource,
            "landing": LandingResource(url=str(self.landing)),
            "alerts": AlertsResource(),
        }
        self.defs = build_defs(self.resources, [SPEC])
        self.keys: list[str] = []

    def grow(self, to: int) -> Iterator[int]:
        """Up to so many batches, each published; yields how many there are."""
        for number in range(len(self.keys), to):
            (self.landing / f"{number:06d}.jpg").write_bytes(b"%d" % number)
        made = discover(self.root.store, open_store(str(self.landing)), DATASET, SPEC.batch)
        self.instance.add_dynamic_partitions(str(batch_partitions(SPEC).name), made)
        for key in made:
            run_id = str(uuid.uuid4())
            self._records(key, run_id, publish(self.root, len(self.keys), 1))
            self.instance.add_run(_run(key, run_id))
            self.keys.append(key)
            yield len(self.keys)
        self._events(made)

    def _records(self, key: str, run_id: str, txn: str) -> None:
        upstream: tuple[Upstream, ...] = ()
        for stage in (*STAGES, "version"):
            record = StageRecord(
                dataset=DATASET,
                stage=stage,
                partition=key,
                verdict="published",
                run_id=run_id,
                code_version="1",
                fingerprint=fingerprint(stage, key),
                upstream=upstream,
            )
            if stage == "raw_objects":
                record = replace(record, counts={"landed": 1, "nbytes": 1000})
            if stage == "units":
                parts = [{"kind": "image", "part": {"id": f"{txn}-00000"}}]
                record = replace(record, body={"txn": txn, "parts": parts})
            if stage == "feature_phash":
                record = replace(record, body={"version": SPEC.features[0].build().version})
            if stage == "samples":
                record = replace(
                    record, counts={"used": 1}, body={"txn": txn, "parts": [{}], "made_of": {"refused": []}}
                )
            upstream = (Upstream(stage=stage, partition=key, r=append_record(self.root.store, record).r),)

    def _events(self, keys: list[str]) -> None:
        """A materialization of every asset for each: in one transaction, as nobody waits for them one by one."""
        storage = self.instance.event_log_storage
        assert isinstance(storage, SqlEventLogStorage)
        with storage.index_transaction() as connection:
            for key, stage in product(keys[:-1], STAGES):
                connection.execute(storage.prepare_insert_event(_entry(_materialization(stage, key))))
        for stage in STAGES:  # the newest: as Dagster notes it with the asset
            self.instance.report_runless_asset_event(_materialization(stage, keys[-1]))

    def close(self) -> None:
        self.root.close()
        self.instance.dispose()


def _run(key: str, run_id: str) -> dg.DagsterRun:
    """As the queue leaves it."""
    tags = {
        "dagster/partition": key,
        "dagster/run_key": key,
        "dagster/sensor_name": f"{DATASET}_discovery",
        "penstock/dataset": DATASET,
    }
    return dg.DagsterRun(
        job_name=f"{DATASET}_ingest", run_id=run_id, status=dg.DagsterRunStatus.SUCCESS, tags=tags
    )


def _materialization(stage: str, key: str) -> dg.AssetMaterialization:
    return dg.AssetMaterialization([DATASET, stage], partition=key, metadata={"landed": 1, "used": 1})


def _entry(event: dg.AssetMaterialization) -> dg.EventLogEntry:
    told = DagsterEvent(
        event_type_value=DagsterEventType.ASSET_MATERIALIZATION.value,
        event_specific_data=StepMaterializationData(event),
        job_name=RUNLESS_JOB_NAME,
    )
    return dg.EventLogEntry(
        user_message="",
        level=INFO,
        job_name=RUNLESS_JOB_NAME,
        run_id=RUNLESS_RUN_ID,
        error_info=None,
        timestamp=time.time(),
        dagster_event=told,
    )
