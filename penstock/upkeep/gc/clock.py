"""The time that passed between two looks, of which a clock that is set must not make more.

Within one run of a machine the time since it started counts, which no one can set. Between two runs, or two machines,
there are only wall clocks: one that is put right makes hours or years at once of no time. The time that such a step
counts is bounded by its caller, to a part of its wait, so that no step ends a wait by itself.
"""

import logging
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SLACK_US = 1_000_000
"""Microseconds that a wall clock may be put back without a warning: daily corrections."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment by two clocks."""

    at_us: int
    """The wall clock's time, UTC microseconds since 1970."""
    run: str = ""
    """The name of the machine's run; "" if it is unknown."""
    run_us: int = 0
    """Microseconds since that run began."""

    def to_json(self) -> dict[str, object]:
        """Return the moment as notes have it."""
        return {"at_us": self.at_us, "run": self.run, "run_us": self.run_us}

    @staticmethod
    def from_json(body: Mapping[str, object]) -> "Moment":
        """Return the moment of notes; an earlier release's have only the wall clock. Raises: KeyError; ValueError."""
        return Moment(
            at_us=int(str(body["at_us"])),
            run=str(body.get("run", "")),
            run_us=int(str(body.get("run_us", 0))),
        )


def now() -> Moment:
    """Return this machine's moment; its run is the machine's on Linux, sleep included, and this process's elsewhere."""
    at_us = time.time_ns() // 1000
    if boot := _boot():
        return Moment(at_us=at_us, run=boot, run_us=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)
    return Moment(at_us=at_us, run=_process(), run_us=time.monotonic_ns() // 1000)


def passed(before: Moment | None, now: Moment, most_us: int) -> int | None:
    """Return the microseconds between two looks that count. most_us: most that count by wall clocks.

    None at a first look, and where the wall clock is all there is and stands before the look before: what was seen then
    does not count any more.
    """
    if before is None:
        return None
    if before.run and before.run == now.run:
        return max(now.run_us - before.run_us, 0)  # less: a machine that was restored to an earlier state
    wall_us = now.at_us - before.at_us
    if wall_us < -SLACK_US:
        logger.warning(
            "the clock stands %d s before the last look: every grace begins again", -wall_us // 10**6
        )
        return None
    if wall_us > most_us:
        logger.warning(
            "%d s since the last look, by wall clocks of two runs of a machine, or of two machines: %d s of it count",
            wall_us // 10**6,
            most_us // 10**6,
        )
    return min(max(wall_us, 0), most_us)


def earliest_us(before: Moment | None, now: Moment) -> int:
    """Return the wall clock's time, or the time by the clock of a look before in the same run, where that is earlier.

    The latter is its wall clock's time and the time since: a clock that was put forward meanwhile makes nothing older.
    """
    if before is None or not before.run or before.run != now.run:
        return now.at_us
    return min(now.at_us, before.at_us + max(now.run_us - before.run_us, 0))


@cache
def _boot() -> str:
    """Return the name of this run of the machine, and of the container where that has a time of its own.

    "" where the system has none.
    """
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""


@cache
def _process() -> str:
    return f"process-{secrets.token_hex(8)}"
