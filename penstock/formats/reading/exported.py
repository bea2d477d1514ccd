"""Read penstock's own finished exports, and restore their keys, names and columns."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from loader.dataset.tables.columns import SOURCE_COLUMNS, check_metadata, check_source
from loader.errors import Corrupt, InvalidField, ObjectNotFound
from loader.json_text import DamagedJson, parse_json_object
from loader.storage import ByteRange, ObjectInfo, Store

from .object_file import ForwardReader
from .sample import ForeignSample

NOTE = ".penstock/export.json"
MEMBERS = ("json", "metadata.json")
"""Metadata member's possible extensions; the first that is not a field is used."""
KEY = "key"
METADATA = "metadata"
"""Columns of exports to MDS and LitData."""
COLUMN_BYTES = 2**20
"""Largest key or metadata document, in bytes."""
SampleColumns = tuple[dict[str, Any], dict[str, str]]
"""A sample's metadata and provenance."""
_OF_THE_PLACE = ("raw_key", "raw_etag")


def metadata_member(fields: Collection[str]) -> str | None:
    """Return the metadata member's extension; None if all are fields."""
    in_use = {name.lower() for name in fields}
    for name in MEMBERS:
        if name not in in_use:
            return name
    return None


class Exported(NamedTuple):
    """A finished export."""

    fields: frozenset[str]
    """Field names."""
    columns: Mapping[str, str]
    """Column -> type."""
    lost: frozenset[str]
    """Fields and columns that the format could not represent."""

    def read(self, data: bytes, name: str, key: str) -> SampleColumns:
        """Return a sample's columns. data: the export's JSON. name: object name for errors."""
        metadata: dict[str, Any] = {}
        source: dict[str, Any] = {}
        try:
            columns = parse_json_object(data, lenient=True)
            unknown = sorted(columns.keys() - self.columns.keys())
            if unknown:
                raise ValueError(f"{unknown[0]!r} is not a column of the export")
            for column, value in columns.items():
                values = source if column in SOURCE_COLUMNS else metadata
                values[column] = _cast(value, self.columns[column])
            metadata = check_metadata(key, metadata)
            # These named the objects before the export; the importer has the new ones.
            for column in _OF_THE_PLACE:
                source.pop(column, None)
            return metadata, check_source(key, source)
        except (DamagedJson, InvalidField, TypeError, ValueError, OverflowError) as error:
            raise Corrupt(
                f"{name}: metadata of sample {key!r} is not what the export wrote: {error}. Move what was added to the "
                "export elsewhere"
            ) from error

    def restored(
        self, sample: ForeignSample, spans: Mapping[str, ByteRange], reader: ForwardReader
    ) -> ForeignSample:
        """Return a sample with its original key and columns. spans: of `KEY` and `METADATA`."""
        for span in spans.values():
            if span.nbytes > COLUMN_BYTES:
                raise Corrupt(
                    f"{reader.name}, byte {span.offset}: key or metadata has {span.nbytes:,} bytes; at most "
                    f"{COLUMN_BYTES:,} are read"
                )
        key = sample.key
        if KEY in spans:
            span = spans[KEY]
            try:
                key = reader.read(*span).decode()
            except UnicodeDecodeError as error:
                raise Corrupt(f"{reader.name}, byte {span.offset}: the key is not UTF-8: {error}") from error
        if METADATA not in spans:
            return ForeignSample(key, sample.fields)
        span = spans[METADATA]
        metadata, source = self.read(reader.read(*span), f"{reader.name}, byte {span.offset}", key)
        return ForeignSample(key, sample.fields, metadata, source)


def find_export(
    store: Store, objects: Collection[ObjectInfo], *formats: str, folder: str = ""
) -> Exported | None:
    """Return a source's finished export in these formats, or None. folder: key prefix."""
    key = f"{folder}{NOTE}"
    if all(info.key != key for info in objects):
        return None
    try:
        note = parse_json_object(store.get(key).data)
        if note["format"] not in formats:
            return None
        columns = note["columns"]
        texts = [*note["fields"], *note["lost"], *columns.keys(), *columns.values()]
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a name is not text")
        return Exported(frozenset(note["fields"]), dict(columns), frozenset(note["lost"]))
    except (DamagedJson, AttributeError, KeyError, TypeError) as error:
        raise Corrupt(f"{store.url}/{key} is not a note of an export: {error!r}") from error


def is_export(store: Store, folder: str, format: str) -> bool:
    """Return whether a key prefix is a finished export in a format."""
    try:
        note = parse_json_object(store.get(f"{folder}{NOTE}").data)
    except (ObjectNotFound, DamagedJson):
        return False
    return bool(note.get("format") == format)


def _cast(value: Any, kind: str) -> Any:
    if value is None:
        return None
    if kind.startswith("list<"):
        item_kind = kind.partition(": ")[2].removesuffix(">")
        return [_cast(item, item_kind) for item in value]
    if kind.startswith("timestamp"):
        return datetime.fromisoformat(value)
    if kind in ("double", "float"):
        return float(value)
    return value
