"""The demo's output: one line per step, a moving one while it works on a terminal, a table at the end."""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

_TURNS = "|/-\\"


@dataclass(slots=True)
class Clock:
    """seconds: how long the block took, once it has ended."""

    seconds: float = 0.0


@contextmanager
def working(what: str) -> Iterator[Clock]:
    """Show a line with the seconds since the block began, on a terminal only."""
    clock = Clock()
    start = time.perf_counter()
    ended = threading.Event()

    def turn() -> None:
        step = 0
        while not ended.wait(0.15):
            passed = time.perf_counter() - start
            print(f"\r\033[K{_TURNS[step % 4]} {what} {passed:.0f} s", end="", file=sys.stderr, flush=True)
            step += 1

    shower = threading.Thread(target=turn, name="demo-progress", daemon=True)
    if sys.stderr.isatty():
        shower.start()
    try:
        yield clock
    finally:
        clock.seconds = time.perf_counter() - start
        ended.set()
        if shower.is_alive():
            shower.join()
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def headline(text: str) -> None:
    """A step of the demo begins."""
    print(f"\n== {text}", flush=True)


def line(text: str) -> None:
    """Something to know about the step."""
    print(f"   {text}", flush=True)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as their cells need; all but the first are right-aligned."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        first, *others = row
        aligned = [first.ljust(widths[0])]
        aligned += [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        line("  ".join(aligned))


def size(nbytes: int) -> str:
    """Format bytes, such as 1.5 MiB."""
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.1f} KiB"


@dataclass(slots=True)
class Report:
    """The rows of the closing table."""

    rows: list[list[str]] = field(default_factory=list)

    def add(
        self, stage: str, taken: int, made: int, rejected: int, dropped: int, seconds: float, nbytes: int
    ) -> None:
        """Add a row. seconds: 0 for a stage that an earlier run of the demo has done."""
        time_cell = f"{seconds:.1f}" if seconds else "done before"
        self.rows.append([stage, str(taken), str(made), str(rejected), str(dropped), time_cell, size(nbytes)])


class DemoFailed(Exception):
    """A promise of the demo did not hold; the message names it."""
