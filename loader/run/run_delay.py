"""Time in which threads were ready to run, but other programs had the cores, as Linux counts it."""

import os
import threading


def process_delay_s() -> float:
    """Return the seconds that this process's threads were ready to run while other programs had their cores."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:  # not Linux
        return 0.0
    return sum(_delay_s(thread) for thread in threads)


def _delay_s(thread: str) -> float:
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            return int(file.read(64).split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # it has ended, or the kernel keeps no such file
        return 0.0


class RunDelay:
    """The calling thread's delay, by one read of a file that stays open."""

    def __init__(self) -> None:
        try:
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        except OSError:
            self._file = -1

    def seconds(self) -> float:
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):  # not Linux, or a kernel without this file
            return 0.0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
