"""How much of its data a job reads from the store in each epoch, through caches that are smaller than the data."""

import random
from collections import Counter

import pytest

from loader.cache.cached_ranges import Content
from loader.cache.cached_store import CachedStore
from loader.cache.memory import MemoryPages
from loader.cache.node_cache import SLACK_PAGES, OpenCache
from loader.cache.object_sets import ObjectSet
from loader.cache.pages import HEADER_BYTES
from loader.cache.spec import NodeCache, PageMemory
from loader.storage import Blob

PAGE, OBJECTS, OF_PAGE = 4096, 10, 8
SAMPLE = PAGE // OF_PAGE


@pytest.fixture(autouse=True)
def _count_at_once(monkeypatch):
    monkeypatch.setattr("loader.cache.room.COUNT_PAUSE", 0)


class Origin:
    """Objects of zeros, whose bytes are counted."""

    url = "memory://zeros"

    def __init__(self):
        self.read_bytes = 0

    def get_ranges(self, key, spans, *, etag=None, **limits):
        self.read_bytes += sum(nbytes for _, nbytes in spans)
        return [Blob(bytes(nbytes), "one") for _, nbytes in spans]


class Job:
    """A job that reads all samples of its data once an epoch, each time in another order."""

    def __init__(self, name, pages, cache):
        self.counts, self.nbytes = Counter(), pages * PAGE
        self.shas = [f"{name}{number}" for number in range(OBJECTS)]
        of_object = pages // OBJECTS * PAGE
        self.objects = ObjectSet.of([(sha, of_object) for sha in self.shas])
        self.origin, self.cache = Origin(), cache(self)
        self.store = CachedStore(self.origin, self.cache, lambda key: Content(key, of_object), fraction=0.0)
        self.order = random.Random(name)
        self.samples = [
            (sha, number * SAMPLE) for sha in self.shas for number in range(pages // OBJECTS * OF_PAGE)
        ]

    def count(self, what, amount):
        self.counts[what] += amount

    def epoch(self):
        """Yield after each hundredth of an epoch."""
        self.cache.begin_epoch()
        self.order.shuffle(self.samples)
        for number, (sha, offset) in enumerate(self.samples):
            assert len(self.store.get_ranges(sha, [(offset, SAMPLE)])[0].data) == SAMPLE
            if number % (len(self.samples) // 100) == 0:
                self.cache._next_beat_s = 0.0  # as every ten seconds
                self.cache.beat()
                yield

    def read(self):
        """Part of the data that was read since the last call."""
        nbytes, self.origin.read_bytes = self.origin.read_bytes, 0
        return nbytes / self.nbytes


def in_folder(folder, room_pages, jobs=1):
    limit = (room_pages + SLACK_PAGES * jobs) * (PAGE + HEADER_BYTES)
    spec = NodeCache(path=folder, limit_bytes=limit, page_bytes=PAGE)
    return lambda job: OpenCache(spec, job.count, lambda: [job.objects])


def in_memory(room_pages):
    def make_pages(job):
        pages = MemoryPages(PageMemory(limit_bytes=room_pages * PAGE, page_bytes=PAGE), job.count)
        pages._next_beat_s = 0.0
        pages.keep_share(pages.limit_bytes, lambda: [job.objects], by_need=False)
        return pages

    return make_pages


NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("where", "part", "pages", "slack"),
    [
        ("folder", 0.5, 200, 0.08),
        *[("memory", part, 200, 0.08) for part in (0.25, 0.75)],
        *[
            pytest.param(where, part, 20_000, 0.02, marks=NIGHTLY)
            for where in ("folder", "memory")
            for part in (0.25, 0.5, 0.75)
        ],
    ],
)
def test_later_epochs_read_only_what_exceeds_the_cache(where, part, pages, slack, folder, page_files):
    room = int(part * pages)
    job = Job(where, pages, in_folder(folder, room) if where == "folder" else in_memory(room))
    reads, written = [], []
    for _ in range(4):
        before = job.counts["cache_written_bytes"]
        for _ in job.epoch():
            pass
        reads.append(job.read())
        written.append(job.counts["cache_written_bytes"] - before)
    assert reads[0] <= 1.0
    assert max(reads[1:]) <= 1 - part + slack, reads
    assert written[1:] == [0, 0, 0]  # the share is there: nothing is written or thrown away
    assert job.counts["cache_failed"] == 0
    if where == "folder":
        assert len(page_files()) <= room


@pytest.mark.parametrize(
    ("seed", "pages", "rounds"),
    [
        (0, 100, 500),
        *[pytest.param(seed, 400, 900, marks=NIGHTLY) for seed in range(1, 9)],
        pytest.param(9, 20_000, 700, marks=NIGHTLY),
    ],
)
def test_no_epoch_reads_more_than_without_a_cache_whatever_jobs_begin_and_end(seed, pages, rounds, folder):
    """Jobs of other data begin and end at any moment: each epoch of each job reads its data at most once."""
    chance = random.Random(seed)
    room = int(chance.choice([0.3, 0.7, 1.2]) * pages)
    cache = in_folder(folder, room, jobs=4)
    running, reads = {}, []
    for round_ in range(rounds):
        if (round_ % 40 == 0 or not running) and len(running) < 3:
            job = Job(f"{seed} {round_}", chance.choice([pages // 4, pages]) // OBJECTS * OBJECTS, cache)
            running[job] = job.epoch()
        if len(running) > 1 and chance.random() < 0.02:
            job = chance.choice(list(running))
            del running[job]
            job.cache.close()
            if chance.random() < 0.5:  # as an hour later
                (folder / "wanted" / job.objects.id).unlink()
        for job in list(running):
            if next(running[job], "end") == "end":
                reads.append(job.read())
                running[job] = job.epoch()
    assert len(reads) >= 5
    assert max(reads) <= 1.02, reads
    assert sum(reads) / len(reads) < 0.97
