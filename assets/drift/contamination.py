"""Find samples of a batch that protected versions have: by raw object, subject, image hash or text.

A finding names the protected sample by its number, `gsm8k@1[17]`. A key of another dataset would outlive its takedown.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import loader
from loader.dataset.versions.samples_table import live_ordinals
from loader.dataset.writing.part_extension import read_part
from loader.errors import DecodeFailed
from loader.storage import RangeReader
from penstock.search.overlap.compare import ProtectedIndex, overlaps
from penstock.search.overlap.protected_texts import compute_texts
from penstock.search.overlap.sample_texts import field_texts, is_text, text_fields, undecodable
from penstock.search.overlap.shingles import WIDTH

from ..checks.tables import nearest_samples
from .findings import DriftFinding
from .split_leaks import IDENTITIES, same_as

if TYPE_CHECKING:
    import polars as pl

TEXTS = "texts"
"""Name of the compared texts, beside columns."""
PHASH = "phash"
NAMED = 3
"""Pairs of samples that a finding names."""


class SharedSample(NamedTuple):
    """A sample of the batch, and one of a protected version."""

    key: str
    """Sample of the batch."""
    ordinal: int
    """Number of the protected sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTexts:
    """Parts of a batch, to read their texts."""

    reader: RangeReader
    name: str
    """Name of the batch, for errors."""
    parts: tuple[loader.Part, ...]

    @property
    def has_texts(self) -> bool:
        return any(_text_fields(part) for part in self.parts)

    def texts(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (key, texts) of each sample with a text. Raises: DecodeFailed; Corrupt; StoreError."""
        for part in self.parts:
            fields = _text_fields(part)
            if not fields:
                continue
            for key, data in read_part(self.reader, part, fields):
                yield key, self._decode(key, data)

    def _decode(self, key: str, data: dict[str, bytes]) -> list[str]:
        texts: list[str] = []
        for field, field_bytes in data.items():
            try:
                texts += field_texts(field, field_bytes)
            except DecodeFailed as error:
                raise undecodable(self.name, key, field, error) from error
        return texts


def _text_fields(part: loader.Part) -> list[str]:
    fields: list[str] = []
    for shard in part.shards:
        fields += [name for name in shard.field_nbytes if is_text(name)]
    return fields


def column_contaminations(
    batch: "pl.DataFrame",
    protected: loader.Version,
    near_bits: int,
) -> list[DriftFinding]:
    """Find samples whose raw object, subject or image a protected version has."""
    findings: list[DriftFinding] = []
    for name in IDENTITIES:
        if name not in batch.columns:
            continue
        shared = _same_samples(batch, protected, name)
        if shared:
            findings.append(_finding(protected, name, shared, "the same"))
    if is_comparable(batch, protected, PHASH):
        pairs = nearest_samples(batch, protected.samples(), near_bits)
        keys = sorted(pairs)
        protected_keys = [pairs[key][0] for key in keys]
        if keys:
            ordinals = live_ordinals(protected, protected_keys)
            shared = list(map(SharedSample, keys, ordinals.tolist()))
            findings.append(_finding(protected, PHASH, shared, f"within {near_bits} bits"))
    return findings


def is_comparable(
    batch: "pl.DataFrame",
    protected: loader.Version,
    column: str,
) -> bool:
    """Return whether both have the column."""
    return column in batch.columns and column in protected.manifest["columns"]


def _same_samples(
    batch: "pl.DataFrame",
    protected: loader.Version,
    name: str,
) -> list[SharedSample]:
    """Return the samples with a protected value in the column, each with the first sample that has it."""
    values = batch[name].drop_nulls().unique()
    if not len(values):
        return []
    rows = same_as(protected, name, values)
    if not len(rows):
        return []
    positions = protected.parts.positions(rows["part"].to_list())
    ordinals = protected.parts.live_ordinals(positions, rows["row"].to_numpy())
    first: dict[str, int] = {}
    for value, ordinal in zip(rows[name].to_list(), ordinals.tolist(), strict=True):
        first[value] = min(ordinal, first.get(value, ordinal))
    shared: list[SharedSample] = []
    for key, value in batch.select("key", name).iter_rows():
        if value in first:
            shared.append(SharedSample(key, first[value]))
    return shared


def text_contaminations(
    batch: "pl.DataFrame",
    documents: BatchTexts,
    protected: Sequence[loader.Version],
) -> list[DriftFinding]:
    """Find samples whose texts share 13 words in a row with a protected version.

    Reads all texts of both, and does not trust the stored shingles. Raises: InvalidPlan; DecodeFailed; Corrupt.
    """
    if not documents.has_texts:
        return []
    versions = [version for version in protected if text_fields(version)]
    indexes = [ProtectedIndex(compute_texts(version)) for version in versions]
    shared: list[list[SharedSample]] = [[] for _ in versions]
    # A batch's parts have the samples that a filter left out, too.
    keys = frozenset(batch["key"])
    for key, texts in documents.texts():
        if key not in keys:
            continue
        for position, overlap in enumerate(overlaps(texts, indexes)):
            if overlap is not None:
                shared[position].append(SharedSample(key, overlap.ordinal))
    findings: list[DriftFinding] = []
    for version, samples in zip(versions, shared, strict=True):
        if samples:
            findings.append(_finding(version, TEXTS, samples, f"{WIDTH} words in a row"))
    return findings


def compared_names(
    batch: "pl.DataFrame",
    documents: BatchTexts | None,
    protected: loader.Version,
) -> str:
    """Return the name of a protected version, with what the batch is compared by."""
    ways = [name for name in (*IDENTITIES, PHASH) if is_comparable(batch, protected, name)]
    if documents is not None and documents.has_texts and text_fields(protected):
        ways.append(TEXTS)
    names = ", ".join(ways) or "nothing: they have no column and no texts in common"
    return f"{protected.name} (by {names})"


def _finding(
    protected: loader.Version,
    column: str,
    shared: Sequence[SharedSample],
    how: str,
) -> DriftFinding:
    by_key = sorted(shared)
    pairs = [f"{sample.key} of {protected.name}[{sample.ordinal}]" for sample in by_key[:NAMED]]
    examples = ", ".join(pairs)
    n_samples = len(np.unique([sample.key for sample in by_key]))
    unit = "samples"
    if n_samples == 1:
        unit = "sample"
    return DriftFinding(
        what=f"in the protected {protected.name}",
        column=column,
        before="none",
        now=f"{n_samples} {unit} ({how}): {examples}",
        effect=n_samples,
        certain=True,
        keys=tuple(sample.key for sample in by_key[:5]),
    )
