"""Find the pipeline runs that made a sample.

    stages/<dataset>/<stage>/<partition>/<r>.json     a stage's output, and the records that it read

A part is named after its transaction, which its batch's samples record names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from loader import Root
from loader.api.explain import Explanation
from loader.dataset.tables.manifest import read_manifest
from loader.errors import ObjectNotFound

from .stages import record_json

_SAMPLES = "samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRun:
    asset_key: str
    """`<dataset>/<stage>`; "" if a published version names none."""
    partition: str
    """Partition; for a published version, its name."""
    run_id: str
    """Dagster's run id."""
    code_version: str = ""
    """Dagster's code version; "" for a published version."""
    data_version: str = ""
    """Dagster's data version; for a published version, its id."""
    record: str = ""
    """Stage record's key, or ""."""
    at_us: int = 0
    """UTC microseconds of record or manifest."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self, ui: str = "") -> str:
        """Return the run as one line. ui: Dagster's webserver, for a link."""
        text = f"{self.asset_key:<28} run {self.run_id}"
        text += f"  code {self.code_version}" if self.code_version else ""
        text += f"  data {self.data_version[:12]}" if self.data_version else ""
        return text + (f"  {ui.rstrip('/')}/runs/{self.run_id}" if ui else "")


def pipeline_runs(root: Root, explained: Sequence[Explanation]) -> list[tuple[StageRun, ...]]:
    """Return each sample's runs, upstream first; none if it was made without the pipeline. Reads each batch once.

    Raises: Corrupt; StoreError.
    """

    @cache
    def of_batch(dataset: str, partition: str, txn: str) -> tuple[StageRun, ...]:
        record = _samples_record(root, dataset, partition, txn)
        if record is None:
            return ()
        runs = _upstream(root, *record)
        publishing_run = _publishing_run(root, dataset, txn)
        if publishing_run is not None:
            runs.append(publishing_run)
        return tuple(runs)

    return [
        of_batch(
            one.address.version.partition("@")[0],
            one.provenance["partition"],
            one.address.part.partition("-")[0],
        )
        if one.provenance.get("partition") and one.root == root.url
        else ()
        for one in explained
    ]


def _samples_record(
    root: Root, dataset: str, partition: str, txn: str
) -> tuple[str, Mapping[str, Any]] | None:
    """Return path and content of a transaction's newest published samples record."""
    paths = [info.key for info in root.store.list(f"stages/{dataset}/{_SAMPLES}/{partition}/")]
    # The newest first: names are numbers of equal length.
    for path in sorted(paths, reverse=True):
        body = record_json(root.store, path, "upstream")
        if body["verdict"] == "published" and body["body"].get("txn") == txn:
            return path, body
    return None


def _upstream(root: Root, path: str, body: Mapping[str, Any]) -> list[StageRun]:
    """Return the runs of a stage record and of all records that it was made from, upstream first."""
    runs: dict[str, StageRun] = {}

    def visit(path: str, body: Mapping[str, Any]) -> None:
        for read in body["upstream"]:
            above = f"stages/{body['dataset']}/{read['stage']}/{read['partition']}/{read['r']:012d}.json"
            # Several stages may have read one.
            if above not in runs:
                visit(above, record_json(root.store, above, "upstream"))
        runs[path] = StageRun(
            asset_key=f"{body['dataset']}/{body['stage']}",
            partition=body["partition"],
            run_id=body["run_id"],
            code_version=body["code_version"],
            data_version=body["fingerprint"],
            record=path,
            at_us=body["at_us"],
        )

    visit(path, body)
    return list(runs.values())


def _publishing_run(root: Root, dataset: str, txn: str) -> StageRun | None:
    """Return the run that published a transaction's version; None if its manifest names none, or is deleted."""
    for record in root.state.versions(dataset):
        if record.txn == txn:
            try:
                manifest = read_manifest(root.store, record.manifest, record.sha256)
            except ObjectNotFound:  # deleted by the collector after the version was retired
                return None
            producer = manifest["producer"]
            if "dagster_run_id" not in producer:
                return None
            return StageRun(
                asset_key=str(producer.get("asset_key", "")),
                partition=record.name,
                run_id=str(producer["dagster_run_id"]),
                data_version=record.id,
                record=str(producer.get("audit_record", "")),
                at_us=manifest["created_us"],
            )
    return None
