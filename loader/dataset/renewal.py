"""One thread of a process that renews all of its leases, as long as there are any."""

import logging
import random
import threading
from typing import Protocol

from ..storage import fork
from ..storage.threads import ends_with_the_process

RENEW_EVERY_S = 300.0
"""At most so long lies between two renewals: twelve an hour and process, where a collector waits for days."""
JOIN_S = 1.0
"""What giving the last lease back waits for the thread, which may be in a request."""
# Of the operating system: ranks that seed `random` alike must not all renew in one moment.
_chance = random.SystemRandom()
_log = logging.getLogger(__name__)


class Renewed(Protocol):
    """What is renewed."""

    def beat(self) -> object:
        """Once; logs what goes wrong, and raises nothing."""


class Renewal:
    """Beats for whoever was added, in a daemon thread that is there while somebody is."""

    def __init__(self) -> None:
        self.begin_anew()
        fork.begins_anew(self)
        ends_with_the_process(self)

    def begin_anew(self) -> None:
        """Nobody is renewed, and there is no thread: as in a forked child."""
        self._lock = threading.RLock()  # reentrant: see `Lease`
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed: dict[int, Renewed] = {}

    def add(self, one: Renewed) -> None:
        """Beat for it from now on; again is no change. Raises: RuntimeError where no thread can be started."""
        with self._lock:
            self._renewed[id(one)] = one
            if self._thread is None:
                stop = threading.Event()
                thread = threading.Thread(target=self._run, args=(stop,), name="penstock-leases", daemon=True)
                thread.start()  # where none can be started, the next to be added tries again
                self._stop, self._thread = stop, thread

    def remove(self, one: Renewed) -> None:
        """No longer; with the last one the thread ends."""
        with self._lock:
            self._renewed.pop(id(one), None)
            if self._renewed or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is not threading.current_thread():
            thread.join(JOIN_S)

    def dismiss(self) -> None:
        """Let the thread end. Does not wait."""
        self._stop.set()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, so long at most, after `dismiss`."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, stop: threading.Event) -> None:
        # Not all at the same time: half of it is chance.
        while not stop.wait(RENEW_EVERY_S * _chance.uniform(0.5, 1)):
            with self._lock:
                renewed = list(self._renewed.values())
            for one in renewed:
                if not stop.is_set():
                    self._beat(one)

    def _beat(self, one: Renewed) -> None:
        """Whatever goes wrong with one ends nothing for the others, nor its own next beat."""
        try:
            one.beat()
        except Exception:  # noqa: BLE001 - it is logged
            _log.exception("a lease was not renewed")


_RENEWAL = Renewal()


def renew_in_background(one: Renewed) -> None:
    """Beat for it every five minutes at most, until `stop_renewing`."""
    _RENEWAL.add(one)


def stop_renewing(one: Renewed) -> None:
    """No longer beat for it."""
    _RENEWAL.remove(one)
