"""Failed starts of a run, with their reason, under `trainings/<run>/ends/<at_us, 16 digits>-<8 hex>.json`."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loader.dataset.log.entries import canonical
from loader.redaction import redact
from loader.storage import ObjectInfo, Store

from ...units import second
from .json_object import read_object, whole_number

FORMAT = 1
FOLDER = "ends/"
MOST_TEXT = 8000
"""Most characters of a text that is shown."""
_KEY = re.compile(r"/ends/[0-9]{16}-[0-9a-f]{8}\.json$")
MOST_LINE = 300
"""Most characters of a reason in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStart:
    """A start whose ranks failed."""

    at_us: int
    """UTC microseconds of its end."""
    restarts: int
    """Starts before it, by the launcher's count."""
    status: int
    """Exit status."""
    ends: int
    """Failures in a row without a step, this one included."""
    is_over: bool
    """True if it ended the run."""
    line: str
    """Last line of the earliest traceback, or Slurm's own."""
    text: str
    """The traceback, or the last lines."""

    def summary(self) -> str:
        """Return its reason as one line."""
        words = self.line.split()
        line = " ".join(words)[:MOST_LINE]
        if not line:
            line = f"exit status {self.status}"
        shown = "".join(filter(str.isprintable, line))  # else it could move a terminal's cursor
        if self.is_over:
            return f"{shown} (the run is over: it failed twice alike without a step between)"
        if self.ends > 1:
            return f"{shown} ({self.ends} failures without a step)"
        return shown

    def to_lines(self) -> list[str]:
        """Return when it failed, and its traceback."""
        lines = [f"failed {second(self.at_us)} UTC, after {self.restarts} earlier starts:"]
        lines.extend(f"    {line}" for line in self.text.splitlines())
        return lines


def put_failed_start(store: Store, prefix: str, failed: FailedStart, hidden: Sequence[str] = ()) -> None:
    """Store a failed start without secrets. prefix: key of the run's record. Raises: StoreError.

    hidden: Secrets of the environment, long ones first.
    """
    body = asdict(failed)
    # A traceback may print a URL or a variable.
    body["line"] = redact(failed.line, hidden)
    body["text"] = redact(failed.text, hidden)
    body["format"] = FORMAT
    name = f"{failed.at_us:016d}-{secrets.token_hex(4)}.json"
    data = canonical(body)
    store.put_if_absent(f"{prefix}{FOLDER}{name}", data)


def is_failed_start(info: ObjectInfo) -> bool:
    """Return whether an object of a record is a failed start."""
    return _KEY.search(info.key) is not None


def newest_failed_start(store: Store, prefix: str) -> FailedStart | None:
    """Return the newest failed start of a run, by a listing; None without one. Raises: Corrupt; StoreError."""
    newest: ObjectInfo | None = None
    for info in store.list(f"{prefix}{FOLDER}"):
        if not is_failed_start(info):
            continue
        # Keys begin with the time in 16 digits, so they sort by it.
        if newest is None or newest.key < info.key:
            newest = info
    if newest is None:
        return None
    return read_failed_start(store, newest)


def read_failed_start(store: Store, info: ObjectInfo) -> FailedStart:
    """Return what an object holds. Raises: Corrupt; StoreError."""
    return read_object(store, info.key, "failed start", _parse, nbytes=info.nbytes)


def _parse(body: dict[str, Any]) -> FailedStart:
    at_us = whole_number(body, "at_us")
    restarts = whole_number(body, "restarts")
    status = whole_number(body, "status")
    ends = whole_number(body, "ends")
    line = str(body["line"])
    text = str(body["text"])
    return FailedStart(
        at_us=at_us,
        restarts=restarts,
        status=status,
        ends=ends,
        is_over=body["is_over"] is True,
        line=line,
        text=text[:MOST_TEXT],
    )
