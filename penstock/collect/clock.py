"""How much time passed between two looks, of which a clock that is set must not make more.

Within one run of a machine the time since it started counts, which nobody sets. Between two runs, or two machines,
there are wall clocks alone: one that is put right makes hours or years at once of no time. What such a step counts is
bounded by its caller, to a part of what he waits for, so that none ends a wait alone.
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
"""What a wall clock may be put back without a word: daily corrections."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """at_us: what the wall clock says.

    run: the name of the run of a machine whose time since its start is run_us; "" where nothing tells.
    """

    at_us: int
    run: str = ""
    run_us: int = 0

    def to_json(self) -> dict[str, object]:
        """As notes have it."""
        return {"at_us": self.at_us, "run": self.run, "run_us": self.run_us}

    @staticmethod
    def from_json(body: Mapping[str, object]) -> "Moment":
        """Of notes, or of an earlier release's, which have the wall clock alone. Raises: KeyError; ValueError."""
        return Moment(
            at_us=int(str(body["at_us"])),
            run=str(body.get("run", "")),
            run_us=int(str(body.get("run_us", 0))),
        )


def now() -> Moment:
    """This machine's: on Linux since it was started, its sleep too; elsewhere of this process alone."""
    at_us = time.time_ns() // 1000
    if boot := _boot():
        return Moment(at_us=at_us, run=boot, run_us=time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)
    return Moment(at_us=at_us, run=_process(), run_us=time.monotonic_ns() // 1000)


def passed(before: Moment | None, now: Moment, most_us: int) -> int | None:
    """How much of the time between two looks counts.

    None when what was seen before does not count any more, since the wall clock, which is all there is, stands before
    it. most_us: of what wall clocks alone say.
    """
    if before is None:
        return None
    if before.run and before.run == now.run:
        return max(now.run_us - before.run_us, 0)  # less: a machine that was taken back to what it was
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
    """Return what the wall clock says, or, where that is earlier, what it said at a look in the same run of the machine
    and the time since: a clock that was put forward meanwhile makes nothing older."""
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
