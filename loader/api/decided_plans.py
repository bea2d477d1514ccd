"""Look up the plans of a run of `loader.online`, whose decisions name one for each step."""

import re
from collections.abc import Iterator
from dataclasses import replace

from ..dataset.log.entries import DAMAGED
from ..dataset.root import Root
from ..errors import Corrupt, NotRecorded
from ..json_text import parse_json_object
from ..rollouts.record import FOLLOW_FORMAT, MOST_STEP, DecisionRecord, RunRecords
from ..storage import Store
from ..storage.mirror import primary_store
from ..storage.store import is_there
from ..storage.threads import DaemonPool

AT_ONCE = 32
"""Records that are read at once."""
_STEP = re.compile(r"(\d{19})\.json")


def has_decisions(store: Store, run: str) -> bool:
    """Return whether a run has decided its steps. False for a run of `loader.follow`, and for others.

    Costs a listing and at most one read. Raises: Corrupt.
    """
    folder = f"follows/{run}/"
    listing = iter(store.list(folder))
    first = next(listing, None)
    if first is None:
        return False
    name = first.key.removeprefix(folder)
    if not _STEP.fullmatch(name):
        return True  # `loader.follow` has no other names
    try:
        data = store.get(first.key).data
        body = parse_json_object(data)
        is_followed = body["format"] == FOLLOW_FORMAT
    except DAMAGED as error:
        raise Corrupt(f"{store.url}/{first.key} is not as it was written ({error!r}); restore it") from error
    return not is_followed


class DecidedPlans:
    """The plans of a run's steps. If the run repeats another one, these include that run's."""

    def __init__(self, root: Root, run: str) -> None:
        self._store = primary_store(root.store)
        self._records = RunRecords(self._store, run)
        self._last: DecisionRecord | None = None  # what `at` returned last: the next step is often in it

    def at(self, step: int) -> DecisionRecord | None:
        """Return the decision that has a step; None if none has.

        If a takedown deleted its plan, the decision has the plan that replaced it. Costs at most a listing and four
        requests; steps in ascending order cost no listing.
        """
        last = self._last
        if last is not None and last.step <= step < last.end:
            return last
        record = None
        # The next decision's name is its first step, so no listing is needed.
        if last is not None and step == last.end:
            record = self._records.at(step)
        if record is None:
            record = self._records.covering(step)
        if record is None or step >= record.end:
            return None
        decision = self._with_stored_plan(record)
        self._last = decision
        return decision

    def last(self) -> DecisionRecord | None:
        """Return the last decision as `at` returns it; None without one. Costs a listing and some requests."""
        record = self._records.last()
        if record is None:
            return None
        return self._with_stored_plan(record)

    def plan_hash(self, step: int) -> str:
        """Return the hash of a step's plan; "" if no decision has the step, or a takedown left none of its rollouts."""
        record = self.at(step)
        if record is None:
            return ""
        return record.plan

    def decision(self, step: int) -> DecisionRecord:
        """Return the decision that has a step. Raises: NotRecorded if none has, or none of its rollouts is left."""
        record = self.at(step)
        if record is None or not record.plan:
            raise NotRecorded(
                f"{self._store.url}: run {self._records.run!r} has no decision of step {step}, or a takedown removed "
                "its rollouts"
            )
        return record

    def all(self) -> list[DecisionRecord]:
        """Return every decision, by step. Reads 32 records at once."""
        unsorted = _decision_steps(self._store, self._records, MOST_STEP)
        steps = sorted(unsorted)
        records: list[DecisionRecord | None] = []
        threads = DaemonPool(AT_ONCE, "penstock-decisions")
        with threads as pool:
            for first in range(0, len(steps), AT_ONCE):
                block = steps[first : first + AT_ONCE]
                records += pool.map(self._records.at, block)
        # None: deleted since it was listed.
        return [record for record in records if record is not None]

    def _with_stored_plan(self, record: DecisionRecord) -> DecisionRecord:
        """Return a decision with the plan that is stored: its own, or of its last replacement."""
        # A later takedown may have deleted the replacement's plan too.
        while record.plan:
            plan_path = f"plans/{record.plan}.json"
            if is_there(self._store, plan_path):
                break
            owner = self._records.owner(record)
            replacement = owner.replacement(record)
            if replacement is None:
                break
            record = replace(
                record,
                plan=replacement.plan,
                counts=replacement.counts,
            )
        return record


def _decision_steps(store: Store, records: RunRecords, end: int) -> Iterator[int]:
    """Yield the first steps of a run's decisions before `end`, the repeated ones included."""
    folder = f"follows/{records.run}/"
    for info in store.list(folder):
        name = info.key.removeprefix(folder)
        match = _STEP.fullmatch(name)
        if match is None:
            continue
        step = int(match[1])
        if step < end:
            yield step
    like = records.like
    if like is not None:
        original = RunRecords(store, like.like)
        first_own_step = min(end, like.until)
        yield from _decision_steps(store, original, first_own_step)
