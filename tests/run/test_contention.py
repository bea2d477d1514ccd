"""`executor="auto"` begins with threads and goes over to processes where the training and they are in the way."""

import multiprocessing
import os

import pytest

import loader
from loader.run import contention, executor
from loader.run.contention import Contention, Seen, better_processes, better_threads
from loader.run.workers.startup_message import why_not

SECONDS = (
    "plan",
    "address",
    "fetch_wait",
    "verify",
    "decode",
    "transform",
    "collate",
    "room_wait",
    "handover_wait",
)


def metrics(waited=0.0, busy=0.0, **stages):
    seen = {f"{name}_seconds_sum": stages.get(name, 0.0) for name in SECONDS}
    return seen | {"consumer_wait_seconds_sum": waited, "consumer_busy_seconds_sum": busy}


@pytest.mark.parametrize(
    ("waited", "busy", "computed", "stages", "found"),
    [
        (1.0, 2.0, 1.9, {"decode": 3.0}, True),
        (1.0, 2.0, 1.9, {"transform": 3.0}, True),
        (0.1, 2.9, 2.8, {"decode": 3.0}, False),  # the training hardly waits
        (3.0, 0.1, 0.1, {"decode": 3.0}, False),  # it does nothing else: threads have the interpreter
        (1.0, 2.0, 0.1, {"decode": 3.0}, False),  # it works elsewhere: on a GPU
        (1.0, 2.0, 1.9, {"fetch_wait": 3.0}, False),  # the store is what is waited for
    ],
)
def test_the_rule(waited, busy, computed, stages, found):
    rule = Contention()
    assert not rule.saw(0.5, 0.5, 0.5)
    assert rule.saw(1.0, 1.0, 1.0)
    assert rule.look(metrics(9.0, 9.0, decode=9.0), 5.0) is None, "the start is not judged"
    assert rule.saw(waited, busy, computed)
    after = metrics(9.0 + waited, 9.0 + busy, **{"decode": 9.0, **stages})
    after["decode_seconds_sum"] = 9.0 + stages.get("decode", 0.0)
    seen = rule.look(after, 5.0 + 4.5)
    assert seen.waits == pytest.approx(waited / (waited + busy))
    assert seen.computes == pytest.approx(computed / (waited + busy))
    assert seen.cores == pytest.approx(4.5 / (waited + busy))
    assert (better_processes(seen) is not None) is found


SMALL = Seen(waits=0.5, computes=0.05, cores=1.05, decodes=0.0, limit="store")


@pytest.mark.parametrize(
    ("seen", "threads", "least", "better"),
    [
        (SMALL, 2, 0, 1),
        (SMALL, 8, 1, 1),
        (SMALL, 1, 0, None),  # there is something to do beside the training
        (SMALL._replace(waits=0.95), 2, 0, 0),
        (SMALL._replace(waits=0.95), 1, 0, 0),
        (SMALL._replace(waits=0.95), 2, 1, 1),
        (SMALL._replace(waits=0.95), 1, 1, None),
        (SMALL._replace(waits=0.05), 2, 0, None),  # the training hardly waits
        (SMALL._replace(cores=1.6), 2, 0, None),  # they work at the same time
        (SMALL._replace(cores=0.5), 2, 0, None),  # they wait for a disk, or for other programs
        (SMALL._replace(decodes=0.6), 2, 0, None),  # decoders let go of the interpreter
        (SMALL._replace(waits=0.95), 0, 0, None),
        (SMALL._replace(waits=0.85), 0, 0, None),  # not to and fro
        (SMALL._replace(waits=0.7), 0, 0, 1),
    ],
)
def test_the_rule_for_threads(seen, threads, least, better):
    found = better_threads(seen, threads, least)
    assert (found and found[0]) == better


@pytest.fixture
def plan(tmp_path, samples):
    root = loader.Root(str(tmp_path / "root"))
    return loader.plan(
        {"p": samples.write(root, "photos", range(40), fields=("cls",))}, seed=3, global_batch=4
    )


@pytest.fixture
def contended(monkeypatch):
    """Every look finds that processes would be faster."""
    monkeypatch.setattr(contention, "LOOK_S", 0.0)
    monkeypatch.setattr(executor, "better_processes", lambda seen: "the threads are in the way")


def test_it_goes_over_in_the_middle_of_a_run(plan, contended, in_workers, properties):
    """No step is missed, made twice in what is handed out, or changed."""
    batches = loader.Loader(plan, 0, 1, workers=2, transform=in_workers.where, prefetch=0, framework="numpy")
    with batches:
        assert batches.executor == "threads"
        digests, made_by = {}, []
        while "processes" not in made_by or len(made_by) < 5:
            batch = next(batches)
            assert batch.step not in digests
            digests[batch.step] = batch.digest
            made_by.append("threads" if set(batch["pid"].tolist()) == {os.getpid()} else "processes")
        assert made_by == sorted(made_by, reverse=True), "threads first, then processes, and never back"
        assert (batches.executor, batches.executor_reason) == ("processes", "the threads are in the way")
        assert batches.workers == 2
        batches.seek(0)
        assert next(batches).digest == digests[0]
    assert digests == properties.uninterrupted(plan, len(digests))


def test_it_stays_with_threads_where_processes_are_not_to_be_had(plan, contended):
    with loader.Loader(plan, 0, 1, workers=1, transform=lambda sample, rng: sample) as batches:
        for _ in range(3):
            next(batches)
        assert batches.executor == "threads"
        assert (
            "the threads are in the way; but processes are not to be had: transform = "
            in batches.executor_reason
        )


def test_it_stays_with_threads_where_a_worker_cannot_start(plan, contended, in_workers):
    transform = in_workers.OnlyHere()
    with loader.Loader(plan, 0, 1, workers=1, transform=transform, framework="numpy") as batches:
        while batches.executor_reason == "the threads are in the way" or batches.step < 2:
            next(batches)
        assert batches.executor == "threads"
        assert "but a worker process could not start: this worker has no" in batches.executor_reason


def test_threads_become_fewer_in_the_middle_of_a_run(plan, monkeypatch, properties):
    """One, then none, then one again and for good, as it is found; no step is missed, made twice or changed."""
    found, least = iter([None, (1, "turns"), None, (0, "idle"), None, (1, "works")]), []

    def better(seen, threads, at_least):
        least.append(at_least)
        return next(found, None)

    monkeypatch.setattr(contention, "LOOK_S", 0.0)
    monkeypatch.setattr(executor, "better_processes", lambda seen: None)
    monkeypatch.setattr(executor, "better_threads", better)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    with loader.Loader(plan, 0, 1, framework="numpy") as batches:
        digests, told = {}, [(batches.executor, batches.workers)]
        while batches.step < 20:
            batch = next(batches)
            assert batch.step not in digests
            digests[batch.step] = batch.digest
            now = (batches.executor, batches.workers, batches.executor_reason)
            told += [now] if len(told) == 1 or now != told[-1] else []
    assert [one[:2] for one in told[:2]] == [("threads", 3)] * 2
    assert told[2:] == [("threads", 1, "turns"), ("caller", 0, "idle"), ("threads", 1, "works")]
    assert least == [0] * 6 + [1] * (len(least) - 6)
    assert len(least) > 6
    assert digests == properties.uninterrupted(plan, len(digests))


def test_whoever_asks_for_threads_has_one(plan, monkeypatch):
    least = []
    monkeypatch.setattr(contention, "LOOK_S", 0.0)
    monkeypatch.setattr(executor, "better_threads", lambda seen, threads, at_least: least.append(at_least))
    with loader.Loader(plan, 0, 1, executor="threads", framework="numpy") as batches:
        assert [next(batches).step for _ in range(6)] == list(range(6))
    assert set(least) == {1}


def test_the_number_of_threads_that_was_asked_for_stays(plan, monkeypatch):
    monkeypatch.setattr(contention, "LOOK_S", 0.0)
    monkeypatch.setattr(executor, "better_processes", lambda seen: None)
    monkeypatch.setattr(executor, "better_threads", lambda *_: (1, "turns"))
    with loader.Loader(plan, 0, 1, workers=2, framework="numpy") as batches:
        assert [next(batches).step for _ in range(6)] == list(range(6))
        assert (batches.executor, batches.workers) == ("threads", 2)
        assert batches.executor_reason != "turns"


def in_a_daemon(url, plan_hash, answers):
    plan = loader.open_plan(loader.Root(url), plan_hash)
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy") as batches:
        answers.put(why_not(batches._assembler.recipe))


def test_a_daemonic_process_starts_no_others(plan, tmp_path):
    plan.save(loader.Root(str(tmp_path / "root")))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    arguments = (str(tmp_path / "root"), plan.hash, answers)
    process = context.Process(target=in_a_daemon, args=arguments, daemon=True)
    process.start()
    assert "this process is itself a worker" in answers.get()
    process.join(30)


def test_secrets_keep_a_loader_in_its_process(s3, samples):
    with loader.Root("s3://bucket/secret", options=s3) as root:
        version = samples.write(root, "photos", range(9), fields=("cls",))
        plan = loader.plan({"p": version}, seed=1, global_batch=3)
        with loader.Loader(plan, 0, 1, workers=0) as batches:
            obstacle = why_not(batches._assembler.recipe)
    assert "opened with key, secret, and secrets are not sent" in obstacle
