"""`penstock jobs ls|show|why|logs|attach|cancel|clear`: data jobs on clusters."""

from argparse import ArgumentParser, Namespace
from collections import Counter
from typing import TYPE_CHECKING, Any

import loader
from loader.errors import Corrupt, Forbidden, InvalidRuntime, ObjectNotFound

from .verb import Answer, Table, Verb, read_by

if TYPE_CHECKING:
    from ..compute.cluster import Cluster
    from ..compute.job import JobDescription, JobFolder

FORM = ("{:<32}", " {}", ", {}", ", {}")


def _id_argument(parser: ArgumentParser) -> None:
    parser.add_argument("id", help="id of the job, or its first characters")


def _with_cluster(parser: ArgumentParser) -> None:
    _id_argument(parser)
    parser.add_argument("--cluster", metavar="FILE", required=True, help="file of the job's cluster")


def ls(arguments: Namespace) -> Answer:
    from ..compute.job import JobFolder, job_ids

    store = loader.Root(arguments.root).store
    body, damaged = list[dict[str, Any]](), list[str]()
    for id_ in job_ids(store):
        folder = JobFolder(store, id_)
        try:
            description = folder.description()
            if description is not None:
                body.append(_summary(folder, description))
        except (Corrupt, Forbidden) as error:
            damaged.append(f"{error}; penstock jobs clear {id_} deletes it")
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
    return body, [*([table] if rows else ["no jobs"]), *damaged], 1 if damaged else 0


def show(arguments: Namespace) -> Answer:
    folder, description = _job(arguments)
    body = _summary(folder, description)
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
    return body, "\n".join(lines), 0


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
    return body, "\n".join(lines), 0


def logs(arguments: Namespace) -> Answer:
    """Show a runner's output, or a block's error."""
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


def _attach_arguments(parser: ArgumentParser) -> None:
    _with_cluster(parser)
    parser.add_argument(
        "--sha256",
        metavar="HEX",
        help="SHA-256 of the job's description, which you trust: run missing blocks (default: only wait)",
    )


def attach(arguments: Namespace) -> Answer:
    """Wait for a job, or run its missing blocks."""
    from ..compute.attach import follow
    from ..compute.cluster import OUR_PACKAGES
    from ..compute.submit import Submission
    from ..compute.work import work_at
    from ..progress import progress

    folder, description = _job(arguments)
    if arguments.sha256:
        description = folder.description_of(arguments.sha256)
    cluster = _cluster(arguments)
    work = work_at(description.work, [*OUR_PACKAGES, *cluster.packages])
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


def cancel(arguments: Namespace) -> Answer:
    """Cancel a job and all its processes."""
    from ..compute.attach import cancel as cancel_job

    folder, description = _job(arguments)
    cancel_job(folder, _cluster(arguments).open())
    return {"id": folder.id}, f"{folder.id} ({description.about}) is cancelled; finished blocks stay", 0


def _clear_arguments(parser: ArgumentParser) -> None:
    from ..units import parse_length

    parser.add_argument(
        "id", nargs="?", help="id of a job, or its first characters (default: all older jobs)"
    )
    parser.add_argument(
        "--older",
        type=read_by(parse_length),
        default=14 * 86_400.0,
        metavar="14d",
        help="least age of the jobs to delete (default: 14d)",
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
        "\n".join([f"{len(chosen)} jobs, {n_objects} objects deleted", *damaged]),
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
    ids = [one for one in job_ids(store) if one.startswith(arguments.id)]
    if len(ids) != 1:
        what = f"{len(ids)} jobs whose ids begin with it" if ids else "no such job"
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


def _logs_arguments(parser: ArgumentParser) -> None:
    _id_argument(parser)
    parser.add_argument("--block", type=int, default=None, help="why this block's last start failed")
    parser.add_argument("--element", type=int, default=0, help="number of the runner (default: 0)")
    parser.add_argument("--cluster", metavar="FILE", help="file of the cluster, for what a runner wrote")


VERB = Verb(
    text="manage data jobs on clusters",
    verbs={
        "ls": Verb(text="list the jobs of a root", run=ls),
        "show": Verb(text="show a job's progress", run=show, arguments=_id_argument),
        "why": Verb(text="show the state of a job, and why it waits", run=why, arguments=_with_cluster),
        "logs": Verb(
            text="show a runner's output, or why a block failed", run=logs, arguments=_logs_arguments
        ),
        "attach": Verb(
            text="wait for a job, or run its missing blocks", run=attach, arguments=_attach_arguments
        ),
        "cancel": Verb(text="cancel a job, with all its processes", run=cancel, arguments=_with_cluster),
        "clear": Verb(text="delete folders of old jobs", run=clear, arguments=_clear_arguments),
    },
)
