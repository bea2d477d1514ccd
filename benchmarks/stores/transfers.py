"""Whole files to a bucket of Ceph's and back: penstock with SHA-256, or CRC-32C, of every byte, s5cmd, rclone."""

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from .. import page
from ..contest import ENVIRONMENTS, ONE_THREAD, ROOT, PeerError, failure_of
from ..throughput import say
from .servers import BUCKET, KEY, SECRET, ceph, freed, memory_touched

FILE_BYTES = 64 * 2**20
AT_ONCE = 8
"""Files in flight, for everybody."""
OURS = {"penstock": "sha256", "penstock-crc32c": "crc32c"}
WAYS = ("down", "up")
AIM = 0.9
"""Of s5cmd's speed, up and down."""
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def commands(endpoint: str, here: Path, there: str, back: Path) -> dict[str, dict[str, list[str]]]:
    """program -> {"up": command, "down": command}; `there` is the prefix that it fills."""
    tools = ENVIRONMENTS / "transfer" / "bin"
    s5cmd = [
        str(tools / "s5cmd"),
        "--endpoint-url",
        endpoint,
        "--log",
        "error",
        "--numworkers",
        str(AT_ONCE),
        "cp",
    ]
    rclone = [
        *(
            str(tools / "rclone"),
            "copy",
            "--transfers",
            str(AT_ONCE),
            "--ignore-times",
            "--config",
            "/dev/null",
        ),
        *("--s3-provider", "Ceph", "--s3-endpoint", endpoint, "--s3-env-auth", "--s3-no-check-bucket"),
    ]
    ours = [sys.executable, "-m", "benchmarks.stores.carry"]
    mine = {
        name: {
            "up": [*ours, "up", endpoint, str(here), there, str(AT_ONCE), hash],
            "down": [*ours, "down", endpoint, there, str(back), str(AT_ONCE), hash],
        }
        for name, hash in OURS.items()
    }
    return mine | {
        "s5cmd": {
            "up": [*s5cmd, f"{here}/*", f"s3://{BUCKET}/{there}/"],
            "down": [*s5cmd, f"s3://{BUCKET}/{there}/*", f"{back}/"],
        },
        "rclone": {
            "up": [*rclone, str(here), f":s3:{BUCKET}/{there}"],
            "down": [*rclone, f":s3:{BUCKET}/{there}", str(back)],
        },
    }


def measure(folder: Path, rounds: int, files: int, until: float) -> page.Turns:
    """ "PROGRAM WAY" -> turns; way: up, down. Raises: NoServer; PeerError for a program that is missing or
    fails."""
    if failed := failure_of("transfer"):
        raise PeerError(failed)
    here, back = folder / "here", folder / "back"
    here.mkdir()
    block = Random(6).randbytes(FILE_BYTES - 8)
    for number in range(files):
        (here / f"{number:03}.bin").write_bytes(number.to_bytes(8, "big") + block)
    os.sync()  # what was not written to the disk stays in memory
    turns: dict[str, list[Mapping[str, Any]]] = {}
    with ceph(folder / "ceph") as endpoint:
        make_bucket(endpoint)
        names = list(commands(endpoint, here, "", back))
        for number in range(rounds):
            for name in [*names[number % len(names) :], *names[: number % len(names)]]:
                for way in reversed(WAYS):
                    shutil.rmtree(back, ignore_errors=True)
                    back.mkdir()
                    (_into_cache if way == "up" else _out_of_cache)(here)
                    memory_touched(files * FILE_BYTES * 5 // 4)
                    command = commands(endpoint, here, name, back)[name][way]  # the same keys in every round
                    turns.setdefault(f"{name} {way}", []).append(_timed(command, files))
                _compare(here, back)
                shutil.rmtree(back)
                _delete(endpoint, name)
                freed(folder / "ceph")  # its memory holds one program's files
            say(f"transfers: round {number + 1} of {rounds}")
            if time.monotonic() > until:
                break
    return turns


def section(turns: page.Turns, files: int) -> Iterator[str]:
    """Markdown."""
    yield "## Whole files\n"
    yield (
        f"{files} files of {FILE_BYTES // 2**20} MiB to a bucket of Ceph (in memory) and back, {AT_ONCE} at once.\n"
        "penstock hashes every byte, rclone by MD5, s5cmd none.\n"
    )
    yield "| way | penstock, MB/s | with CRC-32C, MB/s | than s5cmd | than rclone |"
    yield "| --- | --- | --- | --- | --- |"
    for way in WAYS:
        cells = [way]
        for program in (*OURS, "s5cmd", "rclone"):
            found = turns[f"{program} {way}"]
            cpu_s = statistics.median(
                turn["cpu_s"] / (turn["samples"] * FILE_BYTES) * 2**30 for turn in found
            )
            if program in OURS:
                figure = f"{statistics.median(map(page.rate, found)) * FILE_BYTES / 1e6:,.0f}"
            else:
                ratios = page.ratios(turns, f"penstock {way}", f"{program} {way}")
                figure = page.judged(
                    page.shown(ratios), program != "s5cmd" or statistics.median(ratios) >= AIM
                )
            cells.append(f"{figure}; {cpu_s:.2f} s")
        yield f"| {' | '.join(cells)} |"
    yield ""


def _timed(command: list[str], files: int) -> dict[str, Any]:
    """Wall and processor seconds of a program from start to end. Raises: PeerError."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | ONE_THREAD | CREDENTIALS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    took = time.perf_counter() - begun
    if process.returncode:
        raise PeerError(f"{Path(command[0]).name} ended with {process.returncode}: {said[-300:]}")
    return {"samples": files, "seconds": took, "cpu_s": used.ru_utime + used.ru_stime}


def _into_cache(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb", buffering=0) as file:
            while file.read(2**20):
                pass


def _out_of_cache(folder: Path) -> None:
    """Else there is no memory for what comes back, and whoever's turn it is pays for its reclaim."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _compare(here: Path, back: Path) -> None:
    """Raises: PeerError where a file did not come back as it went."""
    for path in here.iterdir():
        if (back / path.name).read_bytes() != path.read_bytes():
            raise PeerError(f"{path.name} came back as another")


def make_bucket(endpoint: str) -> None:
    """The bucket of all benchmarks."""
    client = _client(endpoint)
    client.create_bucket(Bucket=BUCKET)
    client.close()


def _delete(endpoint: str, prefix: str) -> None:
    client = _client(endpoint)
    for page_of in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/"):
        for found in page_of.get("Contents", ()):
            client.delete_object(Bucket=BUCKET, Key=found["Key"])
    client.close()


def _client(endpoint: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )
