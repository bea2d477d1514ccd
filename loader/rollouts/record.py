"""The stored decisions of a run, each created once.

- `follows/<run>/<step, 19 digits>.json`: a decision
- `follows/<run>/<step, 19 digits>/<plan>.json`: its replacement, after a takedown deleted that plan
- `follows/<run>/like/<like>.json`: the run whose decisions it repeats
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..dataset.log.entries import DAMAGED
from ..errors import AlreadyExists, Corrupt, Forbidden, FormatTooNew, ObjectNotFound, PlanMismatch
from ..json_text import parse_json_object
from ..keywords import is_whole_number
from ..storage import Store
from .cursor import Cursor, check_list, stored_number, text
from .decide import DecisionRule

FORMAT = 2
"""Format of a decision's record."""
FOLLOW_FORMAT = 1
"""Format of a record of `loader.follow`."""
# Bounds of a stored record: larger numbers are damage.
MOST_BYTES = 2**24
MOST_STEP = 2**53
MOST_STEPS = 2**31
MOST_COUNT = 2**53
MOST_POLICY = 2**62
"""Bound of a policy's version, which may also be negative."""
MOST_LIKES = 64
"""Runs that follow one another by `like`, at most."""
_PLAN = re.compile(r"p-[0-9a-f]{64}")
_STEP_KEY = re.compile(r"(\d{19})\.json")
_COUNTED = ("groups", "sequences", "trained", "stale", "small")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecisionRecord:
    """A decision as it is stored: its arguments, its plan, and where the next one begins."""

    run: str
    step: int
    """First step of the decision."""
    steps: int
    """Number of its steps, 1 or more."""
    before: str
    """Hash of the plan of the step before; the decision's own for a run's first one."""
    plan: str
    """Hash of the plan from this step on; "" if a takedown left no rollout of the decision."""
    policy: int
    """Version of the policy that is trained."""
    asked: Mapping[str, Any]
    """The arguments that decide."""
    cursor: Cursor
    """The rows that are undecided after this decision."""
    counts: Mapping[str, Any]
    """Counts of groups, sequences and rollouts (`count_choice`)."""

    @property
    def end(self) -> int:
        """Step of the next decision."""
        return self.step + self.steps

    @property
    def key(self) -> str:
        return decision_key(self.run, self.step)

    @property
    def rule(self) -> DecisionRule:
        """The rule that its stored arguments state. Raises: Corrupt."""
        asked = self.asked
        try:
            stale = asked["stale"]
            if stale not in ("sequence", "group"):
                raise ValueError(f"stale = {stale!r:.80}")
            return DecisionRule(
                groups=stored_number(asked["groups"], MOST_COUNT),
                max_lag=stored_number(asked["max_lag"], MOST_COUNT),
                stale=stale,
                min_size=stored_number(asked["min_size"], MOST_COUNT),
            )
        except DAMAGED as error:
            raise Corrupt(
                f"{self.key} has no whole `asked` ({error}): it was damaged. Restore it from a mirror"
            ) from error

    def to_json(self) -> bytes:
        body = {
            "format": FORMAT,
            "run": self.run,
            "step": self.step,
            "steps": self.steps,
            "before": self.before,
            "plan": self.plan,
            "policy": self.policy,
            "asked": self.asked,
            "cursor": self.cursor.to_json(),
            "counts": self.counts,
        }
        # Without spaces: the ranges of a long backlog are thousands of numbers.
        data = json.dumps(
            body,
            sort_keys=True,
            separators=(",", ":"),
        )
        return data.encode()

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> "DecisionRecord":
        """Return the record in a JSON object. Raises: one of `DAMAGED` for another object."""
        asked = body["asked"]
        if not isinstance(asked, dict):
            raise TypeError(f"`asked` is a {type(asked).__name__}, no object")
        return DecisionRecord(
            run=text(body["run"]),
            step=stored_number(body["step"], MOST_STEP),
            steps=_steps(body["steps"]),
            before=_plan_hash(body["before"]),
            plan=_plan_hash(body["plan"]),
            policy=_policy(body["policy"]),
            asked=asked,
            cursor=Cursor.from_json(body["cursor"]),
            counts=_counts(body["counts"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LikeRecord:
    """The run whose decisions a run repeats."""

    run: str
    like: str
    until: int
    """Step from which the run decides by itself."""

    @property
    def key(self) -> str:
        return f"{like_folder(self.run)}{self.like}.json"

    def to_json(self) -> bytes:
        body = {
            "format": FORMAT,
            "run": self.run,
            "like": self.like,
            "until": self.until,
        }
        data = json.dumps(body, sort_keys=True)
        return data.encode()


def record_body(name: str, data: bytes) -> dict[str, Any]:
    """Return the JSON of a record. name: for messages. Raises: FormatTooNew; one of `DAMAGED`."""
    # Before it is parsed, which takes ten times its size.
    if len(data) > MOST_BYTES:
        raise ValueError(f"it has {len(data)} bytes; a record has at most {MOST_BYTES}")
    body = parse_json_object(data)
    if stored_number(body["format"], MOST_COUNT) > FORMAT:
        raise FormatTooNew(
            f"{name} has format {body['format']}; this penstock reads up to {FORMAT}: upgrade penstock-data",
            what="format",
            where=name,
            given=body["format"],
            accepted=f"at most {FORMAT}",
        )
    return body


def parse_decision(body: Mapping[str, Any], run: str, step: int) -> DecisionRecord:
    """Return the decision in a record's JSON. Raises: one of `DAMAGED` unless it is of this run and step."""
    record = DecisionRecord.from_json(body)
    if (record.run, record.step) != (run, step):
        raise ValueError(f"it is of step {record.step} of run {record.run!r}")
    return record


def parse_like(body: Mapping[str, Any], key: str) -> LikeRecord:
    """Return the run that a run repeats, from a record's JSON. Raises: one of `DAMAGED` unless it is named `key`."""
    record = LikeRecord(
        run=text(body["run"]),
        like=text(body["like"]),
        until=stored_number(body["until"], MOST_STEP),
    )
    if record.key != key:
        raise ValueError(f"it is of run {record.run!r} like {record.like!r}")
    return record


def decision_key(run: str, step: int) -> str:
    """Return the key of the decision that begins at a step."""
    return f"follows/{run}/{step:019d}.json"


def like_folder(run: str) -> str:
    """Return the prefix of the record that names the run which a run repeats."""
    return f"follows/{run}/like/"


def _steps(value: object) -> int:
    steps = stored_number(value, MOST_STEPS)
    if not steps:
        raise ValueError("a decision has one step at least")
    return steps


def _plan_hash(value: object) -> str:
    plan = text(value)
    if plan and not _PLAN.fullmatch(plan):
        raise ValueError(f"{plan!r:.80} is not a hash of a plan")
    return plan


def _policy(value: object) -> int:
    # A version may be negative: users name their policies as they like, and only the distance counts.
    if not is_whole_number(value, -MOST_POLICY, MOST_POLICY):
        raise ValueError(f"{value!r:.80} is not a version of a policy")
    return value


def _counts(value: Any) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for name in _COUNTED:
        counts[name] = stored_number(value[name], MOST_COUNT)
    entries = []
    for env, quartile, trained, withheld in check_list(value["by"]):
        entry = [
            text(env),
            stored_number(quartile, 3),
            stored_number(trained, MOST_COUNT),
            stored_number(withheld, MOST_COUNT),
        ]
        entries.append(entry)
    counts["by"] = entries
    return counts


class RunRecords:
    """The decisions of one run, and of the run that it repeats. Every read checks the stored object."""

    def __init__(self, store: Store, run: str, depth: int = 0) -> None:
        """depth: number of runs that repeat this one, each by the next one's `like` record."""
        if depth > MOST_LIKES:
            raise Corrupt(
                f"{store.url}/{like_folder(run)}: more than {MOST_LIKES} runs follow one another by like=, perhaps in "
                "a circle; delete the record that is wrong",
                what="like",
                where=like_folder(run),
                accepted=f"at most {MOST_LIKES} runs",
            )
        self._store = store
        self.run = run
        self.like = self._read_like()
        self._original: RunRecords | None = None
        if self.like is not None:
            self._original = RunRecords(store, self.like.like, depth + 1)

    def at(self, step: int) -> DecisionRecord | None:
        """Return the decision that begins at a step, or None. One request."""
        if self._original is not None and self.like is not None and step < self.like.until:
            return self._original.at(step)
        return self._read(decision_key(self.run, step), step)

    def covering(self, step: int) -> DecisionRecord | None:
        """Return the last decision that begins at a step or before it. Lists the records."""
        own = [number for number in self._own_steps() if number <= step]
        if own:
            last = own[-1]
            return self.at(last)
        if self._original is None or self.like is None:
            return None
        # That run may have gone on beyond `until`: its later decisions are not this run's.
        last_shared = self.like.until - 1
        return self._original.covering(min(step, last_shared))

    def last(self) -> DecisionRecord | None:
        """Return the last decision, or None. Lists the records."""
        return self.covering(MOST_STEP)

    def create(self, record: DecisionRecord) -> DecisionRecord:
        """Store a decision unless its step has one; return the stored one. Raises: Forbidden."""
        return self._create_once(record, record.key)

    def owner(self, record: DecisionRecord) -> "RunRecords":
        """Return the records of the run that made a decision: this one, or one that it repeats."""
        if record.run == self.run or self._original is None:
            return self
        return self._original.owner(record)

    def replacement(self, record: DecisionRecord) -> DecisionRecord | None:
        """Return the decision that replaces another one of this run, whose plan is gone; None if none does."""
        return self._read(_replacement_key(record), record.step)

    def replace(self, record: DecisionRecord, new: DecisionRecord) -> DecisionRecord:
        """Store a replacement unless there is one; return the stored one."""
        return self._create_once(new, _replacement_key(record))

    def create_like(self, like: LikeRecord) -> None:
        """Store the run that this one repeats. Raises: PlanMismatch if it has decided steps, or repeats another run."""
        if self.like is None:
            steps = self._own_steps()
            if steps:
                raise PlanMismatch(
                    f"run {self.run!r} has decided steps without like=, the first at step {steps[0]}: give a run that "
                    "repeats another one a name of its own",
                    what="like",
                    where=f"run {self.run!r}",
                    given=steps[0],
                )
            data = like.to_json()
            self._put(like.key, data)
        # Read again: another start may have stored another one at the same time.
        self.like = self._read_like()
        if self.like != like:
            raise PlanMismatch(
                f"run {self.run!r} began with like={self.like and self.like.like!r}, until="
                f"{self.like and self.like.until}; like={like.like!r}, until={like.until} was given. Pass the first "
                "ones, or give the run another name",
                what="like",
                where=f"run {self.run!r}",
                given=[like.like, like.until],
            )
        self._original = RunRecords(self._store, like.like, 1)

    def _own_steps(self) -> list[int]:
        """Return the first step of each decision of this run, ascending, without the steps that it repeats."""
        prefix = f"follows/{self.run}/"
        # Replacements and `like` lie in folders below it.
        steps = []
        for info in self._store.list(prefix):
            match = _STEP_KEY.fullmatch(info.key.removeprefix(prefix))
            if match is not None:
                steps.append(int(match[1]))
        return sorted(steps)

    def _create_once(self, record: DecisionRecord, key: str) -> DecisionRecord:
        """Store a record, unless another process already did; return the stored one."""
        data = record.to_json()
        if self._put(key, data):
            return record
        # Another process was faster: its decision counts, whatever this one chose.
        stored = self._read(key, record.step)
        if stored is None:
            raise Corrupt(f"{self._store.url}/{key} was deleted while it was created; start the run again")
        return stored

    def _put(self, key: str, data: bytes) -> bool:
        """Create an object; return False if it exists. Raises: Forbidden."""
        try:
            self._store.put_if_absent(key, data)
        except AlreadyExists:
            return False
        except Forbidden as error:
            raise Forbidden(
                f"{self._store.url}/{key} cannot be created ({error}): loader.online stores each decision. Allow the "
                "job to create objects under follows/, lists/, packs/ and plans/",
                what=key,
                where=self._store.url,
            ) from error
        return True

    def _read(self, key: str, step: int) -> DecisionRecord | None:
        body = self._read_body(key)
        if body is None:
            return None
        if body["format"] == FOLLOW_FORMAT:
            raise PlanMismatch(
                f"{self._store.url}/{key} is a record of loader.follow: run {self.run!r} follows a dataset. Give "
                "the run of loader.online a name of its own",
                what=key,
                where=f"run {self.run!r}",
            )
        try:
            return parse_decision(body, self.run, step)
        except DAMAGED as error:
            raise self._damage_error(key, error) from error

    def _read_like(self) -> LikeRecord | None:
        """Return the record that names the run which this one repeats; None for a run of its own. Raises: Corrupt."""
        keys = [info.key for info in self._store.list(like_folder(self.run))]
        if not keys:
            return None
        if len(keys) > 1:
            names = ", ".join(keys)
            raise Corrupt(
                f"{self._store.url} has {names}: a run repeats one other run. Two starts with different like= began "
                f"it at once; give the run another name"
            )
        body = self._read_body(keys[0])
        try:
            if body is None:
                raise ValueError("it was deleted")
            return parse_like(body, keys[0])
        except DAMAGED as error:
            raise self._damage_error(keys[0], error) from error

    def _read_body(self, key: str) -> dict[str, Any] | None:
        """Return the JSON of a record, or None if there is none. Raises: Corrupt; FormatTooNew."""
        try:
            data = self._store.get(key).data
        except ObjectNotFound:
            return None
        try:
            return record_body(f"{self._store.url}/{key}", data)
        except FormatTooNew:
            raise
        except DAMAGED as error:
            raise self._damage_error(key, error) from error

    def _damage_error(self, key: str, error: Exception) -> Corrupt:
        return Corrupt(
            f"{self._store.url}/{key} is not a record of a decision ({error}): it was damaged. Restore it from a "
            "mirror, or give the run another name and pass like= and until= to repeat its steps before this one",
            what=key,
            where=self._store.url,
            given=str(error),
        )


def _replacement_key(record: DecisionRecord) -> str:
    # Named by the plan that is gone: a replacement whose plan goes too is replaced under another name.
    folder = record.key.removesuffix(".json")
    return f"{folder}/{record.plan}.json"
