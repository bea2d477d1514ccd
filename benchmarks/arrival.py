"""How long until what lands can be trained on: `python -m benchmarks.arrival` writes its section of the page.

A real daemon and webserver over a dataset that streams (`DatasetSpec(streaming=True)`), on SQLite, as
`deploy/one_machine` has it. A photo is put into the landing place, and `root.open("stream@latest")` is asked until a
version has it; then the next one.
"""

import argparse
import io
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import loader
from loader.errors import VersionNotFound
from tests.servers.ports import free_port

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "benchmarks-pipeline.md"
HEADING = "## From arrival to version"
DATASET = "stream"
TIMEOUT_S = 600
_DEFINITIONS = """
from assets.sources import BatchLimits
from assets.spec import DatasetSpec
from dagster_project.definitions import build_defs

SPEC = DatasetSpec(name="stream", streaming=True, batch=BatchLimits(max_wait_s=0), max_reject_rate=1.0)
defs = build_defs(datasets=[SPEC])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """arrival_s: per object, from its being written until a version has it; cpu_s: processor seconds of daemon,
    webserver and runs together, from start to end."""

    arrival_s: tuple[float, ...]
    cpu_s: float


def measure(folder: Path, drops: int) -> Measured:
    """Put so many photos into the landing place, one after the other. Raises: TimeoutError."""
    environment = _prepare(folder)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _dagster(folder, environment, "instance", "migrate")  # two that make the databases at once spoil them
    with _running(folder, environment), loader.Root(folder / "root") as root:
        root.create()
        for sensor in (f"{DATASET}_discovery", f"{DATASET}_release_batches"):
            _dagster(folder, environment, "sensor", "start", "-w", "workspace.yaml", sensor)
        times = tuple(_arrival_s(folder, root, number) for number in range(drops))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Measured(arrival_s=times, cpu_s=cpu_s)


def _dagster(folder: Path, environment: dict[str, str], *words: str) -> None:
    """A command of Dagster's. Raises: RuntimeError with what it said."""
    command = [_tool("dagster"), *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}")


def _prepare(folder: Path) -> dict[str, str]:
    """The files that Dagster starts from; the environment of its processes."""
    for name in ("home", "landing"):
        (folder / name).mkdir(parents=True)
    shutil.copyfile(REPOSITORY / "deploy" / "one_machine" / "dagster.yaml", folder / "home" / "dagster.yaml")
    (folder / "stream_defs.py").write_text(_DEFINITIONS)
    (folder / "workspace.yaml").write_text("load_from:\n  - python_file: stream_defs.py\n")
    places = {"PENSTOCK_ROOT": "root", "PENSTOCK_LANDING": "landing", "DAGSTER_HOME": "home"}
    return (
        os.environ
        | {name: str(folder / place) for name, place in places.items()}
        | {"PYTHONPATH": str(REPOSITORY)}
    )


@contextmanager
def _running(folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Daemon and webserver, each the leader of a group that is ended with it."""
    commands = [
        [_tool("dagster-daemon"), "run", "-w", "workspace.yaml"],
        [_tool("dagster-webserver"), "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(free_port())],
    ]
    with open(folder / "log.txt", "wb") as log:
        started = [
            subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            for command in commands
        ]
        try:
            yield
        finally:
            for process in started:
                os.killpg(process.pid, signal.SIGINT)
            for process in started:
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _arrival_s(folder: Path, root: loader.Root, number: int) -> float:
    """Seconds from the photo's being written until a version has it."""
    rng = np.random.default_rng(number)
    sink = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)).save(sink, "JPEG")
    written = time.monotonic()
    (folder / "landing" / f"{number:04d}.jpg").write_bytes(sink.getvalue())
    while time.monotonic() - written < TIMEOUT_S:
        try:
            n_samples = len(root.open(f"{DATASET}@latest"))
        except VersionNotFound:
            n_samples = 0
        if n_samples > number:
            return time.monotonic() - written
        time.sleep(0.25)
    raise TimeoutError(f"photo {number} was in no version after {TIMEOUT_S} s; {folder}/log.txt says more")


def section(found: Measured, note: str) -> str:
    """The section of the page."""
    first, *later = found.arrival_s
    told = later or [first]
    load = f"load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"
    lines = [
        HEADING,
        "",
        f"Made by `python -m benchmarks.arrival --drops {len(found.arrival_s)}` ({load}"
        f"{'; ' + note if note else ''}), with a real daemon",
        "and webserver: from a photo's landing in a streaming dataset until "
        '`root.open("stream@latest")` has it.',
        "",
        "| | seconds |",
        "| --- | --- |",
        f"| the first photo, while Dagster starts | {first:.0f} |",
        f"| later ones, median of {len(told)} | {statistics.median(told):.0f} |",
        f"| fastest, slowest | {min(told):.0f}, {max(told):.0f} |",
        f"| processor time of everything, per photo | {found.cpu_s / len(found.arrival_s):.0f} |",
        "",
        "A photo takes two runs and four waits of up to 5 s (two sensors, twice the queue of runs).",
        "",
    ]
    return "\n".join(lines)


def write_section(page: Path, text: str) -> None:
    """Put a section into the page, in place of an earlier one of its heading."""
    old = page.read_text() if page.exists() else "# Benchmarks: the pipeline\n\n"
    before, found, rest = old.partition(HEADING + "\n")
    ends = [
        at for at in (rest.find("\n## "), rest.find("\n<!--")) if at >= 0
    ]  # a heading, or a mark of another
    behind = rest[min(ends) + 1 :] if found and ends else ""
    page.write_text(before.rstrip("\n") + "\n\n" + text + ("\n" + behind if behind else ""))


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.arrival", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--drops", type=int, default=6)
    parser.add_argument("--note", default="", help="about the machine")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.drops)
    text = section(found, options.note)
    write_section(PAGE, text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
