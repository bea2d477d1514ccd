"""Names of fields and metadata columns, row keys, byte types, and columns from partition folders."""

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from ...errors import DuplicateKey, InvalidSample, NotSupported
from ..names import check_column, escape_name
from ..tables.columns import RESERVED_COLUMNS

MOST_TEXT_BYTES = 16 * 2**10
_PART = re.compile(r"-\d+-of-\d+")  # keys of earlier imports follow from it: no bound on the digits
_NO_COLUMN = re.compile(r"[^A-Za-z0-9_]|^(?=\d)")
_SIGNATURES = (
    (0, b"\xff\xd8\xff", "jpg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (8, b"WEBP", "webp"),
    (8, b"WAVE", "wav"),
    (0, b"fLaC", "flac"),
    (0, b"OggS", "ogg"),
    (0, b"ID3", "mp3"),
    (0, b"\xff\xfb", "mp3"),
    (0, b"\xff\xf3", "mp3"),
    (4, b"ftypM4A", "m4a"),
    (4, b"ftypqt", "mov"),
    (4, b"ftyp", "mp4"),
    (0, b"\x1a\x45\xdf\xa3", "mkv"),
    (0, b"\x93NUMPY", "npy"),
    (0, b"GIF8", "gif"),
    (0, b"II*\0", "tif"),
    (0, b"MM\0*", "tif"),
)


def sniff_extension(data: bytes) -> str:
    """Return the extension that the first bytes suggest; "" if unknown."""
    for start, begin, word in _SIGNATURES:
        end = start + len(begin)
        if data[start:end] == begin:
            return word
    return ""


def field_name(column: str, word: str) -> str:
    """Return a column's field name: the column name, plus the extension unless it has it."""
    extension = column.rpartition(".")[2]
    if not word or extension.lower() == word:
        return column
    return f"{column}.{word}"


def metadata_name(column: str, prefix: str = "table") -> str:
    """Return a column's metadata name: letters, digits and "_". A reserved name gets the prefix and "_".

    `escape_name` escapes non-ASCII characters; other invalid ones become "_".
    """
    name = _NO_COLUMN.sub("_", escape_name(column)) or "column"
    if name in RESERVED_COLUMNS:
        return f"{prefix}_{name}"
    return name


def row_key(object_key: str, row: int) -> str:
    """Return a row's key in an object that has no key column.

    It begins with the object's name up to the first dot and its part numbers: a-00001-of-00005 for
    a.tfrecord-00001-of-00005.
    """
    folder, slash, name = object_key.rpartition("/")
    stem, _, rest = name.partition(".")
    begin = name  # a name that begins with a dot
    if stem:
        begin = "".join([stem, *_PART.findall(rest)])
    return f"{folder}{slash}{begin}/{row:09d}"


def key_of_value(
    value: Any,
    column: str,
    where: str,
) -> str:
    """Return a key column's value as a key. Raises: InvalidSample unless it is text or a whole number."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidSample(
        f"{where}: the key, column {column!r}, is {value!r}; a key is text or a whole number: name another column "
        "with --key, or none",
        what=f"key column {column!r}",
        where=where,
        given=value,
        accepted="a text or a whole number",
    )


def check_text(
    text: str,
    column: str,
    where: str,
) -> str:
    """Return a metadata text unchanged. Raises: InvalidSample if it is too long."""
    # A lone surrogate is refused later, with the text.
    if len(text) > MOST_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MOST_TEXT_BYTES:
        raise InvalidSample(
            f"{where}: the text in column {column!r} has more than {MOST_TEXT_BYTES:,} bytes, too many for metadata: "
            f"make it a field (--field {column}), or leave it out (--without {column})",
            what=f"text in column {column!r}",
            where=where,
            given=len(text.encode("utf-8", "surrogatepass")),
            accepted=MOST_TEXT_BYTES,
        )
    return text


def check_number(
    value: int,
    column: str,
    where: str,
) -> int:
    """Return a whole number unchanged. Raises: NotSupported if it does not fit int64."""
    if -(2**63) <= value < 2**63:
        return value
    raise NotSupported(
        f"{where}: column {column!r} has the number {value}, and metadata holds whole numbers of 64 bits with a sign: "
        f"make it a field (--field {column}=txt), or leave it out (--without {column})"
    )


def without_field(
    object_key: str,
    key: str,
    metadata: Iterable[str],
) -> InvalidSample:
    """Return the error for a row that has no field. metadata: names of its metadata columns."""
    columns = sorted(metadata) or "none"
    return InvalidSample(
        f"{object_key}, sample {key!r} has no field, and a sample needs one; its columns are "
        f"{columns}: make one of them a field (--field NAME), or leave the row out",
        what="fields",
        where=f"{object_key}, sample {key!r}",
        given=columns,
    )


def duplicate_key(key: str, of: str) -> DuplicateKey:
    """Return the error for a key that occurs twice in one object. of: the object."""
    return DuplicateKey(
        f"{of} has the key {key!r} twice; a key names one sample: name another column with --key, or none",
        what="key",
        where=of,
        given=key,
        accepted="each key once",
    )


_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")
"""Whole numbers that int64 holds and whose text round-trips. One of 19 digits may overflow."""


class Partitions:
    """Partition columns of a location's objects: int64 if all values are whole numbers, else text."""

    def __init__(
        self,
        keys: Iterable[str],
        without: Container[str] = (),
        texts: Iterable[str] = (),
    ) -> None:
        """keys: store keys of all objects. without: columns to leave out. texts: the dataset's text columns."""
        text_names = set(texts)
        for key in keys:
            for name, value in _pairs(key):
                if value is not None and not _WHOLE.fullmatch(value):
                    text_names.add(metadata_name(name))
        self.texts = frozenset(text_names)
        self._without = without

    def columns(self, key: str) -> Mapping[str, Any]:
        """Return column -> value from an object's folders. Raises: InvalidSample if a column occurs twice."""
        out: dict[str, Any] = {}
        named: dict[str, str] = {}  # column -> its name in the path
        for name, value in _pairs(key):
            column = check_column(metadata_name(name), frozenset())
            if name in self._without or column in self._without:
                continue
            if column in named:
                raise InvalidSample(
                    f"{key}: its folders name the column {column!r} twice, by {named[column]!r} and {name!r}: move the "
                    f"object, or leave the column out (--without {name})"
                )
            named[column] = name
            if value is None:
                continue
            if column in self.texts:
                out[column] = value
            else:
                out[column] = int(value)
        return out

    def joined(self, key: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a row's metadata merged with its object's folder columns. Raises: InvalidSample if they disagree."""
        columns = self.columns(key)
        for column, value in columns.items():
            if column in metadata and str(metadata[column]) != str(value):
                raise InvalidSample(
                    f"{key}: its folder has {column} = {value!r}, and a row has a column of that name with "
                    f"{metadata[column]!r}: rename the folder, or leave both out (--without {column})"
                )
        if not columns:
            return metadata
        return {**columns, **metadata}


def text_columns(columns: Mapping[str, Mapping[str, Any]]) -> set[str]:
    return {name for name, column in columns.items() if column["type"] == "string"}


def _pairs(key: str) -> Iterable[tuple[str, str | None]]:
    """Yield (name, value) of each folder `name=value` of an object's key; None for a null."""
    if "=" not in key:  # of most objects: nothing is split
        return
    folders = key.split("/")[:-1]
    for folder in folders:
        name, equals, value = folder.partition("=")
        if not equals or not name:
            continue
        if value == _NULL:
            yield unquote(name), None
        else:
            yield unquote(name), unquote(value)
