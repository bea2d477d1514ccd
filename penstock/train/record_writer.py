"""Write the record of a start beside the training. A store that fails costs the record, never the training."""

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import loader
from loader.dataset.log.entries import canonical
from loader.dataset.log.marker import create_root_if_empty
from loader.dataset.reading.read_faults import FAULTS, ReadFault
from loader.errors import PenstockError
from loader.storage import ObjectInfo, Store

from ..units import utc_us
from .code.code_record import CodeRecord, ScriptCode, code_of_script
from .intervals import interval_bytes
from .record_objects.json_object import read_object
from .run_folder import FORMAT, RunFolder

_log = logging.getLogger(__name__)
CLOSE_S = 4.0
"""Seconds that the end of a run waits for the last writes: with the other waits, below a grace of 30 s."""
CODE_S = 2.0
"""Seconds that the end of a run waits for git."""
MOST_TABLES = 60
MOST_BYTES = 64 * 2**20
"""Intervals and traces that wait for a store that fails, and the bytes of these intervals; older ones are lost."""
MOST_EVENTS = 1000
"""Most events that wait for it; beyond that, the oldest checkpoint's is lost, or else the oldest."""


class _Write(NamedTuple):
    put: Callable[[], None]
    event: str = ""
    """Name of an event; "" for a table."""
    nbytes: int = 0
    """Bytes of an interval."""


class RunRecord:
    """Events, intervals and traces of one start, stored in order by a thread. Thread-safe."""

    def __init__(self, store: Store, run: str, facts: Mapping[str, Any]) -> None:
        self._folder = RunFolder(store, run)
        # The id: two starts never have equal bytes, by which a repeated request finds its own object.
        self._facts = {"at_us": utc_us(), "id": secrets.token_hex(8), **facts}
        self._waiting: list[_Write] = []
        self._changed = threading.Condition()
        self._is_new = False
        self._ends = False
        self._attempt = 0
        self._number = 0
        self._code: threading.Thread | None = None
        self._thread = threading.Thread(target=self._write, name="penstock-record", daemon=True)
        self._thread.start()

    def event(self, name: str, step: int, at_us: int | None = None, **facts: Any) -> None:
        """Note an event: what happened after how many steps, and integers or texts about it. at_us: None for now."""
        at_us = utc_us() if at_us is None else at_us
        self._add(_Write(partial(self._put_event, name, step, at_us, facts), event=name))

    def code(self) -> None:
        """Store the code of the script, by a thread of its own: git may take seconds."""
        self._code = threading.Thread(target=self._add_code, name="penstock-code", daemon=True)
        self._code.start()

    def _add_code(self) -> None:
        try:
            code = code_of_script()
        except Exception as error:  # noqa: BLE001 - it costs the record, never the training
            _log.warning("could not read the code of %s: %s", self._folder.run, error)
            return
        if code is not None:
            self._add(_Write(partial(self._put_code, code)))

    def _put_code(self, code: ScriptCode) -> None:
        attempt = self._begun()
        CodeRecord(self._folder.store, self._folder.key("")).put(attempt, code)

    def interval(self, rows: bytes) -> None:
        """Store the gathered rows of an interval."""
        self._add(_Write(partial(self._put_interval, rows), nbytes=len(rows)))

    def trace(self, name: str, data: Callable[[], bytes]) -> None:
        """Store a profiler's trace, whose bytes the thread makes; its name ends with their hash."""
        self._add(_Write(partial(self._put_trace, name, cache(data))))

    def close(self) -> None:
        """Wait for the last writes, but not longer than `CLOSE_S`; before it for the code of a short run."""
        if self._code is not None:
            self._code.join(CODE_S)
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            _log.warning(
                "the last events of %s are not stored: %s is slow", self._folder.run, self._folder.store.url
            )

    def _add(self, write: _Write) -> None:
        with self._changed:
            self._waiting = _limit_writes([*self._waiting, write])
            self._is_new = True
            self._changed.notify()

    def _write(self) -> None:
        ends = False
        while not ends:
            with self._changed:
                self._changed.wait_for(lambda: self._is_new or self._ends)
                waiting = self._waiting
                ends = self._ends
                self._waiting = []
                self._is_new = False
            failed = self._try_writes(waiting)
            with self._changed:
                self._waiting = _limit_writes([*failed, *self._waiting])

    def _try_writes(self, waiting: list[_Write]) -> list[_Write]:
        """Write what can be written, events in order; return what is to be tried again with the next write."""
        failed: list[_Write] = []
        for write in waiting:
            # A store that fails is asked once for a table, and once for an event.
            if any(one.event or not write.event for one in failed):
                failed.append(write)
                continue
            try:
                write.put()
            except Exception as error:  # noqa: BLE001 - it costs the record, never the training
                _log.warning("could not store an object of %s: %s", self._folder.run, error)
                # A table whose bytes cannot be made fails each time; only the store's failures pass.
                if write.event or isinstance(error, PenstockError):
                    failed.append(write)
        return failed

    def _begun(self) -> int:
        """Return the number of the start, which is stored before all else of it."""
        # Only the writing thread calls it, so no lock is needed.
        self._attempt = self._attempt or self._folder.begin_attempt(self._facts)
        return self._attempt

    def _put_event(self, name: str, step: int, at_us: int, facts: Mapping[str, Any]) -> None:
        self._folder.put_event(self._begun(), self._number, name, step, facts, at_us)
        self._number += 1

    def _put_interval(self, rows: bytes) -> None:
        end_step, data = interval_bytes(rows)
        self._folder.put_interval(self._begun(), end_step, data)

    def _put_trace(self, name: str, data: Callable[[], bytes]) -> None:
        trace = data()
        self._folder.put_trace(f"{name}-{hashlib.sha256(trace).hexdigest()[:16]}.json.gz", trace)


def _limit_writes(writes: list[_Write]) -> list[_Write]:
    """Return the writes that may go on waiting, in order."""
    tables, events = ([one for one in writes if bool(one.event) is kind] for kind in (False, True))
    while len(tables) > MOST_TABLES or (len(tables) > 1 and sum(one.nbytes for one in tables) > MOST_BYTES):
        writes.remove(tables.pop(0))
    while len(events) > MOST_EVENTS:
        # A lost "saved" costs a line of goodput; a lost "first_batch" would cost the start's.
        lost = next((one for one in events if one.event == "saved"), events[0])
        events.remove(lost)
        writes.remove(lost)
    return writes


FAULTS_EVERY_S = 10.0
"""Least seconds between two objects of a rank: a bad node is to be drained within a minute."""
FAULTS_CLOSE_S = 2.0
"""Seconds that the end of a run waits for the last object."""


class FaultRecord:
    """Wrong reads of this process from now on. facts: node, attempt and rank."""

    def __init__(self, record: str, run: str, facts: Mapping[str, Any]) -> None:
        """record: URL of the root that has the run's record."""
        self._record = record
        self._run = run
        self._facts = dict(facts)
        self._n_stored = FAULTS.count  # earlier faults of this process count as stored
        self._next_write_s = 0.0  # of the monotonic clock
        self._thread: threading.Thread | None = None

    def step(self) -> None:
        """Store new faults beside the training, if there are any. Costs a comparison."""
        if FAULTS.count == self._n_stored or time.monotonic() < self._next_write_s:
            return
        if self._thread is None or not self._thread.is_alive():
            self._next_write_s = time.monotonic() + FAULTS_EVERY_S
            self._thread = threading.Thread(target=self._put, name="penstock-faults", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Store the last faults; wait for them, but not longer than `FAULTS_CLOSE_S`."""
        if self._thread is not None:
            self._thread.join(FAULTS_CLOSE_S)
        self._next_write_s = 0.0
        self.step()
        if self._thread is not None:
            self._thread.join(FAULTS_CLOSE_S)

    def _put(self) -> None:
        count, faults = FAULTS.after(self._n_stored)
        try:
            put_faults(RunFolder(loader.Root(self._record).store, self._run), self._facts, faults)
        except Exception as error:  # noqa: BLE001 - it costs the record, never the training; tried again later
            _log.warning("could not store %d wrong reads of %s: %s", len(faults), self._run, error)
        else:
            self._n_stored = count


def put_faults(folder: RunFolder, facts: Mapping[str, Any], faults: Sequence[ReadFault]) -> None:
    """Store faults of a node. facts: node, attempt and rank."""
    at_us = utc_us()
    body = {
        "format": FORMAT,
        "at_us": at_us,
        **facts,
        "faults": [one.to_json() for one in faults],
    }
    create_root_if_empty(folder.store)  # a rank may find a fault before the first one has stored the start
    name = f"faults/{at_us:016d}-{facts['node']}-{secrets.token_hex(4)}.json"
    folder.store.put_if_absent(folder.key(name), canonical(body))


MOST_FAULT_BYTES = 8 * 2**20
"""Larger lists of faults are not read: 1,000 faults have 3 MB."""


def parse_faults(store: Store, info: ObjectInfo) -> list[tuple[str, ReadFault]]:
    """Return (node, fault) of a listed object. Raises: Corrupt."""

    def parse(body: dict[str, Any]) -> list[tuple[str, ReadFault]]:
        return [(str(body["node"]), ReadFault.from_json(fault)) for fault in body["faults"]]

    what = "list of wrong reads"
    return read_object(store, info.key, what, parse, nbytes=info.nbytes, most=MOST_FAULT_BYTES)
