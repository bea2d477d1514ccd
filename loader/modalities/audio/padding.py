"""Read the lengths that audio files state: edit lists, iTunSMPB, Xing headers, chunks and pages."""

import re
import struct
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from ...errors import DecodeFailed
from ..container_parts import RIFF_HEAD, boxes, chunks, long_sizes, memory_reader
from ..fields import Buffer
from .timeline import Ends

if TYPE_CHECKING:
    from av import AudioStream
    from av.container import InputContainer


_SMPB = re.compile(r"\s*[0-9A-F]{8} ([0-9A-F]{8}) ([0-9A-F]{8}) ([0-9A-F]{16})\b", re.I)
_AAC_FRAMES = (960, 1024, 1920, 2048)

_XING_AT = {(True, False): 36, (True, True): 21, (False, False): 21, (False, True): 13}
"""(MPEG-1, mono) -> bytes from a frame's start to its Xing header."""

_XING_SIZES = {1: 4, 2: 4, 4: 100, 8: 4}
"""Flag of a Xing header -> bytes of its field: frames, bytes, table of contents, quality."""

_MAX_BOXES = 10_000

_SMALL_FRAME_SAMPLES = 576
"""Samples of an MP3 frame of MPEG-2 or 2.5; one of MPEG-1 has twice as many."""


class Promise(NamedTuple):
    """Length that a header announces."""

    n_samples: int
    """Samples per channel."""
    slack_s: float
    """Seconds by which the audio may be shorter than stated."""


def audio_ends(container: "InputContainer", stream: "AudioStream", data: Buffer) -> Ends:
    """Return the `Ends` for `Heard`, from an MP4's boxes or an MP3's first frame. data: the file's bytes."""
    if container.format.name == "mp3":
        return Ends(n_samples=mp3_samples(data))
    if container.format.name == "avi":
        return Ends(untimed=True)
    if container.format.name == "ogg":
        return Ends(restarts=True)
    if not container.format.name.startswith("mov"):
        return Ends()
    end: Fraction | None = None
    edit = edit_end(data, stream.id)
    if edit is not None:
        end, tick = edit
        if tick * stream.rate > 1:
            # The movie's clock is coarser than the audio's: keep the tick in which it ends.
            end += tick
    n_samples = _smpb_samples(container.metadata.get("iTunSMPB", ""), stream.frames)
    return Ends(durations_count=True, end=end, n_samples=n_samples)


def _smpb_samples(tag: str, n_packets: int) -> int | None:
    tag_match = _SMPB.match(tag)
    if tag_match is None or not n_packets:
        return None
    priming, padding, n_samples = (int(word, 16) for word in tag_match.groups())
    per_packet, rest = divmod(priming + n_samples + padding, n_packets)
    if rest or per_packet not in _AAC_FRAMES:  # a tag that was copied from another file
        return None
    return n_samples


def edit_end(data: Buffer, track_id: int) -> tuple[Fraction, Fraction] | None:
    """Return (end of a track's edit list, one tick of its clock), in seconds of presentation time. O(header boxes).

    None if there is no edit list, its length is open, or the file is fragmented (its list precedes its length).
    """
    edits = _edits(data, track_id)
    if edits is None:
        return None
    timescale, durations = edits
    if not timescale or not durations or not all(durations):  # a duration of 0 leaves the length open
        return None
    return Fraction(sum(durations), timescale), Fraction(1, timescale)


def _edits(data: Buffer, track_id: int) -> tuple[int, list[int]] | None:
    """Return (ticks per second, durations in ticks) of a track's edit list; None if it has none that counts."""
    moov = _first_box(data, (0, len(data)), b"moov")
    if moov is None:
        return None
    inside = list(_boxes(data, *moov))
    timescale = 0
    for name, start, end in inside:
        if name == b"mvex":  # fragments follow, so the list precedes the length
            return None
        if name == b"mvhd" and end - start >= 24:
            timescale = _after_times(data, start)
    for name, start, end in inside:
        if name != b"trak":
            continue
        parts = {part: (at, stop) for part, at, stop in _boxes(data, start, end)}
        head = parts.get(b"tkhd")
        edits = parts.get(b"edts")
        if head is None or edits is None or head[1] - head[0] < 24:
            continue
        if _after_times(data, head[0]) != track_id:
            continue
        edit_list = _first_box(data, edits, b"elst")
        if edit_list is None:
            return None
        return timescale, _durations(data, *edit_list)
    return None


def _first_box(data: Buffer, span: tuple[int, int], kind: bytes) -> tuple[int, int] | None:
    """Return (start, end) of the first box of a kind."""
    for name, start, end in _boxes(data, *span):
        if name == kind:
            return start, end
    return None


def _after_times(data: Buffer, start: int) -> int:
    """Return the number after the two times of a header: a movie's clock, or a track's number."""
    if data[start] == 1:  # version 1 has times of 64 bits
        return _u32(data, start + 20)
    return _u32(data, start + 12)


def _durations(data: Buffer, start: int, end: int) -> list[int]:
    """Return the durations of an edit list, in ticks of the movie's clock."""
    form = ">I"
    step = 12
    if data[start] == 1:  # version 1 has times of 64 bits
        form = ">Q"
        step = 20
    first = start + 8
    n_stated = _u32(data, start + 4)
    n_inside = (end - first) // step  # a damaged list may state more
    durations = []
    for n in range(min(n_stated, n_inside)):
        (duration,) = struct.unpack_from(form, data, first + step * n)
        durations.append(duration)
    return durations


def _boxes(data: Buffer, at: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (kind, start, end) of each complete box, at most `_MAX_BOXES`."""
    for kind, _, start, stop in islice(boxes(memory_reader(data), at, end), _MAX_BOXES):
        if stop > end:  # cut
            return
        yield kind, start, stop


def _u32(data: Buffer, at: int) -> int:
    number: int = struct.unpack_from(">I", data, at)[0]
    return number


def announced_length(container: str, data: Buffer) -> Promise | None:
    """Return the length that a FLAC's or MP3's header states, or None. container: FFmpeg's format name."""
    n_samples: int | None = None
    slack_s = 0.0
    if container == "flac":
        n_samples = flac_samples(data)
    elif container == "mp3":
        n_samples = mp3_samples(data)
        # A whole file may be a little shorter than stated: decoders count their delay in one of two ways, and some
        # writers count the header's frame.
        slack_s = 0.1
    if n_samples is None:
        return None
    return Promise(n_samples, slack_s)


def flac_samples(data: Buffer) -> int | None:
    """Return the length in a FLAC's STREAMINFO (RFC 9639, section 8.2); None if unknown."""
    at = _id3_end(data)
    if bytes(data[at : at + 4]) != b"fLaC" or len(data) < at + 26:
        return None
    # After the magic, the block's head and 10 bytes of sizes: rate (20 bits), channels (3), depth (5), samples (36).
    word = int.from_bytes(data[at + 18 : at + 26], "big")
    n_samples = word & (2**36 - 1)  # the last 36 of 64 bits
    return n_samples or None


def _id3_end(data: Buffer) -> int:
    """Return the offset after the ID3 tags at the beginning of a file."""
    at = 0
    while bytes(data[at : at + 3]) == b"ID3" and at + 10 <= len(data):
        size = 0
        for byte in data[at + 6 : at + 10]:
            size = size << 7 | byte & 0x7F  # a size has 7 bits per byte
        has_footer = data[at + 5] & 0x10
        at += 10 + size
        if has_footer:
            at += 10
    return at


def mp3_samples(data: Buffer) -> int | None:
    """Return the gapless samples per channel from an MP3's Xing or Info header; None if there is none.

    LAME's rev1 tag is applied as in FFmpeg: the decoder's delay, 529 samples, moves from the padding to the start.
    """
    at = _id3_end(data)
    head = bytes(data[at : at + 192])
    if len(head) < 192 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:  # not a layer III frame
        return None
    is_mpeg1 = head[1] & 0x18 == 0x18
    is_mono = head[3] & 0xC0 == 0xC0
    xing = _XING_AT[is_mpeg1, is_mono]
    if head[xing : xing + 4] not in (b"Xing", b"Info"):
        return None
    flags = _u32(head, xing + 4)
    if not flags & 1:  # the number of frames is missing
        return None
    per_frame = _SMALL_FRAME_SAMPLES
    if is_mpeg1:
        per_frame *= 2
    n_samples = _u32(head, xing + 8) * per_frame
    lame = xing + 8
    for bit, size in _XING_SIZES.items():
        if flags & bit:
            lame += size
    if head[lame : lame + 4] in (b"LAME", b"Lavf", b"Lavc"):
        gaps = int.from_bytes(head[lame + 21 : lame + 24], "big")  # two numbers of 12 bits
        delay = gaps >> 12
        padding = gaps & 0xFFF
        n_samples -= delay + 529 + max(0, padding - 529)
    if n_samples <= 0:
        return None
    return n_samples


# Writers to a pipe do not know the size: they write 0, all ones, or (sox) slightly less than 2 GiB.
_UNKNOWN_FROM = 0x7FFF0000

W64_RIFF: Final = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
"""The first bytes of a W64: Sony's RIFF with 64-bit sizes."""

_W64_DATA = b"data\xf3\xac\xd3\x11\x8c\xd1\x00\xc0\x4f\x8e\xdb\x8a"
_W64_UNKNOWN_FROM = 2**62
_W64_CHUNK_HEAD_BYTES = 16 + 8
"""Identity and size; the size counts them."""
_W64_FILE_HEAD_BYTES = _W64_CHUNK_HEAD_BYTES + 16

OGG: Final = b"OggS"
"""The first bytes of every Ogg page (RFC 3533)."""

_OGG_PAGE_BYTES = 27 + 255 + 255 * 255  # the longest page


def check_lengths(data: Buffer) -> None:
    """Check that a WAV, W64 or Ogg is as long as it states; other files pass. Raises: DecodeFailed."""
    check_wav(data)
    check_w64(data)
    check_ogg(data)


def check_wav(data: Buffer) -> int | None:
    """Check that a RIFF or RF64 WAV is complete; other files pass. Returns the stated sample bytes, None if unknown.

    Raises: DecodeFailed if the data chunk is longer than the rest of the file.
    """
    if bytes(data[:4]) not in (b"RIFF", b"RF64") or bytes(data[8:12]) != b"WAVE":
        return None
    sizes = long_sizes(data)
    for name, start, end in chunks(data, 12, RIFF_HEAD):
        if name == b"data":
            promised = end - start
            if promised == 0xFFFFFFFF and sizes is not None:
                promised = sizes.data
            remaining = len(data) - start
            is_known = promised < _UNKNOWN_FROM or sizes is not None
            if promised > remaining and is_known:
                raise DecodeFailed(f"wav: truncated: {remaining} of {promised} bytes of samples are there")
            if promised == 0 and sizes is None:  # a writer to a pipe did not fill it in
                return None
            if is_known:
                return promised
            return None
    return None


def check_w64(data: Buffer) -> None:
    """Check that a W64 is complete; other files pass. Raises: DecodeFailed."""
    if bytes(data[:16]) != W64_RIFF:
        return
    head = _W64_CHUNK_HEAD_BYTES
    at = _W64_FILE_HEAD_BYTES
    while at + head <= len(data):
        identity = bytes(data[at : at + 16])
        (nbytes,) = struct.unpack("<Q", bytes(data[at + 16 : at + head]))
        is_known = head < nbytes < _W64_UNKNOWN_FROM
        if identity == _W64_DATA and is_known and at + nbytes > len(data):
            remaining = len(data) - at - head
            promised = nbytes - head
            raise DecodeFailed(
                f"w64: truncated: {remaining} of {promised} bytes of samples are there",
                what="w64",
                given=remaining,
                accepted=promised,
            )
        if identity == _W64_DATA:
            return
        if nbytes < head:  # damaged, and without a next chunk
            return
        at += (nbytes + 7) // 8 * 8  # chunks begin at multiples of 8


def check_ogg(data: Buffer) -> None:
    """Check that an Ogg's last page is complete; other files pass. Raises: DecodeFailed."""
    if bytes(data[:4]) != OGG:
        return
    low = max(0, len(data) - _OGG_PAGE_BYTES)
    tail = bytes(data[low:])  # the last page begins in it
    at = tail.rfind(OGG)
    if at < 0 or (at + 27 <= len(tail) and tail[at + 4]):  # not a page, or of an unknown version
        return
    n_segments = 0
    if at + 27 <= len(tail):
        n_segments = tail[at + 26]
    head = 27 + n_segments  # the table of segments ends the header, a byte for the length of each
    end = at + head + sum(tail[at + 27 : at + head])
    if at + head > len(tail) or end > len(tail):
        raise DecodeFailed(
            f"ogg: truncated: the page at byte {low + at} ends beyond the file's {len(data)} bytes",
            what="ogg",
            where=f"the page at byte {low + at}",
            given=len(data),
        )
