"""Takedowns of samples: keyed hashes in the log, compared with values in the samples tables.

    HMAC-SHA256(key = the entry's salt, message = kind NUL dataset NUL value), hex

kind: raw (compared with raw_key, raw_uri, raw_sha256), sample (key, source_key), subject (subject). dataset: "" for
all. The entry contains the salt, because every writer must compare.
"""

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import InvalidKey, InvalidName
from ..names import check_words
from .state import Deny

Int64s = np.ndarray[Any, np.dtype[np.int64]]

TESTED: Mapping[str, tuple[str, ...]] = {
    "raw": ("raw_key", "raw_uri", "raw_sha256"),
    "sample": ("key", "source_key"),
    "subject": ("subject",),
}
"""Kind of target -> the columns compared with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A value to deny. Raises: InvalidName."""

    kind: str
    """A kind of `TESTED`."""
    value: str
    """Value to be denied."""
    dataset: str = ""
    """Dataset; "" for all, which is invalid for a sample key."""

    def __post_init__(self) -> None:
        if self.kind not in TESTED:
            raise InvalidName(f"a takedown of kind {self.kind!r}; accepted: {', '.join(sorted(TESTED))}")
        check_words(f"{self.kind} to take down", self.value)
        check_words("dataset", self.dataset)
        if not self.value.strip():
            raise InvalidName(f"a takedown of an empty {self.kind}; name the value to take down")
        if self.kind == "sample" and not self.dataset:
            raise InvalidName(
                f"a takedown of sample {self.value!r} of no dataset: other datasets may have that key; name one"
            )


def names_of_files(key: str, uri: str, files: Iterable[str]) -> list[str]:
    """Return the keys and URIs of a raw object's files. A takedown of kind raw may name any of them.

    key, uri: the object's. files: keys in the same location.
    """
    place = uri.removesuffix(key)
    return [name for file in files for name in (file, f"{place}{file}")]


def keyed_hash(salt: str, kind: str, dataset: str, value: str) -> str:
    message = "\0".join((kind, dataset, value)).encode()
    return hmac.digest(bytes.fromhex(salt), message, "sha256").hex()


class DenyList:
    """The takedowns that apply to a dataset's samples. Costs two hashes per distinct value and salt."""

    def __init__(self, denies: Iterable[Deny], dataset: str) -> None:
        self._dataset = dataset
        # (salt, kind) -> hash -> entry: if several takedowns deny one value, the first is reported.
        self._entries: dict[tuple[str, str], dict[str, int]] = {}
        for deny in denies:
            for kind in TESTED:
                known = self._entries.setdefault((deny.salt, kind), {})
                for hashed in deny.hashes if kind in deny.scope.split() else ():
                    known.setdefault(hashed, deny.n)

    @property
    def columns(self) -> list[str]:
        return sorted({name for names in TESTED.values() for name in names})

    def entry_of(self, kind: str, value: str) -> int:
        for (salt, of), known in self._entries.items():
            for dataset in ("", self._dataset) if of == kind and known else ():
                if entry_n := known.get(keyed_hash(salt, kind, dataset, value)):
                    return entry_n
        return 0

    def entries(self, keys: pa.Table) -> Int64s:
        """Return int64 [rows of `keys`]: number of the log entry that denies the sample, 0 if there is none.

        keys: a table with some of `columns`.
        """
        out = np.zeros(keys.num_rows, np.int64)
        for kind, names in TESTED.items():
            for name in names:
                if name in keys.column_names and pa.types.is_string(keys.schema.field(name).type):
                    self._mark(out, kind, keys[name])
        return out

    def _mark(self, out: Int64s, kind: str, column: pa.ChunkedArray) -> None:
        import pyarrow.compute as pc  # 40 ms, saved for a log without takedowns

        values = pc.unique(column).drop_null()
        marks = np.array([self.entry_of(kind, value) for value in values.to_pylist()], np.int64)
        if marks.any():
            at = pc.index_in(column, value_set=values).fill_null(len(values)).to_numpy()
            entry = np.append(marks, 0)[at]
            np.copyto(out, entry, where=out == 0)


def placeholder(salt: str, key: str, used: set[str]) -> str:
    """Return a deterministic placeholder for a denied sample's key. It differs from the key and all of `used`.

    It has as many bytes and its '/' at the same positions, so that no byte of a shard moves. Raises: InvalidKey if
    every key of that length is in use.
    """
    raw = key.encode()
    for characters in _CHARACTERS:
        for attempt in range(_TRIES):
            letters = _stream(salt, f"{attempt}\0{key}", len(raw), characters)
            candidate = "".join("/" if byte == ord("/") else letters[at] for at, byte in enumerate(raw))
            if candidate != key and candidate not in used:
                return candidate
    raise InvalidKey(
        f"of the keys of {len(raw)} bytes in one part none is free as a placeholder for a takedown; publish the "
        "samples anew under longer keys, and retire the versions that have these"
    )


_TRIES = 1000  # a key of one letter has 36 placeholders
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_CHARACTERS = (_LETTERS, f"{_LETTERS}{_LETTERS[:26].upper()}-~+=,;!@#$&()[]^")
"""Alphabets for placeholders; the first with a free key is used."""


def _stream(salt: str, message: str, n: int, characters: str) -> str:
    blocks = (
        hmac.digest(bytes.fromhex(salt), f"key\0{block}\0{message}".encode(), "sha256")
        for block in range(-(-n // 32))
    )
    return "".join(characters[byte % len(characters)] for block in blocks for byte in block)[:n]


def hashes(salt: str, targets: Sequence[Target]) -> list[str]:
    return sorted({keyed_hash(salt, one.kind, one.dataset, one.value) for one in targets})
