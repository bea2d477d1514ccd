"""Compare the sizes that containers state with the file: FFmpeg reads a truncated file as a shorter one."""

import mmap
from collections.abc import Callable

from loader.errors import DecodeFailed
from loader.modalities.audio.padding import OGG, W64_RIFF, check_ogg, check_w64
from loader.modalities.container_parts import RIFF_HEAD, boxes, chunks, long_sizes, memory_reader
from loader.modalities.fields import Buffer
from loader.modalities.video.container_checks import MAGIC as MATROSKA
from loader.modalities.video.container_checks import check_segment

from .sniff import AC3_SYNC, ASF_HEADER, HEAD_BYTES, MP4_FIRST_BOXES, MXF_PARTITION, ac3_bytes, sniff
from .unit import Unusable, rejected

MXF_RUN_IN_BYTES = 65_536  # most bytes before the header of an MXF file
_ASF_FILE = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_ASF_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")
_ASF_BROADCAST = 1
_RIFF_UNKNOWN = (0, 0x7FFFFFFF, 0xFFFFFFFF)
_PADDING = 1  # padding byte of an odd last chunk, which some writers omit
_UNKNOWN_FROM = 2**62
_MP4_BOXES = (b"ftyp", b"moov", b"moof", b"mdat", b"meta", b"idat")
_FLV_TAGS = (8, 9, 18)
_MXF_FOOTER = b"\x04"
_MXF_RANDOM_INDEX = b"\x11"
_MXF_FOOTER_AT = 24  # byte position of the footer's offset within a partition
_DV_TYPE_AT = 80 * 5 + 48 + 3  # byte position of the signal type, in the sixth block
_DV_NTSC_BYTES = 120_000
_DV_PAL_BYTES = 144_000
# DV signal type -> multiple of a frame's bytes (SMPTE 314M, 370M).
_DV_FACTORS = {0x00: 1, 0x04: 2, 0x14: 4, 0x18: 2}


def check_sizes(path: str) -> None:
    """Check that a file is as long as its container states. Raises: Unusable."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            for is_one, check in _CHECKS:
                if is_one(data):
                    check(data)
        except DecodeFailed as error:
            reason = str(error).removeprefix("video: truncated: ")
            raise _truncation(reason, where="video", given=len(data)) from error


def _check_end(end: int, data: Buffer, slack: int = 0) -> None:
    if end > len(data) + slack:
        raise _truncation(
            f"the header announces {end} bytes, the file has {len(data)}",
            where="header",
            given=len(data),
            accepted=end,
        )


def _truncation(reason: str, **fields: object) -> Unusable:
    return rejected("probe", "truncated", reason, None, **fields)


def _little(data: Buffer, begin: int, end: int) -> int:
    return int.from_bytes(data[begin:end], "little")


def _big(data: Buffer, begin: int, end: int) -> int:
    return int.from_bytes(data[begin:end], "big")


def _check_riff(data: Buffer) -> None:
    # The file's size only: `check_wav` compares the samples when they are decoded.
    sizes = long_sizes(data)
    for name, start, end in chunks(data, 0, RIFF_HEAD):  # an AVI above 1 GiB has several
        if name == b"RF64" and sizes is not None:
            end = start + sizes.riff
        if name not in (b"RIFF", b"RF64") or end - start in _RIFF_UNKNOWN:
            return
        _check_end(end, data, _PADDING)


def _check_aiff(data: Buffer) -> None:
    size = _big(data, 4, 8)
    if size in _RIFF_UNKNOWN:
        return
    _check_end(8 + size, data, _PADDING)
    for name, _, end in chunks(data, 12, ">4sI"):
        if name == b"SSND":
            _check_end(end, data)


def _check_caf(data: Buffer) -> None:
    for _, _, end in chunks(data, 8, ">4sq"):
        _check_end(end, data)


def _check_mp4(data: Buffer) -> None:
    for kind, _, _, end in boxes(memory_reader(data), 0, len(data)):
        if kind in _MP4_BOXES:
            _check_end(end, data)


def _check_flv(data: Buffer) -> None:
    at = _big(data, 5, 9) + 4
    while at + 11 <= len(data) and data[at] & 0x1F in _FLV_TAGS:
        size = _big(data, at + 1, at + 4)
        end = at + 11 + size
        if end > len(data):
            raise _truncation(f"the tag at byte {at} ends at byte {end}, the file has {len(data)}")
        at = end + 4  # skip the size after each tag


def _check_asf(data: Buffer) -> None:
    header = _little(data, 16, 24)
    _check_end(header, data)
    at = 30
    while at + 24 <= header:
        identity = bytes(data[at : at + 16])
        size = _little(data, at + 16, at + 24)
        if identity == _ASF_FILE and size >= 104:
            flags = _little(data, at + 88, at + 92)
            if flags & _ASF_BROADCAST:
                return  # the file states no sizes
            file_nbytes = _little(data, at + 40, at + 48)
            _check_end(file_nbytes, data)
        if size < 24:
            break
        at += size
    size = _little(data, header + 16, header + 24)
    identity = bytes(data[header : header + 16])
    if identity == _ASF_DATA and size < _UNKNOWN_FROM:
        _check_end(header + size, data)


def _check_mxf(data: Buffer) -> None:
    first = bytes(data[: MXF_RUN_IN_BYTES + 16]).find(MXF_PARTITION)
    start, _ = _ber(data, first + 16)
    footer_at = start + _MXF_FOOTER_AT
    footer = _big(data, footer_at, footer_at + 8)
    at = first + footer
    if not footer:
        size = _big(data, len(data) - 4, len(data))  # size of the random index, which ends the file
        at = len(data) - size
        if not 16 < size < len(data) or _mxf_key(data, at) != _MXF_RANDOM_INDEX:
            raise _truncation(
                "it has no footer: its writer did not close it, or its tail is missing", where="footer"
            )
    elif _mxf_key(data, at) != _MXF_FOOTER:
        raise _truncation(
            f"the header announces a footer at byte {at}, the file has {len(data)}",
            where="footer",
            given=len(data),
            accepted=at,
        )
    while at + 17 <= len(data):
        start, size = _ber(data, at + 16)
        at = start + size
        _check_end(at, data)


def _check_ac3(data: Buffer) -> None:
    at = 0
    while n_bytes := ac3_bytes(bytes(data[at : at + 6])):
        at += n_bytes
    # A syncword that begins no frame belongs to a header without its end.
    if at > len(data) or bytes(data[at : at + 2]) == AC3_SYNC:
        raise _truncation(
            f"its last frame is cut: it begins or ends at byte {at}, the file has {len(data)}",
            where="last frame",
            given=len(data),
            accepted=at,
        )


def _check_dv(data: Buffer) -> None:
    factor = 1
    if len(data) > _DV_TYPE_AT:
        factor = _DV_FACTORS.get(data[_DV_TYPE_AT] & 0x1F, 0)  # 0: an unknown signal type is not checked
    n_bytes = factor * _DV_NTSC_BYTES
    if data[3] & 0x80:
        n_bytes = factor * _DV_PAL_BYTES
    if n_bytes and len(data) % n_bytes:
        raise _truncation(
            f"{len(data)} bytes are not a whole number of frames of {n_bytes} bytes",
            where="frames",
            given=len(data),
            accepted=n_bytes,
        )


def _mxf_key(data: Buffer, at: int) -> bytes:
    key = bytes(data[at : at + 14])
    if key[:13] == MXF_PARTITION:
        return key[13:]
    return b""


def _ber(data: Buffer, at: int) -> tuple[int, int]:
    first = 0
    if at < len(data):
        first = data[at]
    if first < 0x80:
        return at + 1, first
    n = first & 0x7F  # bytes of the length
    end = at + 1 + n
    return end, _big(data, at + 1, end)


# (test for a format, check of its sizes).
_CHECKS: tuple[tuple[Callable[[Buffer], bool], Callable[[Buffer], None]], ...] = (
    (lambda data: bytes(data[:4]) in (b"RIFF", b"RF64"), _check_riff),
    (lambda data: bytes(data[:16]) == W64_RIFF, check_w64),
    (lambda data: bytes(data[:4]) == OGG, check_ogg),
    (lambda data: bytes(data[:4]) == b"FORM", _check_aiff),
    (lambda data: bytes(data[:4]) == b"caff", _check_caf),
    (lambda data: bytes(data[:4]) == MATROSKA, check_segment),
    (lambda data: bytes(data[4:8]) in MP4_FIRST_BOXES, _check_mp4),
    (lambda data: bytes(data[:3]) == b"FLV", _check_flv),
    (lambda data: bytes(data[:16]) == ASF_HEADER, _check_asf),
    (lambda data: ac3_bytes(bytes(data[:6])) > 0, _check_ac3),
    (lambda data: sniff(bytes(data[:HEAD_BYTES])) == "video/dv", _check_dv),
    (lambda data: MXF_PARTITION in bytes(data[: MXF_RUN_IN_BYTES + 16]), _check_mxf),
)
