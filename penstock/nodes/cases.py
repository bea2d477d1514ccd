"""Cases against nodes in a record: `nodes/q-41/` holds the evidence, the drain and the return, each created once.

A case takes the first free number. If two watchers decide at once, one creates it, and the other reads it and decides
again, so the caps hold for all watchers together. Only nodes whose reason at the scheduler begins with `REASON` are
checked and returned.
"""

import heapq
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from loader.dataset.log.entries import DAMAGED, canonical
from loader.dataset.log.marker import create_root_if_empty
from loader.errors import AlreadyExists, Conflict, Corrupt, ObjectNotFound, StoreError
from loader.keywords import is_whole_number
from loader.storage import Store

from ..checkpoints.ranks import map_in_order
from ..text import clean
from ..train.record_objects.json_object import read_object
from ..units import utc_us
from .caps import DRAIN_EVERY_US, Drain
from .suspects import ALERT_EVERY_US, CLOCKS_US, MINUTE_US, NodeFault, is_node

_log = logging.getLogger(__name__)
FORMAT = 1
FOLDER = "nodes/"
ALERTS = "nodes/alerts/"
REASON = re.compile(r"penstock q-([1-9][0-9]{0,8}): ")
"""Beginning of the reason of each node that penstock drained."""
_CASE = re.compile(r"nodes/q-([1-9][0-9]{0,8})/(case|drained|returned)\.json")
_ALERT = re.compile(r"nodes/alerts/([0-8][0-9]{15})\.json")
AT_ONCE = 16
ALERTS_READ = 256
"""Newest alerts that are read: older ones are of other days, unless nodes by the hundred are bad."""
TEXT = 160
"""Most characters of a reason."""
MOST_BYTES = 8 * 2**20
"""Larger objects are damaged: a case has 1,000 faults and the output of its checks."""
AHEAD_US = 60 * MINUTE_US
"""Times further in the future are damaged; nearer ones count as now."""
ENDS = ("drained", "returned")
"""Names of the objects that follow a case."""


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

    @property
    def is_pending(self) -> bool:
        """True from the evidence to the drain."""
        return self.drained_us is None and self.returned_us is None


def case_number(reason: str) -> int | None:
    """Return the number of the case that drained a node; None if its reason is not penstock's."""
    match = REASON.match(reason)
    if match:
        return int(match[1])
    return None


def reason_text(text: str) -> str:
    """Return text as a scheduler's reason shows it."""
    return clean(text, TEXT)


class CaseBook:
    """The cases of a record. Each reading lists them, and reads new objects."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cases: dict[int, Case] = {}
        self._keys: set[tuple[int, str]] = set()
        self._alerts: dict[str, int] | None = None  # what an alert is about -> time of the newest one
        self._last_alert = 0

    def read(self) -> list[Case]:
        """Return all cases, by number. Damaged ones are logged once, and left out. Raises: StoreError."""
        matches = [_CASE.fullmatch(info.key) for info in self._store.list(f"{FOLDER}q-")]
        keys = {(int(match[1]), match[2]) for match in matches if match}
        new = sorted(keys - self._keys)  # "case" comes before its ends
        bodies = map_in_order(lambda key: self._object(*key), new, at_once=AT_ONCE)
        for (number, name), body in zip(new, bodies, strict=True):
            if name == "case":
                self._add(number, body or {})
            elif body is not None:
                self._end(number, name, body)
        self._keys = keys
        # A case that a person deleted is gone, with its place in the caps.
        self._cases = {number: case for number, case in self._cases.items() if (number, "case") in keys}
        return self.cases

    @property
    def cases(self) -> list[Case]:
        """The cases as last read, by number."""
        return [self._cases[number] for number in sorted(self._cases)]

    def open(self, node: str, text: str, evidence: Mapping[str, Any], by: str) -> Case:
        """Store the evidence against a node under the first free number.

        Raises: Conflict if another process took the number: what it did counts, so read and decide again.
        """
        number = next(number for number in count(1) if (number, "case") not in self._keys)
        at_us = utc_us()
        text = reason_text(text)
        body = {"format": FORMAT, "node": node, "at_us": at_us, "text": text, "by": by, **evidence}
        create_root_if_empty(self._store)
        try:
            self._store.put_if_absent(_key(number, "case"), canonical(body))
        except AlreadyExists:
            raise Conflict(f"{self._store.url}/{_key(number, 'case')} was opened meanwhile") from None
        self._keys.add((number, "case"))
        self._cases[number] = Case(number=number, node=node, opened_us=at_us, text=text)
        return self._cases[number]

    def put_end(self, number: int, name: str, by: str) -> None:
        """Store the drain or the return of a case, once. name: one of `ENDS`."""
        at_us = utc_us()
        body = {"format": FORMAT, "at_us": at_us, "by": by}
        try:
            self._store.put_if_absent(_key(number, name), canonical(body))
        except AlreadyExists:
            stored = self._object(number, name)
            # The first watcher's time counts, since all watchers must compute the same caps. A damaged end has none.
            if stored and _object_time(stored) is not None:
                body = stored
        self._end(number, name, body)

    def faults(self, number: int) -> list[NodeFault]:
        """Return the wrong reads in a case's evidence; none if it is damaged."""
        body = self._object(number, "case") or {}
        try:
            return [fault for one in body.get("faults", ())[:1000] if (fault := NodeFault(**one)).is_valid]
        except DAMAGED as error:
            _log.warning("%s/%s has damaged faults: %s", self._store.url, _key(number, "case"), error)
            return []

    def sign(self, number: int) -> str:
        """Return the sign in a case's evidence; "" if it is damaged, or a person's."""
        return str((self._object(number, "case") or {}).get("sign", ""))

    def alert_us(self, about: str = "") -> int:
        """Return the time of the newest alert about something, UTC microseconds; 0 without one.

        about: "" for the caps, else a node and what is wrong with it. The first call lists the alerts.
        """
        return self._load_alerts().get(about, 0)

    def put_alert(self, text: str, about: str = "") -> bool:
        """Store an alert under the number after the newest one; return False if another process did."""
        alerts = self._load_alerts()
        at_us = utc_us()
        body: dict[str, Any] = {"format": FORMAT, "at_us": at_us, "text": text}
        if about:
            body["about"] = about
        create_root_if_empty(self._store)
        while True:
            # The next number, created once: two watchers raise one alert.
            number = self._last_alert + 1
            key = f"{ALERTS}{number:016d}.json"
            try:
                self._store.put_if_absent(key, canonical(body))
            except AlreadyExists:  # another watcher's, an old one that no listing shows, or a damaged one
                _note_alert(alerts, self._body(key) or {})
                self._last_alert = number  # after the read: a number that could not be read is read again
                if alerts.get(about, 0) > at_us - ALERT_EVERY_US:
                    return False
            except StoreError:
                # It may be stored, and would count as another watcher's, so no watcher would show it.
                self._last_alert = number
                raise
            else:
                self._last_alert = number
                alerts[about] = at_us
                return True

    def _load_alerts(self) -> dict[str, int]:
        """Return what alerts are about -> time of the newest one. Lists them once."""
        if self._alerts is None:
            matches = (_ALERT.fullmatch(info.key) for info in self._store.list(ALERTS))
            numbers = heapq.nlargest(ALERTS_READ, (int(match[1]) for match in matches if match))
            keys = [f"{ALERTS}{number:016d}.json" for number in numbers]
            alerts: dict[str, int] = {}
            for body in map_in_order(self._body, keys, at_once=AT_ONCE):
                _note_alert(alerts, body or {})
            # After the reads: if the store fails, the next call lists the alerts again.
            self._last_alert = max(numbers, default=0)
            self._alerts = alerts
        return self._alerts

    def _add(self, number: int, body: Mapping[str, Any]) -> None:
        """Add the case of an object `case.json`, unless it is damaged."""
        node = body.get("node")
        text = body.get("text")
        at_us = _object_time(body)
        if at_us is None or not isinstance(text, str) or not is_node(node):
            _log.warning("%s/%s is not a case: it is left out", self._store.url, _key(number, "case"))
            return
        self._cases[number] = Case(number=number, node=str(node), opened_us=at_us, text=reason_text(text))

    def _end(self, number: int, name: str, body: Mapping[str, Any]) -> None:
        """Add the drain or the return to a case. name: one of `ENDS`. body: its object, which may be damaged."""
        at_us = _object_time(body)
        if number not in self._cases or at_us is None:
            return
        case = self._cases[number]
        if name == "drained":
            self._cases[number] = replace(case, drained_us=at_us)
        else:
            self._cases[number] = replace(case, returned_us=at_us)

    def _object(self, number: int, name: str) -> dict[str, Any] | None:
        return self._body(_key(number, name))

    def _body(self, key: str) -> dict[str, Any] | None:
        """Return an object's JSON; {} if it is damaged, None if there is none."""
        try:
            return read_object(self._store, key, "object of a case", dict, most=MOST_BYTES)
        except ObjectNotFound:
            return None
        except Corrupt as error:
            _log.warning("%s", error)
            return {}


def drains(known: Sequence[Case], now_us: int, own: Collection[int] = ()) -> list[Drain]:
    """Return the drains of cases, for the caps. A new case counts from its evidence on.

    own: Numbers of the cases whose times are by the clock of `now_us`. Other watchers' clocks may be behind it.
    """
    results = []
    for case in known:
        late_us = 0
        if case.number not in own:
            # Assume that the other clock is behind, so the caps err towards waiting.
            late_us = CLOCKS_US
        if not case.is_pending or case.opened_us + late_us > now_us - DRAIN_EVERY_US:
            at_us = (case.drained_us or case.opened_us) + late_us
            results.append(Drain(node=case.node, drained_us=at_us, returned_us=case.returned_us))
    return results


def settlement_us(known: Sequence[Case]) -> dict[str, int]:
    """Return node -> time of its last drain or return: older signs no longer count."""
    times: dict[str, int] = {}
    for case in known:
        for at_us in (case.drained_us, case.returned_us):
            times[case.node] = max(times.get(case.node, 0), at_us or 0)
    return times


def _key(number: int, name: str) -> str:
    return f"{FOLDER}q-{number}/{name}.json"


def _note_alert(alerts: dict[str, int], body: Mapping[str, Any]) -> None:
    """Add an alert to the newest ones. alerts: what each is about -> its time."""
    about = body.get("about", "")
    at_us = _object_time(body)
    if isinstance(about, str) and at_us is not None:
        alerts[about] = max(at_us, alerts.get(about, 0))


def _object_time(body: Mapping[str, Any]) -> int | None:
    """Return the time of an object, at most now; None if it is no time."""
    at_us = body.get("at_us")
    now_us = utc_us()
    # A time far ahead would block every drain until then.
    if is_whole_number(at_us, 1, now_us + AHEAD_US - 1):
        return min(at_us, now_us)
    return None
