"""Samples of foreign objects as rows, by shard and by their fields; keys and names that our format takes."""

import hashlib
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..dataset.names import MAX_MEMBER_BYTES, check_field, check_key, escape_key
from ..errors import InvalidField, InvalidKey, InvalidSample
from ..storage import ObjectInfo
from .formats.sample import ForeignSample

Int64s = np.ndarray[Any, np.dtype[np.int64]]
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_.-]")
_HIDDEN = re.compile("__[^/]*__(/|$)")


@dataclass(slots=True)
class Rows:
    """Rows of one shard that have the same fields: a part to be."""

    fields: tuple[str, ...]
    """Names, sorted."""
    source_keys: list[str] = field(default_factory=list)
    """Key of each row, as its format names it."""
    objects: list[str] = field(default_factory=list)
    """Key of each row's object."""
    metadata: list[Any] = field(default_factory=list)
    """Metadata of each row."""
    places: Any = field(default_factory=list)
    """int64 [rows, fields, 2]: offset in the shard, nbytes; a list of them until `rows_of` is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Objects that one index describes, and what the rest of the work needs of them."""

    name: str
    """Name behind the place: the key of the first object."""
    infos: tuple[ObjectInfo, ...]
    """The objects, by key."""
    offsets: tuple[int, ...]
    """First byte of each in the shard, in which they lie one behind the other."""
    nbytes: int
    """Bytes of them all."""


def shards_of(infos: Sequence[ObjectInfo], each: int) -> list[Shard]:
    """Return shards of at most `each` objects."""
    out = []
    for start in range(0, len(infos), each):
        some = tuple(infos[start : start + each])
        ends = np.cumsum([info.nbytes for info in some]).tolist()
        out.append(Shard(name=some[0].key, infos=some, offsets=(0, *ends[:-1]), nbytes=ends[-1]))
    return out


def rows_of(shard: Shard, samples: Sequence[Iterable[ForeignSample]], without: Container[str]) -> list[Rows]:
    """Return the rows of a shard, by the fields that they have, in the order of their first samples.

    samples: of each object. without: fields that are left out. Raises: as the format; InvalidField for a name that our
    format refuses.
    """
    kinds: dict[tuple[str, ...], Rows] = {}
    names: dict[str, str] = {}
    for info, start, some in zip(shard.infos, shard.offsets, samples, strict=True):
        for key, fields, metadata in some:
            mine = {
                names.get(name) or _field(names, name, info, key): span
                for name, span in fields.items()
                if name not in without
            }
            if len(mine) < len(fields) - sum(name in without for name in fields):
                raise InvalidSample(
                    f"{info.key}, sample {key!r}: of the fields {sorted(fields)} two would have one name; leave one of "
                    "them out (--without)"
                )
            kind = tuple(sorted(mine))
            if not kind:
                continue
            rows = kinds.get(kind)
            if rows is None:
                rows = kinds[kind] = Rows(fields=kind)
            rows.source_keys.append(key)
            rows.objects.append(info.key)
            rows.metadata.append(metadata)
            rows.places.append([(mine[name].offset + start, mine[name].nbytes) for name in kind])
    for rows in kinds.values():
        rows.places = np.array(rows.places, np.int64).reshape(len(rows.source_keys), len(rows.fields), 2)
    return list(kinds.values())


def _field(names: dict[str, str], name: str, info: ObjectInfo, key: str) -> str:
    """Return our name of a field, and keep it. Raises: InvalidField, with the sample."""
    try:
        names[name] = check_field(_FORBIDDEN.sub("_", name))
    except InvalidField as error:
        raise InvalidField(
            f"{info.key}, sample {key!r}: {error}. To register the rest, leave the field out: --without {name}"
        ) from error
    return names[name]


def key_of(source_key: str, fields: Sequence[str]) -> str:
    """Return our key of a sample: its own, escaped, or a hash of it where it would be too long. Raises: InvalidKey."""
    try:
        key = check_key(source_key)
    except InvalidKey:
        key = escape_key(source_key)
    longest = max(len(name) for name in fields)
    if len(key.encode()) + 1 + longest > MAX_MEMBER_BYTES or _HIDDEN.match(key):
        return hashlib.sha256(source_key.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return key


def keys_of(parts: Sequence[Rows], taken: Container[str]) -> list[list[str]]:
    """Return the keys of each part's rows. Keys that repeat, or are taken, have the object's name in front.

    taken: keys of the dataset that stay. Raises: InvalidKey.
    """
    plain = [[key_of(key, rows.fields) for key in rows.source_keys] for rows in parts]
    seen, twice = set[str](), set[str]()
    for keys in plain:
        for key in keys:
            (twice if key in seen or key in taken else seen).add(key)
    if not twice:
        return plain
    return [
        [
            key_of(f"{rows.objects[at]}/{rows.source_keys[at]}", rows.fields) if key in twice else key
            for at, key in enumerate(keys)
        ]
        for rows, keys in zip(parts, plain, strict=True)
    ]
