"""Records of exclusions that name denied samples: the names go, the others stay excluded.

A record keeps its path, which withdrawals name, and is deleted with its last sample.
"""

from collections.abc import Mapping
from typing import Any

from loader.dataset.log.entries import canonical
from loader.storage import Store

from ...denied.cells import OWN, TOLD
from ...denied.hashed_names import Marks
from ...denied.json_text import json_object
from .recorded_edits import Edits

FOLDER = "exclusions/"


def exclusion_edits(store: Store, dataset: str, marks: Marks) -> Edits:
    """Return the edits of a dataset's records. Costs a read of each. Raises: Corrupt; StoreError."""
    puts: dict[str, bytes] = {}
    gone: list[str] = []
    for info in store.list(f"{FOLDER}{dataset}/"):
        if not info.key.endswith(".json"):
            continue
        body = json_object(store.get(info.key).data, info.key, store.url)
        left = exclusion_without(body, marks)
        if left is None:
            gone.append(info.key)
        elif left != body:
            puts[info.key] = canonical(left)
    return Edits(puts=puts, deletes=tuple(gone))


def exclusion_without(body: Mapping[str, Any], marks: Marks) -> dict[str, Any] | None:
    """Return a record without denied samples, an equal one if it has none; None if no sample is left."""
    of = "keys" if "keys" in body else "samples"
    named = body.get(of)
    named = named if isinstance(named, list) else []
    left = [one for one in named if not _is_taken(one if isinstance(one, Mapping) else {"key": one}, marks)]
    if named and not left:
        return None
    told = {name: marks.without(body[name]) for name in TOLD if isinstance(body.get(name), str)}
    return {**body, **({of: left} if named else {}), **told}


def _is_taken(sample: Mapping[str, Any], marks: Marks) -> bool:
    return any(
        isinstance(value, str) and value and name in OWN and marks.takes(OWN[name], value)
        for name, value in sample.items()
    )
