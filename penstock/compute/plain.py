"""Encode a job's dataclasses as strict JSON that names no code, in lines of Zstandard frames."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import pyarrow as pa

from loader.errors import Corrupt, MissingDependency

try:
    import msgspec
except ImportError as error:
    raise MissingDependency("data jobs need msgspec: pip install 'penstock-data[cluster]'") from error

T = TypeVar("T")
MAX_FRAME_BYTES = 2**30
"""Largest frame after decompression, in bytes."""


def to_json(value: object) -> bytes:
    """Return one line of JSON; equal values have equal bytes. Raises: TypeError if the value is not plain."""
    return msgspec.json.encode(value, order="deterministic")


def from_json(data: bytes | memoryview, kind: type[T], where: str) -> T:
    """Parse JSON as type `kind`. where: location, for the error."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (
        msgspec.DecodeError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: raised by a __post_init__, or by invalid UTF-8
        raise Corrupt(f"{where} is no {kind.__name__}: {error}") from error


def from_mapping(values: Mapping[str, object], kind: type[T]) -> T:
    """Convert plain values, such as a TOML table, to a value of type `kind`. Raises: ValueError."""
    return msgspec.convert(values, kind, strict=True)


def to_frame(lines: Iterable[bytes]) -> bytes:
    """Pack lines into one frame. `zstdcat` reads consecutive frames as one file."""
    text = b"".join(line + b"\n" for line in lines)
    return bytes(pa.compress(text, codec="zstd", asbytes=True))


def from_frame(data: bytes | memoryview, where: str) -> list[bytes]:
    """Unpack the lines of one frame."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            text = stream.read(MAX_FRAME_BYTES + 1)
    except (OSError, pa.ArrowException) as error:
        raise Corrupt(f"{where} is no frame of Zstandard: {error}") from error
    if len(text) > MAX_FRAME_BYTES or (text and not text.endswith(b"\n")):
        raise Corrupt(f"{where} is cut off, or has more than {MAX_FRAME_BYTES} bytes")
    lines: list[bytes] = text.split(b"\n")[:-1]
    return lines
