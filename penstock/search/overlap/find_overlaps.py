"""Find the samples of a version whose texts overlap protected versions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from loader import Root, Version
from loader.errors import FieldNotFound, InvalidRuntime
from penstock.progress import progress
from penstock.units import number

from .compare import Overlap, ProtectedIndex, overlaps
from .protected_texts import protected_texts
from .sample_texts import sample_texts, text_fields

KEYS_TOGETHER = 65_536
SHOWN = 100
"""Overlaps in a report's text; its JSON has all."""


class SampleOverlap(NamedTuple):
    key: str
    """Sample of the version."""
    protected: str
    """Name of the protected version."""
    of: str
    """Its sample that shares most."""
    ordinal: int
    """Number of that sample in the protected version."""
    ratio: float
    """Share of the sample's words that the protected version has, too."""

    def to_json(self) -> dict[str, Any]:
        body = self._asdict()
        body["ratio"] = round(self.ratio, 6)
        return body


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapReport:
    version: str
    protected: tuple[str, ...]
    """Names of the versions compared with."""
    fields: tuple[str, ...]
    """Fields of the version that were compared."""
    n_samples: int
    overlaps: tuple[SampleOverlap, ...]
    """In the version's order."""

    def to_json(self) -> list[dict[str, Any]]:
        return [overlap.to_json() for overlap in self.overlaps]

    def to_text(self) -> str:
        lines: list[str] = []
        for overlap in self.overlaps[:SHOWN]:
            of = f"{overlap.protected}/{overlap.of}"
            lines.append(f"{overlap.ratio:7.2%}  {overlap.key}  of {of}")
        n_more = len(self.overlaps) - len(lines)
        if n_more:
            lines.append(f"and {number(n_more)} more: --json lists all")
        keys = {overlap.key for overlap in self.overlaps}
        protected = ", ".join(self.protected)
        fields = ", ".join(self.fields)
        lines.append(
            f"{number(len(keys))} of {number(self.n_samples)} samples of {self.version} overlap {protected} ({fields})"
        )
        return "\n".join(lines)


def find_overlaps(
    root: Root,
    ref: str,
    protected: Sequence[str],
    *,
    field: str | None = None,
    min_ratio: float = 0.0,
) -> OverlapReport:
    """Compare the texts of a version with protected versions.

    protected: refs. field: field of the version to compare; None for all with texts.
    min_ratio: smallest share of a sample's words, 0 to 1.

    Memory: the protected shingles, 25 bytes each, and 32 MiB of texts, or the longest text.

    Raises: InvalidRuntime; FieldNotFound; VersionNotFound; VersionRetired; InvalidPlan; DecodeFailed; Corrupt.
    """
    if not protected:
        message = "nothing to compare with: name a version, such as --protected gsm8k@1"
        raise InvalidRuntime(message, what="--protected", accepted="a version")
    if not 0 <= min_ratio <= 1:
        message = f"--min {min_ratio}: a share of a sample's words is needed, 0 to 1"
        raise InvalidRuntime(message, what="--min", given=min_ratio, accepted="0 to 1")
    version = root.open(ref)
    fields = _text_fields(version, field)
    comparisons = _comparisons(root, protected, min_ratio)
    indexes = [comparison.index for comparison in comparisons]
    samples = sample_texts(version, fields)
    n_samples = len(version)
    shown_samples = progress(
        samples,
        f"comparing {version.name}",
        total=n_samples,
    )
    for sample in shown_samples:
        sample_overlaps = overlaps(sample.texts, indexes)  # with each protected version, in order
        for comparison, overlap in zip(comparisons, sample_overlaps, strict=True):
            comparison.add(sample.ordinal, overlap)

    named: list[tuple[int, SampleOverlap]] = []
    for comparison in comparisons:
        named += comparison.named(version)
    # Stable: versions of one sample stay in the order of their names.
    named.sort(key=itemgetter(0))
    return OverlapReport(
        version=version.name,
        protected=tuple(comparison.protected.name for comparison in comparisons),
        fields=tuple(fields),
        n_samples=n_samples,
        overlaps=tuple(overlap for _, overlap in named),
    )


def _comparisons(
    root: Root,
    protected: Sequence[str],
    min_ratio: float,
) -> "list[_Comparison]":
    comparisons: list[_Comparison] = []
    # A version that is named twice is compared once.
    for name in dict.fromkeys(protected):
        version = root.open(name)
        # Raise before the first texts are read.
        _text_fields(version, None)
        comparison = _Comparison(version, min_ratio)
        comparisons.append(comparison)
    return comparisons


class _Comparison:
    """Collects the overlaps of the compared samples with one protected version."""

    def __init__(self, protected: Version, min_ratio: float) -> None:
        self.protected = protected
        # The protected texts as their shingles.
        texts = protected_texts(protected)
        self.index = ProtectedIndex(texts)
        self._min_ratio = min_ratio
        self._ordinals: list[int] = []
        self._overlaps: list[Overlap] = []

    def add(self, ordinal: int, overlap: Overlap | None) -> None:
        """Add the overlap of a compared sample, if it is large enough."""
        if overlap is None or overlap.ratio < self._min_ratio:
            return
        self._ordinals.append(ordinal)
        self._overlaps.append(overlap)

    def named(self, version: Version) -> Iterator[tuple[int, SampleOverlap]]:
        """Yield (ordinal, overlap with both keys) in order. version: the compared one."""
        protected_ordinals = [overlap.ordinal for overlap in self._overlaps]
        rows = zip(
            self._ordinals,
            _keys(version, self._ordinals),
            _keys(self.protected, protected_ordinals),
            self._overlaps,
            strict=True,
        )
        for ordinal, key, of, overlap in rows:
            sample_overlap = SampleOverlap(
                key=key,
                protected=self.protected.name,
                of=of,
                ordinal=overlap.ordinal,
                ratio=overlap.ratio,
            )
            yield ordinal, sample_overlap


def _text_fields(version: Version, field: str | None) -> list[str]:
    """Return the fields to compare. Raises: FieldNotFound if there is none."""
    fields = text_fields(version, field)
    if not fields:
        names = ", ".join(version.fields)
        raise FieldNotFound(
            f"{version.name} has no texts: its fields are {names}, and none ends in txt, json or jsonl",
            what="texts",
            where=version.name,
            given=names,
            accepted="txt, json or jsonl",
        )
    return fields


def _keys(version: Version, ordinals: Sequence[int]) -> list[str]:
    """Return the keys of live ordinals. Reads each distinct one once."""
    numbers = np.array(ordinals, np.int64)
    distinct, positions = np.unique(numbers, return_inverse=True)
    keys: list[str] = []
    # Pieces bound the index rows in memory.
    for start in range(0, len(distinct), KEYS_TOGETHER):
        stop = start + KEYS_TOGETHER
        piece = distinct[start:stop]
        keys += version.keys(piece)
    return [keys[position] for position in positions]
