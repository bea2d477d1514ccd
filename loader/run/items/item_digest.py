"""Checksums of items, which have no stored bytes: CRC-32C over each field's dtype, shape and bytes.

A digest proves what a dataset returned, before any transform. Equal values of another dtype or shape differ.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...native import crc32c

_Parts = list[tuple[str, Any]]
"""(description, bytes) pairs that a checksum covers, in order."""


def field_crc(value: Any, key: str) -> tuple[int, bool]:
    """Return (CRC-32C of a value, whether it covers the value's bytes).

    A value whose bytes cannot be read, such as an object of a class, counts as the item's key.
    """
    parts: _Parts = []
    has_bytes = _add(value, parts)
    if not has_bytes:
        parts = [("key", key.encode())]
    crc = 0
    for description, data in parts:
        crc = crc32c(description.encode(), crc)
        crc = crc32c(data, crc)
    return crc, has_bytes


def sample_field_crcs(sample: Mapping[str, Any], key: str) -> tuple[dict[str, int], list[str]]:
    """Return (field -> CRC-32C, fields that count as the key) of one sample."""
    crcs: dict[str, int] = {}
    without_bytes: list[str] = []
    for field, value in sample.items():
        crcs[field], has_bytes = field_crc(value, key)
        if not has_bytes:
            without_bytes.append(field)
    return crcs, without_bytes


def _add(value: Any, parts: _Parts) -> bool:
    """Append what the checksum of a value covers; return False if some of it has no bytes."""
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            return _add_items(array.tolist(), parts)
        _add_array(array, array.dtype.newbyteorder("<").str, parts)
        return True
    if isinstance(value, list | tuple):
        return _add_items(value, parts)

    # The type's name stands before the bytes: 1, 1.0, True and "1" differ.
    kind = type(value).__name__
    if isinstance(value, bytes | bytearray | memoryview):
        parts.append(("bytes", bytes(value)))
        return True
    if isinstance(value, str):
        parts.append(("str", value.encode("utf-8", "surrogatepass")))
        return True
    if value is None or isinstance(value, bool | int | float | complex):
        parts.append((kind, repr(value).encode()))  # repr is exact for floats
        return True

    array_of_tensor = _array_of_tensor(value)
    if array_of_tensor is None:
        return False
    _add_array(array_of_tensor, str(value.dtype), parts)
    return True


def _add_items(values: Sequence[Any], parts: _Parts) -> bool:
    kind = type(values).__name__
    parts.append((f"{kind} of {len(values)}", b""))
    return all(_add(value, parts) for value in values)


def _add_array(array: np.ndarray, dtype: str, parts: _Parts) -> None:
    little_endian = array.dtype.newbyteorder("<")
    plain = np.ascontiguousarray(array.astype(little_endian, copy=False))
    data = plain.reshape(-1).view(np.uint8).data
    parts.append((f"{dtype}{list(array.shape)}", data))


def _array_of_tensor(value: Any) -> np.ndarray | None:
    """Return a torch tensor as an array, its bytes as uint8 if numpy lacks the dtype; None for any other value."""
    torch: Any = sys.modules.get("torch")
    tensor_type = getattr(torch, "Tensor", None)  # None while torch is being imported
    if tensor_type is None or not isinstance(value, tensor_type):
        return None
    if value.is_sparse or value.is_quantized:
        return None
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    try:
        array: np.ndarray = plain.numpy()
    except TypeError:  # bfloat16 and the float8 dtypes
        array = plain.reshape(-1).view(torch.uint8).numpy()
    return array
