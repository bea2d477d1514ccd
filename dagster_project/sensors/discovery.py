"""Discovery: new objects become batches, and each batch a run."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice

import dagster as dg

from assets.arrivals.batch_manifests import Book, batch_number, manifests, opener
from assets.arrivals.make_batches import pending_numbers, stage_batches
from assets.arrivals.progress import TickDataset, TickResult
from assets.arrivals.tick import tick
from assets.pages.report import dagster_name
from assets.pipeline.stages import recut_requests
from assets.spec import DatasetSpec
from dagster_project.jobs import job_name
from dagster_project.runs import LAUNCHED, location_tags, sensor_location
from dagster_project.sensors.recovery import repeat_requests
from loader.storage import Store
from resources.storage import LandingResource, RootResource

INTERVAL_S, STREAMING_INTERVAL_S = 30, 5
"""Seconds between ticks, ordinary and streaming."""
_RUN_KEY = "dagster/run_key"
_KEYS_PER_QUERY = 100
_SET_ASIDE = 20  # unreadable notices shown in a tick's log; a table has all of them
_RESTORED_AT_ONCE = 500
"""Most partitions that a tick restores in a new instance: Dagster adds them one by one."""


def discovery_sensor(
    spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition, *, max_runs: int = 25
) -> dg.SensorDefinition:
    """Write manifests for new objects, add their keys as partitions, and request an ingest run for each.

    max_runs: most run requests per tick.

    A batch gets one run (run key = partition key), or none if it has a `samples` record. Costs `arrivals.tick`, four
    requests for the log, and three listings (a page per 1,000).
    """
    dataset = spec.name
    job = job_name(spec, "ingest")
    books: dict[str, Book] = {}  # the last tick's, as long as the code server lives

    @dg.sensor(
        name=f"{dagster_name(dataset)}_discovery",
        job_name=job,
        minimum_interval_seconds=STREAMING_INTERVAL_S if spec.streaming else INTERVAL_S,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Find new objects of {dataset}, make batches of them, and start {job} for each.",
    )
    def discovery(
        context: dg.SensorEvaluationContext, root: RootResource, landing: LandingResource
    ) -> dg.SensorResult | dg.SkipReason:
        with root.opened() as opened:
            work = TickDataset(
                store=opened.store,
                name=dataset,
                limits=spec.batch,
                denies=opened.state.denies,
                by_subject=spec.split_by == "subject",
                now_us=time.time_ns() // 1000,
            )
            book = books[dataset] = Book(opened.store, dataset, books.get(dataset))
            steps = tick(work, spec.sources, opener(landing), book=book)
            known = context.instance.get_dynamic_partitions(str(batches.name))
            through = stage_batches(opened.store, dataset, "samples")
            waiting = pending_numbers(opened.store, dataset, through)
            location = sensor_location(context)
            label = ""
            if location is not None:
                label = location.label
            new = _to_run(context.instance, opened.store, dataset, known, waiting, max_runs, label)
            requested = list(islice(new, max_runs))
            overtaken = {f"cut-again-{txn}": key for key, txn in recut_requests(opened.store, dataset)}
        # A new instance of Dagster lacks the partitions of earlier batches.
        missing = set(through) - set(known)
        forgotten = sorted(missing)[:_RESTORED_AT_ONCE]
        summary = "; ".join(map(tick_line, steps))
        notices = [line for step in steps for line in step.set_aside]
        for line in notices[:_SET_ASIDE]:
            context.log.warning(f"a notice was set aside: {line}")
        for step in steps:
            for line in step.unlisted:
                context.log.warning(f"an object was not taken: {step.source}: {line}")
        context.log.info(f"{len(requested)} runs requested; {summary}")
        if all(step.failed for step in steps) and not requested:
            raise dg.Failure(summary)
        requests = [dg.RunRequest(run_key=key, partition_key=key) for key in requested]
        recuts = islice(_without_run(context.instance, list(overtaken), label), max_runs)
        requests += [dg.RunRequest(run_key=key, partition_key=overtaken[key]) for key in recuts]
        requests += repeat_requests(context.instance, job, label)
        if not requests and not forgotten:
            return dg.SkipReason(f"nothing to run; {summary}")
        skip_reason = None
        if not requests:
            skip_reason = f"{len(forgotten)} batches are partitions again; {summary}"
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=skip_reason,
            dynamic_partitions_requests=[batches.build_add_request([*requested, *forgotten])],
        )

    return discovery


def tick_line(step: TickResult) -> str:
    """Return one line about a source, for Dagster's page of the tick."""
    if step.note and not (step.listed or step.batches):
        return f"{step.source}: {step.note}"
    if step.cursor:
        at = f"listed as far as {step.cursor!r}"
    else:
        at = f"listed to its end ({step.n_passes} times)"
    wait = ""
    if step.waiting:
        wait = f", the oldest for {step.oldest_s:.0f} s"
    refused = ", ".join(f"{n} {reason}" for reason, n in sorted(step.not_taken.items()))
    return (
        f"{step.source}: {step.listed} listed, {step.n_new} new, {len(step.batches)} batches made, {step.waiting} "
        f"objects wait for a full batch{wait}; {at}; not taken: {refused or 'none'}"
        f"{f'; {step.note}' if step.note else ''}"
    )


def _to_run(
    instance: dg.DagsterInstance,
    store: Store,
    dataset: str,
    known: Sequence[str],
    waiting: Sequence[int],
    max_runs: int,
    label: str,
) -> Iterator[str]:
    # Reads at most `max_runs` new manifests, oldest first
    partitions = {batch_number(key): key for key in known}
    yield from _without_run(instance, [partitions[n] for n in waiting if n in partitions], label)
    new = [number for number in waiting if number not in partitions][:max_runs]
    yield from _without_run(instance, [manifest.batch for manifest in manifests(store, dataset, new)], label)


def _without_run(instance: dg.DagsterInstance, keys: Sequence[str], label: str) -> Iterator[str]:
    """Yield the partitions without any run, failed ones included: retries, or a person, repeat those."""
    for start in range(0, len(keys), _KEYS_PER_QUERY):
        chunk = keys[start : start + _KEYS_PER_QUERY]
        launched = dg.RunsFilter(tags={_RUN_KEY: list(chunk), **location_tags(label)}, statuses=LAUNCHED)
        started = {run.tags[_RUN_KEY] for run in instance.get_runs(launched)}
        yield from (key for key in chunk if key not in started)
