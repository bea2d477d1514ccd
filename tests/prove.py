"""The long check, `make prove`: the log's model, interleavings, kills, worlds of the campaign; the C extension.

python tests/prove.py [PART ...]            default: every part; on as many processes as there are cores
python tests/prove.py --list [PART ...]     names the jobs, and about how many seconds each takes of one core

Ends with 1 if something was found that must not be. The other jobs go on then, and all that failed is told at the end.
"""

import importlib
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

PARTS = {
    "model": "logmodel.prove",
    "interleavings": "fire",
    "kills": "kills",
    "promotions": "promotion_kills",
    "campaign": "simulation.prove",
    "native": "sanitized",
    "processors": "emulated",
}
"""Part -> its module, whose `jobs()` gives name -> (about how many seconds, call): a call counts what it tried."""


def attempt(call):
    """(seconds, what it counted, its error)."""
    started, counted, error = time.monotonic(), Counter(), ""
    try:
        counted = call()
    except BaseException:  # noqa: BLE001 - whatever it is, it is told
        error = traceback.format_exc()
    return time.monotonic() - started, counted, error


def count_text(counted):
    return ", ".join(f"{n:,} {what}" for what, n in counted.items())


def main(given):
    parts = [one for one in given if one != "--list"]
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    here = Path(__file__).resolve().parent
    # Not this script's own folder, which Python puts first: its `penstock` holds the tests of the package of that name.
    others = [place for place in sys.path if Path(place).resolve() != here]
    folders = [str(here / name) for name in ("dataset", "penstock", "campaign", "native")]
    sys.path[:] = [*folders, *others, str(here.parent)]
    jobs = {}
    for part in parts or PARTS:
        jobs |= importlib.import_module(PARTS[part]).jobs()
    if "--list" in given:
        for name, (about_s, _) in jobs.items():
            print(f"{about_s:6.0f} s  {name}")
        return 0
    return run(jobs)


def run(jobs):
    """The exit status."""
    from penstock.progress import progress

    longest_first = sorted(jobs, key=lambda name: -jobs[name][0])
    started, tried, failed = time.monotonic(), Counter(), {}
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        running = {pool.submit(attempt, jobs[name][1]): name for name in longest_first}
        total = sum(about_s for about_s, _ in jobs.values())
        for done in progress(as_completed(running), "prove", lambda done: jobs[running[done]][0], total):
            name = running[done]
            took_s, counted, error = done.result()
            tried += counted
            if error:
                failed[name] = error
            print(f"{took_s:6.1f} s  {name}: {'FAILED' if error else count_text(counted)}", flush=True)
    for name, error in failed.items():
        print(f"\n{name}:\n{error}")
    took_s, used = time.monotonic() - started, os.times()
    processor_s = used.children_user + used.children_system
    print(f"\n{count_text(tried)} in {took_s:.0f} s, {processor_s:.0f} s of processor time: ", end="")
    print(f"{len(failed)} of {len(jobs)} jobs FAILED: {', '.join(failed)}" if failed else "none bad")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
