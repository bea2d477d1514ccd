"""An hour in the life of a dataset: arrivals, bad files, kills and releases at random, with the books kept throughout.

python tests/soak [--minutes 60] [--seed N] [--postgres]          `make soak`
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

import loader  # noqa: E402 - after the path
from penstock.progress import progress  # noqa: E402
from tests.servers.deployment import Deployment, deployment  # noqa: E402
from tests.servers.postgres import Postgres, postgres  # noqa: E402
from tests.soak.arrivals import Place  # noqa: E402
from tests.soak.books import Books  # noqa: E402

PROCESSES = ("daemon", "code-server", "webserver")
SECONDS_BETWEEN = 6.0
MOST_QUEUED = 20
"""Queued runs with which nothing more arrives and nobody asks for a version: a busy machine works them off first."""


class Soak:
    """Dagster's processes, the landing place, and what happens to them."""

    def __init__(self, folder: Path, dagster: Deployment, database: Postgres | None, seed: int) -> None:
        self.random = random.Random(seed)
        self.dagster, self.database = dagster, database
        self.place = Place(folder / "landing", self.random)
        self.books = Books(folder / "root", self.place)
        self.counts: dict[str, int] = {}

    def step(self) -> str:
        """One event; what it was."""
        events: dict[Callable[[], str], int] = {
            self.place.vanish: 1,
            self.kill_a_run: 3,
            self.kill_a_process: 2,
            self.books.check: 3,
        }
        if self.queued() < MOST_QUEUED:
            events |= {
                self.place.arrive: 8,
                self.place.arrive_broken: 3,
                self.place.arrive_again: 2,
                self.place.overwrite: 2,
                self.release: 4,
            }
        event = self.random.choices(list(events), list(events.values()))[0]
        what = event()
        self.counts[what] = self.counts.get(what, 0) + 1
        return what

    def queued(self) -> int:
        """Return the number of queued runs, 0 while Dagster is away."""
        try:
            return sum(run["status"] == "QUEUED" for run in self.dagster.runs())
        except (OSError, AssertionError):
            return 0

    def release(self) -> str:
        """Somebody, or a schedule, asks for a version."""
        try:
            self.dagster.launch("small_release")
        except (OSError, AssertionError):
            return "release refused: Dagster was away"
        return "release"

    def kill_a_run(self) -> str:
        """SIGKILL to a run's process."""
        try:
            on = [run for run in self.dagster.runs() if run["status"] == "STARTED"]
            if on and self.dagster.kill_a_worker(self.random.choice(on)["runId"]):
                return "run killed"
        except (OSError, AssertionError):
            return "no run killed: Dagster was away"
        return "no run was on"

    def kill_a_process(self) -> str:
        """SIGKILL to one of Dagster's, or to its database; it is started again at once."""
        name = self.random.choice((*PROCESSES, "postgres") if self.database else PROCESSES)
        if self.database and name == "postgres":
            self.database.kill()
            self.database.start()
        else:
            self.dagster.kill(name)
            self.dagster.start(name)
        return f"{name} killed"

    def drain(self) -> None:
        """Nothing more arrives or dies: everything ends in a version, or is told why not. Raises: AssertionError."""

        def has_settled() -> bool:
            standings = self.books.standings()
            runs = self.dagster.runs("small_release")
            done = ("SUCCESS", "FAILURE", "CANCELED")
            if "ready" in standings and all(run["status"] in done for run in runs):
                self.release()
            return not {"waiting", "in_progress", "ready"} & standings and self.books.all_discovered()

        self.dagster.wait_for("everything that landed is published or stopped", has_settled)


def main() -> int:
    """Exit status 1 when a book does not add up."""
    parser = argparse.ArgumentParser(prog="python tests/soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--postgres", action="store_true", help="Dagster's databases in a Postgres, which is killed too"
    )
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        (folder / "landing").mkdir()
        database = None
        if options.postgres:
            database = open_.enter_context(postgres())
        environment = {"PENSTOCK_ROOT": str(folder / "root"), "PENSTOCK_LANDING": str(folder / "landing")}
        url = database.url if database else ""
        with loader.Root(folder / "root") as root:
            root.create()
        dagster = open_.enter_context(
            deployment(folder / "dagster", REPOSITORY / "tests/servers/small_pipeline.py", environment, url)
        )
        dagster.switch_on("small_discovery")
        soak = Soak(folder, dagster, database, options.seed)
        for _ in progress(
            _beats(options.minutes), "soak", total=max(1, int(options.minutes * 60 / SECONDS_BETWEEN))
        ):
            soak.step()
        soak.drain()
        print(soak.books.close())
    for what, count in sorted(soak.counts.items()):
        print(f"{count:6,} {what}")
    return 0


def _beats(minutes: float) -> Iterator[int]:
    end, count = time.monotonic() + minutes * 60, 0
    while time.monotonic() < end:
        yield count
        count += 1
        time.sleep(SECONDS_BETWEEN)


if __name__ == "__main__":
    sys.exit(main())
