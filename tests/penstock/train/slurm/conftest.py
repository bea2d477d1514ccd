"""Slurm with accounts and QOS for this folder's tests, and runs on it: every one of them is marked `slurm`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import loader
from penstock.compute.cluster import Cluster, read_cluster
from penstock.train.launch.slurm_job import SlurmJobs
from penstock.train.run_spec import RunSpec
from tests.servers.slurm import Slurm, slurm

REPOSITORY = Path(__file__).parents[4]
TRAINING = str(REPOSITORY / "tests/penstock/train/training.py")
CLUSTER = """\
engine = "slurm"
logs = "{folder}/logs"
environment = "{folder}/environment"
[priorities]
low = "low"
abrupt = "abrupt"
high = "high"
"""
ENVIRONMENT = """\
PYTHONPATH={repository}
GLOO_SOCKET_IFNAME=lo
OMP_NUM_THREADS=1
CUDA_VISIBLE_DEVICES=
SECRET=PLANTEDsecretPLANTED
"""


@pytest.fixture(scope="session")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Four nodes of two processors and two GPUs that do not exist."""
    folder = tmp_path_factory.mktemp("slurm")
    with slurm(folder, accounts=True) as cluster, pytest.MonkeyPatch.context() as patched:
        patched.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


@pytest.fixture
def slurm_cluster(daemons: Slurm) -> Iterator[Slurm]:
    """The nodes, which a test leaves without jobs."""
    yield daemons
    daemons.end_jobs()
    daemons.resume()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """The cluster's file."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "environment").write_text(ENVIRONMENT.format(repository=REPOSITORY))
    (tmp_path / "cluster.toml").write_text(CLUSTER.format(folder=tmp_path))
    return read_cluster(tmp_path / "cluster.toml")


@pytest.fixture
def launcher(slurm_cluster: Slurm, cluster: Cluster, root: str) -> SlurmJobs:
    """The launcher of runs whose record is `root`."""
    return SlurmJobs(root, cluster)


@pytest.fixture
def spec(root: str) -> Callable[..., RunSpec]:
    """spec(options of training.py, **keys of a run) -> a run of `root`."""

    def spec(*options: object, **keys: object) -> RunSpec:
        command = (sys.executable, TRAINING, root, *map(str, options))
        facts = {"run": "big-7", "command": command, "record": root, "priority": "low", **keys}
        return RunSpec(**facts)  # type: ignore[arg-type]

    return spec


@pytest.fixture
def toy(root: str) -> Callable[..., RunSpec]:
    """toy(options of toy.py, **keys of a run) -> a run whose ranks start at once, and stop as a `Run` does."""

    def toy(*options: object, **keys: object) -> RunSpec:
        command = (sys.executable, str(Path(__file__).with_name("toy.py")), *map(str, options))
        facts = {"run": "big-7", "command": command, "record": root, "priority": "low", "nodes": "2", **keys}
        return RunSpec(**facts)  # type: ignore[arg-type]

    return toy


def reference_digests(root: str, steps: int) -> dict[int, int]:
    """Return step -> digest of a training that nothing stops."""
    plan = loader.plan({"points": loader.Root(root).open("points@1")}, seed=7, global_batch=24)
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0) as batches:
        return {step: batches.batch_at(step).digest for step in range(steps)}
