"""Facts of Matroska and WebM that FFmpeg lacks: completeness, and hidden frames."""

from ...errors import DecodeFailed
from ..fields import Buffer

MAGIC = b"\x1a\x45\xdf\xa3"
"""The id of the EBML header, with which every such file begins (RFC 8794)."""

_SEGMENT = 0x18538067  # RFC 9559, 5.1: the element that holds everything else


HIDING = ("vp8", "vp9")
"""Codecs whose frames may be only for others to build on."""


def check_segment(data: Buffer) -> None:
    """Accept a file with its whole segment, or of unknown size (live streams). FFmpeg reads a truncated one as shorter.

    Raises: DecodeFailed.
    """
    at = 0
    while at < len(data):
        identity, at = _number(data, at, keep_marker=True)
        nbytes, at = _number(data, at, keep_marker=False)
        if identity == _SEGMENT:
            if nbytes >= 0 and at + nbytes > len(data):
                raise DecodeFailed(
                    f"video: truncated: its segment reaches to byte {at + nbytes}, the file ends at {len(data)}"
                )
            return
        at += max(nbytes, 0)
    raise DecodeFailed(f"video: no Matroska segment in {len(data)} bytes")


def is_hidden(codec: str, body: bytes) -> bool:
    """Return whether a packet of VP8 or VP9 is an "alternate reference": others build on it and it is not shown.

    (RFC 6386, 9.1; VP9 bitstream specification, 6.2 and annex B.)
    """
    if codec == "vp8":
        return not body[0] >> 4 & 1
    if codec != "vp9" or body[-1] & 0xE0 == 0xC0:  # several frames in one packet, the last of them shown
        return False
    bits = body[0]
    profile = (bits >> 5 & 1) | (bits >> 4 & 1) << 1
    shift = 2 if profile == 3 else 3  # of show_existing_frame; then frame_type and show_frame
    return not (bits >> shift & 1 or bits >> (shift - 2) & 1)


def _number(data: Buffer, at: int, *, keep_marker: bool) -> tuple[int, int]:
    """Return a variable-length number and its end; -1 for unknown. Raises: DecodeFailed."""
    first = data[at] if at < len(data) else 0
    if not first:
        raise DecodeFailed(
            f"video: truncated or damaged: byte {at} of {len(data)} begins no Matroska element"
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
