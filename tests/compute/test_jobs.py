"""Jobs on engines of this machine: every unit has one outcome, whatever becomes of units, runners and who waits."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import Corrupt, EngineUnreachable, InvalidRuntime, JobCancelled, JobFailed, ObjectNotFound
from loader.storage import open_store
from penstock.compute import attach as attaching
from penstock.compute import runner_process, submit
from penstock.compute.attach import attach, cancel
from penstock.compute.cluster import Cluster
from penstock.compute.engines.engine import AttemptStatus
from penstock.compute.engines.local_engine import InlineEngine, LocalEngine
from penstock.compute.job import MAX_STARTS, Head, Job, JobFolder, Start, StoredOutcome, job_ids
from penstock.compute.job_json import to_json
from penstock.compute.pool import LocalCompute
from penstock.compute.pool.environment import visible_gpus
from penstock.compute.runner import FINAL
from penstock.compute.runner_process import open_runner, parser
from penstock.compute.submit import MAX_COST_S, MAX_NBYTES, MAX_UNITS, cut_blocks, submit_job
from penstock.compute.work import Work, find_work
from tests.compute.job_checks import (
    REPOSITORY,
    assert_a_gpu_has_a_worker,
    bytes_done,
    done_by,
    folder_of,
    job_in,
    numbers,
    told_of,
)
from tests.compute.works import ON_GPUS, SQUARES, Number, Square, square
from tests.refusals import refusal
from tests.servers.patience import until

INLINE = Cluster(engine="inline", packages=("tests",))
LOCAL = Cluster(engine="local", packages=("tests",))
ENDS = {1: "raise", 3: "memory", 5: "wrong type", 6: "miss a file"}


@given(st.lists(st.tuples(st.floats(0, 300) | st.just(1.0), st.integers(0, MAX_NBYTES + 1)), max_size=600))
def test_blocks_hold_each_unit_once_and_keep_to_their_limits(units):
    work = replace(SQUARES, cost_s=lambda unit: units[unit.n][0], nbytes=lambda unit: units[unit.n][1])
    blocks = list(cut_blocks(work, (Number(n=n) for n in range(len(units)))))
    assert [unit.n for block in blocks for unit in block] == list(range(len(units)))

    def spent(block):
        each = [units[unit.n] for unit in block]
        return sum(cost_s for cost_s, _ in each), sum(nbytes for _, nbytes in each)

    for block in blocks:
        seconds, nbytes = spent(block)
        assert 1 <= len(block) <= MAX_UNITS
        assert len(block) == 1 or (seconds <= MAX_COST_S + 1e-6 and nbytes <= MAX_NBYTES)
    for block, after in pairwise(blocks):  # no block ends sooner than it must
        seconds, nbytes = spent([*block, after[0]])
        assert len(block) == MAX_UNITS or seconds > MAX_COST_S - 1e-6 or nbytes > MAX_NBYTES


@pytest.mark.parametrize("workers", [1, 4])
def test_outcomes_are_the_same_bytes_on_every_engine(tmp_path, workers):
    inline, local = job_in(tmp_path / "inline"), job_in(tmp_path / "local")
    first = done_by(inline, numbers(11, ENDS), INLINE)
    assert told_of(first) == [0, "exception", 4, "memory", 16, "exception", "exception", 49, 64, 81, 100]
    cluster = replace(LOCAL, slot=replace(LOCAL.slot, cpus=workers))
    assert told_of(done_by(local, numbers(11, ENDS), cluster)) == told_of(first)
    assert len(bytes_done(local)) == 5
    assert list(bytes_done(local).values()) == list(bytes_done(inline).values())


def test_runner_has_a_worker_for_each_gpu_that_it_sees(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    assert_a_gpu_has_a_worker(
        tmp_path / "4", replace(LOCAL, slot=replace(LOCAL.slot, cpus=4)), {"4", "GPU-7"}
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    job = replace(job_in(tmp_path / "none"), work=ON_GPUS)
    assert {one.value.place for one in done_by(job, numbers(2), LOCAL)} == {"cpu"}


@pytest.mark.gpu
def test_runner_has_a_worker_for_each_gpu_of_its_machine(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    there = visible_gpus()
    assert there
    assert_a_gpu_has_a_worker(tmp_path, replace(LOCAL, slot=replace(LOCAL.slot, cpus=4)), set(there))


def test_slot_with_fewer_gpus_than_its_file_says_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    job = job_in(tmp_path)
    sha256 = submit_job(job, numbers(1)).description.sha256
    runner = [
        *LOCAL.runner(folder_of(job), 1, sha256)[3:],
        "--element",
        "0",
        "--elements",
        "1",
        "--gpus",
        "2",
    ]
    with refusal(InvalidRuntime, what="slot.gpus", given=1, accepted=2):
        open_runner(parser().parse_args(runner), LocalCompute)


def test_units_that_hang_or_die_cost_themselves(tmp_path):
    told = told_of(done_by(job_in(tmp_path), numbers(6, {2: "hang", 4: "die"}), LOCAL))
    assert told == [0, 1, "timeout", 9, "crashed", 25]


def test_unit_that_kills_its_runner_costs_no_other_block(tmp_path):
    job = job_in(tmp_path)
    first, *others = numbers(7, {2: "kill the runner"}, where=str(tmp_path), seconds=0.2)()
    units = [
        replace(first, seconds=1.5),
        *others,
    ]  # the first block still runs when the second one's runner dies
    assert told_of(done_by(job, lambda: units, LOCAL)) == [0, 1, "crashed", 9, 16, 25, 36]
    starts = folder_of(job).starts(1)
    assert len(starts) == 5
    assert [one.unit for one in starts[2:4]] == [1, 1], "named at both deaths"
    assert len((tmp_path / "begun-2").read_text().split()) == 4


def test_store_at_fault_refuses_no_unit(tmp_path):
    job = job_in(tmp_path)
    units = numbers(3, {2: "wait for the store"}, where=str(tmp_path))
    found: list[object] = []

    def wait():
        found.extend(told_of(done_by(job, units, LOCAL)))

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: not waiting.is_alive() or any(one.left == "failed" for one in folder_of(job).starts(1)))
    (tmp_path / "open").touch()
    waiting.join()
    assert found == [0, 1, 4]
    assert "the store does not answer" in folder_of(job).log(1)
    assert len((tmp_path / "begun-1").read_text().split()) == 1, "its outcome was kept"


def test_disk_that_stays_full_fails_the_job_with_its_words(tmp_path):
    job = job_in(tmp_path)
    with refusal(JobFailed, what="blocks", where=f"job {job.id}", given=[1], accepted=MAX_STARTS) as failed:
        done_by(job, numbers(2, {1: "fill the disk"}), LOCAL)
    assert "No space left" in str(failed.value)


WAITER = """\
import sys
from pathlib import Path
from penstock.compute.cluster import Cluster
from tests.compute.job_checks import done_by, job_in, numbers, told_of
folder = Path(sys.argv[1])
told = told_of(done_by(job_in(folder), numbers(8, where=str(folder), seconds=0.15),
    Cluster(packages=("tests",)), lambda state: print(state.n_done, flush=True)))
print(told)
"""


def test_who_waits_is_killed_and_another_goes_on(tmp_path):
    for _ in range(2):
        one = subprocess.Popen(
            [sys.executable, "-c", WAITER, str(tmp_path)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        assert one.stdout is not None
        while not one.stdout.readline().strip().isdigit():
            pass
        time.sleep(0.5)
        one.kill()
        one.wait()
        one.stdout.close()
    job = job_in(tmp_path)
    units = numbers(8, where=str(tmp_path), seconds=0.15)
    assert told_of(done_by(job, units, LOCAL)) == [n**2 for n in range(8)]
    begun = [len((tmp_path / f"begun-{n}").read_text().split()) for n in range(8)]
    assert all(1 <= n <= 3 for n in begun), begun


def test_two_wait_for_one_job(tmp_path):
    job, found = job_in(tmp_path), [[], []]
    units = numbers(8, where=str(tmp_path))

    def wait(mine):
        mine.extend(told_of(done_by(job, units, LOCAL)))

    threads = [threading.Thread(target=wait, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[n**2 for n in range(8)]] * 2
    assert list(job_ids(job.store)) == [job.id]


def test_first_outcomes_of_a_block_stay(tmp_path):
    job = job_in(tmp_path)
    done_by(job, numbers(4), INLINE)
    before, folder = bytes_done(job), folder_of(job)
    description = folder.description()
    assert description is not None
    head, _ = folder.outcomes(description, 1, Square)
    folder.put_done(1, head, [])  # a runner that was taken for dead comes back
    assert bytes_done(job) == before


def test_two_roots_with_the_same_job_share_no_name_of_an_attempt(tmp_path):
    one, other = job_in(tmp_path / "one"), job_in(tmp_path / "other")
    assert one.id == other.id
    for job in (one, other):
        submit_job(job, numbers(3))
    name = folder_of(one).attempt_name(1)
    assert name == folder_of(one).attempt_name(1) != folder_of(other).attempt_name(1)
    folder_of(one).remove()
    with pytest.raises(ObjectNotFound):
        folder_of(one).attempt_name(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsorted:
    """Names of fields are in no order."""

    z: int
    a: str


def test_outcomes_that_were_kept_have_the_same_bytes(tmp_path):
    stored, folder = StoredOutcome(result=Unsorted(z=1, a="b")), folder_of(job_in(tmp_path))
    folder.keep(0, 1, {7: stored})
    assert to_json(folder.kept(0, Unsorted)[7]) == to_json(stored)


def test_job_that_is_cancelled_goes_on_if_it_is_run_again(tmp_path):
    job, engine = job_in(tmp_path), LOCAL.open()
    units = numbers(5, {4: "wait for the store"}, where=str(tmp_path), seconds=0.2)
    waiting = attach(job, units, engine, LOCAL)
    next(waiting)
    cancel(folder_of(job), engine)
    with pytest.raises(JobCancelled, match="run it again"):
        list(waiting)
    engine.close()
    (tmp_path / "open").touch()
    assert told_of(done_by(job, units, LOCAL)) == [0, 1, 4, 9, 16]


def test_intent_without_an_engine_is_overtaken(tmp_path, monkeypatch):
    job, folder = job_in(tmp_path), folder_of(job_in(tmp_path))
    submit_job(job, numbers(3))
    given = attaching.AttemptRecord(by="gone:1", at_us=attaching.now_us(), n_begun=0)
    assert folder.intend(1, given)
    assert not folder.intend(1, replace(given, by="late:2"))
    monkeypatch.setattr(attaching, "INTENT_S", 0.5)
    assert told_of(done_by(job, numbers(3), LOCAL)) == [0, 1, 4]
    assert folder.newest_attempt()[0] == 2


def test_attempt_of_which_nothing_is_known_has_not_ended(tmp_path):
    class Silent(LocalEngine):
        looks = 0

        def status(self, name):
            self.looks += 1
            if self.looks % 2:
                raise EngineUnreachable("no answer")
            return AttemptStatus(state="unknown") if self.looks < 8 else super().status(name)

    job, engine = job_in(tmp_path), Silent()
    blocks = list(attach(job, numbers(5, seconds=0.2), engine, LOCAL))
    engine.close()
    assert engine.looks > 1
    assert (len(blocks), folder_of(job).newest_attempt()[0]) == (3, 1)


def test_rest_of_an_attempt_is_withdrawn_behind_the_last_block(tmp_path):
    """Slurm may hold an element of a lost node for ever."""
    asked, withdrawn = [], []

    class Held(InlineEngine):
        def status(self, name):
            asked.append((name, folder_of(job).done()))
            return AttemptStatus(state="waiting", waiting=1, place="Slurm job 3 in partition long")

        def withdraw(self, name):
            withdrawn.append(name)

        def cancel(self, name):
            raise AssertionError("its logs would go")

    job, told = job_in(tmp_path), []
    assert len(list(attach(job, numbers(5), Held(), INLINE, told.append))) == 3
    assert asked == [(folder_of(job).attempt_name(1), [0, 1, 2])]
    assert withdrawn == [folder_of(job).attempt_name(1)]
    assert told[-1].status == AttemptStatus(state="ended", place="Slurm job 3 in partition long")


def test_runner_of_a_job_that_is_over_and_deleted_is_not_begun_again(tmp_path, capsys):
    job = job_in(tmp_path)
    told = INLINE.runner(folder_of(job), 1, "0" * 64)[3:]
    assert runner_process.main([*told, "--element", "0", "--elements", "1"]) in FINAL
    assert f"jobs/{job.id}/job.json" in capsys.readouterr().err


def test_blocks_that_other_releases_computed_are_not_mixed(tmp_path):
    job, folder = job_in(tmp_path), folder_of(job_in(tmp_path))
    done_by(job, numbers(4), INLINE)
    description = folder.description()
    assert description is not None
    folder.store.delete_many([folder.key("done/1.jsonl.zst")])
    folder.put_done(1, Head(libraries={"numpy": "1.0"}), [StoredOutcome(result={"n": 0, "square": 0})] * 3)
    with refusal(JobFailed, what="libraries", where=f"block 1 of job {job.id}", given={"numpy": "1.0"}):
        done_by(job, numbers(4), INLINE)


def test_another_source_tree_fails_the_job_before_a_block_begins(tmp_path, monkeypatch):
    job = job_in(tmp_path)
    monkeypatch.setattr(submit, "source_hash", lambda _: "0" * 64)
    with refusal(JobFailed, what="attempts", where=f"job {job.id}", given=attaching.BARREN) as failed:
        done_by(job, numbers(3), LOCAL)
    assert "CodeMismatch" in str(failed.value)


def test_description_in_a_bucket_runs_no_code_of_other_packages(tmp_path):
    job, folder = job_in(tmp_path), folder_of(job_in(tmp_path))
    description = submit_job(job, numbers(3)).description
    for place, accepted in (
        ("os:system", ["assets", "penstock", "tests"]),
        ("penstock.compute.job:job_ids", "a `Work`"),
    ):
        forged = replace(description, work=place)
        job.store.put(folder.key("job.json"), to_json(forged))
        told = INLINE.runner(folder, 1, forged.sha256)[3:]
        with refusal(
            InvalidRuntime, what="work", given=place, accepted=accepted
        ):  # though who submits vouched for it
            open_runner(parser().parse_args([*told, "--element", "0", "--elements", "1"]), LocalCompute)
    with refusal(InvalidRuntime, what="import", given="penstock.nothing:WORK"):
        find_work("penstock.nothing:WORK", ["penstock"])


def test_secrets_stay_at_home(tmp_path):
    secrets = {"access_key_id": "AKIAPLANTED", "secret_access_key": "planted/secret"}
    bucket = open_store("s3://bucket/raw", {**secrets, "region": "eu-1", "endpoint": "http://127.0.0.1:9"})
    job = replace(job_in(tmp_path), stores=[bucket])
    submit_job(job, numbers(2))
    command = " ".join(LOCAL.runner(JobFolder(bucket, job.id), 1, "0" * 64))
    told = [bytes(job.store.get(info.key).data).decode(errors="replace") for info in job.store.list("jobs/")]
    assert "eu-1" in command
    assert any("eu-1" in text for text in told)
    for text in (command, *told):
        assert not any(secret in text for secret in secrets.values())


def test_job_of_a_store_in_memory_is_refused():
    job = Job(store=open_store("memory://jobs"), work=SQUARES, about="", fingerprint="")
    with refusal(InvalidRuntime, what="store", given="memory://jobs"):
        submit_job(job, numbers(1))


def test_work_that_no_module_holds_is_refused(tmp_path):
    nameless = Work(name="n", version="1", function=square, unit=Number, result=Square, timeout_s=1)
    with refusal(InvalidRuntime, what="work", where="tests.compute.works", given="n"):
        submit_job(replace(job_in(tmp_path), work=nameless), numbers(1))


@pytest.mark.parametrize(("name", "what"), [("done/0.jsonl.zst", "frame"), ("begun/0-1.json", "Start")])
def test_damaged_object_is_named(tmp_path, name, what):
    job, folder = job_in(tmp_path), folder_of(job_in(tmp_path))
    done_by(job, numbers(3), INLINE)
    job.store.put(folder.key(name), b"{]")
    with refusal(Corrupt, what=what, where=folder.key(name)):
        _ = folder.starts(0), done_by(job, numbers(3), INLINE)


@pytest.mark.parametrize("n_blocks", [4, 12])
def test_requests_per_block_do_not_grow(tmp_path, n_blocks, monkeypatch):
    from loader.storage.disk.store import LocalStore

    counted: dict[str, int] = {}

    def counting(verb):
        true = getattr(LocalStore, verb)

        def call(store, *arguments, **more):
            counted[verb] = counted.get(verb, 0) + 1
            return true(store, *arguments, **more)

        return call

    for verb in ("get", "put", "put_if_absent", "put_file", "get_range", "head", "list", "delete_many"):
        monkeypatch.setattr(LocalStore, verb, counting(verb))
    done_by(job_in(tmp_path), numbers(3 * n_blocks - 2), INLINE)
    assert sum(counted.values()) <= 6 * n_blocks + 20, counted


def test_start_says_what_it_was(tmp_path):
    job = job_in(tmp_path)
    done_by(job, numbers(1), INLINE)
    (start,) = folder_of(job).starts(0)
    assert (start.attempt, start.element, start.left) == (1, 0, "")
    assert start == Start(attempt=1, element=0, node=os.uname().nodename, at_us=start.at_us)
