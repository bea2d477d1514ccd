"""Slurm as an engine: an attempt is one or more arrays with one name, and each element is a runner.

A failed command proves nothing about a job: only the controller's answer counts.
"""

import logging
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loader.errors import EngineUnreachable, InvalidCluster
from loader.keywords import check_whole_number

from .engine import AttemptState, AttemptStatus
from .slurm_arrays import Array, attempt_arrays

_logger = logging.getLogger(__name__)
ANSWER_S = 60.0
"""Timeout of a command, in s."""
KILL_AFTER_S = 5.0
"""Seconds until cancelled elements receive SIGKILL; Slurm's own KillWait is 30."""
CANCEL_S = 120.0
"""Longest wait for elements to end, in s: a lost node must first be declared down."""
LOG_BYTES = 64 * 2**10

HELD = frozenset({"launch failed requeued held", "JobHoldMaxRequeue"})
"""Slurm's reason codes for a job held for ever: its launch failed, or its first node was lost five times."""
_DENIED = "permission denied"
PLAIN = {
    "launch failed requeued held": "the launch failed, and penstock lets it begin again",
    "JobHoldMaxRequeue": "its first node was lost five times, and only an operator of Slurm may release it",
    "BadConstraints": "no node of the partition has what the slot asks for",
    "BeginTime": "a moment until the next start",
    "JobArrayTaskLimit": "as many run as the cluster's file has slots",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": "its owner holds it: scontrol release",
    "Licenses": "no licence is free",
    "MaxMemPerLimit": "it asks for more memory than the partition gives",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": (
        "too few nodes are in service"
    ),
    "PartitionConfig": "the partition never gives what it asks for",
    "PartitionDown": "the partition takes no jobs at the moment",
    "PartitionInactive": "the partition takes no jobs at the moment",
    "PartitionNodeLimit": "the slot asks for more than the partition gives",
    "PartitionTimeLimit": "limit_s is above the partition's limit",
    "Priority": "others are ahead in the queue",
    "ReqNodeNotAvail": "nodes are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "Resources": "all nodes that fit are busy, down or drained",
}
"""Slurm reason code -> plain English; see also `plain`."""
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
    "allocation failure",
    "invalid ",
    "Invalid ",
    "unrecognized option",
    "not found",
    "not permitted",
)
_SILENT = ("contact slurm controller", "onnect", "timed out", "emporar", "standby", "Zero Bytes")
"""Slurm refuses a job if sbatch's message has an entry of the first tuple and none of the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """Elements of all arrays with one name."""

    states: Mapping[str, int]
    """Slurm state -> number of elements."""
    reasons: Mapping[str, int]
    """Slurm reason code -> number of waiting elements."""

    held: Sequence[str]
    """Ids of elements that Slurm holds after failed launches or lost nodes."""
    jobs: Sequence[str] = ()
    """Slurm jobs with their partitions: '12 in partition long'."""

    def count(self, words: frozenset[str]) -> int:
        """Return the number of elements in these states."""
        return sum(n for word, n in self.states.items() if word in words)

    @property
    def reason(self) -> str:
        """Reason codes, most frequent first: 'Priority (2): others are ahead in the queue'."""
        ordered = sorted(self.reasons.items(), key=lambda pair: (-pair[1], pair[0]))
        return "; ".join(f"{reason} ({n}){plain(reason)}" for reason, n in ordered)

    @property
    def place(self) -> str:
        """Human-readable location: 'Slurm job 12 in partition long'."""
        more = ""
        if len(self.jobs) > 1:
            more = f" and {len(self.jobs) - 1} more"
        if self.jobs:
            return f"Slurm job {self.jobs[0]}{more}"
        return ""


def plain(reason: str) -> str:
    """Return ': ' and plain English for a Slurm reason code, or ""."""
    word = reason.partition(",")[0].partition(" ")[0]
    text = PLAIN.get(reason) or PLAIN.get(word)
    if text is None and word.startswith(("Assoc", "QOS", "MaxJob")):
        text = "a limit of the account or of its quality of service"
    return f": {text}" if text else ""


class SlurmQueue:
    """Slurm's commands, run locally or by a prefix such as ["ssh", "login1"], which receives one line."""

    def __init__(self, prefix: Sequence[str] = ()) -> None:
        self._prefix = tuple(prefix)

    def submit(self, script: str, options: Sequence[str]) -> str:
        """Pass a script to sbatch; return the job's id. Raises: EngineUnreachable; InvalidCluster for a refusal."""
        ended = self._run(["sbatch", "--parsable", *options], script)
        if ended.returncode:
            message = ended.stderr.strip()
            if any(word in message for word in _REFUSED) and not any(word in message for word in _SILENT):
                refusal = f"Slurm refuses the job: {message}; see queue, account and slot of the cluster"
                raise InvalidCluster(refusal, what="job", where="Slurm", given=message)
            reason = f"sbatch ended with {ended.returncode}: {message or 'no message'}"
            raise EngineUnreachable(reason, what="sbatch", given=ended.returncode)
        # --test-only answers on standard error; `id;cluster` comes from a federation
        return ended.stdout.strip().partition(";")[0] or ended.stderr.strip()

    def elements(self, name: str) -> Elements:
        """Return the elements that the controller lists.

        It forgets an element MinJobAge (300 s) after its end, and lists elements cancelled before their start as one.
        """
        lines = self.answer(["squeue", "-h", "-r", "-a", "-t", "all", f"--name={name}", "-o", "%i|%P|%T|%r"])
        states: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        held = []
        jobs: dict[str, str] = {}
        for line in lines.splitlines():
            if line.count("|") < 3:
                fault = f"squeue prints {line[:200]!r}, which is not an element of an array"
                raise EngineUnreachable(fault, what="squeue", given=line[:200])
            element, partition, state, reason = line.strip().split("|", 3)
            number = element.partition("_")[0]
            jobs[number] = f"{number} in partition {partition}"
            states[state] += 1
            if state in WAITING and reason != "None":
                reasons[reason] += 1
                if reason in HELD:
                    held.append(element)
        newest = [jobs[number] for number in sorted(jobs, key=int)]
        return Elements(states=states, reasons=reasons, held=held, jobs=newest)

    def release(self, elements: Sequence[str]) -> bool:
        """Release held elements; return False if only an operator may. Raises: EngineUnreachable."""
        if not elements:
            return True
        ended = self._run(["scontrol", "release", ",".join(elements)])
        if _DENIED in ended.stderr:
            return False
        if ended.returncode:  # one has ended meanwhile, or the controller is away; the next poll tries again
            _logger.warning(
                "scontrol release %s ended with %d: %s",
                ",".join(elements),
                ended.returncode,
                ended.stderr.strip(),
            )
        return True

    def withdraw(self, name: str) -> None:
        """Cancel all elements with a name, and do not wait. Raises: EngineUnreachable."""
        self.answer(["scancel", f"--name={name}"])

    def cancel(self, name: str) -> None:
        """Cancel all elements with a name; return when the last process has ended. Raises: EngineUnreachable."""
        begun = time.monotonic()
        self.withdraw(name)
        while (elements := self.elements(name)).count(WAITING | RUNNING):
            lasted = time.monotonic() - begun
            if lasted > CANCEL_S:
                raise EngineUnreachable(
                    f"{elements.count(WAITING | RUNNING)} elements of {name} have not ended after {CANCEL_S:.0f} s; "
                    "cancel again",
                    what=name,
                    given=elements.count(WAITING | RUNNING),
                )
            # --full: the batch script and its children, not only the job's steps.
            kill = ["--signal=KILL", "--full"] if lasted > KILL_AFTER_S else []
            self.answer(["scancel", *kill, f"--name={name}"])
            time.sleep(0.5)

    def tail(self, path: str) -> str:
        """Return the last 64 KiB of a file, or "". Raises: EngineUnreachable."""
        # A missing file is not an error: the element has not begun.
        line = f"if [ -e {shlex.quote(path)} ]; then tail -c {LOG_BYTES} {shlex.quote(path)}; fi"
        return self.answer(["sh", "-c", line])

    def answer(self, command: Sequence[str]) -> str:
        """Return what a command of Slurm prints. Raises: EngineUnreachable, with its message."""
        ended = self._run(command)
        if ended.returncode:
            name = next(word for word in command if word != "env" and "=" not in word)
            raise EngineUnreachable(
                f"{name} ended with {ended.returncode}: {ended.stderr.strip() or 'no message'}",
                what=name,
                given=ended.returncode,
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
                'submit = ["ssh", "<login node>"]',
                what=full[0],
            ) from error
        except subprocess.TimeoutExpired as error:
            raise EngineUnreachable(
                f"{command[0]} did not answer within {ANSWER_S:.0f} s", what=command[0], accepted=ANSWER_S
            ) from error


MOST_STARTS = 8
"""Most starts of a runner by one element: more would hide a job that cannot run."""

_SCRIPT = """\
#!/bin/sh
# An element of a penstock job. It ends well where its runner does; told to end, it begins no further runner.
# Other users may write to the folder that it runs in: nothing there is imported.
export PYTHONSAFEPATH=1
{environment}element=$(({first} + SLURM_ARRAY_TASK_ID))
told=0
trap 'told=1; kill -TERM "$runner"' TERM INT
for begun in {begun}; do
    [ "$told" = 0 ] || exit 143
    {runner} --element "$element" --elements {elements} &
    runner=$!
    [ "$told" = 0 ] || kill -TERM "$runner" # told just before it began
    wait "$runner"
    status=$?
    while kill -0 "$runner" 2> /dev/null; do # a signal had ended the wait, not the runner
        wait "$runner"
        status=$?
    done
    case $status in {final}) exit "$status" ;; esac
    echo "runner of element $element, begun $begun times, ended with $status on $SLURMD_NODENAME" >&2
    sleep 1
done
exit "$status"
"""


def element_script(
    runner: Sequence[str], *, environment: str, first: int, elements: int, final: Sequence[int] = (0,)
) -> str:
    """Return the script for sbatch.

    runner: command, without --element and --elements. environment: shell file of NAME=value lines on the nodes, or "".
    first: index in the attempt of this array's element 0. elements: how many elements the attempt has.
    final: exit codes after which a restart would change nothing, including 0.
    """
    return _SCRIPT.format(
        environment=f"set -a\n. {shlex.quote(environment)}\nset +a\n" if environment else "",
        first=first,
        begun=" ".join(str(n) for n in range(1, MOST_STARTS + 1)),
        runner=shlex.join(runner),
        elements=elements,
        final="|".join(str(code) for code in final),
    )


NOTICE_S = 120
"""Slurm signals a runner this many seconds before its time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCluster:
    """A Slurm cluster, and each runner's resources."""

    slots: int
    """Most concurrent runners."""
    cpus: int = 1
    """Processors per runner."""
    memory_bytes: int = 0
    """Memory per runner, in bytes; 0: the queue's default."""
    gpus: int = 0
    """GPUs per runner."""
    gpu_type: str = ""
    """Slurm's name for the kind of GPU; "": any."""
    scratch_bytes: int = 0
    """Bytes needed on the node's own disk; 0: unchecked."""
    limit_s: int = 0
    """Time limit per element, in s; 0: the queue's."""
    queue: str = ""
    """Partition; "": Slurm's default."""
    account: str = ""
    """Account to bill; "": Slurm's default."""
    environment: str = ""
    """Shell file of NAME=value lines on the nodes, with secrets; "": none."""
    logs: str = ""
    """Shared folder for the elements' output; "": none."""
    submit: Sequence[str] = ()
    """Prefix for Slurm's commands, such as ["ssh", "login1"]; empty: this machine's."""
    array_max: int = 1000
    """Most elements in an array: the cluster's MaxArraySize less 1."""

    def __post_init__(self) -> None:
        least = {"slots": 1, "cpus": 1, "array_max": 1}
        for name in ("slots", "cpus", "array_max", "memory_bytes", "gpus", "scratch_bytes", "limit_s"):
            value = getattr(self, name)
            check_whole_number(name, value, least.get(name, 0), error=InvalidCluster)


class SlurmEngine:
    """Runs attempts on one Slurm cluster."""

    poll_s = 5.0

    def __init__(self, cluster: SlurmCluster) -> None:
        self._cluster = cluster
        self._queue = SlurmQueue(cluster.submit)

    def submit(self, name: str, runner: Sequence[str], n_blocks: int, final: Sequence[int] = (0,)) -> None:
        """See `Engine.submit`. `find` finds the arrays of a killed submitter."""
        arrays = attempt_arrays(n_blocks, self._cluster.slots, self._cluster.array_max)
        for array in arrays:
            script = element_script(
                runner,
                environment=self._cluster.environment,
                first=array.first,
                elements=sum(one.size for one in arrays),
                final=final,
            )
            self._queue.submit(script, sbatch_options(self._cluster, name, array))

    def find(self, name: str) -> bool:
        return bool(self._queue.elements(name).states)

    def status(self, name: str) -> AttemptStatus:
        """See `Engine.status`. Releases elements that Slurm holds for ever, or cancels them: others do the blocks."""
        elements = self._queue.elements(name)
        if not self._queue.release(elements.held):
            _logger.warning("only an operator of Slurm may release %s: cancelled", ", ".join(elements.held))
            try:
                self._queue.answer(["scancel", *elements.held])
            except EngineUnreachable as error:  # another user's
                _logger.warning("%s", error)
        waiting = elements.count(WAITING)
        running = elements.count(RUNNING)
        # A state that this release lacks must not look like an end.
        is_known = waiting + running + elements.count(ENDED) == sum(elements.states.values())
        state: AttemptState = "ended" if is_known else "unknown"
        if running:
            state = "running"
        elif waiting:
            state = "waiting"
        return AttemptStatus(
            state=state,
            reason=elements.reason,
            waiting=waiting,
            running=running,
            place=elements.place,
        )

    def cancel(self, name: str) -> None:
        self._queue.cancel(name)

    def withdraw(self, name: str) -> None:
        """See `Engine.withdraw`. Slurm may hold an element for ever once its node is lost."""
        self._queue.withdraw(name)

    def logs(self, name: str, element: int) -> str:
        index = element % self._cluster.array_max
        return self._queue.tail(_log(self._cluster, name, element - index, str(index)))

    def close(self) -> None:
        """See `Engine.close`."""


def sbatch_options(cluster: SlurmCluster, name: str, array: Array) -> list[str]:
    """Return sbatch's options, which keep the submitter's environment out of Slurm."""
    options = {
        "job-name": name,
        "array": f"0-{array.size - 1}%{array.at_once}",
        "export": "NONE",
        "output": _log(cluster, name, array.first, "%a") if cluster.logs else "/dev/null",
        # A requeued element adds to its earlier output.
        "open-mode": "append",
        # Every node has it, unlike the submitter's folder.
        "chdir": "/tmp",
        "signal": f"B:TERM@{NOTICE_S}",
        "nodes": "1",
        "ntasks": "1",
        "cpus-per-task": str(cluster.cpus),
        "mem": mebibytes(cluster.memory_bytes),
        "tmp": mebibytes(cluster.scratch_bytes),
        "gres": ":".join(filter(None, ["gpu", cluster.gpu_type, str(cluster.gpus)])) if cluster.gpus else "",
        "time": f"0:{cluster.limit_s}" if cluster.limit_s else "",
        "partition": cluster.queue,
        "account": cluster.account,
    }
    return ["--requeue", *(f"--{key}={value}" for key, value in options.items() if value)]


def _log(cluster: SlurmCluster, name: str, first: int, index: str) -> str:
    return f"{cluster.logs}/{name}-{first}+{index}.txt"


def mebibytes(n_bytes: int) -> str:
    return f"{-(-n_bytes // 2**20)}M" if n_bytes else ""
