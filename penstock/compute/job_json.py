"""Encode a job's dataclasses as strict JSON that names no code, in lines of Zstandard frames."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from loader.errors import Corrupt, MissingDependency

T = TypeVar("T")
MAX_FRAME_BYTES = 2**30
"""Largest frame after decompression, in bytes."""


def _msgspec() -> Any:
    """Return the package on first use: `penstock train` on this machine imports this module, and needs no job."""
    try:
        import msgspec
    except ImportError as error:
        raise MissingDependency(
            "data jobs and files of clusters need msgspec: pip install 'penstock-data[cluster]'",
            what="msgspec",
        ) from error
    return msgspec


def to_json(value: object) -> bytes:
    """Return one line of JSON; equal values have equal bytes. Raises: TypeError if the value is not plain."""
    data: bytes = _msgspec().json.encode(value, order="deterministic")
    return data


def from_json(data: bytes | memoryview, kind: type[T], where: str) -> T:
    """Parse JSON as type `kind`. where: location, for the error."""
    msgspec = _msgspec()
    try:
        value: T = msgspec.json.decode(data, type=kind)
    except (
        msgspec.DecodeError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: raised by a __post_init__, or by invalid UTF-8
        raise Corrupt(
            f"{where} is not a valid {kind.__name__}: {error}", what=kind.__name__, where=where
        ) from error
    return value


def from_mapping(values: Mapping[str, object], kind: type[T]) -> T:
    """Convert plain values, such as a TOML table, to a value of type `kind`. Raises: ValueError."""
    value: T = _msgspec().convert(values, kind, strict=True)
    return value


def to_frame(lines: Iterable[bytes]) -> bytes:
    """Pack lines into one frame. `zstdcat` reads consecutive frames as one file."""
    ended = [line + b"\n" for line in lines]
    text = b"".join(ended)
    frame = pa.compress(text, codec="zstd", asbytes=True)
    return bytes(frame)


def from_frame(data: bytes | memoryview, where: str) -> list[bytes]:
    """Unpack the lines of one frame."""
    try:
        source = pa.BufferReader(data)
        with pa.CompressedInputStream(source, "zstd") as stream:
            # One byte more shows that a frame is too large.
            text = stream.read(MAX_FRAME_BYTES + 1)
    except (OSError, pa.ArrowException) as error:
        raise Corrupt(f"{where} is not a frame of Zstandard: {error}", what="frame", where=where) from error
    is_too_long = len(text) > MAX_FRAME_BYTES
    is_cut_off = bool(text) and not text.endswith(b"\n")
    if is_too_long or is_cut_off:
        raise Corrupt(
            f"{where} is cut off, or has more than {MAX_FRAME_BYTES} bytes",
            what="frame",
            where=where,
            given=len(text),
            accepted=MAX_FRAME_BYTES,
        )
    lines: list[bytes] = text.split(b"\n")[:-1]
    return lines
