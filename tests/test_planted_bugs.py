"""Plants a bug in the text of the loader and shows that the test which should catch it turns red.

For what runs in processes and threads of its own, where patching the trainer's modules reaches nobody. Each bug is
planted in a copy of the package, over which the named tests run in a process of their own: they fail, and pass over a
copy as it is. `make mutants` runs these; docs/planted_bugs.md lists them, with those of the test_mutants.py.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.mutants

REPOSITORY = Path(__file__).parent.parent


class Bug(NamedTuple):
    """`was` stands once in `file` of the package, and becomes `is_`. red: a test, as pytest names it."""

    what: str
    file: str
    was: str
    is_: str
    red: str


def in_files(folder: str, *bugs: tuple[str, str, str, str, str]) -> list[Bug]:
    return [Bug(what, f"{folder}/{file}", was, is_, f"tests/run/{red}") for what, file, was, is_, red in bugs]


WORKERS = in_files(
    "workers",
    (
        "a segment is free while its batch is held",
        "ring.py",
        "weakref.finalize(memory, self._free.append, segment).atexit = False",
        "self._free.append(segment)",
        "test_worker_memory.py::test_a_batch_that_is_held_never_changes",
    ),
    (
        "every batch that is kept takes a segment",
        "ring.py",
        "if len(self._segments) > MAX_SEGMENTS:",
        "if False:",
        "test_worker_memory.py::test_more_batches_than_segments_are_copied",
    ),
    (
        "a worker begins a batch behind the one before it",
        "slot.py",
        "self._segment, self._top, self._outside = segment, 0, []",
        "self._segment, self._outside = segment, []",
        "test_worker_memory.py::test_memory_is_used_again",
    ),
    (
        "arrays outside of the segment are not copied into it",
        "slot.py",
        "if raw.ctypes.data != start + place:",
        "if False:",
        "test_worker_memory.py::test_batches_that_outgrow_their_memory",
    ),
    (
        "arrays begin where others lie",
        "slot.py",
        "self._top = at + nbytes",
        "self._top = max(self._top, nbytes)",
        "test_worker_memory.py::test_batches_that_outgrow_their_memory",
    ),
    (
        "a worker makes the step beside",
        "main.py",
        "batch = self._assembler.batch(task.step)",
        "batch = self._assembler.batch(task.step ^ 1)",
        "test_processes.py::test_every_world_size_delivers_the_plan",
    ),
    (
        "what a dead worker was asked for is not asked again as it was",
        "crew.py",
        "self._ask(task.step, task.future)",
        "self._ask(task.step + 1, task.future)",
        "test_worker_lives.py::test_a_killed_worker_is_replaced",
    ),
    (
        "a step may cost one worker more",
        "crew.py",
        "if self._deaths[step] >= DEATHS:",
        "if self._deaths[step] > DEATHS:",
        "test_worker_lives.py::test_a_step_that_kills_its_worker[2]",
    ),
    (
        "counts of workers are lost",
        "crew.py",
        "self._metrics.merge(outcome.totals)",
        "pass",
        "test_processes.py::test_metrics_are_those_of_threads",
    ),
    (
        "logs of workers are lost",
        "crew.py",
        "log_again(outcome.logged)",
        "pass",
        "test_worker_lives.py::test_what_a_worker_logs_is_logged_here",
    ),
    (
        "an error without the worker's traceback",
        "outcome.py",
        "error.__cause__ = WorkerTraceback(self.trace)",
        "pass",
        "test_worker_errors.py::test_errors_of_a_decoder",
    ),
    (
        "no error can be sent",
        "outcome.py",
        "pickled = pickle.dumps(error)",
        "pickled = None",
        "test_worker_errors.py::test_errors_of_a_decoder",
    ),
    (
        "what the script defines is sent",
        "sent.py",
        'value.__module__ == "__main__"',
        'value.__module__ == "nowhere"',
        "test_worker_lives.py::test_a_script_without_a_main_guard",
    ),
    (
        "a daemonic process starts workers",
        "sent.py",
        "if current_process().daemon:",
        "if False:",
        "test_contention.py::test_a_daemonic_process_starts_no_others",
    ),
    (
        "a worker goes on with its batch when its trainer is gone",
        "watch.py",
        "self._ended.wait(GRACE_S)",
        "return",
        "test_worker_lives.py::test_workers_end_when_the_trainer_is_killed[gated]",
    ),
)

AHEAD = in_files(
    "run",
    (
        "a start asks for all that there is room for",
        "read_ahead.py",
        "self._allowed = self._in_flight",
        "self._allowed = None",
        "test_planned_reads.py::test_one_window_until_the_first_batch_is_read",
    ),
    (
        "twice as far ahead",
        "read_ahead.py",
        "step > last + self._horizon",
        "step > last + 2 * self._horizon",
        "test_planned_reads.py::test_one_window_until_the_first_batch_is_read",
    ),
    (
        "a seek leaves what was planned",
        "read_ahead.py",
        "self._queue.clear()",
        "pass",
        "test_planned_reads.py::test_a_seek_drops_what_was_planned",
    ),
    (
        "no step is a seek",
        "read_ahead.py",
        "abs(step - self._last) > NEAR",
        "False",
        "test_planned_reads.py::test_a_seek_drops_what_was_planned",
    ),
    (
        "planning goes on past the end",
        "read_ahead.py",
        "self._ended = units is None",
        "self._ended = False",
        "test_planned_reads.py::test_it_ends_where_the_run_ends",
    ),
    (
        "what could not be read is tried at once again",
        "read_ahead.py",
        "self._resting = True",
        "self._resting = False",
        "test_planned_reads.py::test_what_cannot_be_planned_is_counted_and_tried_again",
    ),
    (
        "what is claimed and not fetched stays claimed",
        "read_ahead.py",
        "self._source.give_back(unit) if done.cancelled() else None",
        "None",
        "test_planned_reads.py::test_what_is_claimed_and_will_not_be_fetched_is_given_back",
    ),
    (
        "of ranges over several pages the first page",
        "page_ahead.py",
        "high = (extents.offset[some] + extents.nbytes[some] - 1) // page_bytes",
        "high = low",
        "test_planned_reads.py::test_the_pages_of_ranges",
    ),
    (
        "ranges beyond the budget",
        "range_ahead.py",
        "> self._limit_bytes:",
        "> 4 * self._limit_bytes:",
        "test_read_ahead.py::test_the_budget_is_never_exceeded",
    ),
    (
        "nothing is read in vain",
        "range_ahead.py",
        "self._wasted += 1",
        "pass",
        "test_read_ahead.py::test_ranges_of_batches_that_another_process_makes_are_not_read_for_ever",
    ),
    (
        "ranges are taken of the unit's first span",
        "range_ahead.py",
        "taken.append(blobs[one[1]] if one and blobs else None)",
        "taken.append(blobs[0] if one and blobs else None)",
        "test_read_ahead.py::test_the_budget_is_never_exceeded",
    ),
    (
        "no cache is too small for pages",
        "worth.py",
        "return sum(min(needed, sum(stored[version].values())) for version, needed in live.items())",
        "return 0",
        "test_node_cache.py::test_what_does_not_fit_is_not_fetched_in_pages",
    ),
    (
        "what is read lies at the samples' places in the view",
        "rank_future.py",
        "mine = slots.ordinal[",
        "mine = slots.view_ordinal[",
        "test_planned_reads.py::test_what_is_planned_is_what_the_steps_ask_for",
    ),
    (
        "the future goes on past the last step",
        "rank_future.py",
        "if self._end is not None and step >= self._end:",
        "if False:",
        "test_planned_reads.py::test_what_is_planned_is_what_the_steps_ask_for",
    ),
)

ASSEMBLY = in_files(
    "run",
    (
        "substitutions in the order of sources",
        "assemble.py",
        "in sorted(bad, key=itemgetter(0)):",
        "in bad:",
        "test_substitution.py::test_each_world_size_with_each_thread_count",
    ),
    (
        "checksums of the samples that were corrupt",
        "assemble.py",
        "for one in [*wanted, *instead]:",
        "for one in wanted:",
        "test_substitution.py::test_a_quarantined_run_delivers_what_the_substituted_one_did",
    ),
    (
        "a rank of padding lists what another rank lists",
        "assemble.py",
        "substitutions=[] if mine.shape_only else made.substitutions,",
        "substitutions=made.substitutions,",
        "test_substitution.py::test_a_rank_of_padding_alone_lists_nothing",
    ),
    (
        "the weight of a rank alone",
        "assemble.py",
        "weight = len(real) * recipe.world.world_size / len(slots)",
        "weight = 1.0",
        "test_batch.py::test_weight_corrects_the_mean_of_means",
    ),
    (
        "batches without their bucket",
        "assemble.py",
        "bucket=plan.bucket(step)",
        "bucket=None",
        "test_buckets.py",
    ),
    (
        "sources that decode bytes ahead of a transform",
        "assemble.py",
        "tuple(sample)",
        "self._views[wanted.source].fields",
        "test_same_batches.py::test_augmentation_depends_on_the_sample_alone",
    ),
    (
        "rows of a rank counted from the first slot of all",
        "located.py",
        "(mine - first).tolist()",
        "mine.tolist()",
        "test_same_batches.py::test_each_world_size_with_each_thread_count",
    ),
    (
        "padding keeps what lay in its row",
        "columns.py",
        "rows[slot] = 0",
        "rows[slot] = 7",
        "test_collate.py",
    ),
    (
        "values stay where the decoder left them",
        "columns.py",
        "self._of(field)[slot] = _IN_ROW if in_row or self._moved(field, slot, value) else value",
        "self._of(field)[slot] = _IN_ROW",
        "test_collate.py",
    ),
    (
        "pieces of another document",
        "piece_reads.py",
        "start // self._length",
        "0",
        "test_pack.py::test_pieces_of_long_documents_are_read_alone",
    ),
    (
        "positions run on from piece to piece",
        "pieces.py",
        "np.arange(n, dtype=np.int32)",
        "np.arange(at, at + n, dtype=np.int32)",
        "test_pack.py::test_a_batch_is_what_its_table_says",
    ),
)

BUGS = WORKERS + AHEAD + ASSEMBLY


@pytest.fixture
def run(tmp_path: Path):
    """run(tests) over a copy of the package, in `copy`: its exit status and what it printed."""
    copy = tmp_path / "copy"
    shutil.copytree(REPOSITORY / "loader", copy / "loader")

    def go(*tests: str) -> "subprocess.CompletedProcess[str]":
        command = ["-P", "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=short"]
        options = ["-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(REPOSITORY)]
        return subprocess.run(
            [
                sys.executable,
                *command,
                *options,
                f"--basetemp={tmp_path / 'temp'}",
                *(str(REPOSITORY / test) for test in tests),
            ],
            cwd=copy,  # where a process of a test's own finds the package first
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(REPOSITORY)])},
            capture_output=True,
            text=True,
            timeout=300,
        )

    go.copy = copy
    return go


@pytest.mark.parametrize("bug", BUGS, ids=[bug.what.replace(" ", "-") for bug in BUGS])
def test_a_planted_bug_is_caught(bug: Bug, run) -> None:
    file = run.copy / "loader" / bug.file
    text = file.read_text()
    assert text.count(bug.was) == 1, f"{bug.file} does not hold this once: {bug.was}"
    file.write_text(text.replace(bug.was, bug.is_))
    done = run(bug.red)
    assert done.returncode == 1, done.stdout  # 1: a test failed; others: none was run
    assert "1 failed" in done.stdout


def test_without_a_planted_bug_the_same_tests_pass(run) -> None:
    done = run(*dict.fromkeys(bug.red for bug in BUGS))
    assert done.returncode == 0, done.stdout
