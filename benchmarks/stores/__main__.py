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

from ..contest import ROOT, PeerError
from . import migration, reads, transfers
from .servers import CEPH_GIB, NoServer

PAGE = ROOT / "docs" / "benchmarks-stores.md"
FILES = 100
CEPH_BYTES = (CEPH_GIB - 1) * 2**30
"""What it is given, less what it needs itself."""

BOUNDS = """What bounds them, in processor seconds per GiB, by getrusage on busy cores; not measured with this page.
SHA-256 takes 0.57 to 0.92 here (the processor's own instructions, outside the interpreter's lock), CRC-32C 0.05
to 0.13.

- Down: receiving and writing takes s5cmd 0.45 to 0.7 and Ceph 0.8 to 1.2, penstock with CRC-32C 0.5 to 0.75, of which
  0.15 are its own instructions and 0.05 CRC-32C. SHA-256 increases what client and server take together by a half.
- Up: reading 0.1, SHA-256 twice (the caller's, and the client's for its signature), sending 0.2. Into new memory
  reading takes 0.6 to 0.7, and up to 3 where a virtual machine's free memory goes back to its host.
- From bucket to bucket: Ceph takes 4.8 to 5.5 for both ways of a byte, rclone 0.7 to 0.8, penstock 1.35 and with
  CRC-32C 0.55 to 0.65. Where both share two cores that hash is the difference; with a core of its own Ceph bounds both.
- Ranges: nginx and the client share the cores. At 16 at once threads wait for the interpreter's lock: what is left of
  a request is 12 us of Python, and the system's copy.
- Whole files, on a virtual machine whose host gives the page cache's memory anew: every contestant takes half as
  long again.
- Over TLS, by a trial that has no command here: penstock's own reads are 2.4 times as fast as obstore's for one range
  of 64 KiB at a time, 1.25 for 16, 1.0 for 64, and 1.3 to 1.4 for 1 MiB.
- An earlier run, from bucket to bucket: 1.02 to 1.19 times rclone with CRC-32C, 0.89 to 1.07 with SHA-256, and 1.31
  and 1.36 times rclone followed by `rclone hashsum`.
"""


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
    """Section and verdicts. Raises: NoServer; PeerError."""
    files = fitting(given.files, folder, copies=3)
    files = max(1, files - files % migration.AT_ONCE)  # else the last ones go on alone
    turns = migration.measure(folder, given.rounds, files, given.until)
    return list(migration.section(turns, files)), list(migration.verdicts(turns))


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
    sections: list[str] = []
    verdicts: list[str] = []
    for part in given.parts.split(","):
        given.until = time.monotonic() + 60 * given.minutes
        with tempfile.TemporaryDirectory() as temporary:
            try:
                said, judged = PARTS[part](Path(temporary), given)
            except (NoServer, PeerError, OSError, subprocess.SubprocessError, StoreError) as error:
                said, judged = [f"## {part}\n\nnot measured: {error}\n"], []
        sections += said
        verdicts += judged
    text = "\n".join([*head(given), *verdicts, "", BOUNDS, *sections]).rstrip() + "\n"
    (given.out or PAGE).write_text(text)
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
        "Contestants take turns; a ratio is the median over rounds of the ratio within a round, with its range.",
        'But for "a core for each" server and client share the cores, so where the client is quick the server bounds',
        "the rate: processor seconds per GiB are the client's own.\n",
        "| what | against | at least | penstock is faster by | reached |\n| --- | --- | --- | --- | --- |",
    ]


if __name__ == "__main__":
    raise SystemExit(main())
