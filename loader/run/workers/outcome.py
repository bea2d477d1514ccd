"""A worker's answer for some steps: the batches, an error, and its counts and logs on the way."""

import logging
import pickle
import traceback
from dataclasses import dataclass, field

from ...errors import WorkerFailed
from ..metrics.metrics import Totals
from .batch_memory import dumps
from .batch_message import Packed


class WorkerTraceback(Exception):
    """The place in the worker where an error was raised: the cause of the error that the trainer sees."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


@dataclass(frozen=True, slots=True, kw_only=True)
class SentError:
    """An error on its way: pickled, and the same in words."""

    pickled: bytes | None
    """Pickle of the error; None where it cannot be pickled."""
    name: str
    """Name of its type."""
    text: str
    """Its text."""
    trace: str
    """Its traceback, as text."""

    @staticmethod
    def of(error: BaseException) -> "SentError":
        try:
            pickled = dumps(error)
        except Exception:  # noqa: BLE001 - an error of the user's may raise anything when it is pickled
            pickled = None
        return SentError(
            pickled=pickled,
            name=type(error).__qualname__,
            text=str(error),
            trace="".join(traceback.format_exception(error)),
        )

    def restored(self) -> BaseException:
        """Return the error with its type, text and notes; a WorkerFailed with its text where it could not be sent."""
        error: object = None
        try:
            if self.pickled is not None:
                error = pickle.loads(self.pickled)  # noqa: S301 - from a worker of ours
        except Exception:  # noqa: BLE001 - not every error can be made again from what it was pickled to
            error = None
        if not isinstance(error, BaseException) or str(error) != self.text:
            error = WorkerFailed(
                f"a worker process raised {self.name}: {self.text} (the error itself could not be sent: give its class "
                "an __init__ that takes its args, at the top level of a module)"
            )
        error.__cause__ = WorkerTraceback(self.trace)
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A worker's answer for some steps."""

    packed: Packed | None = None
    """Batches of the first steps; None of none."""
    error: SentError | None = None
    """Error of the step after these; None where all were made."""
    made_s: float
    """`perf_counter` when they were there, which Linux counts alike in all processes."""
    took_s: float = 0.0
    """Seconds from their beginning to `made_s`."""
    totals: Totals
    """Counts since the outcome before."""
    logged: list[tuple[str, int, str]] = field(default_factory=list)
    """(logger, level, text) each, since the outcome before."""


class LogCollector(logging.Handler):
    """Keeps what the worker logs until it is sent to the trainer, whose handlers the user has set up."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._records.append((record.name, record.levelno, record.getMessage()))
        except Exception:  # noqa: BLE001 - words and arguments that do not fit, as every handler has it
            self.handleError(record)

    def drain(self) -> list[tuple[str, int, str]]:
        """Return the logs since the last time."""
        drained, self._records = self._records, []
        return drained


def log_again(logged: list[tuple[str, int, str]]) -> None:
    """Log in the trainer what a worker logged."""
    for name, level, text in logged:
        logging.getLogger(name).log(level, "%s", text)
