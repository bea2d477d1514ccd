"""Check of a node, with Nagios' exit codes: reach of a root, latency, known ranges, scratch disk.

    python -m penstock.nodes.store_check --root s3://lab/penstock --scratch /scratch

A range that is wrong twice, with the same CRC-32C, is damaged in the store, and no fault of the node.
"""

import argparse
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from errno import EACCES, ENOENT, ENOSPC

import numpy as np

import loader
from loader.dataset.shards.address import UNKNOWN_CRC, FieldAddress
from loader.dataset.shards.shard import crc32c
from loader.errors import NotARoot, PenstockError, StoreError

from .node_check import CheckStatus

RANGES = 64
SLOW_S = 1.0
"""Median latency of a read that is a warning."""
SCRATCH_BYTES = 2**23
Finding = tuple[CheckStatus, str]
_chance = random.SystemRandom()


def check_store(url: str | None, ranges: int) -> Finding:
    """Return the state of a root, read from this node."""
    try:
        with loader.Root(url) as root:
            return _judge(root, random_fields(root, ranges))
    except NotARoot:
        return CheckStatus.WARNING, f"{url or 'root'} answers, and holds no versions: no range was read"
    except StoreError as error:
        return CheckStatus.FAILED, f"{url or 'root'} cannot be read: {type(error).__name__}: {error}"
    except PenstockError as error:  # such as a damaged log, which no node is to blame for
        return CheckStatus.UNKNOWN, f"{url or 'root'}: {type(error).__name__}: {error}"


def random_fields(root: loader.Root, number: int) -> list[FieldAddress]:
    """Return random fields of the newest versions, at most 4 MiB each."""
    drawn = list[FieldAddress]()
    names = root.datasets()
    for name in _chance.sample(names, min(4, len(names))):
        version = root.open(f"{name}@latest")
        fields = [
            field
            for group in version.manifest["groups"].values()
            if group["n_parts"] == version.manifest["n_parts"]
            for field in group["field_nbytes"]
        ]
        if fields and len(version):
            # Unseeded: each check reads other samples, so many checks cover a dataset.
            ordinals = np.random.default_rng().integers(len(version), size=number)
            # Sorted, so that samples of one shard share its index read.
            addresses = version.address(np.sort(ordinals), [_chance.choice(fields)])
            drawn += [place for address in addresses for place in address.fields.values()]
    known = [place for place in drawn if place.crc32c != UNKNOWN_CRC and 0 < place.nbytes <= 2**22]
    return _chance.sample(known, min(number, len(known)))


def _judge(root: loader.Root, places: Sequence[FieldAddress]) -> Finding:
    """Read fields, and return what their checksums and times show about this node."""
    took_s = list[float]()
    wrong = list[str]()
    damaged = list[str]()
    for place in places:
        begun = time.perf_counter()
        crc = _crc(root, place)
        took_s.append(time.perf_counter() - begun)
        if crc != place.crc32c:
            again = _crc(root, place)
            location = f"{place.path}[{place.offset}:{place.offset + place.nbytes}]"
            problem = f"{location} has CRC-32C {crc:08x} instead of {place.crc32c:08x}"
            # Equal twice: the store has these bytes. Different: the node or the network changes them.
            if again == crc:
                damaged.append(problem)
            else:
                wrong.append(problem)
    if wrong:
        return CheckStatus.FAILED, f"{len(wrong)} of {len(places)} ranges came wrong: {wrong[0]}"
    median_s = 0.0
    if took_s:
        median_s = statistics.median(took_s)
    text = f"{len(places)} ranges are right, median read {median_s * 1e3:.0f} ms"
    if damaged:
        return (
            CheckStatus.WARNING,
            f"{len(damaged)} ranges are damaged in the store, run penstock verify: {damaged[0]}",
        )
    if median_s > SLOW_S:
        return CheckStatus.WARNING, text
    return CheckStatus.OK, text


def _crc(root: loader.Root, place: FieldAddress) -> int:
    return crc32c(root.store.get_range(place.path, place.offset, place.nbytes).data)


def check_scratch(folder: str) -> Finding:
    """Return the state of a scratch disk: bytes are written, dropped from memory, and read back."""
    data = secrets.token_bytes(SCRATCH_BYTES)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="penstock-check-") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            # Else the read below comes from memory, and tests no disk.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            back = os.pread(file.fileno(), SCRATCH_BYTES, 0)
    except OSError as error:
        # A full disk or a missing folder is not a broken disk.
        status = {ENOSPC: CheckStatus.WARNING, ENOENT: CheckStatus.UNKNOWN, EACCES: CheckStatus.UNKNOWN}
        return status.get(error.errno or 0, CheckStatus.FAILED), f"scratch disk {folder}: {error}"
    if back != data:
        return CheckStatus.FAILED, f"scratch disk {folder} returned other bytes than were written"
    return CheckStatus.OK, f"scratch disk {folder} is right"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; return Nagios' exit code."""
    parser = argparse.ArgumentParser(description="Check a node's reads of a root, and its scratch disk.")
    parser.add_argument("--root", default=None, help="path or URL of the root (default: $PENSTOCK_ROOT)")
    parser.add_argument("--scratch", default=tempfile.gettempdir(), help="folder on the node's own disk")
    parser.add_argument("--ranges", type=int, default=RANGES, help="ranges to read")
    arguments = parser.parse_args(argv)
    findings = [check_store(arguments.root, arguments.ranges), check_scratch(arguments.scratch)]
    order = (CheckStatus.FAILED, CheckStatus.UNKNOWN, CheckStatus.WARNING, CheckStatus.OK)
    findings.sort(key=lambda finding: order.index(finding[0]))
    worst, _ = findings[0]
    print(f"{worst.name}: " + "; ".join(text for _, text in findings))
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
