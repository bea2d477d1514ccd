"""The dtypes and row shapes of documents: read from the first one, and kept in the metadata of a packing table."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...errors import InvalidPlan
from ...json_text import parse_json
from ...keywords import is_whole_number
from ...modalities.array import NpyLayout
from ...order.sources.packing import PackBy
from ..shards.address import SampleAddress


class FieldFormats(NamedTuple):
    dtypes: dict[str, str]
    """Field -> dtype of its values, as numpy writes it (`<u2`)."""
    shapes: dict[str, tuple[int, ...]]
    """Field -> shape of a row, for fields with an array per row."""


def document_formats(
    address: SampleAddress,
    stored: Mapping[str, NpyLayout],
    asked: PackBy,
) -> FieldFormats:
    """Return the formats of a document's fields. Raises: InvalidPlan if they cannot be packed."""
    tokens = stored[asked.field]
    if len(tokens.shape) != 1:
        described = _describe(address, asked.field, tokens)
        raise InvalidPlan(
            f"pack: {described}; one dimension is needed",
            what=asked.field,
            where="pack",
            given=tokens.shape,
            accepted="one dimension",
        )
    (n_tokens,) = tokens.shape
    for field, layout in stored.items():
        if not layout.shape:
            described = _describe(address, field, layout)
            raise InvalidPlan(
                f"pack: {described}; rows are needed, [n] or [n, ...]",
                what=field,
                where="pack",
                given=layout.shape,
                accepted="[n] or [n, ...]",
            )
    for field in asked.side_names:
        layout = stored[field]
        n_rows = layout.shape[0]
        if n_rows != n_tokens:
            described = _describe(address, field, layout)
            raise InvalidPlan(
                f"pack: {described}, and {asked.field!r} has {n_tokens} tokens; a value or row is needed for "
                "each. Name fields with another number of rows in pack(ragged=)",
                what=field,
                where="pack",
                given=n_rows,
                accepted=n_tokens,
            )

    dtypes: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for field, layout in stored.items():
        dtype = layout.dtype
        dtypes[field] = dtype.str
        row_shape = layout.shape[1:]
        if row_shape:
            shapes[field] = row_shape
    return FieldFormats(dtypes, shapes)


def _describe(
    address: SampleAddress,
    field: str,
    layout: NpyLayout,
) -> str:
    return f"{address.describe(field)} is {layout.dtype} {list(layout.shape)}"


def formats_to_facts(asked: PackBy, formats: FieldFormats) -> dict[str, str]:
    """Return what a packing table keeps: texts by name."""
    facts = {"dtype": formats.dtypes[asked.field]}
    for name, fields in _list_fields(asked).items():
        if not fields:
            continue
        entries = []
        for field in fields:
            entry = _entry(field, formats)
            entries.append(entry)
        facts[name] = json.dumps(entries)
    return facts


def formats_from_facts(asked: PackBy, facts: Mapping[str, str]) -> FieldFormats | None:
    """Return the formats that `formats_to_facts` wrote; None for damaged ones."""
    try:
        formats = FieldFormats({}, {})
        _add_entry(formats, asked.field, facts["dtype"])
        for name, fields in _list_fields(asked).items():
            text = facts.get(name, "[]")
            entries = parse_json(text)
            for field, entry in zip(fields, entries, strict=True):
                _add_entry(formats, field, entry)
    except (KeyError, ValueError, TypeError):
        return None
    return formats


def _list_fields(asked: PackBy) -> dict[str, tuple[str, ...]]:
    """Return the name of a list in the table's metadata -> its fields."""
    return {"beside": asked.side_names, "ragged": asked.ragged}


def _entry(field: str, formats: FieldFormats) -> Any:
    """Return a field's JSON: its dtype, and its row's shape if it has one. An earlier release refuses the latter."""
    dtype = formats.dtypes[field]
    shape = formats.shapes.get(field)
    if shape is None:
        return dtype
    return [dtype, list(shape)]


def _add_entry(
    formats: FieldFormats,
    field: str,
    entry: Any,
) -> None:
    """Add a field's JSON. Raises: ValueError or TypeError for damaged JSON."""
    dtype = entry
    if isinstance(entry, list):
        dtype, shape = entry
        formats.shapes[field] = check_shape(shape)
    np.dtype(dtype)  # TypeError for a text that names none
    formats.dtypes[field] = dtype


def check_shape(shape: Any) -> tuple[int, ...]:
    """Return the shape of a row from JSON. Raises: ValueError."""
    sizes = list(shape)
    for size in sizes:
        if not is_whole_number(size, 0):
            raise ValueError(f"{shape!r} is not a shape")
    return tuple(sizes)
