"""Discovery: new objects become batches, and each batch a run."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice

import dagster as dg

from assets.arrivals.batch_manifests import Book, batch_number, is_batch, manifests, opener
from assets.arrivals.make_batches import pending_numbers, stage_batches
from assets.arrivals.progress import TickDataset, TickResult
from assets.arrivals.tick import tick
from assets.pages.report import dagster_name
from assets.pipeline.stages import SAMPLES, RecutRequest, recut_requests
from assets.spec import DatasetSpec
from dagster_project.jobs import job_name
from dagster_project.runs import LAUNCHED, location_tags, sensor_label
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
        location_label = sensor_label(context)
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
            results = tick(work, spec.sources, opener(landing), book=book)
            known = context.instance.get_dynamic_partitions(str(batches.name))
            with_samples = stage_batches(opened.store, dataset, SAMPLES)
            waiting = pending_numbers(opened.store, dataset, with_samples)
            to_run = _batches_to_run(
                context.instance, opened.store, dataset, known, waiting, max_runs, location_label
            )
            requests = [dg.RunRequest(run_key=key, partition_key=key) for key in islice(to_run, max_runs)]
            recuts = list(recut_requests(opened.store, dataset))
        _log_refusals(context, results)
        summary = "; ".join(map(tick_line, results))
        context.log.info(f"{len(requests)} runs requested; {summary}")
        if all(result.failed for result in results) and not requests:
            raise dg.Failure(summary)
        requests += islice(_recut_runs(context.instance, recuts, location_label), max_runs)
        requests += repeat_requests(context.instance, job, location_label)
        # A new instance of Dagster lacks the partitions of earlier batches.
        missing = set(with_samples).difference(known)
        to_restore = sorted(missing)[:_RESTORED_AT_ONCE]
        if not requests and not to_restore:
            return dg.SkipReason(f"nothing to run; {summary}")
        skip_reason = None
        if not requests:
            skip_reason = f"{len(to_restore)} batches are partitions again; {summary}"
        # Dagster rejects the whole tick if a request names an unknown partition. The partition of a recut may still
        # wait to be restored, and a person may have deleted the partition of a lost run.
        requested = {request.partition_key for request in requests if request.partition_key}
        to_add = requested.union(to_restore).difference(known)
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=skip_reason,
            dynamic_partitions_requests=[batches.build_add_request(sorted(to_add))],
        )

    return discovery


def _log_refusals(context: dg.SensorEvaluationContext, results: Sequence[TickResult]) -> None:
    notices = [line for result in results for line in result.set_aside]
    for line in notices[:_SET_ASIDE]:
        context.log.warning(f"a notice was set aside: {line}")
    for result in results:
        for line in result.unlisted:
            context.log.warning(f"an object was not taken: {result.source}: {line}")


def tick_line(result: TickResult) -> str:
    """Return one line about a source, for Dagster's page of the tick."""
    if result.note and not (result.listed or result.batches):
        return f"{result.source}: {result.note}"
    if result.cursor:
        at = f"listed as far as {result.cursor!r}"
    else:
        at = f"listed to its end ({result.n_passes} times)"
    wait = ""
    if result.waiting:
        wait = f", the oldest for {result.oldest_s:.0f} s"
    refused = ", ".join(f"{n} {reason}" for reason, n in sorted(result.not_taken.items()))
    return (
        f"{result.source}: {result.listed} listed, {result.n_new} new, {len(result.batches)} batches made, "
        f"{result.waiting} objects wait for a full batch{wait}; {at}; not taken: {refused or 'none'}"
        f"{f'; {result.note}' if result.note else ''}"
    )


def _batches_to_run(
    instance: dg.DagsterInstance,
    store: Store,
    dataset: str,
    known: Sequence[str],
    waiting: Sequence[int],
    max_runs: int,
    location_label: str,
) -> Iterator[str]:
    """Yield the waiting batches without any run.

    known: the partitions in Dagster. waiting: numbers of the batches without a samples record, oldest first.
    """
    # A partition that a person added may have any name.
    partitions = {batch_number(key): key for key in known if is_batch(key)}
    waiting_known = [partitions[number] for number in waiting if number in partitions]
    yield from _without_run(instance, waiting_known, location_label)
    # The key of a new batch is in its manifest. A tick reads at most `max_runs` of them.
    new = [number for number in waiting if number not in partitions][:max_runs]
    new_keys = [manifest.batch for manifest in manifests(store, dataset, new)]
    yield from _without_run(instance, new_keys, location_label)


def _recut_runs(
    instance: dg.DagsterInstance, recuts: Sequence[RecutRequest], location_label: str
) -> Iterator[dg.RunRequest]:
    """Yield a run for each recut request that has none."""
    # The batch's own key started its first run, so the transaction makes the run key of a recut.
    batch_of_run = {f"cut-again-{recut.txn}": recut.batch for recut in recuts}
    for run_key in _without_run(instance, list(batch_of_run), location_label):
        yield dg.RunRequest(run_key=run_key, partition_key=batch_of_run[run_key])


def _without_run(instance: dg.DagsterInstance, run_keys: Sequence[str], location_label: str) -> Iterator[str]:
    """Yield the run keys without any run. A failed run counts: retries, or a person, repeat it."""
    for start in range(0, len(run_keys), _KEYS_PER_QUERY):
        chunk = run_keys[start : start + _KEYS_PER_QUERY]
        tags = {_RUN_KEY: list(chunk), **location_tags(location_label)}
        launched = dg.RunsFilter(tags=tags, statuses=LAUNCHED)
        started = {run.tags[_RUN_KEY] for run in instance.get_runs(launched)}
        yield from (key for key in chunk if key not in started)
