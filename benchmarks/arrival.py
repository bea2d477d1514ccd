"""How long until what lands can be trained on: `python -m benchmarks.arrival` writes its section of the page.

A real daemon and webserver over a dataset that streams (`DatasetSpec(streaming=True)`), on SQLite, as
`deploy/one_machine` has it. A photo is put into the landing place, and `root.open("stream@latest")` is asked until a
version has it; then the next one.
"""

import argparse
import io
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

import loader
from loader.errors import VersionNotFound
from tests.servers.deployment import deployment

from . import sections

REPOSITORY = Path(__file__).resolve().parents[1]
DATASET = "stream"
TIMEOUT_S = 600
SETTINGS = REPOSITORY / "deploy" / "one_machine" / "dagster.yaml"
PLACES = ("PENSTOCK_ROOT", "PENSTOCK_LANDING")
DEFINITIONS = """
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


def measure(
    folder: Path,
    drops: int,
    *,
    definitions: str = DEFINITIONS,
    settings: Mapping[str, Any] | None = None,
) -> Measured:
    """Put so many photos into the landing place, one after the other. Raises: TimeoutError.

    settings: of Dagster; default: as `deploy/one_machine` has its queue of runs.
    """
    (folder / "landing").mkdir(parents=True)
    (folder / "stream_defs.py").write_text(definitions)
    environment = {name: str(folder / name.rpartition("_")[2].lower()) for name in PLACES}
    queue = {"run_queue": yaml.safe_load(SETTINGS.read_text())["run_queue"]}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with loader.Root(folder / "root") as root:
        root.create()
        with deployment(
            folder / "dagster",
            folder / "stream_defs.py",
            environment,
            settings=queue if settings is None else settings,
        ) as dagster:
            for sensor in (f"{DATASET}_discovery", f"{DATASET}_release_batches"):
                dagster.switch_on(sensor)
            times = tuple(_arrival_s(folder, root, number) for number in range(drops))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Measured(arrival_s=times, cpu_s=cpu_s)


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
    raise TimeoutError(f"photo {number} was in no version after {TIMEOUT_S} s; {folder}/dagster says more")


def section(found: Measured, note: str) -> str:
    """The section of the page."""
    first, *later = found.arrival_s
    told = later or [first]
    load = f"load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores"
    return "\n".join(
        [
            "# From arrival to version",
            "",
            f"Made by `python -m benchmarks.arrival --drops {len(found.arrival_s)}` ({load}"
            f"{'; ' + note if note else ''}), with a real daemon and webserver.",
            "",
            'From a photo\'s landing in a streaming dataset until `root.open("stream@latest")` has it: '
            f"{statistics.median(told):.0f} s, median of {len(told)} ({min(told):.0f} to {max(told):.0f} s); the "
            f"first, while Dagster starts, {first:.0f} s. Each takes two runs, four waits of up to 5 s, and "
            f"{found.cpu_s / len(found.arrival_s):.0f} s of processor time.",
        ]
    )


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
    sections.write("benchmarks.arrival", text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
