"""`python -m benchmarks.stores`: stores against the tools that others use; writes docs/benchmarks-stores.md.

Reads need nginx (apt-get install nginx-light), transfers and migration Ceph (scripts/install-ceph.sh) and s5cmd and
rclone (python -m benchmarks.peers). What is missing is left out, and said.
"""

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from loader.errors import StoreError

from .. import sections
from ..contest import PeerError
from . import migration, reads, transfers
from .servers import CEPH_GIB, NoServer

FILES = 100
CEPH_BYTES = (CEPH_GIB - 1) * 2**30
"""What it is given, less what it needs itself."""


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
        help="of 64 MiB, to transfer and to migrate (default: %(default)s, or as many as fit)",
    )
    options.add_argument(
        "--minutes",
        type=float,
        default=6,
        help="after so many of a part no other round of it is begun (default: %(default)g)",
    )
    options.add_argument("--note", default="", help="a sentence for the page's head, about the machine")
    options.add_argument("--out", type=Path, help="write the page here (default: docs/benchmarks-stores.md)")
    return options


def fitting(files: int, folder: Path, copies: int = 1) -> int:
    """As many files as fit here: two copies on the disk, and `copies` in Ceph's memory."""
    memory = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if "MemAvailable" in line
    )
    space = min(shutil.disk_usage(folder).free // 3, memory * 1024 // 2 // copies, CEPH_BYTES // copies)
    return max(1, min(files, space // transfers.FILE_BYTES))


def range_reads(folder: Path, given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Section and verdicts. Raises: NoServer."""
    turns, failed = reads.measure("nginx", folder, given.rounds, given.until)
    return list(reads.section("nginx", turns, failed)), list(reads.verdicts(turns))


def tls_reads(folder: Path, given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Section and verdict. Raises: NoServer."""
    turns, failed = reads.measure("nginx-tls", folder, given.rounds, given.until)
    return list(reads.section("nginx-tls", turns, failed)), list(reads.tls_verdict(turns))


def ceph_reads(folder: Path, given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Section; nothing is aimed at. Raises: NoServer."""
    turns, failed = reads.measure("ceph", folder, given.rounds, given.until)
    return list(reads.section("ceph", turns, failed)), []


def whole_files(folder: Path, given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Section and verdicts. Raises: NoServer; PeerError."""
    files = fitting(given.files, folder)
    turns = transfers.measure(folder, given.rounds, files, given.until)
    return list(transfers.section(turns, files)), list(transfers.verdicts(turns))


def from_bucket_to_bucket(folder: Path, given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Section, with its own table of aims. Raises: NoServer; PeerError."""
    files = fitting(given.files, folder, copies=3)
    files = max(1, files - files % migration.AT_ONCE)  # else the last ones go on alone
    turns = migration.measure(folder, given.rounds, files, given.until)
    return [*migration.section(turns, files), *migration.verdicts(turns), ""], []


PARTS: dict[str, Callable[[Path, argparse.Namespace], tuple[list[str], list[str]]]] = {
    "reads": range_reads,
    "tls-reads": tls_reads,
    "ceph-reads": ceph_reads,
    "transfers": whole_files,
    "migration": from_bucket_to_bucket,
}


def main() -> int:
    given = parser().parse_args()
    if unknown := set(given.parts.split(",")) - PARTS.keys():
        parser().error(f"--parts {','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended and files deleted
    parts: list[str] = []
    verdicts: list[str] = []
    for part in given.parts.split(","):
        given.until = time.monotonic() + 60 * given.minutes
        with tempfile.TemporaryDirectory() as temporary:
            try:
                said, judged = PARTS[part](Path(temporary), given)
            except (NoServer, PeerError, OSError, subprocess.SubprocessError, StoreError) as error:
                said, judged = [f"## {part}\n\nnot measured: {error}\n"], []
        parts += said
        verdicts += judged
    text = "\n".join([*head(given), *verdicts, "", *parts]).rstrip() + "\n"
    sections.write("benchmarks.stores", text, given.out)
    print(text)
    return 0


def head(given: argparse.Namespace) -> list[str]:
    """The page's head, down to the table of aims."""
    defaults = vars(parser().parse_args([]))
    names = ("parts", "rounds", "files", "minutes")
    changed = [f"--{name} {getattr(given, name)}" for name in names if getattr(given, name) != defaults[name]]
    command = " ".join(["python -m benchmarks.stores", *changed])
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    return [
        "# Stores\n",
        f"Made by `{command}` on {machine}. {given.note}".rstrip(),
        "",
        "Server and client share the cores, or have one each (apart). Processor seconds are the client's.\n",
        "| what | against | at least | penstock is faster by | reached |\n| --- | --- | --- | --- | --- |",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
