"""Explore every interleaving of the root's log: `python tests/dataset/logmodel/prove.py [EXTRA]`.

EXTRA (default 1) is how many faults and crashes each scenario gets on top of what the test suite explores.
Ends with 1 when a world that must not be was found.
"""

import sys
import time
from pathlib import Path


def main(extra: int) -> int:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from logmodel.explore import explore
    from logmodel.scenarios import scenarios
    from logmodel.world import Rules, Violation

    total = 0
    for scenario in scenarios(extra):
        started = time.perf_counter()
        try:
            found = explore(scenario, Rules())
        except Violation as e:
            print(f"{scenario.name}: {e}")
            return 1
        total += found.worlds
        took_s = time.perf_counter() - started
        print(
            f"{found.worlds:>9} worlds {len(found.ends):>4} ends {took_s:>6.1f} s  {scenario.name}",
            flush=True,
        )
    print(f"{total:>9} worlds, none bad")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
