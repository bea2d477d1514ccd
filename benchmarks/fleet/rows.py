"""Measurements of data jobs: each function takes a folder and sizes, and gives rows of the page's table."""

import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loader.cores import n_cores
from loader.storage import open_store
from loader.storage.disk.store import LocalStore
from penstock.compute.attach import attach
from penstock.compute.cluster import Cluster, read_cluster
from penstock.compute.job import Head, Job, StoredOutcome
from penstock.compute.pool import LocalCompute
from penstock.compute.submit import submit_job
from penstock.compute.work import Work

from ..view.rows import Row
from .works import LONG, MANY, SHORT, UNIT_S, Number, wait_alone

VERBS = ("get", "put", "put_if_absent", "put_file", "get_range", "head", "list", "delete_many")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is measured."""

    units: int = 20_000
    """Units of a millisecond."""
    blocks: int = 10_000
    """Blocks of a job that another process attaches to."""
    waited: int = 1_000_000
    """Units of a job whose outcomes are read."""
    rounds: int = 3
    """Rounds of a contest."""
    cluster: str = ""
    """File of a cluster that computes the units too."""
    slurm: bool = False
    """True where a Slurm of four nodes is to be started on this machine."""
    ray: bool = False
    """True where a Ray of a head and two nodes is to be started on this machine."""


def own_cost(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Cost of a unit beside its own time: of a job, and of the pool alone, in turns."""
    clusters = {"local": Cluster(engine="local", packages=("benchmarks",))}
    if sizes.cluster:
        clusters[sizes.cluster] = read_cluster(sizes.cluster)
    found: dict[str, list[float]] = {}
    for number in range(sizes.rounds):
        for name, cluster in clusters.items():
            at_once = cluster.cpus * (cluster.slot.number if cluster.engine in ("slurm", "ray") else 1)
            job = job_in(folder / f"{cluster.engine}-{number}", SHORT)
            begun = time.perf_counter()
            assert computed(job, cluster, sizes.units) == sizes.units
            found.setdefault(name, []).append(_own_ms(begun, sizes.units, at_once))
        begun = time.perf_counter()
        with closing(LocalCompute()) as pool:
            assert (
                sum(one.ok for one in pool.map(wait_alone, range(sizes.units), timeout_s=60)) == sizes.units
            )
        found.setdefault("pool", []).append(_own_ms(begun, sizes.units, n_cores()))
    for name, values in found.items():
        what = "- the pool of workers, without a job" if name == "pool" else f"own cost of a unit, {name}"
        goal = {"pool": None, "local": 0.3}.get(name, 1.0)
        yield Row(what=what, values=values, unit="ms", goal=goal)
    few, many = (_processor_s(folder, n_units) for n_units in (sizes.units // 10, sizes.units))
    per_unit = (many - few) * 1e3 / (sizes.units - sizes.units // 10)
    yield Row(what="- processor time of a unit, local, all processes", values=[per_unit], unit="ms")


def _processor_s(folder: Path, n_units: int) -> float:
    """Return the processor seconds of a job on this machine: of its runner and workers, and of who waits."""
    job = job_in(folder / f"processor-{n_units}", SHORT)
    before = os.times()
    computed(job, Cluster(engine="local", packages=("benchmarks",)), n_units)
    return sum(os.times()[:4]) - sum(before[:4])


def reattachment(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Time until a process that attaches has the outcomes of a job of many blocks, all but one of them done."""
    job = job_in(folder / "reattached", LONG)
    _pretend(job, sizes.blocks, sizes.blocks - 1)
    taken = []
    for _ in range(sizes.rounds):
        begun = time.perf_counter()
        cluster = Cluster(engine="local", packages=("benchmarks",))
        with closing(cluster.open()) as engine:
            blocks = attach(job, _units(sizes.blocks), engine, cluster)
            for _ in range(sizes.blocks - 1):
                next(blocks)
        taken.append(time.perf_counter() - begun)
    yield Row(
        what=f"attach to a job of {sizes.blocks:,} blocks, all outcomes read",
        values=taken,
        unit="s",
        goal=5,
    )


def waiting(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Memory of who submits and waits, and requests of a block."""
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.fleet.rows", str(folder / "waited"), str(sizes.waited)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    yield Row(
        what=f"memory of who waits for {sizes.waited:,} units",
        values=[float(told[0])],
        unit="MiB",
        goal=300,
    )
    few, many = (_requests(folder, n_blocks) for n_blocks in (100, 200))
    yield Row(what="requests of a block", values=[(many - few) / 100], unit="", goal=6)


def _requests(folder: Path, n_blocks: int) -> int:
    """Return the requests of a job of so many blocks: of its submission, its runner and who waits."""
    counted: Counter[str] = Counter()
    true = {verb: getattr(LocalStore, verb) for verb in VERBS}
    for verb in VERBS:
        setattr(LocalStore, verb, _counting(verb, true[verb], counted))
    try:
        cluster = Cluster(engine="inline", packages=("benchmarks",))
        computed(job_in(folder / f"requests-{n_blocks}", LONG), cluster, n_blocks)
    finally:
        for verb in VERBS:
            setattr(LocalStore, verb, true[verb])
    return counted.total()


def _counting(verb: str, call: Callable[..., Any], counted: Counter[str]) -> Callable[..., Any]:
    def counting(*arguments: Any, **more: Any) -> Any:
        counted[verb] += 1
        return call(*arguments, **more)

    return counting


def job_in(folder: Path, work: Work[Number, Number]) -> Job[Number, Number]:
    """Return the job of a work whose store is a folder of its own."""
    return Job(store=open_store(str(folder)), work=work, about="benchmark", fingerprint=str(folder))


def computed(job: Job[Number, Number], cluster: Cluster, n_units: int) -> int:
    """Wait for a job of so many units; return how many have a result."""
    with closing(cluster.open()) as engine:
        blocks = attach(job, _units(n_units), engine, cluster)
        return sum(one.ok for block in blocks for one in block.outcomes)


def _units(n_units: int) -> Callable[[], Iterator[Number]]:
    return lambda: (Number(n=n) for n in range(n_units))


def _own_ms(begun_s: float, n_units: int, at_once: int) -> float:
    return ((time.perf_counter() - begun_s) * at_once / n_units - UNIT_S) * 1e3


def _pretend(job: Job[Number, Number], n_units: int, n_done: int) -> None:
    """Submit a job, and write outcomes of its first blocks as a runner would."""
    there, first = submit_job(job, _units(n_units)), 0
    for block, (n, *_) in enumerate(there.description.blocks[:n_done]):
        outcomes = [StoredOutcome(result={"n": first + i}) for i in range(n)]
        there.folder.put_done(block, Head(), outcomes)
        first += n


def _wait(folder: Path, n_units: int) -> None:
    job = job_in(folder, MANY)
    _pretend(job, n_units, n_units)
    cluster = Cluster(engine="local", packages=("benchmarks",))
    with closing(cluster.open()) as engine:
        n = sum(len(block.outcomes) for block in attach(job, _units(n_units), engine, cluster))
    assert n == n_units
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    _wait(Path(sys.argv[1]), int(sys.argv[2]))
