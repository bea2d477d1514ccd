"""A run of a small dataset whose works go to a cluster that outlives it, as a process of its own.

python waiting_run.py FOLDER BATCH RUN_ID

The cluster is the local engine, but for two things that make it one of other machines: runners begin once FOLDER/go is
there, and do not end with who submitted them. FOLDER/submitted has a line per attempt.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
from dagster._utils.interrupts import setup_interrupt_handlers

from assets.spec import DatasetSpec
from dagster_project.definitions import build_defs
from penstock.compute import cluster
from penstock.compute.engines.local_engine import LocalEngine
from resources.compute import ComputeResource
from resources.storage import LandingResource, RootResource

SPEC = DatasetSpec(name="demo")
WAITS_FOR_A_PLACE = 'until [ -e "$0/go" ]; do sleep 0.05; done; exec "$@" 0<>"$0/open"'


class Elsewhere(LocalEngine):
    """Runners whose standard input never ends, behind a queue."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._place = folder

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        with (self._place / "submitted").open("a") as file:
            file.write(f"{name}\n")
        super().submit(name, ["sh", "-c", WAITS_FOR_A_PLACE, str(self._place), *runner], n_blocks, final)

    def close(self) -> None:
        """Leave attempts to the cluster."""


def resources(folder: Path) -> dict[str, object]:
    cluster.ENGINES["local"] = lambda _: Elsewhere(folder)  # type: ignore[index]
    return {
        "root": RootResource(url=str(folder / "root")),
        "landing": LandingResource(url=str(folder / "landing")),
        "compute": ComputeResource(cluster=str(folder / "cluster.toml"), workers=1),
    }


def make_instance(folder: Path) -> dg.DagsterInstance:
    """Dagster's databases of the test, on disk."""
    home = folder / "dagster"
    home.mkdir(exist_ok=True)
    return dg.DagsterInstance.local_temp(str(home), overrides={"telemetry": {"enabled": False}})


def main(folder: Path, batch: str, run_id: str) -> int:
    if not (folder / "open").exists():
        os.mkfifo(folder / "open")
    setup_interrupt_handlers()
    job = build_defs(resources(folder), [SPEC]).resolve_job_def("demo_ingest")
    with make_instance(folder) as instance:
        done = job.execute_in_process(
            instance=instance, partition_key=batch, run_id=run_id, raise_on_error=False
        )
    return 0 if done.success else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
