"""An episode's clocks, streams and cameras, and what the loader takes of each at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import loader
from loader.dataset.reading.verified_bucket_reads import raise_corrupt, read_fields, read_parts
from loader.dataset.shards.address import SampleAddress
from loader.errors import Corrupt, DecodeFailed, InvalidRuntime, MissingDependency
from loader.modalities.array import CLOCK, NpyLayout, clock_field, is_array
from loader.modalities.fields import ROWS_SUFFIX, last_word, load
from loader.modalities.image.crop import Framing
from loader.modalities.row_blocks import read_rows as read_blocks
from loader.modalities.video.packet_table import SUFFIX, PacketTable
from loader.modalities.video.request import Choice
from loader.modalities.video.timeline import Timeline
from loader.order.random.keyed_permutation import I64
from loader.order.sources.window_layout import Offsets
from loader.run.part_reads.episode_clocks import Picked, by_clock, by_steps, check_clock, end_ns, frame_times
from loader.run.part_reads.video_packet_reads import PlannedClip, Readers, packet_table, read_clips

from ...text import clean
from .stream_summary import StreamSummary, n_dims, read_rows, stream_layout
from .verified_field import KEPT_BYTES, VerifiedField

VIDEO_WORDS = ("mp4", "webm", "mkv", "run")
"""Last words of fields that are videos."""
KEEP = "keep.npy"
MAX_CLOCK_BYTES = 256 * 2**20
"""Largest packet table, and most bytes of all clocks."""
MOST_SMALL_BYTES = 32 * 2**20
"""Small fields read together, in bytes."""
READY_BYTES = 16 * 2**20
"""Largest stream, in bytes, read for one row's values. Larger ones wait until their lane is drawn."""
MAX_VALUES = 512
"""Most values of a row that are listed."""
_PICTURE_PX = 16
_NOW = {"ns": Offsets("ns", (0,)), "rows": Offsets("rows", (0,))}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeStream:
    """A stream of numbers."""

    layout: NpyLayout
    """Shape, dtype and place of the rows."""
    names: tuple[str, ...]
    """One per value of a row, or empty."""
    unit: str
    """Unit, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Camera:
    """A video, or an array of images."""

    n_frames: int
    size: tuple[int, int]
    """(width, height) in px."""
    codec: str
    """FFmpeg's decoder, or the dtype of images."""
    timeline: Timeline | None = None
    """Container times; None for an array."""
    table: PacketTable | None = None
    """Packet table; None for an array."""
    layout: NpyLayout | None = None
    """Array layout; None for a video."""

    @property
    def is_read_whole(self) -> bool:
        """True if a frame needs the whole video."""
        return self.layout is None and (self.table is None or bool(self.table.facts.whole_because))


class OpenEpisode:
    """One episode of a version. Thread-safe."""

    def __init__(self, version: loader.Version, address: SampleAddress) -> None:
        """Read the clocks and packet tables. address: with all fields of the sample."""
        self.version = version
        self.address = address
        self.names = tuple(address.fields)
        self.fields = {
            name: VerifiedField(version, at, address.describe(name)) for name, at in address.fields.items()
        }
        self.streams: dict[str, EpisodeStream] = {}
        """By field."""
        self.cameras: dict[str, Camera] = {}
        """By field."""
        self.errors: dict[str, str] = {}
        """Field that cannot be shown -> why."""
        self.clocks: dict[str, I64] = {}
        """Field -> its clock, int64 ns; empty for steps."""
        self.clock_names: dict[str, str] = {}
        """Field -> its clock's field, perhaps damaged, or "container"."""
        self._read_small()
        for name in self.names:
            self._open(name)
        self.is_steps = not any(
            name in self.clock_names for name in self.streams
        )  # then frames count as steps too, despite the times of their container
        if self.is_steps:
            self.clocks = {}
            self.clock_names = {}
        spans = [self._span(name) for name in (*self.streams, *self.cameras) if self.has_times(name)]
        self.origin_ns = min((first for first, _ in spans), default=0)
        """Axis's start on the clock, ns; 0 for steps."""
        self.length_ns = max(1, max((last for _, last in spans), default=0) - self.origin_ns)
        """In ns or steps."""

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        tables = sum(48 * one.n_frames for one in self.cameras.values())
        clocks = {id(clock): clock.nbytes for clock in self.clocks.values()}  # streams may share one
        return tables + sum(clocks.values()) + sum(field.nbytes for field in self.fields.values())

    def _read_small(self) -> None:
        """Read small arrays and packet tables; neighbours share a request.

        From the first one on that exceeds `MOST_SMALL_BYTES`, each is read when it is needed.
        """
        nbytes = 0
        small = {}
        for name, at in self.address.fields.items():
            # Small arrays and packet tables only: a video is read by the frames that are drawn.
            if (is_array(name) or name.endswith(SUFFIX)) and at.nbytes <= KEPT_BYTES:
                nbytes += at.nbytes
                if nbytes <= MOST_SMALL_BYTES:
                    small[name] = at
        address = replace(self.address, fields=small)
        # If one is damaged, each is read by itself, and the damaged one named.
        (data,) = read_fields(self.version.shard_store, [address], on_corrupt=lambda number, error: None)
        for name, value in data.items():
            self.fields[name].keep(value)

    def _open(self, name: str) -> None:
        try:
            if last_word(name) in VIDEO_WORDS:
                self.cameras[name] = self._video(name)
            elif is_array(name) and not name.endswith(CLOCK) and name != KEEP:
                layout = stream_layout(self.fields[name])
                if layout is None:
                    return
                if _is_pictures(layout):
                    n, height, width = layout.shape[:3]
                    codec = f"{layout.dtype} images"
                    self.cameras[name] = Camera(n_frames=n, size=(width, height), codec=codec, layout=layout)
                else:
                    self.streams[name] = self._stream(name, layout)
                if name + ROWS_SUFFIX in self.names and layout.nbytes > KEPT_BYTES:
                    self.fields[name].check_blocks(read_blocks(self._whole(name + ROWS_SUFFIX)))
            else:
                return
            self._open_clock(name)
        except (Corrupt, MissingDependency) as error:
            self.errors[name] = clean(error, 600)

    def _stream(self, name: str, layout: NpyLayout) -> EpisodeStream:
        facts: Mapping[str, Any] = self.version.facts.get(name, {})
        dims = facts.get("dims")
        unit = facts.get("unit")
        # Names of another number of dimensions would label wrong curves.
        if not isinstance(dims, list | tuple) or len(dims) != n_dims(layout):
            dims = ()
        return EpisodeStream(
            layout=layout,
            names=tuple(clean(one, 80) for one in dims),
            unit=clean(unit, 24) if isinstance(unit, str) else "",
        )

    def _video(self, name: str) -> Camera:
        field = name + SUFFIX
        if field not in self.names:
            with load("video.demux:whole_file")(self._whole(name)) as file:
                codec = file.stream.codec_context.name
                size = (file.stream.width, file.stream.height)
                n_frames = len(file.timeline)
                return Camera(n_frames=n_frames, size=size, codec=codec, timeline=file.timeline)
        table = packet_table(self._whole(field), name, self.address, self.address)
        timeline = Timeline.of_table(table)
        facts = table.facts
        size = (facts.width_px, facts.height_px)
        return Camera(n_frames=len(timeline), size=size, codec=facts.codec, timeline=timeline, table=table)

    def _whole(self, name: str) -> bytes:
        nbytes = self.address.fields[name].nbytes
        if nbytes > MAX_CLOCK_BYTES:
            raise DecodeFailed(
                f"{self.address.describe(name)} has {nbytes} bytes; up to {MAX_CLOCK_BYTES} are read whole"
            )
        return self.fields[name].whole()

    def _open_clock(self, name: str) -> None:
        source = clock_field(name, self.names, self.version.facts)
        if source is not None:
            # Streams of one sensor share a clock: decode and check it once.
            shared = (clock for one, clock in self.clocks.items() if self.clock_names[one] == source)
            array: Any = next(shared, None)
            self.clock_names[name] = source
            if array is None:
                self._check_room(source)
                array = load("array:decode")(self._whole(source))
            try:
                self.clocks[name] = check_clock(array, self.n_values(name))
            except DecodeFailed as error:
                raise DecodeFailed(f"{self.address.describe(source)}: {error}") from None
        elif (camera := self.cameras.get(name)) is not None and camera.timeline is not None:
            self.clocks[name] = frame_times(camera.timeline)
            self.clock_names[name] = "container"

    def _check_room(self, source: str) -> None:
        known = {self.clock_names[name] for name in self.clocks} - {"container"}
        nbytes = sum(self.address.fields[one].nbytes for one in {*known, source})
        if nbytes > MAX_CLOCK_BYTES:
            raise DecodeFailed(
                f"{self.address.describe(source)}: clocks take {nbytes} bytes; up to {MAX_CLOCK_BYTES} are read"
            )

    def n_values(self, name: str) -> int:
        camera = self.cameras.get(name)
        if camera is None:
            return self.streams[name].layout.shape[0]
        return camera.n_frames

    def has_times(self, name: str) -> bool:
        """Return whether a field's rows or frames lie on the axis."""
        there = self.is_steps or name in self.clocks
        return there and name not in self.errors and self.n_values(name) > 0

    def _span(self, name: str) -> tuple[int, int]:
        if self.is_steps:
            return 0, self.n_values(name)
        clock = self.clocks[name]
        first = int(clock[0])
        last = int(clock[-1])
        step = 0
        if len(clock) > 1:
            # The last value lasts one mean period, else the axis would end where it begins.
            step = (last - first) // (len(clock) - 1)
        # A forged clock may end near 2^63, where adding a period overflows.
        return first, max(last, min(last + step, 2**62))

    def anchor(self, asked: str = "") -> str:
        """Return the stream whose rows count: the given one, the actions, or the first. Raises: InvalidRuntime."""
        if asked:
            if asked not in self.streams or not self.has_times(asked):
                raise InvalidRuntime(
                    f"anchor = {asked!r:.100}; this episode has the streams {', '.join(self.timed_streams())}"
                )
            return asked
        timed = self.timed_streams()
        actions = [one for one in timed if one.split(".")[0] in ("action", "actions")]
        return next(iter([*actions, *timed]), "")

    def timed_streams(self) -> list[str]:
        """Return the streams with rows and times."""
        return [one for one in self.streams if self.has_times(one)]

    def time_of(self, name: str, number: int) -> int:
        """Return when a row or frame begins, ns (or steps) after the axis's start; clamped to the first and last."""
        number = min(max(0, number), self.n_values(name) - 1)
        if self.is_steps:
            return number
        return int(self.clocks[name][number]) - self.origin_ns

    def row_number(self, name: str, at_ns: int) -> int:
        """Return the last row or frame that began by `at_ns`; -1 before the first."""
        if self.is_steps:
            return min(at_ns, self.n_values(name) - 1)
        # side="right": a row that begins at this very time counts.
        return int(np.searchsorted(self.clocks[name], at_ns + self.origin_ns, side="right")) - 1

    def pick(self, name: str, at_ns: int, anchor: str) -> Picked:
        """Return what a window takes of a field (rule `last`). Raises: DecodeFailed."""
        n = self.n_values(name)
        if not n:
            raise DecodeFailed(f"{name!r} is empty")
        if self.is_steps:
            return by_steps(_NOW["rows"], at_ns, n)
        clock = self.clocks.get(name)
        if clock is None:
            raise DecodeFailed(f"{name!r} has no clock, and {anchor!r} has one: windows refuse it")
        times = self.clocks[anchor] if anchor else clock
        camera = self.cameras.get(name)
        ends = self.clock_names[name] == "container" and camera is not None and camera.timeline is not None
        timeline = None
        if ends and camera:
            timeline = camera.timeline
        return by_clock(
            _NOW["ns"],
            "last",
            clock,
            at_ns + self.origin_ns,
            (int(times[0]), int(times[-1])),
            None,
            end_ns(timeline) if timeline else None,
        )

    def row(self, name: str, number: int) -> np.ndarray:
        """Return up to 512 values of a row; empty until a large stream is drawn. Raises: Corrupt."""
        if not self.fields[name].is_checked and self.fields[name].address.nbytes > READY_BYTES:
            return np.empty(0)
        return read_rows(self.fields[name], self.streams[name].layout, number, number + 1)[0, :MAX_VALUES]

    def summary(self, name: str) -> StreamSummary:
        """Return a stream's summary, from one read unless it has row blocks. Raises: Corrupt."""
        return StreamSummary(self.fields[name], self.streams[name].layout)

    def keep(self) -> np.ndarray | None:
        """Return `keep.npy`, bool [rows], or None. Raises: Corrupt."""
        if KEEP not in self.names:
            return None
        array: np.ndarray = load("array:decode")(self._whole(KEEP))
        if array.ndim != 1 or array.dtype.kind not in "bui":
            raise DecodeFailed(
                f"{self.address.describe(KEEP)} is {array.dtype} {list(array.shape)}, not bool [rows]"
            )
        return array.astype(bool)

    def frame_bytes(self, name: str) -> int:
        """Return the approximate bytes of memory that decoding a frame takes."""
        camera = self.cameras[name]
        width, height = camera.size
        # Decoded planes and RGB copies; a video that is read whole is in memory twice.
        return 8 * width * height + 2 * self.address.fields[name].nbytes * camera.is_read_whole

    def frame(self, name: str, number: int) -> np.ndarray:
        """Return a frame [H, W, C], as the loader decodes it. Raises: Corrupt; MissingDependency."""
        camera = self.cameras[name]
        if not 0 <= number < camera.n_frames:
            last = camera.n_frames - 1
            message = f"frame = {number}; {name!r:.100} has frames 0 to {last}"
            raise InvalidRuntime(message, what="frame", where=name, given=number, accepted=[0, last])
        if camera.layout is not None:
            shape = camera.layout.shape[1:]
            return read_rows(self.fields[name], camera.layout, number, number + 1).reshape(shape)
        choice = Choice([number], Framing(), [])
        if camera.table is None or camera.timeline is None or camera.is_read_whole:
            read: dict[str, np.ndarray] = load("video.decode:read_whole")(
                {"": self._whole(name)}, lambda _: {"": choice}
            )
            whole: np.ndarray = read[""][0]
            return whole
        clip = PlannedClip(
            sample=0,
            address=replace(self.address, fields={name: self.address.fields[name]}),
            field=name,
            table=camera.table,
            timeline=camera.timeline,
            choice=choice,
        )
        store = self.version.shard_store
        readers = Readers(
            fields=lambda addresses, on_corrupt: read_fields(store, addresses, on_corrupt=on_corrupt),
            parts=lambda parts, on_corrupt: read_parts(store, parts, on_corrupt=on_corrupt),
        )
        (bare,) = read_clips([clip], readers, raise_corrupt)
        frame: np.ndarray = bare.decoded()[0]
        return frame


def _is_pictures(layout: NpyLayout) -> bool:
    shape = layout.shape
    if layout.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)) or len(shape) not in (3, 4):
        return False
    # A stack of 3 x 3 matrices is not an image.
    return min(shape[1:3]) >= _PICTURE_PX and (len(shape) == 3 or shape[3] in (1, 3, 4))


def is_episode(version: loader.Version, names: Sequence[str]) -> bool:
    """Return whether there is a stream on a clock, or of steps."""
    if any(name.endswith(CLOCK) for name in names):
        return True
    # Arrays are not enough: images of a photo dataset may have arrays beside them.
    by_steps_only = "episode.json" in names or "n_steps" in version.manifest["columns"]
    return by_steps_only and any(is_array(name) for name in names)


def open_episode(version: loader.Version, ordinal: int, names: Sequence[str]) -> OpenEpisode:
    """Return an episode. names: fields of the sample. Raises: PenstockError."""
    (address,) = version.address(np.array([ordinal]), list(names))
    return OpenEpisode(version, address)
