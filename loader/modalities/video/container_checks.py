"""Check what FFmpeg does not report: that an MP4, Matroska or WebM file is complete, and which frames are hidden.

FFmpeg builds its index from an MP4 header's counts before it reads a sample: 600 bytes can declare twenty million. So
the boxes are parsed first, without their contents: 20 us for a clip with one track.
"""

import io
import re
import struct
import zlib
from typing import TYPE_CHECKING, BinaryIO

from ...errors import DecodeFailed
from ...limits import (
    MAX_MP4_BOXES,
    MAX_MP4_EDITED,
    MAX_MP4_HEADER_BYTES,
    MAX_TRACK_SAMPLES,
    MP4_SAMPLES_ANYWAY,
    limit_message,
)
from ..container_parts import Read, boxes, memory_reader
from ..fields import Buffer

if TYPE_CHECKING:
    import av

_CONTAINERS = frozenset(
    (b"moov", b"hoov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"mvex", b"moof", b"traf")
)
_CONTAINERS |= {
    b"udta",
    b"dinf",
    b"tref",
    b"gmhd",
    b"tapt",
    b"wave",
    b"sinf",
    b"schi",
    b"ilst",
    b"ipro",
    b"iprp",
}
# Boxes that FFmpeg follows inside a sample description, after fields whose length depends on the codec.
_IN_ENTRY = re.compile(b"stsz|stz2|stts|ctts|stss|stps|stsc|stco|co64|elst|trun|cmov")
_META_BYTES = 2**16
_DEPTH = 16
_ENTRY_BYTES = {
    b"stts": 8,
    b"ctts": 8,
    b"stss": 4,
    b"stps": 4,
    b"stsc": 12,
    b"stco": 4,
    b"co64": 8,
    b"keys": 8,
}
_LEAVES = frozenset((*_ENTRY_BYTES, b"stsz", b"stz2", b"elst", b"trun", b"hdlr", b"cmov", b"iinf", b"iloc"))
_COMPRESSED_HEAD_BYTES = 24
"""Bytes before a compressed header: a box "dcom" of 12 bytes, the head of "cmvd", and the decompressed size."""
_PCM_RATIO = 16
"""Most PCM samples per byte in old QuickTime audio."""


def check_tables(data: Buffer) -> None:
    """Check that an MP4's tables are as long as they state; other files pass.

    Raises: DecodeFailed, which names the box, its number and the limit.
    """
    _Tables(memory_reader(data), len(data)).check()


def check_file_tables(file: BinaryIO | io.IOBase, *, all_fragments: bool = True) -> None:
    """Check an open file as `check_tables` does, and rewind it. Raises: DecodeFailed; OSError.

    all_fragments: False checks only the header: each fragment may cost a request.
    """

    def read(at: int, nbytes: int) -> bytes:
        file.seek(at)
        return file.read(nbytes) or b""

    try:
        _Tables(read, file.seek(0, io.SEEK_END), all_fragments=all_fragments).check()
    finally:
        file.seek(0)


class _Tables:
    """Parses an MP4's tables, and counts the samples that they declare."""

    def __init__(
        self,
        read: Read,
        nbytes: int,
        file_nbytes: int | None = None,
        *,
        all_fragments: bool = True,
        is_unpacked: bool = False,
    ) -> None:
        """file_nbytes: size of the file, for a decompressed header. is_unpacked: True for such a header."""
        self._unpacked = is_unpacked
        self._all_fragments = all_fragments
        self._read = read
        self._nbytes = nbytes
        if file_nbytes is None:
            self._file_nbytes = nbytes
        else:
            self._file_nbytes = file_nbytes
        self._n_boxes = 0
        self._promised = self._edited = 0  # samples without their own size; index entries from edits
        self._n_samples = self._n_edits = 0  # in the current track
        self._is_sound = False

    def check(self) -> None:
        self._walk(0, self._nbytes, 0)

    def _walk(self, at: int, stop: int, depth: int) -> None:
        for kind, head, start, stated_end in boxes(self._read, at, stop):
            self._n_boxes += 1
            if self._n_boxes > MAX_MP4_BOXES:
                raise DecodeFailed(limit_message("mp4", self._n_boxes, "boxes", MAX_MP4_BOXES))
            end = min(stop, stated_end)
            if kind in _LEAVES:
                self._leaf(kind, head, start, end)
            elif kind == b"stsd":
                self._descriptions(start, end)
            elif kind in _CONTAINERS or kind == b"meta":
                if depth > _DEPTH:
                    raise DecodeFailed(
                        limit_message(f"mp4: {_name(kind)} at byte {head}", depth, "boxes around it", _DEPTH),
                        what="boxes",
                        where=f"{_name(kind)} at byte {head}",
                        given=depth,
                        accepted=_DEPTH,
                    )
                self._container(kind, start, end, depth)
                if kind == b"moof" and not self._all_fragments:
                    return

    def _container(self, kind: bytes, start: int, end: int, depth: int) -> None:
        if kind == b"trak":
            self._n_samples = 0
            self._n_edits = 0
            self._is_sound = False
        first = start
        if kind == b"meta":
            first = self._first_of_meta(start, end)
        self._walk(first, end, depth + 1)

    def _first_of_meta(self, start: int, end: int) -> int:
        """Return where the boxes in `meta` begin, or `end` if FFmpeg reads none of them."""
        # FFmpeg searches for the type "hdlr", four bytes at a time, and reads boxes from that one on.
        data = bytes(self._read(start, min(end - start, _META_BYTES)))
        at = data.find(b"hdlr")
        while at >= 0 and at % 4:
            at = data.find(b"hdlr", at + 1)
        if at < 0 and end - start > _META_BYTES:
            meta_start = start - 8  # before its size and type
            raise DecodeFailed(
                f"mp4: meta at byte {meta_start} has no handler in its first {_META_BYTES:,} bytes"
            )
        if at >= 4:
            return start + at - 4  # a box's size precedes its type
        return end

    def _descriptions(self, start: int, end: int) -> None:
        data = bytes(self._read(start, end - start))
        for entry in _IN_ENTRY.finditer(data):
            at = start + entry.start() - 4
            nbytes = int.from_bytes(data[max(0, entry.start() - 4) : entry.start()], "big")
            entry_end = end
            if nbytes >= 8:  # else it states no size of its own
                entry_end = min(end, at + nbytes)
            self._leaf(entry[0], at, at + 8, entry_end)

    def _leaf(self, kind: bytes, at: int, start: int, end: int) -> None:
        """Check a box without boxes in it. Raises: DecodeFailed if it states more entries than fit into it."""
        body = self._read(start, 12)
        room = end - start
        where = f"mp4: {_name(kind)} at byte {at}"
        if kind == b"cmov":
            self._check_compressed(where, start, end)
        elif kind == b"hdlr":
            self._is_sound = self._is_sound or bytes(body[8:12]) == b"soun"
        elif len(body) < 8:
            return
        elif kind in (b"stsz", b"stz2"):
            self._sizes(kind, where, body, room)
        elif kind == b"iinf":
            self._items(where, body, room, first_long_version=1, at_n=4)
        elif kind == b"iloc":
            self._items(where, body, room, first_long_version=2, at_n=6)
        elif kind == b"trun":
            flags, n = struct.unpack_from(">II", body)
            width = 4 * (flags & 0xF00).bit_count()
            self._fits(where, n, width, room - 8)
            if not width:
                self._promise(where, n)
        elif kind == b"elst":
            version_and_flags, n = struct.unpack_from(">II", body)
            version = version_and_flags >> 24
            width = 20 if version else 12
            self._fits(where, n, width, room - 8)
            self._n_edits = n
            self._edit(where)
        else:
            _, n = struct.unpack_from(">II", body)
            self._fits(where, n, _ENTRY_BYTES[kind], room - 8)

    def _items(
        self,
        where: str,
        body: bytes | bytearray | memoryview,
        room: int,
        *,
        first_long_version: int,
        at_n: int,
    ) -> None:
        """Check the number of a still image's items, at byte `at_n`; earlier versions count up to 65,535."""
        version = body[0]
        if version >= first_long_version and len(body) >= at_n + 4:
            (n,) = struct.unpack_from(">I", body, at_n)
            self._fits(where, n, 4, room - at_n - 4)

    def _sizes(self, kind: bytes, where: str, body: bytes | bytearray | memoryview, room: int) -> None:
        if len(body) < 12:
            return
        size, n = struct.unpack_from(">II", body, 4)
        if kind == b"stz2":
            self._fits(where, (n * (size & 0xFF) + 7) // 8, 1, room - 12)
        elif not size:
            self._fits(where, n, 4, room - 12)
        else:
            self._promise(where, n)
        if n > MAX_TRACK_SAMPLES:
            raise DecodeFailed(
                limit_message(where, n, "samples", MAX_TRACK_SAMPLES, "Cut the file into shorter ones")
            )
        self._n_samples = n
        self._edit(where)

    def _fits(self, where: str, n: int, width: int, room: int) -> None:
        if n * width > room:
            raise DecodeFailed(
                f"{where} is damaged: {n:,} entries of {width} bytes in {max(0, room):,} bytes",
                what="entries",
                where=where,
                given=n,
                accepted=max(0, room) // width,
            )

    def _promise(self, where: str, n: int) -> None:
        # FFmpeg takes memory for each of these samples before it reads one. A sample has at least one byte, except PCM.
        if self._is_sound:
            self._promised += n // _PCM_RATIO
        else:
            self._promised += n
        if self._promised > self._file_nbytes:
            raise DecodeFailed(
                limit_message(
                    where,
                    n,
                    "samples",
                    self._file_nbytes,
                    "The file has no more bytes: it is damaged or forged",
                ),
                what="samples",
                where=where,
                given=n,
                accepted=self._file_nbytes,
            )

    def _edit(self, where: str) -> None:
        # FFmpeg repeats the index of all samples for each edit.
        entries = self._n_edits * self._n_samples
        most = MAX_MP4_EDITED * self._file_nbytes + MP4_SAMPLES_ANYWAY
        if self._n_edits > MAX_MP4_EDITED and entries > most:
            what = f"{where}: {self._n_edits:,} edits of {self._n_samples:,} samples"
            raise DecodeFailed(
                limit_message(what, entries, "index entries", most, "Write the video anew"),
                what="index entries",
                where=where,
                given=entries,
                accepted=most,
            )

    def _check_compressed(self, where: str, start: int, end: int) -> None:
        # FFmpeg reads both boxes inside at fixed offsets, whatever sizes they state: a walk can miss the second.
        head = bytes(self._read(start, _COMPRESSED_HEAD_BYTES))
        if head[4:12] != b"dcomzlib" or head[16:20] != b"cmvd":
            return  # FFmpeg refuses it
        if self._unpacked:
            raise DecodeFailed(
                f"{where}: a second compressed header; accepted is one, in the file itself",
                what="compressed header",
                where=where,
                given="a second",
                accepted="one",
            )
        first = start + _COMPRESSED_HEAD_BYTES
        compressed = bytes(self._read(first, max(0, end - first)))
        try:
            body = zlib.decompressobj().decompress(compressed, MAX_MP4_HEADER_BYTES + 1)
        except zlib.error as error:
            raise DecodeFailed(f"{where} is damaged: {error}") from error
        stated_nbytes = int.from_bytes(head[20:24], "big")
        nbytes = max(stated_nbytes, len(body))
        if nbytes > MAX_MP4_HEADER_BYTES:
            raise DecodeFailed(
                limit_message(where, nbytes, "decompressed bytes", MAX_MP4_HEADER_BYTES),
                what="decompressed bytes",
                where=where,
                given=nbytes,
                accepted=MAX_MP4_HEADER_BYTES,
            )
        self._unpacked = True
        _Tables(memory_reader(body), len(body), self._file_nbytes, is_unpacked=True).check()


def check_complete(stream: "av.AudioStream | av.VideoStream", nbytes: int) -> None:
    """Check that a demuxed stream's sample table stays within `nbytes`.

    The table is checked because edit lists hide packets. Raises: DecodeFailed.
    """
    end = max((entry.pos + entry.size for entry in stream.index_entries), default=0)
    if end > nbytes:
        raise DecodeFailed(
            f"{stream.type}: truncated: its samples reach to byte {end}, the file ends at {nbytes}",
            what=stream.type,
            given=nbytes,
            accepted=end,
        )


def _name(kind: bytes) -> str:
    return kind.decode("latin-1")


MAGIC = b"\x1a\x45\xdf\xa3"
"""Id of the EBML header, with which every such file begins (RFC 8794)."""

_SEGMENT = 0x18538067  # RFC 9559, 5.1: the element that contains everything else


HIDING = ("vp8", "vp9")
"""Codecs that may have frames only for reference."""


def check_segment(data: Buffer) -> None:
    """Check that the segment is complete or of unknown size (live streams). FFmpeg reads a truncated file as shorter.

    Raises: DecodeFailed.
    """
    at = 0
    while at < len(data):
        identity, at = _number(data, at, keep_marker=True)
        nbytes, at = _number(data, at, keep_marker=False)
        if identity == _SEGMENT:
            if nbytes >= 0 and at + nbytes > len(data):
                raise DecodeFailed(
                    f"video: truncated: its segment reaches to byte {at + nbytes}, the file ends at {len(data)}",
                    what="segment",
                    given=len(data),
                    accepted=at + nbytes,
                )
            return
        at += max(nbytes, 0)
    raise DecodeFailed(f"video: no Matroska segment in {len(data)} bytes", what="segment", given="none")


def is_hidden(codec: str, body: bytes) -> bool:
    """Return whether a VP8 or VP9 packet is an "alternate reference": used by other frames and not shown.

    (RFC 6386, 9.1; VP9 bitstream specification, 6.2 and annex B.)
    """
    if codec == "vp8":
        return not body[0] >> 4 & 1
    if codec != "vp9" or body[-1] & 0xE0 == 0xC0:  # several frames in one packet; the last is shown
        return False
    bits = body[0]
    profile = (bits >> 5 & 1) | (bits >> 4 & 1) << 1
    # Bit of show_existing_frame; frame_type and show_frame follow it.
    shift = 3
    if profile == 3:
        shift = 2
    return not (bits >> shift & 1 or bits >> (shift - 2) & 1)


def _number(data: Buffer, at: int, *, keep_marker: bool) -> tuple[int, int]:
    first = 0
    if at < len(data):
        first = data[at]
    if not first:
        raise DecodeFailed(
            f"video: truncated or damaged: byte {at} of {len(data)} begins no Matroska element",
            what="element",
            given=at,
        )
    n = 9 - first.bit_length()
    body = bytes(data[at : at + n])
    if len(body) < n:
        raise DecodeFailed(f"video: truncated: an element begins at byte {at}, the file ends at {len(data)}")
    number = int.from_bytes(body, "big")
    if keep_marker:
        return number, at + n
    number &= (1 << 7 * n) - 1
    return (-1 if number == (1 << 7 * n) - 1 else number), at + n
