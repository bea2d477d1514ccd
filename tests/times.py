"""Seconds of every test, and the list of the slow ones: tests/slow.txt, which `make test` leaves out.

`make test-times` runs the tests with this plugin and then this file, which writes the list. A test function is slow
where any of its cases takes more than SLOW_CPU_S of processor time, children included, or SLOW_CLOCK_S by the clock:
then `make test` takes less than five minutes on two cores. The seconds in the list are those of a core: all cases, by
the clock, divided by the processes for each core. Files that take longest begin first, so that no process works alone
at the end.
"""

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

SLOW = Path(__file__).with_name("slow.txt")
NIGHTLY = frozenset(Path(__file__).with_name("nightly.txt").read_text().splitlines())
SLOW_CPU_S, SLOW_CLOCK_S = 0.3, 2.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Append a line to $TEST_TIMES/<process>: processor seconds, seconds, the test.

    Single cases that only nightly runs do not count: the list has the seconds of CI.
    """
    if item.get_closest_marker("nightly") and item.nodeid.partition("[")[0] not in NIGHTLY:
        return (yield)
    cpu, clock = _cpu_s(), time.perf_counter()
    result = yield
    line = f"{_cpu_s() - cpu:.3f} {time.perf_counter() - clock:.3f} {item.nodeid}\n"
    with Path(os.environ["TEST_TIMES"], str(os.getpid())).open("a") as file:
        file.write(line)
    return result


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(folder: Path) -> None:
    """Write the list from the times of a run; a nightly test that did not run keeps its line."""
    slow, cpu_s, clock_s = set[str](), Counter[str](), Counter[str]()
    files = list(folder.iterdir())
    crowd = max(1.0, len(files) / (os.cpu_count() or 1))
    for path in files:
        for line in path.read_text().splitlines():
            cpu, clock, test = line.split(" ", 2)
            function = test.partition("[")[0]
            cpu_s[function] += float(cpu)
            clock_s[function] += float(clock)
            if float(cpu) > SLOW_CPU_S or float(clock) > SLOW_CLOCK_S:
                slow.add(function)
    before = (line.split(" ", 1) for line in SLOW.read_text().splitlines())
    seconds = {test: float(taken) for taken, test in before if test in NIGHTLY}
    seconds |= {function: clock_s[function] / crowd for function in slow}
    SLOW.write_text("".join(f"{seconds[function]:.1f} {function}\n" for function in sorted(seconds)))
    fast_s = sum(cpu_s[function] for function in cpu_s.keys() - slow)
    n_fast = len(cpu_s) - len(slow)
    print(f"{len(cpu_s)} tests took {cpu_s.total():.0f} s of processors; {n_fast} fast ones {fast_s:.0f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
