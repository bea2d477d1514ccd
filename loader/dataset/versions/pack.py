"""Pack views of documents: the table of sequences.

    packs/<hash>.parquet    sequence, document, start, length; one row per piece

The hash covers view, field, length, and the source of the lengths.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from ...errors import AlreadyExists, Corrupt, Forbidden, InvalidPlan, ObjectNotFound, StoreError
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
from ..reading.verified_bucket_reads import read_fields
from ..tables.parquet import parse_stored, table_bytes, table_facts
from .documents import ViewDocuments, view_documents
from .pack_formats import FieldFormats, document_formats, formats_from_facts, formats_to_facts
from .piece_checksums import PieceChecks, keep_checks, load_checks

if TYPE_CHECKING:
    from .view_samples import ViewSamples

logger = logging.getLogger(__name__)

Int64s = np.ndarray[Any, np.dtype[np.int64]]
PACKING = 1  # number of the packing rule; a new rule gives its tables new names
COLUMNS = ("sequence", "document", "start", "length")
_SHOWN = 5  # values of a damaged column in its error


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
            raise InvalidPlan(
                f"pack: {field!r}: an .npy field is needed, or a flat one such as 'tokens.u2'",
                what="field",
                where="pack",
                given=field,
                accepted="an .npy field, or a flat one",
            )
    if set(view.fields) != set(asked.fields):
        words = ", ".join(map(repr, asked.fields))
        raise InvalidPlan(
            f"pack of {words} from a view with the fields {list(view.fields)}: a sequence has only what there is of "
            f"each token of its documents; pass version.select({words}), and name fields with a value per token in "
            "pack(beside=), others with rows in pack(ragged=)",
            what="fields",
            where="pack",
            given=view.fields,
            accepted=asked.fields,
        )
    if view.columns:
        raise InvalidPlan(
            f"pack of a view with the columns {list(view.columns)}: a sequence joins documents, which have one value "
            "each of a column; leave columns= out of select(), and name them in pack(columns=)",
            what="columns",
            where="pack",
            given=view.columns,
            accepted=(),
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
    """Return the stored checksums of pieces; None if the root has none, or the documents have no root."""
    source = cast("ViewSamples | ListedView", packed.documents)
    view = getattr(source, "listed", source)
    if not hasattr(view, "version"):  # synthetic documents
        return None
    documents = view_documents(source)
    table_request = _in_view_order(packed.request, documents.view)
    return load_checks(documents.view, _path(documents, table_request))


def _pack(
    documents: ViewDocuments,
    asked: PackBy,
    column_types: Mapping[str, str],
) -> tuple[FieldFormats, PackTable]:
    """Pack the documents, and store the table. column_types: of `asked.columns`, checked for missing values."""
    first = _Stored(documents, asked)
    ordinals = documents.ordinals
    if asked.lengths:
        tokens = _count_tokens(documents, asked)
    else:
        tokens = first.counts()
    has_no_count = tokens < 0
    if has_no_count.any():
        raise _no_count(documents, asked, ordinals[has_no_count])
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
        n_tokens = int(tokens[is_long][0])
        raise InvalidPlan(
            f"pack(lengths={asked.lengths!r}): document {key!r} has {n_tokens:,} tokens; at most "
            f"{MAX_DOCUMENT_TOKENS:,}. Correct the column, or leave the document out with where()",
            what="lengths",
            where=f"document {key!r}",
            given=n_tokens,
            accepted=MAX_DOCUMENT_TOKENS,
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
            f'where("{column} IS NOT NULL")',
            what="together",
            where="pack",
            given=[len(missing), key],
            accepted="a value for each document",
        )
    is_exact = chosen.dtype.is_integer() or str(chosen.dtype) in ("String", "Boolean")
    if not is_exact:
        raise InvalidPlan(
            f"{what} is {chosen.dtype}; texts, whole numbers or truth values are needed",
            what="together",
            where="pack",
            given=str(chosen.dtype),
            accepted="texts, whole numbers or truth values",
        )
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
            raise InvalidPlan("pack: the view has no samples", what="view", where="pack", given=0, accepted=1)
        version = documents.version
        (address,) = version.address(documents.first(), asked.fields)
        (fields_read,) = read_fields(version.shard_store, [address])
        stored = {field: field_layout(field, fields_read[field]) for field in asked.fields}
        self.formats = document_formats(address, stored, asked)
        tokens = stored[asked.field]
        self._start = len(tokens.head)
        self._itemsize = tokens.dtype.itemsize

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
        raise InvalidPlan(
            f"pack(lengths={asked.lengths!r}) is {values.dtype}; whole numbers are needed",
            what="lengths",
            where="pack",
            given=str(values.dtype),
            accepted="whole numbers",
        )
    counts: Int64s = values.fill_null(-1).to_numpy().astype(np.int64)
    return counts


def _no_count(documents: ViewDocuments, asked: PackBy, ordinals: Int64s) -> InvalidPlan:
    (first,) = documents.version.keys(ordinals[:1])
    if asked.lengths:
        return InvalidPlan(
            f"pack(lengths={asked.lengths!r}): {len(ordinals)} documents have no number of tokens, such as {first!r}; "
            f'leave them out with where("{asked.lengths} >= 0")',
            what="lengths",
            where="pack",
            given=[len(ordinals), first],
            accepted="a number of tokens for each document",
        )
    return InvalidPlan(
        f"pack({asked.field!r}): {len(ordinals)} documents, such as {first!r}, are not "
        "arrays like the first one; store all in one dtype, or name a column with pack(lengths=)",
        what="field",
        where="pack",
        given=[len(ordinals), first],
        accepted="arrays like the first document's",
    )


def _path(documents: ViewDocuments, asked: PackBy) -> str:
    request: dict[str, Any] = {
        "packing": PACKING,
        "view": documents.id,
        "field": asked.field,
        "length": asked.length,
        "lengths": asked.lengths,
        **asked.rule,
    }
    if asked.side_fields:  # requests without them keep the names of earlier releases
        request["beside"] = asked.side_names
    digest = content_hash("k", request).removeprefix("k-")
    return f"packs/{digest}.parquet"


def _load(documents: ViewDocuments, asked: PackBy) -> tuple[FieldFormats, PackTable] | None:
    """Return the stored table; None if the root has none. Raises: Corrupt."""
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
            f"{name} is not a table of packed sequences: {error}; delete it to rebuild it",
            what="columns",
            where=name,
            given=table.column_names,
            accepted=COLUMNS,
        ) from error
    _check(name, columns, len(documents.version), asked)
    _check_documents(name, columns[1], documents)
    table_read = PackTable(*columns)
    facts = table_facts(table)
    stored_sha256 = facts.get("content_sha256")
    formats = formats_from_facts(asked, facts)
    if formats is None:
        raise Corrupt(
            f"{name} has no dtypes of {list(asked.fields)}: {facts}; delete it to rebuild it",
            what="dtypes",
            where=name,
            given=facts.get("dtype"),
            accepted=asked.fields,
        )
    if table_read.sha256 != stored_sha256:
        raise Corrupt(
            f"{name}: the sha256 of its rows is {table_read.sha256}, stored is {stored_sha256!r}: it was damaged or "
            "edited; delete it to rebuild it",
            what="sha256",
            where=name,
            given=table_read.sha256,
            accepted=stored_sha256,
        )
    return formats, table_read


def _check(name: str, columns: list[Int64s], n_documents: int, asked: PackBy) -> None:
    """Raise Corrupt unless the columns are rows of packed sequences."""
    for column, values in zip(COLUMNS, columns, strict=True):
        if values.dtype != np.int64:
            raise _no_sequences(name, column, str(values.dtype), "int64")
    sequence, document, start, length = columns
    if not len(sequence):
        return
    # 0: the next piece is in the same sequence. 1: it begins the next one.
    steps = np.diff(sequence)
    is_step = np.isin(steps, (0, 1))
    if sequence[0] != 0 or not is_step.all():
        raise _no_sequences(name, "sequence", sequence[:_SHOWN].tolist(), "numbers from 0 without gaps")
    is_document = (document >= 0) & (document < n_documents)
    if not is_document.all():
        raise _no_sequences(name, "document", int(document[~is_document][0]), f"0 to {n_documents - 1}")
    if (start < 0).any():
        raise _no_sequences(name, "start", int(start.min()), "at least 0")
    if (length <= 0).any():
        raise _no_sequences(name, "length", int(length.min()), "at least 1")
    longest = int(np.bincount(sequence, length).max())
    if longest > asked.length:
        raise _no_sequences(name, "length", longest, f"at most {asked.length} in a sequence")
    if not pieces_fit(document, start, length, asked.split):
        raise _no_sequences(name, "pieces", start[:_SHOWN].tolist(), "pieces within their documents")


def _no_sequences(name: str, what: str, value: object, accepted: str) -> Corrupt:
    return Corrupt(
        f"{name} is not a table of packed sequences; delete it to rebuild it",
        what=what,
        where=name,
        given=value,
        accepted=accepted,
    )


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
            "delete it to rebuild it",
            what="document",
            where=name,
            given=key,
            accepted="documents of the view",
        )


def _keep_table(
    documents: ViewDocuments,
    asked: PackBy,
    formats: FieldFormats,
    table: PackTable,
) -> tuple[FieldFormats, PackTable]:
    """Store the table; return the one that the root has, which another process may have stored first."""
    store = documents.version.store
    path = _path(documents, asked)
    rows = table.rows(0, table.n_pieces)
    columns = pa.table({name: rows[:, i] for i, name in enumerate(COLUMNS)})
    try:
        facts = {"path": path, "content_sha256": table.sha256, **formats_to_facts(asked, formats)}
        store.put_if_absent(path, table_bytes(columns, "pack", facts=facts))
    except AlreadyExists:
        saved = _load(documents, asked)
        if saved is not None:  # else it was deleted since
            return saved
    except Forbidden:
        logger.warning("the root is read-only here: %s was not saved, each process packs the documents", path)
    except StoreError as error:
        logger.warning("%s was not saved (%s); each process packs the documents", path, error)
    return formats, table
