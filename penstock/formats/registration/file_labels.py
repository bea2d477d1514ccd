"""Labels of plain files: the names of their folders, or the rows of a table.

A row's key is a file's path below the source, its name, or one of these without the extension. The form in which most
rows name a file counts for all: the path of a file beside folders is its name too. Memory: about 0.3 kB per row.
"""

import hashlib
import json
import math
import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import isdir, isfile, realpath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from loader import Root, Version
from loader.dataset.columnar.column_names import MOST_TEXT_BYTES, metadata_name
from loader.dataset.labels.rows import open_rows
from loader.dataset.tables.columns import concat
from loader.dataset.tables.manifest import read_record_manifest
from loader.errors import Conflict, DuplicateKey, InvalidKey, InvalidRuntime, InvalidSample
from loader.storage import ObjectInfo, Store

from .parts import key_text
from .selection import ListedObjects

FOLDER = "folder"
"""`--label-from` that makes a file's folder its label."""
NONE = "none"
"""`--label-from` that gives new files no labels, though earlier imports had some."""
LABEL = "label"
"""Column of the folder's name."""
KEYS = ("filename", "file_name", "file", "path", "key", "image")
"""Names of the key column, unless `--key` names it."""
OWN_COLUMNS = frozenset({"path", "nbytes", "modified_us"})
"""Columns that the format `files` fills itself."""
ANNOTATION = "labels"
"""Column group of labels that change after their file was imported."""
AUTHOR = "penstock import"
NAMED = 3
"""Most files or rows that a message names."""

Columns = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """Source of the labels of plain files."""

    table: str = ""
    """Path or URL of a table with a row per file; "" for none."""
    key: str | None = None
    """Table's column of file names; None for the first of KEYS."""
    label_from: str = ""
    """FOLDER, NONE, or "" for neither."""
    is_partial: bool = False
    """True accepts rows that no file has."""

    def __post_init__(self) -> None:
        if self.label_from not in ("", FOLDER, NONE):
            message = f"--label-from {self.label_from}; accepted: {FOLDER}, {NONE}"
            raise InvalidRuntime(message, what="--label-from", given=self.label_from, accepted=[FOLDER, NONE])
        if not self.table and (self.key is not None or self.is_partial):
            raise InvalidRuntime(
                "--key and --partial-labels of files need --labels, the table that they describe",
                what="--labels",
                accepted="the table that --key and --partial-labels describe",
            )

    @property
    def gives_labels(self) -> bool:
        return bool(self.table) or self.label_from == FOLDER


NO_LABELS = LabelOptions()


class _Form(NamedTuple):
    """A way to write a file's name in a table."""

    words: str
    """For messages."""
    name_of: Callable[[str], str]
    """Object key -> the name."""


def _stem(key: str) -> str:
    return posixpath.splitext(key)[0]


_FORMS = (
    _Form("path", str),
    _Form("name", posixpath.basename),
    _Form("path without extension", _stem),
    _Form("name without extension", lambda key: _stem(posixpath.basename(key))),
)


class _LabelRows:
    """The rows of a table: each file name's row number, and the columns."""

    def __init__(self, options: LabelOptions, types: Mapping[str, str], without: Collection[str]) -> None:
        """Read the table. types: column -> Arrow type in the dataset. without: columns to leave out."""
        self.row_of: dict[str, int] = {}
        tables = list[pa.Table]()
        with open_rows(options.table, options.key or KEYS, types) as source:
            self.name = source.name
            for batch in source.batches():
                for name, number in zip(
                    batch.table[source.key].to_pylist(), batch.numbers.tolist(), strict=True
                ):
                    if name in self.row_of:
                        raise DuplicateKey(
                            f"{source.at(number)} names {name!r}, as an earlier row does; keep one row for each file"
                        )
                    self.row_of[name] = len(self.row_of)
                tables.append(batch.table.drop_columns([source.key]))
        if not self.row_of:
            raise InvalidSample(f"{self.name} has no rows; a row for each file is needed")
        self.columns = self._columns(concat(tables, self.name), without)

    def _columns(self, table: pa.Table, without: Collection[str]) -> dict[str, pa.Array]:
        columns: dict[str, pa.Array] = {}
        for name in table.column_names:
            column = metadata_name(name)
            if name in without or column in without:
                continue
            if column in OWN_COLUMNS or column in columns:
                raise InvalidSample(
                    f"column {name!r} of {self.name} would be the column {column!r}, which files have already: rename "
                    f"it, or leave it out (--without {name})"
                )
            values = table[name].combine_chunks()
            is_text = pa.types.is_string(values.type)
            if is_text and (pc.max(pc.binary_length(values)).as_py() or 0) > MOST_TEXT_BYTES:
                raise InvalidSample(
                    f"column {name!r} of {self.name} has a text of more than {MOST_TEXT_BYTES:,} bytes, too many for "
                    f"metadata: leave it out (--without {name})"
                )
            columns[column] = values
        if not columns:
            raise InvalidSample(
                f"{self.name} has only names of files; a column of labels is needed beside them"
            )
        return columns

    def values(self, row: int) -> dict[str, Any]:
        return {name: values[row].as_py() for name, values in self.columns.items()}

    def sha256(self) -> str:
        """Return the SHA-256 of names and values, in the order of the rows."""
        digest = hashlib.sha256()
        for name, row in self.row_of.items():
            # `str`: times and decimals are not JSON.
            digest.update(json.dumps([name, self.values(row)], sort_keys=True, default=str).encode() + b"\n")
        return digest.hexdigest()


class FileLabels:
    """Columns of each file of a source, from its folder, a table, or both."""

    def __init__(
        self,
        options: LabelOptions,
        infos: Sequence[ObjectInfo],
        types: Mapping[str, str],
        without: Collection[str] = (),
    ) -> None:
        """infos: the source's files. types: column -> Arrow type in the dataset.

        Raises: InvalidKey for rows that no file has, or several; InvalidSample for a damaged table; DuplicateKey.
        """
        self.notes = list[str]()
        self._is_by_folder = options.label_from == FOLDER
        self._rows: _LabelRows | None = None
        self._row_of_file: dict[str, int] = {}
        keys = [info.key for info in infos]
        if self._is_by_folder:
            self._note([key for key in keys if "/" not in key], "lie in no folder, so they have no label")
        if options.table:
            self._rows = rows = _LabelRows(options, types, without)
            if self._is_by_folder and LABEL in rows.columns:
                raise InvalidRuntime(
                    f"--label-from {FOLDER} and the column {LABEL!r} of {rows.name} are two labels: pass one of them"
                )
            self._row_of_file = _match_rows(rows, keys, options.is_partial)
            self._note([key for key in keys if key not in self._row_of_file], f"have no row in {rows.name}")

    def _note(self, keys: Sequence[str], why: str) -> None:
        if keys:
            self.notes.append(f"{len(keys)} files {why}: {_first(keys)}")

    def to_json(self) -> dict[str, Any]:
        """Return the labels' part of an import's record."""
        by_folder = {"label_from": FOLDER} if self._is_by_folder else {}
        if self._rows is None:
            return by_folder
        return by_folder | {
            "label_table": {"columns": sorted(self._rows.columns), "sha256": self._rows.sha256()}
        }

    def columns(self, key: str) -> dict[str, Any]:
        """Return column -> value of a file, without nulls."""
        columns: dict[str, Any] = {}
        if self._is_by_folder and "/" in key:
            columns[LABEL] = key.split("/")[-2]
        if self._rows is not None and key in self._row_of_file:
            columns |= self._rows.values(self._row_of_file[key])
        return {name: value for name, value in columns.items() if value is not None}

    def joined(self, key: str, metadata: Columns) -> Columns:
        """Return a file's metadata merged with its columns."""
        return {**metadata, **self.columns(key)}


def _match_rows(rows: _LabelRows, keys: Sequence[str], is_partial: bool) -> dict[str, int]:
    """Return file -> its row. Raises: InvalidKey."""

    def n_rows(form: _Form) -> int:
        """Return the number of rows that name a file in this form."""
        names = {form.name_of(key) for key in keys}
        return len(names & rows.row_of.keys())

    form = max(_FORMS, key=n_rows)  # of equal ones the first, which is the most exact
    if not n_rows(form):
        raise InvalidKey(
            f"no row of {rows.name} names a file of the source. Its first rows name {_first([*rows.row_of])}; the "
            f"source has {_first(keys)}. A row names a file by {', '.join(each.words for each in _FORMS)}; --key "
            "names the column"
        )
    file_of: dict[str, str] = {}
    row_of_file: dict[str, int] = {}
    for key in keys:
        name = form.name_of(key)
        if name not in rows.row_of:
            continue
        if name in file_of:
            raise InvalidKey(
                f"{name!r} in {rows.name} is the {form.words} of both {file_of[name]!r} and {key!r}: name files by "
                "their paths below the source",
                what=form.words,
                where=rows.name,
                given=name,
                accepted=[file_of[name], key],
            )
        file_of[name] = key
        row_of_file[key] = rows.row_of[name]
    unknown = [name for name in rows.row_of if name not in file_of]
    if unknown and not is_partial:
        raise InvalidKey(
            f"{len(unknown)} of {len(rows.row_of)} rows of {rows.name} are the {form.words} of no file of the source: "
            f"{_first(unknown)}. Correct them, or pass --partial-labels to ignore them",
            what=form.words,
            where=rows.name,
            given=unknown[:20],
            accepted="files of the source",
        )
    return row_of_file


def _first(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:NAMED]))
    return f"{shown}, ..." if len(names) > NAMED else shown


def read_labels(
    format: str,
    options: LabelOptions,
    infos: Sequence[ObjectInfo],
    parent: Version | None,
    without: Collection[str] = (),
) -> FileLabels | None:
    """Return the labels of a source's files, or None. parent: the dataset's newest version.

    Raises: as `FileLabels`; InvalidRuntime for another format; Conflict if earlier files have labels, and new ones
    would not.
    """
    if format != "files":
        if options != NO_LABELS:
            message = (
                f"--labels and --label-from are for the format files; {format} has columns of its own, and penstock "
                "annotate joins a table to its samples"
            )
            raise InvalidRuntime(message, what="--labels", given=format, accepted="files")
        return None
    if not options.gives_labels:
        earlier = ""
        if parent and options.label_from != NONE:
            earlier = _earlier_labels(parent)
        if earlier and parent:
            message = (
                f"earlier files of {parent.name} have labels ({earlier}), and new ones would have none: pass it again, "
                f"or --label-from {NONE}"
            )
            raise Conflict(message, what="labels", where=parent.name, accepted=earlier)
        return None
    columns = parent.manifest["columns"] if parent else {}
    types = {name: column["type"] for name, column in columns.items() if column["type"] != "null"}
    return FileLabels(options, infos, types, without)


def without_table(store: Store, listed: ListedObjects, options: LabelOptions) -> ListedObjects:
    """Return the objects without the table of labels, which often lies beside its files."""
    if not options.table:
        return listed
    table = options.table.partition("?")[0]  # a URL may have options
    if isfile(options.table):
        table = realpath(options.table)
    base = realpath(store.url) if isdir(store.url) else store.url
    return listed._replace(infos=[info for info in listed.infos if f"{base}/{info.key}" != table])


def without_labels(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of an import or registration without its labels' part."""
    return {name: value for name, value in recorded.items() if name not in ("label_from", "label_table")}


def _earlier_labels(version: Version) -> str:
    """Return the option by which the newest import of a dataset gave labels, or ""."""
    if not isinstance(version.reader, Root):
        return ""
    for record in reversed(version.reader.state.versions(version.dataset)):
        if record.retired is not None:
            continue
        producer = read_record_manifest(version.store, record)["producer"]
        chosen = producer.get("imported", producer.get("registered"))
        if isinstance(chosen, Mapping):
            by_folder = ""
            if chosen.get("label_from") == FOLDER:
                by_folder = f"--label-from {FOLDER}"
            if chosen.get("label_table"):
                return "--labels"
            return by_folder
    return ""


def _is_same(stored: Any, value: Any) -> bool:
    """Return whether a label is as stored. NaN is: else each import of it would publish a version."""
    if isinstance(stored, list) and isinstance(value, list):
        return len(stored) == len(value) and all(map(_is_same, stored, value))
    if isinstance(stored, float) and isinstance(value, float) and math.isnan(stored):
        return math.isnan(value)
    return bool(stored == value)


def relabel(
    root: Root,
    version: Version,
    labels: FileLabels,
    infos: Iterable[ObjectInfo],
    fresh: Iterable[ObjectInfo],
) -> tuple[Version, int]:
    """Annotate samples of unchanged files whose labels differ; return the version and their number.

    infos: the source's files. fresh: the files that this import read. A file without a label keeps its earlier one.
    Needs polars if there are unchanged files.
    """
    read = {info.key for info in fresh}
    # Samples store a file's name as text, in which bytes that are not UTF-8 are escaped.
    expected = {key_text(info.key): labels.columns(info.key) for info in infos if info.key not in read}
    names = sorted({name for columns in expected.values() for name in columns})
    if not names:
        return version, 0
    from loader.dataset.versions.samples_table import scan_samples  # imports polars

    known = version.manifest["columns"]
    stored = scan_samples(version, ["raw_key", *(name for name in names if name in known)]).collect()
    rows = []
    for row in stored.iter_rows(named=True):
        columns = expected.get(row["raw_key"], {})
        if not all(_is_same(row.get(name), value) for name, value in columns.items()):
            rows.append({"raw_key": row["raw_key"], **{name: columns.get(name) for name in names}})
    if not rows:
        return version, 0
    table = pa.Table.from_pylist(rows)
    done = root.annotate(version.id, ANNOTATION, table, author=AUTHOR, key="raw_key", on="raw_key")
    return done.version, len(rows)
