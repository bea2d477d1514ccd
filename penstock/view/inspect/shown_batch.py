"""A rank's part of a step as it is shown: its fields in words with their marks, and thumbnails; no tensor is kept.

It is made where the values are: with a recipe in its process, slot by slot. A batch of 256 photos is 150 MiB, and its
page 2 MiB.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import loader
from loader.run.trail.slot_columns import array_bytes

from ..kinds import kind_of
from ..kinds.array_drawing import looking_once
from ..kinds.kind import Media
from ..replays.replayed_values import PartValues, Texts
from ..samples.shown_values import Shown, facts_of, shown_sample, version_of

PICTURED = frozenset(("image", "video", "audio", "array"))
"""Kinds of which a slot shows a thumbnail: that of its first such field."""
PICTURED_SLOTS = 32
"""Slots of a part whose thumbnails are made with it: more than a window shows. Others are asked for with theirs."""
_MIN_BYTES = 64
_LINE_BYTES = 120


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownSlot:
    """One slot of a part."""

    fields: tuple[Shown, ...]
    """Its fields; none at padding."""
    thumbnails: Mapping[str, Media] = field(repr=False)
    """Field -> its thumbnail, of the field that has one."""
    hashes: Mapping[str, bytes] = field(repr=False)
    """Field -> BLAKE2b of its bytes, where another slot's may be equal: the CRC-32C is. Small values have none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShownBatch:
    """A rank's part of a step; fields that `BatchValues` has too are the same."""

    step: int
    """Global step."""
    rank: int
    """Data-parallel rank."""
    world_size: int
    """Number of ranks."""
    first_slot: int
    """Number of the first slot in the global batch."""
    digest: int
    """64-bit digest of the samples that were read."""
    crc32c: Mapping[str, int]
    """Field -> CRC-32C of its column."""
    errors: Mapping[int, str]
    """Slot of the global batch -> the reason why its sample cannot be read any more."""
    settled: bool | None
    """True where the substitutions that the run had are found; False, or None, as `Replay.settle`."""
    slots: list[ShownSlot] = field(repr=False)
    """Slots of the part."""
    n_pictured: int
    """Slots whose thumbnails were made: the first ones."""
    cut: tuple[str, ...] = ()
    """Fields of which some values are beginnings alone: their checksums are not those of the training."""

    @property
    def nbytes(self) -> int:
        """About the bytes that it takes in memory."""
        lines = sum(len(shown.lines) + len(shown.boxes) for slot in self.slots for shown in slot.fields)
        pictures = (media for slot in self.slots for media in slot.thumbnails.values())
        return _LINE_BYTES * lines + sum(len(media.data) for media in pictures)


def shown_batch(plan: "loader.Plan", values: PartValues, *, n_pictured: int = PICTURED_SLOTS) -> ShownBatch:
    """Return a part as it is shown. n_pictured: slots whose thumbnails are made, the first ones."""
    made: dict[int, _Made] = defaultdict(_Made)
    versions: dict[str, loader.Version | None] = {}

    def look(i: int, sample: Mapping[str, Any], texts: Texts) -> None:
        source = values.source(i)
        if source and source not in versions:
            versions[source] = version_of(plan, source)
        version, one = versions.get(source), made[i]
        with looking_once():
            shown = shown_sample(sample, version, texts, values.cut.get(i))
            one.fields.update(zip(sample, shown, strict=True))
            if i < n_pictured and not one.thumbnails:
                one.thumbnails = _thumbnails(sample, shown, version)
        one.crcs |= values.crcs_of(
            i, {name: value for name, value in sample.items() if _nbytes(value) >= _MIN_BYTES}
        )

    values.each(look)
    hashes = _hashes(values, made)
    names = values.names()
    n = len(values.ids)
    slots = [
        ShownSlot(
            fields=tuple(made[i].fields[name] for name in names if name in made[i].fields),
            thumbnails=made[i].thumbnails,
            hashes=hashes.get(i, {}),
        )
        for i in range(n)
    ]
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
        cut=tuple(sorted({name for one in values.cut.values() for name in one})),
    )


@dataclass(slots=True)
class _Made:
    """One slot, as far as it is looked at."""

    fields: dict[str, Shown] = field(default_factory=dict)
    thumbnails: dict[str, Media] = field(default_factory=dict)
    crcs: dict[str, int] = field(default_factory=dict)
    """Field -> CRC-32C of its value; none of small values, which are often equal."""


def _hashes(values: PartValues, made: Mapping[int, _Made]) -> dict[int, dict[str, bytes]]:
    """Return slot -> field -> hash, of values whose checksum is another's too: they are made once more for it."""
    times = Counter(place for one in made.values() for place in one.crcs.items())
    twice = {i: [name for name, crc in one.crcs.items() if times[name, crc] > 1] for i, one in made.items()}
    found: dict[int, dict[str, bytes]] = defaultdict(dict)

    def hashed(i: int, sample: Mapping[str, Any], _: Texts) -> None:
        found[i] |= {name: _hash(sample[name]) for name in twice[i] if name in sample}

    wanted = [i for i, names in twice.items() if names]
    if wanted:
        values.again(wanted, hashed)
    return found


def _thumbnails(
    sample: Mapping[str, Any], fields: tuple[Shown, ...], version: "loader.Version | None"
) -> dict[str, Media]:
    """Return the thumbnail of the first field that has one."""
    for (name, value), shown in zip(sample.items(), fields, strict=True):
        if shown.kind in PICTURED:
            facts = facts_of(sample, name, version)
            found = kind_of(value, facts).thumbnail(value, facts)
            if found is not None:
                return {name: found}
    return {}


def _nbytes(value: object) -> int:
    return len(value) if isinstance(value, str | bytes) else int(getattr(value, "nbytes", 0))


def _hash(value: Any) -> bytes:
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return hashlib.blake2b(
        data if isinstance(data, bytes) else array_bytes(data).data, digest_size=16
    ).digest()
