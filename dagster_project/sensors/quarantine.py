"""Ledgers of trainings ask for a run that judges them: new ones, each set once a day until it was judged."""

import hashlib
import time
from itertools import islice

import dagster as dg

from assets.feedback.quarantine import MAX_LEDGERS, unjudged_ledgers
from assets.pages.report import dagster_name
from assets.spec import DatasetSpec
from resources.storage import RootResource


def quarantine_job(spec: DatasetSpec) -> str:
    """Return the name of the job that judges."""
    return f"{dagster_name(spec.name)}_quarantine"


def sensor(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> dg.SensorDefinition:
    """Return the sensor of a dataset."""
    return quarantine_sensor(spec)


def quarantine_sensor(spec: DatasetSpec, *, minimum_interval_s: int = 300) -> dg.SensorDefinition:
    """Ask for one run of the job when ledgers came that nobody has judged.

    There is no cursor: judged ledgers are read from the store, so a tick that dies loses nothing. The same ledgers are
    asked for once a day: a run that failed, because a store did not answer, is followed by another one.
    """

    @dg.sensor(
        name=f"{dagster_name(spec.name)}_quarantine_reports",
        job_name=quarantine_job(spec),
        minimum_interval_seconds=minimum_interval_s,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Starts a run that judges what trainings on {spec.name} met as corrupt.",
    )
    def quarantine_reports(
        context: dg.SensorEvaluationContext, root: RootResource
    ) -> dg.RunRequest | dg.SkipReason:
        with root.opened() as opened:
            waiting = list(islice(unjudged_ledgers(opened.store, spec.name), MAX_LEDGERS))
        if not waiting:
            return dg.SkipReason(f"no training on {spec.name} met a corrupt sample that was not judged yet")
        day = time.strftime("%Y-%m-%d", time.gmtime())
        named = hashlib.sha256("\0".join(waiting).encode()).hexdigest()[:16]
        context.log.info(f"{len(waiting)} ledgers wait to be judged")
        return dg.RunRequest(run_key=f"{day}-{named}")

    return quarantine_reports
