"""The first rank's last step in a file of its node: its launcher reads it if the rank is killed.

A rank that gets SIGKILL stores nothing about the steps after its last checkpoint or interval. Writing costs 2 us.
"""

import os
import struct
from typing import NamedTuple

from ..units import utc_us

VARIABLE = "PENSTOCK_STEP_FILE"
_NUMBERS = struct.Struct("<qq")
"""Steps done; UTC microseconds."""


class LastStep(NamedTuple):
    """Last step of a start that its first rank made."""

    step: int
    """Steps done."""
    at_us: int
    """UTC microseconds of the end of the last one."""


class StepFile:
    """The file as the first rank writes it. Without a path, or on a full disk, it does nothing."""

    def __init__(self, path: str | None) -> None:
        self._file = -1
        if path is None:
            return
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:  # the folder is on another node
            return

    def write(self, step: int) -> None:
        """Note that so many steps are done."""
        if self._file < 0:
            return
        data = _NUMBERS.pack(step, utc_us())
        try:
            # One write: a rank that is killed leaves both numbers of one step.
            os.pwrite(self._file, data, 0)
        except OSError:
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_last_step(path: str | os.PathLike[str]) -> LastStep | None:
    """Return the last step in a file; None without one, or if its numbers make no sense."""
    try:
        with open(path, "rb") as file:
            data = file.read(_NUMBERS.size)
    except OSError:
        return None
    if len(data) < _NUMBERS.size:
        return None
    step, at_us = _NUMBERS.unpack(data)
    # The folder is the script's to write.
    if step < 0 or not 0 < at_us <= utc_us():
        return None
    return LastStep(step, at_us)
