"""`executor="auto"` begins with threads, measures the run, and moves on in the middle of it."""

import gc
import logging
import multiprocessing
import os
import re
import threading
from dataclasses import replace
from functools import partial
from itertools import repeat

import pytest

import loader
from loader.errors import Unpicklable
from loader.run import executor
from loader.run.contention import (
    FIRST_MEASUREMENT_S,
    MIN_REQUESTS,
    PROBED_MEASUREMENTS,
    Contention,
    LockProbe,
    Measurement,
)
from loader.run.maker_choice import Stages
from loader.run.workers import fork_server
from loader.run.workers.startup_message import why_not
from loader.storage.disk import mounts
from loader.storage.disk.mounts import Mount
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S, until
from tests.servers.processes import python

PHOTOS = Stages(wait_share=0.97, compute_share=0.02, decode_share=0.93, fetch_share=0.02, load=2.5, cores=2.6)
"""Recorded on a node of 16 cores, like the figures of test_maker_choice.py."""
WORKING = replace(PHOTOS, wait_share=0.5)
COPIES = Stages(wait_share=0.97, compute_share=0.02, decode_share=0.0, fetch_share=0.87, load=1.0, cores=1.1)
STAGES = ("plan", "address", "fetch_wait", "peer_wait", "verify", "decode", "transform", "collate")


def metrics(waited=0.0, busy=0.0, **stages):
    seen = {f"{name}_seconds_sum": stages.get(name, 0.0) for name in (*STAGES, "room_wait", "handover_wait")}
    return seen | {"consumer_wait_seconds_sum": waited, "consumer_busy_seconds_sum": busy}


def leaves_threads(batches):
    return batches.executor != "threads"


def starts_processes(batches):
    next(batches)
    return batches._execution._starting is not None


def test_contention_measures_a_stretch():
    measured = Contention(probed=False)
    assert measured.add_step(9.0, 9.0, 9.0), "the first batch begins the first stretch"
    assert measured.measure(metrics(9.0, 9.0, decode=9.0), 5.0, 50.0) is None, "the start is not judged"
    taken_s = 0.0
    while not measured.add_step(0.01, 0.03, 0.15):
        taken_s += 0.04
    assert taken_s <= FIRST_MEASUREMENT_S, "a choice within 2 s leaves a second for processes to start"
    after = metrics(10.0, 11.0, decode=11.0, transform=1.0, fetch_wait=1.0, plan=1.0)
    seen = measured.measure(after, 5.6, 53.0, 0.9)
    expected = Stages(
        wait_share=1 / 3,
        compute_share=0.4,
        decode_share=0.6,
        fetch_share=0.2,
        load=0.2,
        cores=1.0,
        delayed=0.3,
    )
    assert seen.locked == 0.0
    for name in ("wait_share", "compute_share", "decode_share", "fetch_share", "load", "cores", "delayed"):
        assert getattr(seen.stages, name) == pytest.approx(getattr(expected, name))


def probes():
    return [one for one in threading.enumerate() if one.name == "penstock-lock-probe"]


MEASUREMENTS = 8


def least_late_share(probe, compute):
    """The share of late answers of the least number of questions; none of fewer."""
    while probe._requests < MIN_REQUESTS:
        compute()
    return probe.drain()


def test_probe_finds_a_thread_that_computes_in_python():
    probe = LockProbe()
    try:
        assert probe.drain() == 0.0, "too few are not a share"
        # Where other programs have the cores, most of a wait may be theirs: one measurement of some is enough.
        share = 0.0
        for _ in range(MEASUREMENTS):
            share = least_late_share(probe, lambda: sum(range(10**6)))
            if share > 0.5:
                break
        assert share > 0.5
        assert probe.drain() == share, "nor do they take its place"
    finally:
        probe.dismiss()
        probe.join(PATIENCE_S)
    assert not probes()


def test_probe_ends_with_the_choice(plan, monkeypatch):
    monkeypatch.setattr(Contention, "add_step", lambda *_: True)
    monkeypatch.setattr(executor, "better_maker", lambda *_: None)
    with loader.Loader(plan, 0, 1, workers=1, framework="numpy") as batches:
        assert not probes(), "nothing is asked before the first batch"
        for _ in range(PROBED_MEASUREMENTS):
            next(batches)
            assert len(probes()) == 1
        next(batches)
        for one in probes():
            one.join(PATIENCE_S)
        assert not probes()
    with loader.Loader(plan, 0, 1, workers=1, framework="numpy") as batches:
        next(batches)
        (probe,) = probes()
    probe.join(PATIENCE_S)
    assert not probe.is_alive(), "nor does it outlive the loader"


def test_probe_is_not_left_by_a_loader_that_is_dropped(plan):
    batches = loader.Loader(plan, 0, 1, workers=1, framework="numpy")
    next(batches)
    (probe,) = probes()
    del batches
    probe.join(PATIENCE_S)
    assert not probe.is_alive()


ENDS = """
import os, sys
import loader
plan = loader.open_plan(loader.Root(sys.argv[1]), sys.argv[2])
batches = loader.Loader(plan, 0, 1, workers=1, framework="numpy")
next(batches)
if sys.argv[3] == "forks":
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    else:
        import threading
        assert threading.active_count() == 1
        print(len(os.listdir("/proc/self/task")))
        sys.exit(3)
print(any(one.name == "penstock-lock-probe" for one in __import__("threading").enumerate()))
"""


@pytest.mark.parametrize(("how", "out"), [("ends", "True\n"), ("forks", "1\n3\nTrue\n")])
def test_interpreter_ends_while_the_lock_is_probed(plan, tmp_path, how, out):
    plan.save(loader.Root(str(tmp_path / "root")))
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    done = python("-W", "ignore", script, tmp_path / "root", plan.hash, how)
    assert (done.returncode, done.stdout, done.stderr) == (0, out, "")


@pytest.fixture
def plan(tmp_path, samples):
    root = loader.Root(str(tmp_path / "root"))
    return loader.plan(
        {"p": samples.write(root, "photos", range(40), fields=("cls",))}, seed=3, global_batch=4
    )


@pytest.fixture
def record_stretch(monkeypatch):
    """do(seen, ...): each batch ends a stretch of a run with these figures, the last ones for ever."""

    def do(*figures):
        answers = iter((None, *figures, *repeat(figures[-1], 1000)))
        monkeypatch.setattr(Contention, "add_step", lambda *_: True)
        monkeypatch.setattr(Contention, "measure", lambda *_: next(answers))

    return do


@pytest.fixture
def cores(monkeypatch):
    def do(number):
        monkeypatch.setattr(executor, "rank_cores", lambda: number)
        monkeypatch.setattr(executor, "rank_processes", lambda: number)

    return do


def test_auto_moves_to_processes_on_figures_of_photos(plan, record_stretch, cores, in_workers, properties):
    """No step is missed, made twice in what is handed out, or changed."""
    record_stretch(Measurement(0.0, PHOTOS))
    cores(3)
    batches = loader.Loader(plan, 0, 1, transform=in_workers.where, prefetch=0, framework="numpy")
    with batches:
        assert (batches.executor, batches.workers) == ("threads", 3)
        digests, made_by = {}, []
        while "processes" not in made_by or len(made_by) < 5:
            batch = next(batches)
            assert batch.step not in digests
            digests[batch.step] = batch.digest
            made_by.append("threads" if set(batch["pid"].tolist()) == {os.getpid()} else "processes")
        assert made_by == sorted(made_by, reverse=True), "threads first, then processes, and never back"
        assert (batches.executor, batches.workers) == ("processes", 3), "all cores, not one fewer"
        assert "of 3 cores" in batches.executor_reason
        assert batches.describe().startswith(
            "batches are made by 3 processes: decoders and transforms take 93%"
        )
        assert not probes()
        batches.seek(0)
        assert next(batches).digest == digests[0]
    assert digests == properties.reference_digests(plan, len(digests))


def at_length(sample, rng):
    return {"sum": sum(range(1_000_000))}


def fork_servers(plan, **options):
    """How many fork servers a loader wants with its first batch."""
    wanted = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "prepare", lambda: wanted.append(1))
        with loader.Loader(plan, 0, 1, **options) as batches:
            next(batches)
    return len(wanted)


def test_auto_starts_its_fork_server_with_the_first_batch_that_is_decoded(plan, cores):
    cores(3)
    assert fork_servers(plan, transform=at_length) == 1
    assert fork_servers(plan, decode=False) == 0
    cores(2)
    assert fork_servers(plan, transform=at_length) == 0


@pytest.mark.parametrize("closes", [True, False])
def test_nothing_is_left_of_processes_that_are_starting(plan, record_stretch, cores, in_workers, closes):
    record_stretch(Measurement(0.0, WORKING))
    cores(3)

    def recipes():
        files = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        return sum("penstock-recipe" in os.readlink(name) for name in files if os.path.islink(name))

    before = recipes()
    batches = loader.Loader(plan, 0, 1, workers=1, transform=in_workers.large, framework="numpy")
    until(partial(starts_processes, batches), batches.describe)
    assert recipes() == before + 1
    if closes:
        batches.close()
    del batches
    gc.collect()
    assert recipes() == before


def test_auto_starts_as_many_processes_as_requested(plan, record_stretch, cores, in_workers):
    record_stretch(Measurement(0.0, WORKING))
    cores(4)
    with loader.Loader(plan, 0, 1, workers=1, transform=in_workers.where, framework="numpy") as batches:
        sizes = {batches.workers}

        def read_next():
            next(batches)
            sizes.add(batches.workers)
            return leaves_threads(batches)

        until(read_next, batches.describe)
        assert sizes == {1}


def test_auto_starts_no_more_processes_than_fit_in_memory(
    plan, record_stretch, cores, monkeypatch, in_workers
):
    record_stretch(Measurement(0.0, WORKING))
    cores(8)
    monkeypatch.setattr(
        executor, "rank_memory_bytes", lambda: 5 * executor.WORKERS_SHARE * executor.WORKER_BYTES // 2
    )
    with loader.Loader(plan, 0, 1, transform=in_workers.where, framework="numpy") as batches:
        until(lambda: next(batches) and leaves_threads(batches), batches.describe)
        assert batches.workers == 2


@pytest.mark.parametrize(("ranks", "workers"), [(1, 16), (4, 4), (16, 1)])
def test_processes_are_one_per_core_of_the_rank(plan, monkeypatch, ranks, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    monkeypatch.setattr("loader.cores.cpu_quota", lambda root: float("inf"))
    monkeypatch.setattr("loader.cores.cpuset_cores", lambda root: 16)
    monkeypatch.setattr("loader.cores.memory_limit", lambda: float("inf"))
    with loader.Loader(plan, 0, 1, executor="processes") as batches:
        assert batches.workers == min(workers, batches._execution._memory_bytes // 4 // executor.WORKER_BYTES)
    with loader.Loader(plan, 0, 1, transform=at_length) as batches:
        assert batches.workers == min(workers, 4)
    with loader.Loader(plan, 0, 1) as batches:
        assert batches.workers == min(workers, 2), "copies: a third thread costs more than it gains"


def test_ranks_that_start_later_take_their_part_of_the_machine(plan, monkeypatch):
    """Lightning's rank 0 may create its loader before it starts the others."""
    ranks = [1]
    monkeypatch.setattr(executor, "rank_cores", lambda: 16 // ranks[0])
    monkeypatch.setattr(executor, "rank_processes", lambda: 16 // ranks[0])
    with loader.Loader(plan, 0, 1, executor="processes") as batches:
        assert batches.workers == 16
        ranks[0] = 16
        next(batches)
        assert batches.workers == 1


@pytest.mark.parametrize(
    ("kind", "number"), [("ext4", 2), ("nfs4", 16), ("lustre", 16), ("fuse.gcsfuse", 16)]
)
def test_network_file_system_is_read_by_as_many_threads_as_a_bucket(plan, cores, monkeypatch, kind, number):
    cores(16)
    mount = Mount(point="/", kind=kind, device="server:/export")
    monkeypatch.setattr(mounts, "find_mount", lambda folder, table=None: mount)
    with loader.Loader(plan, 0, 1, framework="numpy") as batches:
        assert batches.workers == number
        next(batches)


def test_describe_names_what_was_tried_and_for_how_long(plan, record_stretch, cores):
    record_stretch(Measurement(0.0, replace(COPIES, cores=0.3)), Measurement(0.0, replace(COPIES, cores=2.0)))
    cores(8)
    with loader.Loader(plan, 0, 1, framework="numpy") as batches:
        for _ in range(5):
            next(batches)
        batches._execution.batch_delivered(1.5, 2.5, 0.0)
        (tried,) = [line for line in batches.describe().splitlines() if line.startswith("tried: ")]
    assert re.fullmatch(
        r"tried: 2 threads for 0\.\d s, 4 threads for 0\.\d s, 2 threads for 4\.\d s", tried
    ), tried
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy") as batches:
        next(batches)
        assert "tried" not in batches.describe(), "nothing is measured"


@pytest.mark.parametrize(
    "stages", [PHOTOS, replace(PHOTOS, wait_share=0.5, load=0.9)], ids=["idle", "sleeping"]
)
def test_auto_keeps_threads_on_two_cores(plan, record_stretch, cores, stages):
    record_stretch(Measurement(0.14, stages))
    cores(2)
    with loader.Loader(plan, 0, 1, framework="numpy") as batches:
        for _ in range(6):
            next(batches)
        assert (batches.executor, batches.workers, batches._execution._starting) == ("threads", 2, None)


def test_auto_becomes_the_caller_on_figures_of_copies(plan, record_stretch, cores, properties):
    """And one thread again, for good, once the training works; no step is missed, made twice or changed."""
    idle, works = Measurement(0.0, COPIES), Measurement(0.0, replace(COPIES, wait_share=0.5))
    record_stretch(idle, idle, works, idle, idle)
    cores(3)
    with loader.Loader(plan, 0, 1, framework="numpy") as batches:
        digests, makers = {}, [(batches.executor, batches.workers)]
        while batches.step < 12:
            batch = next(batches)
            assert batch.step not in digests
            digests[batch.step] = batch.digest
            makers.append((batches.executor, batches.workers))
    assert makers[1:] == [("threads", 2), *[("caller", 0)] * 2, *[("threads", 1)] * 9]
    assert digests == properties.reference_digests(plan, len(digests))


def test_threads_that_were_asked_for_become_one_at_least(plan, record_stretch, cores):
    record_stretch(Measurement(0.9, COPIES))
    cores(3)
    with loader.Loader(plan, 0, 1, executor="threads", framework="numpy") as batches:
        assert [next(batches).step for _ in range(6)] == list(range(6))
        assert (batches.executor, batches.workers) == ("threads", 1)


def test_number_of_threads_that_was_asked_for_stays(plan, record_stretch):
    record_stretch(Measurement(0.0, COPIES))
    with loader.Loader(plan, 0, 1, workers=2, framework="numpy") as batches:
        assert [next(batches).step for _ in range(6)] == list(range(6))
        assert (batches.executor, batches.workers) == ("threads", 2)


def test_auto_keeps_threads_for_what_cannot_be_sent(plan, record_stretch, cores, caplog):
    record_stretch(Measurement(0.0, PHOTOS))
    cores(8)
    held = threading.Lock()

    def transform(sample, rng):
        with held:
            return sample

    with (
        caplog.at_level(logging.WARNING, "loader"),
        loader.Loader(plan, 0, 1, transform=transform, framework="numpy") as batches,
    ):
        for _ in range(5):
            next(batches)
        assert (batches.executor, batches.workers) == ("threads", 4)
    (warning,) = caplog.messages
    assert "threads make the batches" in warning
    assert "transform = <function test_auto_keeps_threads_for_what_cannot_be_sent" in warning
    assert "lock" in warning


def test_auto_keeps_threads_if_a_worker_cannot_start(plan, record_stretch, cores, in_workers, caplog):
    record_stretch(Measurement(0.0, WORKING))
    cores(3)
    transform = in_workers.OnlyHere()
    with loader.Loader(plan, 0, 1, workers=1, transform=transform, framework="numpy") as batches:
        while "could not start" not in batches.executor_reason:
            next(batches)
        assert batches.executor == "threads"
        assert "but a worker process could not start: this worker has no" in batches.executor_reason
        next(batches)
    assert "a worker process could not start" in caplog.text


def test_auto_returns_to_threads_if_results_cannot_be_sent(
    plan, record_stretch, cores, in_workers, caplog, properties
):
    """What threads can hand out is not an error because `auto` chose processes."""
    record_stretch(Measurement(0.0, WORKING))
    cores(3)
    options = {"transform": in_workers.unsendable, "framework": "numpy"}
    with loader.Loader(plan, 0, 1, workers=1, **options) as batches:
        digests = {}
        while "cannot be sent" not in batches.executor_reason or len(digests) < 4:
            batch = next(batches)
            assert batch.step not in digests
            digests[batch.step] = batch.digest
        assert batches.executor == "threads"
        assert multiprocessing.active_children() == []
        assert callable(next(batches)["bad"][0])
    assert [one for one in caplog.messages if "field 'bad'" in one]
    assert digests == properties.reference_digests(plan, len(digests))
    with (
        loader.Loader(plan, 0, 1, executor="processes", workers=1, **options) as batches,
        refusal(Unpicklable, what="bad"),
    ):
        next(batches)


def in_a_daemon(url, plan_hash, answers):
    plan = loader.open_plan(loader.Root(url), plan_hash)
    with loader.Loader(plan, 0, 1, workers=0, framework="numpy") as batches:
        answers.put(tuple(why_not(batches._assembler.recipe)))


def test_daemonic_process_starts_no_others(plan, tmp_path):
    plan.save(loader.Root(str(tmp_path / "root")))
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    arguments = (str(tmp_path / "root"), plan.hash, answers)
    process = context.Process(target=in_a_daemon, args=arguments, daemon=True)
    process.start()
    assert answers.get() == ("this process is itself a worker, and starts no others", True, 0)
    process.join(PATIENCE_S)


def test_secrets_keep_a_loader_in_its_process(s3, samples):
    with loader.Root("s3://bucket/secret", options=s3) as root:
        version = samples.write(root, "photos", range(9), fields=("cls",))
        plan = loader.plan({"p": version}, seed=1, global_batch=3)
        with loader.Loader(plan, 0, 1, workers=0) as batches:
            obstacle = why_not(batches._assembler.recipe)
    assert "opened with key, secret, and secrets are not sent" in obstacle.text
    assert not obstacle.is_usual
