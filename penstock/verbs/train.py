"""`penstock train submit|ls|show|why|goodput|logs|wait|stop|cancel|resume|replay`: training runs."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import InvalidRuntime

from ..text import lines_text, terminal_text
from ..units import parse_length, second
from .verb import (
    Answer,
    Argument,
    Table,
    Verb,
    argument,
    argument_type,
    cluster_argument,
    exclusive_options,
    flag,
    list_option,
    parse_cluster,
    parse_count,
    verb,
)

if TYPE_CHECKING:
    from ..train.launch.launcher import Launcher
    from ..train.run_folder import RunFolder
    from ..train.run_spec import RunSpec
    from ..train.submitting import RunSummary

FORM = ("{:<24}", " {:<8}", " step {:>9}", " attempt {:>3}", "  {}")


def _launcher(record: str, arguments: Namespace) -> "Launcher":
    from ..compute.cluster import Cluster
    from ..train.submitting import record_launcher

    return record_launcher(record, parse_cluster(arguments) or Cluster())


def _find_started(arguments: Namespace) -> tuple["RunFolder", "RunSpec | None", "Launcher | None"]:
    """Return a run's record, file and launcher; no file and launcher for a run that `submit` did not start."""
    folder = _folder(arguments)
    spec = folder.read_spec()
    return folder, spec, None if spec is None else _launcher(folder.store.url, arguments)


def _folder(arguments: Namespace) -> "RunFolder":
    from ..train.run_folder import RunFolder

    return RunFolder(loader.Root(arguments.root).store, arguments.run)


def _find_launcher(arguments: Namespace) -> tuple["RunFolder", "Launcher"]:
    """Return a run's record and its launcher. Raises: RunNotFound for a run that `submit` did not start."""
    from ..train.launch.run_launcher import check_launcher

    folder = _folder(arguments)
    folder.spec()
    launcher = _launcher(folder.store.url, arguments)
    check_launcher(folder, launcher)
    return folder, launcher


_CLUSTER = cluster_argument("TOML file of the cluster (default: this machine)")
_SPEC = (
    argument("spec FILE", "TOML file of the run"),
    _CLUSTER,
    list_option(
        "--set KEY=VALUE", "replace a key of the file, such as walltime_s=7200 or env.NCCL_DEBUG=INFO"
    ),
)
_SIZED_SPEC = (*_SPEC, argument("--nodes N", "nodes of this start, of the file's range", type=int))
_MOVED = argument(
    "--moved", "start it here: nothing of it waits or runs where it was submitted", action="store_true"
)
_RUN = argument("run", "name of the run")
_STARTED_RUN = (_RUN, _CLUSTER)


def _dry_run(option: str, text: str) -> Argument:
    return argument(option, f"{text}, and start nothing", dest="dry_run", action="store_const", const=option)


@verb(
    "start a run, or find it",
    *_SIZED_SPEC,
    _MOVED,
    argument(
        "--plan HASH",
        "plan whose requests --dry-run counts, as plan.save(root) stored it (default: the run's)",
    ),
    flag("--snapshot", "start from a copy of this folder in the record, without what .gitignore names"),
    # Two options: `nargs="?"` would take the file that follows.
    _dry_run("--dry-run", "print what would be started"),
    _dry_run("--dry-run=server", "let the scheduler check it"),
)
def submit(arguments: Namespace) -> Answer:
    """Start a run, or find the one that its file started."""
    from ..train.code.snapshot import with_code
    from ..train.launch.run_places import check_places, place_notes
    from ..train.run_folder import RunFolder
    from ..train.run_spec import read_spec
    from ..train.start_requests import start_line
    from ..train.submitting import changes, end_note, resize_spec
    from ..train.submitting import submit as submit_run

    if arguments.plan and arguments.dry_run != "--dry-run":
        raise InvalidRuntime(
            "--plan counts the requests of --dry-run; a run names its plan itself: leave it out"
        )
    spec = read_spec(arguments.spec, arguments.set)
    spec = with_code(spec, Path.cwd() if arguments.snapshot else None, stored=not arguments.dry_run)
    launcher = _launcher(spec.record, arguments)
    asked = resize_spec(spec, arguments.nodes)
    changed = changes(spec)
    body: dict[str, Any] = {"run": spec.run, "changed": [change._asdict() for change in changed]}
    notes = [*map(str, changed), *launcher.notes(asked), *place_notes(spec)]
    if arguments.dry_run:
        check_places(spec)
    if arguments.dry_run == "--dry-run":
        text = body["command"] = launcher.describe(asked)
        notes.append(start_line(asked, arguments.root, arguments.plan))
        for note in notes:
            print(f"penstock: {note}", file=sys.stderr)  # the text may go to a shell, or to kubectl
        return body | {"notes": notes}, text, 0
    if arguments.dry_run:
        text = body["answer"] = launcher.check(asked)
    else:
        notes += end_note(RunFolder(loader.Root(spec.record).store, spec.run))
        place = body["place"] = submit_run(spec, launcher, arguments.nodes, moved=arguments.moved)
        text = f"{spec.run}: {place}"
    return body | {"notes": notes}, [text, *notes], 0


@verb("let a stopped run go on", *_SIZED_SPEC, _MOVED)
def resume(arguments: Namespace) -> Answer:
    """Let a stopped run go on at its newest checkpoint."""
    from ..train.code.snapshot import with_code
    from ..train.run_folder import RunFolder
    from ..train.run_spec import read_spec
    from ..train.submitting import changes, end_note
    from ..train.submitting import resume as resume_run

    spec = read_spec(arguments.spec, arguments.set)
    spec = with_code(spec, None, stored=False)  # the copy of its code that the run started with, if any
    changed = changes(spec)
    notes = end_note(RunFolder(loader.Root(spec.record).store, spec.run))
    launcher = _launcher(spec.record, arguments)
    place = resume_run(spec, launcher, arguments.nodes, moved=arguments.moved)
    body = {
        "run": spec.run,
        "place": place,
        "changed": [change._asdict() for change in changed],
        "notes": notes,
    }
    return body, [f"{spec.run}: {place}", *map(str, changed), *notes], 0


def _steps(text: str) -> tuple[int, int]:
    from ..train.replay_run import parse_steps

    return parse_steps(text)


@verb(
    "repeat steps on other nodes",
    *_SPEC,
    argument("--steps A:B", "steps to repeat; B is not included", type=argument_type(_steps), required=True),
    argument(
        "--not-on NODE",
        "node to leave out; may be repeated (default on a cluster: all nodes that did the steps)",
        action="append",
        default=[],
    ),
)
def replay(arguments: Namespace) -> Answer:
    """Repeat steps of a run, on other nodes; nothing is saved but the record and the trail."""
    from ..compute.cluster import Cluster
    from ..train.code.snapshot import with_code
    from ..train.replay_run import EXCLUDES, replay_spec, step_nodes, without_nodes
    from ..train.run_folder import RunFolder
    from ..train.run_spec import read_spec
    from ..train.submitting import record_launcher
    from ..train.submitting import submit as submit_run

    spec = read_spec(arguments.spec, arguments.set)
    cluster = parse_cluster(arguments) or Cluster()
    spec = with_code(spec, None, stored=False)  # the copy of its code that the run started with, if any
    repeated = replay_spec(spec, arguments.steps)
    nodes = arguments.not_on  # by default the nodes that did the steps: none repeats its own
    if cluster.engine in EXCLUDES and not nodes:
        nodes = step_nodes(RunFolder(loader.Root(spec.record).store, spec.run), *arguments.steps)
    place = submit_run(repeated, record_launcher(spec.record, without_nodes(cluster, nodes)))
    body = {"run": repeated.run, "place": place, "not_on": [*nodes]}
    text = f"{repeated.run}: {place}\nwhen it has ended: penstock trail against {spec.run} {repeated.run}"
    return body, text, 0


@verb("list runs", _CLUSTER)
def ls(arguments: Namespace) -> Answer:
    from ..train.submitting import summaries

    root = loader.Root(arguments.root)
    listed = summaries(root, _launcher(root.url, arguments))
    rows = [
        (one.run, one.status.state, str(one.step), str(len(one.attempts)), _newest(one)) for one in listed
    ]
    header = ("run", "state", "step", "attempts", "newest event")
    table = Table(form=FORM, header=header, rows=rows, titled=False)
    return [one.to_json() for one in listed], [table] if rows else "no runs", 0


def _newest(run: "RunSummary") -> str:
    words = run.newest.name.replace("_", " ") if run.newest is not None else "not begun"
    return "; ".join(filter(None, [words, "asked to stop" if run.stopping else "", run.failure, run.problem]))


@verb("show a run's state and starts", *_STARTED_RUN)
def show(arguments: Namespace) -> Answer:
    from ..train.code.code_record import CodeRecord
    from ..train.submitting import summary

    folder, spec, launcher = _find_started(arguments)
    run = summary(folder, launcher)
    body = run.to_json() | {"spec": None if spec is None else spec.to_json(), "starts": run.attempts}
    body["events"] = [
        {"attempt": event.attempt, "event": event.name, "step": event.step, "at_us": event.at_us}
        for event in run.events
    ]
    lines = [f"{run.run}: {run.status.state}, {_newest(run)}, {run.step} steps done"]
    if spec is None:
        lines.append("no penstock train submit started it: only its record is known")
    else:
        lines += [
            f"command: {' '.join(spec.command)}",
            f"checkpoints: {spec.checkpoints or spec.record}",
        ]
    if run.status.place:
        lines.append("; ".join(filter(None, [run.status.place, run.status.reason])))
    body["changes"] = [
        {"at_us": change.at_us, "by": change.by, "changed": [one._asdict() for one in change.changed]}
        for change in run.changes
    ]
    for change in run.changes:
        fields = "; ".join(map(str, change.changed))
        lines.append(f"changed {second(change.at_us)} by {change.by or 'a user without a name'}: {fields}")
    code = body["code"] = CodeRecord(folder.store, folder.key("")).lines()
    if 0 in code:
        lines.append(code[0])
    for number, facts in run.attempts.items():
        own = [str(event) for event in run.events if event.attempt == number]
        where = f"{facts.get('launcher')} on {facts.get('node')}, {facts.get('ranks')} ranks"
        lines.append(f"attempt {number}: {where}; {', '.join(own)}")
        if number in code:
            lines.append(f"  code: {code[number]}")
    if run.failed is not None:
        lines += run.failed.to_lines()
    return body, lines_text(lines), 0


@verb("show where the time of a run went", *_STARTED_RUN)
def goodput(arguments: Namespace) -> Answer:
    from ..train.goodput.allocations import RECORDED, UNACCOUNTED
    from ..train.goodput.run_usage import goodput_body, run_goodput
    from ..train.goodput.starts import restarts, totals
    from ..train.goodput.stretches import PARTS

    folder, _, launcher = _find_started(arguments)
    starts = run_goodput(folder, launcher)
    sums = totals(starts)
    whole = sum(sums.values())
    parts = [(part, f"{sums[part]:,.1f}", f"{sums[part] / whole:.1%}" if whole else "") for part in PARTS]
    rows = [
        (
            str(one.attempt or "-"),
            one.end_words,
            f"{one.first_step}-{one.end_step}",
            str(one.lost_steps),
            "-" if one.seconds_to_first_step is None else f"{one.seconds_to_first_step:.1f}",
            f"{one.share:.1%}",
        )
        for one in starts
    ]
    header = ("attempt", "end", "steps", "lost", "s to first", "new steps")
    tables: list[str | Table] = []
    if any(one.state == RECORDED for one in starts):
        tables.append(
            "by the record only, from each start's first event to its last, without queue and launch:"
        )
    tables += [
        Table(form=("{:<18}", " {:>14}", " {:>7}"), header=("part", "node-seconds", "share"), rows=parts),
        Table(form=("{:<8}", " {:<16}", " {:>12}", " {:>5}", " {:>10}", " {:>9}"), header=header, rows=rows),
    ]
    if missing := [str(one.attempt) for one in starts if one.state == UNACCOUNTED]:
        tables.append(
            f"the scheduler's accounting lacks attempt {', '.join(missing)}: it was too short, or the "
            "clock of its first node is wrong"
        )
    again = [
        (
            one.cause,
            str(one.count),
            str(one.lost_steps),
            "-" if one.seconds_to_first_step is None else f"{one.seconds_to_first_step:.1f}",
        )
        for one in restarts(starts)
    ]
    if again:
        names = ("restarts after", "number", "lost steps", "s to first")
        tables.append(Table(form=("{:<18}", " {:>8}", " {:>10}", " {:>10}"), header=names, rows=again))
    return goodput_body(starts), tables, 0


@verb(
    "show what a run's GPUs waited for",
    _RUN,
    argument("--attempt N", "number of a start; the newest by default", type=int),
)
def starved(arguments: Namespace) -> Answer:
    from ..train.starved import starvation

    folder = _folder(arguments)
    folder.check_exists()
    keys = folder.interval_keys(arguments.attempt)  # without --attempt of all starts, the newest last
    intervals = folder.intervals([key for key in keys if key.attempt == keys[-1].attempt])
    if not intervals:
        return {"run": folder.run}, f"{folder.run} has no interval yet: it stores one a minute", 0
    report = starvation(intervals)
    return {"run": folder.run, **report.to_json()}, report.to_text(), 0


@verb("show why a run waits", *_STARTED_RUN)
def why(arguments: Namespace) -> Answer:
    from ..train.submitting import summary

    folder, launcher = _find_launcher(arguments)
    # First: `summary` asks for the status, which lets a job wait again that Slurm holds, and its reason is gone.
    text = launcher.why(folder.run)
    run = summary(folder, launcher)
    body = {"run": folder.run, "state": run.status.state, "place": run.status.place, "why": text}
    return body | {"failure": run.failure}, f"{folder.run}: {text or run.not_waiting}", 0


@verb(
    "show what a run wrote: from the first failure of its newest start on, or its last lines",
    *_STARTED_RUN,
    flag("--all", "print all that it wrote"),
    argument("--rank R", "only the lines of this rank", type=parse_count),
    exclusive_options(
        argument("--attempt N", "only what this start wrote (see show)", type=parse_count),
        flag("--follow", "print what it writes, until it has ended"),
    ),
)
def logs(arguments: Namespace) -> Answer:
    """Show a run's output. Exit with 2 if output that should be there is missing."""
    from ..train.launch.run_end import follow_output
    from ..train.launch.shown_log import attempt_start, check_folder, empty_log_words, read_log, whole_log

    folder, launcher = _find_launcher(arguments)
    run = folder.run
    if arguments.follow:
        check_folder(launcher, run)  # else a run that waits would be followed for ever
        begin = 0 if arguments.all else None
        if _print(follow_output(folder, launcher, arguments.rank, begin), arguments):
            empty_log_words(launcher, run)  # raises if output should be there
        return {}, f"penstock: {run} has ended", 0
    start = attempt_start(folder, arguments.attempt)
    if arguments.all:
        is_empty = _print(whole_log(launcher, run, arguments.rank, start), arguments)
        return {}, empty_log_words(launcher, run) if is_empty else "", 0
    shown = read_log(launcher, run, arguments.rank, start)
    body = {"run": run, "note": shown.note, "text": shown.text}
    if not shown.text:
        return body, empty_log_words(launcher, run), 0
    return body, "\n".join(filter(None, [shown.note, shown.text])), 0


def _print(texts: Iterator[str], arguments: Namespace) -> bool:
    """Print texts as they come; return whether there was none. Raises: InvalidRuntime with --json."""
    if arguments.json:
        raise InvalidRuntime("--follow and --all print text as it comes; leave out --json")
    is_empty = True
    for text in texts:
        is_empty = False
        print(terminal_text(text), end="", flush=True)
    return is_empty


@verb(
    "wait until a run has ended",
    *_STARTED_RUN,
    argument(
        "--timeout 2h", "longest wait; then exit with 124 (default: none)", type=argument_type(parse_length)
    ),
)
def wait(arguments: Namespace) -> Answer:
    """Wait until a run has ended; exit with its exit status."""
    from ..train.launch.run_end import TIMED_OUT, wait_until_ended

    folder, launcher = _find_launcher(arguments)
    status = wait_until_ended(folder, launcher, arguments.timeout)
    body = {"run": folder.run, "status": status}
    if status is None:
        return body, f"{folder.run} has not ended yet", TIMED_OUT
    return body, f"{folder.run} ended with status {status}", status


@verb("let a run save and end", *_STARTED_RUN)
def stop(arguments: Namespace) -> Answer:
    """Ask a run to save and end for good."""
    from ..train.submitting import stop as stop_run

    folder, _, launcher = _find_started(arguments)
    words = stop_run(folder, launcher)
    return {"run": folder.run}, f"{folder.run} {words}; penstock train resume continues it", 0


@verb("kill a run at once", *_STARTED_RUN)
def cancel(arguments: Namespace) -> Answer:
    from ..train.submitting import cancel as cancel_run

    folder, launcher = _find_launcher(arguments)
    words = cancel_run(folder, launcher)
    text = f"{folder.run} was ended; penstock train resume continues it: it {words}"
    return {"run": folder.run}, text, 0


VERB = Verb(
    text="run trainings that stop and go on",
    verbs={
        "submit": submit,
        "ls": ls,
        "show": show,
        "starved": starved,
        "why": why,
        "goodput": goodput,
        "logs": logs,
        "wait": wait,
        "stop": stop,
        "resume": resume,
        "replay": replay,
        "cancel": cancel,
    },
)
