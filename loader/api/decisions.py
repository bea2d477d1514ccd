"""Make, store and reopen the decisions of a run over rollouts.

A decision costs at most four objects: the list of the rollouts, their packing table, the plan, and the record. The
record comes last: a process that dies before it leaves objects that nothing names.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from ..dataset.root import Root
from ..dataset.tables.parquet import integers
from ..dataset.versions.stored_list import listed
from ..dataset.versions.version import Version
from ..errors import (
    Corrupt,
    Denied,
    Forbidden,
    InvalidPlan,
    InvalidRuntime,
    PlanMismatch,
    VersionNotFound,
    VersionRetired,
)
from ..order.plan import Plan
from ..order.random.keyed_permutation import I64
from ..rollouts.cursor import START, Cursor
from ..rollouts.decide import GroupChoice, Verdict, choose, choose_all, count_choice
from ..rollouts.record import DecisionRecord, LikeRecord, RunRecords, decision_key
from ..rollouts.undecided import check_continues, next_cursor, read_undecided, rows_of_decision
from ..run.recipe.recipe import stored_view
from ..storage.mirror import primary_store
from ..storage.store import is_there
from .online_arguments import LIKE_ARGUMENTS, OnlineArguments
from .plans import open_plan, plan

_log = logging.getLogger(__name__)
MOST_NEW_PARTS = 64
"""New parts of a decision above which a run warns: a part stays in every later version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenDecision:
    """A decision with its plan, as one rank sends it to the others."""

    record: DecisionRecord
    plan: Plan | None
    """None if a takedown left no rollout of the decision."""

    @property
    def end(self) -> int:
        """Step after the last one that the plan has."""
        if self.plan is None:
            return self.record.step
        (source,) = self.plan.sources.values()
        n_sequences = source.shape.n
        n_steps = -(-n_sequences // self.plan.global_batch)  # rounded up
        return self.record.step + min(n_steps, self.record.steps)


class Decisions:
    """Makes and reads the decisions of one run."""

    def __init__(self, root: Root, run: str, arguments: OnlineArguments, world_size: int) -> None:
        self._root = root
        self._run = run
        self._arguments = arguments
        self._arguments_json = arguments.to_json()  # as a record stores them: `DecisionRecord.asked`
        self._world_size = world_size
        # (version id, policy, step) of the last search that found too few groups
        self._insufficient: tuple[str, int, int] | None = None
        self._has_warned_of_parts = False
        self._has_looked_ahead = False  # for records of later steps: see `_find_record`

    @cached_property
    def _records(self) -> RunRecords:
        # At first use: of a job's ranks only the first one reads them.
        return RunRecords(primary_store(self._root.store), self._run)

    @property
    def insufficient_version(self) -> set[str]:
        """Id of the newest version that has too few groups; empty if there is none."""
        if self._insufficient is None:
            return set()
        return {self._insufficient[0]}

    def begin(self, like: str | None, until: int | None) -> None:
        """Store or check the run that this one repeats. Raises: PlanMismatch; InvalidRuntime."""
        self._root.create_if_empty()
        stored = self._records.like
        if like is None:
            if until is not None:
                raise InvalidRuntime(
                    f"until = {until} without like=: name the run whose steps to repeat",
                    what="until",
                    given=until,
                    accepted="until with like=",
                )
            if stored is not None:
                raise PlanMismatch(
                    f"run {self._run!r} began with like={stored.like!r}: pass it again, or give the run another name",
                    what="like",
                    where=f"run {self._run!r}",
                    accepted=stored.like,
                )
            return
        if stored is not None and until is None:
            until = stored.until  # the end of that run when this one began
        original = RunRecords(primary_store(self._root.store), like)
        boundary = self._check_original(original, until)
        self._records.create_like(LikeRecord(run=self._run, like=like, until=boundary))

    def at(self, step: int, policy: int, before: DecisionRecord | None) -> OpenDecision | None:
        """Return the decision that begins at a step; make it unless it is stored. None if there are too few groups.

        policy: version of the policy that is trained, for a new decision. before: the decision before.
        """
        stored = self._records.at(step)
        if stored is None:
            stored = self._find_record(step)
        if stored is not None:
            return self.open(stored)
        if before is not None and policy < before.policy:
            raise InvalidRuntime(
                f"policy({policy}) at step {step}: the decision of step {before.step} had version {before.policy}, and "
                "versions of a policy only grow. Call policy() with the trainer's version before each step",
                what="policy",
                where=f"step {step}",
                given=policy,
                accepted=f"{before.policy} or more",
            )
        return self._decide(step, policy, before)

    def _find_record(self, step: int) -> DecisionRecord | None:
        """Return the record of a step that another process has created since, or None if the run has decided no more.

        Lists the records once per process: a decision after a lost record would train groups again.

        Raises: Corrupt if later steps have records, and this one has none.
        """
        if self._has_looked_ahead:
            return None
        last = self._records.last()
        if last is None or last.step < step:
            self._has_looked_ahead = True
            return None
        stored = self._records.at(step)
        if stored is None:
            key = decision_key(last.run, step)
            raise Corrupt(
                f"{self._root.url}/{key} is missing while {last.key} exists: it was deleted. Restore it from a mirror, "
                "or give the run another name, and repeat the steps before it by like= and until=",
                what=f"record {key}",
                where=self._root.url,
            )
        return stored

    def covering(self, step: int) -> DecisionRecord | None:
        """Return the last decision that begins at a step or before it."""
        return self._records.covering(step)

    def matching_decision(self, step: int, plan_hash: str) -> DecisionRecord | None:
        """Return the decision that begins at a step, if it has this plan, or had it before a takedown; else None."""
        record = self._records.at(step)
        while record is not None and record.plan != plan_hash:
            record = self._records.owner(record).replacement(record)
        return record

    def open(self, record: DecisionRecord) -> OpenDecision:
        """Return a stored decision with its plan, or with its replacement if a takedown deleted the plan.

        Raises: PlanMismatch if other arguments decided it; Denied for a step of `like` that is gone; InvalidRuntime.
        """
        self._check_arguments(record)
        while record.plan:
            opened = self._open_plan(record)
            if opened is not None:
                self._check_world(opened.global_batch, record, is_stored=True)
                return OpenDecision(record=record, plan=opened)
            record = self._replacement(record)
        return OpenDecision(record=record, plan=None)

    def rows(self, record: DecisionRecord) -> pa.Table:
        """Return every row that a decision decided, with its verdict, from the version that its plan reads.

        Raises: VersionRetired if that version's data is deleted; Denied.
        """
        before = self._previous_cursor(record)
        version = self._record_version(record)
        rows = self._select_rows(version, before, record)
        choice = choose_all(rows, record.rule, record.policy)
        names = []
        for number in choice.verdicts.tolist():
            verdict = Verdict(number)
            names.append(verdict.name.lower())
        column = pa.array(names, pa.string())
        return rows.append_column("verdict", column)

    def _record_version(self, record: DecisionRecord) -> Version:
        """Return the version that a decision's plan reads: after a takedown a later one than the decision read."""
        if not record.plan:
            return self._root.open(self._arguments.ref)
        decided_plan = open_plan(self._root, record.plan, retired=True)
        (source,) = decided_plan.sources.values()
        view = stored_view(source.view)
        if view is None:
            message = f"plan {record.plan} of {record.key} reads no version: restore follows/ from a mirror"
            raise Corrupt(message)
        return view.version

    def _check_original(self, original: RunRecords, until: int | None) -> int:
        """Return the step from which this run decides: `until`, or the end of the original run's decisions."""
        last = original.last()
        if last is None:
            raise PlanMismatch(f"like = {original.run!r}: {self._root.url} has no decision of such a run")
        self._check_arguments(last)
        if until is None:
            return last.end
        if until == last.end or until == 0 or original.at(until) is not None:
            return until
        covering = original.covering(until)
        if covering is None or until > last.end:
            raise PlanMismatch(
                f"until = {until}: run {original.run!r} has decided the steps before {last.end}; pass at most that",
                what="until",
                where=f"run {original.run!r}",
                given=until,
                accepted=f"at most {last.end}",
            )
        raise PlanMismatch(
            f"until = {until} is inside a decision of run {original.run!r}, which has the steps {covering.step} to "
            f"{covering.end - 1}: pass {covering.step} or {covering.end}",
            what="until",
            where=f"run {original.run!r}",
            given=until,
            accepted=[covering.step, covering.end],
        )

    def _check_arguments(self, record: DecisionRecord) -> None:
        """Raise PlanMismatch if other arguments than this run's decided a record."""
        names = list(self._arguments_json)
        subject = f"run {self._run!r} began with"
        if record.run != self._run:
            names = list(LIKE_ARGUMENTS)  # all that a run shares with the one that it repeats
            subject = f"run {record.run!r}, which like= names, has"
        for name in names:
            own = self._arguments_json[name]
            stored = record.asked.get(name)
            if stored != own:
                raise PlanMismatch(
                    f"{subject} {name} = {stored!r}; {name} = {own!r} was given. Pass that run's value, or give this "
                    "run another name",
                    what=name,
                    where=subject,
                    given=own,
                    accepted=stored,
                )

    def _decide(self, step: int, policy: int, before: DecisionRecord | None) -> OpenDecision | None:
        """Make and store the decision of a step; None if there are too few groups. Arguments are as for `at`."""
        version = self._newest_version(policy, step)
        if version is None:
            return None
        cursor = START if before is None else before.cursor
        if not check_continues(version, cursor, self._run):  # an older version than the last decision read
            self._insufficient = (version.id, policy, step)
            return None
        # Each pair has all rows so far, so the first pair with enough groups reads as little as possible.
        for rows, n_parts_read in read_undecided(version, cursor):
            choice = choose(rows, self._arguments.rule, policy)
            if choice is not None:
                after = next_cursor(version, cursor, rows, n_parts_read, choice)
                self._warn_of_parts(after.parts - cursor.parts)
                return self._store_decision(version, rows, choice, after, step, policy, before)
        self._insufficient = (version.id, policy, step)
        return None

    def _store_decision(
        self,
        version: Version,
        rows: pa.Table,
        choice: GroupChoice,
        after: Cursor,
        step: int,
        policy: int,
        before: DecisionRecord | None,
    ) -> OpenDecision:
        """Return the stored decision of a step: of this choice, unless another process was faster."""
        ordinals = _ordinals(rows, choice)
        with self._may_create(step):
            new_plan, n_sequences = self._plan(version, ordinals, step, self._arguments.updates)
        record = DecisionRecord(
            run=self._run,
            step=step,
            steps=-(-n_sequences // new_plan.global_batch),
            before=new_plan.hash if before is None else before.plan,
            plan=new_plan.hash,
            policy=policy,
            asked=self._arguments_json,
            cursor=after,
            counts=count_choice(rows, choice, n_sequences),
        )
        self._check_world(new_plan.global_batch, record, is_stored=False)
        with self._may_create(step):
            new_plan.save_content(self._root)
        stored = self._records.create(record)
        if stored is record:
            return OpenDecision(record=record, plan=new_plan)
        return self.open(stored)

    @contextmanager
    def _may_create(self, step: int) -> Iterator[None]:
        try:
            yield
        except Forbidden as error:
            raise Forbidden(
                f"{self._root.url}: the decision of step {step} of run {self._run!r} cannot be stored ({error}): "
                "loader.online stores each decision. Allow the job to create objects under follows/, lists/, packs/ "
                "and plans/"
            ) from error

    def _newest_version(self, policy: int, step: int) -> Version | None:
        """Return the newest version, unless it is known to have too few groups; None without a version."""
        # Its record first: opening a version costs requests, and a run that waits looks often.
        try:
            newest = self._root.record(self._arguments.ref)
        except VersionNotFound:
            return None
        if self._insufficient == (newest.id, policy, step):
            return None
        return self._root.open(newest.id)

    def _plan(self, version: Version, ordinals: I64, step: int, n_updates: int) -> tuple[Plan, int]:
        """Return the plan of a decision, and the number of its sequences. Stores the list and its packing table."""
        pack = self._arguments.pack
        view = listed(version.select(*pack.fields), ordinals)
        packed_view = view.packed(pack)
        n_sequences = len(packed_view)
        per_update = -(-n_sequences // n_updates)  # rounded up
        multiple = self._arguments.multiple
        global_batch = -(-per_update // multiple) * multiple  # the next multiple
        new_plan = plan(
            {self._arguments.source: packed_view},
            seed=self._arguments.seed,
            global_batch=global_batch,
            pack=pack,
            boundary="mask",
            allow_repeats=True,  # a padded batch may be larger than the decision; it repeats nothing
            first_step=step,
        )
        return new_plan, n_sequences

    def _open_plan(self, record: DecisionRecord) -> Plan | None:
        """Return a stored decision's plan, also over a retired version; None if a takedown deleted it."""
        try:
            return open_plan(self._root, record.plan, retired=True)
        except (Denied, VersionRetired) as error:
            _log.warning("the plan of step %d of run %r is gone: %s", record.step, record.run, error)
            return None
        except InvalidPlan:
            if is_there(self._root.store, f"plans/{record.plan}.json"):
                raise
            return None

    def _replacement(self, record: DecisionRecord) -> DecisionRecord:
        """Return the decision of the rollouts that a takedown left of a decision."""
        owner = self._records.owner(record)
        stored = owner.replacement(record)
        if stored is not None:
            return stored
        if record.run != self._run:
            raise Denied(
                f"steps {record.step} to {record.end - 1} of run {record.run!r} had rollouts that a takedown removed, "
                f"and their plan {record.plan} is gone. Pass until={record.step}, and decide anew from there",
                what="until",
                where=f"run {record.run!r}",
                accepted=record.step,
            )
        version = self._root.open(self._arguments.ref)
        rows = self._select_rows(version, self._previous_cursor(record), record)
        choice = choose_all(rows, record.rule, record.policy)
        plan_hash = ""
        n_sequences = 0
        if len(choice.trained):
            ordinals = _ordinals(rows, choice)
            with self._may_create(record.step):
                # No more steps than the decision had: the next one is named by its first step.
                new_plan, n_sequences = self._plan(version, ordinals, record.step, record.steps)
                plan_hash = new_plan.save_content(self._root)
        new = replace(record, plan=plan_hash, counts=count_choice(rows, choice, n_sequences))
        _log.warning(
            "the plan of step %d of run %r is gone: its rollouts that are left are decided again",
            record.step,
            self._run,
        )
        return owner.replace(record, new)

    def _select_rows(self, version: Version, before: Cursor, record: DecisionRecord) -> pa.Table:
        """Return the live rows of a version that a decision decided."""
        for rows, n_parts_read in read_undecided(version, before):
            if n_parts_read >= record.cursor.parts:  # then `rows` has every row that it may have decided
                return rows_of_decision(rows, record.cursor)
        raise Corrupt(
            f"{version.name} has fewer parts than the decision of step {record.step} of run {record.run!r} counts: "
            f"restore {record.key} from a mirror"
        )

    def _previous_cursor(self, record: DecisionRecord) -> Cursor:
        """Return the position at which a decision began."""
        before = None if record.step == 0 else self._records.covering(record.step - 1)
        return START if before is None else before.cursor

    def _check_world(self, global_batch: int, record: DecisionRecord, *, is_stored: bool) -> None:
        """Raise InvalidRuntime if a step has fewer sequences than there are ranks."""
        if global_batch >= self._world_size:
            return
        remedy = f"pass multiple={self._world_size}, which pads each step"
        if is_stored or record.step:  # a run with a decision cannot change `multiple`
            remedy = f"start on at most {global_batch} ranks, or give a run with multiple= another name"
        raise InvalidRuntime(
            f"step {record.step} of run {self._run!r} has {global_batch} sequences for {self._world_size} ranks: "
            f"{remedy}",
            what="world_size",
            where=f"step {record.step}",
            given=self._world_size,
            accepted=f"at most {global_batch}",
        )

    def _warn_of_parts(self, n_new: int) -> None:
        if n_new <= MOST_NEW_PARTS or self._has_warned_of_parts:
            return
        self._has_warned_of_parts = True
        _log.warning(
            "%s has %d new parts in one decision: each stays in every later version, and makes it slower to open. Let "
            "at most 16 writers collect the rollouts of a step",
            self._arguments.ref,
            n_new,
        )


def _ordinals(rows: pa.Table, choice: GroupChoice) -> I64:
    """Return the version ordinals of the rollouts to train, in the order of the list."""
    ordinals: I64 = integers(rows["ordinal"])[choice.trained]
    return ordinals
