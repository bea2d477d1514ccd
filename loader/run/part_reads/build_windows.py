"""Build the windows of episodes in a batch's slots: their values on one clock, then the packets of their frames."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from ...dataset.shards.address import UNKNOWN_CRC, SampleAddress
from ...dataset.versions.view_columns import SampleColumns
from ...errors import Corrupt, DecodeFailed, InvalidRuntime, InvalidSample
from ...modalities import Decoder, find_decoder
from ...modalities.array import clock_field, is_array
from ...modalities.language import active_text
from ...modalities.video.depth import DepthScale
from ...modalities.video.packet_table import SUFFIX
from ...modalities.video.request import DEFAULT_FRAMES, Choice, VideoDecoder
from ...order.plan import Plan
from ...order.random.keyed_permutation import I64
from ...order.slots import Slots
from ...order.sources.window_layout import AGE_NS, ANCHOR_NS, DEPTH, IS_PAD, ROW, TEXT
from ...order.sources.window_view import WindowView, n_windows
from ..recipe import slot_generators
from ..recipe.decode import ReadyValue
from ..recipe.rank_slots import LocatedSamples
from ..recipe.video_clips import WholeChoice, WholeClip
from .blocked_rows import BlocksMissing, BlockSource, PagedVideo, read_blocks
from .episode_cache import EpisodeCache, WindowedEpisode, n_frames
from .episode_clocks import Picked, by_clock, by_steps, check_inside, check_steps, stream_values, too_old
from .video_packet_reads import FieldRng, PlannedClip, Readers, read_clips

T = TypeVar("T")


class WindowReads:
    """Reads windows of one source; thread-safe.

    decoders: of the view's fields. how: as for `EpisodeCache`.
    """

    def __init__(
        self,
        windows: WindowView,
        decoders: Mapping[str, Decoder],
        **how: Any,
    ) -> None:
        """Raise InvalidRuntime for decoders that windows cannot use, or videos without packet tables."""
        self._windows = windows
        self._layout = windows.layout
        self._version = windows.episodes.version  # type: ignore[attr-defined]
        self._fields: tuple[str, ...] = windows.episodes.fields  # type: ignore[attr-defined]
        self._decoders = decoders
        self._columns = SampleColumns(self._version, dict.fromkeys(self._layout.columns))
        known = self._version.fields
        facts = self._version.facts
        # Sorted below: the order of a set of texts differs from process to process.
        timed = {*self._layout.at, self._layout.anchor}
        self._clock_of = {
            field: name for field in sorted(timed) if (name := clock_field(field, known, facts))
        }
        self._streams = [field for field in self._fields if field in self._layout.at and is_array(field)]
        self._videos = [field for field in self._layout.at if not is_array(field)]
        self._episodes = EpisodeCache(windows, self._streams, self._videos, self._clock_of, **how)
        self._blocks = self._episodes.blocks
        self._check(known)
        self._depth_of = {
            field: self._depth(field, facts[field][DEPTH]).numbers()
            for field in self._videos
            if DEPTH in facts.get(field, {})
        }

    def _depth(self, field: str, fact: Any) -> DepthScale:
        try:
            return DepthScale.parse(fact, f"facts of {field!r} in {self._version.name}")
        except InvalidSample as error:
            raise InvalidRuntime(
                f"{error}; state the fact anew in a dataset of another name",
                what=error.what,
                where=f"facts of {field!r} in {self._version.name}",
                given=error.given,
                accepted=error.accepted,
            ) from error

    def _check(self, known: Sequence[str]) -> None:
        for field in self._streams:
            if self._decoders.get(field) is not find_decoder(field):
                raise InvalidRuntime(
                    f"decode[{field!r}]: windows take rows of the array; leave its decoder as it is",
                    what=f"decode[{field!r}]",
                    given=self._decoders.get(field),
                    accepted="the array's own decoder",
                )
        for field in self._videos:
            decoder = self._decoders.get(field)
            if not isinstance(decoder, VideoDecoder):
                raise InvalidRuntime(
                    f"decode[{field!r}]: windows take frames; accepted: loader.video(size=, crop=, times=, bits=)",
                    what=f"decode[{field!r}]",
                    given=decoder,
                    accepted="loader.video(size=, crop=, times=, bits=)",
                )
            bare = replace(decoder, size=None, crop=None, times=False, bits=None)
            kind = type(decoder)
            if bare not in (kind(), kind(frames=DEFAULT_FRAMES)):
                raise InvalidRuntime(
                    f"decode[{field!r}] = {decoder!r}: at= of the windows names the frames; leave out frames, stride, "
                    "start and at",
                    what=f"decode[{field!r}]",
                    given=decoder,
                    accepted="no frames, stride, start or at",
                )
            if field + SUFFIX not in known:
                raise InvalidRuntime(
                    f"{field!r} has no packet table {field + SUFFIX!r} in {self._version.name}, by which windows find "
                    "frames: import it again, or add the tables with Root.add_group",
                    what=field,
                    where=self._version.name,
                    accepted=f"a packet table {field + SUFFIX!r}",
                )
        if self._layout.anchor in self._clock_of:
            for field in self._streams:
                if field not in self._clock_of:
                    clock = f"{field.rpartition('.')[0]}.ns.npy"
                    raise InvalidRuntime(
                        f"{field!r} has no clock {clock}, and {self._layout.anchor!r} has one",
                        what=field,
                        where=self._version.name,
                        accepted=f"a clock, as {self._layout.anchor!r} has",
                    )
        else:
            check_steps(self._layout)

    def __call__(
        self, numbers: I64, addresses: Sequence[SampleAddress], rng_of: FieldRng, readers: Readers
    ) -> tuple[list[dict[str, Any] | Corrupt], list[Mapping[str, int]]]:
        """Return field -> value for each window, or its error; and the CRC-32Cs of its episode's fields.

        numbers: int64, of the windows. addresses: of their episodes. Values are bytes to decode, clips, or final.
        """
        episodes = self.episodes(addresses, readers)
        rows = self._windows.rows(numbers).tolist()
        counts = self._windows.counts(numbers).tolist()
        read: dict[int, dict[str, Any] | Corrupt] = {}
        clips: list[PlannedClip] = []
        with self._blocks.batch():
            waiting = [*range(len(addresses))]
            while waiting:
                missing: dict[BlockSource, set[int]] = {}
                later = []
                for number in waiting:
                    address = addresses[number]
                    episode = episodes[addresses[number].ordinal]
                    try:
                        if isinstance(episode, Corrupt):
                            raise episode
                        self.check_count(episode, counts[number], address)
                        read[number], own = self._window(
                            number, address, episode, rows[number], rng_of, readers
                        )
                        clips += own
                    except Corrupt as error:
                        read[number] = error
                    except BlocksMissing as error:
                        later.append(number)
                        for source, blocks in error.blocks.items():
                            missing.setdefault(source, set()).update(blocks)
                read_blocks(missing, readers)
                waiting = later
        self._read_clips(clips, read, readers)
        shared = [episodes[address.ordinal] for address in addresses]
        crcs = [{} if isinstance(episode, Corrupt) else episode.crcs for episode in shared]
        return [read[number] for number in range(len(addresses))], crcs

    def _read_clips(
        self, clips: Sequence[PlannedClip], read: dict[int, dict[str, Any] | Corrupt], readers: Readers
    ) -> None:
        whole = [clip for clip in clips if clip.table.facts.whole_because]
        clips = [clip for clip in clips if not clip.table.facts.whole_because]
        bad: dict[int, Corrupt] = {}
        videos = readers.fields(
            [clip.address for clip in whole], lambda n, error: bad.setdefault(whole[n].sample, error)
        )
        bare = read_clips(clips, readers, lambda n, error: bad.setdefault(clips[n].sample, error))
        ready = [
            WholeClip(data.get(clip.field, b""), clip.choice)
            for clip, data in zip(whole, videos, strict=True)
        ]
        for clip, frames in zip([*whole, *clips], [*ready, *bare], strict=True):
            window = read[clip.sample]
            if isinstance(window, dict):
                window[clip.field] = frames
        read.update(bad)

    def check_count(self, episode: WindowedEpisode, count: int, address: SampleAddress) -> None:
        """Raise DecodeFailed unless the episode has so many windows: its rows were counted from the index."""
        if n_windows(np.array([episode.n_rows]), self._layout)[0] != count:
            raise DecodeFailed(
                f"{address.describe(self._layout.anchor)} has {episode.n_rows} rows, and {count} windows were counted "
                "from its size: store the field in the dtype and width of the other episodes",
                what=self._layout.anchor,
                where=address.describe(),
                given=episode.n_rows,
                accepted=f"rows of {count} windows",
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
        layout = self._layout
        sample = dict[str, Any]()
        clock = episode.clocks.get(layout.anchor)
        clips: list[PlannedClip] = []
        picks: dict[str, Picked] = {}
        missing: dict[BlockSource, set[int]] = {}
        for field in self._fields:
            if field not in layout.at:
                sample[field] = episode.others[field]
                continue
            try:
                picks[field] = picked = self.pick(field, episode, row)
                if (stream := episode.streams.get(field)) is not None:
                    sample[field] = ReadyValue(self.values(field, stream, picked, address))
                    continue
                clip = self._clip(number, address, field, episode, picked, rng_of, readers)
            except BlocksMissing as error:
                for source, blocks in error.blocks.items():
                    missing.setdefault(source, set()).update(blocks)
                continue
            sample[field] = clip  # a place, in order
            clips.append(clip)
        if missing:
            raise BlocksMissing(missing)
        for field, picked in picks.items():
            if layout.pad == "inside":
                own = episode.clocks.get(field, (0,))
                ends = episode.ends_ns.get(field)
                check_inside(f"{address.describe()}: {field}", picked, layout, clock, row, int(own[0]), ends)
            if picked.age_ns is not None:
                sample[f"{field}.{AGE_NS}"] = ReadyValue(picked.age_ns)
            sample[f"{field}.{IS_PAD}"] = ReadyValue(picked.is_pad)
            if field in self._depth_of:
                sample[f"{field}.{DEPTH}"] = ReadyValue(self._depth_of[field])
        if clock is not None:
            sample[ANCHOR_NS] = ReadyValue(int(clock[row]))
            if layout.text:
                sample[TEXT] = ReadyValue(active_text(episode.texts, int(clock[row])))
        sample[ROW] = ReadyValue(row)
        if layout.columns:
            sample |= self._column_values(address)
        return sample, clips

    def _column_values(self, address: SampleAddress) -> dict[str, ReadyValue]:
        """Return column -> value of an episode. Raises: DecodeFailed for a null."""
        columns = self._columns(np.array([address.ordinal], np.int64))
        for name, (value,) in columns.items():
            if value is None:
                raise DecodeFailed(
                    f"{address.describe()} has no {name!r} in the samples table, which columns= hands out: leave it "
                    f'out with where("{name} IS NOT NULL")',
                    what=name,
                    where=address.describe(),
                    accepted="a value in the samples table",
                )
        return {name: ReadyValue(value) for name, (value,) in columns.items()}

    def values(self, field: str, stream: Any, picked: Picked, address: SampleAddress) -> np.ndarray:
        """Return a stream's values. Raises: DecodeFailed for "linear" of other values than floats; BlocksMissing."""
        if self._layout.rule.get(field) == "linear" and stream.dtype.kind != "f":
            raise DecodeFailed(
                f"{address.describe(field)} holds {stream.dtype}; 'linear' mixes floats only",
                what=field,
                where=address.describe(field),
                given=str(stream.dtype),
                accepted="floats",
            )
        return stream_values(stream, picked)

    def with_blocks(self, call: Callable[[], T], readers: Readers) -> T:
        """Return `call()`, which may need blocks: they are read, and it is called again."""
        with self._blocks.batch():
            while True:
                try:
                    return call()
                except BlocksMissing as error:
                    missing = error.blocks
                read_blocks(missing, readers)

    def pick(self, field: str, episode: WindowedEpisode, row: int | I64) -> Picked:
        layout = self._layout
        offsets = self._layout.at[field]
        anchor = episode.clocks.get(self._layout.anchor)
        video = episode.videos.get(field)
        if video is None:
            n = len(episode.streams[field])
        else:
            n = n_frames(video)
        if not n:
            message = f"{field!r} has no {'rows' if video is None else 'frames'}"
            raise DecodeFailed(message, what=field, given=0, accepted="at least 1")
        if anchor is None or (field == layout.anchor and offsets.unit == "rows"):
            picked = by_steps(offsets, row, n)
            if anchor is None:
                return picked
            age = anchor[row] - anchor[picked.number]
            is_old = too_old(age, layout.max_age_ns)
            return picked._replace(is_pad=picked.is_pad | is_old, age_ns=age, is_old=is_old)
        clock = episode.clocks.get(field)
        if clock is None:
            message = f"{field!r} has no clock, and {layout.anchor!r} has one"
            raise DecodeFailed(message, what=field, accepted="a clock")
        if len(clock) != n:
            message = f"{field!r} has {n} values, its clock {len(clock)} times"
            raise DecodeFailed(message, what=field, given=len(clock), accepted=n)
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
        readers: Readers,
    ) -> PlannedClip:
        video = episode.videos[field]
        frames = picked.number.tolist()
        if isinstance(video, PagedVideo):
            page, own = video.packets(frames)
        else:
            page = video
            own = frames
        decoder = self._decoders[field]
        assert isinstance(decoder, VideoDecoder)
        rng = None
        if decoder.crop == "random":
            rng = rng_of(number, field)
        if decoder.times:
            times_s = [float(page.timeline.time_s(frame)) for frame in own]
        else:
            times_s = []
        choice = Choice(own, decoder.framing(rng), times_s)
        of_whole = None
        if isinstance(video, PagedVideo):
            packets = partial(video.packet_bytes, readers)
            of_whole = WholeChoice(choice._replace(frames=frames), packets)
        return PlannedClip(
            sample=number,
            address=replace(address, fields={field: address.fields[field]}),
            field=field,
            table=page.table,
            timeline=page.timeline,
            choice=choice,
            of_whole=of_whole,
        )

    def episodes(
        self, addresses: Sequence[SampleAddress], readers: Readers
    ) -> dict[int, WindowedEpisode | Corrupt]:
        return self._episodes(addresses, readers)


class WindowSlots:
    """Fetches windows of one source; thread-safe."""

    def __init__(self, plan: Plan, reads: WindowReads) -> None:
        self._plan = plan
        self._reads = reads

    def __call__(
        self, slots: Slots, located: LocatedSamples, readers: Readers
    ) -> tuple[dict[int, dict[str, Any]], dict[int, Corrupt]]:
        def field_rng(number: int, field: str) -> np.random.Generator:
            key = slot_generators.generator_key(self._plan, slots, int(located.rows[number]))
            return slot_generators.decoder_generator(key, field)

        places = located.places
        read, crcs = self._reads(slots.ordinal[located.rows], places.addresses(), field_rng, readers)
        for field, at in places.fields.items():
            for number in at.unknown.tolist():
                at.crc32c[number] = crcs[number].get(field, UNKNOWN_CRC)
        payloads = dict[int, dict[str, Any]]()
        bad = dict[int, Corrupt]()
        for number, window in enumerate(read):
            if isinstance(window, Corrupt):
                bad[number] = window
            else:
                payloads[number] = window
        return payloads, bad


def window_slots(
    plan: Plan, views: Sequence[WindowView | None], decoders: Sequence[Mapping[str, Decoder]]
) -> list[WindowSlots | None]:
    """Return the fetch of each source; None for sources without windows. Raises: InvalidRuntime."""
    return [
        None if view is None else WindowSlots(plan, WindowReads(view, own))
        for view, own in zip(views, decoders, strict=True)
    ]
