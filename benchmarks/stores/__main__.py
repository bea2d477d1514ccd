"""`python -m benchmarks.stores`: stores against the tools that others use; writes docs/benchmarks-stores.md.

Reads need nginx (apt-get install nginx-light), transfers Ceph (scripts/install-ceph.sh) and s5cmd and rclone (python -m
benchmarks.peers). What is missing is left out, and said.
"""

import argparse
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..contest import ROOT, PeerError
from . import reads, transfers
from .servers import NoServer

PAGE = ROOT / "docs" / "benchmarks-stores.md"
FILES = 100


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--parts", default=",".join(PARTS), help="of: %(default)s")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument(
        "--files",
        type=int,
        default=FILES,
        help="of 64 MiB, to transfer (default: %(default)s; 4 times that much space)",
    )
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument("--out", type=Path, help="write the page here (default: docs/benchmarks-stores.md)")
    return options


def fitting(files: int, folder: Path) -> int:
    """As many files as fit here: two copies on the disk, and two in memory with what holds them."""
    memory = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if "MemAvailable" in line
    )
    space = min(shutil.disk_usage(folder).free // 3, memory * 1024 // 6)
    return max(1, min(files, space // transfers.FILE_BYTES))


def range_reads(folder: Path, given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Section and verdicts. Raises: NoServer."""
    turns, failed = reads.measure(folder, given.rounds)
    return list(reads.section(turns, failed)), list(reads.verdicts(turns))


def whole_files(folder: Path, given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Section and verdicts. Raises: NoServer; PeerError."""
    files = fitting(given.files, folder)
    turns = transfers.measure(folder, given.rounds, files)
    return list(transfers.section(turns, files)), list(transfers.verdicts(turns))


PARTS: dict[str, Callable[[Path, argparse.Namespace], tuple[list[str], list[str]]]] = {
    "reads": range_reads,
    "transfers": whole_files,
}


def main() -> int:
    given = parser().parse_args()
    if unknown := set(given.parts.split(",")) - PARTS.keys():
        parser().error(f"--parts {','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended and files deleted
    sections: list[str] = []
    verdicts: list[str] = []
    for part in given.parts.split(","):
        with tempfile.TemporaryDirectory() as temporary:
            try:
                said, judged = PARTS[part](Path(temporary), given)
            except (NoServer, PeerError) as error:
                said, judged = [f"## {part}\n\nnot measured: {error}\n"], []
        sections += said
        verdicts += judged
    text = "\n".join([*head(given), *verdicts, "", *sections]).rstrip() + "\n"
    (given.out or PAGE).write_text(text)
    print(text)
    return 0


def head(given: argparse.Namespace) -> list[str]:
    """The page's head, down to the table of aims."""
    defaults = vars(parser().parse_args([]))
    names = ("parts", "rounds", "files")
    changed = [f"--{name} {getattr(given, name)}" for name in names if getattr(given, name) != defaults[name]]
    command = " ".join(["python -m benchmarks.stores", *changed])
    machine = f"{platform.machine()}, Python {platform.python_version()}, 2 cores"
    return [
        "# Stores\n",
        f"Made by `{command}` on {machine}. {given.note}".rstrip(),
        "",
        "Contestants take turns; a ratio is the median over rounds of the ratio within a round, with its range.",
        "Server and client share the cores, so where the client is quick the server bounds the rate: processor seconds",
        "per GiB are the client's own.\n",
        "| what | against | at least | penstock is faster by | reached |\n| --- | --- | --- | --- | --- |",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
