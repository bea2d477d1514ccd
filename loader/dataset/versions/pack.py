"""Pack views of documents: the table of sequences, and checksums for the pieces of split documents.

    packs/<hash>.parquet           sequence, document, start, length; one row per piece
    packs/<hash>.checks.parquet    document, offset, nbytes, crc32c, field_crc32c; one row per split document's piece

The hash covers view, field, length, and the source of the lengths.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, DecodeFailed, Forbidden, InvalidPlan, ObjectNotFound, StoreError
from ...modalities.array import field_layout, is_array
from ...order.random.plan_hash import content_hash
from ...order.sources.pack_table import (
    MAX_DOCUMENT_TOKENS,
    PackTable,
    pack_documents,
    pack_groups,
    pieces_fit,
)
from ...order.sources.packing import PackBy, PackedView
from ...order.sources.views import ListedView
from ...storage.threads import DaemonPool
from ..reading.verified_bucket_reads import FieldPart, read_fields
from ..shards.address import UNKNOWN_CRC, FieldAddress
from ..shards.shard import crc32c
from ..tables.parquet import parse_stored, table_bytes, table_facts
from .documents import ViewDocuments, view_documents
from .pack_formats import FieldFormats, document_formats, formats_from_facts, formats_to_facts

if TYPE_CHECKING:
    from .view_samples import ViewSamples

logger = logging.getLogger(__name__)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
_COLUMNS = ("document", "offset", "nbytes", "crc32c", "field_crc32c")
_AT_ONCE = 16  # documents in memory while their checksums are computed


class PieceChecks:
    """Offsets and CRC-32Cs for the pieces of split documents. 40 bytes per piece; read-only."""

    def __init__(self, rows: Int64s) -> None:
        """rows: int64 [pieces, 5], as stored, sorted by document, then piece."""
        self._rows = rows
        self._documents, self._first = np.unique(rows[:, 0], return_index=True)

    def part(self, document: int, number: int, field: FieldAddress) -> FieldPart | None:
        """Return piece `number` (from 0) of a document; None if unknown, or computed from other bytes."""
        at = int(np.searchsorted(self._documents, document))
        if at == len(self._documents) or int(self._documents[at]) != document:
            return None
        _, offset, nbytes, crc, field_crc = self._rows[int(self._first[at]) + number].tolist()
        return FieldPart(offset, nbytes, crc) if field_crc == field.crc32c else None


def load_checks(view: "ViewSamples", path: str) -> PieceChecks | None:
    store, path = view.version.store, checks_path(path)
    try:
        table = parse_stored(store.get(path).data, path, f"{store.url}/{path}")
    except ObjectNotFound:
        return None
    try:
        return PieceChecks(np.column_stack([table[name].to_numpy() for name in _COLUMNS]).astype(np.int64))
    except KeyError as error:
        raise Corrupt(
            f"{store.url}/{path} is not a table of checksums: {error}; delete it, documents are then read whole"
        ) from error


def keep_checks(view: "ViewSamples", packed: PackedView, path: str) -> None:
    """Read every split document once, and store its pieces' checksums next to the table at `path`.

    Skips corrupt or unexpected documents, which their readers report.
    """
    documents, tokens = packed.table.longer_than(packed.packing.length)
    checks: list[Int64s] = [np.zeros((0, len(_COLUMNS)), np.int64)]
    with DaemonPool(_AT_ONCE, "penstock-pack") as pool:
        for first in range(0, len(documents), _AT_ONCE):
            block = slice(first, first + _AT_ONCE)
            checks += _of_documents(view, packed, documents[block], tokens[block], pool)
    rows = np.concatenate(checks)
    table = pa.table({name: rows[:, i] for i, name in enumerate(_COLUMNS)})
    data = table_bytes(table, "piece checks", facts={"path": checks_path(path)})
    try:
        view.version.store.put_if_absent(checks_path(path), data)
    except AlreadyExists:
        pass  # another process read the same bytes
    except StoreError as error:
        logger.warning("%s was not saved (%s); split documents are read whole", checks_path(path), error)


def checks_path(path: str) -> str:
    return path.removesuffix(".parquet") + ".checks.parquet"


def _of_documents(
    view: "ViewSamples", packed: PackedView, documents: Int64s, tokens: Int64s, pool: DaemonPool
) -> list[Int64s]:
    field, packing = packed.packing.field, packed.packing
    addresses = view.version.address(documents, [field], pool.map)
    read = read_fields(
        view.version.shard_store, addresses, parallel_map=pool.map, on_corrupt=lambda number, error: None
    )
    out: list[Int64s] = []
    for address, fields, n in zip(addresses, read, tokens.tolist(), strict=True):
        try:
            stored = field_layout(field, fields[field])
        except (KeyError, DecodeFailed):
            continue
        known = address.fields[field].crc32c != UNKNOWN_CRC
        if known and stored.shape == (n,) and stored.dtype.str == packing.dtype:
            nbytes = packing.length * stored.dtype.itemsize
            rows = _pieces(fields[field], len(stored.head), nbytes)
            own = (address.ordinal, address.fields[field].crc32c)
            out.append(np.array([(own[0], *row, own[1]) for row in rows], np.int64))
    return out


def _pieces(data: bytes, start: int, nbytes: int) -> list[tuple[int, int, int]]:
    """Return (offset, bytes, CRC-32C) for consecutive pieces of `nbytes` from `start` on; the last may be shorter."""
    cuts = range(start, len(data), nbytes)
    return [(at, min(nbytes, len(data) - at), crc32c(data[at : at + nbytes])) for at in cuts]


PACKING = 1  # number of the packing rule; a new rule gives its tables new names
COLUMNS = ("sequence", "document", "start", "length")


def packed(source: "ViewSamples | ListedView", asked: PackBy) -> PackedView:
    """Return the packed sequences of a view's documents, or of a list's, in its order.

    Costs, once per root, reading the indexes of the field's group and one document for the dtype, plus about 1 us per
    document. For a list it reads only the row groups of its documents.

    Raises: InvalidPlan if the view has other fields, the documents are not rows of tokens, or a list repeats one;
    Corrupt.
    """
    documents = view_documents(source)
    view = documents.view
    for field in asked.fields:
        if not is_array(field):
            raise InvalidPlan(f"pack: {field!r}: an .npy field is needed, or a flat one such as 'tokens.u2'")
    if set(view.fields) != set(asked.fields):
        words = ", ".join(map(repr, asked.fields))
        raise InvalidPlan(
            f"pack of {words} from a view with the fields {list(view.fields)}: a sequence has only what there is of "
            f"each token of its documents; pass version.select({words}), and name fields with a value per token in "
            "pack(beside=), others with rows in pack(ragged=)"
        )
    if view.columns:
        raise InvalidPlan(
            f"pack of a view with the columns {list(view.columns)}: a sequence joins documents, which have one value "
            "each of a column; leave columns= out of select(), and name them in pack(columns=)"
        )
    types: dict[str, str] = {}
    if asked.columns:
        from .pack_columns import column_types  # reads tables, which most plans need not

        types = column_types(view.version, asked.columns)
    table_request = _in_view_order(asked, view)
    formats, table = _load(documents, table_request) or _pack(documents, table_request, types)
    view_packed = PackedView(
        source,
        asked,
        formats.dtypes,
        table,
        shapes=formats.shapes,
        column_types=types,
    )
    if asked.checksums and piece_checks(view_packed) is None:
        keep_checks(view, view_packed, _path(documents, table_request))
    return view_packed


def _in_view_order(asked: PackBy, view: "ViewSamples") -> PackBy:
    """Return the request with its fields beside the tokens in the view's order.

    A stored plan has only the view's fields, so it reads the table by their order.
    """
    place = {name: number for number, name in enumerate(view.fields)}
    side_fields = sorted(asked.side_fields, key=lambda pair: place[pair[0]])
    return replace(asked, side_fields=tuple(side_fields))


def piece_checks(packed: PackedView) -> PieceChecks | None:
    source = cast("ViewSamples | ListedView", packed.documents)
    view = getattr(source, "listed", source)
    if not hasattr(view, "version"):
        return None  # synthetic documents have no root
    documents = view_documents(source)
    table_request = _in_view_order(packed.request, documents.view)
    return load_checks(documents.view, _path(documents, table_request))


def _pack(
    documents: ViewDocuments,
    asked: PackBy,
    column_types: Mapping[str, str],
) -> tuple[FieldFormats, PackTable]:
    first = _Stored(documents, asked)
    ordinals = documents.ordinals
    if asked.lengths:
        tokens = _count_tokens(documents, asked)
    else:
        tokens = first.counts()
    has_no_count = tokens < 0
    if has_no_count.any():
        raise InvalidPlan(_no_count(documents, asked, ordinals[has_no_count]))
    _check_counts(documents, asked, ordinals, tokens)
    if column_types:
        from .pack_columns import check_documents

        check_documents(documents.version, column_types, ordinals)
    if asked.together is None:
        if not asked.split:
            _check_fit(documents, asked, ordinals, np.arange(len(ordinals)), tokens)
        table = pack_documents(ordinals, tokens, asked.length)
    else:
        groups = _groups(documents, asked.together, ordinals)
        _check_fit(documents, asked, ordinals, groups, tokens)
        table = pack_groups(ordinals, tokens, groups, asked.length)
    return _keep_table(documents, asked, first.formats, table)


def _check_counts(
    documents: ViewDocuments,
    asked: PackBy,
    ordinals: Int64s,
    tokens: Int64s,
) -> None:
    is_long = tokens > MAX_DOCUMENT_TOKENS
    if is_long.any():
        (key,) = documents.version.keys(ordinals[is_long][:1])
        raise InvalidPlan(
            f"pack(lengths={asked.lengths!r}): document {key!r} has {tokens[is_long][0]:,} tokens; at most "
            f"{MAX_DOCUMENT_TOKENS:,}. Correct the column, or leave the document out with where()"
        )


def _check_fit(
    documents: ViewDocuments,
    asked: PackBy,
    ordinals: Int64s,
    groups: Int64s,
    tokens: Int64s,
) -> None:
    """Raise InvalidPlan if a group has more tokens than a sequence. groups: int64 [documents], small numbers."""
    group_tokens = np.bincount(groups, tokens)  # [groups]
    is_long = group_tokens > asked.length
    if is_long.any():
        n_long = int(is_long.sum())
        raise InvalidPlan(
            _too_long(documents, asked, ordinals[is_long[groups]], n_long),
            what="length",
            where="pack",
            given=n_long,
            accepted=f"documents of at most {asked.length} tokens",
        )


def _groups(documents: ViewDocuments, column: str, ordinals: Int64s) -> Int64s:
    """Return int64 [documents]: a number, from 1, for each document's value of a column. Raises: InvalidPlan."""
    what = f"pack(together={column!r})"
    quoted = column.replace('"', '""')
    chosen = documents.values(f'"{quoted}"', what)
    missing = ordinals[chosen.is_null().to_numpy()]
    if len(missing):
        (key,) = documents.version.keys(missing[:1])
        raise InvalidPlan(
            f"{what}: {len(missing)} documents have no value, such as {key!r}; leave them out with "
            f'where("{column} IS NOT NULL")'
        )
    is_exact = chosen.dtype.is_integer() or str(chosen.dtype) in ("String", "Boolean")
    if not is_exact:
        raise InvalidPlan(f"{what} is {chosen.dtype}; texts, whole numbers or truth values are needed")
    # 0.1 s for 2 million texts, which take numpy.unique 2.3.
    numbers = chosen.rank("dense")
    return numbers.to_numpy().astype(np.int64)


def _too_long(
    documents: ViewDocuments,
    asked: PackBy,
    ordinals: Int64s,
    n_groups: int,
) -> str:
    keys = ", ".join(map(repr, documents.version.keys(ordinals[:3])))
    remedy = "pack longer sequences, or leave them out with where()"
    if asked.together is None:
        return f"pack(split=False): {n_groups} documents have more than {asked.length} tokens: {keys} ...; {remedy}"
    return (
        f"pack(together={asked.together!r}): {n_groups} groups have more than {asked.length} tokens, with the "
        f"documents {keys} ...; {remedy}. Groups that need not share a sequence need no together="
    )


class _Stored:
    """Storage format of documents, read from the first one."""

    def __init__(self, documents: ViewDocuments, asked: PackBy) -> None:
        self._documents = documents
        self._field = asked.field
        if not len(documents):
            raise InvalidPlan("pack: the view has no samples")
        version = documents.version
        (address,) = version.address(documents.first(), asked.fields)
        (fields_read,) = read_fields(version.shard_store, [address])
        stored = {field: field_layout(field, fields_read[field]) for field in asked.fields}
        self.formats = document_formats(address, stored, asked)
        tokens = stored[asked.field]
        self._start, self._itemsize = len(tokens.head), tokens.dtype.itemsize

    def counts(self) -> Int64s:
        """Return int64 [documents]: number of tokens, negative if missing or fractional."""
        nbytes = self._documents.nbytes(self._field)
        count, rest = np.divmod(nbytes - self._start, self._itemsize)
        count[rest != 0] = -1
        return count


def _count_tokens(documents: ViewDocuments, asked: PackBy) -> Int64s:
    """Return int64 [documents]: number of tokens by the expression `lengths`, -1 for null."""
    assert asked.lengths is not None
    values = documents.values(asked.lengths, f"pack(lengths={asked.lengths!r})")
    if not values.dtype.is_integer():
        raise InvalidPlan(f"pack(lengths={asked.lengths!r}) is {values.dtype}; whole numbers are needed")
    counts: Int64s = values.fill_null(-1).to_numpy().astype(np.int64)
    return counts


def _no_count(documents: ViewDocuments, asked: PackBy, ordinals: Int64s) -> str:
    (first,) = documents.version.keys(ordinals[:1])
    if asked.lengths:
        return (
            f"pack(lengths={asked.lengths!r}): {len(ordinals)} documents have no number of tokens, such as {first!r}; "
            f'leave them out with where("{asked.lengths} >= 0")'
        )
    return (
        f"pack({asked.field!r}): {len(ordinals)} documents, such as {first!r}, are not "
        "arrays like the first one; store all in one dtype, or name a column with pack(lengths=)"
    )


def _path(documents: ViewDocuments, asked: PackBy) -> str:
    question = {
        "packing": PACKING,
        "view": documents.id,
        "field": asked.field,
        "length": asked.length,
        "lengths": asked.lengths,
        **({"beside": asked.side_names} if asked.side_fields else {}),
        **asked.rule,
    }
    return f"packs/{content_hash('k', question).removeprefix('k-')}.parquet"


def _load(documents: ViewDocuments, asked: PackBy) -> tuple[FieldFormats, PackTable] | None:
    store = documents.version.store
    path = _path(documents, asked)
    try:
        data = store.get(path).data
    except ObjectNotFound:
        return None
    name = f"{store.url}/{path}"
    table = parse_stored(data, path, name)
    try:
        columns = [table[column].to_numpy() for column in COLUMNS]
    except KeyError as error:
        raise Corrupt(
            f"{name} is not a table of packed sequences: {error}; delete it to rebuild it"
        ) from error
    _check(name, columns, len(documents.version), asked)
    _check_documents(name, columns[1], documents)
    table_read, facts = PackTable(*columns), table_facts(table)
    stored_sha256 = facts.get("content_sha256")
    formats = formats_from_facts(asked, facts)
    if formats is None:
        raise Corrupt(f"{name} has no dtypes of {list(asked.fields)}: {facts}; delete it to rebuild it")
    if table_read.sha256 != stored_sha256:
        raise Corrupt(
            f"{name}: the sha256 of its rows is {table_read.sha256}, stored is {stored_sha256!r}: it was damaged or "
            "edited; delete it to rebuild it"
        )
    return formats, table_read


def _check(name: str, columns: list[Int64s], documents: int, asked: PackBy) -> None:
    sequence, document, start, nbytes = columns
    ascends = len(sequence) == 0 or (sequence[0] == 0 and bool(np.isin(np.diff(sequence), (0, 1)).all()))
    whole = ascends and all(column.dtype == np.int64 for column in columns)
    if whole and len(sequence):
        whole = bool(
            (document >= 0).all()
            and (document < documents).all()
            and (start >= 0).all()
            and (nbytes > 0).all()
            and int(np.bincount(sequence, nbytes).max()) <= asked.length
            and pieces_fit(document, start, nbytes, asked.split)
        )
    if not whole:
        raise Corrupt(f"{name} is not a table of packed sequences; delete it to rebuild it")


def _check_documents(name: str, table_documents: Int64s, documents: ViewDocuments) -> None:
    """Raise Corrupt if a table has documents that its view lacks: a forged one could train on held-out samples."""
    n_documents = len(documents.version)
    if len(documents) == n_documents:
        return
    is_in_view = np.zeros(n_documents, bool)
    is_in_view[documents.ordinals] = True
    is_other = ~is_in_view[table_documents]
    if is_other.any():
        (key,) = documents.version.keys(table_documents[is_other][:1])
        raise Corrupt(
            f"{name} has documents that its view lacks, such as {key!r}: it was edited, or belongs to another view; "
            "delete it to rebuild it"
        )


def _keep_table(
    documents: ViewDocuments,
    asked: PackBy,
    formats: FieldFormats,
    table: PackTable,
) -> tuple[FieldFormats, PackTable]:
    store = documents.version.store
    path = _path(documents, asked)
    rows = table.rows(0, table.n_pieces)
    columns = pa.table({name: rows[:, i] for i, name in enumerate(COLUMNS)})
    try:
        facts = {"path": path, "content_sha256": table.sha256, **formats_to_facts(asked, formats)}
        store.put_if_absent(path, table_bytes(columns, "pack", facts=facts))
    except AlreadyExists:
        saved = _load(documents, asked)
        return (formats, table) if saved is None else saved
    except Forbidden:
        logger.warning("the root is read-only here: %s was not saved, each process packs the documents", path)
    except StoreError as error:
        logger.warning("%s was not saved (%s); each process packs the documents", path, error)
    return formats, table
