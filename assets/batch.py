"""Raw objects to samples: each object fetched, checked and cut by itself; a bad one never stops the batch."""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loader.errors import StoreError
from loader.storage import Store

from .media.cutters import CUTTERS, kind_of
from .media.unit import CutPolicy, Kind, Unit, Unusable, dropped, rejected
from .stages import fingerprint

SUPERSEDED = ("Changed", "ObjectNotFound")
"""Replaced or taken away since discovery. Nothing is damaged: what is there now lands in a later batch."""

_CHUNK_BYTES = 2**20
Progress = Callable[[int, int, str], None]
PartSample = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]
"""What `loader.write_part` takes: key, fields, metadata, source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutSample:
    """A sample whose bytes wait in scratch files."""

    key: str
    kind: Kind
    unit: Unit
    unit_id: str
    row: Mapping[str, Any]


@dataclass(slots=True)
class CutBatch:
    """What came of a batch's objects: landed = used + refused, as objects."""

    samples: list[CutSample] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    n_landed: int = 0
    n_used: int = 0

    def of_kind(self, kind: Kind) -> list[CutSample]:
        return [sample for sample in self.samples if sample.kind == kind]

    def refused(self, outcome: str) -> list[dict[str, Any]]:
        return [row for row in self.refusals if row["outcome"] == outcome]


def cut_batch(
    landing: Store,
    rows: Sequence[Mapping[str, Any]],
    policy: CutPolicy,
    scratch: Path,
    *,
    published: Mapping[str, str],
    progress: Progress,
) -> CutBatch:
    """Cut every object of a batch into `scratch`. An object gives samples, or one refusal row.

    published: sha256 -> where these bytes are in the dataset already; such an object is dropped.
    """
    batch = CutBatch(n_landed=len(rows))
    first_with = dict(published)
    for position, row in enumerate(rows):
        progress(position, len(rows), row["key"])
        folder = scratch / f"{position:06d}"
        folder.mkdir()
        try:
            samples = _cut_object(landing, row, policy, folder, first_with)
        except Unusable as unusable:
            facts = {"outcome": unusable.outcome, "stage": unusable.stage, "code": unusable.code}
            refusal = {"key": row["key"], "sha256": row["sha256"], "reason": unusable.reason}
            batch.refusals.append(refusal | facts)
            continue
        first_with[row["sha256"]] = repr(row["key"])
        batch.samples += samples
        batch.n_used += 1
    return batch


def _cut_object(
    landing: Store,
    row: Mapping[str, Any],
    policy: CutPolicy,
    folder: Path,
    first_with: Mapping[str, str],
) -> list[CutSample]:
    """Raises: Unusable."""
    if row["error_code"] in SUPERSEDED:
        raise dropped("land", row["error_code"], row["error_reason"])
    if row["error_code"]:
        raise rejected("land", row["error_code"], row["error_reason"])
    if row["sha256"] in first_with:
        raise dropped("dedup", "duplicate", f"the same bytes as {first_with[row['sha256']]}")
    with tempfile.NamedTemporaryFile(dir=folder, prefix="raw-") as raw:
        _fetch(landing, row, raw.name)
        kind = kind_of(raw.name, row["mime"])
        units = CUTTERS[kind].cut(raw.name, folder, policy)
    ids = [fingerprint(row["sha256"], unit.start, unit.end, _plain(policy)) for unit in units]
    return [
        CutSample(key=f"{kind}/{unit_id[:20]}", kind=kind, unit=unit, unit_id=unit_id, row=row)
        for unit, unit_id in zip(units, ids, strict=True)
    ]


def _fetch(landing: Store, row: Mapping[str, Any], path: str) -> None:
    """Copy the object to a local file; it must be the bytes that landed. Raises: Unusable."""
    digest = hashlib.sha256()
    try:
        with landing.open_stream(row["key"]) as stream, open(path, "wb") as copy:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
                copy.write(chunk)
    except StoreError as error:
        raise rejected("fetch", type(error).__name__, error) from error
    if digest.hexdigest() != row["sha256"]:
        raise rejected("fetch", "Changed", "the object is not the one that landed; land the batch again")


def _plain(policy: CutPolicy) -> dict[str, str]:
    return {name: str(value) for name, value in asdict(policy).items()}


def policy_fingerprint(policy: CutPolicy) -> str:
    """sha256 hex of a policy."""
    return fingerprint(_plain(policy))


def labels_of(batch: CutBatch, known: Sequence[str]) -> list[str]:
    """The class names: `known` first, so that no number changes its meaning; then new ones, sorted."""
    found = {sample.row["label"] for sample in batch.samples if CUTTERS[sample.kind].has_label}
    return [*known, *sorted(found - set(known))]


def part_samples(
    samples: Sequence[CutSample], labels: Sequence[str], provenance: Mapping[str, str]
) -> Iterator[PartSample]:
    """The samples of one kind as a part's writer takes them. provenance: run_id, asset_key, partition ..."""
    number = {label: position for position, label in enumerate(labels)}
    for sample in samples:
        cutter, row = CUTTERS[sample.kind], sample.row
        fields: dict[str, Any] = {
            name: value.read_bytes() if isinstance(value, Path) else value
            for name, value in sample.unit.fields.items()
        }
        told = {name: row[name] for name in ("label", "title", "text", "licence", "author", "origin")}
        facts = {**fields.pop("json"), "raw": row["key"], **{name: told[name] for name in told if told[name]}}
        fields[cutter.facts] = facts
        if cutter.has_label:
            fields["cls"] = number[row["label"]]
        metadata = {
            "kind": sample.kind,
            "label": row["label"],
            "licence": row["licence"],
            "mime": row["mime"],
        }
        source = {
            "source_key": row["key"],
            "unit_id": sample.unit_id,
            "raw_uri": row["uri"],
            "raw_key": row["key"],
            "raw_etag": row["etag"],
            "raw_sha256": row["sha256"],
            "raw_start": sample.unit.start,
            "raw_end": sample.unit.end,
        }
        yield sample.key, fields, {**metadata, **sample.unit.metadata}, source | dict(provenance)
