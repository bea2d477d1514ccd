"""Key, metadata and provenance of a sample that an object of another format holds.

Keys begin with the object's hash: batches are published one by one, and an object may land again with other samples of
the same keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.columnar.choices import Options
from loader.dataset.splits import split_of
from penstock.compute.job import Job
from penstock.formats.registration.parts import text_of
from penstock.formats.registration.shard_rows import key_of
from penstock.stages import fingerprint

if TYPE_CHECKING:
    from ...spec import DatasetSpec

OWN_COLUMNS = frozenset({"label", "mime", "kind", "licence"})
"""Columns of each sample, whatever its format tells."""
_HASH_LETTERS = 12
"""Number of letters of an object's SHA-256 in front of the keys of its samples."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Samples of a batch whose objects are of a format."""

    parts: Sequence[tuple[str, loader.Part]] = ()
    """Kind and part of each."""
    rows: list[Row] = field(default_factory=list)
    """Rows of samples."""
    refusals: list[Row]
    """Rows of refused objects."""
    labels: Sequence[str] = ()
    """Class names of the dataset, in the order of their numbers."""
    foreign: Mapping[str, Any] | None = None
    """Table of objects that stay in place, plain JSON; None for none."""
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Field -> facts of it that the format tells."""
    replaces: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Key of a sample -> keys of the published ones whose place it takes."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column -> type, of those that values of JSON documents became."""
    notes: Sequence[str] = ()
    """Notes on values of JSON documents that became no column, in words."""
    n_known: int = 0
    """Samples that were left out: the dataset has them, or had them."""
    jobs: Sequence[Job[Any, Any]] = ()
    """The jobs that wrote, whose folders may go once the batch is on record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taking:
    """Rules by which a dataset takes the samples of its raw objects; plain, so that nodes get them."""

    dataset: str
    """Dataset whose splits it has."""
    splits: dict[str, float]
    """Split -> its share."""
    split_by: str
    """As `DatasetSpec.split_by`."""
    format: str
    """Format of the raw objects."""
    choices: dict[str, Any]
    """Choices of its reader, as `Options.to_json`."""
    provenance: dict[str, str]
    """Provenance of all samples."""

    @classmethod
    def of(cls, spec: "DatasetSpec", provenance: Mapping[str, str]) -> "Taking":
        """Return the rules of a dataset."""
        return cls(
            dataset=spec.rebuild_of or spec.name,
            splits=dict(spec.splits),
            split_by=spec.split_by,
            format=spec.format,
            choices=spec.sources[0].choices.to_json(),
            provenance=dict(provenance),
        )

    @property
    def of_no_run(self) -> "Taking":
        """The same rules without the id of a run."""
        return replace(self, provenance={**self.provenance, "run_id": ""})

    def own_split(self, told: Mapping[str, str]) -> str:
        """Return the split that a format names for a sample, "" for none. told: what it tells of its provenance."""
        return "" if "split" in self.choices["without"] else told.get("split", "")

    @property
    def options(self) -> Options:
        """Choices of the format's reader."""
        return Options.from_json(self.choices)


def key_in_dataset(raw: Row, source_key: str, longest: int) -> str:
    """Return the key of a sample. raw: row of its object; longest: letters of the longest name of its fields."""
    return key_of(f"{raw['sha256'][:_HASH_LETTERS]}/{source_key}", longest)


def metadata_of(raw: Row, told: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the metadata of a sample. told: columns that its format has."""
    return {
        "label": raw["label"],
        "mime": raw["mime"],
        **told,
        "kind": kind,
        "licence": raw["licence"],
    }


def source_of(taking: Taking, raw: Row, source_key: str, told: Mapping[str, str]) -> dict[str, str]:
    """Return the provenance of a sample, without its place in the object.

    raw: row of its object, with `first_sha256` where it was published before with other bytes: it keeps its split.
    told: what its format tells. A split there is the sample's, unless the source leaves `split` out.
    """
    own = taking.own_split(told)
    by_subject = taking.split_by == "subject"
    identity = raw["label"] if by_subject else raw.get("first_sha256") or raw["sha256"]
    source = {
        "source_key": text_of(source_key),
        "unit_id": fingerprint(raw["sha256"], source_key),
        "raw_uri": raw["uri"],
        "raw_key": raw["key"],
        "raw_etag": raw["etag"],
        "raw_sha256": raw["sha256"],
        "split": own or split_of(identity, taking.splits, taking.dataset),
        **taking.provenance,
    }
    if by_subject and raw["label"]:
        source["subject"] = raw["label"]
    return source


def unit_row(key: str, kind: str, part_id: str, source: Mapping[str, str], content: str = "") -> Row:
    """Return a sample's row of the `units` table. content: its hash, "" where nobody knows."""
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
