"""Reduce a rank's part of a step for display, in the process with the values: 150 MiB become 2 MiB."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import loader
from loader.order.sources.window_layout import AGE_NS, IS_PAD
from loader.run.trail.slot_columns import array_bytes, tensor_crcs

from ..kinds import find_kind
from ..kinds.array_values import ranges_cached
from ..kinds.kind import Media
from ..kinds.tokens import LAYOUT, SEGMENTS
from ..replays.replayed_values import Texts, as_arrays
from ..replays.replays import ReplayedPart
from ..shown_values import ShownValue, field_facts, show_sample, version_of

PICTURED = frozenset(("image", "video", "audio", "array"))
"""Kinds with a thumbnail; a slot shows its first such field."""
PICTURED_SLOTS = 32
"""Slots whose thumbnails a part includes, more than fit a window. Others are made on request."""
_MIN_BYTES = 64
_LINE_BYTES = 120


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownSlot:
    key: str
    """Key of the sample; "" for padding and for missing items."""
    fields: tuple[ShownValue, ...]
    """By name; empty for padding."""
    thumbnails: Mapping[str, Media] = field(repr=False)
    """By field."""
    hashes: Mapping[str, bytes] = field(repr=False)
    """Field -> BLAKE2b of its bytes, if its CRC-32C equals another slot's; not of small values."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownBatch:
    step: int
    """Global step."""
    rank: int
    world_size: int
    """Number of ranks."""
    first_slot: int
    """First slot, over all ranks."""
    digest: int | None
    """Samples' 64-bit digest; None if items are missing."""
    crc32c: Mapping[str, int]
    """Each batched field's."""
    errors: Mapping[int, str]
    """Global slot -> read error."""
    settled: bool | None
    """See `ReplayedPart`."""
    slots: list[ShownSlot] = field(repr=False)
    """Slots in the part."""
    n_pictured: int
    """Leading slots with thumbnails."""
    missing: Mapping[str, str]
    """See `ReplayedPart`."""
    cut: tuple[str, ...] = ()
    """Partly decoded fields, whose checksums differ from training's."""

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        lines = sum(len(shown.lines) + len(shown.boxes) for slot in self.slots for shown in slot.fields)
        thumbnails = (media for slot in self.slots for media in slot.thumbnails.values())
        return _LINE_BYTES * lines + sum(len(media.data) for media in thumbnails)


Samples = dict[int, dict[str, Any]]
"""Global slot -> field -> value, as an array."""


def batch_and_samples(plan: "loader.Plan", values: ReplayedPart) -> tuple[ShownBatch, Samples]:
    """Return a part without thumbnails, and its slots' values."""
    samples: Samples = defaultdict(dict)
    batch = show_batch(plan, values, n_pictured=0, samples=samples)
    return batch, dict(samples)


def show_batch(
    plan: "loader.Plan",
    values: ReplayedPart,
    *,
    n_pictured: int = PICTURED_SLOTS,
    samples: Samples | None = None,
) -> ShownBatch:
    """Return a part. n_pictured: slots to draw thumbnails for. samples: gets all values."""
    parts: dict[int, _SlotParts] = defaultdict(_SlotParts)
    versions: dict[str, loader.Version | None] = {}

    def add_values(i: int, sample: Mapping[str, Any], texts: Texts) -> None:
        source = values.source(i)
        if source and source not in versions:
            versions[source] = version_of(plan, source)
        version = versions.get(source)
        part = parts[i]
        if samples is not None:
            samples[values.first_slot + i] |= as_arrays(sample, is_item=version is None)
        with ranges_cached():
            shown = show_sample(sample, version, texts, values.cut.get(i))
            part.fields.update(zip(sample, shown, strict=True))
            if i < n_pictured and not part.thumbnails:
                part.thumbnails = _thumbnails(sample, shown, version)
        part.crcs |= _compared_crcs(values, i, sample)
        for name, value in sample.items():
            if name.endswith(f".{IS_PAD}") and np.all(np.asarray(value)):
                part.padded.add(name.removesuffix(f".{IS_PAD}"))

    values.each(add_values)
    hashes = _hashes(values, parts)
    names = values.names()
    n = len(values.ids)
    slots = []
    for i, sample_id in enumerate(values.ids):
        slot = _show_slot(sample_id, parts[i], names, hashes.get(i, {}))
        slots.append(slot)
    return ShownBatch(
        step=values.step,
        rank=values.rank,
        world_size=values.world_size,
        first_slot=values.first_slot,
        digest=values.digest,
        crc32c=values.crc32c,
        errors=values.errors,
        settled=values.settled,
        slots=slots,
        n_pictured=min(n_pictured, n),
        missing=values.missing,
        cut=tuple(sorted({name for fields in values.cut.values() for name in fields})),
    )


@dataclass(slots=True)
class _SlotParts:
    fields: dict[str, ShownValue] = field(default_factory=dict)
    thumbnails: dict[str, Media] = field(default_factory=dict)
    crcs: dict[str, int] = field(default_factory=dict)
    padded: set[str] = field(default_factory=set)  # a mask of one value comes after the value
    # Small values are left out, because they are often equal.


def _show_slot(
    sample_id: tuple[str, str] | None,
    part: _SlotParts,
    names: Sequence[str],
    hashes: Mapping[str, bytes],
) -> ShownSlot:
    key = ""
    if sample_id is not None:
        _, key = sample_id
    return ShownSlot(
        key=key,
        fields=tuple(part.fields[name] for name in names if name in part.fields),
        thumbnails=part.thumbnails,
        hashes=hashes,
    )


def _compared_crcs(values: ReplayedPart, i: int, sample: Mapping[str, Any]) -> dict[str, int]:
    """Return field -> checksum of a slot's values that are compared with other slots'."""
    whole: dict[str, Any] = {}
    without_padding: dict[str, Any] = {}
    for name, value in _remove_padding(sample).items():
        if _nbytes(value) < _MIN_BYTES:
            continue
        if value is sample[name]:
            whole[name] = value
        else:
            without_padding[name] = value
    # The replay has the checksums of whole values; a value without its padding needs a new one.
    return {**values.crcs_of(i, whole), **tensor_crcs(without_padding)}


def _hashes(values: ReplayedPart, parts: Mapping[int, _SlotParts]) -> dict[int, dict[str, bytes]]:
    """Return slot -> field -> hash, of values whose checksum two slots have. Only these are replayed again."""
    times: Counter[tuple[str, int]] = Counter()
    for part in parts.values():
        # Padding repeats one value, so fields of nothing else would all look equal.
        part.crcs = {name: crc for name, crc in part.crcs.items() if name not in part.padded}
        times.update(part.crcs.items())
    repeated: dict[int, list[str]] = {}
    for i, part in parts.items():
        names = [name for name, crc in part.crcs.items() if times[name, crc] > 1]
        if names:
            repeated[i] = names
    hashes: dict[int, dict[str, bytes]] = defaultdict(dict)

    def hash_sample(i: int, sample: Mapping[str, Any], _: Texts) -> None:
        compared = _remove_padding(sample)
        hashes[i] |= {name: _hash(compared[name]) for name in repeated[i] if name in compared}

    if repeated:
        values.again(repeated, hash_sample)
    return hashes


def _remove_padding(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample's values to compare: without windows' padding and ages, masks, and the layout of packing.

    Padding repeats a value, and ages of regular clocks are equal. So are masks and layouts of documents of one length.
    """
    sample = {name: value for name, value in sample.items() if not _is_layout(name, value, sample)}
    masks = {name: np.asarray(sample[f"{name}.{IS_PAD}"]) for name in sample if f"{name}.{IS_PAD}" in sample}
    own = {f"{name}.{fact}" for name in masks for fact in (IS_PAD, AGE_NS)}
    values = {name: value for name, value in sample.items() if name not in own}
    for name, is_pad in masks.items():
        shape = tuple(getattr(values[name], "shape", ()))
        if is_pad.dtype == bool and is_pad.any() and shape[:1] == is_pad.shape:
            values[name] = values[name][~is_pad]
    return values


def _is_layout(name: str, value: Any, sample: Mapping[str, Any]) -> bool:
    tokens, _, ending = name.rpartition(".")
    if ending in LAYOUT and f"{tokens}.{SEGMENTS}" in sample:
        return True
    # The mask of a window's padding names the compared values.
    return ending != IS_PAD and str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def _thumbnails(
    sample: Mapping[str, Any], fields: tuple[ShownValue, ...], version: "loader.Version | None"
) -> dict[str, Media]:
    for (name, value), shown in zip(sample.items(), fields, strict=True):
        if shown.kind in PICTURED:
            facts = field_facts(sample, name, version)
            media = find_kind(value, facts).thumbnail(value, facts)
            if media is not None:
                return {name: media}
    return {}


def _nbytes(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    return int(getattr(value, "nbytes", 0))


def _hash(value: Any) -> bytes:
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return hashlib.blake2b(
        data if isinstance(data, bytes) else array_bytes(data).data, digest_size=16
    ).digest()
