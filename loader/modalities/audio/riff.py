"""The chunks of a WAV file: FFmpeg reads a truncated one as a shorter one, so its size is checked here."""

import struct

from ...errors import DecodeFailed
from ..fields import Buffer

# Writers to a pipe cannot know the size: they leave 0, all ones, or (sox) a little less than 2 GiB.
_UNKNOWN_FROM = 0x7FFF0000


def check_wav(data: Buffer) -> int | None:
    """Accept a RIFF or RF64 WAV whose samples are all there, and anything that is not a WAV.

    Return the bytes of samples that the header announces; None where it does not. Raises: DecodeFailed (the data chunk
    is longer than the rest of the file).
    """
    if bytes(data[:4]) not in (b"RIFF", b"RF64") or bytes(data[8:12]) != b"WAVE":
        return None
    at, long_size = 12, None
    while at + 8 <= len(data):
        name, nbytes = struct.unpack("<4sI", bytes(data[at : at + 8]))
        if name == b"ds64" and at + 24 <= len(data):
            (long_size,) = struct.unpack("<Q", bytes(data[at + 16 : at + 24]))
        if name == b"data":
            promised = long_size if nbytes == 0xFFFFFFFF and long_size is not None else nbytes
            left, is_told = len(data) - at - 8, 0 < promised < _UNKNOWN_FROM or long_size is not None
            if promised > left and (promised < _UNKNOWN_FROM or long_size is not None):
                raise DecodeFailed(f"wav: truncated: {left} of {promised} bytes of samples are there")
            return promised if is_told else None
        at += 8 + nbytes + nbytes % 2
    return None
