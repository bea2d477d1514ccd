"""The demo through Dagster on a cluster, while all that can die is killed: its bytes are those of this machine.

python tests/clusters slurm|ray [--media demo/media]          `make prove-clusters`
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

import loader  # noqa: E402 - after the path
from assets.arrivals.make_batches import discover  # noqa: E402
from examples.demo import arrivals  # noqa: E402
from examples.demo.pipeline import Pipeline, Places  # noqa: E402
from examples.media import fetch  # noqa: E402
from loader.storage import open_store  # noqa: E402
from penstock.compute.job import JobFolder, job_ids  # noqa: E402
from penstock.stages import current_record  # noqa: E402
from resources.compute import WAITS  # noqa: E402
from tests.clusters.digests import digests  # noqa: E402
from tests.clusters.placed import CLUSTERS, Placed  # noqa: E402
from tests.servers.deployment import ENDED, Deployment, deployment  # noqa: E402

PATIENCE_S = 900.0


class Proof:
    """A landing place, a root, Dagster's processes and a cluster."""

    def __init__(self, folder: Path, dagster: Deployment, placed: Placed) -> None:
        self.dagster, self.placed = dagster, placed
        self.root, self.raw = folder / "root", folder / "raw"
        self.store = open_store(str(self.root))
        self._began_s = time.monotonic()

    def arrive(self, put: Callable[[Path, Path], set[str]], media: Path) -> str:
        """Let media arrive, and return the name of their batch."""
        put(media, self.raw)
        with loader.Root(self.root) as root:
            (batch,) = discover(root.store, open_store(str(self.raw)), "demo")
        self.say(f"batch {batch} has arrived")
        return batch

    def wait_in_queue(self) -> None:
        """Hold Dagster's log of the run while no runner has room: it tells the job's place, and why it waits."""

        def queue_message() -> str:
            words = [
                event.get("message", "")
                for run in self.dagster.runs("demo_ingest")
                for event in self.dagster.events(run["runId"])
            ]
            return next((one for one in words if " waits as " in one and self.placed.why in one), "")

        self.say(str(self.dagster.wait_for("the run's log tells why it waits", queue_message, PATIENCE_S)))
        self.placed.empty()

    def during(self, stage: str, batch: str, *kills: Callable[[], object]) -> None:
        """Kill, while runners work at the job of a stage. Raises: AssertionError for a job that ended before."""

        def works() -> bool:
            record = current_record(self.store, "demo", stage, batch)
            assert record is None, f"{stage} of {batch} was through too soon"
            return self.unfinished(stage, batch) and bool(self.placed.runners())

        self.placed.mend()
        self.dagster.wait_for(f"runners work at {stage}", works, PATIENCE_S)
        for kill in kills:
            self.say(f"{stage}: {kill.__name__} {kill() or ''}")

    def unfinished(self, stage: str, batch: str) -> bool:
        """Whether a job of the stage was begun, and lacks blocks."""
        for id_ in job_ids(self.store):
            folder = JobFolder(self.store, id_)
            description = folder.description()
            if description is not None and description.about == f"demo/{stage}/{batch}":
                return bool(folder.n_starts()) and len(folder.done()) < len(description.blocks)
        return False

    def kill_the_run(self) -> str:
        """SIGKILL to the process of the run that waits for the job."""
        (run,) = [run for run in self.dagster.runs("demo_ingest") if run["status"] == "STARTED"]
        assert self.dagster.kill_a_worker(run["runId"])
        return str(run["runId"])[:8]

    def kill_the_daemon(self) -> None:
        self.dagster.kill("daemon")
        self.dagster.start("daemon")

    def kill_the_code_server(self) -> None:
        """With the runs that it started."""
        self.dagster.kill("code-server")
        self.dagster.start("code-server")

    def publish(self, batch: str) -> None:
        """Wait until samples of a batch passed, and release them."""

        def has_samples_record() -> bool:
            return current_record(self.store, "demo", "samples", batch) is not None

        self.dagster.wait_for(f"{batch} is through", has_samples_record, PATIENCE_S)
        run_id = self.dagster.launch("demo_release")

        def status() -> str:
            (run,) = [run for run in self.dagster.runs("demo_release") if run["runId"] == run_id]
            return str(run["status"])

        self.dagster.wait_for("the release has ended", lambda: status() in ENDED, PATIENCE_S)
        assert status() == "SUCCESS", status()
        self.say(f"{batch} is published")

    def check_ended(self) -> None:
        """Raises: AssertionError where something of a job is left, or a run has no end."""
        self.dagster.wait_for(
            "every run has ended", lambda: all(run["status"] in ENDED for run in self.dagster.runs())
        )
        assert not list(job_ids(self.store)), "folders of jobs are left"
        self.placed.mend()  # Slurm lists the jobs of a dead node until it is back

        def is_idle() -> bool:
            left = self.placed.left(), self.placed.runners()
            assert not any(left), f"left: {left}"
            return True

        self.dagster.wait_for("the engine has nothing to do", is_idle)
        for run in self.dagster.runs("demo_ingest"):
            self.say(f"run {run['runId'][:8]} {run['status']}, waits for {run['tags'].get(WAITS, '')!r}")

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", flush=True)


def main() -> int:
    """Exit status 1 when a digest differs."""
    parser = argparse.ArgumentParser(
        prog="python tests/clusters", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("engine", choices=sorted(CLUSTERS))
    parser.add_argument("--media", type=Path, default=REPOSITORY / "demo" / "media")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / "media-cache")
    options = parser.parse_args()
    fetch(options.media, options.cache)
    with ExitStack() as open_:
        folder = Path(open_.enter_context(tempfile.TemporaryDirectory(prefix="clusters-")))
        placed = open_.enter_context(CLUSTERS[options.engine](folder))
        here = Pipeline(Places(root=folder / "here", home=folder / "home", source=str(folder / "raw")))
        open_.callback(here.close)
        environment = {
            "PENSTOCK_ROOT": str(folder / "root"),
            "PENSTOCK_LANDING": str(folder / "raw"),
            "DEMO_CLUSTER": str(placed.file),
            **placed.variables,
        }
        with loader.Root(folder / "root") as root:
            root.create()
        definitions = REPOSITORY / "tests" / "servers" / "demo_on_cluster.py"
        dagster = open_.enter_context(deployment(folder / "dagster", definitions, environment))
        proof = Proof(folder, dagster, placed)
        batches = publish_with_faults(proof, options.media, here)
        there = digests(folder / "root")
        alone = reference_digests(folder, here, batches)
    different = sorted(name for name in there.keys() | alone.keys() if there.get(name) != alone.get(name))
    print(f"{len(alone) - len(different)} of {len(alone)} digests are those of this machine")
    print("\n".join(different))
    return 1 if different else 0


def publish_with_faults(proof: Proof, media: Path, here: Pipeline) -> list[str]:
    """Publish both arrivals of the demo while everything dies once; return their batches."""
    dagster, placed = proof.dagster, proof.placed
    first = proof.arrive(arrivals.first, media)
    here.discover()
    placed.fill()
    dagster.switch_on("demo_discovery")
    proof.wait_in_queue()
    proof.during("media", first, placed.kill_a_node)
    proof.during("units", first, proof.kill_the_run, placed.kill_the_head)
    proof.during("feature_picture", first, placed.kill_a_node, proof.kill_the_daemon)
    proof.publish(first)
    dagster.kill("daemon")  # a look at half of the files would make two batches
    second = proof.arrive(arrivals.second, media)
    here.discover()
    dagster.start("daemon")
    proof.during("media", second, placed.kill_the_head, proof.kill_the_daemon)
    proof.during("units", second, placed.kill_a_node, proof.kill_the_code_server)
    proof.publish(second)
    proof.check_ended()
    return [first, second]


def reference_digests(folder: Path, here: Pipeline, batches: list[str]) -> dict[str, str]:
    """Return the digests of the same batches on this machine."""
    for batch in batches:
        for run in (here.ingest(batch), here.release()):
            assert run.success, run.message
    return digests(folder / "here")


if __name__ == "__main__":
    sys.exit(main())
