"""Read Slurm's accounting by `sacct`: one record per start of a job, requeued starts included. Count GPUs by `sinfo`.

A user chooses a job's name, which may hold any character. A random delimiter per call keeps names from forging fields.
"""

import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from loader.errors import Corrupt, EngineUnreachable

from ..units import DAY_US, WEEK_US, utc_us

FIELDS = (
    "JobID",
    "JobName",
    "User",
    "Account",
    "QOS",
    "Partition",
    "State",
    "Submit",
    "Start",
    "NNodes",
    "NodeList",
    "ReqTRES",
    "AllocTRES",
    "TimelimitRaw",
    "Reason",
    "End",
)
"""sacct's columns, in order. The last column holds no user's text, so the end of a record is clear."""
MAX_NODES = 65_536
"""Most node names in one record: Slurm's own limit of nodes."""
YEAR_MINUTES = 525_600
"""Slurm's limit of a job in a partition without one."""
# A stretch of an item of a node list: text, then perhaps ranges in brackets, as in m[1-3].
_RANGES = re.compile(r"([^\[\],]*)(?:\[([0-9,\-]+)\])?")
# At most 12 digits: `int` of a longer text costs the square of its length.
_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?")
# "12", "12_3", or the waiting elements of an array: "12_[3,5-9%2]".
_JOB = re.compile(r"[0-9][0-9_\[\]\-,%+.]*")
SINFO = ("sinfo", "--noheader", "--Node", "--all", "--format=%N|%G")
# The count of "gpu:8" or "gpu:a100:8(S:0-1)", also after other resources.
_GRES = re.compile(r"(?:^|,)gpu(?::[^:,()]+)?:([0-9]{1,6})")
NO_ACCOUNTING = "accounting storage is disabled"
"""sacct's words on a cluster without slurmdbd."""
_NONE = ("", "None", "Unknown", "None assigned")
"""sacct's words for no time, no nodes and no reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedJob:
    """One start of a Slurm job, or one that never started."""

    job_id: str
    """Slurm's id, such as "12", or "12_3" for an element of an array."""
    name: str
    """Name that its user chose."""
    user: str
    """User's login name."""
    account: str
    """Account that is billed."""
    qos: str
    """Quality of service."""
    partition: str
    """Partition, or several with commas while it waits."""
    state: str
    """Slurm's word, such as PREEMPTED, without what follows it."""
    submitted_us: int
    """UTC microseconds of its submission, or of its requeue."""
    begun_us: int | None
    """UTC microseconds of its start; None without one."""
    ended_us: int | None
    """UTC microseconds of its end; None while it waits or runs."""
    nodes: int
    """Nodes that it has; while it waits, nodes that it asks for."""
    node_names: tuple[str, ...]
    """Their names; () without a start."""
    gpus: int
    """GPUs that it has; without a start, GPUs that it asks for."""
    reason: str
    """Slurm's reason code for its last wait; "" for none."""
    asked_gpus: int = 0
    """GPUs that it asks for: the fewest of a range of nodes."""
    limit_s: int = 0
    """Time limit in s; 0 for none of its own."""
    gpu_type: str = ""
    """Slurm's name for the kind of GPU, several joined by "+"; "" if it is not accounted."""


def sacct_command(
    *, since_us: int = 0, until_us: int | None = None, name: str = "", delimiter: str = "|"
) -> list[str]:
    """Return the command that lists all users' jobs of a period, with times in seconds since 1970."""
    options = [f"--starttime={_utc(since_us)}"]
    if until_us is not None:
        options.append(f"--endtime={_utc(until_us)}")
    if name:
        options.append(f"--name={name}")
    # -D lists each start of a requeued job, not only the last one. --allocations leaves out the steps of a job.
    fixed = ["-D", "--parsable2", "--noconvert", "--allusers", "--allocations", "--noheader"]
    return [
        *("env", "TZ=UTC", "SLURM_TIME_FORMAT=%s", "sacct"),
        *fixed,
        f"--delimiter={delimiter}",
        f"--format={','.join(FIELDS)}",
        *options,
    ]


def account_jobs(
    answer: Callable[[Sequence[str]], str], *, since_us: int = 0, until_us: int | None = None, name: str = ""
) -> list[AccountedJob]:
    """Return the jobs that waited or ran in a period, in the order of their submission.

    Without a name it asks week by week: sacct over months of a large cluster takes minutes.

    answer: Runs a command through the cluster's prefix and returns its output, or raises EngineUnreachable.
    until_us: UTC microseconds; None for now.
    name: Name of the jobs; "" for all.

    Raises: EngineUnreachable if sacct fails, as it does on a cluster without accounting. Corrupt.
    """
    now_us = utc_us() if until_us is None else until_us
    begins: Sequence[int] = [since_us]
    if since_us and not name:
        begins = range(since_us, now_us, WEEK_US)
    jobs = dict[tuple[str, int, int | None], AccountedJob]()
    for begin_us in begins:
        end_us: int | None = begin_us + WEEK_US
        is_last = len(begins) == 1 or begin_us + WEEK_US >= now_us
        if is_last:
            end_us = until_us
        for job in _list_jobs(answer, begin_us, end_us, name):
            jobs.pop((job.job_id, job.submitted_us, None), None)  # it waited when an earlier week was listed
            # By its start: a job that spans two weeks is listed in both.
            jobs[job.job_id, job.submitted_us, job.begun_us] = job
    return sorted(jobs.values(), key=_order)


def _list_jobs(
    answer: Callable[[Sequence[str]], str], since_us: int, until_us: int | None, name: str
) -> list[AccountedJob]:
    delimiter = secrets.token_hex(8)
    try:
        text = answer(sacct_command(since_us=since_us, until_us=until_us, name=name, delimiter=delimiter))
    except EngineUnreachable as error:
        raise EngineUnreachable(
            f"sacct lists no jobs; usage needs Slurm's accounting (slurmdbd): {error}"
        ) from error
    return parse_jobs(text, delimiter)


def parse_jobs(text: str, delimiter: str = "|") -> list[AccountedJob]:
    """Return the jobs that sacct lists, in the order of their submission. Raises: Corrupt, which names the line."""
    jobs = [_job(record.split(delimiter), line) for line, record in _records(text, delimiter)]
    return sorted(jobs, key=_order)


def _order(job: AccountedJob) -> tuple[int, int]:
    """Return a sort key: by submission, then by begin, since starts of a requeued job may share a submission."""
    return job.submitted_us, job.begun_us or job.submitted_us


# Jobs of one array, and restarts of one job, repeat the list of nodes.
@lru_cache(maxsize=1024)
def expand_nodes(text: str) -> tuple[str, ...]:
    """Return the node names of a list: `m[1-3,5],gpu01`. Raises: Corrupt."""
    names = list[str]()
    for item in _split(text):
        parts = list[list[str]]()
        end = 0
        while end < len(item):
            match = _RANGES.match(item, end)
            if match is None or match.end() == end:
                raise Corrupt(f"{item!r} is not a list of nodes", what="NodeList", given=item)
            end = match.end()
            if match[2]:
                parts.append([match[1] + number for number in _expand_ranges(match[2])])
            else:
                parts.append([match[1]])
        # Counted before it is built: m[1-9999][1-9999] would have 100 million names.
        total = 1
        for part in parts:
            total *= len(part)
        if not item or len(names) + total > MAX_NODES:
            raise Corrupt(
                f"{item!r} is not a list of at most {MAX_NODES:,} nodes",
                what="NodeList",
                given=item,
                accepted=MAX_NODES,
            )
        names += map("".join, product(*parts))
    return tuple(names)


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas that stand outside brackets."""
    begin = 0
    depth = 0
    for place, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        if character == "," and not depth:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


def _expand_ranges(ranges: str) -> list[str]:
    """Return the numbers of ranges as text: "08-10,12" is 08, 09, 10 and 12. Raises: Corrupt."""
    results = list[str]()
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        first, last = "1", "0"  # an empty range, which is refused below
        if match:
            first = match[1]
            last = match[2] or first
        # Checked before the numbers are built: the text may be a range of 10^12.
        if not 0 <= int(last) - int(first) < MAX_NODES - len(results):
            raise Corrupt(
                f"{ranges!r} is not a range of at most {MAX_NODES:,} nodes",
                what="NodeList",
                given=ranges,
                accepted=MAX_NODES,
            )
        # Slurm keeps leading zeros: m[08-10] is m08, m09 and m10.
        results += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return results


def _records(text: str, delimiter: str) -> Iterator[tuple[int, str]]:
    """Yield the number of the first line of each record, and the record: a job's name may hold a line's end."""
    record = ""
    begun = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not record and not line.strip():
            continue
        if record:
            record = f"{record}\n{line}"
        else:
            record = line
            begun = number
        count = record.count(delimiter) + 1
        if count > len(FIELDS):
            raise Corrupt(
                f"sacct, line {begun}: {count} fields instead of {len(FIELDS)}: {record[:200]!r}",
                what="record",
                where=f"sacct, line {begun}",
                given=count,
                accepted=len(FIELDS),
            )
        if count == len(FIELDS):
            yield begun, record
            record = ""
    if record:
        raise Corrupt(
            f"sacct, line {begun}: the record is cut off: {record[:200]!r}",
            what="record",
            where=f"sacct, line {begun}",
            given="cut off",
        )


def _job(values: Sequence[str], line: int) -> AccountedJob:
    fields = dict(zip(FIELDS, values, strict=True))
    try:
        if not _JOB.fullmatch(fields["JobID"]):
            raise Corrupt(f"JobID = {fields['JobID']!r}", what="JobID", given=fields["JobID"])
        submitted_us, begun_us, ended_us = (_time_us(fields, name) for name in ("Submit", "Start", "End"))
        if submitted_us is None or (ended_us is not None and ended_us < (begun_us or submitted_us)):
            times = [fields[name] for name in ("Submit", "Start", "End")]
            raise Corrupt(f"Submit, Start, End = {', '.join(times)}", what="Submit, Start, End", given=times)
        node_list = fields["NodeList"]
        asked, kind = _gpus(fields["ReqTRES"])
        gpus = asked
        if begun_us is not None:
            gpus, kind = _gpus(fields["AllocTRES"])
        minutes = 0
        if fields["TimelimitRaw"].isdigit():
            minutes = _whole(fields, "TimelimitRaw")
        return AccountedJob(
            job_id=fields["JobID"],
            name=fields["JobName"],
            user=fields["User"],
            account=fields["Account"],
            qos=fields["QOS"],
            partition=fields["Partition"],
            # Slurm appends who cancelled a job: "CANCELLED by 1000".
            state=fields["State"].partition(" ")[0],
            submitted_us=submitted_us,
            begun_us=begun_us,
            ended_us=ended_us,
            nodes=_whole(fields, "NNodes"),
            node_names=() if node_list in _NONE else expand_nodes(node_list),
            gpus=gpus,
            reason="" if fields["Reason"] in _NONE else fields["Reason"],
            asked_gpus=asked,
            limit_s=minutes * 60 if minutes < YEAR_MINUTES else 0,
            gpu_type=kind,
        )
    except Corrupt as error:
        address = f"sacct, line {line}"
        raise error.with_message(f"{address}: {error}", where=address) from error


def _whole(fields: dict[str, str], name: str) -> int:
    return _parse_whole(fields[name], name)


def _parse_whole(text: str, name: str) -> int:
    """Return a whole number. name: of its field, for the error. Raises: Corrupt."""
    # 12 digits of seconds fit into int64 as microseconds. `isdigit` also accepts digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise Corrupt(
            f"{name} = {text[:100]!r}; a whole number is needed",
            what=name,
            given=text[:100],
            accepted="a whole number",
        )
    return int(text)


def _time_us(fields: dict[str, str], name: str) -> int | None:
    if fields[name] in _NONE:
        return None
    return _whole(fields, name) * 1_000_000


def _gpus(tres: str) -> tuple[int, str]:
    """Return number and kinds of GPUs in a list such as `cpu=8,gres/gpu=2,gres/gpu:a100=2`."""
    total: int | None = None
    kinds = dict[str, int]()
    for item in filter(None, tres.split(",")):
        name, _, count = item.partition("=")
        if name == "gres/gpu":
            total = _parse_whole(count, item)
        elif name.startswith("gres/gpu:"):
            kind = name.removeprefix("gres/gpu:")
            kinds[kind] = _parse_whole(count, item)
    # `gres/gpu` counts all kinds, so the kinds are not added to it.
    if total is None:
        total = sum(kinds.values())
    return total, "+".join(sorted(kinds))


def _utc(at_us: int) -> str:
    """Return a time as sacct's options take it."""
    # sacct takes second 0 for no time at all, and lists from the last midnight on.
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(max(DAY_US, at_us) // 1_000_000))


def count_gpus(answer: Callable[[Sequence[str]], str]) -> int:
    """Return the number of GPUs of all nodes, drained ones included. answer: as `account_jobs` takes it.

    Raises: EngineUnreachable; Corrupt for an unexpected line.
    """
    nodes = dict[str, int]()
    for number, line in enumerate(answer(SINFO).splitlines(), 1):
        name, bar, resources = line.strip().partition("|")
        if not bar:
            raise Corrupt(
                f"sinfo, line {number}: {line[:200]!r} is not a node and its resources",
                what="node",
                where=f"sinfo, line {number}",
                given=line[:200],
            )
        nodes[name] = sum(map(int, _GRES.findall(resources)))  # a node has a line per partition
    return sum(nodes.values())
