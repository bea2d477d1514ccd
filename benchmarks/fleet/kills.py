"""Jobs under kills, and jobs that are cancelled: on this machine, and on Slurm or Ray where they are started.

`python -m benchmarks.fleet.kills FOLDER WORK UNITS CLUSTER` waits for a job, as a process that may be killed.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from loader.errors import JobCancelled
from penstock.compute.attach import cancel
from penstock.compute.cluster import Cluster, read_cluster
from penstock.compute.job import Job, JobFolder
from penstock.compute.runner_process import __name__ as RUNNER
from tests.servers.processes import end, parent_pid
from tests.servers.ray_nodes import RayNodes, ray_nodes
from tests.servers.slurm import NODES, Slurm, slurm, until

from ..contest import ROOT
from ..throughput import say
from ..view.rows import Row
from .rows import Sizes, computed, job_in
from .works import ASLEEP, AT_WORK, SHORT, UNIT_S, Number

KILLS = {
    "workers": (200, 0.4),
    "runners": (20, 4.0),
    "waiting": (3, 20.0),
    "nodes": (5, 15.0),
    "slurmctld": (1, 25.0),
    "head": (1, 25.0),
}
"""Kind of process -> (number that is killed, seconds between two)."""
WORKS = {"short": SHORT, "asleep": ASLEEP}


@dataclass(kw_only=True)
class Place:
    """A cluster on which a job is disturbed."""

    name: str
    """Name in the table."""
    file: Path
    """File of the cluster."""
    others: dict[str, Callable[[], bool]] = field(default_factory=dict)
    """Kind -> function that kills one and brings it back, and returns True."""


def places(folder: Path, sizes: Sizes, stack: ExitStack) -> Iterator[Place]:
    """Yield this machine, and Slurm and Ray where `sizes` says so; the daemons end with the stack."""
    folder.mkdir()
    local = folder / "local.toml"
    local.write_text('engine = "local"\npackages = ["benchmarks"]\n')
    yield Place(name="local", file=local)
    if sizes.slurm:
        daemons = stack.enter_context(_slurm(folder))
        others = {"nodes": lambda: _node(daemons), "slurmctld": lambda: _head(daemons)}
        yield Place(name="Slurm", file=slurm_file(folder, daemons), others=others)
    if sizes.ray:
        nodes = stack.enter_context(ray_nodes())
        others = {"nodes": lambda: _ray_node(nodes), "head": lambda: _ray_head(nodes)}
        yield Place(name="Ray", file=ray_file(folder, nodes, 4), others=others)


def _slurm(folder: Path) -> AbstractContextManager[Slurm]:
    (folder / "slurm").mkdir()
    return slurm(folder / "slurm")


def slurm_file(folder: Path, daemons: Slurm, number: int = 8) -> Path:
    """Write and return the file of a cluster of so many slots of one processor."""
    (folder / "environment").write_text(f"PYTHONPATH={ROOT}\n")
    (folder / "logs").mkdir(exist_ok=True)
    made = folder / "slurm.toml"
    made.write_text(
        f'engine = "slurm"\npackages = ["benchmarks"]\nlogs = "{folder}/logs"\n'
        f'submit = ["env", "SLURM_CONF={daemons.conf}", "sh", "-c"]\n'
        f'environment = "{folder}/environment"\n[slot]\ncpus = 1\nnumber = {number}\n'
    )
    return made


def under_kills(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Units that were lost, doubled or failed, and blocks of other bytes, while all that takes part is killed."""
    undisturbed = job_in(folder / "undisturbed", SHORT)
    computed(undisturbed, Cluster(engine="local", packages=("benchmarks",)), sizes.units)
    right = _outcomes(undisturbed)
    survived, wrong = list[str](), 0
    with ExitStack() as stack:
        for place in places(folder / "kills", sizes, stack):
            job = job_in(folder / f"killed-{place.file.stem}", SHORT)
            begun = time.perf_counter()
            kills = _disturbed(job, place, sizes.units)
            seconds = time.perf_counter() - begun
            there = _outcomes(job)
            lost = sum(abs(there[n].total() - 1) for n in {*range(sizes.units), *there})
            crashed = {n for n in there if there[n]["crashed"]}
            other = sum(there[n] != one for n, one in right.items() if n not in crashed)
            told = ", ".join(f"{n} {kind}" for kind, n in sorted(kills.items()))
            say(f"{place.name}: killed {told}; {lost} units lost or doubled, {other} with another outcome")
            survived.append(f"{place.name} {kills.total()}")
            wrong += lost + other
            what = "- units whose worker was killed, and then the one that took them over: crashed"
            yield Row(what=what, values=[len(crashed)], unit="", digits=0)
            same = sum(_done(undisturbed)[name] == data for name, data in _done(job).items())
            n_blocks = len(_done(undisturbed))
            what = f"- of {n_blocks} blocks the same byte for byte; the others have such a unit"
            yield Row(what=what, values=[same], unit="", digits=0)
            yield Row(what="- time", values=[seconds], unit="s", digits=0)
    what = f"units of {sizes.units:,} lost, doubled or changed by kills ({', '.join(survived)})"
    yield Row(what=what, values=[wrong], unit="", goal=0, digits=0)


def cancelled(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Time from `cancel` to the end of the last process; every processor has a unit that sleeps."""
    with ExitStack() as stack:
        for place in places(folder / "cancelled", sizes, stack):
            taken = []
            for number in range(sizes.rounds):
                job = job_in(folder / f"asleep-{place.file.stem}-{number}", ASLEEP)
                waiter, cluster = _waiter(job, "asleep", 64, place.file), read_cluster(place.file)
                _until_busy(job, cluster.slot.number * cluster.cpus)
                processes, begun = [*_runners(job), *_workers(job)], time.perf_counter()
                with closing(cluster.open()) as engine:
                    cancel(JobFolder(job.store, job.id), engine)
                _until_gone(processes)
                taken.append(time.perf_counter() - begun)
                waiter.wait()
            detail = "- " if place.name == "local" else ""
            yield Row(
                what=f"{detail}cancel to the last process, {place.name}", values=taken, unit="s", goal=15
            )


def _until_busy(job: Job[Number, Number], n_workers: int) -> None:
    until(lambda: len(_workers(job)) >= n_workers, 120)


def _until_gone(processes: Sequence[int]) -> None:
    until(lambda: not {pid for pid, command in _commands() if command}.intersection(processes), 120)


def slurm_cost(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Cost of a unit beside its own time on Slurm, from the first start of a block on: two slots of a processor."""
    if not sizes.slurm:
        return
    place = folder / "slurm-cost"
    place.mkdir()
    with _slurm(place) as daemons:
        yield _cost_on("Slurm", read_cluster(slurm_file(place, daemons, 2)), folder, sizes)


def ray_cost(folder: Path, sizes: Sizes) -> Iterator[Row]:
    """Cost of a unit beside its own time on Ray, as `slurm_cost`."""
    if not sizes.ray:
        return
    place = folder / "ray-cost"
    place.mkdir()
    with ray_nodes() as nodes:
        yield _cost_on("Ray", read_cluster(ray_file(place, nodes, 2)), folder, sizes)


def ray_file(folder: Path, nodes: RayNodes, number: int) -> Path:
    """Write and return the file of a cluster of so many slots of one processor."""
    made = folder / "ray.toml"
    made.write_text(
        f'engine = "ray"\npackages = ["benchmarks"]\naddress = "{nodes.address}"\n'
        f"[slot]\ncpus = 1\nnumber = {number}\n"
    )
    return made


def _cost_on(name: str, cluster: Cluster, folder: Path, sizes: Sizes) -> Row:
    """Return the cost of a unit on two slots of a processor."""
    values = []
    for number in range(sizes.rounds):
        job = job_in(folder / f"{cluster.engine}-cost-{number}", SHORT)
        assert computed(job, cluster, sizes.units) == sizes.units
        values.append((_worked_s(job) * 2 / sizes.units - UNIT_S) * 1e3)
    return Row(what=f"own cost of a unit, {name}, less starts", values=values, unit="ms", goal=1.0)


def _worked_s(job: Job[Number, Number]) -> float:
    """Return the time from the first start of a block to the last outcomes."""
    folder = JobFolder(job.store, job.id)
    paths = [Path(job.store.url, info.key) for info in job.store.list(folder.key("done/"))]
    begun = [start.at_us for block in range(len(paths)) for start in folder.starts(block)]
    return max(path.stat().st_mtime for path in paths) - min(begun) / 1e6


def _disturbed(job: Job[Number, Number], place: Place, n_units: int) -> Counter[str]:
    """Have a job done while processes are killed; return how many of each kind were."""
    chance, kills = random.Random(n_units), Counter[str]()
    waiter = _waiter(job, "short", n_units, place.file)

    def one_of(found: list[int]) -> bool:
        if found:
            end(chance.choice(found))
        return bool(found)

    def wait_anew() -> bool:
        nonlocal waiter
        waiter.kill()
        waiter.wait()
        waiter = _waiter(job, "short", n_units, place.file)
        return True

    n_done = 0

    def a_runner() -> bool:
        """Kill one, once two blocks were done after the last: no job ends whose runners never get as far."""
        nonlocal n_done
        n_now = len(folder.done())
        killed = n_now > n_done + 1 and one_of(_runners(job))
        n_done = n_now if killed else n_done
        return killed

    turns: dict[str, Callable[[], bool]] = {
        "workers": lambda: one_of([pid for pid in _workers(job) if _is_at_work(pid)]),
        "runners": a_runner,
        "waiting": wait_anew,
        **place.others,
    }
    folder = JobFolder(job.store, job.id)
    until(lambda: bool(folder.done()) or waiter.poll() is not None, 120)
    next_s = {kind: time.monotonic() + KILLS[kind][1] for kind in turns}
    while waiter.poll() is None:
        for kind, kill in turns.items():
            most, seconds = KILLS[kind]
            if kills[kind] < most and time.monotonic() > next_s[kind]:
                kills[kind] += kill()
                next_s[kind] = time.monotonic() + seconds
        time.sleep(0.02)
    assert waiter.returncode == 0, f"who waits ended with {waiter.returncode}"
    return kills


def _waiter(job: Job[Number, Number], work: str, n_units: int, file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", __name__, job.store.url, work, str(n_units), str(file)]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def _runners(job: Job[Number, Number]) -> list[int]:
    """Return the runners of a job, on whichever node of this machine."""
    return [pid for pid, command in _commands() if RUNNER.encode() in command and job.id.encode() in command]


def _workers(job: Job[Number, Number]) -> list[int]:
    """Return the worker processes of a job's runners."""
    runners = set(_runners(job))
    return [pid for pid, _ in _commands() if parent_pid(pid) in runners]


def _is_at_work(pid: int) -> bool:
    """Return whether a worker has begun a unit: a kill every 0.4 s would let none do so on a busy machine."""
    try:
        return Path("/proc", str(pid), "comm").read_text().strip() == AT_WORK
    except OSError:
        return False


def _commands() -> Iterator[tuple[int, bytes]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                yield int(entry), Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue


def _node(daemons: Slurm) -> bool:
    name = random.Random(time.time()).choice(NODES)
    daemons.kill_node(name)
    daemons.start_node(name)
    return True


def _head(daemons: Slurm) -> bool:
    daemons.kill_head()
    time.sleep(1)
    daemons.start_head()
    return True


def _ray_node(nodes: RayNodes) -> bool:
    nodes.kill_node()
    nodes.add_node()
    return True


def _ray_head(nodes: RayNodes) -> bool:
    nodes.kill_head()
    time.sleep(1)
    nodes.start()
    return True


def _done(job: Job[Number, Number]) -> dict[str, bytes]:
    """Return name -> bytes of a job's outcomes."""
    keys = [info.key for info in job.store.list(JobFolder(job.store, job.id).key("done/"))]
    return {key.rpartition("/")[2]: bytes(job.store.get(key).data) for key in keys}


def _outcomes(job: Job[Number, Number]) -> dict[int, Counter[str]]:
    """Return number of a unit -> its outcomes: "result", or the code of a failure."""
    folder, first = JobFolder(job.store, job.id), 0
    description = folder.description()
    assert description is not None
    found: dict[int, Counter[str]] = {}
    for block, (n_units, *_) in enumerate(description.blocks):
        for n, outcome in enumerate(folder.outcomes(description, block, Number)[1], first):
            said = outcome.value.n if outcome.value else n
            found.setdefault(said, Counter()).update([outcome.error.code if outcome.error else "result"])
        first += n_units
    return found


if __name__ == "__main__":
    where, work, units, file = sys.argv[1:]
    with suppress(JobCancelled):
        computed(job_in(Path(where), WORKS[work]), read_cluster(file), int(units))
