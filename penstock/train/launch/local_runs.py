"""Runs on this machine: torchrun in a loop, in a process that outlives the command.

The process holds a lock on a file of the run's name, so every command of this user sees whether it lives. Its ranks
hold another one: the run has no second gang while one of them lives, whatever became of the process.
"""

import fcntl
import hashlib
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from loader.dataset.root import Root
from loader.errors import Conflict, EngineUnreachable, InvalidSpec

from ...compute.cluster import Cluster
from ...compute.engines.slurm import SlurmQueue
from ...compute.locked_processes import LockedProcesses, holders, kill_all, pass_lock
from ..launched import user_name
from ..run_folder import RunFolder
from ..run_spec import RunSpec
from . import local_loop
from .launcher import NEXT_START, RunStatus, Span
from .node_start import torchrun
from .run_log import (
    RANKS,
    SPANS,
    LogPart,
    MissingLog,
    RankStart,
    exit_status,
    log_part,
    missing_log,
    newest_part,
    parse_starts,
    ranks_of_starts,
    run_text,
    start_part,
    time_us,
)

END_S = 10.0
"""Seconds that a cancelled run has before SIGKILL."""
LOOKS = 40
"""Tries to lock the file of a run, 50 ms apart."""
RANKS_KIND = f"log{RANKS}"
"""Kind of the file that ranks lock."""


class LocalRuns:
    """Starts the runs of one record, each as a process of this machine."""

    def __init__(self, record: str, cluster: Cluster | None = None) -> None:
        self._record = Root(record).url
        self._processes = LockedProcesses("trainings")
        self._begun: list[
            subprocess.Popen[bytes]
        ] = []  # children that outlive this process, or are reaped by it

    def name(self) -> str:
        """See `Launcher.name`: other users, and other folders of temporary files, have other locks."""
        user = user_name() or os.getuid()
        folder = self._processes.folder.parent
        return f"machine {socket.gethostname()}, user {user}, TMPDIR {folder}"

    def describe(self, spec: RunSpec) -> str:
        """See `Launcher.describe`."""
        _refuse(spec)
        return shlex.join(torchrun(spec))

    def notes(self, spec: RunSpec) -> list[str]:
        """See `Launcher.notes`."""
        most = spec.node_range[1]
        if most > 1:
            return [f"nodes = {spec.nodes!r} is 1 on this machine"]
        return []

    def check(self, spec: RunSpec) -> str:
        """See `Launcher.check`."""
        _refuse(spec)
        return "this machine starts it at once"

    def submit(self, spec: RunSpec) -> str:
        """See `Launcher.submit`."""
        _refuse(spec)
        self._processes.check_folder()
        name = self._name(spec.run)
        log = self._path(spec.run, "log")
        with (
            self._processes.open(name, "lock", "a+") as lock,
            self._processes.open(name, "log", "ab") as output,
        ):
            # The run lives: its loop takes the changed file at the next start.
            if not self._locked(lock, spec.run):
                is_changed = local_loop.put_file(self._path(spec.run, "spec"), spec)
                place = self._place(spec.run)
                if is_changed:
                    place += f"; {NEXT_START}"
                return place
            self._check_no_ranks(spec.run)
            local_loop.put_file(self._path(spec.run, "spec"), spec)
            process = subprocess.Popen(
                # -P instead of PYTHONSAFEPATH, which ranks would inherit: a script imports what is beside it.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    local_loop.__name__,
                    str(log),
                    str(self._path(spec.run, "spec")),
                ],
                # By standard input, since every user of the machine sees a command line.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
                pass_fds=[lock.fileno()],  # the lock is the process's from here on
                # A hang-up or Ctrl-C of the terminal must not reach the run.
                start_new_session=True,
            )
            assert process.stdin is not None
            with process.stdin:
                process.stdin.write(json.dumps(spec.to_json()).encode())
            pass_lock(lock, process.pid)
            self._begun.append(process)
        return self._place(spec.run)

    def _locked(self, lock: IO[str], run: str) -> bool:
        """Lock a file; return False if a run holds it. A command that looks at the run holds it for a moment, too."""
        for _ in range(LOOKS):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._process(run) is not None:
                    return False
                time.sleep(0.05)
            else:
                return True
        return False

    def _check_no_ranks(self, run: str) -> None:
        """Wait a moment for ranks whose launcher was killed: the kernel kills them. Raises: Conflict if some live."""
        name = self._name(run)
        for _ in range(LOOKS):
            if not self._processes.is_held(name, RANKS_KIND):
                return
            time.sleep(0.05)
        ranks = self._ranks(run)
        raise Conflict(
            f"{run}: its launcher was killed, and {ranks} of its last start still run on this machine. "
            "Wait for their end, or end them: penstock train cancel, then penstock train resume",
            what="processes",
            where=run,
            given=ranks,
        )

    def _ranks(self, run: str) -> str:
        """Return the processes of the ranks, in words."""
        numbers = holders(self._path(run, RANKS_KIND))
        if numbers:
            return f"processes {', '.join(map(str, numbers))}"
        return "processes"

    def status(self, run: str) -> RunStatus:
        """See `Launcher.status`."""
        name = self._name(run)
        if not self._processes.exists(name):
            return RunStatus(state="unknown")
        self._begun = [process for process in self._begun if process.poll() is None]
        if self._processes.is_locked(name):
            return RunStatus(state="running", place=self._place(run))
        if self._processes.is_held(name, RANKS_KIND):
            reason = (
                "its launcher was killed: nothing starts it again, and penstock train cancel ends its ranks"
            )
            return RunStatus(state="running", place=f"{self._ranks(run)} of this machine", reason=reason)
        return RunStatus(
            state="ended", place=self._place(run), exit_status=exit_status(self._starts_lines(run))
        )

    def statuses(self, runs: Sequence[str]) -> dict[str, RunStatus]:
        """See `Launcher.statuses`."""
        return {run: self.status(run) for run in runs}

    def why(self, run: str) -> str:
        """See `Launcher.why`."""
        return ""

    def cancel(self, run: str) -> None:
        """See `Launcher.cancel`."""
        name = self._name(run)
        until_s = time.monotonic() + END_S
        while self._processes.is_locked(name) or self._processes.is_held(name, RANKS_KIND):
            pid = self._process(run)
            if pid is not None:
                # Its children too: ranks would go on without their launcher.
                kill_all(_descendants(pid))
            kill_all(holders(self._path(run, RANKS_KIND)))
            if time.monotonic() > until_s:
                message = f"{pid or self._ranks(run)} of {run} does not end; cancel again"
                raise EngineUnreachable(message, what="processes", where=run, given=pid)
            time.sleep(0.05)

    def withdraw(self, run: str) -> None:
        """See `Launcher.withdraw`: nothing waits here."""

    def spans(self, run: str) -> list[Span]:
        """See `Launcher.spans`."""
        name = self._name(run)
        is_alive = self._processes.exists(name) and self._processes.is_locked(name)
        return spans_of_loop(self._starts_lines(run), is_alive=is_alive)

    def logs(self, run: str, rank: int | None = None, start: int | None = None) -> str:
        """See `Launcher.logs`."""
        if rank is not None:
            rank = self.label(run, rank)
        if not self._processes.exists(self._name(run), "log"):
            return ""
        return run_text(SlurmQueue().answer, str(self._path(run, "log")), rank, start)

    def log_part(self, run: str, begin: int | None, end: int | None = None) -> LogPart:
        """See `Launcher.log_part`."""
        if not self._processes.exists(self._name(run), "log"):
            return LogPart("", 0)
        return log_part(SlurmQueue().answer, str(self._path(run, "log")), begin, end)

    def log_range(self, run: str, start: int | None = None) -> tuple[int, int | None]:
        """See `Launcher.log_range`."""
        if not self._processes.exists(self._name(run), "log"):
            return 0, None
        log = str(self._path(run, "log"))
        if start is None:
            return newest_part(SlurmQueue().answer, log)
        return start_part(SlurmQueue().answer, log, start)

    def label(self, run: str, rank: int) -> int | None:
        """See `Launcher.label`."""
        if rank != 0:
            return rank
        counts = [*ranks_of_starts(self._starts_lines(run))]
        if 0 in counts:  # of an earlier release, where all starts had the number of the run's first file
            spec = RunFolder(Root(self._record).store, run).first_spec()
            counts.append(1 if spec is None else spec.ranks_per_node)
        if max(counts, default=1) > 1:
            return rank
        return None

    def missing_log(self, run: str) -> MissingLog | None:
        """See `Launcher.missing_log`."""
        return missing_log(SlurmQueue().answer, str(self._path(run, "log")))

    def _starts_lines(self, run: str) -> list[str]:
        """Return the lines of the run's file of starts; none without one."""
        try:
            with self._processes.open(self._name(run), f"log{SPANS}") as file:
                lines: list[str] = file.read().splitlines()
                return lines
        except FileNotFoundError:
            return []

    def _place(self, run: str) -> str:
        pid = self._process(run)
        if pid is not None:
            words = f"process {pid}"
        else:
            words = "new process" if self._processes.is_locked(self._name(run)) else "process ended"
        return f"{words} of this machine, log {self._path(run, 'log')}"

    def _name(self, run: str) -> str:
        return f"{hashlib.sha256(self._record.encode()).hexdigest()[:12]}-{run}"

    def _path(self, run: str, kind: str) -> Path:
        return self._processes.path(self._name(run), kind)

    def _process(self, run: str) -> int | None:
        return self._processes.pid(self._name(run))


def spans_of_loop(lines: Iterable[str], *, is_alive: bool) -> list[Span]:
    """Return the time of each start on this machine, with the back-off up to the next one.

    lines: of starts. is_alive: True if the process lives that begins the run again.
    """
    spans = list[Span]()
    loop_pid = None  # of the newest start; None once it has ended, and for starts of an earlier release
    for times in parse_starts(lines):
        begun_us = time_us(times, "begun_us")
        ended_us = time_us(times, "ended_us")
        if begun_us is not None:
            own_loop = times.get("loop_pid")
            if spans and own_loop is not None and own_loop == loop_pid:
                spans[-1] = replace(spans[-1], ended_us=begun_us)
            loop_pid = own_loop
            spans.append(Span(begun_us=begun_us, ended_us=None))
        elif spans and ended_us is not None:
            start = RankStart(begun_us=spans[-1].begun_us, ended_us=ended_us)
            spans[-1] = replace(spans[-1], ended_us=ended_us, starts=(start,))
        elif "exit_us" in times:
            loop_pid = None
    if spans and is_alive and loop_pid is not None:
        spans[-1] = replace(spans[-1], ended_us=None)  # it runs, or waits for its next start
    return spans


def _refuse(spec: RunSpec) -> None:
    """Raise InvalidSpec for a key that this machine cannot honour."""
    if spec.node_range[0] > 1:
        message = f"{spec.run}: nodes = {spec.nodes!r}, and this machine is one node; {_ELSEWHERE}"
        raise InvalidSpec(message, what="nodes", where=spec.run, given=spec.nodes, accepted=1)
    for name in ("gpus_per_node", "priority", "walltime_s", "srun"):
        if value := getattr(spec, name):
            message = f"{spec.run}: {name} = {value!r} needs a scheduler; {_ELSEWHERE}"
            raise InvalidSpec(message, what=name, where=spec.run, given=value)


_ELSEWHERE = "remove it, or pass --cluster FILE of a Slurm or Kubernetes"


def _descendants(pid: int) -> list[int]:
    """Return a process and all that it began, the oldest first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # A process's name may hold spaces and brackets; the parent is the second word after the last bracket.
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    results = [pid]
    for parent in results:
        # The list grows while the loop walks it, generation by generation.
        results += [child for child, of in parents.items() if of == parent]
    return results
