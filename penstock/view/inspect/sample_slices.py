"""The slices that contain a sample, and the exclusion that keeps it out of its dataset's newest version.

A slice's samples are kept as one bit each, so that the next sample of the version costs the slices' records only.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loader
from loader.dataset.slices import list_slices
from loader.dataset.tables.slice_record import SliceRecord
from loader.dataset.versions.samples_table import live_ordinals
from loader.errors import PenstockError, StoreError

from ...text import clean
from ...upkeep.excluded_since import ExcludedSince, find_sample_exclusion
from ..facets.slice_samples import page_slice_ordinals
from ..json_record import JsonRecord
from ..lru_cache import LruCache

MOST_SLICES = 48
"""Slices of a dataset whose records are read for a page: the ones saved last."""
SEARCH_S = 1.5
"""Seconds after which a page searches no more slices; the next page goes on, because found bits are kept."""
MOST_RULE_SAMPLES = 20_000_000
"""Largest version in which rules are evaluated for a page."""
BITS_BYTES = 32 * 2**20
"""Bytes of kept bits: 48 slices of five million samples."""
MOST_EXCLUSIONS = 512
"""Samples whose exclusion is kept."""

Bits = NDArray[np.uint8]
OpenVersion = Callable[[str, int], "loader.Version"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSlice(JsonRecord):
    """A slice that contains the sample."""

    name: str
    """Name in the sample's dataset."""
    n: int
    """Number of the slice."""
    kind: str
    """list or rule."""
    n_samples: int
    """Samples in the version from which it was saved."""
    by: str
    """Person's name."""
    why: str
    """Person's reason."""
    at_us: int
    """When it was saved, in UTC microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSlices(JsonRecord):
    """Slices and the exclusion of a sample."""

    slices: tuple[SampleSlice, ...] = ()
    """Slices that contain it live, the newest first."""
    problems: Mapping[str, str] = field(default_factory=dict)
    """Slice or path of a slice that cannot be read -> why."""
    unsearched: tuple[str, ...] = ()
    """Names of slices that were not searched for the sample."""
    excluded: ExcludedSince | None = None
    """Exclusion that keeps it out of the newest version, or None."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of a sample's or a slot's record."""
        return {
            "slices": self.slices,
            "slice_problems": self.problems,
            "slices_left": self.unsearched,
            "excluded": self.excluded,
        }


class SliceSearch:
    """Finds a sample's slices and its exclusion. Thread-safe."""

    def __init__(self, root: loader.Root, open_version: OpenVersion | None = None) -> None:
        """open_version: (dataset, number) -> a version that is open already; None opens it with the root."""
        self._root = root
        self._open_version = open_version or self._open
        self._bits = LruCache[Bits](BITS_BYTES, _nbytes)
        self._exclusions = LruCache[ExcludedSince | None](MOST_EXCLUSIONS)

    def sample_slices(self, version: loader.Version, ordinal: int, key: str) -> SampleSlices:
        """Return the slices and the exclusion of a sample. ordinal, key: the sample's in the version.

        A slice that is damaged, or that does not fit the version, is named; it hides no other. Costs a listing and up
        to `MOST_SLICES` records; the first time in a version also each list's table, and the columns of each rule.
        """
        problems = dict[str, str]()
        excluded = None
        try:
            excluded = self._exclusion(version, key)
        except PenstockError as error:
            problems["exclusions"] = _message(error)
        try:
            listing = list_slices(self._root, version.dataset, most=MOST_SLICES)
        except StoreError as error:
            problems["slices"] = _message(error)
            return SampleSlices(problems=problems, excluded=excluded)
        for path, text in sorted(listing.damaged.items()):
            shown_path = clean(path, 200)
            problems[shown_path] = clean(text, 400)
        prefix = f"{version.dataset}/"
        unsearched = [name.removeprefix(prefix) for name in listing.unread]
        slices = list[SampleSlice]()
        until_s = time.monotonic() + SEARCH_S
        newest_first = sorted(listing.slices, key=_newest_first)
        for record in newest_first:
            bits_key = (version.id, record.path, record.sha256)
            is_known = bits_key in self._bits
            is_late = time.monotonic() > until_s
            is_large = record.kind == "rule" and len(version) > MOST_RULE_SAMPLES
            if not is_known and (is_late or is_large):
                unsearched.append(record.name)
                continue
            # Bits that an earlier page has found cost nothing, so a late page still shows them.
            find_bits = partial(_bits, version, record)
            try:
                bits = self._bits.get(bits_key, find_bits)
            except PenstockError as error:  # a forged slice, or a rule over a column that the version lacks
                problems[record.name] = _message(error)
                continue
            if _has(bits, ordinal):
                slices.append(_build_slice(record))
        return SampleSlices(
            slices=tuple(slices),
            problems=problems,
            unsearched=tuple(sorted(unsearched)),
            excluded=excluded,
        )

    def _open(self, dataset: str, number: int) -> loader.Version:
        return self._root.open(f"{dataset}@{number}")

    def _exclusion(self, version: loader.Version, key: str) -> ExcludedSince | None:
        """Return the exclusion; reads the newest version's keys only for a sample of another version."""
        dataset = version.dataset
        newest = self._root.state.newest(dataset)
        if newest is None or newest.id == version.id:
            return None  # the sample is live in the newest version

        def find() -> ExcludedSince | None:
            newest_version = self._open_version(dataset, newest.number)
            ordinals = live_ordinals(newest_version, [key])
            is_live = ordinals[0] >= 0
            if is_live:
                return None  # no exclusion has to be read
            return find_sample_exclusion(self._root, dataset, key)

        return self._exclusions.get((newest.id, key), find)


def _bits(version: loader.Version, record: SliceRecord) -> Bits:
    """Return uint8 [ceil(samples / 8)]: a bit for each live sample of a slice. Raises: Corrupt; FieldNotFound."""
    ordinals = page_slice_ordinals(version, record)
    members = np.zeros(len(version), bool)
    members[ordinals] = True
    return np.packbits(members)


def _has(bits: Bits, ordinal: int) -> bool:
    byte_number = ordinal // 8
    byte = int(bits[byte_number])
    shift = 7 - ordinal % 8  # packbits fills a byte from its highest bit
    return bool(byte >> shift & 1)


def _nbytes(bits: Bits) -> int:
    return bits.nbytes


def _newest_first(record: SliceRecord) -> tuple[int, str]:
    return -record.at_us, record.name


def _build_slice(record: SliceRecord) -> SampleSlice:
    return SampleSlice(
        name=record.name,
        n=record.n,
        kind=record.kind,
        n_samples=record.n_samples,
        by=clean(record.by, 80),
        why=clean(record.why, 300),
        at_us=record.at_us,
    )


def _message(error: PenstockError) -> str:
    return clean(f"{type(error).__name__}: {error}", 400)
