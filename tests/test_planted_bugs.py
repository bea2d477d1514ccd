"""Plants a bug in the text of the loader and shows that the test which should catch it turns red.

For what runs in processes and threads of its own, where patching the trainer's modules reaches nobody. Each bug is
planted in a copy of the package, over which the named tests run in a process of their own: they fail, and pass over a
copy as it is. `make mutants` runs these; docs/planted_bugs.md lists them, with those of the test_mutants.py.
"""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parent.parent
UNSHRUNK = "unshrunk"
"""Hypothesis' profile that looks for no smaller example (conftest.py): that a test fails is enough."""


class Bug(NamedTuple):
    """`was` stands once in `file`, and becomes `is_`. file: below loader/, or of another package, with its name. red:
    tests, as pytest names them; each fails."""

    what: str
    file: str
    was: str
    is_: str
    red: tuple[str, ...]


def path_of(file: str) -> Path:
    """From the repository, or a copy of it."""
    packages = ("penstock/", "assets/", "resources/", "dagster_project/")
    return Path(file) if file.startswith(packages) else Path("loader", file)


def in_files(folder: str, *bugs: tuple[str, str, str, str, str], tests: str = "tests/run") -> list[Bug]:
    """Bugs in files of one folder, caught by tests of one folder."""
    return [
        Bug(what, f"{folder}/{file}", was, is_, (f"{tests}/{red}",)) for what, file, was, is_, red in bugs
    ]


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
        "arrays that lie apart are told as one",
        "packed.py",
        "or one.ctypes.data != at",
        "or False",
        "test_packed.py::test_what_is_packed_comes_out",
    ),
    (
        "all batches get the bytes of the first",
        "packed.py",
        "[values[begin:end] for begin, end in pairwise(ends)]",
        "[values[: end - begin] for begin, end in pairwise(ends)]",
        "test_packed.py::test_what_is_packed_comes_out",
    ),
    (
        "batches that are told together get the ids of the first",
        "packed.py",
        "ids=self.ids[begin:end]",
        "ids=self.ids[: end - begin]",
        "test_packed.py::test_what_is_packed_comes_out",
    ),
    (
        "bytes go with the pickle",
        "packed.py",
        "sum(map(len, flat)) >= LEAST_BYTES",
        "not flat",
        "test_packed.py::test_bytes_lie_beside_the_pickle",
    ),
    (
        "a worker makes the step beside",
        "main.py",
        "made = self._made(range(task.step, task.step + task.steps))",
        "made = self._made(range(task.step ^ 1, (task.step ^ 1) + task.steps))",
        "test_processes.py::test_every_world_size_delivers_the_plan",
    ),
    (
        "what a dead worker was asked for is not asked again as it was",
        "crew.py",
        "self._ask(task.steps, task.future)",
        "self._ask(range(task.steps.start + 1, task.steps.stop + 1), task.future)",
        "test_worker_lives.py::test_a_step_that_kills_its_worker[1]",
    ),
    (
        "a step may cost one worker more",
        "crew.py",
        "if self._deaths[steps] >= DEATHS:",
        "if self._deaths[steps] > DEATHS:",
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
        "return self._first is None and not self._stopped",
        "return not self._stopped",
        "test_planned_reads.py::test_nothing_is_read_until_the_first_batch_is",
    ),
    (
        "batches after the first do not wait for it",
        "read_ahead.py",
        "lambda: self._first is None or self._stopped",
        "lambda: True",
        "test_planned_reads.py::test_nothing_is_read_until_the_first_batch_is",
    ),
    (
        "twice as far ahead",
        "read_ahead.py",
        "step > last + self._horizon",
        "step > last + 2 * self._horizon",
        "test_planned_reads.py::test_nothing_is_read_until_the_first_batch_is",
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
        "abs(steps[0] - self._last) > NEAR",
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
        "of a step the first sample alone is known ahead",
        "rank_future.py",
        "self._locate(slots, wanted, self._run)",
        "self._locate(slots, wanted[:1], self._run)",
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

ROUNDS = "test_rounds.py::test_rounds_to_the_first_batch[1-4-0]"
MANY = "test_rounds.py::test_rounds_to_the_first_batch[25-2-7]"

LEASE_AND_LOG = """if self._lease.add(record.id):  # the first of several threads leaves one
                # The lease is only safe once it is older than the retirement it must be seen by: read the log again.
                resolve(self.state, record.id)"""

STARTS = [
    *in_files(
        "dataset",
        (
            "the log is listed after the marker was read",
            "log.py",
            "with beside(listed, self._store) as listing:\n            self._check()",
            "self._check()\n        with beside(listed, self._store) as listing:",
            ROUNDS,
        ),
        (
            "entries are probed that are known to be there",
            "log.py",
            "with Together(self._store, found.keys) as store:",
            "with Together(self._store, ()) as store:",
            MANY,
        ),
        (
            "tables of parts are read when they are needed",
            "root.py",
            "version.prepare()",
            "",
            ROUNDS,
        ),
        (
            "tables of parts are read one after another",
            "version.py",
            "[file.path for file in files[1:]]",
            "()",
            MANY,
        ),
        (
            "pandas is imported",
            "arrow.py",
            "np.from_dlpack(chunk)",
            "chunk.to_numpy()",
            "test_rounds.py::test_nothing_heavy_is_imported_on_the_way_to_the_first_batch",
        ),
    ),
    *in_files(
        "run", ("sixteen objects at once", "range_threads.py", "IO_THREADS = 64", "IO_THREADS = 16", MANY)
    ),
    Bug(
        "a version is handed out though it was retired before the lease was there",
        "dataset/root.py",
        "                resolve(self.state, record.id)\n",
        "                pass\n",
        (
            "tests/dataset/test_leases_of_readers.py::"
            "test_a_version_that_is_retired_before_the_lease_is_there_is_not_handed_out[False]",
        ),
    ),
    Bug(
        "the log is read again before the lease is there",
        "dataset/root.py",
        LEASE_AND_LOG,
        "resolve(self.state, record.id)\n            self._lease.add(record.id)",
        (
            "tests/dataset/test_leases_of_readers.py::"
            "test_a_version_that_is_retired_before_the_lease_is_there_is_not_handed_out[False]",
        ),
    ),
    Bug(
        "each thread reads what others read",
        "dataset/index_cache.py",
        "with self._turns.of(place.path):",
        "if True:",
        ("tests/dataset/test_index.py::test_what_threads_want_at_once_is_read_once",),
    ),
]

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
        "finish.py",
        "out = [self._padding(mine, columns)]\n",
        "out = [self._padding(mine, columns)]\n            out[0].substitutions += made.substitutions\n",
        "test_substitution.py::test_a_rank_of_padding_alone_lists_nothing",
    ),
    (
        "the weight of a rank alone",
        "finish.py",
        "weight=n_real * self._recipe.world.world_size / global_batch",
        "weight=1.0",
        "test_batch.py::test_weight_corrects_the_mean_of_means",
    ),
    (
        "batches without their bucket",
        "finish.py",
        "bucket=None if plan.buckets is None else plan.bucket(step)",
        "bucket=None",
        "test_buckets.py",
    ),
    (
        "sources that decode bytes ahead of a transform",
        "many_samples.py",
        "tuple(sample)",
        "wanted.kind.fields",
        "test_same_batches.py::test_augmentation_depends_on_the_sample_alone",
    ),
    (
        "samples of every source looked up in the first",
        "located.py",
        "self._number[of]",
        "0 * of",
        "test_same_batches.py::test_each_world_size_with_each_thread_count",
    ),
    (
        "steps made together share one digest",
        "finish.py",
        "np.add.reduceat(hashes, mine.starts[:-1])",
        "np.full(len(mine.steps), hashes.sum())",
        "test_together.py::test_the_same_batches",
    ),
    (
        "steps made together get the rows of the first",
        "columns.py",
        "{field: rows[some] for field, rows in self._rows.items()}",
        "{field: rows[: some.stop - some.start] for field, rows in self._rows.items()}",
        "test_together.py::test_the_same_batches",
    ),
    (
        "the batches before a failed step are lost",
        "prefetch.py",
        "            if made.error is not None and not made.batches:",
        "            if made.error is not None:",
        "test_together.py::test_an_error_comes_at_its_own_step",
    ),
    (
        "a substitute is listed under the first step",
        "substitute.py",
        "mine.step_of(row), int(slots.position[row])",
        "mine.steps[0], int(slots.position[row])",
        "test_together.py::test_a_corrupt_sample_in_the_midst",
    ),
    (
        "threads that wait for a disk become fewer",
        "contention.py",
        "not low <= seen.cores < high",
        "seen.cores >= high",
        "test_contention.py::test_the_rule_for_threads",
    ),
    (
        "threads come and go for ever",
        "executor.py",
        "self._least_threads = self._least_threads if self.workers else 1",
        "self._least_threads += 0",
        "test_contention.py::test_threads_become_fewer_in_the_middle_of_a_run",
    ),
    (
        "fewer threads where a number was asked for",
        "executor.py",
        'self._may_be_fewer = workers == "auto" and',
        "self._may_be_fewer =",
        "test_contention.py::test_the_number_of_threads_that_was_asked_for_stays",
    ),
    (
        "padding keeps what lay in its row",
        "columns.py",
        "rows[~real] = 0",
        "rows[~real] = 7",
        "test_collate.py",
    ),
    (
        "values stay where the decoder left them",
        "columns.py",
        "in_row = in_row or self._moved(field, slot, value)",
        "in_row = True",
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
    (
        "memory is free while an array over it is held",
        "recycled.py",
        "weakref.finalize(memory, self._free.append, piece).atexit = False",
        "self._free.append(piece)",
        "test_recycled.py::test_what_is_held_never_changes",
    ),
    (
        "all memory that was ever used is kept",
        "recycled.py",
        "deque(maxlen=KEPT)",
        "deque()",
        "test_recycled.py::test_memory_that_nobody_uses_is_bounded",
    ),
    (
        "memory is shared with forked children",
        "recycled.py",
        "mmap.MAP_PRIVATE",
        "mmap.MAP_SHARED",
        "test_recycled.py::test_a_forked_child_keeps_its_own",
    ),
    (
        "slots that were given out are given out again",
        "planned.py",
        "self._kept.pop(step, None)",
        "self._kept.get(step)",
        "test_planned.py::test_whatever_steps_are_asked_for",
    ),
    (
        "steps get the slots of the step that others begin at",
        "rank_slots.py",
        "slots=self.slots.part(rows),",
        "slots=self.slots.part(slice(0, rows.stop - rows.start)),",
        "test_planned.py::test_whatever_steps_are_asked_for",
    ),
    (
        "every step is planned alone",
        "planned.py",
        "0 < step - before <= AHEAD",
        "False",
        "test_planned.py::test_steps_in_a_row_are_planned_together",
    ),
    (
        "what lies beside its row counts as in it",
        "many_samples.py",
        "if value is rows.given:",
        "if True:",
        "test_decode.py::test_pictures_of_many_sizes_are_listed",
    ),
    (
        "the slowest picture is the fastest",
        "many_samples.py",
        "seconds > took[slowest[step]]",
        "seconds < took[slowest[step]]",
        "test_metrics.py::test_the_largest_picture_of_a_step_is_its_slowest_sample",
    ),
)

PROPERTIES = [
    Bug(
        "a header that is known is upright",
        "modalities/jpeg_header.py",
        "return _known(head[: scan + 2])",
        "return _known(head[: scan + 2])._replace(turn=UPRIGHT)",
        ("tests/modalities/test_image.py::test_a_header_that_is_known_is_the_one_that_is_walked",),
    ),
    Bug(
        "rows of mapped shards are not verified",
        "dataset/mapped_rows.py",
        "odd[checked.wrong()] = True",
        "pass",
        ("tests/run/test_rows.py::test_a_flipped_bit_is_read_again_and_then_substituted",),
    ),
    Bug(
        "a shorter permutation takes places of a longer one",
        "order/permutation.py",
        "hashes[columns >= n[:, None].astype(np.uint64)] = MASK",
        "hashes[columns >= n[:, None].astype(np.uint64)] = 0",
        ("tests/order/test_permutation.py::test_perm_takes_a_size_per_element",),
    ),
    Bug(
        "all sources of a stack have the shape of the first",
        "order/lanes.py",
        "int(column[0]) if same else column[which]",
        "int(column[0])",
        ("tests/order/test_lanes.py::test_epochs_of_several_sources_are_located_as_each_by_itself",),
    ),
    Bug(
        "ordinals in the order of the sources",
        "order/slots.py",
        "out[order] = np.concatenate(",
        "out[:] = np.concatenate(",
        ("tests/order/test_golden.py::test_the_code_gives_the_golden_file",),
    ),
    Bug(
        "the index of the first source of a mixture is taken for that of all",
        "run/located.py",
        "(some, layout_of(view.version, some), other)",
        "(some, other)",
        ("tests/run/test_mixture.py::test_every_sample_is_its_sources",),
    ),
    Bug(
        "sources of one version are taken for one source",
        "dataset/lookup.py",
        "first_name=np.cumsum(n_parts[which]) - n_parts[which]",
        "first_name=first_part[which]",
        ("tests/run/test_mixture.py::test_versions_listed_twice_are_joined_once",),
    ),
    Bug(
        "every source of a mixture is looked up and read by itself",
        "run/located.py",
        "(some, layout_of(view.version, some), other)",
        "(some, layout_of(view.version, some), other, source)",
        ("tests/run/test_mixture.py::test_what_a_source_costs",),
    ),
    Bug(
        "a stack goes on over a schedule's step",
        "order/slots.py",
        "before[1] is segment and ",
        "",
        ("tests/order/test_stack.py::test_a_stack_is_its_steps",),
    ),
    Bug(
        "checksums are joined over a byte too many",
        "dataset/crc_linear.py",
        "looked_up(_moved(nbytes), tables[-1])",
        "looked_up(_moved(nbytes + 1), tables[-1])",
        ("tests/dataset/test_crc_linear.py::test_joined_checksums_are_those_of_the_bytes_behind_each_other",),
    ),
    Bug(
        "a checksum is moved as over an even number of bytes",
        "dataset/crc_linear.py",
        "if nbytes % 2 else even",
        "if False else even",
        ("tests/dataset/test_crc_linear.py::test_a_checksum_moved_over_what_follows",),
    ),
    Bug(
        "of a block that is wrong the first row alone is looked at",
        "dataset/row_checks.py",
        "self._check_each(first, range(row, row + n))",
        "self._check_each(first, range(row, row + 1))",
        ("tests/dataset/test_crc_linear.py::test_whatever_rows_are_wrong_are_found",),
    ),
    Bug(
        "the head of a mapped row is not looked at",
        "dataset/mapped_rows.py",
        "odd = ~same",
        "odd = np.zeros(len(rows), np.bool_)",
        ("tests/run/test_rows.py::test_a_flipped_bit_is_read_again_and_then_substituted",),
    ),
    Bug(
        "padding has the id of what lies there",
        "run/slot_ids.py",
        "(names[source], key) if valid else None",
        "(names[source], key)",
        ("tests/run/test_batch.py::test_ids_are_a_list_of_the_batchs_own",),
    ),
    Bug(
        "every slot is taken for one whose value lies in its row",
        "run/columns.py",
        "return names if all(one is not None and one.all() for one in filled) else None",
        "return names if all(one is not None for one in filled) else None",
        ("tests/run/test_rows.py::test_every_way_of_reading_makes_the_same_batches",),
    ),
    Bug(
        "checksums of samples are off by a bit",
        "dataset/sample_crc.py",
        "return out.astype(np.int64)",
        "return out.astype(np.int64) ^ 1",
        ("tests/run/test_rows.py::test_checksums_of_samples_are_those_of_the_bytes",),
    ),
    Bug(
        "a micro batch too many",
        "run/micro.py",
        "return -(-largest // micro_batch)",
        "return largest // micro_batch + 1",
        ("tests/run/test_micro.py::test_the_pieces_are_the_part_and_the_same_number_on_every_rank",),
    ),
    Bug(
        "a ramp's batch of the part before",
        "order/ramp.py",
        "key=lambda one: one[0]) - 1][1]",
        "key=lambda one: one[0]) - 2][1]",
        ("tests/order/test_ramp.py::test_one_sources_samples_go_on_from_step_to_step",),
    ),
    Bug(
        "new samples are counted in 64 bits",
        "order/growth.py",
        "return np.array([one * self.delta // total for one in j.tolist()], np.int64)",
        "return j * self.delta // total",
        ("tests/order/test_grow.py::test_new_samples_are_counted_exactly_however_many",),
    ),
    Bug(
        "digests do not know what was read",
        "order/digest.py",
        "return sub_array(hashed, crcs.astype(np.uint64))",
        "return hashed",
        ("tests/order/test_digest.py::test_delivered_digest_adds_up_over_any_ranks",),
    ),
    Bug(
        "a seek keeps what was made ahead",
        "run/prefetch.py",
        "if self._ready or (self._pending and self._pending[0][0].start != step):",
        "if False:",
        ("tests/run/test_uses.py::test_any_sequence_of_uses",),
    ),
    Bug(
        "a worker process makes the step beside",
        "workers/main.py",
        "made = self._made(range(task.step, task.step + task.steps))",
        "made = self._made(range(task.step ^ 1, (task.step ^ 1) + task.steps))",
        ("tests/run/test_processes.py::test_whatever_is_asked_for_is_what_one_thread_makes",),
    ),
    Bug(
        "of a list the first sample is saved",
        "order/quarantine.py",
        "for ordinal, key in self.samples],",
        "for ordinal, key in self.samples[:1]],",
        ("tests/order/test_quarantine.py::test_a_saved_plan_comes_back_with_its_quarantine",),
    ),
    Bug(
        "small shares of turns become nothing",
        "order/interleave.py",
        "-(-share * room // total)",
        "share * room // total",
        ("tests/order/test_buckets.py::test_shares_are_the_sizes_or_the_nearest_65536th_above",),
    ),
    Bug(
        "groups are not reversed",
        "order/assign.py",
        "<< (bits - 1 - bit)",
        "<< bit",
        ("tests/order/test_assign.py::test_canonical_order_is_the_reference",),
    ),
    Bug(
        "quarantined from the start",
        "order/quarantine.py",
        "(since[at] <= step)",
        "(since[at] >= 0)",
        (
            "tests/order/test_quarantine.py::test_any_lists_and_growths_hold_back_their_samples",
            "tests/order/test_quarantine.py::test_quarantined_slots_hold_their_substitutes",
        ),
    ),
    Bug(
        "pieces begin where the sequences before them end",
        "order/pack_table.py",
        "at=ends - length - np.repeat(begun, count)",
        "at=ends - length",
        (
            "tests/order/test_pack.py::test_every_token_is_in_one_place",
            "tests/run/test_pack.py::test_any_documents_come_back",
            "tests/run/test_pack_beside.py::test_any_values_lie_beside_their_tokens",
        ),
    ),
    Bug(
        "what lies beside tokens is padded as they are",
        "run/pieces.py",
        "np.full(length, fill, ",
        "np.full(length, packing.pad_id, ",
        ("tests/run/test_pack_beside.py::test_any_values_lie_beside_their_tokens",),
    ),
    Bug(
        "new samples first",
        "order/growth.py",
        "return j * self.delta // max(1, total)",
        "return np.minimum(j, self.delta)",
        (
            "tests/order/test_grow.py::test_a_stream_is_the_one_written_out",
            "tests/order/test_grow.py::test_old_and_new_end_together_and_in_proportion",
            "tests/order/test_grow_buckets.py::test_batches_are_the_reference",
        ),
    ),
    Bug(
        "an epoch without its last steps",
        "order/boundary.py",
        "return -(-n // batch)",
        "return max(1, n // batch)",
        (
            "tests/order/test_boundary.py::test_batches_are_the_reference",
            "tests/order/test_boundary.py::test_every_epoch_is_whole_batches",
        ),
    ),
    Bug(
        "a source is due when it was last due",
        "order/mixture.py",
        "heappush(ready, (((counts[k] + 1) << 64) // quotas[k], k))",
        "heappush(ready, ((counts[k] + 1) << 64, k))",
        (
            "tests/order/test_buckets.py::test_every_prefix_of_turns_is_within_one_of_the_sizes_shares",
            "tests/order/test_mixture.py::test_every_prefix_is_within_one_of_exact",
            "tests/order/test_mixture.py::test_table_is_the_reference",
        ),
    ),
    Bug(
        "values are taken from rows that nobody filled",
        "run/columns.py",
        "in_row = in_row or self._moved(field, slot, value)",
        "in_row = True",
        (
            "tests/run/test_collate.py::test_equal_arrays_are_stacked_in_both_frameworks",
            "tests/run/test_collate.py::test_whatever_lies_in_rows_the_batch_is_the_same",
            "tests/run/test_rows.py::test_every_way_of_reading_makes_the_same_batches",
        ),
    ),
    Bug(
        "places in the order of the index",
        "dataset/lookup.py",
        "found[order] = in_order",
        "found[:] = in_order",
        (
            "tests/run/test_buckets.py::test_every_runtime_delivers_the_same_global_batches",
            "tests/run/test_same_batches.py::test_every_runtime_delivers_the_same_global_batches",
            "tests/run/test_substitution.py::test_any_corrupt_samples_at_any_runtime",
        ),
    ),
    Bug(
        "a run goes on a step late",
        "order/state.py",
        "    return step\n\n\ndef _well_formed",
        "    return step + 1\n\n\ndef _well_formed",
        (
            "tests/order/test_pack.py::test_ranks_resumes_and_json_give_the_same_sequences",
            "tests/run/test_pack.py::test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run",
            "tests/run/test_resume.py::test_any_stops_and_resumes",
        ),
    ),
    Bug(
        "a document of one sequence's length fills none",
        "order/pack_table.py",
        "filled = tokens // length  # sequences",
        "filled = tokens // (length + 1)  # sequences",
        (
            "tests/order/test_pack.py::test_small_blocks_are_independent_and_the_reference",
            "tests/order/test_pack.py::test_the_table_is_the_reference",
        ),
    ),
    Bug(
        "a position is taken a step late",
        "order/mixture.py",
        "return segment.start_step + p // global_batch",
        "return segment.start_step + -(-p // global_batch)",
        (
            "tests/order/test_facts.py::test_exhaustion_is_the_step_that_a_count_finds",
            "tests/order/test_grow.py::test_exhaustion_is_the_step_that_a_count_finds",
            "tests/order/test_ramp.py::test_what_is_told_is_what_a_count_finds",
        ),
    ),
    Bug(
        "keys of fields in another order",
        "order/keys.py",
        "hash_fields(seed, source, purpose, epoch, *ids)",
        "hash_fields(seed, source, epoch, purpose, *ids)",
        (
            "tests/order/test_bucket_ramps.py::test_batches_are_the_reference",
            "tests/order/test_buckets.py::test_batches_are_the_reference",
            "tests/order/test_lanes.py::test_every_shape_is_the_reference",
            "tests/order/test_permutation.py::test_key_is_the_reference",
            "tests/order/test_plan.py::test_batches_are_the_reference",
            "tests/order/test_ramp.py::test_ramps_and_schedules_together_are_the_reference",
            "tests/order/test_substitute.py::test_a_substitute_is_the_formula_and_another_sample",
        ),
    ),
    Bug(
        "numbers are mixed by another shift",
        "order/keys.py",
        "    z ^= z >> 27\n",
        "    z ^= z >> 26\n",
        (
            "tests/order/test_permutation.py::test_mixing_is_the_reference_for_numbers_and_arrays",
            "tests/order/test_permutation.py::test_perm_is_the_reference",
            "tests/order/test_permutation.py::test_perm_takes_a_key_per_element",
        ),
    ),
    Bug(
        "a rank begins where equal parts would",
        "order/assign.py",
        "slice(rank * global_batch // world_size,",
        "slice(rank * (global_batch // world_size),",
        (
            "tests/order/test_assign.py::test_ranks_parts_make_the_batch_in_order",
            "tests/order/test_boundary.py::test_ranks_resumes_and_json_give_the_same_batches",
            "tests/order/test_bucket_ramps.py::test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run",
            "tests/order/test_buckets.py::test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run",
            "tests/order/test_buckets.py::test_every_world_sizes_ranks_are_the_batch_and_of_one_bucket",
            "tests/order/test_grow.py::test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run",
            "tests/order/test_grow_buckets.py::test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run",
            "tests/order/test_state.py::test_any_stops_resumes_and_world_sizes_give_the_uninterrupted_run",
        ),
    ),
    Bug(
        "a begun cycle is not counted",
        "order/mixture.py",
        "begun = np.bincount(table[:rest], minlength=len(quotas))",
        "begun = np.zeros(len(quotas), np.int64)",
        (
            "tests/order/test_bucket_ramps.py::test_a_change_at_a_step_leaves_the_prefix_alone",
            "tests/order/test_bucket_ramps.py::test_nothing_repeats_and_every_epoch_is_whole",
            "tests/order/test_grow_buckets.py::test_every_epoch_of_every_bucket_is_whole_and_new_samples_come_once",
            "tests/order/test_mixture.py::test_a_schedule_repeats_nothing_and_leaves_no_gap",
            "tests/order/test_mixture.py::test_streams_over_segments_are_the_reference",
            "tests/order/test_ramp.py::test_nothing_repeats_and_nothing_is_left_out",
        ),
    ),
    Bug(
        "a permutation that finds the wrong column",
        "order/permutation.py",
        "found = np.argmax(hashes == wanted[:, None], axis=1)",
        "found = np.argmin(hashes == wanted[:, None], axis=1)",
        (
            "tests/order/test_buckets.py::test_every_epoch_of_every_bucket_is_every_sample_once",
            "tests/order/test_grow.py::test_every_epoch_is_whole_and_new_samples_come_once",
            "tests/order/test_lanes.py::test_every_shape_is_a_bijection",
        ),
    ),
]

STORAGE = [
    *in_files(
        "storage",
        (
            "pieces of a large object are of whatever object is there",
            "object_reads.py",
            "return self.fill(key, offset, view, etag)",
            "return self.fill(key, offset, view)",
            "test_files.py::test_a_large_object_is_all_of_one",
        ),
        (
            "a piece lies a byte before its place",
            "object_reads.py",
            "with memory[offset:stop] as part:",
            "with memory[offset - 1 : stop - 1] as part:",
            "test_files.py::test_a_large_object_is_asked_for_once",
        ),
        (
            "the last, short piece is not read",
            "object_reads.py",
            "range(len(beginning), nbytes, most)",
            "range(len(beginning), nbytes - nbytes % most, most)",
            "test_files.py::test_a_large_object_is_asked_for_once",
        ),
        (
            "what broke off is asked for from its beginning, and written behind",
            "object_reads.py",
            "                at = offset + done\n",
            "                at = offset\n",
            "test_files.py::test_a_fault_at_any_piece_is_cured[s3-direct-1-reset]",
        ),
        (
            "what broke off is taken up of whatever object is there",
            "object_reads.py",
            "key, path, at, end - at, found, stop - end)",
            "key, path, at, end - at, etag, stop - end)",
            "test_files.py::test_what_broke_is_not_taken_up_of_another_object",
        ),
        (
            "a piece's error is swallowed",
            "object_reads.py",
            "one.result()",
            "one.exception()",
            "test_files.py::test_a_large_object_that_cannot_be_read_says_so",
        ),
        (
            "an answer that ends early fills its memory",
            "object_reads.py",
            "self._whole(key, done, len(view))\n            return",
            "return",
            "test_files.py::test_a_broken_answer_is_taken_up_where_it_broke",
        ),
        (
            "a range's length is not compared",
            "object_reads.py",
            "self._whole(key, len(data), nbytes)\n",
            "pass\n",
            "test_faults.py::test_a_read_is_tried_again",
        ),
        (
            "an answer may be longer than was asked for",
            "answers.py",
            "if len(piece) > len(view):",
            "if False:",
            "test_files.py::test_an_answer_with_more_than_was_asked_for_is_tried_again",
        ),
        (
            "an object that ends early is read again and again",
            "object_reads.py",
            "if answer.size < offset + nbytes:",
            "if False:",
            "test_files.py::test_an_object_that_ends_early_is_corrupt_at_once",
        ),
        (
            "what came with the head is lost",
            "wire.py",
            "= end + 4, come, self.nbytes, lasts",
            "= end + 4, end + 4, self.nbytes, lasts",
            "test_direct.py::test_a_body_is_what_was_sent_however_it_comes",
        ),
        (
            "a connection is asked again before its answer was read",
            "wire.py",
            "if self._left or self._keep is None:",
            "if self._keep is None:",
            "test_direct.py::test_a_body_is_what_was_sent_however_it_comes",
        ),
        (
            "a connection that the server closes is asked again",
            "wire.py",
            'and not (b"lose" in head and _CLOSES.search(head))',
            "",
            "test_direct.py::test_a_server_that_closes_is_not_asked_again_there",
        ),
        (
            "more than was asked for is what was asked for",
            "wire.py",
            "if self.nbytes > int(last) + 1 - self.first or come - end - 4 > self.nbytes:",
            "if False:",
            "test_direct.py::test_more_than_was_asked_for_is_tried_again",
        ),
        (
            "a head may take for ever",
            "wire.py",
            "if come and time.monotonic() > until:",
            "if False:",
            "test_direct.py::test_a_server_that_is_slower_than_it_may_be",
        ),
        (
            "another range is taken for the one that was asked for",
            "direct.py",
            "and wire.first == start and",
            "and",
            "test_direct.py::test_another_answer_is_not_taken_for_the_range",
        ),
        (
            "a connection that was closed while it was idle costs a try",
            "direct.py",
            "if not error.at_once:",
            "if True:",
            "test_direct.py::test_a_connection_that_was_closed_while_it_was_idle_costs_no_try",
        ),
        (
            "who is always refused is asked for ever",
            "direct.py",
            "if self._refusals >= REFUSALS:",
            "if False:",
            "test_direct.py::test_who_is_always_refused_is_not_asked_for_a_minute",
        ),
        (
            "refusals add up over answers",
            "direct.py",
            "self._refusals, wire.etag = 0, quoted(wire.etag)",
            "wire.etag = quoted(wire.etag)",
            "test_direct.py::test_refusals_that_are_not_in_a_row_are_by_the_way",
        ),
        (
            "addresses of former credentials are used on",
            "direct.py",
            "self._signed.clear()  # of",
            "pass  # of",
            "test_direct.py::test_credentials_that_were_replaced_sign_anew",
        ),
        (
            "a proxy is passed by",
            "direct.py",
            "if not host or _is_proxied(address.scheme, address.netloc):",
            "if not host:",
            "test_direct.py::test_behind_a_proxy_obstore_asks",
        ),
        (
            "each of many objects is read ahead",
            "in_order.py",
            "if not self._whole and len(_readers) <= MANY:",
            "if True:",
            "test_direct.py::test_one_of_many_is_one_answer_that_is_read_as_it_comes",
        ),
        (
            "what is read as it comes is of whatever object is there",
            "in_order.py",
            "fill(self._key, at, view, etag, self._following)",
            "fill(self._key, at, view, None, self._following)",
            "test_direct.py::test_one_of_many_that_is_replaced_is_changed",
        ),
        (
            "what an answer says is looked at when others have its connection",
            "object_reads.py",
            "            etag, nbytes = answer.etag, answer.size  # what is read to its end may be asked by others\n"
            "            data = answer.all()\n",
            "            data = answer.all()\n            etag, nbytes = answer.etag, answer.size\n",
            "test_direct.py::test_what_was_read_is_not_what_the_next_one_reads",
        ),
        (
            "a refusal is looked at when others have its connection",
            "direct.py",
            "        wire.leave()  # others may ask it from here on\n        _raise_meant(status, text)\n",
            "        wire.leave()\n        _raise_meant(wire.status, wire.text)\n",
            "test_direct.py::test_a_refusal_is_not_what_the_next_one_is_told",
        ),
        (
            "an answer that ended is followed",
            "answers.py",
            "        if at < self._end:",
            "        if isinstance(answer, Wire) and answer.left:",
            "test_direct.py::test_an_answer_that_ended_is_not_followed",
        ),
        (
            "what came before a stall is thrown away",
            "wire.py",
            "                yield count\n                if view and time",
            "                if view and time.monotonic() > until:\n                    raise TimeoutError\n"
            "                yield count\n                if view and time",
            "test_direct.py::test_what_came_before_a_stall_is_kept",
        ),
        (
            "what a server says unasked is an answer",
            "wire.py",
            "return not look.poll(0)",
            "return True",
            "test_direct.py::test_what_a_server_says_unasked_is_seen",
        ),
        (
            "an idle connection is asked again without a look",
            "direct.py",
            "((idle_s < LOOKED_AT_S and not look) or wire.is_quiet())",
            "True",
            "test_direct.py::test_what_was_said_meanwhile_is_no_answer",
        ),
        (
            "what nobody takes stays open",
            "direct.py",
            "            while self._idle[0].idle_since + IDLE_S < wire.idle_since:\n",
            "            while False:\n",
            "test_direct.py::test_what_nobody_takes_is_closed",
        ),
        (
            "another ETag than the source's is believed",
            "twins.py",
            "if found in (None, etag):",
            "if True:",
            "test_twins.py::test_bytes_that_broke_on_the_way_are_put_again",
        ),
        (
            "an ETag that is no MD5 vouches",
            "twins.py",
            "and is_md5(etag) and",
            "and",
            "test_twins.py::test_what_is_no_md5_vouches_for_nothing",
        ),
        (
            "a refused payload is not signed",
            "twins.py",
            "if type(error) not in (StoreError, Forbidden):",
            "if True:",
            "test_twins.py::test_a_policy_that_wants_signed_payloads_gets_them",
        ),
        (
            "a head is acknowledged with what is sent next",
            "wire.py",
            "            if self._quickack is not None:\n",
            "            if False:\n",
            "test_direct.py::test_what_comes_is_acknowledged_at_once",
        ),
        (
            "what is sent while it comes is created over what is there",
            "direct.py",
            'condition = "If-None-Match: *\\r\\n" if create else ""',
            'condition = ""',
            "test_sending.py::test_an_object_of_somebody_else_stays",
        ),
        (
            "what is sent while it comes has no checksum",
            "s3.py",
            '"sse_bucket_key_enabled", "checksum_algorithm"),',
            '"sse_bucket_key_enabled"),',
            "test_sending.py::test_what_an_address_does_not_say_is_put_as_ever",
        ),
        (
            "another ETag of what was sent is believed",
            "twins.py",
            "        if found != etag:\n",
            "        if False:\n",
            "test_sending.py::test_another_etag_says_that_it_is_to_be_put_again",
        ),
        (
            "a store that takes nothing that is sent so is asked for ever",
            "twins.py",
            "            self._sends = False\n",
            "            pass\n",
            "test_sending.py::test_a_store_that_refuses_is_not_asked_again",
        ),
        (
            "a place among what is in flight is kept for ever",
            "sending.py",
            "            ended(throttled)\n",
            "            pass\n",
            "test_sending.py::test_it_has_its_place_among_what_is_in_flight",
        ),
        (
            "an object that was empty is empty",
            "object_reads.py",
            "            if info.nbytes:\n",
            "            if False:\n",
            "test_files.py::test_an_empty_object_that_is_filled_meanwhile_is_read",
        ),
        (
            "answers of two objects are put together",
            "object_reads.py",
            "            self._pinned(key, blob.etag, found)  #",
            "            pass  #",
            "test_faults.py::test_another_etag_is_changed",
        ),
        (
            "after an error the rest is read all the same",
            "object_reads.py",
            "        for one in rest:\n            one.cancel()\n        raise",
            "        raise",
            "test_files.py::test_after_an_error_no_more_is_read",
        ),
        (
            "a large object is in memory twice",
            "object_reads.py",
            "    memory.release()\n",
            "",
            "test_files.py::test_a_large_object_is_in_memory_once",
        ),
        (
            "an error keeps the connection open",
            "object_reads.py",
            "            del answer  #",
            "            pass  #",
            "test_files.py::test_who_holds_the_error_holds_no_connection",
        ),
        (
            "of a write that was cut short the rest is lost",
            "disk_errors.py",
            "data = data[os.write(descriptor, data) :]",
            "os.write(descriptor, data)\n        break",
            "test_files.py::test_a_disk_that_takes_less_at_once_gets_all",
        ),
        (
            "a create that is repeated is not made durable",
            "local.py",
            "fsync_directory(os.path.dirname(target))",
            "pass",
            "test_local.py::test_a_name_that_was_not_made_durable_is_when_the_create_is_repeated",
        ),
        (
            "a file that could not be written stays",
            "files.py",
            "            os.unlink(temporary)",
            "            pass",
            "test_files.py::test_a_disk_that_is_full_is_said_and_nothing_is_left",
        ),
        (
            "half a file takes the place of what was there",
            "files.py",
            '            os.close(descriptor)\n        with _disk("write", target):\n            os.replace',
            "            os.close(descriptor)\n            os.replace",
            "test_files.py::test_an_object_replaced_at_any_piece_is_changed_and_no_file_is_left",
        ),
        (
            "the beginning of each piece is hashed",
            "files.py",
            "seen(piece.toreadonly())",
            "seen(piece[: 2**15].toreadonly())",
            "test_files.py::test_a_fault_at_any_piece_is_cured",
        ),
        (
            "the file stays open",
            "files.py",
            "os.close(descriptor)",
            "pass",
            "test_files.py::test_no_file_and_no_thread_stays_open",
        ),
        (
            "threads stay where reading failed",
            "files.py",
            "        pieces.close()\n",
            "",
            "test_files.py::test_no_file_and_no_thread_stays_open",
        ),
        (
            "what a listing said is asked for again",
            "files.py",
            "Pieces(store, key, info)",
            "Pieces(store, key)",
            "test_files.py::test_what_a_listing_said_saves_a_request_and_is_held_to",
        ),
        (
            "memory is filled again while it is looked at",
            "stream.py",
            "        self._given = piece\n",
            "        self._given = piece\n        self._spare.append(cast(bytearray, piece.obj))\n",
            "test_files.py::test_memory_is_not_filled_again_while_it_is_looked_at",
        ),
        (
            "pieces are of whatever object is there",
            "stream.py",
            "view, self.info.etag)",
            "view, None)",
            "test_files.py::test_an_object_replaced_at_any_piece_is_changed_and_no_file_is_left",
        ),
        (
            "a piece that failed is left out",
            "stream.py",
            "self._asked = offset  #",
            "pass  #",
            "test_files.py::test_a_piece_that_failed_can_be_asked_for_again",
        ),
        (
            "the piece that was asked for last comes first",
            "stream.py",
            "self._coming.popleft()",
            "self._coming.pop()",
            "test_files.py::test_a_fault_at_any_piece_is_cured",
        ),
        (
            "pieces stay small",
            "stream.py",
            "min(self._size * 2, MAX_BYTES)",
            "self._size",
            "test_files.py::test_memory_and_requests_do_not_grow_beyond_the_pieces",
        ),
        (
            "all that is left is read ahead",
            "stream.py",
            "while len(self._coming) <= AHEAD and ",
            "while ",
            "test_files.py::test_memory_and_requests_do_not_grow_beyond_the_pieces",
        ),
        (
            "a name with its provider's prefix is no secret",
            "spec.py",
            "lowered = lowered.removeprefix(prefix)",
            "pass",
            "test_pickle_secrets.py::test_a_name_and_its_prefixed_form_are_as_secret",
        ),
        (
            "a page that was seen before is progress",
            "object_listing.py",
            'max(meta["path"] for meta in page)) <= seen:',
            'max(meta["path"] for meta in page)) < "":',
            "test_faults.py::test_a_listing_ends_where_a_page_always_fails",
        ),
        (
            "an address that is none reaches the client",
            "options.py",
            "if found is None or int(found.group(1) or 0) > 65_535:",
            "if False:",
            "test_options.py::test_what_is_no_address_is_refused_by_its_option",
        ),
        (
            "one key of many that may not be deleted is any error",
            "object_errors.py",
            "code in _CREDENTIAL_CODES | _DENIED_CODES",
            "code in _CREDENTIAL_CODES",
            "test_faults.py::test_one_key_of_many_that_may_not_be_deleted",
        ),
        tests="tests/storage",
    ),
    Bug(
        "the hash of what is copied is not compared",
        "penstock/migrate/items.py",
        "(in_words(item.digest), in_words(digest)),",
        '("", in_words(digest)),',
        ("tests/penstock/test_migrate.py::test_what_changes_under_it_is_named_and_the_rest_goes_on",),
    ),
    Bug(
        "what was copied is compared by another hash",
        "penstock/migrate/transfer.py",
        'Digest(item.digest or (item.was if proves(item.was) else ""), self._hash)',
        "Digest(item.digest, self._hash)",
        ("tests/penstock/test_migrate_hash.py::test_what_was_copied_with_sha256_is_compared_by_that",),
    ),
    Bug(
        "two objects of one CRC-32C are taken for the same",
        "penstock/migrate/transfer.py",
        "if digest == item.was and proves(digest):",
        "if digest == item.was:",
        ("tests/penstock/test_migrate_hash.py::test_an_equal_crc32c_proves_nothing",),
    ),
    Bug(
        "a large object of the same size is taken for a copy",
        "penstock/migrate/transfer.py",
        "elif there != nbytes or not self._has(item.path, file):",
        "elif there != nbytes:",
        (
            "tests/penstock/test_migrate_prefix.py::"
            "test_a_large_object_of_the_same_size_is_read_before_it_is_taken_for_a_copy",
        ),
    ),
    Bug(
        "a manifest that lies there is taken for the right one",
        "penstock/migrate/transfer.py",
        "return len(data) if str(digest) == item.digest else None",
        "return len(data)",
        ("tests/penstock/test_migrate.py::test_a_manifest_that_lies_there_is_held_against_its_hash",),
    ),
    Bug(
        "what is sent on is looked at when it is there",
        "penstock/migrate/send_on.py",
        "                if at == nbytes:\n",
        "                if at > nbytes:\n",
        ("tests/penstock/test_migrate_as_it_comes.py::test_what_is_not_what_it_should_be_does_not_arrive",),
    ),
    Bug(
        "what broke on the way stays",
        "penstock/migrate/send_on.py",
        "is_there = self._is_what_came(item.path, digest)",
        "is_there = True",
        ("tests/penstock/test_migrate_as_it_comes.py::test_what_broke_on_the_way_is_put_again",),
    ),
    Bug(
        "what can be no object is left out without a word",
        "penstock/migrate/prefix.py",
        "report.failures.update(left_out(source))",
        "pass",
        ("tests/penstock/test_migrate_prefix.py::test_what_is_in_no_listing_is_named",),
    ),
    Bug(
        "objects whose two MD5s differ arrived",
        "penstock/migrate/verify_prefix.py",
        "(full or (etags_tell and _differ(sides)))",
        "full",
        ("tests/penstock/test_migrate_prefix.py::test_verify_reads_where_two_md5s_differ",),
    ),
    Bug(
        "pieces of what is copied are of whatever object is there",
        "penstock/migrate/transfer.py",
        "item.path, at, pieces[asked], etag)",
        "item.path, at, pieces[asked], None)",
        ("tests/penstock/test_transfer.py::test_a_large_object_that_is_replaced_while_it_is_read_is_named",),
    ),
    Bug(
        "pieces are hashed before they are there",
        "penstock/migrate/transfer.py",
        "coming.popleft().result()",
        "coming.popleft()",
        ("tests/penstock/test_transfer.py::test_a_large_object_is_hashed_as_it_is",),
    ),
    Bug(
        "weights that were fetched are not compared",
        "assets/featurizers/models/weights.py",
        "        _check_sum(url, sha256, _joined(sums, single))\n        yield Path",
        "        yield Path",
        (
            "tests/assets/featurizers/models/test_weights.py::test_weights_behind_a_url_are_fetched_and_verified",
        ),
    ),
]

LOST = [
    *in_files(
        "dataset",
        (
            "an entry's checksum is not compared",
            "entries.py",
            'if checksum != "" and checksum != checksum_of(value):',
            "if False:",
            "test_log_damage.py::test_an_entry_that_was_damaged_where_it_lies_is_named_by_itself",
        ),
        (
            "the newest entry of an earlier release is read once",
            "tail.py",
            "yield last if last.checksum else _the_same_again(store, last)",
            "yield last",
            "test_log_damage.py::test_a_flip_in_the_newest_entry_of_an_earlier_release_is_not_sealed",
        ),
        (
            "a hint is believed by its own checksum",
            "hints.py",
            "if state.n == n and _vouched(store, n, checksum):",
            "if state.n == n:",
            "test_log_damage.py::test_a_forged_hint_is_not_believed",
        ),
        (
            "a version has any id",
            "fold.py",
            'if record.id != f"v-{record.sha256}":',
            "if False:",
            "test_log.py::test_a_version_has_the_id_of_its_manifest",
        ),
        (
            "a commit and its manifest are not compared",
            "publish.py",
            "for what in differences(record, manifest):",
            "for what in ():",
            "test_log_damage.py::test_a_commit_that_is_not_of_its_manifest_is_not_opened",
        ),
        (
            "the place of a missing entry is taken",
            "append.py",
            "if lost == absent == 0:",
            "if False:",
            "test_log_append.py::test_the_place_of_a_missing_entry_is_listed_before_it_is_taken",
        ),
        (
            "a missing entry is the end of the log",
            "log.py",
            "if state.n < found.last or is_local(self._store):",
            "if False:",
            "test_log_append.py::test_nothing_is_appended_in_the_place_of_a_missing_entry",
        ),
        (
            "an entry that comes meanwhile is a missing one",
            "tail.py",
            "if _get(store, first) is None:",
            "if True:",
            "test_log_append.py::test_entries_of_others_behind_ours_are_no_gap",
        ),
        tests="tests/dataset",
    ),
    Bug(
        "a damaged repair record is believed",
        "dataset/repair.py",
        "return value if sound and",
        "return value if",
        ("tests/penstock/test_repair.py::test_a_damaged_record_of_a_repair_counts_for_nothing",),
    ),
    Bug(
        "verify reads the log up to a missing entry",
        "penstock/verify_log.py",
        "if lost := list(_lost(store, read, numbers)):",
        "if lost := list(_lost(store, read, set())):",
        ("tests/penstock/test_verify.py::test_missing_entries_wherever_a_read_ends",),
    ),
    Bug(
        "no shard is looked at beside a bad table",
        "penstock/verify.py",
        'shards = [row for row in rows.take(chosen).to_pylist() if row["path"] not in seen]',
        'shards = [row for row in rows.take(chosen).to_pylist() if row["path"] not in seen and not bad]',
        ("tests/penstock/test_verify.py::test_shards_are_looked_at_beside_a_bad_table",),
    ),
]

GATED = [
    *in_files(
        "dataset",
        (
            "a gated transaction is committed without a verdict",
            "decide.py",
            "if known.gated and not body.verdict:",
            "if False:",
            "test_gated.py::test_nothing_of_it_is_published_without",
        ),
        (
            "an entry without a verdict is believed",
            "fold.py",
            'if txn.gated and not _optional_text(e, "verdict"):',
            "if False:",
            "test_gated.py::test_an_entry_that_commits_without_is_no_entry",
        ),
        (
            "a verdict that failed lets pass",
            "gated.py",
            'if record["verdict"] != "published":',
            "if False:",
            "test_gated.py::test_a_verdict_that_failed_lets_nothing_pass",
        ),
        (
            "a verdict is of whatever is published",
            "gated.py",
            'if record["body"].get("publishes") != digest_of(parts, exclude, supersede):',
            "if False:",
            "test_gated.py::test_a_verdict_lets_pass_what_it_is_of",
        ),
        (
            "a verdict holds for ever",
            "gated.py",
            "if is_there(store, later):",
            "if False:",
            "test_gated.py::test_a_verdict_holds_until_the_next",
        ),
        (
            "a verdict is of whatever version is the newest",
            "gated.py",
            '(record["body"].get("against") or [])[:1]',
            "[]",
            "test_gated.py::test_a_verdict_is_of_the_version_that_it_was_made_against",
        ),
        (
            "hints forget the gate",
            "hints.py",
            'if name != "gated" or value}',
            'if name != "gated"}',
            "test_gated.py::test_a_gate_stays_with_its_transaction",
        ),
        (
            "parts that wait go under another transaction's name",
            "runs.py",
            "if not _is_written_by(part):",
            "if False:",
            "test_gated.py::test_parts_under_the_name_of_a_free_transaction",
        ),
        tests="tests/dataset",
    ),
    Bug(
        "what was given up and collected is judged again",
        "assets/version_audit.py",
        "if _is_given_up(root, samples):\n        return True",
        "if False:\n        return True",
        (
            "tests/assets/test_version_gate.py::"
            "test_a_batch_that_was_given_up_while_its_gate_was_broken_holds_nothing_up",
        ),
    ),
    Bug(
        "a verdict stands whatever its record says by now",
        "assets/version_audit.py",
        'same = verdict.body.get("publishes") == digest_of(samples)',
        "same = True",
        ("tests/assets/test_version_gate.py::test_a_record_that_says_something_else_than_the_verdict_is_of",),
    ),
    Bug(
        "a verdict that another release renewed is shown again and again",
        "assets/version_audit.py",
        "or newest.r != verdict.r or",
        "or",
        ("tests/assets/test_version_gate.py::test_a_verdict_that_another_release_renews_meanwhile",),
    ),
    Bug(
        "batches wait for no gate",
        "assets/units.py",
        ", gated=True",
        "",
        (
            "tests/assets/test_bypasses.py::test_parts_are_not_published_by_hand_before_a_gate_has_looked_at_them",
        ),
    ),
    Bug(
        "a failure stops only where its severity is known to be bad",
        "penstock/approve.py",
        'check["severity"] != "warn"',
        'check["severity"] == "error"',
        (
            "tests/assets/test_approve.py::"
            "test_a_failure_of_a_severity_that_nobody_knows_is_among_those_that_stopped_it",
        ),
    ),
    Bug(
        "a stored severity that nobody knows is a warning",
        "assets/checks/outcome.py",
        '"warn" if body["severity"] == "warn" else "error"',
        '"error" if body["severity"] == "error" else "warn"',
        ("tests/assets/test_checks.py::test_a_stored_failure_stops_unless_it_is_known_to_be_a_warning",),
    ),
    Bug(
        "NaN passes every filter",
        "assets/spec.py",
        "if isinstance(value, Real | Decimal) and not math.isfinite(value):",
        "if False:",
        ("tests/assets/test_spec.py::test_what_is_no_finite_number_passes_no_filter",),
    ),
    Bug(
        "last digits are a difference",
        "assets/drift/numbers.py",
        "now, *batches = settled([now, *batches])",
        "pass",
        ("tests/assets/drift/test_findings.py::test_last_digits_are_no_difference",),
    ),
    Bug(
        "few and skewed numbers are taken for normal ones",
        "assets/drift/numbers.py",
        "if abs(moved) / deviation > noise:",
        "if False:",
        (
            "tests/assets/drift/test_findings.py::"
            "test_levels_of_few_or_skewed_numbers_differ_as_seldom_as_is_said",
        ),
    ),
]

GROUPS = in_files(
    "dataset",
    (
        "a group is published over samples that it was not computed for",
        "publish.py",
        "if parent.id != self._began.id:",
        "if False:",
        "test_group.py::test_what_was_excluded_and_is_back_is_not_published_without_its_fields",
    ),
    tests="tests/dataset",
)

VIEWS = in_files(
    "dataset",
    (
        "a view of another name is read",
        "parquet.py",
        "if said is not None and said != path.encode():",
        "if False:",
        "test_view.py::test_two_saved_views_exchanged_are_refused",
    ),
    (
        "a query within an expression is let through",
        "expression.py",
        'asks = word == "SELECT" or (word in _BEGINS_A_QUERY and before[1] == "(")',
        'asks = word == "SELECT"',
        "test_expression.py::test_what_is_refused_says_why",
    ),
    (
        "any function may be called in an expression",
        "expression.py",
        "and before[1] not in _CALLED:",
        'and before[1] == "READ_CSV":',
        "test_expression.py::test_what_is_refused_says_why",
    ),
    (
        "a backslash takes a quote's meaning",
        "expression.py",
        "| (?P<text> '(?:[^']|'')*+' )",
        r"| (?P<text> '(?:[^'\\]|\\.|'')*+' )",
        "test_expression.py::test_values_of_a_row_are_compared",
    ),
    tests="tests/dataset",
)

CACHES = in_files(
    "cache",
    (
        "anybody's folder is a cache",
        "place.py",
        "if not shared:\n        _refuse_others(path)",
        "if False:\n        _refuse_others(path)",
        "test_whose.py::test_somebody_elses_folder_is_refused",
    ),
    (
        "a folder that others write to is a cache",
        "place.py",
        "elif found.st_mode & 0o022:",
        "elif False:",
        "test_whose.py::test_a_folder_that_others_write_to_is_refused",
    ),
    (
        "pages of everybody are believed",
        "pages.py",
        "if self._user not in (None, status.st_uid):",
        "if False:",
        "test_whose.py::test_a_page_that_another_user_made_is_none",
    ),
    (
        "everybody may read pages",
        "place.py",
        "return 0o666 if shared else 0o600",
        "return 0o666",
        "test_whose.py::test_nobody_else_can_look_into_it",
    ),
    tests="tests/cache",
)

LABELS = [
    *in_files(
        "dataset",
        (
            "a column called position says where labels go",
            "annotate.py",
            'places = {"part": matches.position[here], "row": matches.row[here]}',
            'places = {"part": some["position"] if "position" in some.column_names else matches.position[here], '
            '"row": matches.row[here]}',
            "test_annotate.py::test_a_column_of_any_name_is_of_its_samples[position-1]",
        ),
        (
            "whole numbers beside floats are rounded",
            "columns.py",
            "if isinstance(value, int) and held != value:",
            "if False:",
            "test_columns.py::test_an_int_beside_floats_that_a_float_cannot_hold_is_refused",
        ),
        (
            "a client tells what it asked for with its signature",
            "label_rows.py",
            'error.args = (_QUERY.sub("?***", str(error)),)',
            "pass",
            "test_label_rows.py::test_a_signature_is_in_no_message",
        ),
        tests="tests/dataset",
    ),
    Bug(
        "labels are laid on a version without their samples",
        "dataset/relabel.py",
        "parent = still_there(parent, self._parts())",
        "parent = still_there(parent, ())",
        ("tests/dataset/test_annotate.py::test_the_version_with_the_samples_was_retired_meanwhile",),
    ),
    Bug(
        "an annotation may say two things of a sample",
        "penstock/verify_tables.py",
        "elif is_annotation(entry):",
        "elif False:",
        ("tests/penstock/test_verify.py::test_two_rows_of_an_annotation_for_one_sample",),
    ),
]

COLLECTING = in_files(
    "penstock/collect",
    (
        "records of two primaries have one name",
        "swept.py",
        "{self._n + 1:012d}-{digest}.parquet",
        "{self._n + 1:012d}.parquet",
        "test_mirror.py::test_what_either_of_two_primaries_swept_goes",
    ),
    (
        "a sweep goes on where the root was moved",
        "swept.py",
        "check_primary(store, self._root.log.refresh())",
        "pass",
        "test_mirror.py::test_a_root_that_is_moved_while_it_is_swept",
    ),
    (
        "a plan of which bytes were flipped ends every look",
        "plan.py",
        "except (pa.ArrowException, ValueError, KeyError, TypeError)",
        "except (pa.ArrowException, KeyError, TypeError)",
        "test_collect.py::test_a_plan_whose_bytes_were_flipped_begins_every_grace_again",
    ),
    (
        "one object that cannot be deleted ends every sweep",
        "sweep.py",
        "checked = _deleted(root, checked, done)",
        'root.store.delete_many(checked["key"].to_pylist())',
        "test_collect.py::test_what_a_disk_refuses_to_delete_is_told",
    ),
    (
        "the nearest mirror is looked at for its primary",
        "collector.py",
        "root = root.alone",
        "root = root",
        "test_mirror.py::test_of_a_root_with_mirrors_the_primary_alone_is_looked_at",
    ),
    (
        "who lives is silent before he could say so",
        "collector.py",
        "if self.silence_s < least:",
        "if False:",
        "test_collect.py::test_who_is_alive_is_not_silent_before_he_could_say_so",
    ),
    (
        "a look ends at notes that were damaged",
        "notes.py",
        "except DAMAGED as error:",
        "except ValueError as error:",
        "test_collect.py::test_damaged_notes_begin_every_grace_again",
    ),
    (
        "a sweep of one dataset aborts what is another's",
        "collector.py",
        "if options.dataset in (None, state.txns[txn].dataset))",
        "if True)",
        "test_mutants.py::test_every_property_holds_without",
    ),
    (
        "leases are read once for all retirements",
        "retention.py",
        "def chosen(state: State) -> list[VersionRecord]:",
        "leases.read = lambda found=leases.read(): found  # type: ignore\n\n"
        "    def chosen(state: State) -> list[VersionRecord]:",
        "test_retention.py::test_what_is_opened_meanwhile_is_not_retired",
    ),
    (
        "what a killed writer had not finished stays",
        "listing.py",
        "list_in_place(store, prefix)",
        "(info, False) for info in store.list(prefix)",
        "test_collect.py::test_what_a_killed_writer_had_not_finished_goes",
    ),
    (
        "what lies behind a link is listed",
        "listing.py",
        "list_in_place(store, prefix)",
        "(info, False) for info in store.list(prefix)",
        "test_collect.py::test_nothing_behind_a_link_goes",
    ),
    (
        "a link to a file is a file",
        "sort_out.py",
        'fate[batch.column("link").to_numpy(zero_copy_only=False)] = FOREIGN',
        "pass",
        "test_collect.py::test_nothing_behind_a_link_goes",
    ),
    (
        "what was never copied ends every look",
        "lost.py",
        "or record.n <= self._copied",
        "or False",
        "test_mirror.py::test_a_held_version_that_was_retired_before_the_mirror_was_made_ends_no_look",
    ),
    tests="tests/penstock/collect",
) + in_files(
    "dataset",
    (
        "a thread that could not be started renews",
        "renewal.py",
        "thread.start()",
        "self._thread = thread; thread.start()",
        "test_lease.py::test_where_no_thread_could_be_started_the_next_to_open_starts_one",
    ),
    (
        "one root's odd store ends all renewals",
        "renewal.py",
        "self._beat(one)",
        "one.beat()",
        "test_lease.py::test_what_goes_wrong_with_one_root_ends_no_others_renewal",
    ),
    tests="tests/dataset",
)


CHECKPOINTS = [
    Bug(
        "a mirror says which checkpoints there are",
        "storage/mirrored.py",
        "return store.primary if isinstance(store, MirroredStore) else store",
        "return store",
        (
            "tests/penstock/checkpoints/test_mirrors.py::test_a_primary_that_is_down_is_not_a_run_without_checkpoints",
            "tests/penstock/checkpoints/test_mirrors.py::test_a_listing_that_fails_deletes_no_checkpoint",
        ),
    ),
    Bug(
        "checkpoints are deleted by a listing without the newest",
        "penstock/checkpoints/retention.py",
        "if newest.step not in committed:",
        "if False:",
        (
            "tests/penstock/checkpoints/test_files.py::"
            "test_nothing_is_deleted_by_a_listing_without_what_was_just_committed",
        ),
    ),
    Bug(
        "parts are deleted whose marker was not listed",
        "penstock/checkpoints/retention.py",
        "if not is_there(store, marker_key(run, step)):",
        "if True:",
        (
            "tests/penstock/checkpoints/test_files.py::"
            "test_no_checkpoint_loses_its_parts_to_a_listing_without_its_marker",
        ),
    ),
    Bug(
        "a marker that is only listed takes another's place",
        "penstock/checkpoints/retention.py",
        "if is_there(store, marker_key(run, committed[at - 1])):",
        "if True:",
        (
            "tests/penstock/checkpoints/test_files.py::"
            "test_a_marker_that_is_listed_and_not_there_takes_the_place_of_none",
        ),
    ),
    Bug(
        "an entry is copied as it was read",
        "penstock/migrate/compare.py",
        "data = read_twice(source, entry_key(n))",
        "pass",
        ("tests/penstock/test_migrate.py::test_a_bit_that_flips_on_the_way_is_in_no_mirror",),
    ),
    Bug(
        "an entry that arrived is not read back",
        "penstock/migrate/compare.py",
        "if any(target.get(key).data == data for _ in range(2)):",
        "if True:",
        ("tests/penstock/test_migrate.py::test_a_bit_that_flips_on_the_way_is_in_no_mirror",),
    ),
    Bug(
        "what has no digest is not compared",
        "penstock/migrate/compare.py",
        "if item.digest:",
        "if True:",
        ("tests/penstock/test_migrate.py::test_a_bit_that_flips_on_the_way_is_in_no_mirror",),
    ),
    Bug(
        "a damaged mirror becomes the primary",
        "penstock/migrate/promote.py",
        "return not done.failures",
        "return True",
        ("tests/penstock/test_promote.py::test_no_mirror_that_is_damaged_becomes_the_primary",),
    ),
    Bug(
        "a link that is laid meanwhile is followed",
        "storage/disk_in_place.py",
        "if stat.S_ISLNK(",
        "if not stat.S_ISLNK(",
        ("tests/storage/test_local.py::test_nothing_behind_a_link_is_deleted_in_place",),
    ),
    Bug(
        "parts of a checkpoint that a link leads to are deleted",
        "penstock/checkpoints/retention.py",
        "if not link and not is_unfinished(info.key))",
        "if not is_unfinished(info.key) for info in store.list(info.key))",
        ("tests/penstock/checkpoints/test_files.py::test_no_parts_go_that_a_link_leads_to",),
    ),
    Bug(
        "what a listing lacks once nobody else needs",
        "penstock/listed_twice.py",
        "range(2)",
        "range(1)",
        ("tests/penstock/takedown/test_raw.py::test_what_a_listing_lacks_once_is_used_by_others",),
    ),
    Bug(
        "a load that failed goes on reading into the state",
        "penstock/checkpoints/several.py",
        "pool.shutdown(cancel_futures=True)",
        "pool.dismiss()",
        ("tests/penstock/checkpoints/test_state.py::test_a_load_that_failed_fills_nothing_during_the_next",),
    ),
    Bug(
        "whichever store is near says whether its root is a mirror",
        "dataset/marker.py",
        "check_root(self._store.writable())",
        "check_root(self._store)",
        (
            "tests/run/test_mirrors.py::test_with_a_mirror_as_the_nearest_publishing_goes_to_the_primary",
            "tests/run/test_mirrors.py::test_a_mirror_is_not_written_to_because_its_primary_is_nearer",
        ),
    ),
]


MERGES = in_files(
    "dataset",
    (
        "a merge writes beside the run of the publish",
        "compact.py",
        'f"{prefix}-merged"',
        "prefix",
        "test_compact.py::test_keys_stay_in_the_order_of_the_parts[0]",
    ),
    (
        "merged tables stand behind the others",
        "compact.py",
        'return [*files[:at], *merged, *(file for file in files[at:] if file["path"] not in gone)]',
        'return [*(file for file in files if file["path"] not in gone), *merged]',
        "test_compact.py::test_keys_stay_in_the_order_of_the_parts[0]",
    ),
    (
        "a merge out of the order of the parts is published",
        "compact.py",
        "if found != was:",
        "if False:",
        "test_compact.py::test_a_merge_out_of_the_order_of_parts_is_refused",
    ),
    (
        "runs that share a folder are merged",
        "compact.py",
        "nbytes if len(own) < 2 else",
        "nbytes if True else",
        "test_compact.py::test_runs_that_share_a_folder_are_left_alone",
    ),
    (
        "rows are read in the order of the tables",
        "samples.py",
        "return keys[order]",
        "return keys",
        "test_compact.py::test_what_an_earlier_release_put_out_of_order_is_read_in_order",
    ),
    tests="tests/dataset",
)


TAKEDOWNS = [
    Bug(
        "statistics of what a refresh said stay",
        "penstock/takedown/find.py",
        "if is_annotation(entry) and folder not in counted:",
        "if False:",
        ("tests/penstock/takedown/test_takedown.py::test_what_a_refresh_said_is_forgotten_too",),
    ),
    Bug(
        "a raw object goes that another dataset was cut of",
        "penstock/takedown/raw.py",
        "used |= _of_versions(root, dataset, tests, meant)",
        "used |= set()",
        ("tests/penstock/takedown/test_raw.py::test_what_another_dataset_was_cut_of_stays",),
    ),
    Bug(
        "what is newest is retired whatever lies on it",
        "penstock/takedown/steps.py",
        "if moved_on:",
        "if False:",
        ("tests/penstock/takedown/test_under_fire.py::test_everything_of_a_dataset_while_others_publish",),
    ),
    Bug(
        "a takedown redacts to where it did before",
        "penstock/takedown/rewrite.py",
        'self._attempt = f"data/{self._txn}/{secrets.token_hex(8)}"',
        'self._attempt = f"data/{self._txn}/{0:016x}"',
        ("tests/penstock/takedown/test_under_fire.py::test_another_takedown_of_the_same_part_meanwhile",),
    ),
    Bug(
        "names of uploads are Markdown",
        "assets/report.py",
        "return value if isinstance(value, Markdown) else markdown_text(value)",
        "return str(value)",
        ("tests/assets/test_report.py::test_a_cell_is_text",),
    ),
    Bug(
        "a name that is escaped is no name",
        "penstock/takedown/cells.py",
        'if not field.endswith("table_markdown"):',
        "if True:",
        ("tests/penstock/takedown/test_names.py::test_names_in_tables_of_markdown",),
    ),
    Bug(
        "a raw object goes wherever it lies",
        "penstock/takedown/run.py",
        "[uri for uri in ran.uris if uri not in ran.refused]",
        "ran.uris",
        (
            "tests/penstock/takedown/test_raw_below.py::test_only_what_lies_below_a_landing_place_of_the_dataset_goes",
        ),
    ),
    Bug(
        "a raw object goes through a link out of its source",
        "penstock/takedown/sources.py",
        "folder = os.path.realpath(os.path.dirname(path))",
        "folder = os.path.dirname(path)",
        (
            "tests/penstock/takedown/test_raw_below.py::test_only_what_lies_below_a_landing_place_of_the_dataset_goes",
        ),
    ),
    Bug(
        "what is left of an address is looked for anywhere",
        "penstock/takedown/raw.py",
        "found = uri.find(piece, at + 1)",
        "found = uri.find(piece)",
        (
            "tests/penstock/takedown/test_raw.py::test_an_address_that_names_were_taken_out_of_fits_as_written",
        ),
    ),
    *in_files(
        "penstock/takedown",
        (
            "a name is taken out of the midst of another",
            "marks.py",
            r'''_BEFORE, _AFTER = r"(?<![\w\-/%~+@=.])", r"(?![\w\-/%~+@=])"''',
            '_BEFORE, _AFTER = r"", r""',
            "test_names.py::test_names_in_texts",
        ),
        (
            "a part that waits has no names",
            "names.py",
            "for table in waiting_tables(root, dataset):",
            "for table in ():",
            "test_names.py::test_a_sample_that_waits_keeps_what_it_was_cut_of",
        ),
        (
            "what only names a sample is not retired",
            "find.py",
            "return bool(self._parts_of(version)) or self.names_some(version)",
            "return bool(self._parts_of(version))",
            "test_names.py::test_names_that_come_later_go_too",
        ),
        (
            "an annotation that lost a name says nothing",
            "rewrite.py",
            "now = with_removed(redacted, now)",
            "pass",
            "test_names.py::test_what_an_annotation_replaced_does_not_come_back",
        ),
        (
            "pictures of a card are not looked for",
            "scan.py",
            "path.startswith(self._cards)",
            "False",
            "test_derived.py::test_pictures_of_a_card_that_came_late",
        ),
        tests="tests/penstock/takedown",
    ),
]

HOSTILE = [
    Bug(
        "a descriptor that got lost is not missed",
        "workers/wire.py",
        "if told & socket.MSG_CTRUNC:",
        "if False:",
        ("tests/run/test_few_files.py::test_a_descriptor_that_got_lost_is_missed",),
    ),
    Bug(
        "a file that cannot be mapped is not read",
        "storage/mapped.py",
        "            except OSError:\n                self.close()",
        "            except KeyError:\n                self.close()",
        ("tests/run/test_few_files.py::test_few_open_files",),
    ),
    Bug(
        "any size that a worker announces is waited for",
        "resources/compute/worker.py",
        "if nbytes > MAX_BYTES and kind in (READY, VALUE, FAILED):",
        "if False:",
        ("tests/resources/test_compute_answers.py::test_an_announced_size_takes_no_memory",),
    ),
    Bug(
        "what a worker says is unpickled",
        "resources/compute/answers.py",
        "(length,) = _LENGTH.unpack_from(body)",
        "import pickle; pickle.loads(body); (length,) = _LENGTH.unpack_from(body)",
        (
            "tests/resources/test_compute_answers.py::"
            "test_a_worker_that_was_taken_over_makes_its_parent_run_nothing",
        ),
    ),
    Bug(
        "a worker gets the whole environment",
        "resources/compute/environment.py",
        "if _is_for(name, more)",
        "if True",
        ("tests/resources/test_compute_answers.py::test_a_worker_gets_a_short_list_of_variables",),
    ),
    Bug(
        "a worker that knows the variables of another map is used again",
        "resources/compute/pool.py",
        "if one.environment == task.environment",
        "if True",
        ("tests/resources/test_compute_answers.py::test_a_map_names_what_its_workers_need_besides",),
    ),
    Bug(
        "a torch loads whose weights_only can be got past",
        "penstock/checkpoints/reader.py",
        "        check_torch()\n",
        "",
        ("tests/penstock/checkpoints/test_torch_release.py::test_an_older_torch_loads_nothing",),
    ),
    Bug(
        "FFmpeg may open playlists",
        "assets/media/container.py",
        '"format_whitelist": ",".join(DEMUXERS), ',
        "",
        ("tests/assets/media/test_playlists.py::test_a_file_that_names_others_is_no_media",),
    ),
    Bug(
        "a unit is whatever file its worker names",
        "assets/cutting.py",
        "file.parent == scratch and _is_plain(file)",
        "True",
        ("tests/assets/test_foreign_files.py::test_a_unit_is_a_file_that_its_worker_made",),
    ),
]

UPLOADS = [
    Bug(
        "whatever a source raises ends the tick of all",
        "assets/tick.py",
        "    except Exception as error:  # noqa: BLE001 - whatever it is, it is this source's: the others go on",
        "    except PenstockError as error:",
        ("tests/assets/test_tick.py::test_whatever_one_source_raises_is_its_own_failure",),
    ),
    Bug(
        "a notice names what is no text",
        "assets/notices.py",
        "return [_checked(one) for one in _read(parse_json(text), 0)]",
        "return list(_read(parse_json(text), 0))",
        ("tests/assets/test_feeds.py::test_a_notice_that_makes_no_sense_is_set_aside_and_the_others_go_on",),
    ),
    Bug(
        "half a character is text",
        "json_text.py",
        "if not lenient and (",
        "if False and (",
        ("tests/dataset/test_json_text.py::test_what_is_damaged_raises_one_error",),
    ),
    Bug(
        "brackets are of any depth",
        "json_text.py",
        "    _check_depth(value)\n",
        "",
        ("tests/dataset/test_json_text.py::test_what_is_damaged_raises_one_error",),
    ),
    Bug(
        "pages of a table of segments are of any size",
        "assets/media/segment_tables.py",
        "n_bytes += page.nbytes",
        "pass",
        ("tests/assets/test_segments.py::test_a_parquet_file_beyond_the_limits_is_refused_unread",),
    ),
    Bug(
        "a page is as large as the footer says",
        "assets/media/parquet_pages.py",
        "yield Page(nbytes=nbytes, encoding=encoding)",
        "yield Page(nbytes=column.total_uncompressed_size, encoding=encoding)",
        ("tests/assets/test_segments.py::test_a_footer_that_lies_is_not_believed",),
    ),
    Bug(
        "what is said of one object spoils the batch",
        "assets/landing.py",
        "        row |= _facts(origin)\n        row[",
        '        row |= {name: str(origin.get(name, "")) for name in _FACTS}\n        row[',
        (
            "tests/assets/test_landing.py::test_what_is_said_of_one_object_and_makes_no_sense_is_its_own_problem",
        ),
    ),
    Bug(
        "a ledger says any step",
        "assets/quarantine.py",
        "if type(step) is not int or not 0 <= step < 2**63:",
        "if False:",
        ("tests/assets/test_quarantine.py::test_one_line_of_one_ledger_ends_nobodys_run",),
    ),
    Bug(
        "a report has values of any type",
        "api/report.py",
        "if not is_sound(getattr(found, name))",
        "if False",
        ("tests/api/test_report.py::test_a_report_of_other_types_is_none_under_whatever_name",),
    ),
    Bug(
        "runs of another machine have no process",
        "dagster_project/sensors/recovery.py",
        "if not is_server_here(run, here):",
        "if False:",
        ("tests/dagster_project/sensors/test_recovery.py::test_runs_that_may_live_elsewhere_are_left_alone",),
    ),
    Bug(
        "a release that failed twice is given up",
        "dagster_project/sensors/release.py",
        "if failed is None:",
        "if failed is None or attempt > 1:",
        (
            "tests/dagster_project/sensors/test_release.py::test_the_last_batch_is_published_however_often_its_release_failed",
        ),
    ),
]

VERIFIED = [
    Bug(
        "a page is taken for what its hash says",
        "dataset/page_hashes.py",
        "return hashlib.sha256(data).digest() == self.digests[start : start + DIGEST_BYTES]",
        "return True",
        ("tests/dataset/test_verified_store.py::test_it_gives_what_the_store_gives_or_nothing",),
    ),
    Bug(
        "what one mirror gave vouches for another",
        "dataset/verified_store.py",
        "return (etag, *serving) if len(serving) < 2 else None",
        "return (etag,)",
        ("tests/dataset/test_verified_store.py::test_a_mirror_that_has_the_right_bytes_is_asked",),
    ),
    Bug(
        "what was verified vouches for what replaced it",
        "dataset/verified_store.py",
        "return (etag, *serving) if len(serving) < 2 else None",
        'return ("", *serving)',
        ("tests/dataset/test_verified_store.py::test_another_object_is_verified_anew",),
    ),
    Bug(
        "mapped shards are not verified",
        "dataset/shard_read.py",
        "return self.store.is_verified(path, mapped[1], offset, each, mapped[0].array)",
        "return True",
        (
            "tests/dataset/test_verified_store.py::test_a_shard_with_forged_checksums_is_read_by_default_and_refused_by_sha256[disk-None-x.npy]",
        ),
    ),
    Bug(
        "verified pages have the names of others in a node cache",
        "run/node_reads.py",
        'return Content(sha256 if version.verify == "crc32c" else f"{sha256} verified", nbytes)',
        "return Content(sha256, nbytes)",
        (
            "tests/dataset/test_verified_store.py::test_a_shard_with_forged_checksums_is_read_by_default_and_refused_by_sha256[memory-folder-b.bin]",
        ),
    ),
    Bug(
        "row groups of an index are not held against their hashes",
        "dataset/index.py",
        "        if hashes is not None:\n",
        "        if False:\n",
        ("tests/dataset/test_index.py::test_a_damaged_small_index_is_corrupt[False]",),
    ),
    Bug(
        "an index is what its CRC-32C says",
        "dataset/index.py",
        'self._check_sha256("its footer has", footer, self._place.footer_sha256, "the shards table")',
        'self._check("the footer\'s ", crc32c(footer), self._place.footer_crc32c)',
        (
            "tests/dataset/test_index.py::test_an_index_of_other_rows_with_the_checksums_of_the_first_is_corrupt",
        ),
    ),
]

MEDIA = [
    *in_files(
        "modalities",
        (
            "links of a chain are laid over one another",
            "sound_end.py",
            "return Ends(restarts=True)",
            "return Ends()",
            "sounds/test_chained.py::test_every_link_is_heard_behind_the_one_before[libopus]",
        ),
        (
            "sound is held until its end",
            "heard.py",
            "if self._n_held >= BLOCK_SAMPLES + n_kept:",
            "if False:",
            "sounds/test_bounded_memory.py::test_memory_does_not_grow_with_the_sound",
        ),
        tests="tests/assets/media",
    ),
    *in_files(
        "assets/media/cut_audit",
        (
            "timestamps that jitter are believed",
            "sounds.py",
            "if unusable.code == findings.CHANNEL_LOST or not source.is_uneven:",
            "if True:",
            "test_uneven_sounds.py::test_uneven_timestamps_pass[a jitter of 8 ms]",
        ),
        (
            "where timestamps jitter any sound passes",
            "uneven_sounds.py",
            "found.max() >= HEARD_SHARE * n_pieces",
            "True",
            "test_uneven_sounds.py::test_wrong_sound_of_uneven_timestamps_is_found",
        ),
        (
            "quiet channels make a silent mix",
            "sounds.py",
            "if level < QUIET_RMS and level < SILENT_SHARE * levels.max():",
            "if level < QUIET_RMS:",
            "test_sounds.py::test_sound_that_is_quiet_in_the_mix_alone_passes",
        ),
        (
            "colours are averaged before they are clipped",
            "clips.py",
            "for size_px in (None, (width, height))]",
            "for size_px in (None,)]",
            "test_beyond_white.py::test_they_pass",
        ),
        tests="tests/assets/media/cut_audit",
    ),
    *in_files(
        "assets/media",
        (
            "every object may take as long as any other",
            "decode_time.py",
            "wanted_s = base_s + self.pixels / PIXELS_PER_S + self.values / VALUES_PER_S",
            "wanted_s = base_s",
            "test_time_limits.py::test_an_audit_is_given_the_time_that_its_sound_asks_for",
        ),
        (
            "a header decides how long a worker is taken",
            "decode_time.py",
            "return min(wanted_s, max(base_s, ceiling_s))",
            "return wanted_s",
            "test_time_limits.py::test_a_limit_is_the_base_and_what_there_is_to_decode_up_to_the_ceiling",
        ),
        tests="tests/assets",
    ),
]

AREAS = {
    "Worker processes": WORKERS,
    "Reading ahead": AHEAD,
    "Starts": STARTS,
    "Assembly": ASSEMBLY,
    "Large objects": STORAGE,
    "Property tests": PROPERTIES,
    "A damaged root": LOST,
    "Gates": GATED,
    "Groups": GROUPS,
    "Views": VIEWS,
    "Node caches": CACHES,
    "Labels": LABELS,
    "Collecting": COLLECTING,
    "Checkpoints and mirrors": CHECKPOINTS,
    "Merged tables": MERGES,
    "Takedowns": TAKEDOWNS,
    "Uploads, notices, reports": UPLOADS,
    "Hashes": VERIFIED,
    "Hostile bytes": HOSTILE,
    "Media": MEDIA,
}
BUGS = [bug for bugs in AREAS.values() for bug in bugs]


def named(line: str) -> str:
    """The test that pytest's line of a failure is about, without its parameters."""
    return line.removeprefix("FAILED ").partition(" - ")[0].partition("[")[0].rpartition("tests/")[2]


@pytest.fixture
def run(tmp_path: Path):
    """run(tests) over a copy of the packages, in `copy`: its exit status and what it printed."""
    copy = tmp_path / "copy"
    for package in ("loader", "penstock", "assets", "resources", "dagster_project"):
        shutil.copytree(REPOSITORY / package, copy / package, ignore=shutil.ignore_patterns("*.pyc.*"))

    def go(*tests: str) -> "subprocess.CompletedProcess[str]":
        # Nobody reads why: where CI is set, pytest compares line by line what differs, a batch for minutes.
        command = [
            "-P",
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "--tb=line",
            "--assert=plain",
        ]
        options = ["-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(REPOSITORY)]
        places = [f"--hypothesis-profile={UNSHRUNK}", f"--basetemp={tmp_path / 'temp'}"]
        return subprocess.run(
            [sys.executable, *command, *options, *places, *(str(REPOSITORY / test) for test in tests)],
            cwd=copy,  # where a process of a test's own finds the package first
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(copy), str(REPOSITORY)])},
            capture_output=True,
            text=True,
            timeout=900 if len(tests) > 20 else 300,  # all of them, or those of one bug
        )

    go.copy = copy
    return go


@pytest.mark.parametrize("bug", BUGS, ids=[bug.what.replace(" ", "-") for bug in BUGS])
def test_a_bug_can_be_planted(bug: Bug) -> None:
    text = (REPOSITORY / path_of(bug.file)).read_text()
    assert text.count(bug.was) == 1, f"{bug.file} does not hold this once: {bug.was}"


@pytest.mark.mutants
@pytest.mark.parametrize("bug", BUGS, ids=[bug.what.replace(" ", "-") for bug in BUGS])
def test_a_planted_bug_is_caught(bug: Bug, run) -> None:
    file = run.copy / path_of(bug.file)
    text = file.read_text()
    file.write_text(text.replace(bug.was, bug.is_))
    done = run(*bug.red)
    assert done.returncode == 1, done.stdout  # 1: a test failed; others: none was run
    failed = {named(line) for line in done.stdout.splitlines() if line.startswith("FAILED ")}
    missed = [red for red in bug.red if not any(one.startswith(red.partition("[")[0][6:]) for one in failed)]
    assert not missed, done.stdout


@pytest.mark.mutants
def test_without_a_planted_bug_the_same_tests_pass(run) -> None:
    done = run(
        *sorted({red for bug in BUGS for red in bug.red})
    )  # a file's tests share what it made: one after another
    assert done.returncode == 0, done.stdout


def test_every_property_test_of_order_and_loader_is_named() -> None:
    """With a bug that turns it red, here and in docs/planted_bugs.md."""
    page = (REPOSITORY / "docs" / "planted_bugs.md").read_text()
    named_here = {red.partition("[")[0] for bug in BUGS for red in bug.red}
    for file in sorted((REPOSITORY / "tests").glob("order/test_*.py")) + sorted(
        (REPOSITORY / "tests").glob("run/test_*.py")
    ):
        for one in ast.walk(ast.parse(file.read_text())):
            if isinstance(one, ast.FunctionDef) and any(
                ast.unparse(mark).startswith("given(") for mark in one.decorator_list
            ):
                assert f"{file.relative_to(REPOSITORY)}::{one.name}" in named_here
    for bug in BUGS:
        assert f"| {bug.what} | {bug.file} |" in page


def test_every_bug_that_interleavings_find_is_named(shared) -> None:
    page = (REPOSITORY / "docs" / "planted_bugs.md").read_text()
    for plant, kinds in shared("dataset/test_fire_mutants").MUTANTS:
        assert f"| {plant.__name__.replace('_', ' ')} | code | {', '.join(kinds)} |" in page
