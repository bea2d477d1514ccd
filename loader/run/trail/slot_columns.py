"""CRC-32C of a batch's fields; also for fields whose samples arrive one by one and are dropped.

An array has the same bytes in a column and in a list.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...modalities.row_blocks import crc_appended
from ...native import crc32c
from ..batch.collate import collate_field, padding_value
from ..batch.columns import EXAMPLE, PADDED, BytesColumn
from ..batch.frameworks import as_framework
from ..batch.nested_values import empty_like


def tensor_crcs(fields: Mapping[str, Any]) -> dict[str, int]:
    """Return field -> CRC-32C of its values on the host.

    An array is represented with its dtype and shape, a list with the number and types of its elements. Fields have none
    if they are nested too deeply, or hold anything but arrays, tensors, text, bytes and JSON.
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
    """Yield the buffers that represent a value: for an array its dtype and shape, then its values.

    Raises: TypeError for types without bytes.
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
    except ValueError:  # an int with more digits than Python prints
        return f"{value:#x}"


def array_bytes(value: Any) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """Return uint8 [nbytes]: the values of an array or tensor of any dtype."""
    if hasattr(value, "pin_memory"):  # only torch's tensors have that
        import torch

        if not value.numel():  # torch views no empty tensor from numpy as bytes: its stride is 0
            return np.zeros(0, np.uint8)
        host = value.detach().cpu().contiguous()
        # As bytes: numpy lacks some of torch's dtypes.
        octets = host.reshape(-1).view(torch.uint8)
        return np.asarray(octets.numpy())
    array = None
    if hasattr(value, "__array__"):
        array = np.ascontiguousarray(value)
    if array is None or array.dtype.hasobject:
        raise TypeError(f"{type(value).__name__} has no bytes of its own")
    return array.reshape(-1).view(np.uint8)


_NUMBERS = (bool, int, float, type(None))


class _Dropped(NamedTuple):
    kind: type
    """bytes or str; object for all others."""
    alike: tuple[Any, ...]
    """(is tensor, dtype, shape): equal ones form one column. Empty for other types."""
    head: str
    """The value's dtype in a column."""
    data: tuple[int, int]
    """CRC-32C and number of bytes of an array's values."""
    whole: tuple[int, int] | None
    """CRC-32C and number of bytes that represent it in a list; None for types without bytes."""


class SlotColumns:
    """Takes the samples of a part's slots in any order. n_slots: slots in the part; those without a sample are padding.

    list_fields: fields whose column is a list, even if their arrays have one shape. Memory: about 200 bytes per value,
    plus the numbers.
    """

    def __init__(
        self,
        n_slots: int,
        framework: str,
        list_fields: frozenset[str] = frozenset(),
    ) -> None:
        self._n = n_slots
        self.framework = framework
        self.list_fields = list_fields
        self._padding: dict[str, Any] = {}  # field of `list_fields` -> its value at padding
        self._dropped: dict[str, dict[int, _Dropped]] = {}
        self._kept: dict[str, dict[int, Any]] = {}
        self._slots: set[int] = set()

    def add(self, slot: int, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample's values that do not depend on other slots, as in the batch."""
        self._slots.add(slot)
        values = {}
        for name, value in sample.items():
            dropped = self._dropped.setdefault(name, {})
            kept = self._kept.setdefault(name, {})
            if name in self.list_fields:
                self._padding[name] = self._convert(name, empty_like(value))
            elif _depends(value):
                kept[slot] = value
                continue
            values[name] = self._convert(name, value)
            dropped[slot] = _drop(value, values[name], self.framework)
        return values

    @property
    def names(self) -> list[str]:
        return list(self._dropped)

    def crcs(self) -> dict[str, int]:
        """Return field -> CRC-32C of the batch's column, as `tensor_crcs` does."""
        values = {name: self._crc(name) for name in self._dropped}
        return {name: crc for name, crc in values.items() if crc is not None}

    def crcs_of(self, slot: int, sample: Mapping[str, Any]) -> dict[str, int]:
        values = {}
        others = {}
        for name, value in sample.items():
            dropped = self._dropped[name].get(slot)
            if dropped is None:
                others[name] = value
            elif dropped.whole is not None:
                values[name] = dropped.whole[0]
        return values | tensor_crcs(others)

    def numbers(self) -> dict[int, dict[str, Any]]:
        """Return slot -> field -> value in the batch, for values that `add` did not return.

        A field that a sample lacks is None.
        """
        slots = sorted(self._slots - {EXAMPLE})
        converted: dict[int, dict[str, Any]] = {slot: {} for slot in slots}
        for name, dropped in self._dropped.items():
            if not dropped:
                column = self._column(name)
                for slot, values in converted.items():
                    values[name] = column[slot]
                continue
            for slot, values in converted.items():
                if slot not in dropped:
                    kept = self._kept[name].get(slot)
                    values[name] = self._convert(name, kept)
        return converted

    def _convert(self, name: str, value: Any) -> Any:
        """Return a value as the list of a batch holds it."""
        fields, _ = as_framework({name: [value]}, np.ones(1, bool), self.framework)
        return fields[name][0]

    def _column(self, name: str) -> Any:
        kept = self._kept[name]
        values: list[Any] = [PADDED] * self._n
        for slot in self._slots - {EXAMPLE}:
            values[slot] = kept.get(slot)
        examples = [kept.get(slot) for slot in sorted(self._slots)]
        column = collate_field(values, examples, self.framework)
        fields, _ = as_framework({name: column}, np.ones(1, bool), self.framework)
        return fields[name]

    def _crc(self, name: str) -> int | None:
        dropped = self._dropped[name]
        kept = self._kept[name]
        if not dropped:
            return tensor_crcs({name: self._column(name)}).get(name)
        has_all = dropped.keys() == self._slots
        column = None
        if has_all and name not in self.list_fields:
            column = self._rows(list(dropped.values()))
        if column is not None:
            _, row_nbytes = dropped[min(dropped)].data
            padding = (crc32c(bytes(row_nbytes)), row_nbytes)
            rows = [padding] * self._n
            for slot in dropped.keys() - {EXAMPLE}:
                rows[slot] = dropped[slot].data
            return _join_crcs(column, rows)
        kinds = set()
        if has_all:
            kinds = {value.kind for value in dropped.values()}
        padded = _value_crc(self._padding.get(name, padding_value(kinds)))
        parts: list[tuple[int, int] | None] = []
        for slot in range(self._n):
            if slot not in self._slots:
                parts.append(padded)
            elif slot in dropped:
                parts.append(dropped[slot].whole)
            else:
                parts.append(_value_crc(self._convert(name, kept.get(slot))))
        return _join_crcs(b"list %d " % self._n, parts)

    def _rows(self, values: list[_Dropped]) -> bytes | None:
        first = values[0]
        if not first.alike or any(one.alike != first.alike for one in values):
            return None
        return f"{first.head} {(self._n, *first.alike[2])} ".encode()


def _depends(value: Any) -> bool:
    if type(value) in _NUMBERS or isinstance(value, np.generic):
        return True
    if isinstance(value, np.ndarray):
        return value.size < 2 or not value.dtype.isnative
    return _is_tensor(value) and value.numel() < 2


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "pin_memory")  # only torch's tensors have that


def _drop(value: Any, converted: Any, framework: str) -> _Dropped:
    is_array = isinstance(value, np.ndarray) and not value.dtype.hasobject
    if not (is_array or (_is_tensor(value) and framework == "torch")):
        kind: type = object
        if type(value) in (bytes, str):
            kind = type(value)
        return _Dropped(kind, (), "", (0, 0), _value_crc(converted))
    head, values = pieces(converted)
    data = (crc32c(values), len(values))
    whole_crc = crc_appended(crc32c(head), *data)
    whole = (whole_crc, len(head) + len(values))
    alike = (not is_array, value.dtype, tuple(value.shape))
    return _Dropped(object, alike, str(converted.dtype), data, whole)


def _value_crc(value: Any) -> tuple[int, int] | None:
    crc = n = 0
    try:
        for piece in pieces(value):
            crc = crc32c(piece, crc)
            n = n + len(piece)
    except (TypeError, RecursionError):
        return None
    return crc, n


def _join_crcs(head: bytes, parts: Iterable[tuple[int, int] | None]) -> int | None:
    crc: int = crc32c(head)
    for part in parts:
        if part is None:
            return None
        crc = crc_appended(crc, *part)
    return crc
