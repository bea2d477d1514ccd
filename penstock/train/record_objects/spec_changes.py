"""Changes of a run's file under `trainings/<run>/changes/<n>.json`: the next start takes the newest one.

A change names what differs, by whom and when. A run keeps its name, its places, and the GPUs of a node. It may have
another number of ranks: its samples do not depend on it, and `Checkpoints.load` refuses a script whose samples do.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from loader.dataset.log.entries import canonical
from loader.errors import AlreadyExists, Corrupt, RunTaken
from loader.storage import ObjectInfo, Store

from ...units import utc_us
from ..run_spec import RunSpec, parse_spec
from .json_object import read_object, whole_number

FOLDER = "changes/"
FIXED = ("run", "record", "checkpoints", "gpus_per_node")
"""Keys that a run keeps. GPU-hours of all its starts count `gpus_per_node`."""
MOST_CHANGES = 500
"""Most changes of a run: a person makes them."""
LAST_US = 253_402_300_799_000_000
"""End of the year 9999 in UTC microseconds."""
_CHANGE = re.compile(r"([0-9]{6})\.json")


class FieldChange(NamedTuple):
    """A key, list or variable that differs."""

    field: str
    """Key of the file; `env.NAME` for a variable."""
    old: Any
    """Value so far; None for a variable that was not there."""
    new: Any
    """Value from the next start on; None for a variable that is removed."""

    def __str__(self) -> str:
        old = repr(self.old)
        new = repr(self.new)
        return f"{self.field}: {old} -> {new}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChange:
    """A change of a run's file."""

    at_us: int
    """UTC microseconds of the submit."""
    by: str
    """Person who submitted it; "" for a number without a name."""
    changed: tuple[FieldChange, ...]
    """Differences from the file before it."""
    spec: RunSpec
    """The whole file from then on."""


def differences(old: RunSpec, new: RunSpec) -> tuple[FieldChange, ...]:
    """Return what differs between two files of a run, in the order of the keys."""
    before = _facts(old)
    after = _facts(new)
    names = before | after
    changed = list[FieldChange]()
    for name in names:
        change = FieldChange(name, before.get(name), after.get(name))
        if change.old != change.new:
            changed.append(change)
    return tuple(changed)


def _facts(spec: RunSpec) -> dict[str, Any]:
    """Return a file's values by key, each variable under a name of its own."""
    facts = spec.to_json()
    # "" means the record's root, so naming that root is not a change.
    facts["checkpoints"] = spec.checkpoints or spec.record
    variables = facts.pop("env")
    for name, text in variables.items():
        facts[f"env.{name}"] = text
    return facts


def check_change(old: RunSpec, new: RunSpec, where: str) -> None:
    """Check that a run may go on with another file. Raises: RunTaken."""
    fixed = [change for change in differences(old, new) if change.field in FIXED]
    if fixed:
        words = ", ".join(map(str, fixed))
        message = (
            f"{where} differs in {words}, which a run keeps: submit the file that it was started from, or "
            "give the run another name. To begin at this run's weights, use Checkpoints(root, run).load(state) in "
            "the script of the new one"
        )
        raise RunTaken(
            message,
            what=", ".join(change.field for change in fixed),
            where=where,
            given=[change.new for change in fixed],
            accepted=[change.old for change in fixed],
        )


def put_change(store: Store, prefix: str, old: RunSpec, new: RunSpec, by: str) -> str:
    """Store what a file changes; return the key, or "" if nothing differs. prefix: of the run's record.

    Raises: RunTaken.
    """
    # Before the listing: a refused file stores nothing.
    check_change(old, new, f"{store.url}/{prefix}spec.json")
    changed = differences(old, new)
    if not changed:
        return ""
    values = [list(change) for change in changed]
    body = {
        "format": 1,
        "at_us": utc_us(),
        "by": by,
        "changed": values,
        "spec": new.to_json(),
    }
    data = canonical(body)
    earlier = _list_changes(store, prefix)
    number = max(earlier, default=0) + 1
    while True:
        key = f"{prefix}{FOLDER}{number:06d}.json"
        try:
            store.put_if_absent(key, data)
        except AlreadyExists:  # of another submit at this moment: the later number counts
            number += 1
        else:
            return key


def spec_changes(store: Store, prefix: str, run: str) -> list[SpecChange]:
    """Return the changes of a run's file, in order. Raises: Corrupt."""

    def parse(body: dict[str, Any]) -> SpecChange:
        changed = list[FieldChange]()
        for field, old, new in body["changed"]:
            changed.append(FieldChange(str(field), old, new))
        at_us = whole_number(body, "at_us")
        if at_us > LAST_US:
            raise ValueError(f"at_us = {at_us}")
        return SpecChange(
            at_us=at_us,
            by=str(body["by"]),
            changed=tuple(changed),
            spec=_own_spec(body["spec"], run),
        )

    changes = list[SpecChange]()
    listed = _list_changes(store, prefix)
    numbers = sorted(listed)
    for number in numbers:
        info = listed[number]
        change = read_object(store, info.key, "change of a run's file", parse, nbytes=info.nbytes)
        changes.append(change)
    return changes


def _list_changes(store: Store, prefix: str) -> dict[int, ObjectInfo]:
    """Return the number and object of each change. Raises: Corrupt."""
    folder = f"{prefix}{FOLDER}"
    listed = dict[int, ObjectInfo]()
    for info in store.list(folder):
        name = info.key.removeprefix(folder)
        match = _CHANGE.fullmatch(name)
        if match:
            listed[int(match[1])] = info
        if len(listed) > MOST_CHANGES:
            raise Corrupt(f"{store.url}/{folder} has more than {MOST_CHANGES:,} objects; a run has fewer")
    return listed


def spec_of_record(store: Store, key: str, run: str) -> RunSpec:
    """Return a run's first file. Raises: Corrupt; ObjectNotFound."""

    def parse(body: dict[str, Any]) -> RunSpec:
        body.pop("format", None)
        return _own_spec(body, run)

    return read_object(store, key, "file of the run", parse)


def _own_spec(body: dict[str, Any], run: str) -> RunSpec:
    spec = parse_spec(body, "the run")
    if spec.run != run:
        raise ValueError(f"run = {spec.run!r}")
    return spec
