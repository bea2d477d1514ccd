"""CRC-32C of what a batch holds, field by field: of type, shape and values."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ...native import crc32c
from ..batch.bytes_column import BytesColumn


def tensor_crcs(fields: Mapping[str, Any]) -> dict[str, int]:
    """Return field -> CRC-32C of its values, before they go to a device.

    An array counts with its dtype and shape, a list with the number and types of its elements. A field with objects of
    other types than arrays, tensors, text, bytes and JSON, or one that is nested too deeply, has none.
    """
    crcs = {}
    for name, value in fields.items():
        crc = 0
        try:
            for piece in pieces(value):
                crc = crc32c(piece, crc)
        except (TypeError, RecursionError):
            continue
        crcs[name] = crc
    return crcs


def pieces(value: Any) -> Iterator[Any]:
    """Yield the buffers of bytes that stand for a value: of an array its dtype and shape, then its values.

    Raises: TypeError for a type that has no bytes of its own.
    """
    if isinstance(value, bytes):
        yield b"bytes %d " % len(value)
        yield value
    elif isinstance(value, str):
        yield b"text "
        yield from pieces(value.encode("utf-8", "surrogatepass"))
    elif value is None or isinstance(value, bool | int | float):
        yield _number(value).encode() + b" "
    elif isinstance(value, list | tuple | BytesColumn):
        yield b"list %d " % len(value)
        for item in value:
            yield from pieces(item)
    elif isinstance(value, Mapping):
        yield b"dict %d " % len(value)
        for name, item in value.items():
            yield from pieces(str(name))
            yield from pieces(item)
    else:
        data = array_bytes(value)
        yield f"{value.dtype} {tuple(value.shape)} ".encode()
        yield data


def _number(value: float | None) -> str:
    try:
        return repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        return f"{value:#x}"


def array_bytes(value: Any) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Return uint8 [nbytes]: the values of an array or tensor of any dtype. Raises: TypeError for anything else."""
    if hasattr(value, "pin_memory"):  # only torch's tensors have that
        import torch

        return np.asarray(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    array = np.ascontiguousarray(value) if hasattr(value, "__array__") else None
    if array is None or array.dtype.hasobject:
        raise TypeError(f"{type(value).__name__} has no bytes of its own")
    return array.reshape(-1).view(np.uint8)
