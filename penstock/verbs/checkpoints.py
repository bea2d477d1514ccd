"""`penstock checkpoints ls|copy|register|set-aside|verify`: checkpoints of training runs."""

from argparse import Namespace
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import InvalidRuntime

from ..places import check_root_or_records
from ..progress import progress
from ..text import lines_text
from ..units import second, size
from .verb import HASH_CHARS, Answer, Table, Verb, argument, verb

if TYPE_CHECKING:
    from ..checkpoints.listing import ListedStep
    from ..checkpoints.marker import Checkpoint

HEADER = ("run", "step", "saved (UTC)", "bytes", "ranks", "trained on")
FORM = ("{:<20}", " {:>10}", " {:<19}", " {:>10}", " {:>5}", "  {}")


@verb(
    "list runs and steps, finished or not, and the versions of their data",
    argument("run", "only this run", nargs="?"),
    argument("--near DIR", "near saves in this folder of a node cache instead; with --peers its token"),
    argument(
        "--peers LIST", "near saves of all nodes instead: their cache servers, as for penstock cache ls"
    ),
)
def ls(arguments: Namespace) -> Answer:
    """Exit with 1 if a finished save cannot be loaded."""
    if arguments.near is not None or arguments.peers is not None:
        return _list_near(arguments)
    from ..checkpoints.listing import list_steps

    store = loader.Root(arguments.root).store
    rows = list(list_steps(store, arguments.run))
    if not rows:
        check_root_or_records(store, "checkpoints")
    body = [_row(one) for one in rows]
    cells = [
        (
            *(row["run"], row["step"], row["saved"] or "-", size(row["nbytes"]), row["ranks"] or "-"),
            row["problem"] or _training_text(row),
        )
        for row in body
    ]
    table = Table(form=FORM, header=HEADER, rows=cells)
    # Each save in progress has a problem, its missing marker. Only a finished save that cannot be loaded is a fault.
    wrong = any(one.problem and not one.unfinished for one in rows)
    return body, [table] if body else f"{store.url} has no checkpoints", 1 if wrong else 0


@verb(
    "read every byte and compare its hash",
    argument("run"),
    argument("--step", "only this step (default: all)", type=int),
)
def verify(arguments: Namespace) -> Answer:
    """Read every byte of a run's checkpoints. Exit status 1 if any is damaged."""
    from ..checkpoints import marker
    from ..checkpoints.listing import check_objects, finished_steps

    store = loader.Root(arguments.root).store
    steps = finished_steps(store, arguments.run) if arguments.step is None else [arguments.step]
    markers = [marker.read(store, arguments.run, step) for step in steps]
    objects = sum(len(read.objects) for read in markers)
    nbytes = sum(read.nbytes for read in markers)
    checks = progress(check_objects(store, markers), "verify", size=lambda read: read[1].nbytes, total=nbytes)
    wrong = [
        {"step": read.step, "object": f"{store.url}/{read.key(part)}", "problem": problem}
        for read, part, problem in checks
        if problem
    ]
    if wrong:
        result = f"{len(wrong)} problems"
    elif markers:
        result = "nothing wrong"
    else:
        result = "no finished save yet"
    lines = [f"{row['object']}: {row['problem']}" for row in wrong]
    lines.append(f"{arguments.run}: {len(markers)} checkpoints, {objects} objects, {size(nbytes)}; {result}")
    body = {"run": arguments.run, "steps": steps, "objects": objects, "nbytes": nbytes, "problems": wrong}
    return body, lines_text(lines), 1 if wrong else 0


@verb(
    "register a checkpoint as a version of a model in MLflow",
    argument("where RUN@STEP", "a finished checkpoint"),
    argument("--mlflow NAME", "model of MLflow's registry", required=True),
)
def register(arguments: Namespace) -> Answer:
    """Register a checkpoint as a version of a model in MLflow; a second call finds it."""
    from ..train.trackers.mlflow_run import register as make

    run, step = _parse_run_step(arguments.where)
    version = make(loader.Root(arguments.root), run, step, arguments.mlflow)
    text = f"{version.model} version {version.version}: {version.source}"
    return version.to_json(), text if version.is_new else f"{text}, registered before", 0


@verb(
    "copy to another store, verified",
    argument("run RUN[@STEP]", "all finished steps of a run, or one"),
    argument("--to URL", "root that gets the copy", required=True),
)
def copy(arguments: Namespace) -> Answer:
    from ..train.checkpoint_copies import copy_checkpoints

    run, at, step = arguments.run.partition("@")
    if at and not step.isdecimal():
        raise InvalidRuntime(f"{arguments.run!r}: a run, or a run and a step, such as big-7@1000")
    source = loader.Root(arguments.root)
    target = loader.Root(arguments.to)
    copies = list(copy_checkpoints(source.store, target, run, int(step) if at else None))
    lines = [
        f"{one.run}@{one.step}: {one.copied} of {one.objects} objects copied ({size(one.nbytes)}), others were there"
        for one in copies
    ]
    return [one.to_json() for one in copies], lines_text(lines), 0


@verb(
    "set a checkpoint aside, so that its run goes on at the one before",
    argument("where RUN@STEP", "a finished checkpoint, damaged or not"),
    argument("--reason", "why; ls shows it", required=True),
)
def set_aside(arguments: Namespace) -> Answer:
    """Set a checkpoint aside. Its bytes stay until you delete them."""
    from ..checkpoints.marker import steps
    from ..checkpoints.set_aside import set_aside as set_step_aside
    from ..train.launched import user_name

    run, step = _parse_run_step(arguments.where)
    store = loader.Root(arguments.root).store
    aside = set_step_aside(store, run, step, by=user_name(), reason=arguments.reason)
    # Listed after the move: the next start begins at the newest of the steps that remain.
    newest = max(steps(store, run), default=None)
    goes_on = "begins at step 0"
    if newest is not None:
        goes_on = f"goes on at step {newest}"
    text = f"{run}@{step} was set aside with {size(aside.nbytes)}, which stay: a start of {run} {goes_on}"
    return {"run": run, "step": step, "nbytes": aside.nbytes, "newest": newest}, text, 0


def _list_near(arguments: Namespace) -> Answer:
    """List near saves. Exit with 1 if a start passes over a finished one."""
    from ..checkpoints.near.listing import list_near_steps, nodes_of_folder, nodes_of_peers

    is_cluster = arguments.peers is not None
    if is_cluster:
        nodes = nodes_of_peers(arguments.peers, arguments.run, arguments.near)
    else:
        nodes = nodes_of_folder(arguments.near, arguments.run)
    steps = list(list_near_steps(nodes, is_cluster=is_cluster))
    body = []
    cells = []
    for step in steps:
        row = _facts(step.run, step.step, step.checkpoint, step.problem, step.nbytes)
        row["nodes"] = step.nodes
        body.append(row)
        cells.append(
            (
                step.run,
                step.step,
                row["saved"] or "-",
                size(step.nbytes),
                step.nodes,
                step.problem or _training_text(row),
            )
        )
    header = ("run", "step", "saved (UTC)", "bytes", "nodes", "trained on")
    table = Table(form=FORM, header=header, rows=cells)
    # Ranks save near copies one by one. Without a marker the save is in progress, which is not a fault.
    wrong = any(step.problem and step.checkpoint is not None for step in steps)
    where = arguments.peers or arguments.near
    return body, [table] if body else f"{where} has no near saves", int(wrong)


def _parse_run_step(where: str) -> tuple[str, int]:
    """Return (run, step) of RUN@STEP. Raises: InvalidRuntime."""
    run, _, step = where.rpartition("@")
    if not (run and step.isascii() and step.isdecimal()):
        raise InvalidRuntime(f"{where!r}: RUN@STEP is needed, such as big-7@90000")
    return run, int(step)


def _row(step: "ListedStep") -> dict[str, Any]:
    row = _facts(step.run, step.step, step.checkpoint, step.problem, step.nbytes)
    row["set_aside"] = step.set_aside
    return row


def _facts(run: str, step: int, checkpoint: "Checkpoint | None", problem: str, nbytes: int) -> dict[str, Any]:
    return {
        "run": run,
        "step": step,
        "complete": not problem,
        "problem": problem,
        "nbytes": nbytes,
        "saved": second(checkpoint.at_us) if checkpoint else None,
        "ranks": checkpoint.world_size if checkpoint else None,
        "plan": checkpoint.plan if checkpoint else None,
        "versions": list(checkpoint.versions) if checkpoint else [],
    }


def _training_text(row: dict[str, Any]) -> str:
    """Return the versions and the plan of a checkpoint's training; "" if it was saved without a loader."""
    plan = row["plan"]
    if not plan:
        return ""
    names = ", ".join(sorted({version["name"] for version in row["versions"]}))
    return f"{names} {plan[:HASH_CHARS]}".strip()


VERB = Verb(
    text="list, copy and verify checkpoints of trainings",
    verbs={"ls": ls, "copy": copy, "register": register, "set-aside": set_aside, "verify": verify},
)
