"""Trainings that reported themselves become materializations of [dataset, training_run], each once."""

import dagster as dg

from assets.feedback.training import is_known, problem_of, training_event, training_runs
from assets.pages.report import dagster_name
from assets.spec import DatasetSpec
from loader.api.report import Report, new_reports
from resources.storage import RootResource

PER_TICK = 50
"""Reports that one tick takes in; the rest comes with the next ones."""


def sensor(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> dg.SensorDefinition:
    """Return the sensor of a dataset."""
    return training_sensor(spec.name)


def training_sensor(
    dataset: str, *, per_tick: int = PER_TICK, minimum_interval_s: int = 60
) -> dg.SensorDefinition:
    """Show every report of a training that came behind the cursor, the number of the last one looked at.

    Dagster stores the events of a tick before its cursor. After a tick that died between the two, the same reports are
    looked at again, and those that are shown already are passed over. So are reports that were told twice.
    """

    @dg.sensor(
        name=f"{dagster_name(dataset)}_training_reports",
        minimum_interval_seconds=minimum_interval_s,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Shows the trainings on {dataset} that called loader.report.",
    )
    def training_reports(
        context: dg.SensorEvaluationContext, root: RootResource
    ) -> dg.SensorResult | dg.SkipReason:
        cursor = int(context.cursor or 0)
        shown: dict[str, dg.AssetMaterialization] = {}
        runs: list[str] = []
        number = cursor
        with root.opened() as opened:
            for number, found in new_reports(opened, dataset, cursor):
                problem = problem_of(opened, found) if isinstance(found, Report) else str(found)
                if problem or not isinstance(found, Report):
                    context.log.error(f"report {number} of a training on {dataset} is not shown: {problem}")
                elif found.identity not in shown and not is_known(context.instance, found):
                    shown[found.identity] = training_event(opened, found)
                    runs.append(found.run)
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
