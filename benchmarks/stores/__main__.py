"""`python -m benchmarks.stores`: stores against the tools that others use; writes docs/benchmarks-stores.md.

Reads need nginx (apt-get install nginx-light), transfers and migration Ceph (scripts/install-ceph.sh) and s5cmd and
rclone (python -m benchmarks.peers). What is missing is left out, and said. The page has no migration: --parts measures
it.
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
    options.add_argument("--parts", default=",".join(OF_PAGE), help=f"of: {', '.join(PARTS)}")
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


def range_reads(folder: Path, given: argparse.Namespace) -> list[str]:
    """Return the section. Raises: NoServer."""
    rows: list[str] = []
    failures: dict[str, str] = {}
    for server in reads.ASKED:
        until = time.monotonic() + 60 * given.minutes
        (folder / server).mkdir()
        turns, failed = reads.measure(server, folder / server, given.rounds, until)
        rows += reads.rows(server, turns)
        failures |= failed
    missing = [f"{name} does not take part: {why}\n" for name, why in failures.items()]
    return [*reads.HEAD.splitlines(), *rows, "", *missing]


def whole_files(folder: Path, given: argparse.Namespace) -> list[str]:
    """Return the section. Raises: NoServer; PeerError."""
    files = fitting(given.files, folder)
    return list(transfers.section(transfers.measure(folder, given.rounds, files, given.until), files))


def from_bucket_to_bucket(folder: Path, given: argparse.Namespace) -> list[str]:
    """Return the section, with its table of aims. Raises: NoServer; PeerError."""
    files = fitting(given.files, folder, copies=3)
    files = max(1, files - files % migration.AT_ONCE)  # else the last ones go on alone
    turns = migration.measure(folder, given.rounds, files, given.until)
    return [*migration.section(turns, files), *migration.verdicts(turns), ""]


PARTS: dict[str, Callable[[Path, argparse.Namespace], list[str]]] = {
    "reads": range_reads,
    "transfers": whole_files,
    "migration": from_bucket_to_bucket,
}
OF_PAGE = ("reads", "transfers")


def main() -> int:
    given = parser().parse_args()
    if unknown := set(given.parts.split(",")) - PARTS.keys():
        parser().error(f"--parts {','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are ended and files deleted
    parts: list[str] = []
    for part in given.parts.split(","):
        given.until = time.monotonic() + 60 * given.minutes
        with tempfile.TemporaryDirectory() as temporary:
            try:
                parts += PARTS[part](Path(temporary), given)
            except (NoServer, PeerError, OSError, subprocess.SubprocessError, StoreError) as error:
                parts.append(f"## {part}\n\nnot measured: {error}\n")
    text = "\n".join([*head(given), *parts]).rstrip() + "\n"
    sections.write("benchmarks.stores", text, given.out)
    print(text)
    return 0


def head(given: argparse.Namespace) -> list[str]:
    """Return the lines of the page's head."""
    defaults = vars(parser().parse_args([]))
    names = ("parts", "rounds", "files", "minutes")
    changed = [f"--{name} {getattr(given, name)}" for name in names if getattr(given, name) != defaults[name]]
    command = " ".join(["python -m benchmarks.stores", *changed])
    machine = f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores"
    return [
        "# Stores\n",
        f"Made by `{command}` on {machine}. {given.note}".rstrip(),
        "",
        "How much faster penstock is, and the client's processor seconds per GiB; the server shares the cores. The "
        f"aims: {reads.AIMS['s3fs']:g} times s3fs, {reads.AIMS['obstore']:.2f} of obstore, {transfers.AIM} of s5cmd.\n",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
