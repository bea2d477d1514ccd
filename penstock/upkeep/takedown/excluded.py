"""Records of exclusions that name denied samples: the names go, other samples stay excluded.

A record keeps its path, which withdrawals name, and is deleted with its last sample.
"""

from collections.abc import Mapping
from typing import Any

from loader.dataset.log.entries import canonical
from loader.storage import Store

from ...denied.cells import OWN, WORDS
from ...denied.hashed_names import Marks
from ...denied.json_text import json_object
from .recorded_edits import Edits

FOLDER = "exclusions/"


def exclusion_edits(store: Store, dataset: str, marks: Marks) -> Edits:
    """Return the edits of a dataset's records. Costs a read of each. Raises: Corrupt; StoreError."""
    puts: dict[str, bytes] = {}
    deletes: list[str] = []
    for info in store.list(f"{FOLDER}{dataset}/"):
        if not info.key.endswith(".json"):
            continue
        body = json_object(store.get(info.key).data, info.key, store.url)
        edited = exclusion_without(body, marks)
        if edited is None:
            deletes.append(info.key)
        elif edited != body:
            puts[info.key] = canonical(edited)
    return Edits(puts=puts, deletes=tuple(deletes))


def exclusion_without(body: Mapping[str, Any], marks: Marks) -> dict[str, Any] | None:
    """Return a record without denied samples, an equal one if it has none, or None if no sample is left."""
    of = "keys" if "keys" in body else "samples"
    named = body.get(of)
    named = named if isinstance(named, list) else []
    kept = [one for one in named if not _is_taken(one if isinstance(one, Mapping) else {"key": one}, marks)]
    if named and not kept:
        return None
    words = {name: marks.without(body[name]) for name in WORDS if isinstance(body.get(name), str)}
    return {**body, **({of: kept} if named else {}), **words}


def _is_taken(sample: Mapping[str, Any], marks: Marks) -> bool:
    return any(
        isinstance(value, str) and value and name in OWN and marks.takes(OWN[name], value)
        for name, value in sample.items()
    )
