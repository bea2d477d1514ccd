"""Measure the time between two looks, without trusting a clock that can be set.

Within one boot of a machine the time since its start counts. Between boots or machines there are only wall clocks,
and a correction can make years of no time. The caller bounds what such a step counts, so no step ends a wait by
itself.
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
"""Backward step of a wall clock without a warning, in microseconds."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A moment on two clocks."""

    at_us: int
    """Wall clock, UTC microseconds since 1970."""
    run: str = ""
    """Name of the machine's boot, or ""."""
    run_us: int = 0
    """Microseconds since that boot."""

    def to_json(self) -> dict[str, object]:
        """Return the moment as notes store it."""
        return {"at_us": self.at_us, "run": self.run, "run_us": self.run_us}

    @staticmethod
    def from_json(body: Mapping[str, object]) -> "Moment":
        """Return the moment of notes; earlier releases stored only the wall clock. Raises: KeyError; ValueError."""
        return Moment(
            at_us=int(str(body["at_us"])),
            run=str(body.get("run", "")),
            run_us=int(str(body.get("run_us", 0))),
        )


def now() -> Moment:
    """Return this machine's moment. Its run is the boot on Linux, sleep included, and this process elsewhere."""
    at_us = time.time_ns() // 1000
    if boot := _boot():
        return Moment(at_us=at_us, run=boot, run_us=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)
    return Moment(at_us=at_us, run=_process(), run_us=time.monotonic_ns() // 1000)


def passed(before: Moment | None, now: Moment, most_us: int) -> int | None:
    """Return the microseconds between two looks that count. most_us: most by wall clocks.

    None at a first look, or if only wall clocks compare and the time went back: earlier observations no longer count.
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
    """Return the wall clock's time, or an earlier look's time plus the time since, whichever is earlier.

    A clock put forward meanwhile makes nothing older.
    """
    if before is None or not before.run or before.run != now.run:
        return now.at_us
    return min(now.at_us, before.at_us + max(now.run_us - before.run_us, 0))


@cache
def _boot() -> str:
    """Return the name of this boot, and of a container with its own time; "" if the system has none."""
    try:
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/time')}"
    except OSError:
        return ""


@cache
def _process() -> str:
    return f"process-{secrets.token_hex(8)}"
