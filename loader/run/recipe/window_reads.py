"""Read windows of episodes: clocks, streams and packet tables once per episode, then the packets of their frames."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import numpy as np

from ...dataset.reading.verified_bucket_reads import raise_corrupt
from ...dataset.shards.address import FieldAddress, SampleAddress
from ...dataset.shards.shard import crc32c
from ...errors import Corrupt, DecodeFailed, InvalidRuntime
from ...modalities import Decoder, decoder_for
from ...modalities.array import is_array
from ...modalities.language import FIELD as LANGUAGE
from ...modalities.language import ActiveText, active_texts, text_at
from ...modalities.video.packet_table import SUFFIX, PacketTable
from ...modalities.video.request import DEFAULT_FRAMES, Choice, VideoDecoder
from ...modalities.video.timeline import Timeline
from ...order.random.keyed_permutation import I64
from ...order.sources.window_layout import AGE_NS, ANCHOR_NS, IS_PAD, ROW, TEXT
from ...order.sources.window_view import WindowView, n_windows
from .decode import ReadyValue
from .episode_clocks import (
    Picked,
    by_clock,
    by_steps,
    checked_clock,
    clock_field,
    end_ns,
    frame_times,
    too_old,
    values_at,
)
from .episode_columns import EpisodeColumns
from .video_packet_reads import (
    FieldRng,
    PlannedClip,
    Readers,
    WholeClip,
    packet_table,
    read_clips,
    table_places,
)

EPISODES_BYTES = 256 * 2**20
"""Bytes of recent episodes that a process keeps for each source: clocks, streams and packet tables."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowedEpisode:
    """Data that windows of an episode share."""

    streams: Mapping[str, np.ndarray]
    """Array field -> its rows."""
    clocks: Mapping[str, I64]
    """Field -> its clock, a video's container for want of another; fields without one are left out."""
    ends_ns: Mapping[str, int]
    """Video whose clock is its container -> when it ends."""
    videos: Mapping[str, tuple[PacketTable, Timeline]]
    """Video field -> its packets and its times."""
    others: Mapping[str, bytes]
    """Field that is handed out whole -> its bytes."""
    crcs: Mapping[str, int]
    """Field -> CRC-32C of its bytes."""
    texts: Sequence[ActiveText]
    """Texts of each style of the layout."""
    n_rows: int
    """Rows of the anchor."""
    nbytes: int
    """Memory, about."""


class WindowReads:
    """Reads windows of one source; thread-safe. decoders: of the view's fields."""

    def __init__(
        self, windows: WindowView, decoders: Mapping[str, Decoder], limit_bytes: int = EPISODES_BYTES
    ) -> None:
        """Raise InvalidRuntime for decoders that windows cannot use, or videos without packet tables."""
        self._windows, self._layout, self._limit_bytes = windows, windows.layout, limit_bytes
        self._version = windows.episodes.version  # type: ignore[attr-defined]
        self._fields: tuple[str, ...] = windows.episodes.fields  # type: ignore[attr-defined]
        self._decoders = decoders
        self._columns = EpisodeColumns(self._version, self._layout.columns)
        known, facts = self._version.fields, self._version.facts
        timed = {*self._layout.at, self._layout.anchor}
        self._clock_of = {
            field: name for field in sorted(timed) if (name := clock_field(field, known, facts))
        }
        self._streams = [field for field in self._fields if field in self._layout.at and is_array(field)]
        self._videos = [field for field in self._layout.at if not is_array(field)]
        self._episodes: OrderedDict[int, WindowedEpisode] = OrderedDict()
        self._lock, self._nbytes = Lock(), 0
        self._check(known)

    def _check(self, known: Sequence[str]) -> None:
        for field in self._streams:
            if self._decoders.get(field) is not decoder_for(field):
                raise InvalidRuntime(
                    f"decode[{field!r}]: windows take rows of the array; leave its decoder as it is"
                )
        for field in self._videos:
            decoder = self._decoders.get(field)
            if not isinstance(decoder, VideoDecoder):
                raise InvalidRuntime(
                    f"decode[{field!r}]: windows take frames; accepted: loader.video(size=, crop=, times=)"
                )
            bare, kind = replace(decoder, size=None, crop=None, times=False), type(decoder)
            if bare not in (kind(), kind(frames=DEFAULT_FRAMES)):
                raise InvalidRuntime(
                    f"decode[{field!r}] = {decoder!r}: at= of the windows names the frames; leave out frames, stride, "
                    "start and at"
                )
            if field + SUFFIX not in known:
                raise InvalidRuntime(
                    f"{field!r} has no packet table {field + SUFFIX!r} in {self._version.name}, by which windows find "
                    "frames: import it again, or add the tables with Root.add_group"
                )
        if self._layout.anchor in self._clock_of:
            for field in self._streams:
                if field not in self._clock_of:
                    raise InvalidRuntime(
                        f"{field!r} has no clock {field.rpartition('.')[0]}.ns.npy, and {self._layout.anchor!r} has one"
                    )
        elif self._layout.max_age_ns is not None:
            raise InvalidRuntime(f"max_age: {self._layout.anchor!r} has no clock, so values have no age")
        elif self._layout.text:
            raise InvalidRuntime(
                f"text: {self._layout.anchor!r} has no clock: its rows are steps, and language has times"
            )
        else:
            for field, offsets in self._layout.at.items():
                if offsets.unit == "ns" and any(offsets.values):
                    raise InvalidRuntime(
                        f"at[{field!r}] has times, and {self._layout.anchor!r} has no clock: its rows are steps; use "
                        "loader.rows"
                    )

    def __call__(
        self, numbers: I64, addresses: Sequence[SampleAddress], rng_of: FieldRng, readers: Readers
    ) -> tuple[list[dict[str, Any] | Corrupt], list[Mapping[str, int]]]:
        """Return field -> value for each window, or its error; and the CRC-32Cs of its episode's fields.

        numbers: int64, of the windows. addresses: of their episodes. Values are bytes to decode, clips, or final.
        """
        episodes = self.episodes(addresses, readers)
        rows, counts = self._windows.rows(numbers).tolist(), self._windows.counts(numbers).tolist()
        read: list[dict[str, Any] | Corrupt] = []
        clips: list[PlannedClip] = []
        for number, (address, row, count) in enumerate(zip(addresses, rows, counts, strict=True)):
            episode = episodes[address.ordinal]
            if isinstance(episode, Corrupt):
                read.append(episode)
                continue
            try:
                self.check_count(episode, count, address)
                sample, own = self._window(number, address, episode, row, rng_of, readers)
            except Corrupt as error:
                read.append(error)
            else:
                read.append(sample)
                clips += own
        bad: dict[int, Corrupt] = {}
        bare = read_clips(clips, readers, lambda n, error: bad.setdefault(clips[n].sample, error))
        for clip, frames in zip(clips, bare, strict=True):
            sample_read = read[clip.sample]
            if isinstance(sample_read, dict):
                sample_read[clip.field] = frames
        shared = [episodes[address.ordinal] for address in addresses]
        crcs = [{} if isinstance(episode, Corrupt) else episode.crcs for episode in shared]
        return [bad.get(number, sample) for number, sample in enumerate(read)], crcs

    def check_count(self, episode: WindowedEpisode, count: int, address: SampleAddress) -> None:
        """Raise DecodeFailed unless the episode has so many windows: its rows were counted from the index."""
        if n_windows(np.array([episode.n_rows]), self._layout)[0] != count:
            raise DecodeFailed(
                f"{address.describe(self._layout.anchor)} has {episode.n_rows} rows, and {count} windows were counted "
                "from its size: store the field in the dtype and width of the other episodes"
            )

    def _window(
        self,
        number: int,
        address: SampleAddress,
        episode: WindowedEpisode,
        row: int,
        rng_of: FieldRng,
        readers: Readers,
    ) -> tuple[dict[str, Any], list[PlannedClip]]:
        layout, sample = self._layout, dict[str, Any]()
        clock = episode.clocks.get(layout.anchor)
        clips: list[PlannedClip] = []
        picks: dict[str, Picked] = {}
        for field in self._fields:
            if field not in layout.at:
                sample[field] = episode.others[field]
                continue
            picked = self.pick(field, episode, row)
            picks[field] = picked
            if (stream := episode.streams.get(field)) is not None:
                if layout.rule.get(field) == "linear" and stream.dtype.kind != "f":
                    raise DecodeFailed(
                        f"{address.describe(field)} holds {stream.dtype}; 'linear' mixes floats only"
                    )
                sample[field] = ReadyValue(values_at(stream, picked))
                continue
            clip = self._clip(number, address, field, episode, picked, rng_of)
            if clip.table.facts.whole_because:
                whole = replace(address, fields={field: address.fields[field]})
                sample[field] = WholeClip(readers.fields([whole], raise_corrupt)[0][field], clip.choice)
                continue
            sample[field] = clip  # a place, in order
            clips.append(clip)
        for field, picked in picks.items():
            if picked.age_ns is not None:
                sample[f"{field}.{AGE_NS}"] = ReadyValue(picked.age_ns)
            sample[f"{field}.{IS_PAD}"] = ReadyValue(picked.is_pad)
        if clock is not None:
            sample[ANCHOR_NS] = ReadyValue(int(clock[row]))
            if layout.text:
                sample[TEXT] = ReadyValue(text_at(episode.texts, int(clock[row])))
        sample[ROW] = ReadyValue(row)
        sample |= {name: ReadyValue(value) for name, value in self._columns.of(address).items()}
        return sample, clips

    def pick(self, field: str, episode: WindowedEpisode, row: int | I64) -> Picked:
        """Return a field's values of the window at a row, or [windows, k] of those at rows int64 [windows, 1]."""
        layout, offsets = self._layout, self._layout.at[field]
        anchor, video = episode.clocks.get(self._layout.anchor), episode.videos.get(field)
        n = len(episode.streams[field]) if video is None else len(video[1])
        if not n:
            raise DecodeFailed(f"{field!r} has no {'rows' if video is None else 'frames'}")
        if anchor is None or (field == layout.anchor and offsets.unit == "rows"):
            picked = by_steps(offsets, row, n)
            if anchor is None:
                return picked
            age = anchor[row] - anchor[picked.number]
            return picked._replace(is_pad=picked.is_pad | too_old(age, layout.max_age_ns), age_ns=age)
        clock = episode.clocks.get(field)
        if clock is None:
            raise DecodeFailed(f"{field!r} has no clock, and {layout.anchor!r} has one")
        if len(clock) != n:
            raise DecodeFailed(f"{field!r} has {n} values, its clock {len(clock)} times")
        return by_clock(
            offsets,
            layout.rule.get(field, "last"),
            clock,
            anchor[row],
            (int(anchor[0]), int(anchor[-1])),
            layout.max_age_ns,
            episode.ends_ns.get(field),
        )

    def _clip(
        self,
        number: int,
        address: SampleAddress,
        field: str,
        episode: WindowedEpisode,
        picked: Picked,
        rng_of: FieldRng,
    ) -> PlannedClip:
        table, timeline = episode.videos[field]
        decoder, frames = self._decoders[field], picked.number.tolist()
        assert isinstance(decoder, VideoDecoder)
        rng = rng_of(number, field) if decoder.crop == "random" else None
        times_s = [float(timeline.time_s(frame)) for frame in frames] if decoder.times else []
        return PlannedClip(
            sample=number,
            address=replace(address, fields={field: address.fields[field]}),
            field=field,
            table=table,
            timeline=timeline,
            choice=Choice(frames, decoder.framing(rng), times_s),
        )

    def episodes(
        self, addresses: Sequence[SampleAddress], readers: Readers
    ) -> dict[int, WindowedEpisode | Corrupt]:
        by_ordinal = {address.ordinal: address for address in addresses}
        episodes: dict[int, WindowedEpisode | Corrupt] = {}
        with self._lock:
            for ordinal in by_ordinal:
                if (known := self._episodes.get(ordinal)) is not None:
                    self._episodes.move_to_end(ordinal)
                    episodes[ordinal] = known
        missing = [address for ordinal, address in by_ordinal.items() if ordinal not in episodes]
        if not missing:
            return episodes
        bad: dict[int, Corrupt] = {}
        asked = self._asked(missing, readers)
        read = readers.fields(asked, bad.setdefault)
        for number, (address, at, data) in enumerate(zip(missing, asked, read, strict=True)):
            episode = bad.get(number) or self._parsed(address, at, data)
            episodes[address.ordinal] = episode
            if isinstance(episode, WindowedEpisode):
                self._keep(address.ordinal, episode)
        return episodes

    def _asked(self, addresses: Sequence[SampleAddress], readers: Readers) -> list[SampleAddress]:
        """Return the addresses of what windows of these episodes share."""
        more = sorted(
            {
                *self._clock_of.values(),
                *(field + SUFFIX for field in self._videos),
                *([LANGUAGE] if self._layout.text else ()),
            }
            - set(self._fields)
        )
        if self._layout.anchor not in self._fields:
            more.append(self._layout.anchor)
        places = table_places(self._version, more, addresses, readers.run)
        asked = []
        for address, others in zip(addresses, places, strict=True):
            own: dict[str, FieldAddress] = {
                field: place for field, place in address.fields.items() if field not in self._videos
            }
            asked.append(replace(address, fields={**own, **others}))
        return asked

    def _parsed(
        self, address: SampleAddress, at: SampleAddress, data: Mapping[str, bytes]
    ) -> WindowedEpisode | Corrupt:
        try:
            arrays = {
                field: _array(field, data, at)
                for field in {*self._streams, self._layout.anchor, *self._clock_of.values()}
            }
            videos = {}
            for field in self._videos:
                if field + SUFFIX not in data:
                    raise DecodeFailed(f"{address.describe(field)} has no packet table {field + SUFFIX!r}")
                table = packet_table(data[field + SUFFIX], field, address, at)
                videos[field] = table, Timeline.of_table(table)
            clocks = {}
            for field, name in self._clock_of.items():
                n = len(videos[field][1]) if field in videos else len(arrays[field])
                try:
                    clocks[field] = checked_clock(arrays[name], n)
                except DecodeFailed as error:
                    raise DecodeFailed(f"{at.describe(name)}: {error}") from None
            alone = {field: timeline for field, (_, timeline) in videos.items() if field not in clocks}
            clocks |= {field: frame_times(timeline) for field, timeline in alone.items()}
            texts = self._texts(data, at)
        except Corrupt as error:
            return error
        others = {field: data[field] for field in self._fields if field not in self._layout.at}
        crcs = {field: crc32c(data[field]) for field in self._fields if field in data}
        crcs |= {field: table.facts.crc32c for field, (table, _) in videos.items()}
        tables = sum(32 * len(table) for table, _ in videos.values())
        return WindowedEpisode(
            streams={field: arrays[field] for field in self._streams},
            clocks=clocks,
            ends_ns={field: end_ns(timeline) for field, timeline in alone.items()},
            videos=videos,
            others=others,
            crcs=crcs,
            texts=texts,
            n_rows=len(arrays[self._layout.anchor]),
            nbytes=sum(map(len, data.values())) + tables,
        )

    def _texts(self, data: Mapping[str, bytes], at: SampleAddress) -> list[ActiveText]:
        if not self._layout.text:
            return []
        if LANGUAGE not in data:
            raise DecodeFailed(f"{at.describe()} has no field {LANGUAGE!r}, which text= reads")
        try:
            return active_texts(data[LANGUAGE], self._layout.text)
        except Corrupt as error:
            raise DecodeFailed(f"{at.describe(LANGUAGE)}: {error}") from error

    def _keep(self, ordinal: int, episode: WindowedEpisode) -> None:
        with self._lock:
            before = self._episodes.pop(ordinal, None)
            self._episodes[ordinal] = episode
            self._nbytes += episode.nbytes - (0 if before is None else before.nbytes)
            while self._nbytes > self._limit_bytes and len(self._episodes) > 1:
                _, oldest = self._episodes.popitem(last=False)
                self._nbytes -= oldest.nbytes


def _array(field: str, data: Mapping[str, bytes], at: SampleAddress) -> np.ndarray:
    """Return an array field's rows, read-only. Raises: DecodeFailed."""
    if field not in data:
        raise DecodeFailed(f"{at.describe()} has no field {field!r}")
    decoder: Any = decoder_for(field)
    try:
        array: np.ndarray = decoder(data[field], None)
    except DecodeFailed as error:
        raise DecodeFailed(f"{at.describe(field)}: {error}") from error
    if not array.ndim:
        raise DecodeFailed(f"{at.describe(field)} is one value; rows are needed")
    array.flags.writeable = False
    return array
