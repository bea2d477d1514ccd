"""`penstock jobs ls|show|why|logs|attach|cancel|clear`: data jobs on clusters."""

from argparse import Namespace
from collections import Counter
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import Corrupt, Forbidden, InvalidRuntime, ObjectNotFound

from ..places import check_root_or_records
from ..text import line_text, lines_text
from ..units import parse_length
from .verb import Answer, Table, Verb, argument, argument_type, verb

if TYPE_CHECKING:
    from ..compute.cluster import Cluster
    from ..compute.job import JobDescription, JobFolder

FORM = ("{:<32}", " {}", ", {}", ", {}")
_ID = argument("id", "id of the job, or its first characters")
_WITH_CLUSTER = (_ID, argument("--cluster FILE", "file of the job's cluster", required=True))


@verb("list the jobs of a root")
def ls(arguments: Namespace) -> Answer:
    from ..compute.job import JobFolder, job_ids

    store = loader.Root(arguments.root).store
    body = list[dict[str, Any]]()
    damaged = list[str]()
    for id_ in job_ids(store):
        folder = JobFolder(store, id_)
        try:
            description = folder.description()
            if description is not None:
                body.append(_summary(folder, description))
        except (Corrupt, Forbidden) as error:
            damaged.append(f"{error}; penstock jobs clear {id_} deletes it")
    if not body and not damaged:
        check_root_or_records(store, "jobs")
    rows = [
        (
            row["id"],
            row["about"],
            f"{row['n_done']} of {row['n_blocks']} blocks done",
            f"{row['n_units']} units",
        )
        for row in body
    ]
    table = Table(form=FORM, header=("id", "about", "blocks", "units"), rows=rows, titled=False)
    return body, [*([table] if rows else ["no jobs"]), *map(line_text, damaged)], 1 if damaged else 0


@verb("show a job's progress", _ID)
def show(arguments: Namespace) -> Answer:
    folder, description = _job(arguments)
    body = _summary(folder, description)
    # A second start means that another runner took the block over from a dead or silent one.
    again = {block: n for block, n in sorted(folder.n_starts().items()) if n > 1}
    body |= {"begun_again": again, "stopped": folder.stopped, "code": description.code}
    body |= {"sha256": description.sha256, "stores": [one.url for one in description.stores]}
    lines = [
        f"{folder.id}: {description.about}",
        f"work {description.work}, version {description.version}, Python {description.python}, "
        f"source {description.code[:12]}",
        f"stores: {', '.join(body['stores']) or 'none'}; SHA-256 {description.sha256}",
        f"{body['n_done']} of {body['n_blocks']} blocks done, {body['n_units']} units, attempt {body['attempt']}",
    ]
    if again:
        lines.append("restarted: " + ", ".join(f"block {block} ({n} times)" for block, n in again.items()))
    if body["stopped"]:
        lines.append(
            "a user cancelled it; to continue, run its command again, or penstock jobs attach --sha256"
        )
    return body, lines_text(lines), 0


@verb("show the state of a job, and why it waits", *_WITH_CLUSTER)
def why(arguments: Namespace) -> Answer:
    """Show the newest attempt's state."""
    from ..compute.cluster_compute import words_of_attempt

    folder, _ = _job(arguments)
    cluster = _cluster(arguments)
    engine = cluster.open()
    attempt, record = folder.newest_attempt()
    if record is None:
        return {"attempt": 0}, "no attempt yet", 0
    name = folder.attempt_name(attempt)
    status = engine.status(name)
    body = {"attempt": attempt, "name": name, "by": record.by, "state": status.state, "reason": status.reason}
    body |= {"waiting": status.waiting, "running": status.running, "place": status.place}
    lines = [f"{name}, submitted by {record.by}: {words_of_attempt(attempt, status)}"]
    if cluster.engine == "slurm":
        from ..compute.engines.slurm import SlurmQueue
        from ..compute.engines.slurm_why import why_name_waits

        reasons = why_name_waits(SlurmQueue(cluster.submit).answer, name)
        body["why"] = reasons
        lines += [reasons] if reasons else []
    return body, lines_text(lines), 0


@verb(
    "show a runner's output, or why a block failed",
    _ID,
    argument("--block", "why this block's last start failed", type=int),
    argument("--element", "number of the runner (default: 0)", type=int, default=0),
    argument("--cluster FILE", "file of the cluster, for what a runner wrote"),
)
def logs(arguments: Namespace) -> Answer:
    folder, _ = _job(arguments)
    if arguments.block is not None:
        text = folder.log(arguments.block)
        return (
            {"block": arguments.block, "text": text},
            text or f"no start of block {arguments.block} failed",
            0,
        )
    if arguments.cluster is None:
        raise InvalidRuntime("pass --block N for a block's log, or --cluster FILE for a runner's")
    attempt, _ = folder.newest_attempt()
    text = _cluster(arguments).open().logs(folder.attempt_name(attempt), arguments.element)
    return {"element": arguments.element, "text": text}, text or "no output", 0


@verb(
    "wait for a job, or run its missing blocks",
    *_WITH_CLUSTER,
    argument(
        "--sha256 HEX",
        "SHA-256 of the job's description, which you trust: run missing blocks (default: only wait)",
    ),
)
def attach(arguments: Namespace) -> Answer:
    from ..compute.attach import follow
    from ..compute.cluster import OUR_PACKAGES
    from ..compute.submit import Submission
    from ..compute.work import find_work
    from ..progress import progress

    folder, description = _job(arguments)
    # The user names the hash that the submission printed: a writer of `jobs/` may have forged job.json since.
    if arguments.sha256:
        description = folder.find_description(arguments.sha256)
    cluster = _cluster(arguments)
    work = find_work(description.work, [*OUR_PACKAGES, *cluster.packages])
    engine = cluster.open()
    ends: Counter[str] = Counter()
    try:
        there = Submission(folder=folder, description=description)
        blocks = follow(there, work, engine, cluster, begins=bool(arguments.sha256))
        for block in progress(
            blocks, description.about, lambda done: len(done.outcomes), description.n_units
        ):
            ends.update("done" if done.error is None else done.error.code for done in block.outcomes)
    finally:
        engine.close()
    failed = ends.total() - ends["done"]
    text = f"{ends['done']} units done, {failed} failed"
    more = ", ".join(f"{code} {n}" for code, n in sorted(ends.items()) if code != "done")
    return dict(ends), text + (f": {more}" if more else ""), 1 if failed else 0


@verb("cancel a job, with all its processes", *_WITH_CLUSTER)
def cancel(arguments: Namespace) -> Answer:
    from ..compute.attach import cancel as cancel_job

    folder, description = _job(arguments)
    cancel_job(folder, _cluster(arguments).open())
    return {"id": folder.id}, f"{folder.id} ({description.about}) is cancelled; finished blocks stay", 0


@verb(
    "delete folders of old jobs",
    argument("id", "id of a job, or its first characters (default: all older jobs)", nargs="?"),
    argument(
        "--older 14d",
        "least age of the jobs to delete (default: 14d)",
        type=argument_type(parse_length),
        default=14 * 86_400.0,
    ),
)
def clear(arguments: Namespace) -> Answer:
    """Delete the folders of one job or of all old ones."""
    from ..compute.job import JobFolder, job_ids, now_us

    store = loader.Root(arguments.root).store
    damaged: list[str] = []
    if arguments.id is not None:
        chosen = [_folder(arguments)]
    else:
        chosen = []
        for id_ in job_ids(store):
            folder = JobFolder(store, id_)
            try:
                description = folder.description()
            except (Corrupt, Forbidden) as error:
                damaged.append(f"not deleted: {error}; penstock jobs clear {id_} deletes it")
                continue
            if description is None or now_us() - description.at_us > arguments.older * 1e6:
                chosen.append(folder)
    n_objects = sum(folder.remove() for folder in chosen)
    return (
        {"jobs": [one.id for one in chosen], "objects": n_objects},
        lines_text([f"{len(chosen)} jobs, {n_objects} objects deleted", *damaged]),
        1 if damaged else 0,
    )


def _summary(folder: "JobFolder", description: "JobDescription") -> dict[str, Any]:
    attempt, _ = folder.newest_attempt()
    return {
        "id": folder.id,
        "about": description.about,
        "work": description.work,
        "n_blocks": len(description.blocks),
        "n_done": len(folder.done(description)),
        "n_units": description.n_units,
        "attempt": attempt,
        "at_us": description.at_us,
    }


def _folder(arguments: Namespace) -> "JobFolder":
    from ..compute.job import JobFolder, job_ids

    store = loader.Root(arguments.root).store
    # Ids are long hashes: accept the shortest unambiguous beginning, as Git does.
    ids = [one for one in job_ids(store) if one.startswith(arguments.id)]
    if len(ids) != 1:
        what = "no such job"
        if ids:
            what = f"{len(ids)} jobs whose ids begin with it"
        raise ObjectNotFound(f"{arguments.id!r} in {store.url}: {what}; penstock jobs ls names them")
    return JobFolder(store, ids[0])


def _job(arguments: Namespace) -> tuple["JobFolder", "JobDescription"]:
    folder = _folder(arguments)
    description = folder.description()
    if description is None:
        raise ObjectNotFound(
            f"{folder.key('job.json')} in {folder.store.url}: its submission is incomplete; clear it"
        )
    return folder, description


def _cluster(arguments: Namespace) -> "Cluster":
    from ..compute.cluster import read_cluster

    return read_cluster(arguments.cluster)


VERB = Verb(
    text="manage data jobs on clusters",
    verbs={
        "ls": ls,
        "show": show,
        "why": why,
        "logs": logs,
        "attach": attach,
        "cancel": cancel,
        "clear": clear,
    },
)
