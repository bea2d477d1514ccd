"""A campaign of random worlds: the real code on a store with faults, judged by a reader made from docs/format.md alone.

python tests/campaign [--worlds 5000] [--first 0] [--faults kind,...] [--planted]        `make campaign`
python tests/campaign --seed 17 [--faults kind,...]             one world again, with its story
"""

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent


def main() -> int:
    """The exit status: 1 where a world went wrong, or where a planted bug was not found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--worlds", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first world")
    parser.add_argument("--seed", type=int, help="one world again, with what happened in it")
    parser.add_argument("--faults", help="the kinds that there are, with a comma between; default: all")
    parser.add_argument("--planted", action="store_true", help="plant bugs, each of which must be found")
    given = parser.parse_args()
    # A world is the same each time: also in what order a set of names is gone through.
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, str(HERE), *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    others = [place for place in sys.path if Path(place).resolve() not in (HERE, TESTS)]
    # The repository comes before the tests, whose `penstock` holds the tests of the package of that name.
    sys.path[:] = [str(HERE), *others, str(TESTS.parent), str(TESTS)]
    from simulation import faults, prove

    kinds = faults.KINDS if given.faults is None else tuple(filter(None, given.faults.split(",")))
    if unknown := set(kinds) - set(faults.KINDS):
        parser.error(f"there are no faults {', '.join(sorted(unknown))}; there are {', '.join(faults.KINDS)}")
    if given.seed is not None:
        from simulation import campaign

        came = campaign.run_world(given.seed, kinds)
        print(came.story())
        print(came.violation or "nothing was wrong")
        return 1 if came.violation else 0
    if given.planted:
        from simulation import planted

        missed = 0
        for name in planted.BUGS:
            found = planted.first_detection(name)
            missed += found is None
            print(f"{name}: {f'world {found.seed}: {found.violation}' if found else 'NOT FOUND'}", flush=True)
        return 1 if missed else 0
    import simulation.campaign  # noqa: F401 - once, before the processes are forked
    from prove import run

    return run(dict(prove.jobs(given.worlds, given.first, kinds)))


if __name__ == "__main__":
    sys.exit(main())
