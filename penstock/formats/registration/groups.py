"""Group the fields of registered samples: one group for fields that all samples have, one for each other field."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loader.errors import FieldMismatch

from .shard_rows import Rows

COMMON = "media"
"""Group of the fields that all samples have."""


def groups_of(parts: Sequence[Rows], known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return field -> group. known: groups in the newest manifest of the dataset.

    Raises: FieldMismatch for parts with only some fields of a group.
    """
    group_of = {name: group for group, body in known.items() for name in body["field_nbytes"]}
    every = sorted({name for rows in parts for name in rows.fields})
    common = set.intersection(*(set(rows.fields) for rows in parts)) if not known else set()
    for name in every:
        if name in common:
            group_of[name] = COMMON
        elif name not in group_of:
            group_of[name] = group_name(name, {COMMON, *group_of.values()})
    members: dict[str, set[str]] = {}
    for name, group in group_of.items():
        members.setdefault(group, set()).add(name)
    for rows in parts:
        for group in {group_of[name] for name in rows.fields}:
            if missing := sorted(members[group] - set(rows.fields)):
                raise FieldMismatch(
                    f"{rows.objects[0]}, sample {rows.source_keys[0]!r} has no field {missing[0]!r}, which all had "
                    f"that were registered before with {sorted(members[group] & set(rows.fields))}: register the "
                    "place under another name"
                )
    return group_of


def group_guessed(known: Mapping[str, Mapping[str, Any]]) -> Callable[[str], str]:
    """Return the probable group of a field, before all samples are known.

    A field of the dataset keeps its group. A field that the dataset lacks gets its own; in a new dataset it is
    common.
    """
    group_of = {name: group for group, body in known.items() for name in body["field_nbytes"]}
    in_use = {COMMON, *known}
    return lambda name: group_of.get(name) or (group_name(name, in_use) if known else COMMON)


def group_name(field: str, in_use: set[str]) -> str:
    """Return a free name for the group of one field."""
    name = re.sub("[^a-z0-9_]", "_", field.lower()).lstrip("_")[:48] or "field"
    free, n = name, 1
    while free in in_use:
        n += 1
        free = f"{name}_{n}"
    return free
