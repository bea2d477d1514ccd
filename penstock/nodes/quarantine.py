"""Cases of quarantine in a record: `nodes/q-41/` holds the evidence, the drain and the return, each created once."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loader.dataset.log.entries import canonical
from loader.errors import AlreadyExists, Corrupt
from loader.storage import Store

from ..checkpoints.ranks import several
from ..train.run_folder import read_object
from .suspects import Drain, NodeFault

FORMAT = 1
FOLDER = "nodes/"
ALERTS = "nodes/alerts/"
REASON = re.compile(r"penstock q-([0-9]+): ")
"""Beginning of the reason of each node that penstock drained."""
_CASE = re.compile(r"nodes/q-([0-9]+)/(case|drained|returned)\.json")
AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A node, and why it was drained."""

    number: int
    """Number of the case, from 1 on."""
    node: str
    """Name of the node."""
    opened_us: int
    """UTC microseconds of the evidence."""
    text: str
    """Figures, such as "4 wrong of 1,912 reads"."""
    drained_us: int | None = None
    """UTC microseconds of the drain; None before it."""
    returned_us: int | None = None
    """UTC microseconds of the return; None before it."""

    @property
    def reason(self) -> str:
        """Reason that the scheduler shows."""
        return f"penstock q-{self.number}: {self.text}"

    @property
    def is_open(self) -> bool:
        """True while the node is drained for it."""
        return self.drained_us is not None and self.returned_us is None


def case_number(reason: str) -> int | None:
    """Return the number of the case that drained a node; None if its reason is not penstock's."""
    match = REASON.match(reason)
    return int(match[1]) if match else None


def cases(store: Store) -> list[Case]:
    """Return all cases, by number. Costs a listing, and a request per object of a case. Raises: Corrupt."""
    keys = [
        (int(match[1]), match[2], info.key)
        for info in store.list(f"{FOLDER}q-")
        if (match := _CASE.fullmatch(info.key))
    ]
    bodies = several(lambda key: _object(store, key[2]), keys, at_once=AT_ONCE)
    facts: dict[int, dict[str, dict[str, Any]]] = {}
    for (number, name, _), body in zip(keys, bodies, strict=True):
        facts.setdefault(number, {})[name] = body
    try:
        return [
            Case(
                number=number,
                node=str(own["case"]["node"]),
                opened_us=int(own["case"]["at_us"]),
                text=str(own["case"]["text"]),
                drained_us=int(own["drained"]["at_us"]) if "drained" in own else None,
                returned_us=int(own["returned"]["at_us"]) if "returned" in own else None,
            )
            for number, own in sorted(facts.items())
            if "case" in own
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{store.url}/{FOLDER}: a case lacks {error}") from error


def case_faults(store: Store, number: int) -> list[NodeFault]:
    """Return the wrong reads in a case's evidence. Raises: Corrupt."""
    try:
        return [
            NodeFault(**fault) for fault in _object(store, f"{FOLDER}q-{number}/case.json").get("faults", [])
        ]
    except TypeError as error:
        raise Corrupt(f"{store.url}/{FOLDER}q-{number}/case.json: {error}") from error


def open_case(store: Store, node: str, text: str, evidence: Mapping[str, Any], by: str) -> Case:
    """Store the evidence against a node under the next number."""
    at_us = time.time_ns() // 1000
    body = canonical({"format": FORMAT, "node": node, "at_us": at_us, "text": text, "by": by, **evidence})
    numbers = [int(match[1]) for info in store.list(f"{FOLDER}q-") if (match := _CASE.fullmatch(info.key))]
    number = max(numbers, default=0) + 1
    while True:
        try:
            store.put_if_absent(f"{FOLDER}q-{number}/case.json", body)
        except AlreadyExists:
            number += 1
        else:
            return Case(number=number, node=node, opened_us=at_us, text=text)


def put_drained(store: Store, number: int, by: str) -> None:
    """Store the drain of a case, once."""
    _put_once(store, f"{FOLDER}q-{number}/drained.json", by)


def put_returned(store: Store, number: int, by: str) -> None:
    """Store the return of a case, once."""
    _put_once(store, f"{FOLDER}q-{number}/returned.json", by)


def _put_once(store: Store, key: str, by: str) -> None:
    try:
        store.put_if_absent(key, canonical({"format": FORMAT, "at_us": time.time_ns() // 1000, "by": by}))
    except AlreadyExists:
        return


def drains(known: list[Case]) -> list[Drain]:
    """Return the drains of cases, for the caps."""
    return [
        Drain(node=case.node, drained_us=case.drained_us, returned_us=case.returned_us)
        for case in known
        if case.drained_us is not None
    ]


def settled_us(known: list[Case]) -> dict[str, int]:
    """Return node -> time of its last drain or return: older signs no longer count."""
    times: dict[str, int] = {}
    for case in known:
        for at_us in (case.drained_us, case.returned_us):
            times[case.node] = max(times.get(case.node, 0), at_us or 0)
    return times


def put_alert(store: Store, text: str) -> None:
    """Store an alert."""
    at_us = time.time_ns() // 1000
    store.put_if_absent(
        f"{ALERTS}{at_us:016d}.json", canonical({"format": FORMAT, "at_us": at_us, "text": text})
    )


def alerts_us(store: Store) -> list[int]:
    """Return the times of all alerts."""
    names = (info.key.removeprefix(ALERTS).removesuffix(".json") for info in store.list(ALERTS))
    return sorted(int(name) for name in names if name.isdigit())


def _object(store: Store, key: str) -> dict[str, Any]:
    return read_object(store, key, "JSON object", dict)
