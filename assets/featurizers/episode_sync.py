"""Measure an episode's clocks and stillness from clocks, packet tables and one stream; decodes no frame."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from loader.errors import DecodeFailed, InvalidSpec
from loader.modalities.array import CLOCK, clock_field
from loader.modalities.moving_rows import moving_rows
from loader.modalities.video.packet_table import SUFFIX, PacketTable, read_packets
from loader.modalities.video.timeline import Timeline
from loader.run.part_reads.episode_clocks import check_clock, frame_times

from ..media.unit import rejected
from .decoding import STAGE, Array, bytes_of, decoded, kind_field
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
        is_accepted = 0 <= self.still < 1 and self.idle_ms >= 1 and self.idle_rows >= 1 and self.gap > 1
        if not is_accepted:
            raise InvalidSpec(
                f"episode_sync(still={self.still}, idle_ms={self.idle_ms}, idle_rows={self.idle_rows}, "
                f"gap={self.gap}); accepted: still from 0 to below 1, idle_ms and idle_rows of at least 1, gap above 1",
                what="still, idle_ms, idle_rows and gap",
                where="episode_sync",
                given=(self.still, self.idle_ms, self.idle_rows, self.gap),
            )

    def of_fields(self, facts: Mapping[str, Mapping[str, Any]]) -> Self:
        clocks = {}
        for name, field_facts in facts.items():
            clock = field_facts.get("clock")
            if isinstance(clock, str):
                clocks[name] = clock
        return replace(self, clocks=clocks)

    @property
    def version(self) -> str:
        settings = asdict(self)
        # Facts of a batch: with them every batch would have a version of its own.
        del settings["clocks"]
        return version_of(self.code, settings)

    @property
    def inputs(self) -> Mapping[str, tuple[str, ...]]:
        if self.episode is None:
            return {}
        others = {name for name in self.clocks.values() if not name.endswith(CLOCK)}
        return {"episode": (self.episode, f"*{CLOCK}", f"*{SUFFIX}", *sorted(others))}

    @property
    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        return {"keep.npy": {"dims": ["row"], "unit": "False at idle rows"}}

    def __call__(self, kind: str, sample: Mapping[str, bytes]) -> Features:
        anchor = kind_field(self.inputs, kind)
        rows = _numbers(decoded(sample, anchor), anchor)
        tables = {name: _packets(sample, name) for name in sorted(sample) if name.endswith(SUFFIX)}
        clock_name = self._clock_name(anchor, sample)
        columns: dict[str, float | None]
        if clock_name is None:
            clock = None
            columns = {"clock_skew_ns": None, "n_gaps": None, "longest_gap_ns": None}
        else:
            clock = _clock(sample, clock_name, len(rows))
            others = list(self._other_clocks(sample, clock_name, tables))
            gaps = np.concatenate([self._gaps(one) for one in [clock, *others]])
            columns = {
                "clock_skew_ns": _skew_ns(clock, others),
                "n_gaps": len(gaps),
                # A step between extreme times exceeds the column's int64.
                "longest_gap_ns": min(int(gaps.max(initial=0)), INT64_MAX),
            }
        moving = moving_rows(
            rows,
            clock,
            still=self.still,
            idle_ms=self.idle_ms,
            idle_rows=self.idle_rows,
        )
        columns["idle_ratio"] = round(float((~moving).mean()), 6)
        columns["n_frozen"] = sum(map(_n_frozen, tables.values()))
        return Features(fields={"keep.npy": moving}, columns=columns)

    def _clock_name(self, field_name: str, sample: Mapping[str, bytes]) -> str | None:
        facts = {}
        if field_name in self.clocks:
            facts[field_name] = {"clock": self.clocks[field_name]}
        return clock_field(field_name, sample, facts)

    def _other_clocks(
        self, sample: Mapping[str, bytes], anchor_clock: str, tables: Mapping[str, PacketTable]
    ) -> Iterator[Array]:
        """Yield the times of each other clock, and of each video without a clock; none is empty."""
        for name in sorted(sample):
            is_clock = name.endswith(CLOCK) or name in self.clocks.values()
            if not is_clock or name == anchor_clock:
                continue
            clock = _clock(sample, name)
            if len(clock):
                yield clock
        for name, table in tables.items():
            if self._clock_name(name.removesuffix(SUFFIX), sample) is not None:
                continue
            try:
                timeline = Timeline.of_table(table)
            except DecodeFailed as error:
                raise rejected(
                    STAGE, "undecodable", f"field {name!r}: {error}", where=name, given=str(error)
                ) from error
            frames = frame_times(timeline)
            if len(frames):
                yield frames

    def _gaps(self, clock: Array) -> Array:
        """Return the steps that are gaps: uint64 ns [n]."""
        steps: Array = np.diff(clock).view(np.uint64)  # up to 2^63, above int64
        if not len(steps):
            return steps
        limit = self.gap * np.median(steps)
        gaps: Array = steps[steps > limit]
        return gaps


def _numbers(values: Array, field: str) -> Array:
    """Return float64 [rows, dims]. Raises: Unusable."""
    if not values.ndim or not len(values):
        raise rejected(
            STAGE,
            "no_rows",
            f"field {field!r} is {list(values.shape)}; rows are needed",
            where=field,
            given=list(values.shape),
        )
    if values.dtype.kind not in "biuf":
        raise rejected(
            STAGE,
            "not_numbers",
            f"field {field!r} holds {values.dtype}; numbers are needed",
            where=field,
            given=str(values.dtype),
        )
    return values.reshape(len(values), -1).astype(np.float64)


def _clock(sample: Mapping[str, bytes], field: str, n: int | None = None) -> Array:
    """Return a clock, int64 [n]; of any length if n is None. Raises: Unusable."""
    clock = decoded(sample, field)
    if n is None:
        n = 0
        if clock.ndim:
            n = len(clock)
    try:
        return check_clock(clock, n)
    except DecodeFailed as error:
        raise rejected(STAGE, "clock", f"field {field!r}: {error}", where=field, given=error.given) from error


def _packets(sample: Mapping[str, bytes], field: str) -> PacketTable:
    try:
        return read_packets(bytes_of(sample, field))
    except DecodeFailed as error:
        raise rejected(
            STAGE, "undecodable", f"field {field!r}: {error}", where=field, given=str(error)
        ) from error


def _skew_ns(clock: Array, others: Iterable[Array]) -> int:
    first = int(clock[0])
    last = int(clock[-1])
    skew = 0
    for other in others:
        skew = max(skew, abs(int(other[0]) - first), abs(int(other[-1]) - last))
    return min(skew, INT64_MAX)


def _n_frozen(table: PacketTable) -> int:
    shown = np.flatnonzero(~table.discard)
    display_order = np.argsort(table.pts[shown], kind="stable")
    shown = shown[display_order]
    size = table.size[shown]
    crc = table.crc32c[shown]
    is_repeated = (size[1:] == size[:-1]) & (crc[1:] == crc[:-1])
    return int(is_repeated.sum())
