"""Keys, metadata and provenance of samples from objects that contain several."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from loader.dataset.columnar.choices import ColumnarOptions
from loader.dataset.hash_splits import split_of
from loader.errors import StoreError
from penstock.compute.job import Job
from penstock.compute.local_blocks import job_blocks
from penstock.compute.pool import Compute, Outcome
from penstock.compute.work import Work
from penstock.formats.registration.parts import key_text
from penstock.formats.registration.shard_rows import sample_key
from penstock.stages import fingerprint

from ...spec import DatasetSpec

if TYPE_CHECKING:
    from ...pipeline.stages import OpenBatch

OWN_COLUMNS = frozenset({"label", "mime", "kind", "licence"})
"""Columns of each sample that no format may set."""
_HASH_CHARS = 12
"""Hex digits of the SHA-256 before a sample's key."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRules:
    """Rules by which a dataset ingests the samples of its raw objects."""

    dataset: str
    """Dataset whose name decides the splits."""
    splits: dict[str, float]
    """Split -> share."""
    split_by: str
    """Column, as in `DatasetSpec.split_by`."""
    has_folder_labels: bool
    """True if the folder of a raw object is its samples' `label`."""
    format: str
    """Format of the raw objects."""
    choices: dict[str, Any]
    """Reader options, in the form of `ColumnarOptions.to_json`."""
    provenance: dict[str, str]
    """Provenance of all samples."""

    @classmethod
    def of(cls, spec: DatasetSpec, provenance: Mapping[str, str]) -> "IngestRules":
        """Return the rules of a dataset."""
        source = spec.sources[0]  # all sources of a dataset have the same options (`check_sources`)
        return cls(
            dataset=spec.rebuild_of or spec.name,
            splits=dict(spec.splits),
            split_by=spec.split_by,
            has_folder_labels=spec.label_from == "folder",
            format=spec.format,
            choices=source.choices.to_json(),
            provenance=dict(provenance),
        )

    def without_run_id(self) -> "IngestRules":
        """Return the same rules for all runs."""
        provenance = dict(self.provenance)
        provenance["run_id"] = ""
        return replace(self, provenance=provenance)

    def own_split(self, format_provenance: Mapping[str, str]) -> str:
        """Return the split that the format names, or ""."""
        if "split" in self.choices["without"]:
            return ""
        return format_provenance.get("split", "")

    @property
    def options(self) -> ColumnarOptions:
        return ColumnarOptions.from_json(self.choices)


def key_in_dataset(raw: Row, source_key: str, longest: int) -> str:
    """Return a sample's key in the dataset. longest: characters of its longest field name."""
    content = raw["sha256"][:_HASH_CHARS]
    return sample_key(f"{content}/{source_key}", longest)


def sample_metadata(
    rules: IngestRules,
    raw: Row,
    columns: Mapping[str, Any],
    kind: str,
) -> dict[str, Any]:
    """Return a sample's metadata. columns: columns from its format."""
    metadata: dict[str, Any] = {}
    if rules.has_folder_labels:
        metadata["label"] = raw["label"]
    metadata["mime"] = raw["mime"]
    metadata.update(columns)
    # Last, so that no column of the format replaces what the pipeline states itself.
    metadata["kind"] = kind
    metadata["licence"] = raw["licence"]
    return metadata


def sample_provenance(
    rules: IngestRules,
    raw: Row,
    source_key: str,
    format_provenance: Mapping[str, str],
) -> dict[str, str]:
    """Return a sample's provenance, without its position in the object.

    raw: row of its object. `first_sha256` decides the split if present: the hash of the bytes published first.

    format_provenance: provenance from the format. Its split is used unless the source leaves `split` out.
    """
    by_subject = rules.split_by == "subject"
    if by_subject:
        identity = raw["label"]
    else:
        identity = raw.get("first_sha256") or raw["sha256"]
    split = rules.own_split(format_provenance)
    if not split:
        split = split_of(identity, rules.splits, rules.dataset)
    source = {
        "source_key": key_text(source_key),
        "unit_id": fingerprint(raw["sha256"], source_key),
        "raw_uri": raw["uri"],
        "raw_key": raw["key"],
        "raw_etag": raw["etag"],
        "raw_sha256": raw["sha256"],
        "split": split,
        **rules.provenance,
    }
    if by_subject and raw["label"]:
        source["subject"] = raw["label"]
    return source


def unit_row(
    key: str,
    kind: str,
    part_id: str,
    source: Mapping[str, str],
    content: str = "",
) -> Row:
    """Return a sample's row for `units`. content: content hash; "" if unknown."""
    return {
        "key": key,
        "unit_id": source["unit_id"],
        "kind": kind,
        "part": part_id,
        "raw_key": source["raw_key"],
        "raw_sha256": source["raw_sha256"],
        "start": source.get("raw_start", ""),
        "end": source.get("raw_end", ""),
        "content": content,
    }


U = TypeVar("U")
R = TypeVar("R")


def units_job(
    work: Work[U, R],
    batch: "OpenBatch",
    *decides: object,
) -> Job[U, R]:
    """Return the batch's job for this work. decides: plain values that decide the units and their results.

    Workers may open the raw objects' files and the root, nothing else.
    """
    root = batch.root.store
    return Job(
        store=root,
        work=work,
        about=f"{batch.spec.name}/units/{batch.partition}",
        fingerprint=fingerprint(*decides),
        stores=[batch.files, root],
    )


def unit_outcomes(
    compute: Compute,
    job: Job[U, R],
    units: Sequence[U],
) -> Iterator[tuple[U, Outcome[R]]]:
    """Yield each unit with its outcome, in order."""
    for block in job_blocks(compute, job, lambda: units):
        for number, outcome in enumerate(block.outcomes, block.first):
            yield units[number], outcome


def missing_result_error(first_key: str, outcome: Outcome[R]) -> StoreError:
    """Return the error for a unit without a result. first_key: key of its first object."""
    why = "its worker returned no result"
    if outcome.error is not None:
        why = outcome.error.summary
    return StoreError(f"the samples of {first_key!r} could not be written: {why}")
