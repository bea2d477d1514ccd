"""Call Slurm's commands: submit, find, poll and cancel array jobs by name.

Only the controller's answer counts. A failed command is no evidence about a job.
"""

import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loader.errors import EngineUnreachable, InvalidCluster

ANSWER_S = 60.0
"""Time limit of a command, in s."""
KILL_AFTER_S = 5.0
"""Cancelled elements receive SIGKILL after this time, in s; Slurm's own KillWait is 30."""
CANCEL_S = 120.0
"""Elements on a lost node stay in the queue until Slurm declares the node down."""
LOG_BYTES = 64 * 2**10

HELD = "launch failed requeued held"
"""Slurm's reason for an element whose launch failed."""
PLAIN = {
    HELD: "the launch failed, and penstock lets it begin again",
    "BadConstraints": "no node of the partition has what the slot asks for",
    "BeginTime": "a moment until the next start",
    "JobArrayTaskLimit": "as many run as the cluster's file has slots",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "its owner holds it: scontrol release",
    "Licenses": "no licence is free",
    "PartitionDown": "the partition takes no jobs at the moment",
    "PartitionInactive": "the partition takes no jobs at the moment",
    "PartitionNodeLimit": "the slot asks for more than the partition gives",
    "PartitionTimeLimit": "limit_s is above the partition's limit",
    "Priority": "others are ahead in the queue",
    "ReqNodeNotAvail": "nodes are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "Resources": "all nodes that fit are busy, down or drained",
}
"""Slurm's reason -> plain words; see also `plain`."""
WAITING = frozenset(
    {
        *("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"),
        *("SPECIAL_EXIT", "STOPPED", "SUSPENDED"),
    }
)
RUNNING = frozenset({"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"})
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)

_REFUSED = (
    "Batch job submission failed",
    "invalid ",
    "Invalid ",
    "unrecognized option",
    "not found",
    "not permitted",
)
_SILENT = ("contact slurm controller", "onnect", "timed out", "emporar", "standby", "Zero Bytes")
"""sbatch refused if it prints one of the first words and none of the second; else a job may have begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Elements of all arrays of one name."""

    states: Mapping[str, int]
    """Slurm's state -> number of elements."""
    reasons: Mapping[str, int]
    """Slurm's reason for waiting -> number of elements."""

    held: Sequence[str]
    """Ids of elements that Slurm holds after a failed launch."""
    jobs: Sequence[str] = ()
    """Jobs with their partitions: '12 in partition long'."""

    def count(self, words: frozenset[str]) -> int:
        """Return the number of elements in these states."""
        return sum(n for word, n in self.states.items() if word in words)

    @property
    def reason(self) -> str:
        """Reasons for waiting, most frequent first: 'Priority (2): others are ahead in the queue'."""
        ordered = sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        return "; ".join(f"{reason} ({n}){plain(reason)}" for reason, n in ordered)

    @property
    def place(self) -> str:
        """Where Slurm's commands find the elements: 'Slurm job 12 in partition long'."""
        more = f" and {len(self.jobs) - 1} more" if len(self.jobs) > 1 else ""
        return f"Slurm job {self.jobs[0]}{more}" if self.jobs else ""


def plain(reason: str) -> str:
    """Return ': ' and plain words for a reason of Slurm, or ""."""
    word = reason.partition(",")[0].partition(" ")[0]
    text = PLAIN.get(reason) or PLAIN.get(word)
    if text is None and word.startswith(("Assoc", "QOS", "MaxJob")):
        text = "a limit of the account or of its quality of service"
    return f": {text}" if text else ""


class SlurmQueue:
    """Slurm's commands, local or behind a prefix such as ["ssh", "login1"], which takes one line for a shell."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._prefix = tuple(prefix)

    def submit(self, script: str, options: Sequence[str]) -> None:
        """Pass a script to sbatch. Raises: EngineUnreachable; InvalidCluster for a refusal."""
        ended = self._run(["sbatch", "--parsable", *options], script)
        if ended.returncode:
            message = ended.stderr.strip()
            if any(word in message for word in _REFUSED) and not any(word in message for word in _SILENT):
                raise InvalidCluster(
                    f"Slurm refuses the job: {message}; see queue, account and slot of the cluster"
                )
            raise EngineUnreachable(f"sbatch ended with {ended.returncode}: {message or 'no message'}")

    def elements(self, name: str) -> Elements:
        """Return the controller's elements. Raises: EngineUnreachable.

        The controller forgets an element MinJobAge (300 s) after its end. Elements cancelled before their start count
        as one.
        """
        lines = self._answer(["squeue", "-h", "-r", "-a", "-t", "all", f"--name={name}", "-o", "%i|%P|%T|%r"])
        states: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        held = []
        jobs: dict[str, str] = {}
        for line in lines.splitlines():
            element, partition, state, reason = line.strip().split("|", 3)
            number = element.partition("_")[0]
            jobs[number] = f"{number} in partition {partition}"
            states[state] += 1
            if state in WAITING and reason != "None":
                reasons[reason] += 1
                if reason == HELD:
                    held.append(element)
        newest = [jobs[number] for number in sorted(jobs, key=int)]
        return Elements(states=states, reasons=reasons, held=held, jobs=newest)

    def release(self, elements: Sequence[str]) -> None:
        """Release held elements. Raises: EngineUnreachable."""
        if elements:  # fails too for one that ended meanwhile: who looks again sees what is still held
            self._run(["scontrol", "release", ",".join(elements)])

    def cancel(self, name: str) -> None:
        """Cancel all elements of a name; return when the last process has ended. Raises: EngineUnreachable."""
        begun = time.monotonic()
        self._answer(["scancel", f"--name={name}"])
        while (elements := self.elements(name)).count(WAITING | RUNNING):
            lasted = time.monotonic() - begun
            if lasted > CANCEL_S:
                raise EngineUnreachable(
                    f"{elements.count(WAITING | RUNNING)} elements of {name} have not ended after {CANCEL_S:.0f} s; "
                    "cancel again"
                )
            kill = ["--signal=KILL", "--full"] if lasted > KILL_AFTER_S else []
            self._answer(["scancel", *kill, f"--name={name}"])
            time.sleep(0.5)

    def tail(self, path: str) -> str:
        """Return the last 64 KiB of a file, or "". Raises: EngineUnreachable."""
        line = f"if [ -e {shlex.quote(path)} ]; then tail -c {LOG_BYTES} {shlex.quote(path)}; fi"
        return self._answer(["sh", "-c", line])

    def _answer(self, command: Sequence[str]) -> str:
        ended = self._run(command)
        if ended.returncode:
            raise EngineUnreachable(
                f"{command[0]} ended with {ended.returncode}: {ended.stderr.strip() or 'no message'}"
            )
        return ended.stdout

    def _run(self, command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
        full = [*self._prefix, shlex.join(command)] if self._prefix else list(command)
        try:
            return subprocess.run(
                full, input=text, capture_output=True, text=True, errors="replace", timeout=ANSWER_S
            )
        except FileNotFoundError as error:
            raise InvalidCluster(
                f"there is no command {full[0]!r} here; install Slurm's commands, or give the cluster "
                'submit = ["ssh", "<login node>"]'
            ) from error
        except subprocess.TimeoutExpired as error:
            raise EngineUnreachable(f"{command[0]} did not answer within {ANSWER_S:.0f} s") from error
