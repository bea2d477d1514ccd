"""Folders of data jobs: they go once nobody has worked on a job for 14 days, or waited for it."""

import shutil

import pytest

import loader
from loader.dataset.root import root_in_store
from loader.storage import open_store
from penstock.compute.job import Start
from penstock.upkeep.gc import plan
from tests.compute.job_checks import done_by, folder_of, job_in, numbers, told_of
from tests.compute.test_jobs import INLINE
from tests.mortal_store import killed_runs

DAY = 24
START = Start(attempt=2, element=0, node="n", at_us=0)
SIGNS = {
    "who waits": lambda folder: folder.attend(),
    "outcomes are kept": lambda folder: folder.keep(1, 2, {}),
}


@pytest.fixture(scope="module")
def finished_job(tmp_path_factory):
    """A root with a job of four blocks that has ended."""
    path = tmp_path_factory.mktemp("ended") / "root"
    with loader.Root(path).write("d") as writer:
        writer.add("a", {"cls": 1})
    done_by(job_in(path), numbers(8), INLINE)
    return path


@pytest.fixture
def job(finished_job, tmp_path):
    """The job, in a root of the test's own."""
    return job_in(shutil.copytree(finished_job, tmp_path / "root"))


def job_root(job):
    return loader.Root(job.store.url)


def there(job):
    return {info.key for info in job.store.list("jobs/")}


def test_job_goes_after_14_days_and_the_grace(job, properties):
    before = there(job)
    for day in (0, 7, 14, 16.9):
        properties.look(job_root(job), day * DAY)
        assert there(job) == before
    report = properties.look(job_root(job), 17 * DAY)
    assert there(job) == set()
    assert report.swept.why == {"job without a live process": len(before)}


@pytest.mark.parametrize("sign", SIGNS)
def test_job_that_somebody_touches_stays(job, properties, sign):
    for day in (0, 14):
        properties.look(job_root(job), day * DAY)
    SIGNS[sign](folder_of(job))
    before = there(job)
    for day in (17, 30.9):
        properties.look(job_root(job), day * DAY)
    assert there(job) == before
    for day in (31, 34):
        properties.look(job_root(job), day * DAY)
    assert there(job) == set()


def test_job_that_goes_on_while_it_is_swept_stays(job, properties, monkeypatch):
    """Four objects go at a time; a block begins when the first four are gone."""
    for day in (0, 14):
        properties.look(job_root(job), day * DAY)
    before, left, true = there(job), [], plan.CollectionPlan.due

    def due(self, grace_us):
        for piece in true(self, grace_us):
            if not left and len(there(job)) == len(before) - 4:
                left.append(there(job))
                folder_of(job).begin(3, START, 2)
            yield piece

    monkeypatch.setattr(plan, "ROWS", 4)
    monkeypatch.setattr(plan.CollectionPlan, "due", due)
    properties.look(job_root(job), 17 * DAY)
    assert left[0] < there(job)


@pytest.mark.parametrize("rows", [4, 1000])
def test_sweep_that_is_killed_leaves_no_results_without_their_description(
    finished_job, tmp_path, properties, monkeypatch, rows
):
    """And whoever computes the job again does all of it."""
    monkeypatch.setattr(plan, "ROWS", rows)

    def make_store(name):
        place = shutil.copytree(finished_job, tmp_path / name)
        for day in (0, 14):
            properties.look(loader.Root(place), day * DAY)
        return open_store(str(place))

    def sweep(store):
        properties.look(root_in_store(store), 17 * DAY)

    for store, k, side in killed_runs(sweep, make_store, verbs={"delete_many"}):
        job, left = job_in(store.url), {info.key for info in store.list("jobs/")}
        assert not left or f"jobs/{job.id}/job.json" in left, (k, side)
        assert told_of(done_by(job, numbers(8), INLINE)) == [i**2 for i in range(8)]
