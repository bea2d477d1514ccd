"""Cache what windows of an episode share: clocks, streams, packet tables or their heads, and columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ...dataset.reading.verified_bucket_reads import FieldPart, PartsOfField
from ...dataset.shards.address import UNKNOWN_CRC, FieldAddress, SampleAddress, crc_text
from ...dataset.shards.shard import crc32c
from ...errors import Corrupt, DecodeFailed
from ...modalities import find_decoder
from ...modalities.fields import last_word
from ...modalities.language import FIELD as LANGUAGE
from ...modalities.language import ActiveText, active_texts
from ...modalities.row_blocks import MIN_BYTES, RowBlocks, read_rows
from ...modalities.row_blocks import SUFFIX as ROWS
from ...modalities.video.packet_pages import HEAD_BYTES, PacketPage, PacketPages, read_head
from ...modalities.video.packet_pages import MIN_BYTES as PAGED_BYTES
from ...modalities.video.packet_table import SUFFIX, StreamFacts
from ...modalities.video.timeline import Timeline
from ...order.sources.window_view import WindowView
from ...storage.threads import SizedLru
from .blocked_rows import BlockCache, BlockedRows, PagedVideo, index_field, rows_in_blocks
from .episode_clocks import check_clock, check_times, end_ns, frame_times, ticks_ns
from .video_packet_reads import Readers, check_table_address, packet_table, table_places

EPISODES_BYTES = 256 * 2**20
"""Bytes of recent episodes that a process caches for each source: clocks, streams and packet tables."""
BLOCKS_BYTES = 128 * 2**20
"""Bytes of recent blocks of large arrays and tables, in addition."""
_PACKET_BYTES = 32  # memory of a packet in a table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowedEpisode:
    """Data that windows of an episode share."""

    streams: Mapping[str, Any]
    """Array field -> its rows: an array, or `BlockedRows`."""
    clocks: Mapping[str, Any]
    """Field -> its clock, or the container of a video without one."""
    ends_ns: Mapping[str, int]
    """Video whose clock is its container -> when it ends."""
    videos: Mapping[str, PacketPage | PagedVideo]
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
    """Approximate memory in bytes."""


class EpisodeCache:
    """Reads and caches episodes of one source; thread-safe.

    `clock_of` maps a field to the field with its clock. `blocks_from` is the size from which arrays are read
    in blocks. `indexes` computes row blocks that the version lacks, which reads such an array once more.
    """

    def __init__(
        self,
        windows: WindowView,
        streams: Sequence[str],
        videos: Sequence[str],
        clock_of: Mapping[str, str],
        cache_bytes: tuple[int, int] = (EPISODES_BYTES, BLOCKS_BYTES),
        blocks_from: int = MIN_BYTES,
        indexes: bool = False,
    ) -> None:
        """cache_bytes: of episodes, and of blocks of large arrays."""
        limit_bytes, blocks_bytes = cache_bytes
        self._blocks_from = blocks_from
        self._indexes = indexes
        self._layout = windows.layout
        self._version = windows.episodes.version  # type: ignore[attr-defined]
        self._fields: tuple[str, ...] = windows.episodes.fields  # type: ignore[attr-defined]
        self._streams = streams
        self._videos = videos
        self._clock_of = clock_of
        self._arrays = {*streams, self._layout.anchor, *clock_of.values()}
        others = {field for field in self._fields if field not in self._layout.at}
        large = self._arrays - others  # arrays that are not handed out whole
        self._may_index = set[str]()
        if indexes:
            self._may_index = {field for field in large if last_word(field) == "npy"}
        self._in_blocks = {field for field in large if field + ROWS in self._version.fields}
        self._in_pages = {field for field in videos if field + SUFFIX not in others}
        self.blocks = BlockCache(blocks_bytes)
        self._episodes = SizedLru(limit_bytes)

    def __call__(
        self,
        addresses: Sequence[SampleAddress],
        readers: Readers,
    ) -> dict[int, WindowedEpisode | Corrupt]:
        """Return ordinal -> its episode, or its error if it is corrupt. Reads all that are not cached together."""
        by_ordinal = {address.ordinal: address for address in addresses}
        episodes: dict[int, WindowedEpisode | Corrupt] = {}
        for ordinal in by_ordinal:
            known = self._episodes.get(ordinal)
            if known is not None:
                episodes[ordinal] = known
        missing = [address for ordinal, address in by_ordinal.items() if ordinal not in episodes]
        if not missing:
            return episodes
        bad: dict[int, Corrupt] = {}
        places = self._places(missing, readers)
        indexed = [self._index_rows(at, readers) for at in places]
        pages, tables_without_head = self._pages(places, readers)
        whole: list[SampleAddress] = []  # the fields that are read whole
        for at, row_blocks, tables in zip(places, indexed, tables_without_head, strict=True):
            fields = {
                field: place for field, place in at.fields.items() if self._is_whole(field, at, row_blocks)
            }
            fields.update(tables)
            whole.append(replace(at, fields=fields))
        # One round of requests for all episodes.
        read = readers.fields(whole, bad.setdefault)
        for number, address in enumerate(missing):
            row_blocks = indexed[number]
            episode: WindowedEpisode | Corrupt
            if isinstance(row_blocks, Corrupt):
                episode = row_blocks
            elif number in bad:
                episode = bad[number]
            else:
                episode = self._parse_episode(
                    address, places[number], read[number], pages[number], row_blocks
                )
            episodes[address.ordinal] = episode
            if isinstance(episode, WindowedEpisode):
                self._episodes.put(address.ordinal, episode, episode.nbytes)
        return episodes

    def _places(self, addresses: Sequence[SampleAddress], readers: Readers) -> list[SampleAddress]:
        """Return the addresses of what windows of these episodes share, row blocks for want of the array too."""
        shared = set(self._arrays)
        shared.update(field + SUFFIX for field in self._videos)
        shared.update(field + ROWS for field in self._in_blocks)
        if self._layout.text:
            shared.add(LANGUAGE)
        # The addresses of the others are given.
        unknown = sorted(shared.difference(self._fields))
        places = table_places(self._version, unknown, addresses, readers.run)
        out = []
        for address, others in zip(addresses, places, strict=True):
            fields = {field: place for field, place in address.fields.items() if field not in self._videos}
            fields.update(others)
            at = replace(address, fields=fields)
            for field in self._in_blocks:
                if field + ROWS not in self._fields and not self._has_blocks(field, at):
                    fields.pop(field + ROWS, None)
            out.append(at)
        return out

    def _has_blocks(self, field: str, at: SampleAddress) -> bool:
        rows = at.fields.get(field + ROWS)
        array = at.fields.get(field)
        return rows is not None and array is not None and rows.nbytes > 0 and array.nbytes > self._blocks_from

    def _index_rows(self, at: SampleAddress, readers: Readers) -> dict[str, RowBlocks] | Corrupt:
        """Return field -> its row blocks, computed for large arrays whose version has none; or the error."""
        indexed: dict[str, RowBlocks] = {}
        try:
            for field in sorted(self._may_index):
                place = at.fields.get(field)
                if place is None or place.nbytes <= self._blocks_from or self._has_blocks(field, at):
                    continue
                blocks = index_field(at, field, readers)
                if blocks is not None:
                    indexed[field] = blocks
        except Corrupt as error:
            return error
        return indexed

    def _is_whole(
        self, field: str, at: SampleAddress, indexed: Mapping[str, RowBlocks] | Corrupt = MappingProxyType({})
    ) -> bool:
        """Return whether a field is read whole, not in blocks or pages. indexed: row blocks that were computed."""
        if isinstance(indexed, Corrupt) or field in indexed:
            return False
        if field.endswith(SUFFIX) and field.removesuffix(SUFFIX) in self._in_pages:
            return at.fields[field].nbytes < PAGED_BYTES
        return not (field in self._in_blocks and self._has_blocks(field, at))

    def _pages(
        self, places: Sequence[SampleAddress], readers: Readers
    ) -> tuple[list[dict[str, PacketPages]], list[dict[str, FieldAddress]]]:
        """Return the heads of large packet tables, and the large tables that have none, which are read whole."""
        pages: list[dict[str, PacketPages]] = [{} for _ in places]
        whole: list[dict[str, FieldAddress]] = [{} for _ in places]
        waiting = [
            (number, field, HEAD_BYTES)
            for number, at in enumerate(places)
            for field in at.fields
            if field.endswith(SUFFIX) and not self._is_whole(field, at)
        ]
        while waiting:
            parts = [
                PartsOfField(places[number], field, [[FieldPart(0, nbytes, UNKNOWN_CRC)]])
                for number, field, nbytes in waiting
            ]
            read = readers.parts(parts, lambda number, error: None)
            later = []
            for (number, field, nbytes), data in zip(waiting, read, strict=True):
                place = places[number].fields[field]
                head = None
                if data:
                    head = read_head(data[0])
                if isinstance(head, int) and nbytes < head <= place.nbytes:
                    later.append((number, field, head))
                elif isinstance(head, PacketPages) and head.nbytes == place.nbytes:
                    pages[number][field.removesuffix(SUFFIX)] = head
                else:
                    whole[number][field] = place
            waiting = later
        return pages, whole

    def _parse_episode(
        self,
        address: SampleAddress,
        at: SampleAddress,
        data: Mapping[str, bytes],
        pages: Mapping[str, PacketPages],
        indexed: Mapping[str, RowBlocks],
    ) -> WindowedEpisode | Corrupt:
        crcs = {field: crc32c(data[field]) for field in self._fields if field in data}
        try:
            arrays = self._parse_arrays(at, data, indexed, crcs)
            videos = self._parse_videos(address, at, data, pages, crcs)
            clocks: dict[str, Any] = {}
            for field, name in self._clock_of.items():
                if field in videos:
                    n_rows = n_frames(videos[field])
                else:
                    n_rows = len(arrays[field])
                clocks[field] = _clock(arrays[name], at, name, n_rows)
            ends_ns: dict[str, int] = {}
            for field, video in videos.items():
                if field not in self._clock_of:
                    clocks[field] = _video_clock(video)
                    ends_ns[field] = end_ns(_facts(video))
            texts = self._texts(data, at)
        except Corrupt as error:
            return error
        others = {field: data[field] for field in self._fields if field not in self._layout.at}
        nbytes = sum(map(len, data.values()))
        for video in videos.values():
            if isinstance(video, PacketPage):
                nbytes += _PACKET_BYTES * len(video.table)
        return WindowedEpisode(
            streams={field: arrays[field] for field in self._streams},
            clocks=clocks,
            ends_ns=ends_ns,
            videos=videos,
            others=others,
            crcs=crcs,
            texts=texts,
            n_rows=len(arrays[self._layout.anchor]),
            nbytes=nbytes,
        )

    def _parse_arrays(
        self,
        at: SampleAddress,
        data: Mapping[str, bytes],
        indexed: Mapping[str, RowBlocks],
        crcs: dict[str, int],
    ) -> dict[str, Any]:
        """Return array field -> its rows, whole or in blocks. crcs: gets the ones of arrays in blocks."""
        arrays: dict[str, Any] = {}
        clock_names = set(self._clock_of.values())
        for field in self._arrays:
            if self._is_whole(field, at, indexed):
                arrays[field] = _array(field, data, at)
                continue
            if field in indexed:
                blocks = indexed[field]
            else:
                blocks = _row_blocks(field, data, at)
            is_clock = field in clock_names
            arrays[field] = rows_in_blocks(at, field, blocks, self.blocks, is_clock)
            crcs[field] = blocks.crc32c
        return arrays

    def _parse_videos(
        self,
        address: SampleAddress,
        at: SampleAddress,
        data: Mapping[str, bytes],
        pages: Mapping[str, PacketPages],
        crcs: dict[str, int],
    ) -> dict[str, PacketPage | PagedVideo]:
        """Return video field -> its packets, whole or in pages. crcs: gets each video's."""
        videos: dict[str, PacketPage | PagedVideo] = {}
        for field in self._videos:
            if field in pages:
                facts = pages[field].facts
                check_table_address(facts, field, address, at)
                videos[field] = PagedVideo(at, field, pages[field], self.blocks, frame_times)
                crcs[field] = facts.crc32c
                continue
            if field + SUFFIX not in data:
                message = f"{address.describe(field)} has no packet table {field + SUFFIX!r}"
                raise DecodeFailed(message, what=field + SUFFIX, where=address.describe(field))
            table = packet_table(data[field + SUFFIX], field, address, at)
            videos[field] = PacketPage(table, Timeline.of_table(table))
            crcs[field] = table.facts.crc32c
        return videos

    def _texts(self, data: Mapping[str, bytes], at: SampleAddress) -> list[ActiveText]:
        if not self._layout.text:
            return []
        if LANGUAGE not in data:
            raise DecodeFailed(
                f"{at.describe()} has no field {LANGUAGE!r}, which text= reads",
                what=LANGUAGE,
                where=at.describe(),
            )
        try:
            return active_texts(data[LANGUAGE], self._layout.text)
        except Corrupt as error:
            message = f"{at.describe(LANGUAGE)}: {error}"
            raise DecodeFailed(
                message, what=error.where, where=at.describe(LANGUAGE), given=error.given
            ) from error


def _row_blocks(field: str, data: Mapping[str, bytes], at: SampleAddress) -> RowBlocks:
    try:
        blocks = read_rows(data[field + ROWS])
    except DecodeFailed as error:
        place_of_rows = at.describe(field + ROWS)
        raise error.with_message(f"{place_of_rows}: {error}", where=place_of_rows) from error
    place = at.fields[field]
    if blocks.nbytes != place.nbytes or blocks.crc32c != place.crc32c != UNKNOWN_CRC:
        raise DecodeFailed(
            f"{at.describe(field + ROWS)} has the row blocks of {blocks.nbytes} bytes with CRC-32C "
            f"{blocks.crc32c:08x}; {field!r} has {place.nbytes} with {crc_text(place.crc32c)}. Make them again "
            "(loader.modalities.row_blocks.index_rows)",
            what=field + ROWS,
            where=at.describe(field + ROWS),
            given=f"row blocks of {blocks.nbytes} bytes, {blocks.crc32c:08x}",
            accepted=f"{place.nbytes} bytes, {crc_text(place.crc32c)}",
        )
    return blocks


def _array(field: str, data: Mapping[str, bytes], at: SampleAddress) -> np.ndarray:
    if field not in data:
        raise DecodeFailed(f"{at.describe()} has no field {field!r}", what=field, where=at.describe())
    decoder: Any = find_decoder(field)
    try:
        array: np.ndarray = decoder(data[field], None)
    except DecodeFailed as error:
        place = at.describe(field)
        raise error.with_message(f"{place}: {error}", where=place) from error
    if not array.ndim:
        raise DecodeFailed(
            f"{at.describe(field)} is one value; rows are needed",
            what=field,
            where=at.describe(field),
            accepted="rows",
        )
    array.flags.writeable = False
    return array


def n_frames(video: PacketPage | PagedVideo) -> int:
    if isinstance(video, PagedVideo):
        return len(video)
    return len(video.timeline)


def _video_clock(video: PacketPage | PagedVideo) -> Any:
    if isinstance(video, PagedVideo):
        return video.clock(ticks_ns(video.pages.pts, video.facts.time_base))
    return frame_times(video.timeline)


def _clock(clock: Any, at: SampleAddress, name: str, n: int) -> Any:
    try:
        if not isinstance(clock, BlockedRows):
            return check_clock(clock, n)
        if clock.times is None or len(clock) != n:
            raise DecodeFailed(
                f"a clock is {clock.dtype} {list(clock.shape)}; int64 [{n}] is needed, a time for each row",
                what="clock",
                given=[str(clock.dtype), *clock.shape],
                accepted=f"int64 [{n}]",
            )
        check_times(clock.times)
        return clock
    except DecodeFailed as error:
        place = at.describe(name)
        raise error.with_message(f"{place}: {error}", where=place) from None


def _facts(video: PacketPage | PagedVideo) -> StreamFacts:
    if isinstance(video, PagedVideo):
        return video.facts
    return video.table.facts
