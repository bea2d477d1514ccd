"""Read single pages of a long video's packet table (schema 2). Its head lists the pages; each is a table of its own."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...errors import DecodeFailed, FormatTooNew
from ..fields import Buffer, is_machine_fault
from .packet_table import (
    COLUMNS,
    END_OF_STREAM,
    I64,
    LAST_PTS,
    MAX_TICKS,
    METADATA_CRC,
    PAGES,
    PacketTable,
    StreamFacts,
    build_table,
    check_plain,
    fact_faults,
    metadata_crc,
    read_facts,
)
from .timeline import Timeline

HEAD_BYTES = 16 * 2**10
"""First bytes of a table, which have the head of a video of some hours."""
MIN_BYTES = 256 * 2**10
"""Size from which a table is read by pages: schema 1 is below, with usual settings of a decoder."""
_MAX_HEAD_BYTES = 2**24


class PacketPage(NamedTuple):
    """One page's packets."""

    table: PacketTable
    timeline: Timeline
    """Timestamps of the page."""


class PacketPages:
    def __init__(self, facts: StreamFacts, rows: I64, last_pts: int, head_nbytes: int) -> None:
        """rows: int64 [pages, 5], as in the metadata. last_pts: tick of the last frame. head_nbytes: before page 0."""
        self.facts = facts
        first_pts, self._n_packets, n_shown, self._nbytes, self._crc32c = rows.T
        self.starts: I64 = np.concatenate([np.zeros(1, np.int64), np.cumsum(n_shown)])
        """int64 [pages + 1]: number of each page's first frame, in display order, then of all frames."""
        self.pts: I64 = np.append(first_pts, last_pts)
        """int64 [pages + 1]: tick of each page's first frame, then of the last frame of all."""
        self._offset = head_nbytes + np.cumsum(self._nbytes) - self._nbytes  # int64 [pages], in bytes
        self.nbytes = head_nbytes + int(self._nbytes.sum()) + len(END_OF_STREAM)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def part(self, page: int) -> tuple[int, int, int]:
        return int(self._offset[page]), int(self._nbytes[page]), int(self._crc32c[page])

    def page(self, number: int, data: Buffer) -> PacketPage:
        try:
            message = pa.ipc.read_message(pa.py_buffer(bytes(data)))
            check_plain(message)
            batch = pa.ipc.read_record_batch(message, COLUMNS)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            if is_machine_fault(error):
                raise
            fault: object = type(error).__name__
            if isinstance(error, DecodeFailed):
                fault = error.given
            raise DecodeFailed(
                f"packet table: page {number}: {type(error).__name__}: {error}",
                what="packet table",
                where=f"page {number}",
                given=fault,
            ) from error
        table = build_table([batch], self.facts)
        timeline = Timeline.of_table(table)
        is_last = number + 2 == len(self.pts)  # `pts` has an entry more than there are pages
        if (
            len(table) != self._n_packets[number]
            or len(timeline) != self.starts[number + 1] - self.starts[number]
            or timeline.times[0] != self.pts[number]
            or not (
                timeline.times[-1] == self.pts[-1] if is_last else timeline.times[-1] < self.pts[number + 1]
            )
        ):
            raise DecodeFailed(
                f"packet table: page {number} differs from its head; make it again",
                what="packet table",
                where=f"page {number}",
                given="another head",
            )
        return PacketPage(table, timeline)


def read_head(data: Buffer) -> PacketPages | int | None:
    """Return the head in a table's first bytes; the bytes that it has, if these are too few; None if there is none.

    None is also for a damaged one: reading the whole table then names the fault.
    """
    view = memoryview(data)
    # An Arrow stream begins with this mark and the length of its schema, in 4 bytes each.
    if len(view) < 8 or bytes(view[:4]) != b"\xff\xff\xff\xff":
        return None
    nbytes = 8 + int.from_bytes(view[4:8], "little")
    if nbytes > len(view):
        if nbytes <= _MAX_HEAD_BYTES:
            return nbytes
        return None
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(bytes(view[:nbytes])))
        metadata = schema.metadata or {}
        facts, version = read_facts(metadata)
        if version != 2 or metadata[METADATA_CRC.encode()] != metadata_crc(metadata):
            return None
        rows = np.array(metadata[PAGES.encode()].split(), np.int64).reshape(-1, 5)
        pages = PacketPages(facts, rows, int(metadata[LAST_PTS.encode()]), nbytes)
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        KeyError,
        OverflowError,
        DecodeFailed,
        FormatTooNew,
    ) as error:
        if is_machine_fault(error):
            raise
        return None
    is_whole = len(rows) and schema.equals(COLUMNS, check_metadata=False) and not facts.whole_because
    # A page has at least one packet, one frame and one byte. Its CRC-32C, the last column, may be 0.
    is_whole = is_whole and (rows[:, 1:4] > 0).all() and (rows[:, 1:] < 2**32).all()
    is_whole = is_whole and (pages.pts >= -MAX_TICKS).all() and (pages.pts <= MAX_TICKS).all()
    is_whole = is_whole and (pages.pts[1:-1] > pages.pts[:-2]).all() and pages.pts[-1] >= pages.pts[-2]
    if is_whole and not fact_faults(facts):
        return pages
    return None


def joined(pages: Sequence[PacketPage]) -> PacketPage:
    """Return some pages, ascending, as one. Raises: DecodeFailed if their packets do not ascend in the video's bytes.

    Each page's own packets ascend.
    """
    if len(pages) == 1:
        return pages[0]
    for before, later in pairwise(page.table for page in pages):
        if later.pos[0] < before.pos[-1] + before.size[-1]:
            raise DecodeFailed(
                "packet table: places of two pages that do not ascend; make it again",
                what="packet table",
                given="places that do not ascend",
            )
    names = COLUMNS.names
    columns = {name: np.concatenate([getattr(page.table, name) for page in pages]) for name in names}
    table = PacketTable(**columns, facts=pages[0].table.facts)
    return PacketPage(table, Timeline.of_table(table))
