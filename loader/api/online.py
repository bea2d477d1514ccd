"""Train on what the policy samples: each step is decided once, stored, and read by every rank, restart and replay."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic, sleep
from typing import Any, Literal, Protocol

import pyarrow as pa

from ..dataset.root import Root
from ..errors import InvalidRuntime, PlanMismatch, VersionNotFound
from ..keywords import whole_number
from ..order.sources.packing import PackBy
from ..rollouts.cursor import START
from ..rollouts.decide import DecisionRule, group_numbers, n_trainable
from ..rollouts.record import MOST_POLICY, DecisionRecord, RunRecords
from ..rollouts.undecided import check_continues, read_undecided
from ..run.batch.batch import Batch
from ..run.recipe.recipe import stored_views
from ..run.recipe.world import World
from ..storage.mirror import primary_store
from .decisions import Decisions, OpenDecision
from .online_arguments import OnlineArguments, check_arguments
from .report import check_run
from .successive_loaders import SuccessiveLoaders

_log = logging.getLogger(__name__)
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
"""Longest pause between two looks for new groups: two requests each."""
SLICE_S = 5.0
"""Longest wait of the first rank, after which all ranks exchange whether to stop. A launcher's grace is longer."""
WARN_EVERY_S = 60.0
NO_DECISION = -1
"""First step of the decision, in a state that was saved before any."""


class OnlineJob(Protocol):
    """The part of a `penstock.train.Run` that is used here."""

    world: World
    """Rank and number of the processes."""

    def first(self, call: Callable[[], Any]) -> Any:
        """Return the result of the call on the first rank, on every rank."""

    def stopping(self) -> bool:
        """Return whether the run is about to stop. Every rank calls it equally often."""


def online(
    root: Root,
    ref: str,
    *,
    run: str,
    seed: int,
    groups: int,
    pack: PackBy,
    max_lag: int,
    stale: Literal["sequence", "group"] = "sequence",
    min_size: int = 2,
    updates: int = 1,
    multiple: int = 1,
    like: str | None = None,
    until: int | None = None,
    job: OnlineJob | None = None,
    source: str = "rollouts",
    **options: Any,
) -> "OnlineBatches":
    """Return batches of what the policy sampled, each step decided once. Iterates as a `Loader`.

    A decision trains the oldest `groups` groups, and withholds stale rollouts. It is stored: every rank, restart and
    replay gets the same batches, at any world size. If there are too few groups, `next` waits.

    Args:
        root: Root of the rollouts. The job needs write access.
        ref: Versions of rollouts, such as "math-rl@latest".
        run: Name of the training run. Restarts share it; no other training run may have it.
        seed: Seed of the order within a decision.
        groups: Groups per decision.
        pack: `loader.pack("tokens.npy", 8192, beside={"mask.npy": 0, ...})`.
        max_lag: Policy versions that a sampled token may be behind the policy that is trained.
        stale: "sequence" withholds stale sequences, "group" every sequence of their groups.
        min_size: Fresh sequences that a group needs to be trained.
        updates: Optimizer steps per decision at most.
        multiple: A step's sequences are padded to a multiple of it. Every world size up to it works.
        like: Run whose steps are trained again, before step `until`.
        until: Step from which the run decides anew: the first step of one of that run's decisions, or its end.
        job: A `penstock.train.Run`: its first rank decides, the others receive the plan. Waiting ends when it stops.
        source: Name of the data in the plans. It is part of the order.
        **options: Arguments of `Loader` (rank, world_size, decode, steps ...), but not epochs.

    Raises: InvalidRuntime; InvalidName; PlanMismatch if the run began with other arguments. `next` also raises
    InvalidPlan, InvalidSample, and Denied for a step of `like` that a takedown removed.
    """
    arguments = check_arguments(
        ref=ref,
        seed=seed,
        pack=pack,
        groups=groups,
        max_lag=max_lag,
        stale=stale,
        min_size=min_size,
        updates=updates,
        multiple=multiple,
        source=source,
    )
    batches = OnlineBatches(root, check_run(run), arguments, job, options)
    batches.begin(like, until)
    return batches


def backlog(
    root: Root,
    ref: str,
    run: str,
    *,
    policy: int | None = None,
    max_lag: int | None = None,
) -> int:
    """Return the number of groups that are published and not decided by a run; 0 without a version.

    Let samplers pause at (max_lag + 1) * groups: what they sample beyond it would be stale. Costs the columns of the
    undecided rows, and a listing of the run's decisions.

    Args:
        root: Root of the rollouts.
        ref: Versions of rollouts, as for `online`.
        run: Name of the training run.
        policy: Version of the newest policy. Groups that cannot be trained with it do not count. Samplers that pause
            need it: the run waits for fresh groups, and without it stale ones count.
        max_lag: The run's `max_lag`, for the time before its first decision, which has its arguments: then groups
            without a fresh rollout do not count. None counts every group before it.

    Raises: InvalidName; InvalidSample; InvalidRuntime; Corrupt.
    """
    newest_policy = None if policy is None else whole_number("policy", policy, -MOST_POLICY)
    first_rule = None
    if max_lag is not None:
        if newest_policy is None:
            raise InvalidRuntime(
                f"max_lag = {max_lag!r} without policy=: name the version of the newest policy",
                what="max_lag",
                given=max_lag,
                accepted="max_lag with policy=",
            )
        first_rule = DecisionRule(  # by it, a group counts if any of its rollouts is fresh
            groups=1,
            max_lag=whole_number("max_lag", max_lag, 0),
            stale="sequence",
            min_size=1,
        )
    records = RunRecords(primary_store(root.store), check_run(run))
    try:
        version = root.open(ref)
    except VersionNotFound:
        return 0
    last = records.last()
    cursor = START if last is None else last.cursor
    if not check_continues(version, cursor, run):
        return 0
    undecided = None
    for rows, _ in read_undecided(version, cursor):
        undecided = rows  # all rows so far
    if undecided is None:
        return 0
    rule = first_rule if last is None else last.rule
    if newest_policy is None or rule is None:
        return int(group_numbers(undecided).max(initial=-1)) + 1
    return n_trainable(undecided, rule, newest_policy)


@dataclass(frozen=True, slots=True)
class StepDecision:
    """The decision of a batch."""

    record: DecisionRecord
    """The stored decision."""
    _decisions: Decisions

    @property
    def step(self) -> int:
        """First step of the decision."""
        return self.record.step

    @property
    def policy(self) -> int:
        """Version of the policy that was trained."""
        return self.record.policy

    @property
    def counts(self) -> Mapping[str, Any]:
        """Counts of groups, sequences and rollouts: trained, stale, small, and `by` environment and length."""
        return self.record.counts

    def rows(self) -> pa.Table:
        """Return every row that was decided, with its verdict: "trained", "stale" or "small".

        Columns: part, row, ordinal, transaction (int64), group_id, policy_min, env, n_tokens, reward, verdict.
        Reads them again, from the version that the decision's plan reads: after a takedown, without what it removed.

        Raises: VersionRetired if that version's data is deleted; Denied.
        """
        return self._decisions.rows(self.record)


class OnlineBatches(SuccessiveLoaders):
    """Batches of what the policy sampled. Iterates as a `Loader`."""

    def __init__(
        self,
        root: Root,
        run: str,
        arguments: OnlineArguments,
        job: OnlineJob | None,
        options: Mapping[str, Any],
    ) -> None:
        own_options = dict(options)
        if job is not None and own_options.get("rank") is None:
            own_options["rank"] = job.world
        super().__init__(own_options, root, has_decisions=True)
        assert self._own_root is not None  # passed just above
        self._run = run
        self._job = job
        end = options.get("steps")
        self._end = None if end is None else whole_number("steps", end, 0)
        self._next_step = 0  # of the first batch, while there is no loader
        self._record: DecisionRecord | None = None  # of the last batch, or before the next one
        self._plan_end = 0  # step after the last one of the loader's plan
        self._policy: int | None = None
        self._decisions = Decisions(self._own_root, run, arguments, self.world.world_size)

    def begin(self, like: str | None, until: int | None) -> None:
        """Store or check what the run repeats. Raises: PlanMismatch; InvalidRuntime."""
        if like is not None:
            check_run(like)
        if until is not None:
            until = whole_number("until", until, 0)
        self._on_first_rank(partial(self._decisions.begin, like, until))

    def __next__(self) -> Batch:
        if self._end is not None and self.step >= self._end:
            raise StopIteration
        # A replaced decision may have fewer batches than steps, or none.
        while self._loader is None or self._loader.step >= self._plan_end:
            if self._end is not None and self._boundary >= self._end:
                raise StopIteration
            decision = self._await_decision(self._boundary)
            if decision is None:
                raise StopIteration  # the job stops
            self._adopt(decision, max(self.step, decision.record.step))
        return next(self.loader)

    @property
    def step(self) -> int:
        if self._loader is None:
            return self._next_step
        return self._loader.step

    @property
    def end(self) -> int | None:
        return self._end

    @property
    def decision(self) -> StepDecision:
        """The decision of the last batch. Raises: InvalidRuntime before the first one."""
        if self._record is None:
            raise InvalidRuntime("there is no decision before the first batch")
        return StepDecision(self._record, self._decisions)

    def policy(self, version: int) -> None:
        """Name the version of the policy that is trained, before `next`. Without a call it is the step.

        Raises: InvalidRuntime if the version decreases.
        """
        number = whole_number("policy", version, -MOST_POLICY)
        if self._policy is not None and number < self._policy:
            raise InvalidRuntime(
                f"policy({number}) after policy({self._policy}): versions of a policy only grow, such as the "
                "trainer's step",
                what="policy",
                given=number,
                accepted=f"{self._policy} or more",
            )
        self._policy = number

    def seek(self, step: int) -> None:
        """Continue with a decided step, or the step after the last decision. Raises: InvalidRuntime."""
        step = whole_number("step", step, 0)
        record = self._on_first_rank(partial(self._decisions.covering, step))
        n_decided = 0 if record is None else record.end
        if step > n_decided:
            raise InvalidRuntime(f"seek({step}): run {self._run!r} has decided the steps before {n_decided}")
        self._continue_from_record(step, record)

    def batch_at(self, step: int) -> Batch:
        """Return this rank's part of a step of the current decision. Raises: InvalidRuntime for other steps."""
        if self._record is None or not self._record.step <= step < self._plan_end:
            message = f"batch_at({step}): the step is not of the current decision; seek({step}) first"
            raise InvalidRuntime(message)
        return self.loader.batch_at(step)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state plus `follow`: run, plan and first step of the decision. Raises: StoreError."""
        state: dict[str, Any] = {}
        if self._loader is not None:
            state = self._loader.state_dict()
        followed = {"run": self._run, "plan": "", "step": NO_DECISION}
        step = self.step
        if self._record is not None:
            followed = {"run": self._run, "plan": self._record.plan, "step": self._record.step}
            step = max(step, self._record.step)  # a decision without a rollout may follow the loader's
        return {**state, "step": step, "follow": followed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of this run, or of the run that it repeats.

        Raises: PlanMismatch if neither has a decision with the state's plan at its step.
        """
        try:
            followed = state["follow"]
            step = whole_number("step", state["step"], 0)
            decision_step = whole_number("step", followed["step"], NO_DECISION)
            plan_hash = str(followed["plan"])
        except (TypeError, LookupError, InvalidRuntime) as error:
            raise PlanMismatch(
                f"not a state of loader.online ({error!r}): pass what state_dict() returned, unchanged",
                what="state",
                given=repr(error),
                accepted="what state_dict() returned",
            ) from None
        if decision_step == NO_DECISION:
            self._continue_from_record(step, None)
            return
        record = self._on_first_rank(partial(self._decisions.matching_decision, decision_step, plan_hash))
        if record is None or not record.step <= step <= record.end:
            raise PlanMismatch(
                f"the state was saved at step {step} under the plan {plan_hash}, and run {self._run!r} has decided "
                f"step {decision_step} otherwise, or its record is missing (penstock verify). To go on from a "
                f"checkpoint of run {followed.get('run')!r} under another name, pass like= and until=",
                what="state",
                where=f"run {self._run!r}, step {decision_step}",
                given=plan_hash,
            )
        self._continue_from_record(step, record)
        # The loader is at `step` already: this checks the state's plan, unless a takedown has replaced that.
        if self._loader is not None and self.plan.hash == plan_hash:
            self._loader.load_state_dict(state)

    @property
    def _boundary(self) -> int:
        """First step of the next decision: the current decision's batches are delivered, or its plan is not open."""
        record = self._record
        if record is None:
            return self._next_step
        if self._loader is not None:
            return record.end
        if self._next_step < record.end:
            return record.step  # its plan could not be opened when the run continued there
        return self._next_step

    def _continue_from_record(self, step: int, record: DecisionRecord | None) -> None:
        """Continue at a step of a decision, or after it. record: None for a run that has decided nothing."""
        self.close()
        self._loader = None
        self._policy = None
        self._record = record
        self._next_step = step
        if record is None or step >= record.end:
            return  # no plan is opened: the next step is decided by the record's cursor
        decision = self._on_first_rank(partial(self._decisions.open, record))
        # A takedown may have left the decision without rollouts, or with too few for its last steps.
        if decision.plan is None or step >= decision.end:
            self._record = decision.record
            self._next_step = record.end
            return
        self._adopt(decision, step)

    def _adopt(self, decision: OpenDecision, step: int) -> None:
        """Continue at one of a decision's steps, or after all of them if it has no plan."""
        if decision.plan is None:  # a takedown left none of its rollouts
            self._record = decision.record
            self._next_step = decision.record.end
            return
        assert self._own_root is not None  # __init__ passes a root
        for view in stored_views(decision.plan).values():
            # The first rank's plan comes out of a pickle, which has no open tables.
            view.version.shards_files = self._own_root.shards_files
        end = decision.end if self._end is None else min(decision.end, self._end)
        # With its end the loader does not read ahead into the plan's second epoch.
        self._switch_plan(decision.plan, step, steps=end)
        # After the switch, which may fail: the next call of `next` then adopts the decision again.
        self._record = decision.record
        self._plan_end = decision.end

    def _await_decision(self, step: int) -> OpenDecision | None:
        """Return the decision of a step, once there are enough groups; None if the job stops before."""
        policy = step if self._policy is None else self._policy
        waiting = _Waiting(self._run, step, partial(self._find_decision, step, policy))
        if self._job is None:
            return waiting.await_decision(None)
        while True:
            decision: OpenDecision | None = self._job.first(partial(waiting.await_decision, SLICE_S))
            if decision is not None:
                return decision
            if self._job.stopping():
                return None

    def _find_decision(self, step: int, policy: int) -> OpenDecision | None:
        decision = self._decisions.at(step, policy, self._record)
        if decision is None:
            # A run that starves reads each new version once, and needs none of them again.
            assert self._own_root is not None  # __init__ passes a root
            self._own_root.keep_leases(self._versions_in_use | self._decisions.insufficient_version)
        return decision

    def _on_first_rank(self, call: Callable[[], Any]) -> Any:
        """Return the call's result, on the first rank of the job only if there is one."""
        if self._job is None:
            return call()
        return self._job.first(call)


class _Waiting:
    """Looks for a decision, with growing pauses."""

    def __init__(self, run: str, step: int, find: Callable[[], OpenDecision | None]) -> None:
        self._run = run
        self._step = step
        self._find = find
        self._pause_s = FIRST_PAUSE_S
        self._warn_at_s = monotonic() + WARN_EVERY_S

    def await_decision(self, longest_s: float | None) -> OpenDecision | None:
        """Return a decision once it is found; None after `longest_s` seconds."""
        begun_s = monotonic()
        while True:
            decision = self._find()
            if decision is not None:
                return decision
            now_s = monotonic()
            if longest_s is not None and now_s - begun_s + self._pause_s > longest_s:
                return None
            if now_s >= self._warn_at_s:
                self._warn_at_s = now_s + WARN_EVERY_S
                _log.warning("run %r waits for groups of rollouts for step %d", self._run, self._step)
            sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
