"""The index of an MDS dataset, `index.json`: its shards in order, and the columns of each."""

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
"""Encoding of one number -> our word for its dtype."""
NUMBERS_AS_TEXT = ("str_int", "str_float", "str_decimal")
WORDS = {"str": "txt", "json": "json", "jpeg": "jpg", "jpeg_array": "jpg", "jpegarray": "jpg", "png": "png"}
"""Encoding -> last word of the field."""
BYTES = ("bytes", "pkl", "pil", "list[pil]", "list[jpeg]", "list[png]")
"""Encodings whose bytes are the field as they are."""
_ARRAY = re.compile(
    r"ndarray(:(?P<dtype>u?int(8|16|32|64)|float(16|32|64))(:(?P<shape>[1-9]\d*(,[1-9]\d*)*))?)?"
)


class Column(NamedTuple):
    """A column of a shard."""

    name: str
    """Its name."""
    encoding: str
    """Its encoding, without the dtype and shape of an array."""
    size: int
    """Bytes of each value, 0 where they vary."""
    word: str
    """Word of the dtype of a number, or of an array's; "" where each array says it."""
    shape: tuple[int, ...]
    """Shape of every array, () where each array says it."""


class MdsShard(NamedTuple):
    """A shard, as the index has it."""

    key: str
    """Key of its object."""
    nbytes: int
    """Size in bytes."""
    n_samples: int
    """Number of samples."""
    first: int
    """Number of its first sample in the dataset."""
    columns: tuple[Column, ...]
    """Columns, in the order of their values."""


def shards_in(data: bytes, name: str) -> list[MdsShard]:
    """Return the shards of an index. name: of it, for errors.

    Raises: Corrupt for an index that is damaged; InvalidStore for compressed shards.
    """
    try:
        listed = parse_json_object(data)["shards"]
        if not isinstance(listed, list):
            raise TypeError(f"shards is a {type(listed).__name__}, no list")
    except (DamagedJson, KeyError, TypeError) as error:
        raise Corrupt(f"{name}, byte 0: it is no index of MDS shards: {error!r}") from error
    found, first = dict[str, MdsShard](), 0
    for number, one in enumerate(listed):
        try:
            shard = _shard(one, first)
        except (KeyError, TypeError, ValueError) as error:
            raise Corrupt(f"{name}: shards[{number}] is not of MDS, version 2: {error!r}") from error
        if one.get("compression") or one.get("zip_data"):
            raise InvalidStore(
                f"{name}: {shard.key} is compressed: no sample can be read by itself. Copy its samples "
                "(penstock import mds-compressed), or write the dataset again with MDSWriter(compression=None)"
            )
        if shard.key in found:
            raise Corrupt(f"{name}: shards[{number}] is {shard.key}, and it comes twice")
        found[shard.key] = shard
        first += shard.n_samples
    return list(found.values())


def _shard(one: Any, first: int) -> MdsShard:
    """Return a shard. Raises: KeyError; TypeError; ValueError."""
    if (one["format"], one["version"]) != ("mds", 2):
        raise ValueError(f"format {one['format']!r}, version {one['version']!r}")
    raw, told = one["raw_data"], (one["column_names"], one["column_encodings"], one["column_sizes"])
    if not all(type(names) is list for names in told):
        raise TypeError(f"columns {told!r}")
    numbers = (raw["bytes"], one["samples"])
    if not all(type(n) is int and 0 <= n < 2**32 for n in numbers) or type(raw["basename"]) is not str:
        raise ValueError(f"raw_data {raw!r}, samples {one['samples']!r}")
    columns = tuple(_column(*column) for column in zip(*told, strict=True))
    if len({column.name for column in columns}) < len(columns) or not columns:
        raise ValueError(f"column_names {told[0]!r}")
    return MdsShard(raw["basename"], *numbers, first, columns)


def _column(name: Any, encoding: Any, size: Any) -> Column:
    """Return a column. Raises: TypeError; ValueError where its size is not that of its encoding."""
    array = _ARRAY.fullmatch(encoding)
    word, wanted = "", 0
    shape: tuple[int, ...] = ()
    if array:
        word = SCALARS[array["dtype"]] if array["dtype"] else ""
        shape = tuple(map(int, array["shape"].split(","))) if array["shape"] else ()
        wanted = math.prod(shape) * int(word[1:]) if shape else 0
    elif encoding in SCALARS:
        word = SCALARS[encoding]
        wanted = int(word[1:])
    elif encoding not in (*WORDS, *BYTES, *NUMBERS_AS_TEXT):
        raise ValueError(f"encoding {encoding!r} of column {name!r}")
    if type(name) is not str or not name or type(size) not in (int, type(None)) or (size or 0) != wanted:
        raise ValueError(f"column {name!r} of {encoding!r} has the size {size!r}, not {wanted or None}")
    return Column(name, "ndarray" if array else encoding, wanted, word, shape)
