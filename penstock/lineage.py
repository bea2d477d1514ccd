"""From a sample to every run of the pipeline that made it: the records of the stages of its batch, and its publish.

    stages/<dataset>/<stage>/<partition>/<r>.json     what a stage published, and which records it read

A sample's part is named after its transaction, which the record of its batch's samples names; the rest follows from
what each record read.
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
    """A run that had a part in a sample."""

    asset_key: str
    """The asset that the run made, `<dataset>/<stage>`; "" for a publish whose manifest names none."""
    partition: str
    """Partition of the asset; of a publish the version's name."""
    run_id: str
    """Id of the run in Dagster."""
    code_version: str = ""
    """Code version, as Dagster has it; "" for a publish."""
    data_version: str = ""
    """Data version, as Dagster has it; of a publish the version's id."""
    record: str = ""
    """Path of the stage's record in the root; "" where none is named."""
    at_us: int = 0
    """Time of the record or manifest, UTC microseconds."""

    def to_json(self) -> dict[str, Any]:
        """Return the run as plain JSON."""
        return asdict(self)

    def line(self, ui: str = "") -> str:
        """Return one line for people.

        ui: URL of Dagster's webserver, for a link.
        """
        text = f"{self.asset_key:<28} run {self.run_id}"
        text += f"  code {self.code_version}" if self.code_version else ""
        text += f"  data {self.data_version[:12]}" if self.data_version else ""
        return text + (f"  {ui.rstrip('/')}/runs/{self.run_id}" if ui else "")


def made_by(root: Root, explained: Sequence[Explanation]) -> list[tuple[StageRun, ...]]:
    """Return per sample the runs that made it, upstream first; none for one that no pipeline made.

    Each batch is read once: a listing, a record per stage, a manifest. Raises: Corrupt; StoreError.
    """

    @cache
    def of_batch(dataset: str, partition: str, txn: str) -> tuple[StageRun, ...]:
        record = _samples_record(root, dataset, partition, txn)
        return () if record is None else (*_upstream(root, *record), *_publish(root, dataset, txn))

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
    """Return the newest published record of the batch's samples that is of this transaction, with its path."""
    paths = [info.key for info in root.store.list(f"stages/{dataset}/{_SAMPLES}/{partition}/")]
    for path in sorted(paths, reverse=True):
        body = record_json(root.store, path, "upstream")
        if body["verdict"] == "published" and body["body"].get("txn") == txn:
            return path, body
    return None


def _upstream(root: Root, path: str, body: Mapping[str, Any]) -> list[StageRun]:
    """Return the record and all that it was made of, each once, upstream first."""
    runs: dict[str, StageRun] = {}

    def visit(path: str, body: Mapping[str, Any]) -> None:
        for read in body["upstream"]:
            above = f"stages/{body['dataset']}/{read['stage']}/{read['partition']}/{read['r']:012d}.json"
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


def _publish(root: Root, dataset: str, txn: str) -> list[StageRun]:
    """Return the run that published the transaction, while its manifest is there."""
    for record in root.state.versions(dataset):
        if record.txn == txn:
            try:
                manifest = read_manifest(root.store, record.manifest, record.sha256)
            except ObjectNotFound:  # a collector had it, after the version was retired
                return []
            producer = manifest["producer"]
            if "dagster_run_id" not in producer:
                return []
            run = StageRun(
                asset_key=str(producer.get("asset_key", "")),
                partition=record.name,
                run_id=str(producer["dagster_run_id"]),
                data_version=record.id,
                record=str(producer.get("audit_record", "")),
                at_us=manifest["created_us"],
            )
            return [run]
    return []
