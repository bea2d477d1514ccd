"""Requests to stop: a signal to this process, or a person's `penstock train stop`. `agreement` exchanges them."""

import atexit
import logging
import os
import signal
import threading
from contextlib import suppress
from enum import IntEnum
from types import FrameType

from loader.run.workers.forked_children import Handler, cover_children, uncover_children

from .run_folder import RunFolder
from .trackers.tracker import RunEnd

_log = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Slurm at a preemption or the end of the walltime, Kubernetes, and a person's `kill`."""
STDERR = 2
"""File number of standard error: `sys.stderr` refuses a handler that interrupts one of its writes."""
INTERRUPTED = b"""
penstock: Ctrl-C: the run stops after this step or the next, saves if it has checkpoints, and exits with 75.
penstock: Press Ctrl-C again to end it at once, without a checkpoint.
"""
LOOK_S = 15.0
"""Seconds between two checks for a person's request: one request to the store each."""
FIRST_LOOK_S = 10.0
"""Most seconds that the first step waits for the first check."""


class Stop(IntEnum):
    """Kind of stop; among ranks the greatest counts."""

    NO = 0
    AGAIN = 1
    """Save, and let the launcher begin again: exit status 75."""
    DONE = 2
    """Save, and end: a person asked."""


def run_end(stop: Stop, error: BaseException | None, *, finished: bool) -> RunEnd:
    """Return how a run ended, as trackers name it."""
    if error is not None:
        return "failed"
    if finished or stop is Stop.NO:
        return "finished"
    return "again" if stop is Stop.AGAIN else "stopped"


class StopRequests:
    """Requests that reached this process. It handles the signals until `close`."""

    def __init__(self) -> None:
        self.stop = Stop.NO
        self._before: dict[signal.Signals, Handler] = {}
        """Signal -> its handler before `listen`."""
        self._is_interrupted = False
        """True after the first Ctrl-C."""
        self._is_leaving = False
        """True once `close` lets the process end by `AGAIN`."""
        self._end = threading.Event()
        self._first_check = threading.Event()
        """Set once `watch` has checked for a person's request, and without `watch`."""
        self._first_check.set()

    def listen(self) -> None:
        """Handle the signals, if this is the main thread: elsewhere Python refuses, and a warning is logged."""
        if threading.current_thread() is not threading.main_thread():
            _log.warning(
                "Run.joined() outside of the main thread hears no signals, and a stop ends this thread only, not the "
                "process with 75: call it in the main thread, or Run.ask_to_stop() and sys.exit(75) there"
            )
            return
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._handle_signal)
        # A shell without job control lets its background commands ignore SIGINT.
        if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._handle_signal)
        cover_children(self._handle_signal, self._before)

    def watch(self, folder: RunFolder) -> None:
        """Look for a person's request from now on, in a thread."""

        def poll() -> None:
            while not self._end.is_set():
                try:
                    if folder.is_to_stop():
                        self.stop = Stop.DONE
                        return
                except Exception as error:  # noqa: BLE001 - a failing store costs the record, never the training
                    _log.warning("could not poll for %s/%s: %s", folder.store.url, folder.stop_key, error)
                finally:
                    self._first_check.set()
                self._end.wait(LOOK_S)

        self._first_check.clear()
        threading.Thread(target=poll, name="penstock-stop", daemon=True).start()

    def await_first_check(self) -> None:
        """Wait until `watch` has checked once: a run that was cancelled makes no step."""
        if not self._first_check.wait(FIRST_LOOK_S):
            _log.warning("the store did not answer within %.0f s whether the run is to stop", FIRST_LOOK_S)

    def close(self, *, is_leaving: bool = False) -> None:
        """Restore the earlier handlers, and end the thread. No signal changes the exit status at the interpreter's end.

        is_leaving: The process ends by `AGAIN` now: a second signal may not end it by another status.
        """
        self._end.set()
        self._is_leaving = is_leaving
        if self._before:
            atexit.register(_ignore_signals)
        if is_leaving:
            return
        uncover_children(self._before)
        for number, handler in self._before.items():
            # A scheduler's USR1 would kill a run that has ended, and the run would begin again.
            is_deadly = number == signal.SIGUSR1 and handler == signal.SIG_DFL
            signal.signal(number, _ignore_signal if is_deadly else handler)
        self._before.clear()

    def ask(self) -> None:
        """Ask to save and begin again."""
        # A signal never weakens a person's request to end for good.
        self.stop = max(self.stop, Stop.AGAIN)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._note_interrupt()
        self.ask()

    def _note_interrupt(self) -> None:
        """Announce the stop at the first Ctrl-C. The second does what it did before `listen`: KeyboardInterrupt."""
        if self._is_interrupted:
            # The earlier handler is for the children too.
            uncover_children([signal.SIGINT])
            signal.signal(signal.SIGINT, self._before.pop(signal.SIGINT))
            signal.raise_signal(signal.SIGINT)
            return
        self._is_interrupted = True
        # A process that leaves has stopped already: nothing is left to announce.
        if not self._is_leaving:
            with suppress(OSError):
                os.write(STDERR, INTERRUPTED)


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing. Programs that the script starts do not inherit this, unlike SIG_IGN."""


def _ignore_signals() -> None:
    """Ignore the signals from here on: Python resets its own handlers to the deadly default before it ends."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
