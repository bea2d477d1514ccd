"""Groups of the fields of registered samples: one of the fields that all samples have, and one of each other field."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loader.errors import FieldMismatch

from .shard_rows import Rows

COMMON = "media"
"""Group of the fields that all samples have."""


def groups_of(parts: Sequence[Rows], known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return field -> its group. known: groups of the dataset, as its newest manifest has them.

    Raises: FieldMismatch for parts that have some fields of a group, and not all.
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
    """Return the group of a field while not all samples are known, as `groups_of` has it of most places.

    It is the dataset's. A field that the dataset lacks has one of its own; of a new dataset, all samples have it.
    """
    group_of = {name: group for group, body in known.items() for name in body["field_nbytes"]}
    taken = {COMMON, *known}
    return lambda name: group_of.get(name) or (group_name(name, taken) if known else COMMON)


def group_name(field: str, taken: set[str]) -> str:
    """Return a name for the group of one field."""
    name = re.sub("[^a-z0-9_]", "_", field.lower()).lstrip("_")[:48] or "field"
    found, n = name, 1
    while found in taken:
        n += 1
        found = f"{name}_{n}"
    return found
