"""Write the record of a start beside the training. A store that fails costs the record, never the training."""

import logging
import queue
import threading
from collections.abc import Mapping
from typing import Any

from loader.storage import Store

from .run_folder import RunFolder

_log = logging.getLogger(__name__)
CLOSE_S = 10.0
"""Seconds that the end of a run waits for the last events."""


class RunRecord:
    """Events of one start, stored in order by a thread. Thread-safe."""

    def __init__(self, store: Store, run: str, facts: Mapping[str, Any]) -> None:
        self._folder, self._facts = RunFolder(store, run), dict(facts)
        self._events: queue.SimpleQueue[tuple[str, int, dict[str, Any]] | None] = queue.SimpleQueue()
        self._attempt, self._number = 0, 0
        self._thread = threading.Thread(target=self._write, name="penstock-record", daemon=True)
        self._thread.start()

    def event(self, name: str, step: int, **facts: Any) -> None:
        """Note an event: what happened after how many steps, and integers or texts about it."""
        self._events.put((name, step, facts))

    def close(self) -> None:
        """Wait for the last events, but not longer than `CLOSE_S`."""
        self._events.put(None)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            _log.warning(
                "the last events of %s are not stored: %s is slow", self._folder.run, self._folder.store.url
            )

    def _write(self) -> None:
        waiting: list[tuple[str, int, dict[str, Any]]] = []
        while True:
            event = self._events.get()
            if event is not None:
                waiting.append(event)
            try:
                self._attempt = self._attempt or self._folder.begin_attempt(self._facts)
                while waiting:
                    name, step, facts = waiting[0]
                    self._folder.put_event(self._attempt, self._number, name, step, facts)
                    self._number += 1
                    waiting.pop(0)
            except Exception as error:  # noqa: BLE001 - it is tried again with the next event
                _log.warning("could not store %d events of %s: %s", len(waiting), self._folder.run, error)
            if event is None:
                return
