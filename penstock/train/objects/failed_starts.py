"""Failed starts of a run, with their reason, under `trainings/<run>/ends/<at_us, 16 digits>-<8 hex>.json`."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loader.dataset.log.entries import canonical
from loader.storage import ObjectInfo, Store
from loader.storage.spec import redact

from .json_object import read_object, whole_number

FORMAT = 1
FOLDER = "ends/"
MOST_TEXT = 8000
"""Most characters of a text that is shown."""
_KEY = re.compile(r"[0-9]{16}-[0-9a-f]{8}\.json")


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
        line = " ".join(self.line.split()) or f"exit status {self.status}"
        line = "".join(letter if letter.isprintable() else "?" for letter in line[:300])
        if self.is_over:
            return f"{line} (the run is over: it failed twice alike without a step between)"
        return f"{line} ({self.ends} failures without a step)" if self.ends > 1 else line


def put_failed_start(store: Store, prefix: str, failed: FailedStart, hidden: Sequence[str] = ()) -> None:
    """Store a failed start without secrets. prefix: key of the run's record. Raises: StoreError.

    hidden: Secrets of the environment, long ones first.
    """
    body = asdict(failed)
    body["line"] = redact(failed.line, hidden)
    body["text"] = redact(failed.text, hidden)
    key = f"{prefix}{FOLDER}{failed.at_us:016d}-{secrets.token_hex(4)}.json"
    store.put_if_absent(key, canonical({"format": FORMAT, **body}))


def is_failed_start(info: ObjectInfo) -> bool:
    """Return whether an object of a record is a failed start."""
    folder, _, name = info.key.rpartition("/")
    return folder.endswith("/" + FOLDER.rstrip("/")) and _KEY.fullmatch(name) is not None


def newest_failed_start(store: Store, prefix: str) -> FailedStart | None:
    """Return the newest failed start of a run, by a listing; None without one. Raises: Corrupt; StoreError."""
    infos = [info for info in store.list(f"{prefix}{FOLDER}") if is_failed_start(info)]
    newest = max(infos, key=lambda info: info.key, default=None)
    return None if newest is None else read_failed_start(store, newest)


def read_failed_start(store: Store, info: ObjectInfo) -> FailedStart:
    """Return what an object holds. Raises: Corrupt; StoreError."""
    return read_object(store, info.key, "failed start", _parsed, nbytes=info.nbytes)


def _parsed(body: dict[str, Any]) -> FailedStart:
    return FailedStart(
        at_us=whole_number(body, "at_us"),
        restarts=whole_number(body, "restarts"),
        status=whole_number(body, "status"),
        ends=whole_number(body, "ends"),
        is_over=body["is_over"] is True,
        line=str(body["line"]),
        text=str(body["text"])[:MOST_TEXT],
    )
