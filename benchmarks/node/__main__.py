"""`python -m benchmarks.node`: what comes as it is beside fixed choices, peers and bare loops, for any number of cores.

One table per row and number of workers, and trainings beside batches that lie on the device. Runs without a network
where the peers' wheels lie in a folder (--wheels), or unpacked in one (--site); a peer that is not there is left out by
name.
"""

import argparse
import json
import platform
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from loader.cores import n_cores

from .. import contest
from ..contest import LISTS, ROOT
from ..photos import resizer
from ..rows import LIMIT, NODE, OURS, TITLES, TORCH
from ..throughput import Bench
from . import page
from .measure import WHOLE, Clock, around_decoder, tables, trainings
from .training import device_of

PEERS = (OURS, LIMIT, TORCH, "grain", "webdataset", "spdl", "litdata", "streaming", "video")
"""In the order in which they begin, while there is time."""
PAGE, README = ROOT / "docs" / "benchmarks.md", ROOT / "README.md"


def parser() -> argparse.ArgumentParser:
    cores = n_cores()
    doubled = sorted({cores, *(2**n for n in range(cores.bit_length()))} - {0})
    options = argparse.ArgumentParser(prog="python -m benchmarks.node", description=__doc__)
    options.add_argument("--rows", default=",".join((*NODE, "training", "around")), help="of: %(default)s")
    options.add_argument("--peers", default=",".join(PEERS), help="of: %(default)s")
    options.add_argument(
        "--workers", default=",".join(map(str, doubled)), help="a table for each: %(default)s"
    )
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seconds", type=float, default=600, help="time for all of it (%(default)s)")
    options.add_argument("--scale", type=float, default=1, help="data sets of this part of their size")
    options.add_argument(
        "--folder", type=Path, help="keep the data sets here: its file system is what is measured"
    )
    options.add_argument(
        "--wheels", type=Path, help="make the peers' environments from wheels in this folder"
    )
    options.add_argument(
        "--site", type=Path, help="packages of all peers, as `pip install --target` lays them out"
    )
    options.add_argument(
        "--before",
        type=Path,
        help="a checkout of an earlier penstock: take turns with it, as one more contestant",
    )
    options.add_argument("--note", default="", help="a sentence about the machine, such as: busy")
    options.add_argument("--out", type=Path, help="write all tables here, as Markdown")
    options.add_argument("--lines", type=Path, help="write every turn here, as a line of JSON each")
    options.add_argument(
        "--page",
        action="store_true",
        help="put the defaults into docs/benchmarks.md, on 2 cores README.md too",
    )
    return options


def main() -> int:
    options = parser()
    given = options.parse_args()
    if given.before and given.page:
        options.error("--before compares two checkouts; --page records one. Give one of them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is ended and deleted
    peers = given.peers.split(",")
    if given.before:
        contest.compare_with(given.before)
        peers.append(contest.BEFORE)
    if given.site:
        contest.use_site(given.site)
    elif given.wheels:
        from ..peers.__main__ import install

        for peer in peers:
            if (LISTS / f"{peer}.txt").exists():
                install(peer, given.wheels)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        summary, whole = run(given, Bench(folder, peers, given.scale))
    print(whole)
    if given.out:
        given.out.write_text(whole)
    if given.page:
        PAGE.write_text(page.put(PAGE.read_text(), n_cores(), summary))
        if n_cores() == page.README_CORES:
            README.write_text(page.readme(README.read_text(), summary))
    return 0


def run(given: argparse.Namespace, bench: Bench) -> tuple[str, str]:
    """(the table of defaults, everything), as Markdown."""
    rows = given.rows.split(",")
    workers = [int(one) for one in given.workers.split(",")]
    kinds = [row for row in rows if row not in ("training", "around")]
    weights = [WHOLE] * (len(kinds) + ("training" in rows)) + [1] * len(kinds) * (len(set(workers)) - 1)
    clock = Clock(given.seconds, weights)
    lines = given.lines.open("a") if given.lines else None

    def record(turn: dict[str, Any]) -> None:
        clock.show(f"{turn['row']}, {turn['contestant']}")
        if lines:
            print(json.dumps(turn), file=lines, flush=True)

    bench.record = record
    bench.workers = max(workers)
    trained = trainings(bench, given.rounds, clock, device_of()) if "training" in rows else []
    around = around_decoder(bench) if "around" in rows and OURS in bench.known else None
    measured = list(tables(bench, kinds, workers, given.rounds, clock))
    if lines:
        lines.close()
    about = head(given, bench)
    largest = [table for table in measured if table.workers == max(workers)]
    summary = "\n".join(
        [f"### {n_cores()} cores", "", *about, "", *page.defaults(largest, trained, around)]
    ).rstrip()
    left_out = [f"{TITLES.get(peer, peer)} is left out: {why}\n" for peer, why in bench.failed.items()]
    everything = [summary, "", *left_out, *(line for table in measured for line in page.full(table))]
    return summary, "\n".join(everything)


def head(given: argparse.Namespace, bench: Bench) -> list[str]:
    """The command, the machine and the versions."""
    names = ("rows", "peers", "workers", "rounds", "seconds", "scale")
    usual = vars(parser().parse_args([]))
    changed = [f"--{name} {getattr(given, name)}" for name in names if getattr(given, name) != usual[name]]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    peers = ", ".join(f"{TITLES.get(peer, peer)} {version}" for peer, version in bench.versions.items())
    return [
        f"`{' '.join(['python -m benchmarks.node', *changed])}` on {platform.machine()}, {n_cores()} cores, {device}, "
        f"Python {platform.python_version()}.{given.note and f' **{given.note}**'}",
        f"Photos are resized by {resizer()}. Peers: {peers}.",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
