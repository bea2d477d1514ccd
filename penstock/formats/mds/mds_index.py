"""Read the index of an MDS dataset, `index.json`: its shards in order, and the columns of each."""

import math
import re
from typing import Any, NamedTuple

from loader.errors import Corrupt, InvalidStore
from loader.json_text import DamagedJson, parse_json_object

SCALARS = {
    "int": "i8",
    **{f"{sign}int{8 * n}": f"{kind}{n}" for sign, kind in (("", "i"), ("u", "u")) for n in (1, 2, 4, 8)},
    **{f"float{8 * n}": f"f{n}" for n in (2, 4, 8)},
}
"""Encoding of one number -> penstock's word for its dtype."""
NUMBERS_AS_TEXT = ("str_int", "str_float", "str_decimal")
WORDS = {"str": "txt", "json": "json", "jpeg": "jpg", "jpeg_array": "jpg", "jpegarray": "jpg", "png": "png"}
"""Encoding -> last word of the field."""
BYTES = ("bytes", "pkl", "pil", "list[pil]", "list[jpeg]", "list[png]")
"""Encodings whose bytes become the field unchanged."""
_ARRAY = re.compile(
    r"ndarray(:(?P<dtype>u?int(8|16|32|64)|float(16|32|64))(:(?P<shape>[1-9]\d*(,[1-9]\d*)*))?)?"
)


class MdsColumn(NamedTuple):
    """A column of a shard."""

    name: str
    """The column's name."""
    encoding: str
    """Encoding, without the dtype and shape of an array."""
    size: int
    """Bytes of each value, 0 if they vary."""
    word: str
    """Word of the dtype of a number or an array; "" if each array has its own."""
    shape: tuple[int, ...]
    """Shape of every array; () if each array has its own."""


class MdsShard(NamedTuple):
    """A shard, from the index."""

    key: str
    """Key of its object."""
    nbytes: int
    """Size in bytes."""
    n_samples: int
    """Number of samples."""
    first: int
    """Number of its first sample in the dataset."""
    columns: tuple[MdsColumn, ...]
    """Columns, in the order of their values."""


def shards_in(data: bytes, name: str) -> list[MdsShard]:
    """Return the shards of an index. name: of it, for errors.

    Raises: Corrupt for a damaged index; InvalidStore for compressed shards.
    """
    try:
        listed = parse_json_object(data)["shards"]
        if not isinstance(listed, list):
            raise TypeError(f"shards is a {type(listed).__name__}, no list")
    except (DamagedJson, KeyError, TypeError) as error:
        raise Corrupt(f"{name}, byte 0: it is no index of MDS shards: {error!r}") from error
    shards, first = dict[str, MdsShard](), 0
    for number, entry in enumerate(listed):
        try:
            shard = _shard(entry, first)
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"{name}: shards[{number}] is not of MDS, version 2: {error!r}") from error
        if entry.get("compression") or entry.get("zip_data"):
            raise InvalidStore(
                f"{name}: {shard.key} is compressed: no sample can be read by itself. Copy its samples "
                "(penstock import mds-compressed), or write the dataset again with MDSWriter(compression=None)"
            )
        if shard.key in shards:
            raise Corrupt(f"{name}: shards[{number}] is {shard.key}, and it comes twice")
        shards[shard.key] = shard
        first += shard.n_samples
    return list(shards.values())


def _shard(entry: Any, first: int) -> MdsShard:
    if (entry["format"], entry["version"]) != ("mds", 2):
        raise ValueError(f"format {entry['format']!r}, version {entry['version']!r}")
    raw, column_lists = (
        entry["raw_data"],
        (entry["column_names"], entry["column_encodings"], entry["column_sizes"]),
    )
    if not all(type(names) is list for names in column_lists):
        raise TypeError(f"columns {column_lists!r}")
    numbers = (raw["bytes"], entry["samples"])
    if not all(type(n) is int and 0 <= n < 2**32 for n in numbers) or type(raw["basename"]) is not str:
        raise ValueError(f"raw_data {raw!r}, samples {entry['samples']!r}")
    columns = tuple(_column(*column) for column in zip(*column_lists, strict=True))
    if len({column.name for column in columns}) < len(columns) or not columns:
        raise ValueError(f"column_names {column_lists[0]!r}")
    return MdsShard(raw["basename"], *numbers, first, columns)


def _column(name: Any, encoding: Any, size: Any) -> MdsColumn:
    array = _ARRAY.fullmatch(encoding)
    word, expected = "", 0
    shape: tuple[int, ...] = ()
    if array:
        word = SCALARS[array["dtype"]] if array["dtype"] else ""
        shape = tuple(map(int, array["shape"].split(","))) if array["shape"] else ()
        expected = math.prod(shape) * int(word[1:]) if shape else 0
    elif encoding in SCALARS:
        word = SCALARS[encoding]
        expected = int(word[1:])
    elif encoding not in (*WORDS, *BYTES, *NUMBERS_AS_TEXT):
        raise ValueError(f"encoding {encoding!r} of column {name!r}")
    if type(name) is not str or not name or type(size) not in (int, type(None)) or (size or 0) != expected:
        raise ValueError(f"column {name!r} of {encoding!r} has the size {size!r}, not {expected or None}")
    return MdsColumn(name, "ndarray" if array else encoding, expected, word, shape)
