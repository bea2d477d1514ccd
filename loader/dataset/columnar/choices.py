"""Options for reading a table, facts from its schema (Hugging Face features, penstock's exports), and samples."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from ...errors import InvalidSample
from ...json_text import DamagedJson, parse_json_object
from ..tables.columns import SOURCE_COLUMNS

_NONE: Mapping[str, Any] = MappingProxyType({})
WIDTHS = "widths"
"""Key for `declared_widths` in a registration record."""


class ColumnarOptions(NamedTuple):
    """Options of an import or a registration."""

    key: str | None = None
    """Column that holds the keys; None to build keys from object name and row number."""
    fields: Mapping[str, str] = _NONE
    """Column -> extension of its field; "" lets the format choose."""
    without: frozenset[str] = frozenset()
    """Fields and columns to leave out."""
    declared_widths: bool = True
    """True keeps the declared width of numbers in nested lists; False widens them to 64 bits."""
    episodes: tuple[tuple[int, int], ...] = ()
    """(first, last) ranges of robot episodes to read; empty for all."""
    earlier: frozenset[str] = frozenset()
    """Keys of the dataset's samples, which an import of other `episodes` keeps."""
    clocks: Mapping[str, str] = _NONE
    """Topic of a robot log -> its clock, "log_time" or "stamp"; the topic "*" stands for all others."""
    allow_missing: bool = False
    """True to read what is there of a source that states more."""

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "fields": dict(sorted(self.fields.items())),
            "without": sorted(self.without),
            **self.clocks_json(),
        }

    def clocks_json(self) -> dict[str, Any]:
        if not self.clocks:
            return {}  # earlier fingerprints have no clocks
        return {"clocks": dict(sorted(self.clocks.items()))}

    def episodes_json(self) -> dict[str, Any]:
        if not self.episodes:
            return {}
        ranges = [list(episode_range) for episode_range in self.episodes]
        return {"episodes": ranges}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "ColumnarOptions":
        return ColumnarOptions(
            key=body["key"],
            fields=body["fields"],
            without=frozenset(body["without"]),
            clocks=body.get("clocks", _NONE),
        )

    @staticmethod
    def of_registered(body: Mapping[str, Any]) -> "ColumnarOptions":
        options = ColumnarOptions.from_json(body)
        return options._replace(declared_widths=WIDTHS in body)


NO_OPTIONS = ColumnarOptions()


class ReadSample(NamedTuple):
    """One sample as its format stores it."""

    key: str
    """Key: any text. Forbidden characters are escaped later."""
    fields: Mapping[str, bytes]
    metadata: Mapping[str, Any] = _NONE
    """Metadata column -> value."""
    source: Mapping[str, str] = _NONE
    """Provenance, such as `split`."""


HUGGINGFACE = b"huggingface"
OURS = b"penstock"
_SHARD = re.compile(r"(?:^|/)([A-Za-z0-9_.]+)-\d{5,}(?:-of-\d{5,})?(?:-[0-9a-f]+)?\.parquet$")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFacts:
    """Facts from one schema."""

    classes: dict[str, list[str]] = field(default_factory=dict)
    """Column of class numbers -> class names."""
    key: str | None = None
    """Key column in a penstock export."""
    fields: dict[str, str] = field(default_factory=dict)
    """Column -> field in a penstock export."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Column -> metadata column in a penstock export."""
    source: dict[str, str] = field(default_factory=dict)
    """Column -> provenance name in a penstock export."""

    @property
    def labels(self) -> list[str] | None:
        if len(self.classes) != 1:
            return None
        return next(iter(self.classes.values()))


def schema_features(schema: pa.Schema) -> SchemaFacts:
    """Return the facts in a schema. Unexpected ones are ignored."""
    metadata = schema.metadata or {}
    ours = _json(metadata.get(OURS))
    key = ours.get("key")
    if not isinstance(key, str):
        key = None
    # Names that an import could not store are left out.
    source = _names(ours, "source")
    source = {column: name for column, name in source.items() if name in SOURCE_COLUMNS}
    return SchemaFacts(
        classes=_classes(metadata.get(HUGGINGFACE), schema.names),
        key=key,
        fields=_names(ours, "fields"),
        metadata=_names(ours, "metadata"),
        source=source,
    )


def _classes(data: bytes | None, columns: Sequence[str]) -> dict[str, list[str]]:
    """Return column -> class names, from Hugging Face's metadata."""
    # The members are untrusted: each may be of any type.
    info = _json(data).get("info")
    if not isinstance(info, dict):
        return {}
    features = info.get("features")
    if not isinstance(features, dict):
        return {}
    classes = {}
    for column, feature in features.items():
        if column not in columns or not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
            continue
        names = feature.get("names")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            classes[column] = names
    return classes


def check_labels(
    object_key: str,
    labels: list[str] | None,
    first: list[str] | None,
) -> None:
    """Raise InvalidSample if an object's class names differ from the first object's."""
    if labels != first:
        raise InvalidSample(
            f"{object_key} has the classes {labels}, and the first object {first}: take them apart"
        )


def split_of(object_key: str) -> str:
    """Return the split named in a file name of the Hub's layout, or ""."""
    match = _SHARD.search(object_key)
    if match is None:
        return ""
    return match[1]


def _names(ours: dict[str, Any], what: str) -> dict[str, str]:
    """Return column -> name, from the member `what` of an export's metadata."""
    names = ours.get(what)
    if not isinstance(names, dict):
        return {}
    return {column: str(name) for column, name in names.items()}


def _json(data: bytes | None) -> dict[str, Any]:
    try:
        return parse_json_object(data or b"{}")
    except DamagedJson:  # the columns can be read without it
        return {}
