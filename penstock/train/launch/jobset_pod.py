"""Begin the ranks of a pod of a JobSet: `python -m penstock.train.launch.jobset_pod RUN`, the run's file as JSON.

Ranks that fail end the pod after a wait, which JobSet lacks. The first pod that fails decides for all, by an object of
the record; all wait, because the JobSet deletes the others as soon as one ends.
"""

import os
import signal
import sys
from dataclasses import dataclass
from threading import Event
from typing import Any

import loader
from loader.dataset.log.entries import canonical
from loader.errors import AlreadyExists, Corrupt
from loader.json_text import parse_json_object
from loader.redaction import redact

from ...checkpoints.ranks import map_in_order
from ...units import utc_us
from ..record_objects.json_object import read_object, whole_number
from ..run import AGAIN
from ..run_folder import AT_ONCE, FORMAT, RunFolder
from ..run_spec import RunSpec, parse_spec
from ..stop import SIGNALS
from .failures import (
    LONGEST_S,
    MOST_LINES,
    OVER_WORDS,
    UNREADABLE,
    Failures,
    RankFailure,
    last_step,
    likeness,
    note_failure,
    note_kill,
)
from .launcher import Span
from .node_start import environment, run_node, torchrun
from .run_end import send_end

OVER = 76
"""Exit status of a pod whose run is over: EX_PROTOCOL of sysexits.h, which torchrun never ends with."""
FAILURES = "failures/"
MOST_NODES = 100_000
"""Most nodes of a start: an object that names more is forged, and counts as this many."""
UNREADABLE_S = 60.0
"""Seconds to wait if the record cannot be read or written."""


def pod_torchrun(spec: RunSpec, index: str, meeting: str) -> list[str]:
    """Return the command of a pod's ranks. index: pod of the Job, from 0. meeting: name and port of the first pod.

    The static rendezvous orders nodes by the index, as Kueue places them. c10d's would order them by arrival. torchrun
    resolves the first pod's name until it exists.
    """
    host, _, port = meeting.rpartition(":")
    nodes = [f"--nnodes={spec.node_range[1]}", f"--node-rank={index}", "--rdzv-backend=static"]
    command = torchrun(spec, tee=True)
    place = command.index("--standalone")
    return [*command[:place], *nodes, f"--master-addr={host}", f"--master-port={port}", *command[place + 1 :]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodStart:
    """A start of a run, as one of its pods sees it."""

    submission: str
    """Submit of the run, whose failures count."""
    restarts: int
    """Restarts of the JobSet before this one."""
    begun_us: int
    """UTC microseconds of the pod's begin."""
    nodes: int
    """Pods of the start: one per node."""


def failure_status(folder: RunFolder, start: PodStart, failure: RankFailure, status: int) -> int:
    """Wait as long as the run's failures so far ask for; return the exit status of the pod.

    failure: Traceback of a rank; an empty one without. status: Exit status of the ranks.

    Returns `OVER` if the run is over, `AGAIN` if a signal ended the wait, else `status`.
    """
    note_kill(folder, failure.last_step, restarts=start.restarts)
    try:
        wait_s = _read_wait(folder, start, failure, status)
    except Exception as error:  # noqa: BLE001 - a failing store costs the record, never the training
        print(f"penstock: could not count the failures of {folder.run}: {error}", file=sys.stderr, flush=True)
        wait_s = UNREADABLE_S
    if wait_s is None:
        print(f"penstock: {folder.run} {OVER_WORDS}", flush=True)
        return OVER
    print(f"penstock: failed with status {status}; it restarts in {wait_s:.0f} s", flush=True)
    return AGAIN if _wait_signal(wait_s) else status


def _read_wait(folder: RunFolder, start: PodStart, failure: RankFailure, status: int) -> float | None:
    """Return the seconds to wait that the first pod of this start stored; None if the run is over."""
    prefix = folder.key(f"{FAILURES}{start.submission}-")
    key = f"{prefix}{start.restarts:06d}.json"
    earlier = sorted(info.key for info in folder.store.list(prefix) if info.key < key)
    failures = Failures()
    # The newest object of the submission holds all failures before it.
    if earlier:
        failures, _ = read_object(folder.store, earlier[-1], "failure", _parse)
    line = redact(failure.line)[-1000:] or f"ended with status {status} without a traceback"
    wait_s = failures.next_start_s(last_step(folder), line)
    body = {
        "format": FORMAT,
        "step": failures.step,
        "line": failures.line,
        "lines": failures.lines,
        "unknown": failures.unknown,
        "ends": failures.ends,
        "wait_s": round(failures.wait_s),
        "over": wait_s is None,
        "waits_s": round(wait_s or 0),
        "begun_us": start.begun_us,
        "at_us": utc_us(),
        "nodes": start.nodes,
    }
    try:
        # Created once: all pods of a start wait equally long, and count its failure once.
        folder.store.put_if_absent(key, canonical(body))
    except AlreadyExists:  # of another pod
        _, wait_s = read_object(folder.store, key, "failure", _parse)
    else:
        ending = RankFailure(line, failure.text)
        is_over = wait_s is None
        note_failure(folder, failures, ending, restarts=start.restarts, status=status, is_over=is_over)
    return wait_s


def _parse(body: dict[str, Any]) -> tuple[Failures, float | None]:
    """Return the failures so far, and the seconds to wait after the last one."""
    waits_s, next_s = (min(whole_number(body, name), int(LONGEST_S)) for name in ("waits_s", "wait_s"))
    step = body["step"]
    if step not in (None, -1, UNREADABLE):  # -1: before any event of the run
        step = whole_number(body, "step")
    line = str(body["line"])
    failures = Failures(
        step=step,
        line=line,
        wait_s=float(next_s),
        lines=[str(one) for one in body.get("lines", [likeness(line)])][:MOST_LINES],
        unknown=[str(one) for one in body.get("unknown", [])][:MOST_LINES],
        ends=whole_number(body, "ends", 1),
    )
    return failures, None if body["over"] is True else float(waits_s)


def failure_spans(folder: RunFolder) -> list[Span]:
    """Return the times of the starts whose ranks failed: JobSet deletes their pods. Raises: StoreError.

    A start's time includes the wait before the next one. Damaged objects, and objects of earlier releases, have no
    times and are left out.
    """

    def parse(body: dict[str, Any]) -> Span:
        begun_us = whole_number(body, "begun_us")
        failed_us = whole_number(body, "at_us")
        wait_s = whole_number(body, "waits_s")
        nodes = whole_number(body, "nodes")
        # A forged object may name any numbers: they are clipped to what a start can have.
        wait_s = min(wait_s, int(LONGEST_S))
        nodes = max(1, min(nodes, MOST_NODES))
        ended_us = max(begun_us, failed_us + wait_s * 1_000_000)
        return Span(begun_us=begun_us, ended_us=ended_us, nodes=nodes, state="failed")

    def span(key: str) -> Span | None:
        try:
            return read_object(folder.store, key, "failure with a time", parse)
        except Corrupt:
            return None

    keys = [info.key for info in folder.store.list(folder.key(FAILURES))]
    spans = filter(None, map_in_order(span, keys, at_once=AT_ONCE))
    return sorted(spans, key=lambda each: each.begun_us)


def _wait_signal(seconds: float) -> bool:
    """Wait, but not beyond a signal: the first process of a container dies of none by itself."""
    heard = Event()
    before = {number: signal.signal(number, lambda *_: heard.set()) for number in SIGNALS}
    try:
        return heard.wait(seconds)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> int:
    """Run the ranks of this pod; return the exit status that the Job's policy reads."""
    begun_us = utc_us()
    spec = parse_spec(parse_json_object(sys.argv[1]), "the pod's command")
    command = pod_torchrun(spec, os.environ["JOB_COMPLETION_INDEX"], os.environ["PENSTOCK_MEETING"])
    status, failure = run_node(command, environment(spec, os.environ))
    folder = RunFolder(loader.Root(spec.record).store, spec.run)
    is_first = os.environ["JOB_COMPLETION_INDEX"] == "0"
    if status == 0 and is_first:
        send_end(folder, status)
    if status in (0, AGAIN):
        return status
    start = PodStart(
        submission=os.environ.get("PENSTOCK_SUBMISSION", "0" * 16),  # none by an earlier release
        restarts=int(os.environ.get("PENSTOCK_ATTEMPT") or 0),
        begun_us=begun_us,
        nodes=spec.node_range[1],
    )
    end = failure_status(folder, start, failure, status)
    if end == OVER and is_first:
        send_end(folder, status)
    return end


if __name__ == "__main__":
    sys.exit(main())
