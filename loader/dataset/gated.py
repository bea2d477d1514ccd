"""Gated transactions: parts that wait for a verdict, and what has to be shown to publish them.

`root.begin(gated=True)` writes into the log that this transaction's commit names a verdict: the record of a gate under
`stages/`, whose `body` says which parts it let pass (`txn`, `publishes`) and against which versions it judged them.
Who publishes the parts in another way than the gate's, by hand or by mistake, is refused, and an entry of the log that
commits them without a verdict is no entry.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import Corrupt, ObjectNotFound
from ..storage import Store
from .decide import ungated
from .entries import canonical
from .part import Part
from .publish import Onto


def publishes(parts: Sequence[Part], exclude: Mapping[str, str], supersede: Mapping[str, str]) -> str:
    """sha256 hex of what a publish adds and leaves out: what a verdict is of."""
    bodies = sorted((part.to_json() for part in parts), key=lambda body: str(body["id"]))
    return hashlib.sha256(canonical([bodies, dict(exclude), dict(supersede)])).hexdigest()


def check_verdict(store: Store, dataset: str, txn: str, verdict: str, what: str) -> list[Onto]:
    """What else a publish has to keep to that shows this verdict. what: of `publishes`. Costs two requests.

    Raises: StageNotPublished for a verdict that is not there, is not of these parts, or was not `published`, also
    where another came after it; Corrupt.
    """
    record = _record(store, dataset, txn, verdict)
    folder, _, name = verdict.rpartition("/")
    later = f"{folder}/{int(name.removesuffix('.json')) + 1:012d}.json"
    if record["verdict"] != "published":
        raise ungated(txn, f"{verdict} says {record['verdict']!r}: {record.get('reason', '')}")
    if (record["body"].get("txn"), record["body"].get("publishes")) != (txn, what):
        raise ungated(txn, f"{verdict} is of other parts, or of other samples to leave out")
    if _exists(store, later):
        raise ungated(txn, f"{later} came after {verdict}")
    return [Onto(id) for id in (record["body"].get("against") or [])[:1]]


def _record(store: Store, dataset: str, txn: str, verdict: str) -> dict[str, Any]:
    where = verdict.split("/")
    if len(where) != 5 or where[:2] != ["stages", dataset] or not where[4][:-5].isdigit():
        raise ungated(txn, f"{verdict!r} is no record of a stage of {dataset}")
    try:
        record = json.loads(store.get(verdict).data)
        record["verdict"], record["body"].get
    except ObjectNotFound:
        raise ungated(txn, f"there is no {verdict}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{store.url}/{verdict} is not a stage record ({error})") from error
    return dict(record)


def _exists(store: Store, key: str) -> bool:
    try:
        store.head(key)
    except ObjectNotFound:
        return False
    return True
