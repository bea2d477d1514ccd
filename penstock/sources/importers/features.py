"""Facts that a table's schema carries beside its types: features of Hugging Face datasets, and names of our exports."""

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from loader.json_text import DamagedJson, parse_json_object

HUGGINGFACE, OURS = b"huggingface", b"penstock"
"""Keys of a schema's metadata."""


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
    source: tuple[str, ...] = ()
    """Columns of provenance, in an export of ours."""

    @property
    def labels(self) -> list[str] | None:
        """Names of the one column of classes; None without, or of several."""
        return next(iter(self.classes.values())) if len(self.classes) == 1 else None


def features_of(schema: pa.Schema, more: dict[str, Any] | None = None) -> Features:
    """Return the facts of a schema. more: features that stand beside the file, as in `dataset_info.json`."""
    told = schema.metadata or {}
    features = more if more is not None else _json(told.get(HUGGINGFACE)).get("info", {}).get("features")
    classes = {}
    for name, one in (features if isinstance(features, dict) else {}).items():
        if isinstance(one, dict) and one.get("_type") == "ClassLabel" and name in schema.names:
            names = one.get("names")
            if isinstance(names, list) and all(isinstance(each, str) for each in names):
                classes[name] = names
    ours = _json(told.get(OURS))
    try:
        return Features(
            classes=classes,
            key=ours.get("key"),
            fields={str(name): str(field) for name, field in ours.get("fields", {}).items()},
            metadata={str(name): str(column) for name, column in ours.get("metadata", {}).items()},
            source=tuple(ours.get("source", ())),
        )
    except (AttributeError, TypeError):
        return Features(classes=classes)


def _json(data: bytes | None) -> dict[str, Any]:
    try:
        return parse_json_object(data or b"{}")
    except DamagedJson:
        return {}
