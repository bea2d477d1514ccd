"""From bucket to bucket: `penstock migrate run --from` with SHA-256 or CRC-32C and a manifest, and `rclone copy
--checksum`.

rclone hashes nothing on the way: it takes the source's ETag for its MD5. What it takes to have every object's SHA-256
too, as penstock's manifest has, is a contestant of its own.
"""

import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from .. import page
from ..contest import ENVIRONMENTS, ONE_THREAD, ROOT, PeerError, failure_of
from ..throughput import say
from .servers import APART, BUCKET, SHARED, ceph, cores, freed, store_of
from .transfers import CREDENTIALS, OURS, make_bucket

AT_ONCE = 8
"""Objects in flight, for everybody."""
SIZES = {"64 MiB": 64 * 2**20, "1 MiB": 2**20}
SMALL = 32
"""Small objects for each large one."""
HASHED = "rclone, then sha256"
CONTESTANTS = {SHARED: (*OURS, "rclone", HASHED), APART: (*OURS, "rclone")}
AIM, MOST_MIB = 1.0, 300
"""Of rclone's speed; memory above the import."""
LAUNCHER = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""
"""A small process in between: the peak of a program begins with that of who starts it."""
_INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""What is installed was compiled once."""
IMPORTED = "import loader, obstore, penstock.cli, penstock.upkeep.migrate.prefix_copy"
"""What a migration from bucket to bucket imports."""


def commands(endpoint: str, source: str, target: str) -> dict[str, list[str]]:
    """program -> its command. rclone gets two remotes, of other names: inside one it would let the server copy."""
    option = f"endpoint_url={endpoint}"
    rclone = str(ENVIRONMENTS / "transfer" / "bin" / "rclone")
    copy = [
        *(rclone, "copy", "--checksum", "--transfers", str(AT_ONCE), "--config", "/dev/null"),
        *(f"here:{BUCKET}/{source}", f"there:{BUCKET}/{target}"),
    ]
    hashes = [
        *(rclone, "hashsum", "sha256", "--download", "--checkers", str(AT_ONCE), "--config", "/dev/null"),
        f"here:{BUCKET}/{source}",
    ]
    mine = [
        *(sys.executable, "-m", "penstock", "migrate", "run", f"s3://{BUCKET}/{target}"),
        *("--from", f"s3://{BUCKET}/{source}", "--option", option, "--from-option", option),
        *("--at-once", str(AT_ONCE), "--json", "--hash"),
    ]
    return {name: [*mine, hash] for name, hash in OURS.items()} | {
        "rclone": copy,
        HASHED: ["sh", "-c", f"{shlex.join(copy)} && {shlex.join(hashes)}"],
    }


def remotes(endpoint: str) -> dict[str, str]:
    """The environment that tells rclone of both."""
    of_one = {
        "TYPE": "s3",
        "PROVIDER": "Ceph",
        "ENDPOINT": endpoint,
        "ENV_AUTH": "true",
        "NO_CHECK_BUCKET": "true",
    }
    return {
        f"RCLONE_CONFIG_{name}_{option}": value
        for name in ("HERE", "THERE")
        for option, value in of_one.items()
    }


def measure(folder: Path, rounds: int, files: int, until: float) -> page.Turns:
    """ "PROGRAM SIZE, CORES" and "import, CORES" -> turns. Raises: NoServer; PeerError for a program that is missing or
    fails."""
    if failed := failure_of("transfer"):
        raise PeerError(failed)
    turns: dict[str, list[Mapping[str, Any]]] = {}
    with ceph(folder / "ceph") as endpoint:
        make_bucket(endpoint)
        counts = {name: files * (1 if nbytes > 2**20 else SMALL) for name, nbytes in SIZES.items()}
        for name, nbytes in SIZES.items():
            _fill(endpoint, f"from-{nbytes}", counts[name], nbytes)
        # Memory that a virtual machine has for the first time costs more: nobody's turn.
        largest = max(SIZES.values())
        _timed(commands(endpoint, f"from-{largest}", f"to-{largest}")["rclone"], 1, remotes(endpoint))
        _compare_and_empty(endpoint, f"from-{largest}", f"to-{largest}")
        freed(folder / "ceph")
        for number in range(rounds):
            for had in (SHARED, APART):
                with cores(had) as before:
                    turn = _timed([*before, sys.executable, "-c", IMPORTED], 1, {})
                turns.setdefault(f"import, {had}", []).append(turn)
            for (name, nbytes), had in product(SIZES.items(), (SHARED, APART)):
                programs = commands(endpoint, f"from-{nbytes}", f"to-{nbytes}")
                for program in CONTESTANTS[had][:: -1 if number % 2 else 1]:
                    with cores(had) as before:
                        turn = _timed([*before, *programs[program]], counts[name], remotes(endpoint))
                    turns.setdefault(f"{program} {name}, {had}", []).append(turn)
                    _compare_and_empty(endpoint, f"from-{nbytes}", f"to-{nbytes}")
                    freed(folder / "ceph")
            say(f"migration: round {number + 1} of {rounds}")
            if time.monotonic() > until:
                break
    return turns


def section(turns: page.Turns, files: int) -> Iterator[str]:
    """Markdown."""
    yield "## From bucket to bucket\n"
    yield (
        f"{files} objects of 64 MiB, and {SMALL * files} of 1 MiB, from one prefix of a bucket of Ceph's (in memory)\n"
        f"to another through the program, {AT_ONCE} at once, with its start. "
        f"{len(turns[f'import, {SHARED}'])} rounds.\n\n"
        "- penstock: `penstock migrate run --from`, with SHA-256 (`--hash`: CRC-32C), manifest and journal.\n"
        "- rclone: `rclone copy --checksum` takes both ETags for MD5 and hashes nothing on the way.\n"
        "- rclone, then sha256: then `rclone hashsum sha256 --download` of the source, for the manifest's hashes.\n"
    )
    yield (
        "| cores | objects | program | MB/s | processor s/GiB | peak MiB | penstock is faster by |\n"
        "| --- | --- | --- | --- | --- | --- | --- |"
    )
    for had, (name, nbytes) in product((SHARED, APART), SIZES.items()):
        at = f"{had} | {name}"
        for program in CONTESTANTS[had]:
            found = turns[f"{program} {name}, {had}"]
            rates = [page.rate(turn) * nbytes / 1e6 for turn in found]
            cpu = [turn["cpu_s"] / (turn["samples"] * nbytes) * 2**30 for turn in found]
            peak = statistics.median(turn["peak_bytes"] for turn in found) / 2**20
            ratio = (
                ""
                if program in OURS
                else page.shown(page.ratios(turns, f"penstock {name}, {had}", f"{program} {name}, {had}"))
            )
            shown = f"{page.shown(rates, 0)} | {statistics.median(cpu):.2f} | {peak:.0f}"
            yield f"| {at} | {program} | {shown} | {ratio} |"
            at = "|"
    yield ""


def verdicts(turns: page.Turns) -> Iterator[str]:
    """The table of aims, in Markdown."""
    yield (
        f"Aims: {AIM:.1f} of rclone's speed, and at most {MOST_MIB} MiB above the import, whose own peak is "
        f"{_imported_mib(turns):.0f} MiB. A missed aim is bold.\n"
    )
    yield "| cores | objects | hash | penstock is faster by | less its import | MiB above the import |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for had, name, (program, hash) in product((SHARED, APART), SIZES, OURS.items()):
        found = page.ratios(turns, f"{program} {name}, {had}", f"rclone {name}, {had}")
        starts = zip(turns[f"{program} {name}, {had}"], turns[f"import, {had}"], strict=True)
        less = [ours["seconds"] / (ours["seconds"] - start["seconds"]) for ours, start in starts]
        running = [ratio * more for ratio, more in zip(found, less, strict=True)]
        peak = max(turn["peak_bytes"] for turn in turns[f"{program} {name}, {had}"]) / 2**20
        above = peak - _imported_mib(turns)
        cells = (
            page.judged(page.shown(found), statistics.median(found) >= AIM),
            page.judged(page.shown(running), statistics.median(running) >= AIM),
            page.judged(f"{above:.0f}", above <= MOST_MIB),
        )
        yield f"| {had} | {name} | {hash} | {' | '.join(cells)} |"


def _imported_mib(turns: page.Turns) -> float:
    return float(turns[f"import, {SHARED}"][0]["peak_bytes"]) / 2**20


def _timed(command: list[str], files: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Wall and processor seconds and peak memory of a program. Raises: PeerError."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", LAUNCHER, *command],
        cwd=ROOT,
        env={**_INSTALLED, **ONE_THREAD, **CREDENTIALS, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    peak = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    took = time.perf_counter() - begun
    if process.returncode:
        raise PeerError(f"{Path(command[0]).name} ended with {process.returncode}")
    return {
        "samples": files,
        "seconds": took,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_bytes": int(peak) * 1024,
    }


def _fill(endpoint: str, prefix: str, count: int, nbytes: int) -> None:
    store, block = store_of(endpoint, prefix), Random(7).randbytes(nbytes - 8)
    for number in range(count):
        store.put(f"{number:05}.bin", number.to_bytes(8, "big") + block)
    store.close()


def _compare_and_empty(endpoint: str, source: str, target: str) -> None:
    """Raises: PeerError where an object did not arrive."""
    here, there = store_of(endpoint, source), store_of(endpoint, target)
    wanted = {info.key: info.nbytes for info in here.list("")}
    found = {info.key: info.nbytes for info in there.list("")}
    there.delete_many(found)
    here.close()
    there.close()
    if missing := {key for key, nbytes in wanted.items() if found.get(key) != nbytes}:
        raise PeerError(f"{len(missing)} objects did not arrive, such as {min(missing)}")
