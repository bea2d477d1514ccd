"""Measure an episode's clocks and stillness from clocks, packet tables and one stream; decodes no frame."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from loader.errors import DecodeFailed
from loader.modalities.array import CLOCK, clock_field
from loader.modalities.moving_rows import moving_rows
from loader.modalities.video.packet_table import SUFFIX, PacketTable, read_packets
from loader.modalities.video.timeline import Timeline
from loader.run.recipe.episode_clocks import checked_clock, frame_times

from ..media.unit import rejected
from .decoding import STAGE, Array, bytes_of, decoded, field_of
from .featurizer import Features, Featurizer, version_of

INT64_MAX = 2**63 - 1
"""Greatest value of a column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSync(Featurizer):
    """Field `keep.npy`: bool [rows of the anchor], False at idle rows, for `loader.windows(..., keep="keep.npy")`.

    The anchor is idle while each dimension stays within `still` times the widest range of any dimension, since one that
    never moves has only noise. It takes `idle_ms`, or `idle_rows` without a clock. The first row of such a time is not
    idle.

    Columns:

    - clock_skew_ns: greatest difference between the first times, or between the last times, of a stream and the anchor
    - n_gaps: steps of any stream longer than `gap` times its median step
    - longest_gap_ns: the longest of them; 0 without gaps
    - idle_ratio: share of idle rows of the anchor
    - n_frozen: frames whose packet has the bytes of the frame before. Codecs that number their packets hide them

    A stream is a clock (`<name>.ns.npy`), or a video with a packet table and no clock, whose frame k is row k of the
    field's fact `clock`. Without the anchor's clock the first three columns are None.
    """

    episode: str | None = "action.npy"
    """Anchor: an array field with a row per step, such as `action.npy`."""
    still: float = 0.02
    """Movement that counts as none: share of the widest range, 0 to below 1."""
    idle_ms: int = 500
    """Shortest idle time in ms; 1 or more."""
    idle_rows: int = 15
    """Shortest idle run in rows, if the anchor has no clock; 1 or more."""
    gap: float = 3.0
    """Steps longer than this many median steps are gaps; more than 1."""
    clocks: Mapping[str, str] = field(default_factory=dict)
    """Field -> field with its times, from the facts of a batch (`of_fields`); not part of a recipe."""
    code: ClassVar[int] = 2
    """Version 2 obeys the fact `clock`."""
    name: ClassVar[str] = "episode_sync"
    """Name of the featurizer."""
    output_fields: ClassVar[tuple[str, ...]] = ("keep.npy",)
    output_columns: ClassVar[tuple[str, ...]] = (
        "clock_skew_ns",
        "n_gaps",
        "longest_gap_ns",
        "idle_ratio",
        "n_frozen",
    )

    def __post_init__(self) -> None:
        if not (0 <= self.still < 1 and self.idle_ms >= 1 and self.idle_rows >= 1 and self.gap > 1):
            raise ValueError(
                f"episode_sync(still={self.still}, idle_ms={self.idle_ms}, idle_rows={self.idle_rows}, "
                f"gap={self.gap}); accepted: still from 0 to below 1, idle_ms and idle_rows of at least 1, gap above 1"
            )

    def of_fields(self, facts: Mapping[str, Mapping[str, Any]]) -> Self:
        clocks = {name: own["clock"] for name, own in facts.items() if isinstance(own.get("clock"), str)}
        return replace(self, clocks=clocks)

    @property
    def version(self) -> str:
        return version_of(self.code, {name: one for name, one in asdict(self).items() if name != "clocks"})

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        if self.episode is None:
            return {}
        other = sorted({name for name in self.clocks.values() if not name.endswith(CLOCK)})
        return {"episode": (self.episode, f"*{CLOCK}", f"*{SUFFIX}", *other)}

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        return {"keep.npy": {"dims": ["row"], "unit": "False at idle rows"}}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        anchor = field_of(self.inputs, kind)
        rows = _numbers(decoded(sample, anchor), anchor)
        own = self._clock_of(anchor, sample)
        clock = None if own is None else _clock(sample, own, len(rows))
        tables = {name: _packets(sample, name) for name in sorted(sample) if name.endswith(SUFFIX)}
        moving = moving_rows(rows, clock, still=self.still, idle_ms=self.idle_ms, idle_rows=self.idle_rows)
        times = [] if clock is None else [clock, *self._other_clocks(sample, own, tables)]
        gaps = np.concatenate([np.zeros(0, np.uint64), *(self._gaps(one) for one in times)])
        columns = {
            "clock_skew_ns": _skew_ns(times) if times else None,
            "n_gaps": len(gaps) if times else None,
            "longest_gap_ns": min(int(gaps.max(initial=0)), INT64_MAX) if times else None,
            "idle_ratio": round(float((~moving).mean()), 6),
            "n_frozen": sum(map(_n_frozen, tables.values())),
        }
        return Features(fields={"keep.npy": moving}, columns=columns)

    def _clock_of(self, name: str, sample: Mapping[str, bytes]) -> str | None:
        facts = {name: {"clock": self.clocks[name]}} if name in self.clocks else {}
        return clock_field(name, sample, facts)

    def _other_clocks(
        self, sample: Mapping[str, bytes], own: str | None, tables: Mapping[str, PacketTable]
    ) -> Iterator[Array]:
        named = self.clocks.values()
        for name in sorted(sample):
            is_clock = name.endswith(CLOCK) or name in named
            if is_clock and name != own and len(clock := _clock(sample, name)):
                yield clock
        for name, table in tables.items():
            if self._clock_of(name.removesuffix(SUFFIX), sample) is None:
                try:
                    timeline = Timeline.of_table(table)
                except DecodeFailed as error:
                    raise rejected(STAGE, "undecodable", f"field {name!r}: {error}") from error
                if len(frames := frame_times(timeline)):
                    yield frames

    def _gaps(self, clock: Array) -> Array:
        steps = np.diff(clock).view(np.uint64)  # up to 2^63, above int64
        gaps: Array = steps[steps > self.gap * np.median(steps)] if len(steps) else steps
        return gaps


def _numbers(values: Array, field: str) -> Array:
    """Return float64 [rows, dims]. Raises: Unusable."""
    if not values.ndim or not len(values):
        raise rejected(STAGE, "no_rows", f"field {field!r} is {list(values.shape)}; rows are needed")
    if values.dtype.kind not in "biuf":
        raise rejected(STAGE, "not_numbers", f"field {field!r} holds {values.dtype}; numbers are needed")
    return values.reshape(len(values), -1).astype(np.float64)


def _clock(sample: Mapping[str, bytes], field: str, n: int | None = None) -> Array:
    clock = decoded(sample, field)
    try:
        return checked_clock(clock, len(clock) if n is None and clock.ndim else n or 0)
    except DecodeFailed as error:
        raise rejected(STAGE, "clock", f"field {field!r}: {error}") from error


def _packets(sample: Mapping[str, bytes], field: str) -> PacketTable:
    try:
        return read_packets(bytes_of(sample, field))
    except DecodeFailed as error:
        raise rejected(STAGE, "undecodable", f"field {field!r}: {error}") from error


def _skew_ns(clocks: list[Array]) -> int:
    (first, last), *others = ((int(clock[0]), int(clock[-1])) for clock in clocks)
    skew = max((max(abs(start - first), abs(end - last)) for start, end in others), default=0)
    return min(skew, INT64_MAX)


def _n_frozen(table: PacketTable) -> int:
    shown = np.flatnonzero(~table.discard)
    shown = shown[np.argsort(table.pts[shown], kind="stable")]
    size, crc = table.size[shown], table.crc32c[shown]
    return int(((size[1:] == size[:-1]) & (crc[1:] == crc[:-1])).sum())
