"""The log of a run as one file: output of all starts and ranks, and beside it a file with a line per start.

srun begins lines with `3: `, torchrun with `[rank3]:`, the rank on its node.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

from loader.errors import InvalidRuntime
from loader.json_text import parse_json_object
from loader.keywords import is_whole_number

from ...compute.locked_processes import LOG_BYTES
from ..record_objects.json_object import LIMIT

SPANS = ".spans"
"""Ending of the file of starts, JSON lines: `begun_us`, `log` (bytes of the log before).

On this machine a start has its number of `ranks`, the process `loop_pid` that began it, and `ended_us`.
A run that is over has `exit_us` and its exit `status`.
On Slurm a start has `ranks_us` once a rank has begun, or `no_rank_us` if srun began none in time. It has
`srun_ended_us` once all ranks have ended, and `preempted_us` if a preemption ended them."""
RANK_KEYS = ("ranks_us", "no_rank_us")
TIMES_BYTES = 2**20
"""Bytes of the newest starts that are read: 8,000 starts. The run's owner may write any into the file."""
RANKS = ".ranks"
"""Ending of the file that the ranks of this machine lock."""
TEE = ("--tee=3", "--role=rank")
"""torchrun's options for the ranks' names before their lines. Each rank's output is then a file, too."""
RunCommand = Callable[[Sequence[str]], str]
"""Runs a command where the log is, and returns its output."""


def rank_lines(text: str, rank: int) -> str:
    """Return the lines of a rank without its name."""
    # srun pads numbers to one width.
    own = re.compile(rf"(?:\[rank{rank}\]:| *{rank}: )")
    return "\n".join(line[name.end() :] for line in text.splitlines() if (name := own.match(line)))


def run_text(run_command: RunCommand, log: str, rank: int | None = None, start: int | None = None) -> str:
    """Return the last 64 KiB of a log, of a rank's lines in it, or of one start's. Raises: as `start_part`."""
    begin, end = start_part(run_command, log, start)
    # One shell command where the log is: a whole log does not pass the network.
    words = [f"tail -c +{begin + 1} {shlex.quote(log)}"]
    if end is not None:
        words.append(f"head -c {end - begin}")
    if rank is not None:
        words.append(rf"grep -a -E '^(\[rank{rank}\]:| *{rank}: )'")
    line = " | ".join([*words, f"tail -c {LOG_BYTES}"])
    text = run_command(["sh", "-c", f"if [ -e {shlex.quote(log)} ]; then {line}; fi"])
    return text if rank is None else rank_lines(text, rank)


class LogPart(NamedTuple):
    """Text of a log from a byte on."""

    text: str
    """At most `PART_BYTES`."""
    end: int
    """Byte after it."""


PART_BYTES = 2**20
"""Most bytes of a log that one request reads while a person follows it."""


def log_part(run_command: RunCommand, log: str, begin: int | None, end: int | None = None) -> LogPart:
    """Return what a log has from a byte on. begin: None for the last 64 KiB. end: byte after the part; None for all."""
    file = shlex.quote(log)
    bound = "" if end is None else f"if [ $size -gt {end} ]; then size={end}; fi; "
    first = f"$((size > {LOG_BYTES} ? size - {LOG_BYTES} : 0))" if begin is None else str(begin)
    text = run_command(
        [
            "sh",
            "-c",
            f"size=$(stat -c %s {file} 2> /dev/null || echo 0); {bound}begin={first}; "
            f"rest=$((size - begin)); if [ $rest -gt {PART_BYTES} ]; then rest={PART_BYTES}; fi; "
            "if [ $rest -lt 0 ]; then rest=0; fi; echo $((begin + rest)); "
            f"if [ $rest -gt 0 ]; then tail -c +$((begin + 1)) {file} | head -c $rest; fi",
        ]
    )
    end_text, _, part = text.partition("\n")
    # The size comes first, by the shell that reads: a log that grows meanwhile is not read twice.
    return LogPart(part, int(end_text))


def exit_status(lines: Iterable[str]) -> int | None:
    """Return the exit status that the launcher noted after the last start; None without one. lines: of starts."""
    status = None
    for times in parse_starts(lines):
        if "begun_us" in times:
            status = None
        elif "exit_us" in times:
            value = times.get("status")
            status = value if is_whole_number(value, 0, 255) else None
    return status


def parse_starts(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file of starts; lines that a full disk cut off are left out."""
    for line in lines:
        with suppress(ValueError):
            yield parse_json_object(line)


def ranks_of_starts(lines: Iterable[str]) -> Iterator[int]:
    """Yield the number of ranks of each start on this machine; 0 if it is not noted. lines: of starts."""
    for times in parse_starts(lines):
        if "begun_us" in times:
            ranks = times.get("ranks")
            yield ranks if is_whole_number(ranks, 1) else 0


def start_part(run_command: RunCommand, log: str, start: int | None) -> tuple[int, int | None]:
    """Return the bytes of a log that a start wrote: the first, and the one after the last.

    start: number of restarts before it; None for all starts.
    Raises: InvalidRuntime for a start that is not there.
    """
    if start is None:
        return 0, None
    lines = spans_text(run_command, log).splitlines()
    begins = [times.get("log") for times in parse_starts(lines) if "begun_us" in times]
    begin: Any = None
    end: Any = None
    if 0 <= start < len(begins):
        begin = begins[start]
    # The newest start wrote up to the end of the log, for which `end` is None.
    next_start = start + 1
    if 0 <= next_start < len(begins):
        end = begins[next_start]
    # A damaged file may have anything in place of a number.
    if type(begin) is not int or not (end is None or type(end) is int):
        raise InvalidRuntime(
            f"the log has no start with {start} restarts before it; it has {len(begins)} starts"
        )
    return begin, end


def newest_part(run_command: RunCommand, log: str) -> tuple[int, int | None]:
    """Return the bytes of a log that its newest start wrote, as `start_part`; the whole log without notes of starts."""
    lines = spans_text(run_command, log).splitlines()
    begins = [times.get("log") for times in parse_starts(lines) if "begun_us" in times]
    newest = begins[-1] if begins else 0
    return (newest if is_whole_number(newest, 0) else 0), None


OWN = "penstock: "
"""Begin of the launcher's own lines in a log."""
_LAST_WORDS = f"""\
for log; do
    words=
    case $(tail -n 1 "$log{SPANS}" 2> /dev/null) in
        *'"status": 0}}') ;; # its newest start ended well
        *)
            begin=$(grep -a -o '"log": [0-9]*' "$log{SPANS}" 2> /dev/null | tail -n 1 | tr -dc 0-9)
            words=$(
                tail -c "+$((${{begin:-0}} + 1))" "$log" 2> /dev/null |
                    tail -c {LOG_BYTES} | grep -a '^{OWN}' | tail -n 1
            )
            ;;
    esac
    printf '%s\\n' "$words"
done
"""


def last_words(run_command: RunCommand, logs: Sequence[str]) -> dict[str, str]:
    """Return log -> the launcher's last line in its newest start; "" without one, or if that start ended well."""
    lines = run_command(["sh", "-c", _LAST_WORDS, "sh", *logs]).split("\n")
    return dict(zip(logs, lines, strict=False))


class MissingLog(NamedTuple):
    """Why an output cannot be read."""

    words: str
    """Words for the missing file or folder, with its path and machine."""
    is_folder: bool
    """True if it is the folder of a cluster's outputs."""
    is_absent: bool = False
    """True if the folder is there and the file is not."""


def missing_log(run_command: RunCommand, log: str, key: str = "") -> MissingLog | None:
    """Return what is missing of a log; None if it can be read. key: setting that names its folder, as "logs"."""
    file = shlex.quote(log)
    folder, _, _ = log.rpartition("/")
    quoted = shlex.quote(folder or "/")
    text = run_command(
        [
            "sh",
            "-c",
            f"if [ -f {file} ] && [ -r {file} ]; then echo readable; elif [ -e {file} ]; then echo unreadable; "
            f"elif [ -d {quoted} ] && [ -x {quoted} ]; then echo file; elif [ -d {quoted} ]; then echo closed; "
            "else echo folder; fi; uname -n; id -un",
        ]
    )
    kind, _, rest = text.partition("\n")
    host, _, user = rest.strip().partition("\n")
    setting = f" ({key} in the cluster's file)" if key else ""
    match kind.strip():
        case "folder":
            return MissingLog(f"{folder}{setting} is not a folder on {host}", is_folder=bool(key))
        case "closed":
            return MissingLog(f"{user} may not enter {folder}{setting} on {host}", is_folder=bool(key))
        case "unreadable":
            return MissingLog(f"{user} cannot read {log} on {host}", is_folder=False)
        case "file":
            return MissingLog(f"{log} is not there on {host}", is_folder=False, is_absent=True)
    return None


def spans_text(run_command: RunCommand, log: str) -> str:
    """Return the file of starts of a log; "" without one."""
    spans = shlex.quote(f"{log}{SPANS}")
    return run_command(["sh", "-c", f"if [ -e {spans} ]; then cat {spans}; fi"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """A start of a run's ranks inside a span, by the launcher's own notes."""

    begun_us: int
    """UTC microseconds of its beginning."""
    ended_us: int | None = None
    """UTC microseconds at which all of its ranks had ended; None while they run, and after a lost node."""
    is_preempted: bool = False
    """True if a preemption stopped it."""


def rank_starts(run_command: RunCommand, log: str) -> list[RankStart]:
    """Return the newest starts of the ranks by the script's notes beside a log, in order. Raises: EngineUnreachable."""
    spans = shlex.quote(f"{log}{SPANS}")
    text = run_command(["sh", "-c", f"if [ -e {spans} ]; then tail -c {TIMES_BYTES} {spans}; fi"])
    starts = list[RankStart]()
    for times in parse_starts(text.splitlines()):
        begun_us = time_us(times, "begun_us")
        ended_us = time_us(times, "srun_ended_us")
        if begun_us is not None:
            starts.append(RankStart(begun_us=begun_us))
        elif starts and ended_us is not None:
            starts[-1] = replace(starts[-1], ended_us=ended_us)
        elif starts and "preempted_us" in times:
            starts[-1] = replace(starts[-1], is_preempted=True)
    return sorted(starts, key=lambda start: start.begun_us)


def time_us(times: Mapping[str, Any], name: str) -> int | None:
    value = times.get(name)
    if is_whole_number(value, 1, LIMIT - 1):
        return value
    return None


def without_ranks(starts: Iterable[dict[str, Any]]) -> tuple[int, int]:
    """Return since when srun has begun no rank, in UTC microseconds, and in how many starts; (0, 0) if it does.

    The newest start counts once it is late.
    """
    newest_first = list[tuple[int, str]]()
    for times in starts:
        if type(begun_us := times.get("begun_us")) is int:
            newest_first.insert(0, (begun_us, ""))
        elif newest_first and (key := next(iter(times), "")) in RANK_KEYS:
            newest_first[0] = newest_first[0][0], key
    # The newest start is not late yet, so it proves nothing.
    if newest_first and not newest_first[0][1]:
        del newest_first[0]
    late = list(takewhile(lambda start: start[1] == "no_rank_us", newest_first))
    # The last of the late ones is the first in time.
    return (late[-1][0], len(late)) if late else (0, 0)
