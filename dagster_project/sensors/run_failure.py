"""Run failure: an alert for every run that failed and will not be tried again by itself."""

import dagster as dg

from assets.failures import why_failed
from dagster_project.last_run import PARTITION
from dagster_project.sensors.recovery import will_start_again
from resources.alerts import Alert, AlertsResource

_DATASET = "penstock/dataset"


def run_failure_sensor() -> dg.SensorDefinition:
    """Return one sensor for all jobs of this code location."""

    @dg.run_failure_sensor(
        name="penstock_run_failure",
        minimum_interval_seconds=30,
        description="Sends an alert for every run that failed and is not started again by itself.",
    )
    def run_failure(context: dg.RunFailureSensorContext, alerts: AlertsResource) -> dg.SkipReason | None:
        run = context.dagster_run
        if will_start_again(context.instance, run):
            return dg.SkipReason(f"run {run.run_id} is started again")
        partition = run.tags.get(PARTITION, "")
        failed = context.get_step_failure_events()
        details = (
            "\n".join(f"{event.step_key}: {why_failed(event)}" for event in failed)
            or context.failure_event.message
        )
        alert = Alert(
            name="run-failed",
            severity="error",
            dataset=run.tags.get(_DATASET, ""),
            what=f"run {run.run_id} of {run.job_name}{f', partition {partition},' if partition else ''} failed",
            details=(details or "")[:3000],
            url=alerts.page(f"runs/{run.run_id}"),
        )
        for problem in alerts.send(alert):
            context.log.error(problem)
        return None

    return run_failure
