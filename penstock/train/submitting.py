"""Submit a run, find it again, stop it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from loader.dataset.root import Root
from loader.errors import Conflict, Corrupt, InvalidCluster, InvalidSpec, RunNotFound
from loader.storage import ObjectInfo, Store

from ..checkpoints.ranks import map_in_order
from ..compute.cluster import Cluster
from ..places import check_root_or_records
from .launch.jobset import JobSets
from .launch.launcher import Launcher, RunStatus
from .launch.local_runs import LocalRuns
from .launch.run_launcher import check_launcher, claim, is_same, launcher_name, withdraw
from .launch.run_log import OWN
from .launch.run_places import check_places, create_places
from .launch.slurm_job import SlurmJobs
from .launched import user_name
from .record_objects.failed_starts import FailedStart, is_failed_start, newest_failed_start, read_failed_start
from .record_objects.spec_changes import FieldChange, SpecChange, check_change, differences
from .run_folder import AT_ONCE, ATTEMPT, EVENT, FOLDER, Event, RunFolder, interval_keys, run_objects
from .run_spec import RunSpec, check_without_secrets

LAUNCHERS: Mapping[str, Callable[[str, Cluster], Launcher]] = {
    "kubernetes": JobSets,
    "local": LocalRuns,
    "slurm": SlurmJobs,
}
"""Engine of a cluster's file -> launcher of the runs of a record."""
OVER = "it is over"
"""Last words of a launcher that gives a run up."""
GOES_ON = ("saved", "stopped", "ended")
"""Events after which an earlier failure is over."""


def record_launcher(record: str, cluster: Cluster) -> Launcher:
    """Return the launcher of a cluster for the runs of a record. Raises: InvalidCluster."""
    if cluster.engine not in LAUNCHERS:
        message = (
            f"engine = {cluster.engine!r} starts no trainings; accepted: {', '.join(sorted(LAUNCHERS))}. Inside a "
            "TorchTrainer of Ray use Run itself (docs/training.md)"
        )
        raise InvalidCluster(message, what="engine", given=cluster.engine, accepted=sorted(LAUNCHERS))
    return LAUNCHERS[cluster.engine](record, cluster)


def has_resumed(failed: FailedStart, events: Iterable[Event]) -> bool:
    """Return whether a run has gone on since a failed start. events: of the run, in any order."""
    return any(event.at_us > failed.at_us and event.name in GOES_ON for event in events)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """State of a run, from its record and its launcher."""

    run: str
    """Name."""
    status: RunStatus
    """State, from the launcher."""
    attempts: Mapping[int, Mapping[str, Any]]
    """Number of each start -> its facts."""
    events: Sequence[Event]
    """Events of all starts, in order."""
    stopping: bool
    """True if a person asked it to stop."""
    interval_step: int = 0
    """Steps done by its newest interval."""
    problem: str = ""
    """Damage in its record; "" for none."""
    failed: FailedStart | None = None
    """Newest failed start; None without one."""
    changes: Sequence[SpecChange] = ()
    """Changes of its file, in order; () in a list of all runs."""

    @property
    def step(self) -> int:
        """Most steps done at any event or interval."""
        return max((self.interval_step, *(event.step for event in self.events)))

    @property
    def newest(self) -> Event | None:
        """Newest event; None before the first."""
        if self.events:
            return self.events[-1]
        return None

    @property
    def failure(self) -> str:
        """Why its last start failed, as one line; "" if it has gone on since."""
        own = self.status.reason.removeprefix(OWN)
        is_own = self.status.state == "ended" and own != self.status.reason
        # A start without Python stores no reason; one that ended the run has stored more than its launcher wrote.
        if is_own and (self.failed is None or (not self.failed.is_over and own.endswith(OVER))):
            return f"last failure: {own}"
        if self.failed is None:
            return ""
        if has_resumed(self.failed, self.events):
            return ""
        return f"last failure: {self.failed.summary()}"

    @property
    def not_waiting(self) -> str:
        """State of a run that does not wait, with the reason of its last failure."""
        if not self.failure:
            return f"does not wait, {self.status.state}"
        words = "begins again"
        if self.status.state != "running":
            words = f"does not wait, {self.status.state}"
        return f"{words}; {self.failure}"

    def to_json(self) -> dict[str, Any]:
        """Return the facts for `--json`."""
        return {
            "failure": None if self.failed is None else asdict(self.failed),
            "run": self.run,
            "state": self.status.state,
            "place": self.status.place,
            "reason": self.status.reason,
            "attempts": len(self.attempts),
            "step": self.step,
            "newest": None if self.newest is None else self.newest.name,
            "stopping": self.stopping,
            **({"problem": self.problem} if self.problem else {}),
        }


def resize_spec(spec: RunSpec, nodes: int | None) -> RunSpec:
    """Return a run that asks for so many nodes of its range; None for all. Raises: InvalidSpec."""
    if nodes is None:
        return spec
    least, most = spec.node_range
    if not least <= nodes <= most:
        raise InvalidSpec(f"--nodes {nodes}; accepted for {spec.run}: {spec.nodes}, as its file has nodes")
    return replace(spec, nodes=str(nodes))


def changes(spec: RunSpec) -> tuple[FieldChange, ...]:
    """Return what a file changes of the run that is recorded; () for a new run. Raises: RunTaken; Corrupt."""
    folder = RunFolder(Root(spec.record).store, spec.run)
    stored = folder.read_spec()
    if stored is None:
        return ()
    check_change(stored, spec, f"{folder.store.url}/{folder.key('spec.json')}")
    return differences(stored, spec)


def submit(spec: RunSpec, launcher: Launcher, nodes: int | None = None, *, moved: bool = False) -> str:
    """Begin a run, or find it; return where it is. nodes: number of its range; None for the range.

    A file that differs where a run may change is stored, and the next start has it.

    moved: True if no job of the run waits or runs at the launcher that started it last.

    Raises: RunTaken for a file of another run under the name. Conflict if a person stopped it, or if another launcher
    starts it. InvalidSpec. EngineUnreachable. NotARoot or StoreError if its checkpoints or record cannot be written.
    """
    folder, key = _store_spec(spec, nodes)
    claimed = ""
    try:
        if folder.is_to_stop():
            message = f"{spec.run} was stopped or cancelled: penstock train resume continues it"
            raise Conflict(message, what="state", where=spec.run, given="stopped or cancelled")
        claimed = claim(folder, launcher, moved=moved)
        return launcher.submit(resize_spec(spec, nodes))
    except (Conflict, InvalidSpec, InvalidCluster):
        withdraw(folder, claimed)
        if key:
            folder.withdraw_spec(key)  # else the record would name a file that nothing runs
        raise


def resume(spec: RunSpec, launcher: Launcher, nodes: int | None = None, *, moved: bool = False) -> str:
    """Let a stopped run go on. nodes, moved: as in `submit`.

    Raises: as `submit`; Conflict while its last start is still ending.
    """
    folder, key = _store_spec(spec, nodes)
    claimed = ""
    try:
        status = launcher.status(spec.run)
        if status.is_ending or (status.state == "running" and folder.is_to_stop()):
            message = f"{spec.run} is still stopping: resume it when it has ended"
            raise Conflict(message, what="state", where=spec.run, given="stopping")
        claimed = claim(folder, launcher, moved=moved)
        # Before the submit: a start that finds the request makes no step.
        folder.withdraw_stop()
        return launcher.submit(resize_spec(spec, nodes))
    except (Conflict, InvalidSpec, InvalidCluster):
        withdraw(folder, claimed)
        if key:
            folder.withdraw_spec(key)
        raise


def _store_spec(spec: RunSpec, nodes: int | None) -> tuple[RunFolder, str]:
    """Check a run's file, make its places, and store it; return (the run's folder, key of a changed file or "")."""
    resize_spec(spec, nodes)
    check_without_secrets(spec, spec.run)
    check_places(spec)
    changes(spec)  # a file that is refused must leave no new root
    create_places(spec)
    folder = RunFolder(Root(spec.record).store, spec.run)
    return folder, folder.put_spec(spec, user_name())


def stop(folder: RunFolder, launcher: Launcher | None = None) -> str:
    """Ask a run to save and end; return what it does, in words. A run that waits leaves its queue.

    launcher: None for a run that no launcher of penstock started.

    Raises: RunNotFound; EngineUnreachable.
    """
    folder.check_exists()
    folder.ask_to_stop(user_name())
    if launcher is None or _status(folder, launcher).state != "waiting":
        return "saves and ends after its step"
    launcher.withdraw(folder.run)
    return "waited, and left the queue"


def cancel(folder: RunFolder, launcher: Launcher) -> str:
    """Kill a run for good; return where it would go on, in words.

    Raises: RunNotFound; EngineUnreachable; Conflict if another launcher starts it.

    The request to stop is stored first: a scheduler that forgets the cancel starts ranks that make no step.
    """
    folder.check_exists()
    check_launcher(folder, launcher)
    stop(folder)
    launcher.cancel(folder.run)
    # Ranks may have saved on the scheduler's SIGTERM.
    saved = [event.step for event in folder.events() if event.name == "saved"]
    if saved:
        return f"goes on after step {max(saved)}, its newest recorded checkpoint"
    return "begins at step 0, unless a checkpoint is not recorded: no save is in its record"


def summary(folder: RunFolder, launcher: Launcher | None) -> RunSummary:
    """Return how a run stands. launcher: None for a run that no launcher of penstock started.

    Raises: RunNotFound; Corrupt; EngineUnreachable.
    """
    folder.check_exists()
    return RunSummary(
        run=folder.run,
        status=_status(folder, launcher),
        attempts=folder.attempts(),
        events=folder.events(),
        stopping=folder.is_to_stop(),
        interval_step=max((key.end_step for key in folder.interval_keys()), default=0),
        failed=newest_failed_start(folder.store, folder.key("")),
        changes=folder.spec_changes(),
    )


def _status(folder: RunFolder, launcher: Launcher | None) -> RunStatus:
    if launcher is None:
        return RunStatus(state="unknown")
    recorded = launcher_name(folder)
    if recorded and not is_same(recorded, launcher.name()):
        return RunStatus(
            state="unknown", place=f"submitted to {recorded}", reason="ask there, or with --cluster FILE"
        )
    return launcher.status(folder.run)


def end_note(folder: RunFolder) -> list[str]:
    """Return a line about a run that has ended by itself; none for others, or for a damaged record."""
    try:
        events = folder.events()
    except Corrupt:
        return []
    if not events or events[-1].name != "ended":
        return []
    step = events[-1].step
    return [
        f"{folder.run} has ended after step {step}: a start makes no step, unless its script now trains longer"
    ]


def summaries(root: Root, launcher: Launcher) -> list[RunSummary]:
    """Return all runs of a record, each with its newest events only.

    Raises: NotARoot for a place without runs that is not a root, such as a typo; EngineUnreachable; StoreError.
    """
    listed = briefs(root.store)
    if not listed:
        check_root_or_records(root.store, "runs")
    statuses = launcher.statuses([brief.run for brief in listed])
    return [
        RunSummary(
            run=brief.run,
            status=statuses[brief.run],
            attempts={number: {} for number in sorted(brief.attempts)},
            events=brief.events,
            stopping=brief.stopping,
            interval_step=brief.interval_step,
            problem=brief.problem,
            failed=brief.failed,
        )
        for brief in listed
    ]


@dataclass(slots=True, kw_only=True)
class RunBrief:
    """A run as one listing and its newest events have it."""

    run: str
    """Name."""
    attempts: list[int] = field(default_factory=list)
    """Numbers of its starts."""
    events: list[Event] = field(default_factory=list)
    """Newest event; one without a step follows the newest with a step."""
    interval_step: int = 0
    """Steps done by its newest interval."""
    stopping: bool = False
    """True if a person asked it to stop."""
    problem: str = ""
    """Damage in its record; "" for none."""
    failed: FailedStart | None = None
    """Newest failed start; None without one."""
    record_key: int = 0
    """Hash of the names, sizes and times of all objects of its record, in this process: equal if none changed."""


class _Newest:
    """Objects of a run to read: its newest event, its newest event with a step, its newest failed start."""

    def __init__(self) -> None:
        # True: the newest event with a step; False: the newest of all. Each with its numbers, (attempt, number).
        self.events: dict[bool, tuple[tuple[int, int], ObjectInfo]] = {}
        self.end: ObjectInfo | None = None

    def add_event(self, numbers: tuple[int, int], info: ObjectInfo) -> None:
        """Keep an event's object if it is newer. numbers: its (attempt, number), from its key."""
        kinds = {False}
        _, number = numbers
        if number > 0:  # event 0 of a start comes before its steps
            kinds.add(True)
        for has_step in kinds:
            earlier = self.events.get(has_step)
            if earlier is None or earlier[0] < numbers:
                self.events[has_step] = numbers, info

    def add_end(self, info: ObjectInfo) -> None:
        """Keep a failed start's object if it is newer: keys begin with the time, in 16 digits."""
        if self.end is None or self.end.key < info.key:
            self.end = info


def briefs(store: Store) -> list[RunBrief]:
    """Return all runs of a record: one listing, and at most three requests for each run."""
    by_run: dict[str, RunBrief] = {}
    newest: dict[str, _Newest] = {}
    for run, info in run_objects(store):
        if not run:
            continue
        brief = by_run.setdefault(run, RunBrief(run=run))
        objects = newest.setdefault(run, _Newest())
        _add(brief, objects, info)
    runs = sorted(by_run)

    def fill(run: str) -> None:
        _fill(store, by_run[run], newest[run])

    for _ in map_in_order(fill, runs, at_once=AT_ONCE):
        pass
    return [by_run[run] for run in runs]


def run_brief(store: Store, run: str) -> RunBrief:
    """Return a run of a record: a listing, and at most three requests. Raises: RunNotFound."""
    brief = RunBrief(run=run)
    objects = _Newest()
    for info in store.list(f"{FOLDER}{run}/"):
        _add(brief, objects, info)
    if not brief.record_key:
        raise RunNotFound(f"{store.url} has no run {run!r}: penstock train ls lists them")
    _fill(store, brief, objects)
    return brief


def _add(brief: RunBrief, objects: _Newest, info: ObjectInfo) -> None:
    """Add a listed object to its run."""
    # The key of caches in this process. It changes if an object of the record comes, goes or is written again.
    # XOR: the order of a listing does not matter.
    brief.record_key ^= hash((info.key, info.nbytes, info.modified_us))
    name = info.key.removeprefix(f"{FOLDER}{brief.run}/")
    kind, _, file = name.rpartition("/")
    if name == "stop":
        brief.stopping = True
    elif is_failed_start(info):
        objects.add_end(info)
    elif kind == "windows":
        for key in interval_keys([info]):
            brief.interval_step = max(brief.interval_step, key.end_step)
    elif kind == "attempts":
        match = ATTEMPT.fullmatch(file)
        if match:
            brief.attempts.append(int(match[1]))
    elif kind == "events":
        match = EVENT.fullmatch(file)
        if match:
            attempt = int(match[1])
            number = int(match[2])
            objects.add_event((attempt, number), info)


def _fill(store: Store, brief: RunBrief, objects: _Newest) -> None:
    """Read the newest objects of a run. One damaged record hides no other run."""
    folder = RunFolder(store, brief.run)
    keys = dict(objects.events.values())  # (attempt, number) -> object; one, if the newest event has a step
    for numbers in sorted(keys):
        try:
            event = folder.event(numbers, keys[numbers])
        except Corrupt as error:
            brief.problem = str(error)
        else:
            brief.events.append(event)
    if objects.end is None:
        return
    try:
        brief.failed = read_failed_start(store, objects.end)
    except Corrupt as error:
        brief.problem = str(error)
