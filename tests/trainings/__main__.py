"""An hour of a training on Slurm with a fault a minute: every step is that of an undisturbed one.

python tests/trainings [--minutes 60] [--seed N]          `make prove-trainings`
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.trainings.proof import proof

EVERY_S = 60.0


def main() -> int:
    """Exit status 1 when something is wrong."""
    parser = argparse.ArgumentParser(
        prog="python tests/trainings", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="trainings-") as folder,
        proof(Path(folder), options.seed) as run,
    ):
        faults = run.faults_in_order()
        end_s = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end_s:
            next_s = time.monotonic() + EVERY_S
            run.disturb(next(faults))
            time.sleep(max(0.0, min(next_s, end_s) - time.monotonic()))
        run.end()
    print("\n".join(run.problems) or "every step is that of an undisturbed training", flush=True)
    return 1 if run.problems else 0


if __name__ == "__main__":
    sys.exit(main())
