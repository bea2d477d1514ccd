"""The launcher of a run, in its record: a run on one machine or cluster is not started a second time on another.

    trainings/<run>/launchers/<n, 6 digits>.json     who starts the run from now on

The next number is created once, so of two submits at one moment only one goes on.
"""

import re
from typing import Any

from loader.dataset.log.entries import canonical
from loader.errors import AlreadyExists, Conflict, Corrupt, ObjectNotFound

from ...text import clean
from ...units import utc_us
from ..launched import user_name
from ..record_objects.json_object import read_object, whole_number
from ..run_folder import FORMAT, RunFolder
from .launcher import Launcher
from .local_runs import LocalRuns

_NUMBER = re.compile(r"/launchers/([0-9]{6})\.json$")
NAME_CHARS = 200
_EARLIER = {"slurm": "Slurm", "kubernetes": "Kubernetes"}
"""First word of a start's `launcher` -> first word of its launcher's name."""


def launcher_name(folder: RunFolder) -> str:
    """Return the name of the launcher that starts a run; "" if none is recorded. Raises: Corrupt; StoreError."""
    return _newest(folder)[1]


def check_launcher(folder: RunFolder, launcher: Launcher) -> None:
    """Raise Conflict if another launcher starts the run. Raises: Corrupt; StoreError; EngineUnreachable."""
    recorded = launcher_name(folder)
    if not recorded:
        return
    name = launcher.name()
    if not is_same(recorded, name):
        raise Conflict(
            _elsewhere(folder, recorded, name),
            what="launcher",
            where=folder.run,
            given=name,
            accepted=recorded,
        )


def claim(folder: RunFolder, launcher: Launcher, *, moved: bool = False) -> str:
    """Record the launcher that starts a run from now on; return the key of a new record, else "".

    moved: True if no job of the run waits or runs at the recorded launcher.

    Raises: Conflict if another launcher starts the run; Corrupt; StoreError; EngineUnreachable.
    """
    name = launcher.name()
    number, recorded = _newest(folder)
    if number and recorded == name:
        return ""
    is_elsewhere = recorded and not is_same(recorded, name)
    # Two gangs under one name would overwrite each other's checkpoints.
    if is_elsewhere and not moved and not _has_ended_here(folder, recorded):
        raise Conflict(
            _elsewhere(folder, recorded, name),
            what="launcher",
            where=folder.run,
            given=name,
            accepted=recorded,
        )
    key = _key(folder, number + 1)
    body = {
        "format": FORMAT,
        "at_us": utc_us(),
        "by": user_name(),
        "launcher": name,
    }
    try:
        folder.store.put_if_absent(key, canonical(body))
    except AlreadyExists:  # another submit at this moment
        check_launcher(folder, launcher)
        return ""
    return key


def first_claim_us(folder: RunFolder) -> int:
    """Return when a launcher first took the run, in UTC microseconds; 0 if it is not recorded. Raises: Corrupt."""

    def parse(body: dict[str, Any]) -> int:
        return whole_number(body, "at_us")

    try:
        return read_object(folder.store, _key(folder, 1), "launcher", parse)
    except ObjectNotFound:  # of an earlier release
        return 0


def withdraw(folder: RunFolder, key: str) -> None:
    """Delete the record of a launcher that refused the run. key: as `claim` returned it."""
    if key:
        folder.store.delete_many([key])


def is_same(recorded: str, name: str) -> bool:
    """Return whether a launcher's name is the recorded one. A start of an earlier release has only its first word."""
    if recorded in _EARLIER.values():
        return name.startswith(recorded)
    return recorded == name


def _has_ended_here(folder: RunFolder, recorded: str) -> bool:
    """Return whether this machine started the run, and no process of it lives."""
    here = LocalRuns(folder.store.url)
    if recorded != here.name():
        return False
    status = here.status(folder.run)
    return status.state != "running"


def _elsewhere(folder: RunFolder, recorded: str, name: str) -> str:
    remedy = "pass --cluster FILE of it"
    if recorded.startswith("machine"):
        remedy = "run this command there"
    return (
        f"{folder.run} was submitted to {recorded}, and this is {name}; two launchers would train it twice: {remedy}. "
        "If nothing of it waits or runs there any more, pass --moved to submit or resume"
    )


def _key(folder: RunFolder, number: int) -> str:
    return folder.key(f"launchers/{number:06d}.json")


def _newest(folder: RunFolder) -> tuple[int, str]:
    """Return number and name of the newest record; 0 and the newest start's kind of launcher without one."""
    newest = 0
    for info in folder.store.list(folder.key("launchers/")):
        match = _NUMBER.search(info.key)
        if match:
            newest = max(newest, int(match[1]))
    if not newest:
        return 0, _of_starts(folder)

    def parse(body: dict[str, Any]) -> str:
        return clean(body["launcher"], NAME_CHARS)

    name = read_object(folder.store, _key(folder, newest), "launcher", parse)
    return newest, name


def _of_starts(folder: RunFolder) -> str:
    """Return "Slurm" or "Kubernetes" if it began the newest start; "" otherwise, and for a damaged record."""
    try:
        starts = folder.attempts()
    except Corrupt:
        return ""
    if not starts:
        return ""
    newest = starts[max(starts)]
    words = str(newest.get("launcher", ""))
    kind, _, _ = words.partition(" ")
    return _EARLIER.get(kind, "")
