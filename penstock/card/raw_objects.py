"""Count the raw objects of a version's samples, their subjects, and where they lie."""

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .tally import Counts, NameTally

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Codes = np.ndarray[Any, np.dtype[np.int16]]

_HOST = r"^(?P<source>[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*)"
_FOLDER = r"^(?P<folder>[^/]+)/"
_SECRETS = re.compile(r"//[^/@]*@")


class RawObjects:
    """Distinct raw objects by a 64-bit hash of their most specific name.

    Among ten million, the probability that two share a hash is 3 in a million.
    """

    COLUMNS = ("raw_sha256", "raw_uri", "raw_key", "subject")

    def __init__(self, columns: dict[str, Any]) -> None:
        """columns: the manifest's, by name."""
        self._name: str | None = None  # the most specific name that the version has
        # From the least to the most specific: the last one that exists counts.
        for name in ("raw_key", "raw_uri", "raw_sha256"):
            column = columns.get(name, {})
            if column.get("type") == "string":
                self._name = name
        # kind's code -> hashes of its objects' names, one array per batch until `distinct` joins them
        self._hashes: dict[int, list[Hashes]] = {}
        self._subjects: set[int] = set()  # hashes of the subjects' names
        self._sources = NameTally()
        self._folders = NameTally()

    def add(self, kinds: Codes, batch: pa.RecordBatch) -> None:
        """Count rows. kinds: code per row."""
        names = batch.schema.names
        if self._name in names:
            values = batch.column(self._name)
            self._add_names(kinds, values)
        if "subject" in names:
            subjects = batch.column("subject")
            different_subjects = pc.unique(subjects.drop_null())
            hashes = _hashes(different_subjects)
            self._subjects.update(hashes.tolist())
        keys = None
        if "raw_key" in names:
            keys = batch.column("raw_key")
            matches = pc.extract_regex(keys, _FOLDER)
            folders = pc.struct_field(matches, "folder")
            self._folders.add(folders)
        if "raw_uri" in names:
            uris = batch.column("raw_uri")
            sources = _sources(uris, keys)
            self._sources.add(sources)

    def _add_names(self, kinds: Codes, values: pa.Array) -> None:
        """Add the hashes of the objects' names [rows], by kind."""
        different_kinds = np.unique(kinds)
        for kind in different_kinds.tolist():
            is_of_kind = pa.array(kinds == kind)  # [rows]
            names = values.filter(is_of_kind)
            different_names = pc.unique(names.drop_null())
            hashes = _hashes(different_names)
            pieces = self._hashes.setdefault(kind, [])
            pieces.append(hashes)

    def distinct(self, kind: int | None = None) -> int | None:
        """Return the number in one kind or in all; None if no sample names one."""
        if kind is None:
            kinds = list(self._hashes)
        else:
            kinds = [kind]
        pieces_of_kinds = []
        for code in kinds:
            pieces = self._hashes.get(code, [])
            hashes = _distinct(pieces)
            # The result replaces the pieces: half the memory, and the next call is fast.
            self._hashes[code] = [hashes]
            pieces_of_kinds.append(hashes)
        if len(pieces_of_kinds) == 1:
            (hashes,) = pieces_of_kinds
        else:
            hashes = _distinct(pieces_of_kinds)
        return len(hashes) or None

    @property
    def subjects(self) -> int | None:
        """Distinct subjects; None if no sample names one."""
        return len(self._subjects) or None

    def sources(self, n_rows: int) -> Counts:
        """Return raw location without credentials -> samples."""
        return self._sources.result(n_rows)

    def folders(self, n_rows: int) -> Counts:
        """Return first folder of the raw key -> samples."""
        return self._folders.result(n_rows)


def _distinct(pieces: Sequence[Hashes]) -> Hashes:
    """Return each hash once, ascending."""
    # np.unique would need four times the memory.
    nothing = np.zeros(0, np.uint64)
    whole = np.concatenate([nothing, *pieces])
    whole.sort()
    is_first = np.ones(len(whole), bool)
    np.not_equal(whole[1:], whole[:-1], out=is_first[1:])
    if is_first.all():
        return whole
    return whole[is_first]


def _hashes(names: pa.Array) -> Hashes:
    """Return uint64 [names]. names: no nulls."""
    digests = []
    for name in names.to_pylist():
        digest = hashlib.blake2b(name.encode(), digest_size=8)
        digests.append(digest.digest())
    joined = b"".join(digests)
    return np.frombuffer(joined, np.uint64)


def _sources(uris: pa.Array, keys: pa.Array | None) -> pa.Array:
    """Return where each sample's raw object lies, without credentials; null without a URI.

    The location is the URI without the raw key at its end. Without that key it is scheme and host, or "local files".

    keys: raw keys [rows]; None if the table has none.
    """
    matches = pc.extract_regex(uris, _HOST)
    hosts = pc.struct_field(matches, "source")
    has_uri = pc.is_valid(uris)
    has_host = pc.is_valid(hosts)
    local = pc.if_else(has_uri, "local files", None)
    sources = pc.if_else(has_host, hosts, local)
    if keys is not None:
        sources = _without_keys(uris, keys, sources)
    # A version has few sources: each is cleaned once, not once per row.
    encoded = sources.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    public_names = [_public(name) for name in names]
    dictionary = pa.array(public_names, pa.string())
    return dictionary.take(encoded.indices)


def _without_keys(uris: pa.Array, keys: pa.Array, sources: pa.Array) -> pa.Array:
    """Return the sources, replaced by the URI without its key if the URI ends with the key."""
    uri_length = pc.utf8_length(uris)
    key_length = pc.utf8_length(keys)
    difference = pc.subtract(uri_length, key_length)
    length = difference.to_numpy(zero_copy_only=False)  # [rows]: characters before the key
    locations = np.array(sources.to_pylist(), object)
    # Rows from one location share a length, so this loop runs over locations, not rows.
    lengths = np.unique(length[length > 0])
    for n in lengths.tolist():
        n_before = int(n)  # a float if a row lacks a URI or a key: numpy has no null integers
        rows = np.flatnonzero(length == n)
        indices = pa.array(rows)
        uris_of_length = uris.take(indices)
        keys_of_length = keys.take(indices)
        fronts = pc.utf8_slice_codeunits(uris_of_length, 0, n_before)
        ends = pc.utf8_slice_codeunits(uris_of_length, n_before)
        is_key = pc.equal(ends, keys_of_length)
        fits = is_key.to_numpy(zero_copy_only=False)
        fits = fits.astype(bool)
        fronts_of_length = np.array(fronts.to_pylist(), object)
        fitting_rows = rows[fits]
        locations[fitting_rows] = fronts_of_length[fits]
    return pa.array(locations.tolist(), pa.string())


def _public(place: str) -> str:
    """Return a location without signature and credentials."""
    path, _, _ = place.partition("?")  # a query may hold a signature
    public = _SECRETS.sub("//", path)
    return public.rstrip("/") or "/"
