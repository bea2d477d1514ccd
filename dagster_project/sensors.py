"""Sensors: what has arrived becomes batches, and every batch a run."""

from collections.abc import Iterator, Sequence
from itertools import islice

import dagster as dg

from assets.discovery import BatchLimits, discover, pending
from assets.report import dagster_name
from resources.storage import LandingResource, RootResource

PER_TICK = BatchLimits(max_batches=64)
"""What one tick takes in: 262,144 small objects. The rest comes with the next ones."""

_RUN_KEY = "dagster/run_key"
_ASKED_AT_ONCE = 100


def discovery_sensor(
    dataset: str,
    batches: dg.DynamicPartitionsDefinition,
    job: str,
    *,
    last_stage: str = "samples",
    limits: BatchLimits = PER_TICK,
    minimum_interval_s: int = 30,
    max_runs: int = 25,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Write manifests for what has landed, add their keys as partitions, and ask for one run of `job` each.

    last_stage: of the job; a batch that it has a record for has been through. max_runs: asked for per tick.
    Manifests come first, and what is asked for is read from them and from the runs that Dagster knows: a tick
    that dies anywhere is made up for by the next one, and a batch gets one run (run key = partition key).
    """

    @dg.sensor(
        name=f"{dagster_name(dataset)}_discovery",
        job_name=job,
        minimum_interval_seconds=minimum_interval_s,
        default_status=default_status,
        description=f"Finds what has landed for {dataset}, makes batches of it, and starts {job} for each.",
    )
    def discovery(
        context: dg.SensorEvaluationContext, root: RootResource, landing: LandingResource
    ) -> dg.SensorResult | dg.SkipReason:
        with root.opened() as opened, landing.opened() as place:
            made = discover(opened.store, place, dataset, limits, opened.state.denies)
            waiting = pending(opened.store, dataset, last_stage)
        asked = list(islice(_without_run(context.instance, waiting), max_runs))
        context.log.info(f"{len(made)} new batches; {len(waiting)} are waiting, {len(asked)} runs asked for")
        if not asked:
            return dg.SkipReason(f"nothing new has landed in {place.url}")
        return dg.SensorResult(
            run_requests=[dg.RunRequest(run_key=key, partition_key=key) for key in asked],
            dynamic_partitions_requests=[batches.build_add_request(asked)],
        )

    return discovery


def _without_run(instance: dg.DagsterInstance, keys: Sequence[str]) -> Iterator[str]:
    """Those for which no run was ever started; a run that failed is for a person, or Dagster's retries."""
    for start in range(0, len(keys), _ASKED_AT_ONCE):
        some = keys[start : start + _ASKED_AT_ONCE]
        started = {
            run.tags[_RUN_KEY] for run in instance.get_runs(dg.RunsFilter(tags={_RUN_KEY: list(some)}))
        }
        yield from (key for key in some if key not in started)
