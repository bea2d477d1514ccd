"""Store the wrong reads of a rank under `trainings/<run>/faults/`. A rank without any opens no store."""

import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import loader
from loader.dataset.log.entries import canonical
from loader.dataset.reading.read_faults import FAULTS, ReadFault
from loader.storage import Store

from ..units import utc_us
from .run_folder import FORMAT, RunFolder, read_object

_log = logging.getLogger(__name__)
EVERY_S = 10.0
"""Least seconds between two objects of a rank: a bad node is to be drained within a minute."""
CLOSE_S = 2.0
"""Seconds that the end of a run waits for the last object."""


class FaultRecord:
    """Wrong reads of this process from now on. facts: node, attempt and rank."""

    def __init__(self, record: str, run: str, facts: Mapping[str, Any]) -> None:
        self._record, self._run, self._facts = record, run, dict(facts)
        self._count, self._next_s = FAULTS.count, 0.0
        self._thread: threading.Thread | None = None

    def step(self) -> None:
        """Store new faults beside the training, if there are any. Costs a comparison."""
        if FAULTS.count == self._count or time.monotonic() < self._next_s:
            return
        if self._thread is None or not self._thread.is_alive():
            self._next_s = time.monotonic() + EVERY_S
            self._thread = threading.Thread(target=self._put, name="penstock-faults", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Store the last faults; wait for them, but not longer than `CLOSE_S`."""
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        self._next_s = 0.0
        self.step()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _put(self) -> None:
        count, faults = FAULTS.after(self._count)
        try:
            put_faults(RunFolder(loader.Root(self._record).store, self._run), self._facts, faults)
        except Exception as error:  # noqa: BLE001 - it costs the record, never the training; tried again later
            _log.warning("could not store %d wrong reads of %s: %s", len(faults), self._run, error)
        else:
            self._count = count


def put_faults(folder: RunFolder, facts: Mapping[str, Any], faults: Sequence[ReadFault]) -> None:
    """Store faults of a node. facts: node, attempt and rank."""
    at_us = utc_us()
    body = {
        "format": FORMAT,
        "at_us": at_us,
        **facts,
        "faults": [one.to_json() for one in faults],
    }
    name = f"faults/{at_us:016d}-{facts['node']}-{secrets.token_hex(4)}.json"
    folder.store.put_if_absent(folder.key(name), canonical(body))


def faults_in(store: Store, key: str) -> list[tuple[str, ReadFault]]:
    """Return (node, fault) of one object. Raises: Corrupt."""

    def parsed(body: dict[str, Any]) -> list[tuple[str, ReadFault]]:
        return [(str(body["node"]), ReadFault.from_json(fault)) for fault in body["faults"]]

    return read_object(store, key, "list of wrong reads", parsed)
