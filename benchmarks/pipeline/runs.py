"""What a batch costs in Dagster: small photos through all stages, as a run in this process and without Dagster."""

import io
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import dagster as dg
import numpy as np
import yaml
from PIL import Image

import loader
from assets.arrivals.make_batches import discover
from assets.features.feature_asset import feature_stage
from assets.ingest.media import media_stage
from assets.ingest.raw_objects import land
from assets.ingest.units import units_stage
from assets.samples.samples_asset import samples_stage
from assets.sources import BatchLimits
from dagster_project.definitions import batch_partitions, build_defs
from loader.storage import open_store
from penstock.compute.pool import InlineCompute
from penstock.progress import progress
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

from .world import DATASET, SPEC

PHOTOS = 4
POSTGRES = "PENSTOCK_DAGSTER_POSTGRES"
"""The variable with the URL that deploy/production/dagster.yaml names."""
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


class Batches(NamedTuple):
    """Median seconds and processor seconds of a batch, as a run and by its stages alone."""

    run_s: float
    run_cpu_s: float
    stages_s: float
    stages_cpu_s: float


def batches(folder: Path, n: int, postgres_url: str) -> Batches:
    """n batches of each kind, in turns; the first of each is not counted. postgres_url: "" for SQLite."""
    place = folder / "landing"
    place.mkdir(parents=True)
    for number in range((2 * n + 2) * PHOTOS):
        (place / f"{number:06d}.jpg").write_bytes(_photo(number))
    home = folder / "home"
    home.mkdir()
    kept = {"storage": {"postgres": {"postgres_url": {"env": POSTGRES}}}} if postgres_url else {}
    settings = yaml.safe_dump({"telemetry": {"enabled": False}, **kept})
    (home / "dagster.yaml").write_text(settings, encoding="utf-8")
    took: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with (
        loader.Root(folder / "root") as root,
        dg.DagsterInstance.from_config(str(home)) as instance,
    ):
        root.create()
        keys = discover(root.store, open_store(str(place)), DATASET, BatchLimits(max_objects=PHOTOS))
        instance.add_dynamic_partitions(str(batch_partitions(SPEC).name), keys)
        run, alone = _run(folder, instance), _alone(root, place)
        for number, key in enumerate(progress(keys, "batches")):
            wall, cpu = time.perf_counter(), time.process_time()
            (run if number % 2 else alone)(key)
            took[bool(number % 2)].append((time.perf_counter() - wall, time.process_time() - cpu))
    medians = [median(one[at] for one in took[kind][1:]) for kind in (True, False) for at in (0, 1)]
    return Batches(*medians)


def _run(folder: Path, instance: dg.DagsterInstance) -> Callable[[str], None]:
    defs = build_defs(
        {
            "compute": ComputeResource(engine="inline"),
            "root": RootResource(url=str(folder / "root")),
            "landing": LandingResource(url=str(folder / "landing")),
        },
        [SPEC],
    )
    job = defs.resolve_job_def(f"{DATASET}_ingest")

    def ingest(key: str) -> None:
        assert job.execute_in_process(partition_key=key, instance=instance, run_config=_QUIET).success

    return ingest


def _alone(root: loader.Root, place: Path) -> Callable[[str], None]:
    landing, compute = open_store(str(place)), InlineCompute()

    def stages(key: str) -> None:
        land(root.store, landing, dataset=DATASET, partition=key, run_id="bench")
        media_stage(root, landing, compute, SPEC, partition=key, run_id="bench")
        units_stage(root, landing, compute, SPEC, partition=key, run_id="bench")
        for feature in SPEC.features:
            feature_stage(
                root, compute, feature.build(), dataset=DATASET, partition=key, run_id="bench", timeout_s=60
            )
        made, _ = samples_stage(root, SPEC, partition=key, run_id="bench")
        assert made.verdict == "published", made.reason

    return stages


def _photo(number: int) -> bytes:
    coarse = np.random.default_rng(number).integers(0, 256, (6, 8, 3), np.uint8)
    sink = io.BytesIO()
    Image.fromarray(coarse).resize((96, 64)).save(sink, "JPEG", quality=92)
    return sink.getvalue()
