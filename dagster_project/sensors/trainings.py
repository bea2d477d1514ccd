"""Sensors for training runs: reports become materializations of [dataset, training_run], ledgers a quarantine run."""

import hashlib
import time
from itertools import islice
from typing import Any

import dagster as dg

import loader
from assets.pages.report import dagster_name
from assets.pages.training_asset import is_known, report_problem, training_event, training_runs
from assets.samples.quarantine import MAX_LEDGERS, unjudged_ledgers
from assets.spec import DatasetSpec
from dagster_project.jobs import job_name
from loader.api.report import Report, new_reports
from loader.dataset.log.entries import DAMAGED
from penstock.train.goodput.run_usage import record_usage
from penstock.train.run_folder import RunFolder
from resources.storage import RootResource

PER_TICK = 50
"""Most reports per tick."""


def training_sensor(dataset: str, *, per_tick: int = PER_TICK) -> dg.SensorDefinition:
    """Show every training report after the cursor, which is the number of the last one shown.

    Dagster stores a tick's events before its cursor, so reports already shown are skipped. A report with a problem is
    logged once: the cursor passes it too.
    """

    @dg.sensor(
        name=f"{dagster_name(dataset)}_training_reports",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Show the trainings on {dataset} that called loader.report.",
    )
    def training_reports(
        context: dg.SensorEvaluationContext, root: RootResource
    ) -> dg.SensorResult | dg.SkipReason:
        cursor = int(context.cursor or 0)
        shown: dict[str, dg.AssetMaterialization] = {}  # identity of a report -> its event
        runs: list[str] = []
        number = cursor

        def log_problem(problem: object) -> None:
            context.log.error(f"report {number} of a training on {dataset} is not shown: {problem}")

        with root.opened() as opened:
            for number, report in new_reports(opened, dataset, cursor):
                if not isinstance(report, Report):
                    log_problem(report)  # the error of reading it
                elif problem := report_problem(opened, report):
                    log_problem(problem)
                elif report.identity not in shown and not is_known(context.instance, report):
                    usage = _usage_metadata(opened, report.run)
                    shown[report.identity] = training_event(opened, report, usage)
                    runs.append(report.run)
                # Dagster ends a tick that takes longer than a minute.
                if number - cursor >= per_tick:
                    break
        if number == cursor:
            return dg.SkipReason(f"no training on {dataset} reported anything new")
        return dg.SensorResult(
            asset_events=list(shown.values()),
            dynamic_partitions_requests=[training_runs(dataset).build_add_request(sorted(set(runs)))],
            cursor=str(number),
        )

    return training_reports


def _usage_metadata(root: loader.Root, run: str) -> dict[str, Any]:
    """Return the goodput and GPU hours in the run's record as metadata; {} without a record."""
    try:
        usage = record_usage(RunFolder(root.store, run))
    except DAMAGED as error:
        return {"run record": dg.MetadataValue.text(f"damaged: {error}")}
    if usage is None:
        return {}
    metadata: dict[str, Any] = {
        "attempts": dg.MetadataValue.int(usage.attempts),
        "goodput": dg.MetadataValue.float(usage.goodput),
    }
    if usage.gpu_hours is not None:
        metadata["gpu_hours"] = dg.MetadataValue.float(usage.gpu_hours)
    return metadata


def quarantine_sensor(spec: DatasetSpec) -> dg.SensorDefinition:
    """Request one run of the quarantine job while there are ledgers without a verdict.

    The store lists the judged ledgers. A run for the same ledgers is requested at most once a day.
    """

    @dg.sensor(
        name=f"{dagster_name(spec.name)}_quarantine_reports",
        job_name=job_name(spec, "quarantine"),
        minimum_interval_seconds=300,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Start a run that judges samples that trainings on {spec.name} report as corrupt.",
    )
    def quarantine_reports(
        context: dg.SensorEvaluationContext, root: RootResource
    ) -> dg.RunRequest | dg.SkipReason:
        with root.opened() as opened:
            waiting = list(islice(unjudged_ledgers(opened.store, spec.name), MAX_LEDGERS))
        if not waiting:
            return dg.SkipReason(
                f"no training on {spec.name} reported a corrupt sample that is not judged yet"
            )
        # In the run key, so that the same ledgers are not requested twice in a day.
        day = time.strftime("%Y-%m-%d", time.gmtime())
        named = hashlib.sha256("\0".join(waiting).encode()).hexdigest()[:16]
        context.log.info(f"{len(waiting)} ledgers wait to be judged")
        return dg.RunRequest(run_key=f"{day}-{named}")

    return quarantine_reports
