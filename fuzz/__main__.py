"""`python -m fuzz [--cases N] [--seed S] [--workers W] [--replay FILE]`: damage media, and check the results.

`--of formats` damages datasets in other formats instead, `--of indexes` indexes and maps of searches.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from .campaign import Tally, campaign, save, table
from .case import Case
from .index_case import IndexCase, run_index_case, write_indexed
from .place_case import PlaceCase, run_place_case
from .places import write_places
from .seeds import corpus_seeds, write_seeds

CASES, SEED, TIMEOUT_S = 10_000, 1, 60.0


def main() -> int:
    """Run the campaign; return 0 if every promise held, else 1."""
    options = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    options.add_argument(
        "--of", choices=["media", "formats", "indexes"], default="media", help="what is damaged"
    )
    options.add_argument("--cases", type=int, default=CASES)
    options.add_argument("--first", type=int, default=0, help="number of the first case")
    options.add_argument("--seed", type=int, default=SEED)
    options.add_argument("--workers", type=int, help="processes; one per core without it")
    options.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds for each case")
    options.add_argument("--failures", type=Path, default=Path("fuzz-failures"), help="where to save cases")
    options.add_argument("--replay", type=Path, help="a saved case: run only this one")
    options.add_argument(
        "--peers", action=argparse.BooleanOptionalAction, default=bool(shutil.which("ffprobe"))
    )
    arguments = options.parse_args()
    begun = time.perf_counter()
    if arguments.replay is not None:
        cases = [_saved(arguments.replay, arguments.peers)]
        tally = campaign(cases, workers=1, timeout_s=arguments.timeout)
        lines = [why for _, why in [*tally.broken, *tally.contained]]
    else:
        print(f"seed {arguments.seed}, {arguments.cases} cases from {arguments.first}", flush=True)
        runs = {"media": _run, "formats": _run_places, "indexes": _run_indexes}
        tally, lines = runs[arguments.of](arguments)
    seconds = time.perf_counter() - begun
    print(table(tally))
    print(f"{seconds:.0f} s, {tally.n_cases / seconds:.1f} cases/s")
    for line in lines:
        print(line)
    return 1 if tally.broken else 0


def _saved(path: Path, peers: bool) -> Case:
    facts = path.with_suffix(".json")
    number = json.loads(facts.read_text())["number"] if facts.exists() else 0
    return Case(number=number, seed=0, data=path.read_bytes(), peers=peers)


def _run(arguments: argparse.Namespace) -> tuple[Tally, list[str]]:
    with tempfile.TemporaryDirectory(prefix="fuzz-seeds-") as folder:
        own, corpus = write_seeds(Path(folder)), corpus_seeds()
        print(f"{len(own)} files made here, {len(corpus)} of the corpus", flush=True)
        cases = [
            Case(
                number=number,
                seed=arguments.seed,
                own=tuple(map(str, own)),
                corpus=tuple(map(str, corpus)),
                peers=arguments.peers,
            )
            for number in range(arguments.first, arguments.first + arguments.cases)
        ]
        tally = campaign(cases, workers=arguments.workers, timeout_s=arguments.timeout, progress=_bar())
        return tally, list(save(tally, arguments.failures))


def _run_places(arguments: argparse.Namespace) -> tuple[Tally, list[str]]:
    with tempfile.TemporaryDirectory(prefix="fuzz-places-") as folder:
        places = tuple(map(str, write_places(Path(folder))))
        print(f"{len(places)} formats", flush=True)
        cases = [
            PlaceCase(number=number, seed=arguments.seed, places=places)
            for number in range(arguments.first, arguments.first + arguments.cases)
        ]
        tally = campaign(
            cases, workers=arguments.workers, timeout_s=arguments.timeout, progress=_bar(), run=run_place_case
        )
        return tally, list(save(tally, arguments.failures))


def _run_indexes(arguments: argparse.Namespace) -> tuple[Tally, list[str]]:
    with tempfile.TemporaryDirectory(prefix="fuzz-indexes-") as folder:
        write_indexed(Path(folder))
        cases = [
            IndexCase(number=number, seed=arguments.seed, folder=folder)
            for number in range(arguments.first, arguments.first + arguments.cases)
        ]
        tally = campaign(
            cases, workers=arguments.workers, timeout_s=arguments.timeout, progress=_bar(), run=run_index_case
        )
        return tally, list(save(tally, arguments.failures))


def _bar() -> "Bar | None":
    return Bar() if sys.stderr.isatty() else None


class Bar:
    """Progress bar for a terminal."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._shown = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.perf_counter()
        if now - self._shown < 0.2 and done < total:
            return
        self._shown = now
        rate = done / max(1e-9, now - self._begun)
        left_s = (total - done) / rate if rate else 0
        filled = 30 * done // total
        bar = "#" * filled + "-" * (30 - filled)
        end = "\n" if done == total else ""
        print(
            f"\r\033[K[{bar}] {done}/{total}, {rate:.0f}/s, {left_s:.0f} s left",
            end=end,
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
