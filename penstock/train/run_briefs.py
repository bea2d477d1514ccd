"""All runs of a record in brief: one listing, and the newest objects of each."""

from dataclasses import dataclass, field

from loader.errors import Corrupt
from loader.storage import ObjectInfo, Store

from ..checkpoints.ranks import several
from .objects.failed_starts import FailedStart, is_failed_start, read_failed_start
from .run_folder import AT_ONCE, ATTEMPT, EVENT, FOLDER, Event, RunFolder, named_objects, window_keys


@dataclass(slots=True, kw_only=True)
class RunBrief:
    """A run as one listing and its newest events have it."""

    run: str
    """Name."""
    attempts: list[int] = field(default_factory=list)
    """Numbers of its starts."""
    events: list[Event] = field(default_factory=list)
    """Newest event, behind the newest with a step if it has none."""
    window_step: int = 0
    """Steps done by its newest window."""
    stopping: bool = False
    """True if a person asked it to stop."""
    problem: str = ""
    """Damage in its record; "" for none."""
    failed: FailedStart | None = None
    """Newest failed start; None without one."""


def briefs(store: Store) -> list[RunBrief]:
    """Return all runs of a record: one listing, and at most three requests for each run."""
    by_run: dict[str, RunBrief] = {}
    ends: dict[str, ObjectInfo] = {}
    newest: dict[tuple[str, bool], tuple[tuple[int, int], ObjectInfo]] = {}
    for run, info in named_objects(store):
        if not run:
            continue
        name = info.key.removeprefix(f"{FOLDER}{run}/")
        brief = by_run.setdefault(run, RunBrief(run=run))
        kind, _, file = name.rpartition("/")
        if kind == "attempts" and (match := ATTEMPT.fullmatch(file)):
            brief.attempts.append(int(match[1]))
        elif kind == "windows":
            brief.window_step = max([brief.window_step, *(key.end_step for key in window_keys([info]))])
        elif kind == "events" and (match := EVENT.fullmatch(file)):
            numbered = (int(match[1]), int(match[2])), info
            for has_step in {False, int(match[2]) > 0}:  # the first event of a start comes before its steps
                earlier = newest.get((run, has_step), numbered)
                newest[run, has_step] = max(earlier, numbered, key=lambda item: item[0])
        elif is_failed_start(info):
            ends[run] = max(ends.get(run, info), info, key=lambda item: item.key)
        brief.stopping |= name == "stop"
    listed = {(run, numbers): info for (run, _), (numbers, info) in newest.items()}
    keys = sorted(listed)

    def read(key: tuple[str, tuple[int, int]]) -> Event | str:
        run, numbers = key
        try:
            return RunFolder(store, run).event(numbers, listed[key])
        except Corrupt as error:  # one damaged record hides no other run
            return str(error)

    for (run, *_), event in zip(keys, several(read, keys, at_once=AT_ONCE), strict=True):
        if isinstance(event, Event):
            by_run[run].events.append(event)
        else:
            by_run[run].problem = event

    def read_end(info: ObjectInfo) -> FailedStart | str:
        try:
            return read_failed_start(store, info)
        except Corrupt as error:
            return str(error)

    for run, failed in zip(ends, several(read_end, ends.values(), at_once=AT_ONCE), strict=True):
        if isinstance(failed, FailedStart):
            by_run[run].failed = failed
        else:
            by_run[run].problem = failed
    return [by_run[run] for run in sorted(by_run)]
