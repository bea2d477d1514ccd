"""What the demo leaves behind, by its bytes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import loader
from assets.arrivals.batch_manifests import manifests
from assets.pipeline.tables import read_table
from dagster_project.datasets.demo import SPEC
from loader.storage import Store
from penstock.stages import current_record, partitions

STAGES = ("raw_objects", "media", "units", *(f"feature_{one.name}" for one in SPEC.features), "samples")
RUN = "run_id"
"""Column that tells the run of Dagster: the only one that may differ."""


def digests(place: Path) -> dict[str, str]:
    """Return name -> SHA-256 of every table, shard and index of a root's batches and versions.

    Tables that tell the run are taken without its id. Raises: AssertionError for a stage that has two records.
    """
    found = {}
    with loader.Root(place) as root:
        for manifest in manifests(root.store, SPEC.name):
            for stage in STAGES:
                record = current_record(root.store, SPEC.name, stage, manifest.batch)
                assert record is not None, f"{manifest.batch} has no record of {stage}"
                assert record.r == 1, f"{stage} of {manifest.batch} was done {record.r} times"
                for name, file in record.files.items():
                    rows = read_table(root.store, file)
                    found[f"{manifest.batch} {stage} {name}"] = _of_rows(rows, file.sha256)
        for info in root.versions(SPEC.name):
            version = root.open(info.name)
            found[f"{info.name} samples"] = _of_rows(version.samples().collect().to_dicts(), "")
            for shard in version.parts.shard_rows().select(["part", "path", "index_path"]).to_pylist():
                for path in (shard["path"], shard["index_path"]):
                    found[f"{info.name} {shard['part']} {Path(path).name}"] = _of_bytes(root.store, path)
    return found


def n_records(place: Path) -> int:
    """Return how many stages of how many batches have a record."""
    with loader.Root(place) as root:
        return sum(len(partitions(root.store, SPEC.name, stage)) for stage in STAGES)


def _of_rows(rows: list[dict[str, Any]], sha256: str) -> str:
    if sha256 and not any(RUN in row for row in rows):
        return sha256
    told = [{name: value for name, value in row.items() if name != RUN} for row in rows]
    return hashlib.sha256(json.dumps(told, default=repr).encode()).hexdigest()


def _of_bytes(store: Store, path: str) -> str:
    return hashlib.sha256(store.get(path).data).hexdigest()
