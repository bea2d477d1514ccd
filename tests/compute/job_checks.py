"""What every engine has to do with a job, for the tests of each."""

from collections.abc import Mapping
from pathlib import Path

from loader.storage import open_store
from penstock.compute.attach import attach
from penstock.compute.cluster import Cluster
from penstock.compute.job import Job, JobFolder
from penstock.compute.pool import Outcome
from tests.compute.works import ON_GPUS, SQUARES, Number, Square

REPOSITORY = Path(__file__).parents[2]
INLINE_FILE = 'engine = "inline"\n'


def job_in(folder: Path, fingerprint: str = "f") -> Job[Number, Square]:
    """A job whose folder lies there."""
    return Job(store=open_store(str(folder)), work=SQUARES, about="tests/squares", fingerprint=fingerprint)


def folder_of(job: Job[Number, Square]) -> JobFolder:
    """The job's folder."""
    return JobFolder(job.store, job.id)


def numbers(n: int, does: Mapping[int, str] | None = None, **more: object):
    """Units 0 to n - 1; unit 0 is a block of its own, the others come in threes."""
    return lambda: [Number(n=i, does=(does or {}).get(i, "square"), **more) for i in range(n)]


def done_by(job, units, cluster: Cluster, told=None) -> list[Outcome[Square]]:
    """Outcomes of all units, in their order."""
    engine = cluster.open()
    try:
        blocks = sorted(attach(job, units, engine, cluster, told), key=lambda block: block.first)
    finally:
        engine.close()
    return [outcome for block in blocks for outcome in block.outcomes]


def told_of(outcomes: list[Outcome[Square]]) -> list[int | str]:
    """Squares, and codes of failures."""
    return [one.error.code if one.error else one.value.square for one in outcomes]


def bytes_done(job) -> dict[str, bytes]:
    """Object of `done/` -> its bytes."""
    folder = folder_of(job)
    keys = [info.key for info in job.store.list(folder.key("done/"))]
    return {key: bytes(job.store.get(key).data) for key in keys}


def assert_a_gpu_has_a_worker(folder: Path, cluster: Cluster, gpus: set[str]) -> None:
    """Units that take a GPU see one of these each, and the units of a runner that see the same have one worker."""
    job = Job(store=open_store(str(folder)), work=ON_GPUS, about="tests/gpus", fingerprint="f")
    found = [one.value for one in done_by(job, numbers(13, seconds=0.2), cluster)]
    assert {one.place for one in found} == {"cuda:0"}
    assert {one.visible for one in found} == gpus
    workers = {one.worker: one.visible for one in found}
    assert all(workers[one.worker] == one.visible for one in found), "a worker stays with its GPU"
