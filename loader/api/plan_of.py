"""Look up the plan of a run at a step, or of a saved state, in the root's records."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..dataset.log.entries import DAMAGED
from ..dataset.log.start_notes import START_SUFFIX
from ..dataset.root import Root
from ..errors import Corrupt, InvalidName, NotRecorded, PlanMismatch, RunNotFound, VersionRetired
from ..json_text import parse_json_object
from ..order.plan import Plan
from ..rollouts.record import RunRecords
from ..run.trail.read_trail import read_starts, read_trail, trail_runs
from ..storage import ObjectInfo, Store
from ..storage.mirror import primary_store
from ..storage.threads import Together
from .decided_plans import DecidedPlans, has_decisions
from .plans import open_plan
from .report import run_reports

_RUN = re.compile(r"(?!\.+$)[A-Za-z0-9._-]{1,128}")
_PLAN = re.compile(r"p-[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """A range of steps that ran under one plan, as one of a run's records has it."""

    plan: str
    first: int = 0
    last: int | None = None
    """Last step of the range; None if more may have followed; -1 if the record names the plan, but not its steps."""
    order: int = 0
    """If several ranges include a step, the largest order wins."""


def plan_of(root: Root, run: str | Mapping[str, Any], step: int | None = None) -> Plan:
    """Return the plan of a run at a step, of a loader's state, or of a hash: for inspection, not for training.

        loader.plan_of(root, "big-7", 1234)
        loader.plan_of(root, batches.state_dict())

    A run's plan comes from its run log, else from the plans it followed, its reports or its checkpoints. If a step ran
    under several plans, the last one wins. A state contains only its past: the result is a saved plan with that past.

    run: Name of a run, hash of a plan, or state of a `Loader` or of `loader.follow`.
    step: Global step; required if the run has had several plans.

    Raises: RunNotFound; NotRecorded, with advice on recording the next run; PlanMismatch if a mapping is not a state;
    InvalidName; as `open_plan`.
    """
    if isinstance(run, Mapping):
        return _plan_of_state(root, run)
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise InvalidName(
            f"run = {run!r:.200}: the name of a run, a plan's hash or a state is needed",
            what="run",
            given=run,
            accepted="the name of a run, a plan's hash or a state",
        )
    if _PLAN.fullmatch(run):
        return open_plan(root, run, retired=True)
    plans: list[str] = []
    # The most precise record first: a trail has every step, checkpoints only some.
    for plans_of in (_run_log_plans, _followed_plans, _reported_plans, _checkpoint_plans):
        stretches = list(plans_of(root, run, step))
        plans += dict.fromkeys(one.plan for one in stretches)
        if (plan := _choose_plan(stretches, step)) is not None:
            return open_plan(root, plan, retired=True)
    if not plans:
        runs = ", ".join(trail_runs(primary_store(root.store))) or "none"
        raise RunNotFound(
            f"{root.url}: no run {run!r} has left a trail, a report, a checkpoint or a version that it followed. Runs "
            f"with a trail: {runs}",
            what="run",
            where=root.url,
            given=run,
            accepted=runs,
        )
    if step is None:
        where = "pass step="
    else:
        where = f"step {step} is on no record"
    raise NotRecorded(
        f"{root.url}: run {run!r} had the plans {', '.join(sorted(set(plans)))}; {where}. A trail has every step: "
        "loader.Loader(plan, trail=loader.Trail(root, run=...))",
        what="step",
        where=f"run {run!r}",
        given=step,
        accepted=sorted(set(plans)),
    )


def newest_plan(root: Root, run: str) -> str:
    """Return the hash of the plan of the newest steps, by the run's records under `follows/`; "" without one.

    Raises: Corrupt; FormatTooNew.
    """
    store = primary_store(root.store)
    if has_decisions(store, run):
        last = DecidedPlans(root, run).last()
        if last is None:
            return ""
        return last.plan
    newest = ""
    for (plan,) in _objects(store, f"follows/{run}/", "plan"):
        newest = plan
    return newest


def _choose_plan(stretches: list[_Stretch], step: int | None) -> str | None:
    """Return the plan of a step; None if the records do not name one. A run's only plan needs no step."""
    if len({stretch.plan for stretch in stretches}) == 1:
        return stretches[0].plan
    if step is None:
        return None
    containing = [
        stretch
        for stretch in stretches
        if stretch.first <= step and (stretch.last is None or step <= stretch.last)
    ]
    if containing:
        return max(containing, key=lambda stretch: stretch.order).plan
    return None


def _run_log_plans(root: Root, run: str, step: int | None) -> Iterator[_Stretch]:
    """Yield the plan of each start of the run; if the plans differ, first the plans in the step's rows."""
    # The start of a run that decides its steps names no plan.
    starts = [one for one in read_starts(primary_store(root.store), run) if one.plan]
    plans = {one.id: one.plan for one in starts}
    # The rows of all steps are read only if the starts leave a choice.
    if len(set(plans.values())) > 1 and step is not None:
        rows = read_trail(root, run).steps
        for row in rows.filter(rows["step"] == step).iter_rows(named=True):
            if row["start"] in plans:
                yield _Stretch(plan=plans[row["start"]], first=step, last=step, order=row["at_us"])
    # Without steps of their own, they only name the run's plans: for a run with one plan, or for an error.
    for start in starts:
        yield _Stretch(plan=start.plan, last=-1)


def _followed_plans(root: Root, run: str, step: int | None) -> Iterator[_Stretch]:
    """Yield the plans of a run of `loader.follow`, or of `loader.online`, by its records under `follows/`."""
    store = primary_store(root.store)
    if has_decisions(store, run):
        yield from _decided_plans(root, run, step)
        return
    entries = _objects(store, f"follows/{run}/", "before", "plan", "step")
    for number, (before, plan, first) in enumerate(entries):
        # The first record also names the plan before it, which any record's own plan outranks.
        if not number:
            yield _Stretch(plan=before, order=-1)
        # Each record's plan lasts until the next one, which has a larger order.
        yield _Stretch(plan=plan, first=first, order=first)


def _decided_plans(root: Root, run: str, step: int | None) -> Iterator[_Stretch]:
    """Yield the decision that has a step; without a step the first and the last one."""
    decided = DecidedPlans(root, run)
    if step is not None:
        decisions = [decided.decision(step)]
    else:
        last = RunRecords(primary_store(root.store), run).last()
        if last is None:
            last_step = 0
        else:
            last_step = last.step
        ends = (decided.at(0), decided.at(last_step))
        decisions = [record for record in ends if record is not None and record.plan]
    for decision in decisions:
        last_of_decision = decision.end - 1
        yield _Stretch(
            plan=decision.plan,
            first=decision.step,
            last=last_of_decision,
            order=decision.step,
        )


def _reported_plans(root: Root, run: str, step: int | None) -> Iterator[_Stretch]:
    """Yield the plan of each report of the run; the latest report of a step takes priority."""
    for report in run_reports(root, run):
        yield _Stretch(plan=report.plan, first=report.first_step, last=report.last_step, order=report.at_us)


def _checkpoint_plans(root: Root, run: str, step: int | None) -> Iterator[_Stretch]:
    """Yield the plan of each checkpoint that names one. The earliest checkpoint after a step takes priority."""
    for plan, done in _objects(primary_store(root.store), f"checkpoints/{run}/steps/", "plan", "step"):
        if plan is not None:
            yield _Stretch(plan=plan, last=done - 1, order=-done)


def _plan_of_state(root: Root, state: Mapping[str, Any]) -> Plan:
    follow = state.get("follow")
    if isinstance(follow, Mapping):
        return open_plan(root, str(follow.get("plan")), retired=True)
    past = state.get("past")
    if not isinstance(past, Mapping) or not isinstance(past.get("sources"), Mapping):
        raise PlanMismatch(
            f"not the state of a Loader: it has {sorted(map(str, state))}. Pass what state_dict() returned, unchanged",
            what="state",
            given=sorted(map(str, state)),
            accepted="what state_dict() returned",
        )
    lost: Exception | None = None
    for info, body in saved_plans(primary_store(root.store)):
        if not _may_have_past(body, past):
            continue
        try:
            plan = open_plan(root, info.key.removeprefix("plans/").removesuffix(".json"), retired=True)
            plan.check_state(dict(state))
        # Alike in JSON, but with another past.
        except PlanMismatch:
            continue
        except VersionRetired as error:
            # Reported only if no other plan has this past.
            lost = error
            continue
        return plan
    if lost is not None:
        raise lost
    raise NotRecorded(
        f"no plan of {root.url}/plans/ has the past of this state, at step {state.get('step')}: save it with "
        "plan.save(root). loader.Trail(root, run=...) does so by itself",
        what="state",
        where=f"{root.url}/plans/",
        given=state.get("step"),
    )


def _may_have_past(body: Mapping[str, Any], past: Mapping[str, Any]) -> bool:
    """Return whether a plan's JSON could have this past. Opening the plan would cost one view per source."""
    alike = all(
        body.get(name) == past.get(name) for name in ("seed", "global_batch", "boundary", "first_step")
    )
    sources = body.get("sources")
    return (
        alike
        and isinstance(sources, Mapping)
        and all(
            name in sources and str(sources[name]["id"]).startswith(short[0])
            for name, short in past["sources"].items()
        )
    )


def saved_plans(store: Store) -> Iterator[tuple[ObjectInfo, Mapping[str, Any]]]:
    """Yield (object, JSON) for each plan under a root, in order of hash; skip other objects."""
    infos = [info for info in store.list("plans/") if not info.key.endswith(START_SUFFIX)]
    with Together(store, [info.key for info in infos]) as coming:
        for info in infos:
            data = coming.get(info.key).data
            with suppress(*DAMAGED):
                body = parse_json_object(data)
                if isinstance(body["sources"], Mapping):
                    yield info, body


def _objects(store: Store, prefix: str, *names: str) -> Iterator[list[Any]]:
    """Yield the values of these names in each JSON object below a prefix, in order of key. Raises: Corrupt."""
    # Objects in folders below, such as replaced decisions, are of other kinds.
    keys = [info.key for info in store.list(prefix) if "/" not in info.key.removeprefix(prefix)]
    with Together(store, keys) as coming:
        for key in keys:
            try:
                body = parse_json_object(coming.get(key).data)
                values = [body[name] for name in names]
            except DAMAGED as error:
                raise Corrupt(
                    f"{store.url}/{key} is not as it was written ({error!r}); restore it"
                ) from error
            yield values
