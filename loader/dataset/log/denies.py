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

COMPARED_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "raw": ("raw_key", "raw_uri", "raw_sha256"),
    "sample": ("key", "source_key"),
    "subject": ("subject",),
}
"""Kind of target -> columns of the samples tables that are compared with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A value to deny. Raises: InvalidName."""

    kind: str
    """A kind of `COMPARED_COLUMNS`."""
    value: str
    """Value to be denied."""
    dataset: str = ""
    """Dataset; "" for all, which is invalid for a sample key."""

    def __post_init__(self) -> None:
        if self.kind not in COMPARED_COLUMNS:
            accepted = ", ".join(sorted(COMPARED_COLUMNS))
            message = f"a takedown of kind {self.kind!r}; accepted: {accepted}"
            raise InvalidName(message, what="kind", given=self.kind, accepted=sorted(COMPARED_COLUMNS))
        check_words(f"{self.kind} to take down", self.value)
        check_words("dataset", self.dataset)
        if not self.value.strip():
            raise InvalidName(
                f"a takedown of an empty {self.kind}; name the value to take down",
                what=f"{self.kind} to take down",
                given=self.value,
                accepted="text that is not blank",
            )
        if self.kind == "sample" and not self.dataset:
            raise InvalidName(
                f"a takedown of sample {self.value!r} of no dataset: other datasets may have that key; name one",
                what="dataset",
                given=self.dataset,
            )


def file_names(key: str, uri: str, files: Iterable[str]) -> list[str]:
    """Return the keys and URIs of a raw object's files. A takedown of kind raw may name any of them.

    key, uri: the object's. files: keys in the same location.
    """
    location = uri.removesuffix(key)
    names: list[str] = []
    for file in files:
        uri_of_file = f"{location}{file}"
        names += [file, uri_of_file]
    return names


def keyed_hash(salt: str, kind: str, dataset: str, value: str) -> str:
    """Return the hash of a value, as the module describes it."""
    message = "\0".join((kind, dataset, value)).encode()
    digest = hmac.digest(bytes.fromhex(salt), message, "sha256")
    return digest.hex()


def hashes(salt: str, targets: Sequence[Target]) -> list[str]:
    """Return the distinct hashes of targets, ascending."""
    distinct: set[str] = set()
    for target in targets:
        value_hash = keyed_hash(
            salt,
            target.kind,
            target.dataset,
            target.value,
        )
        distinct.add(value_hash)
    return sorted(distinct)


class DenyList:
    """The takedowns that apply to a dataset's samples. Costs two hashes per distinct value and salt."""

    def __init__(self, denies: Iterable[Deny], dataset: str) -> None:
        self._dataset = dataset
        # (salt, kind) -> hash -> number of its entry. If several takedowns deny one value, the first is reported.
        self._entries: dict[tuple[str, str], dict[str, int]] = {}
        for deny in denies:
            kinds = deny.scope.split()
            for kind in COMPARED_COLUMNS:
                entries = self._entries.setdefault((deny.salt, kind), {})
                if kind not in kinds:
                    continue
                # An entry does not say which of its kinds a hash has: it counts for each.
                for value_hash in deny.hashes:
                    entries.setdefault(value_hash, deny.n)

    @property
    def columns(self) -> list[str]:
        """Columns that `denying_entries` compares, by name."""
        names: set[str] = set()
        for kind_columns in COMPARED_COLUMNS.values():
            names.update(kind_columns)
        return sorted(names)

    def denying_entry(self, kind: str, value: str) -> int:
        """Return the number of the log entry that denies the value, 0 if there is none."""
        for (salt, hashed_kind), entries in self._entries.items():
            # Without entries there is nothing to compare, and a hash costs more than everything else here.
            if hashed_kind != kind or not entries:
                continue
            for dataset in ("", self._dataset):  # "": for all datasets
                value_hash = keyed_hash(salt, kind, dataset, value)
                entry = entries.get(value_hash)
                if entry is not None:
                    return entry
        return 0

    def denying_entries(self, keys: pa.Table) -> Int64s:
        """Return int64 [rows of `keys`]: number of the log entry that denies the sample, 0 if there is none.

        keys: a table with some of `columns`.
        """
        numbers = np.zeros(keys.num_rows, np.int64)
        for kind, names in COMPARED_COLUMNS.items():
            for name in names:
                if name not in keys.column_names:
                    continue
                column = keys[name]
                if pa.types.is_string(column.type):  # a column of nulls only has another type
                    column_numbers = self._column_entries(kind, column)
                    is_free = numbers == 0  # no earlier column denies the row
                    np.copyto(numbers, column_numbers, where=is_free)
        return numbers

    def _column_entries(self, kind: str, column: pa.ChunkedArray) -> Int64s:
        """Return int64 [rows]: number of the log entry that denies the column's value, 0 if there is none."""
        import pyarrow.compute as pc  # 40 ms, saved for a log without takedowns

        values = pc.unique(column).drop_null()
        numbers = [self.denying_entry(kind, value) for value in values.to_pylist()]
        if not any(numbers):
            return np.zeros(len(column), np.int64)
        # [distinct values + 1]: the last is for rows of null
        value_entries = np.array([*numbers, 0], np.int64)
        # [rows]: number of the row's value among the distinct ones
        indices = pc.index_in(column, value_set=values)
        value_numbers = indices.fill_null(len(values)).to_numpy()
        row_entries: Int64s = value_entries[value_numbers]
        return row_entries


_TRIES = 1000  # a key of one letter has 36 placeholders
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_ALPHABETS = (_LETTERS, f"{_LETTERS}{_LETTERS[:26].upper()}-~+=,;!@#$&()[]^")
"""Characters of placeholders; the first alphabet with a free key is used."""
_DIGEST_BYTES = 32


def placeholder(salt: str, key: str, used: set[str]) -> str:
    """Return a deterministic placeholder for a denied sample's key. It differs from the key and all of `used`.

    It has as many bytes and its '/' at the same positions, so that no byte of a shard moves. Raises: InvalidKey if
    every key of that length is in use.
    """
    key_bytes = key.encode()
    n_bytes = len(key_bytes)
    for alphabet in _ALPHABETS:
        for attempt in range(_TRIES):
            characters = _pseudorandom(salt, f"{attempt}\0{key}", n_bytes, alphabet)
            for position, byte in enumerate(key_bytes):
                if byte == ord("/"):
                    characters[position] = "/"
            candidate = "".join(characters)
            if candidate != key and candidate not in used:
                return candidate
    message = (
        f"of the keys of {n_bytes} bytes in one part none is free as a placeholder for a takedown; publish the "
        "samples anew under longer keys, and retire the versions that have these"
    )
    raise InvalidKey(message, what="key", given=key)


def _pseudorandom(salt: str, message: str, n: int, alphabet: str) -> list[str]:
    """Return n characters that follow from `message`, by HMAC in counter mode."""
    salt_bytes = bytes.fromhex(salt)
    n_blocks = -(-n // _DIGEST_BYTES)
    stream = b""
    for block in range(n_blocks):
        block_message = f"key\0{block}\0{message}".encode()
        stream += hmac.digest(salt_bytes, block_message, "sha256")
    characters: list[str] = []
    for byte in stream[:n]:
        number = byte % len(alphabet)
        characters.append(alphabet[number])
    return characters
