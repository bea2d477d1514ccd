"""Samples of a version that fields, a predicate and slices select, and the stored bitmaps of these selections.

views/<hash>.parquet      first_ordinal, bits, crc32c; one row per `CHUNK_BITS` ordinals
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, FieldNotFound, Forbidden, ObjectNotFound, StoreError
from ...modalities.array import clock_field
from ...storage.requests import retry_corrupt
from ...storage.threads import lock
from ..log.entries import canonical
from ..reading.sample_places import Int64s
from ..reading.version_shards import VersionShards
from ..shards.bitmap import Bools, SelectTable, pack, unpack
from ..shards.shard import crc32c
from ..tables.parquet import parse_stored, table_bytes

if TYPE_CHECKING:
    from .slice_members import SliceTerm
    from .view_columns import AskedColumns, Classes

logger = logging.getLogger(__name__)
CHUNK_BITS = 2**20
"""Ordinals per row of a stored view: 128 KiB of bitmap."""


class ViewSamples:
    """The samples of a view: what needs no other view of the version."""

    version: VersionShards
    """Version that has the samples."""
    fields: tuple[str, ...]
    """Names of the fields to read, in the order requested."""
    predicate: str | None
    """SQL expression that selects the samples; None for all."""
    where_present: bool
    """True leaves out samples of parts that lack one of the fields; False rejects such fields."""
    first: int
    """First live ordinal of the version in the view (see `since`)."""
    columns: "dict[str, Classes]"
    """Column of the samples table that batches have -> class names, or None for its values."""
    slices: "tuple[SliceTerm, ...]"
    """Slices that the samples are in, or outside of."""

    def __init__(
        self,
        version: VersionShards,
        fields: Sequence[str],
        predicate: str | None,
        where_present: bool = False,
        first: int = 0,
        columns: "AskedColumns" = (),
        slices: "Sequence[SliceTerm]" = (),
    ) -> None:
        self.version = version
        self.predicate = predicate
        self.where_present = where_present
        self.first = first
        self.slices = tuple(slices)
        for field in fields:
            if not isinstance(field, str):
                raise FieldNotFound(
                    f"select({field!r}): names of fields are needed, each an argument: select('jpg', 'cls')",
                    what="field",
                    given=field,
                    accepted="names of fields",
                )
        self.fields = tuple(dict.fromkeys(fields))
        self.columns = self._check_columns(columns)
        self._groups = sorted({version.group_of(field) for field in self.fields})
        self._lock = lock()
        self._members: SelectTable | None = None
        self._partial: list[str] = []  # groups that some parts lack
        n_parts = version.manifest["n_parts"]
        for group in self._groups:
            if version.manifest["groups"][group]["n_parts"] < n_parts:
                self._partial.append(group)
        if self._partial and not where_present:
            raise FieldNotFound(self._missing_share(), what="groups", where=version.name, given=self._partial)

    def _but(self, **changes: Any) -> Self:
        """Return this view with other arguments."""
        arguments: dict[str, Any] = {
            "version": self.version,
            "fields": self.fields,
            "predicate": self.predicate,
            "where_present": self.where_present,
            "first": self.first,
            "columns": self.columns,
            "slices": self.slices,
        }
        return type(self)(**(arguments | changes))

    def _check_columns(self, columns: "AskedColumns") -> "dict[str, Classes]":
        if not columns and isinstance(columns, tuple | list | dict):
            return {}
        from .view_columns import check_columns  # reads tables, which most views need not

        return check_columns(self.version, columns, self.fields)

    def where(self, predicate: str) -> Self:
        """Return the samples of this view for which an SQL expression is also true. Raises: FieldNotFound."""
        from .samples_table import check_names

        check_names(self.version, predicate)
        if self.predicate:
            predicate = f"({self.predicate}) AND ({predicate})"
        return self._but(predicate=predicate)

    def of_version(self, version: VersionShards) -> Self:
        """Return a view of another version with the same fields, columns, predicate and slices.

        Raises: FieldNotFound.
        """
        slices = []
        if self.slices:
            from .slice_members import version_term

            slices = [version_term(version, term) for term in self.slices]
        return self._but(version=version, first=0, slices=slices)

    def from_first(self, first: int) -> Self:
        """Return the samples of this view from live ordinal `first` of the version on."""
        view = self._but(first=first)
        if self.is_filtered:
            view._members = self._table
        return view

    def narrowed(self, predicate: str, members: Bools) -> Self:
        """Return `where(predicate)` for a caller that has evaluated it.

        members: bool [len(version)], True for the samples of this view that satisfy the predicate.
        """
        view = self.where(predicate)
        if self.first:
            # `members` lacks the samples before `first`. A stored table has them: views with any `first` share it.
            return view
        saved = view._load()
        if saved is None:
            saved = view._keep_members(members)
        view._members = saved
        return view

    def clocks(self, fields: Iterable[str]) -> dict[str, str | None]:
        """Return field -> the field with its times; None for none."""
        return {field: clock_field(field, self.version.fields, self.version.facts) for field in fields}

    def members(self) -> Bools:
        """Return bool [len(version)]: True for a live ordinal in the view."""
        n = len(self.version)
        if self.is_filtered:
            members = unpack(self._table.packed(), n)
        else:
            members = np.ones(n, bool)
        members[: self.first] = False
        return members

    def __len__(self) -> int:
        if self.is_filtered:
            return len(self._table) - self._n_skipped
        return len(self.version) - self._n_skipped

    @property
    def id(self) -> str:
        """The content hash of L0: covers version and selection, not the fields."""
        if self.first:
            return self._id({"first": self.first})
        return self._id({})

    @property
    def identity(self) -> str:
        """The version id, which digests combine with version ordinals."""
        return self.version.id

    @property
    def mean_sample_bytes(self) -> int:
        """Mean payload bytes of the selected fields of one sample, rounded up."""
        total = 0
        for group in self._groups:
            body = self.version.manifest["groups"][group]
            chosen = sum(n for field, n in body["field_nbytes"].items() if field in self.fields)
            total += -(-chosen // max(body["n_rows"], 1))
        return total

    @property
    def decoded_chunk(self) -> tuple[int, int] | None:
        """(average samples per chunk, decoded bytes per chunk) of a registered table, or None."""
        tables = [one for one in self.version.manifest.get("foreign", ()) if "chunk_rows" in one]
        fields = {field for one in tables for field in one["chunk_fields"]}.intersection(self.fields)
        if not fields:
            return None
        rows = max(one["chunk_rows"] for one in tables)
        chunked = ViewSamples(
            self.version,
            tuple(sorted(fields)),
            None,
            where_present=True,
        )
        n_samples = rows * len(self) // max(1, len(self.version))
        nbytes = rows * chunked.mean_sample_bytes
        return max(1, n_samples), max(1, nbytes)

    def spec(self) -> dict[str, Any]:
        """Return plain JSON that a plan stores to reopen the view."""
        body: dict[str, Any] = {
            "kind": "version",
            "version": self.version.id,
            "fields": list(self.fields),
            "where": self.predicate,
            "where_present": self.where_present,
            "n": len(self),
            "id": self.id,
        }
        if self.first:
            body["first"] = self.first
        if self.slices:
            body["slices"] = [term.to_json() for term in self.slices]
        if self.columns:
            # A list of pairs: the order of the columns is a batch's order, and a plan's JSON sorts its names.
            body["columns"] = [[name, each] for name, each in self.columns.items()]
        return body

    def version_ordinals(self, x: Int64s) -> Int64s:
        """Return the int64 live ordinals of the version for int64 view ordinals."""
        if self.first:
            x = x + self._n_skipped
        if self.is_filtered:
            return self._table.select(x)
        return x

    def keys(self, version_ordinals: Int64s) -> list[str]:
        """Return the sample keys of live ordinals of the version."""
        return self.version.keys(version_ordinals)

    def ordinals(self, keys: Sequence[str]) -> Int64s:
        """Return the int64 live ordinals of sample keys, -1 where missing. Reads the key column."""
        from .samples_table import live_ordinals

        return live_ordinals(self.version, keys)

    @property
    def is_filtered(self) -> bool:
        """True if a predicate, a slice or a missing field leaves out samples of the version."""
        return self.predicate is not None or bool(self._partial) or bool(self.slices)

    @property
    def _n_skipped(self) -> int:
        if self.first and self.is_filtered:
            return self._table.rank(self.first)
        return self.first

    def _id(self, more: dict[str, Any]) -> str:
        body = {"version": self.version.id, "where": self.predicate, "groups": self._partial, **more}
        if self.slices:  # views without slices have the ids of earlier releases
            body["slices"] = [term.to_json() for term in self.slices]
        return "w-" + hashlib.sha256(canonical(body)).hexdigest()

    def _missing_share(self) -> str:
        total = self.version.manifest["n_rows"]
        shares = []
        for group in self._partial:
            missing = total - self.version.manifest["groups"][group]["n_rows"]
            fields = [field for field in self.fields if self.version.group_of(field) == group]
            shares.append(f"{', '.join(fields)} (group {group!r}) for {missing} of {total} samples")
        return (
            f"{self.version.name} lacks {'; '.join(shares)}. Select with where_present=True to leave those samples "
            "out, or add the group for them with root.add_group"
        )

    @property
    def _table(self) -> SelectTable:
        with self._lock:
            if self._members is None:
                saved = self._load()
                if saved is None:
                    saved = self._make()
                self._members = saved
            return self._members

    @property
    def _path(self) -> str:
        return f"views/{self._id({}).removeprefix('w-')}.parquet"  # one table for every `first`

    def _load(self) -> SelectTable | None:
        return retry_corrupt(self._read_table)

    def _read_table(self) -> SelectTable | None:
        table = read_view(self.version, self._path)
        if table is not None and self.slices:
            self._check_slices(unpack(table.packed(), len(self.version)))
        return table

    def _check_slices(self, members: Bools) -> None:
        """Raise Corrupt if a stored bitmap, bool [len(version)], selects samples that the slices do not."""
        from .slice_members import check_term

        what = f"{self.version.store.url}/{self._path}: the slice"
        if self._is_one_slice:
            check_term(
                self.version,
                self.slices[0],
                members,
                what,
            )
            return
        outside = np.flatnonzero(members & ~self._in_slices())
        if len(outside):
            raise Corrupt(
                f"{what} lacks ordinal {outside[0]}, which is selected: delete it to rebuild it",
                what="slice",
                where=f"{self.version.store.url}/{self._path}",
                given=int(outside[0]),
            )

    @property
    def _is_one_slice(self) -> bool:
        return len(self.slices) == 1 and self.predicate is None and not self._partial

    def _in_slices(self) -> Bools:
        """Return bool [len(version)]: True for live ordinals that all slices select."""
        members = np.ones(len(self.version), bool)
        for term in self.slices:
            # A view of its own, whose stored bitmap outlives the slice.
            members &= ViewSamples(self.version, (), None, slices=(term,)).members()
        return members

    def _make(self) -> SelectTable:
        members = np.ones(len(self.version), bool)
        if self._is_one_slice:
            from .slice_members import term_members

            return self._keep_members(term_members(self.version, self.slices[0]))
        if self.predicate is not None:
            from .samples_table import live_where

            members &= live_where(self.version, self.predicate)
        parts = self.version.parts
        for group in self._partial:
            members &= parts.has_live_group(group)
        if self.slices:
            members &= self._in_slices()
        return self._keep_members(members)

    def _keep_members(self, members: Bools) -> SelectTable:
        """Store the bitmap of the samples, and return its table; the stored one if another process was first."""
        packed = pack(members)
        try:
            save_view(self.version, self._path, packed, self.id)
        except AlreadyExists:
            # Another process stored a different result first: all ranks use that one.
            stored = self._load()
            if stored is not None:
                return stored
            # `views/` was deleted meanwhile. This process uses its own result, as it does if the root is read-only.
        return SelectTable(packed, len(self.version))


def read_view(version: VersionShards, path: str) -> SelectTable | None:
    """Return a stored view of a version; None if the root has none. Raises: Corrupt."""
    try:
        data = version.store.get(path).data
    except ObjectNotFound:
        return None
    name = f"{version.store.url}/{path}"
    table = parse_stored(data, path, name)
    try:
        first = table["first_ordinal"].to_pylist()
        rows = table["bits"].to_pylist()
        sums = _checksums(table, rows)
        bits = b"".join(rows)
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{name} is not a view: {error}; delete it to rebuild it") from error
    expected_first = [number * CHUNK_BITS for number in range(len(first))]
    n_bytes = -(-len(version) // 8)
    if first != expected_first or len(bits) != n_bytes:
        raise Corrupt(
            f"{name} has {len(bits)} bytes of bits in rows from {first[:3]}; {version.name} with "
            f"{len(version)} samples needs {n_bytes}. Delete it to rebuild it"
        )
    for first_ordinal, row, stated in zip(
        first,
        rows,
        sums,
        strict=True,
    ):
        if crc32c(row) != stated:
            raise Corrupt(
                f"{name}: the bits from ordinal {first_ordinal} on are damaged. Delete it to rebuild it",
                what="bits",
                where=name,
                given=first_ordinal,
            )
    return SelectTable(bits, len(version))


def _checksums(table: pa.Table, rows: list[bytes]) -> list[int]:
    """Return the stated CRC-32C of each row's bits; of an earlier release's view, the computed ones."""
    if "crc32c" not in table.column_names:
        return [crc32c(row) for row in rows]
    sums: list[int] = table["crc32c"].to_pylist()
    return sums


def save_view(
    version: VersionShards,
    path: str,
    packed: bytes,
    id: str,
) -> None:
    """Store a view's bitmap, if the root can be written. id: of the view, for messages.

    Raises: AlreadyExists.
    """
    step = CHUNK_BITS // 8
    starts = range(0, len(packed), step)
    chunks = [packed[start : start + step] for start in starts]
    sums = [crc32c(chunk) for chunk in chunks]
    table = pa.table(
        {
            "first_ordinal": [start * 8 for start in starts],
            "bits": pa.array(chunks, pa.binary()),
            "crc32c": pa.array(sums, pa.int64()),
        }
    )
    data = table_bytes(
        table,
        "view",
        facts={"path": path},
    )
    try:
        version.store.put_if_absent(path, data)
    except AlreadyExists:
        raise
    except Forbidden:
        logger.warning(
            "the root is read-only here: view %s was not saved, each process scans the samples", id
        )
    except StoreError as error:
        logger.warning("view %s was not saved (%s); each process scans the samples", id, error)
