"""Jobs: an alert about a cluster's job that nobody waits for, and its end after a day.

Whoever waits for a job says so in its folder every ten minutes. A tick costs a listing, and four requests per job that
is not done.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from assets.alarms import Alarm, due
from loader.errors import Corrupt, EngineUnreachable
from loader.storage import Store
from resources.alerts import Alert, AlertsResource
from resources.compute import ComputeResource
from resources.storage import RootResource

if TYPE_CHECKING:
    from penstock.compute.job import JobFolder

EVERY_S = 600
ALERT_S, CANCEL_S = 6 * 3600.0, 24 * 3600.0
"""Seconds without anybody who waits, after which a person is told, and after which the job is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A job that nobody waits for."""

    folder: "JobFolder"
    """Its folder."""
    about: str
    """Its words for people."""
    alone_s: float
    """Seconds since somebody waited, or it was submitted."""
    n_blocks: int
    """Blocks."""
    n_done: int
    """Blocks that are done."""


def jobs_sensor() -> dg.SensorDefinition:
    """Return the sensor of a root's jobs, on by default."""

    @dg.sensor(
        name="penstock_jobs",
        minimum_interval_seconds=EVERY_S,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Sends an alert about a cluster's job that nobody waits for, and cancels it after a day.",
    )
    def jobs(
        context: dg.SensorEvaluationContext,
        root: RootResource,
        compute: ComputeResource,
        alerts: AlertsResource,
    ) -> dg.SkipReason:
        now_s = time.time()
        with root.opened() as opened:
            alone = [one for one in left(opened.store, now_s, context.log.error) if one.alone_s > ALERT_S]
            ended = [one for one in alone if one.alone_s > CANCEL_S]
            for one in ended:
                _end(context, one.folder, compute)
        to_send, told = due([_alarm(one) for one in alone if one not in ended], context.cursor or "", now_s)
        for problem in (problem for alert in to_send for problem in alerts.send(alert)):
            context.log.error(problem)
        context.update_cursor(told)
        return dg.SkipReason(f"{len(alone)} jobs that nobody waits for, {len(ended)} of them cancelled")

    return jobs


def left(store: Store, now_s: float, tell: Callable[[str], object]) -> Iterator[Left]:
    """Yield the jobs of a store that are neither done nor cancelled, with the time since somebody waited for them.

    tell: takes a line about a job whose description is damaged.
    """
    from penstock.compute.job import JobFolder, job_ids

    for id_ in job_ids(store):
        folder = JobFolder(store, id_)
        try:
            description = folder.description()
        except Corrupt as error:
            tell(f"job {id_} is passed over: {error}")
            continue
        if description is None or folder.stopped:
            continue
        n_done, n_blocks = len(folder.done(description)), len(description.blocks)
        if n_done < n_blocks:
            seen_us = max(description.at_us, folder.attended_us())
            yield Left(
                folder=folder,
                about=description.about,
                alone_s=now_s - seen_us / 1e6,
                n_blocks=n_blocks,
                n_done=n_done,
            )


def _alarm(one: Left) -> Alarm:
    what = (
        f"nobody has waited for job {one.folder.id} ({one.about}) for {one.alone_s / 3600:.0f} h; "
        f"{one.n_done} of its {one.n_blocks} blocks are done, and after {CANCEL_S / 3600:.0f} h it is cancelled"
    )
    dataset = one.about.partition("/")[0]
    return Alarm(
        alert=Alert(name="job-left", severity="warning", dataset=dataset, what=what), subject=one.folder.id
    )


def _end(context: dg.SensorEvaluationContext, folder: "JobFolder", compute: ComputeResource) -> None:
    """Cancel a job: on the cluster of the resource; runners of another one end behind their blocks."""
    from penstock.compute.attach import cancel
    from penstock.compute.cluster import read_cluster

    if not compute.cluster:
        folder.stop()
        return
    try:
        cancel(folder, read_cluster(compute.cluster).open())
    except EngineUnreachable as error:  # its runners end by themselves
        context.log.error(f"job {folder.id} is to end, but its cluster does not answer: {error}")
