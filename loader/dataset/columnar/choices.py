"""Options for reading a table, facts from its schema (Hugging Face features, penstock's exports), and samples."""

import re
from collections.abc import Mapping
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
        body = {"key": self.key, "fields": dict(sorted(self.fields.items())), "without": sorted(self.without)}
        return body | self.clocks_json()

    def clocks_json(self) -> dict[str, Any]:
        # Only if there are any: earlier fingerprints have no clocks.
        return {"clocks": dict(sorted(self.clocks.items()))} if self.clocks else {}

    def episodes_json(self) -> dict[str, Any]:
        return {"episodes": [list(one) for one in self.episodes]} if self.episodes else {}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "ColumnarOptions":
        return ColumnarOptions(
            body["key"], body["fields"], frozenset(body["without"]), clocks=body.get("clocks", _NONE)
        )

    @staticmethod
    def of_registered(body: Mapping[str, Any]) -> "ColumnarOptions":
        return ColumnarOptions.from_json(body)._replace(declared_widths=WIDTHS in body)


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


HUGGINGFACE, OURS = b"huggingface", b"penstock"
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
        return next(iter(self.classes.values())) if len(self.classes) == 1 else None


def features_of(schema: pa.Schema) -> SchemaFacts:
    """Return the facts in a schema. Unexpected ones are ignored."""
    metadata = schema.metadata or {}
    info = _json(metadata.get(HUGGINGFACE)).get("info")
    features = info.get("features") if isinstance(info, dict) else None
    classes = {}
    for name, feature in (features if isinstance(features, dict) else {}).items():
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and name in schema.names:
            names = feature.get("names")
            if isinstance(names, list) and all(isinstance(each, str) for each in names):
                classes[name] = names
    ours = _json(metadata.get(OURS))
    return SchemaFacts(
        classes=classes,
        key=ours["key"] if isinstance(ours.get("key"), str) else None,
        fields=_names(ours, "fields"),
        metadata=_names(ours, "metadata"),
        source={column: name for column, name in _names(ours, "source").items() if name in SOURCE_COLUMNS},
    )


def check_labels(object_key: str, labels: list[str] | None, first: list[str] | None) -> None:
    """Raise InvalidSample if an object's class names differ from the first object's."""
    if labels != first:
        raise InvalidSample(
            f"{object_key} has the classes {labels}, and the first object {first}: take them apart"
        )


def split_of(object_key: str) -> str:
    """Return the split named in a file name of the Hub's layout, or ""."""
    match = _SHARD.search(object_key)
    return match[1] if match else ""


def _names(ours: dict[str, Any], what: str) -> dict[str, str]:
    feature = ours.get(what)
    return {name: str(to) for name, to in feature.items()} if isinstance(feature, dict) else {}


def _json(data: bytes | None) -> dict[str, Any]:
    try:
        return parse_json_object(data or b"{}")
    except DamagedJson:
        return {}
