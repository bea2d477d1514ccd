"""Gated transactions: parts that wait for a gate, and the verdict that publishes them.

`root.begin(gated=True)` records in the log that this commit must name a verdict: the record of a gate under `stages/`
(`penstock.stages`). Its `publishes` is the digest of the accepted change, its `against` the versions compared with. The
log refuses a commit without one; `root.publish` refuses every other change.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import Conflict, Corrupt, ObjectNotFound
from ...json_text import parse_json_object
from ...storage import Store, is_there
from ..log.entries import DAMAGED, canonical
from ..log.rules import ungated
from ..log.state import Txn
from ..shards.part import Part
from .commit import Onto

_RECORD = re.compile(r"stages/(?P<dataset>[^/]+)/[^/]+/[^/]+/(?P<r>[0-9]{12})\.json")


def digest_of(
    parts: Sequence[Part],
    exclude: Mapping[str, str],
    supersede: Mapping[str, str],
    foreign: Mapping[str, Any] | None = None,
) -> str:
    """Return the sha256 hex of a publish's additions and omissions, which a verdict names."""
    bodies = sorted((part.to_json() for part in parts), key=lambda body: str(body["id"]))
    content = [bodies, dict(exclude), dict(supersede), *([dict(foreign)] if foreign else [])]
    return hashlib.sha256(canonical(content)).hexdigest()


def check_verdict(
    store: Store,
    txn: Txn,
    verdict: str,
    parts: Sequence[Part],
    exclude: Mapping[str, str],
    supersede: Mapping[str, str],
    foreign: Mapping[str, Any] | None = None,
) -> list[Onto]:
    """Return further checks of a publish in an open transaction that is gated or shows this verdict ("" for none).

    Costs two requests. Raises: StageNotPublished for a missing verdict, one that is not `published`, or of another
    change; Conflict if a later verdict stands; Corrupt.
    """
    if not verdict:
        raise ungated(txn.txn, "no verdict was given")
    name = _RECORD.fullmatch(verdict)
    if name is None or name["dataset"] != txn.dataset:
        raise ungated(txn.txn, f"{verdict!r} is no record of a stage of {txn.dataset}")
    record = _record(store, txn, verdict)
    if record["verdict"] != "published":
        raise ungated(txn.txn, f"{verdict} is {record['verdict']!r}: {record.get('reason', '')}")
    if record["body"].get("publishes") != digest_of(parts, exclude, supersede, foreign):
        raise ungated(txn.txn, f"{verdict} is of other parts, or of other samples to leave out")
    later = f"{verdict.rpartition('/')[0]}/{int(name['r']) + 1:012d}.json"
    if is_there(store, later):
        raise Conflict(f"the verdict {verdict} holds no longer: {later} came after it")
    return [Onto(id) for id in (record["body"].get("against") or [])[:1]]


def _record(store: Store, txn: Txn, verdict: str) -> dict[str, Any]:
    try:
        record = parse_json_object(store.get(verdict).data)
        record["verdict"], record["body"].get
    except ObjectNotFound:
        raise ungated(txn.txn, f"there is no {verdict}") from None
    except DAMAGED as error:
        raise Corrupt(f"{store.url}/{verdict} is not a stage record ({error})") from error
    return dict(record)
