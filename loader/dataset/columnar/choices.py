"""Options of reading a table, facts in its schema (Hugging Face features, names of our exports), and a row's sample."""

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
"""Key of a registration's note that stands for `declared_widths`."""


class Options(NamedTuple):
    """Options of an import or a registration."""

    key: str | None = None
    """Column that holds the keys; None for the object's name and the row's number."""
    fields: Mapping[str, str] = _NONE
    """Column -> extension of the field it becomes, "" for the format's choice."""
    without: frozenset[str] = frozenset()
    """Fields and columns that are left out."""
    declared_widths: bool = True
    """True keeps the declared width of numbers in nested lists, False makes them 64 bits."""
    episodes: tuple[tuple[int, int], ...] = ()
    """(first, last) numbers of the episodes of robots that are read; empty for all."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {"key": self.key, "fields": dict(sorted(self.fields.items())), "without": sorted(self.without)}

    def episodes_json(self) -> dict[str, Any]:
        """Return plain JSON of `episodes`; empty where all are read, as in notes of earlier releases."""
        return {"episodes": [list(one) for one in self.episodes]} if self.episodes else {}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "Options":
        """Return the choices whose `to_json` is in `body`. Raises: KeyError."""
        return Options(body["key"], body["fields"], frozenset(body["without"]))

    @staticmethod
    def of_registered(body: Mapping[str, Any]) -> "Options":
        """Return the options in a registration's note. Raises: KeyError."""
        return Options.from_json(body)._replace(declared_widths=WIDTHS in body)


NO_OPTIONS = Options()


class ReadSample(NamedTuple):
    """One sample as its format has it."""

    key: str
    """Key, any text: what our format forbids is escaped."""
    fields: Mapping[str, bytes]
    """Field -> its bytes."""
    metadata: Mapping[str, Any] = _NONE
    """Metadata column -> value."""
    source: Mapping[str, str] = _NONE
    """Provenance, such as `split`."""


HUGGINGFACE, OURS = b"huggingface", b"penstock"
_SHARD = re.compile(r"(?:^|/)([A-Za-z0-9_.]+)-\d{5,}(?:-of-\d{5,})?(?:-[0-9a-f]+)?\.parquet$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The facts of one schema."""

    classes: dict[str, list[str]] = field(default_factory=dict)
    """Column of class numbers -> their names."""
    key: str | None = None
    """Column of the keys, in an export of ours."""
    fields: dict[str, str] = field(default_factory=dict)
    """Column -> field, in an export of ours."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Column -> metadata column, in an export of ours."""
    source: dict[str, str] = field(default_factory=dict)
    """Column -> name of its provenance, in an export of ours."""

    @property
    def labels(self) -> list[str] | None:
        """Names of the one column of classes; None without, or of several."""
        return next(iter(self.classes.values())) if len(self.classes) == 1 else None


def features_of(schema: pa.Schema) -> Features:
    """Return the facts of a schema; ignores unexpected ones."""
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
    return Features(
        classes=classes,
        key=ours["key"] if isinstance(ours.get("key"), str) else None,
        fields=_names(ours, "fields"),
        metadata=_names(ours, "metadata"),
        source={column: name for column, name in _names(ours, "source").items() if name in SOURCE_COLUMNS},
    )


def check_labels(object_key: str, labels: list[str] | None, first: list[str] | None) -> None:
    """Raise InvalidSample for an object whose classes differ from the first one's."""
    if labels != first:
        raise InvalidSample(
            f"{object_key} has the classes {labels}, and the first object {first}: take them apart"
        )


def split_of(object_key: str) -> str:
    """Return the split in a file's name in the Hub's layout; "" without one."""
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
