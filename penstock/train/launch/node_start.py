"""Begin the ranks of a node by torchrun, and tell a stop from a failure.

torchrun ends with 1 whatever its ranks end with, so local rank 0 leaves a file if the run is to begin again. Options
keep torchrun from dying of SIGUSR1, and from killing its ranks 30 s after SIGTERM.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from loader.dataset.root import Root

from ...compute.locked_processes import holders, kill_all
from ..code.snapshot import rank_command
from ..run import AGAIN
from ..run_spec import RunSpec
from ..step_file import VARIABLE, read_last_step
from ..stop import SIGNALS
from . import rank_guard
from .failures import RankFailure, is_error, read_failure
from .run_log import TEE

COMMAND = "--no-python"
"""torchrun's option before the command of a rank."""


def torchrun(spec: RunSpec, *, tee: bool = False) -> list[str]:
    """Return the command that begins the ranks of this machine.

    tee: True to put a rank's name before its lines even if it is the only one.
    """
    names = ",".join(number.name for number in SIGNALS)
    options = [f"--nproc-per-node={spec.ranks_per_node}", f"--signals-to-handle={names}"]
    # torchrun's own restarts would begin ranks without a new number of the start.
    options += [f"--shutdown-timeout={spec.grace_s}", "--max-restarts=0"]
    if tee or spec.ranks_per_node > 1:
        options += TEE
    return [
        sys.executable,
        "-P",  # the current folder may have a file of a name that torchrun imports
        "-m",
        "torch.distributed.run",
        "--standalone",
        *options,
        COMMAND,
        *rank_command(spec, sys.executable),
    ]


def environment(spec: RunSpec, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a run's processes."""
    record = spec.record
    checkpoints = spec.checkpoints or spec.record
    if spec.snapshot:  # its ranks have another current folder
        record = Root(record).url
        checkpoints = Root(checkpoints).url
    return {
        **base,
        **spec.env,
        "PENSTOCK_RUN": spec.run,
        "PENSTOCK_RECORD": record,
        "PENSTOCK_CHECKPOINTS": checkpoints,
        "PENSTOCK_GRACE_S": str(spec.grace_s),
        "PENSTOCK_RANKS_PER_NODE": str(spec.ranks_per_node),
        **({"PENSTOCK_TRACKERS": ",".join(spec.trackers)} if spec.trackers else {}),
    }


def run_node(
    command: Sequence[str], environ: Mapping[str, str], lock: str | os.PathLike[str] | None = None
) -> tuple[int, RankFailure]:
    """Run a node's ranks to their end; return 0, 75 to begin again, or another status for a failure.

    Also returns the traceback of a rank, if the lines of ranks have their names, and the first rank's last step.
    A signal to this process goes on to torchrun, which passes it to its ranks. SIGKILL to this process ends them all.

    lock: File that torchrun and the ranks lock together while they live.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-run-") as folder:
        stopped = Path(folder, "stopped")
        command = [*command]
        lock = lock or Path(folder, "lock")
        # O_NOFOLLOW, O_NONBLOCK: a link or a pipe of this name must not be opened.
        os.close(os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600))
        if TEE[0] in command:
            command.insert(command.index(TEE[0]), f"--log-dir={folder}/logs")
            environ = {"PYTHONUNBUFFERED": "1", **environ}  # else torchrun passes lines on late
        files = {"PENSTOCK_STOPPED": str(stopped), VARIABLE: f"{folder}/step"}
        process = subprocess.Popen(
            _guard_command(command, lock), env={**environ, **files}, start_new_session=True
        )

        def forward_signal(number: int, frame: FrameType | None) -> None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)  # `send_signal` would wait for it, and give its number back

        before = {number: signal.signal(number, forward_signal) for number in SIGNALS}
        try:
            # Its number stays its own until `wait`, so that no other process gets the signal below.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            _end_session(process.pid, lock)
            status = process.wait()
        failure = replace(_failure(Path(folder, "logs")), last_step=read_last_step(f"{folder}/step"))
        return AGAIN if stopped.exists() else status, failure


def _failure(logs: Path) -> RankFailure:
    """Return the earliest traceback in the files of ranks; an empty one without.

    The other ranks fail by the first one: their words on a lost connection differ from start to start.
    """
    # By time of the last write: the rank that failed first wrote last before the others did.
    files = sorted(logs.rglob("stderr.log"), key=lambda path: path.stat().st_mtime_ns)
    for path in files:
        failure = read_failure(str(path))
        if is_error(failure.line):
            return failure
    return RankFailure()


def _guard_command(command: Sequence[str], lock: str | os.PathLike[str]) -> list[str]:
    """Return torchrun's command with guards before itself and before the command of a rank."""
    guard = [sys.executable, "-IS", rank_guard.__file__, os.fspath(lock)]
    begin = command.index(COMMAND) + 1 if COMMAND in command else len(command)
    rank = [*guard, "0"] if begin < len(command) else []
    return [*guard, str(os.getpid()), *command[:begin], *rank, *command[begin:]]


def _end_session(pid: int, lock: str | os.PathLike[str]) -> None:
    """End torchrun and the ranks that it left behind, which have sessions of their own."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    kill_all(holders(lock))
