"""Count the raw objects that samples come from, and their locations."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .tally import Counts, NameTally

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_HOST = r"^(?P<source>[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*)"
_FOLDER = r"^(?P<folder>[^/]+)/"
_SECRETS = re.compile(r"//[^/@]*@")


class RawObjects:
    """Counts distinct raw objects by a 64-bit hash of their most specific name.

    Among ten million objects, the probability that two share a hash is 3 in a million.
    """

    COLUMNS = ("raw_sha256", "raw_uri", "raw_key", "subject")

    def __init__(self, columns: dict[str, Any]) -> None:
        names = ("raw_sha256", "raw_uri", "raw_key")
        self._name = next((name for name in names if columns.get(name, {}).get("type") == "string"), None)
        self._hashes: dict[int, list[Hashes]] = {}
        self._subjects: set[int] = set()
        self._has_subjects = False
        self._sources, self._folders, self._n = NameTally(), NameTally(), 0

    def add(self, kinds: np.ndarray[Any, Any], batch: pa.RecordBatch) -> None:
        """Count a batch of rows. kinds: kind code per row."""
        names = set(batch.schema.names)
        if self._name in names:
            self._n += len(batch)
            values = batch.column(self._name)
            for kind in np.unique(kinds).tolist():
                hashes = pc.unique(values.filter(pa.array(kinds == kind)).drop_null())
                self._hashes.setdefault(kind, []).append(_hashed(hashes))
        if "subject" in names:
            subjects = _hashed(pc.unique(batch.column("subject").drop_null()))
            self._has_subjects = self._has_subjects or len(subjects) > 0
            self._subjects.update(subjects.tolist())
        if "raw_key" in names:
            self._folders.add(pc.struct_field(pc.extract_regex(batch.column("raw_key"), _FOLDER), "folder"))
        if "raw_uri" in names:
            self._sources.add(
                _sources(batch.column("raw_uri"), batch["raw_key"] if "raw_key" in names else None)
            )

    def distinct(self, kind: int | None = None) -> int | None:
        """Return the number of raw objects in one kind or in all; None if no sample names one."""
        for code in self._hashes if kind is None else [kind]:
            self._hashes[code] = [_different(self._hashes.get(code, []))]
        pieces_of_kinds = [pieces[0] for code, pieces in self._hashes.items() if kind is None or code == kind]
        different = pieces_of_kinds[0] if len(pieces_of_kinds) == 1 else _different(pieces_of_kinds)
        return len(different) or None

    @property
    def subjects(self) -> int | None:
        return len(self._subjects) if self._has_subjects else None

    def sources(self, n_rows: int) -> Counts:
        """Return the sample count per raw location. Credentials are removed from locations."""
        return self._sources.result(n_rows)

    def folders(self, n_rows: int) -> Counts:
        """Return the sample count per first folder of the raw key."""
        return self._folders.result(n_rows)


def _different(pieces: Sequence[Hashes]) -> Hashes:
    # np.unique would need four times the memory.
    whole = np.concatenate([np.zeros(0, np.uint64), *pieces])
    whole.sort()
    first = np.ones(len(whole), bool)
    np.not_equal(whole[1:], whole[:-1], out=first[1:])
    return whole if first.all() else whole[first]


def _hashed(values: pa.Array) -> Hashes:
    digests = b"".join(
        hashlib.blake2b(value.encode(), digest_size=8).digest() for value in values.to_pylist()
    )
    return np.frombuffer(digests, np.uint64)


def _sources(uris: pa.Array, keys: pa.Array | None) -> pa.Array:
    """Return each URI without its key, or its scheme and host if there is no key."""
    hosts = pc.struct_field(pc.extract_regex(uris, _HOST), "source")
    places = pc.if_else(pc.is_valid(hosts), hosts, pc.if_else(pc.is_valid(uris), "local files", None))
    if keys is not None:
        length = pc.subtract(pc.utf8_length(uris), pc.utf8_length(keys)).to_numpy(zero_copy_only=False)
        out = np.array(places.to_pylist(), object)
        for n in np.unique(length[length > 0]).tolist():
            # Rows from one location share a length, so this loop runs over locations, not rows.
            rows = np.flatnonzero(length == n)
            examples = uris.take(pa.array(rows))
            front = pc.utf8_slice_codeunits(examples, 0, int(n))
            ends = pc.equal(pc.utf8_slice_codeunits(examples, int(n)), keys.take(pa.array(rows)))
            fits = ends.to_numpy(zero_copy_only=False).astype(bool)
            out[rows[fits]] = np.array(front.to_pylist(), object)[fits]
        places = pa.array(out.tolist(), pa.string())
    encoded = places.dictionary_encode()
    words = [_public(word) for word in encoded.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(encoded.indices)


def _public(place: str) -> str:
    return _SECRETS.sub("//", place.partition("?")[0]).rstrip("/") or "/"
