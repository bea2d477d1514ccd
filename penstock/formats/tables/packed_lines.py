"""Compressed objects as runs of bytes, and as lines."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from loader.errors import InvalidSample
from loader.limits import MAX_LINE_BYTES

from ..reading.object_file import ObjectFile

COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
"""Ending of a name -> Arrow's name of its compression."""
_READ_BYTES = 2**20


def chunks(file: ObjectFile) -> Iterator[bytes]:
    """Yield the bytes of an object, decompressed where its name ends as `COMPRESSED` says. Raises: ArrowException."""
    codec = next((codec for ending, codec in COMPRESSED.items() if file.path.endswith(ending)), None)
    source: Any = file
    if codec:
        source = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
    while data := source.read(_READ_BYTES):
        yield data


def lines(file: ObjectFile) -> Iterator[bytes]:
    """Yield the lines of a text object, without their ends. Raises: InvalidSample for one that is too long."""
    rest, number = b"", 0
    for data in chunks(file):
        first, *more = data.split(b"\n")
        rest += first
        for line in more:
            yield rest.removesuffix(b"\r")
            rest, number = line, number + 1
        if len(rest) > MAX_LINE_BYTES:
            raise InvalidSample(
                f"{file.path}, row {number} has more than {MAX_LINE_BYTES:,} bytes; keep what is large in other files"
            )
    if rest:
        yield rest.removesuffix(b"\r")
