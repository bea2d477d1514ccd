"""Discovery: arrivals become batches, and every batch a run."""

import time
from collections.abc import Iterator, Sequence
from itertools import islice

import dagster as dg

from assets.arrivals.batch_manifests import Book, batch_number, manifests
from assets.arrivals.make_batches import begun_batches, pending_numbers
from assets.arrivals.open_source import opener
from assets.arrivals.progress import DEFAULT_BUDGET, TickBudget, TickDataset, TickResult
from assets.arrivals.tick import tick
from assets.pages.report import dagster_name
from assets.sources import DEFAULT_LIMITS, LANDING, BatchLimits, Source
from assets.spec import DatasetSpec
from assets.stages import recut_requests
from dagster_project.code_location import code_location_of, tags_of
from dagster_project.last_run import LAUNCHED
from dagster_project.sensors.recovery import again
from loader.storage import Store
from resources.storage import LandingResource, RootResource

INTERVAL_S, STREAMING_INTERVAL_S = 30, 5
"""Seconds between two looks, and between those of a dataset that streams."""
_RUN_KEY = "dagster/run_key"
_ASKED_AT_ONCE = 100
_SET_ASIDE = 20  # notices told in a tick's log; all of them are in a table
_TAKEN_BACK = 500
"""Partitions that one tick gives back to an instance that has forgotten them: Dagster adds them one by one."""


def sensor(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> dg.SensorDefinition:
    """Return the dataset's sensor, as the registry wants it."""
    job = f"{dagster_name(spec.name)}_ingest"
    return discovery_sensor(
        spec.name,
        batches,
        job,
        sources=spec.sources,
        limits=spec.batch,
        by_subject=spec.split_by == "subject",
        minimum_interval_s=STREAMING_INTERVAL_S if spec.streaming else INTERVAL_S,
    )


def discovery_sensor(
    dataset: str,
    batches: dg.DynamicPartitionsDefinition,
    job: str,
    *,
    sources: Sequence[Source] = (LANDING,),
    limits: BatchLimits = DEFAULT_LIMITS,
    by_subject: bool = False,
    budget: TickBudget = DEFAULT_BUDGET,
    minimum_interval_s: int = INTERVAL_S,
    max_runs: int = 25,
) -> dg.SensorDefinition:
    """Write manifests for what has landed, add their keys as partitions, and ask for one run of `job` each.

    by_subject: each folder is a subject, of which a takedown may name; budget: of a tick; max_runs: asked for per tick.

    A batch for which `samples` has a record has been through. Manifests come first, and the batches to ask for are read
    from them and from the runs that Dagster knows. So the next tick makes up for a tick that dies anywhere, and a batch
    gets one run (run key = partition key). A new instance has no partitions: a batch that has been through becomes one
    again, without a run.

    Requests of a tick: those of `arrivals.tick` and four for the log. Then a listing of the manifests, of the records
    of `samples` and of the batches to be cut again (a page per 1,000). Batches that are as the tick before left them
    cost nothing else.
    """
    kept: dict[str, Book] = {}  # of the last tick, for as long as the code server lives

    @dg.sensor(
        name=f"{dagster_name(dataset)}_discovery",
        job_name=job,
        minimum_interval_seconds=minimum_interval_s,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Finds what has landed for {dataset}, makes batches of it, and starts {job} for each.",
    )
    def discovery(
        context: dg.SensorEvaluationContext, root: RootResource, landing: LandingResource
    ) -> dg.SensorResult | dg.SkipReason:
        with root.opened() as opened:
            work = TickDataset(
                store=opened.store,
                name=dataset,
                limits=limits,
                denies=opened.state.denies,
                by_subject=by_subject,
                now_us=time.time_ns() // 1000,
            )
            book = kept[dataset] = Book(opened.store, dataset, kept.get(dataset))
            steps = tick(work, sources, opener(landing), budget, book)
            known = context.instance.get_dynamic_partitions(str(batches.name))
            through = begun_batches(opened.store, dataset, "samples")
            waiting = pending_numbers(opened.store, dataset, through)
            here = code_location_of(context)
            label = here.label if here else ""
            new = _to_run(context.instance, opened.store, dataset, known, waiting, max_runs, label)
            asked = list(islice(new, max_runs))
            overtaken = {f"cut-again-{txn}": key for key, txn in recut_requests(opened.store, dataset)}
        forgotten = sorted(set(through) - set(known))[:_TAKEN_BACK]
        said = "; ".join(map(told, steps))
        for line in [line for step in steps for line in step.set_aside][:_SET_ASIDE]:
            context.log.warning(f"a notice was set aside: {line}")
        for line in [f"{step.source}: {line}" for step in steps for line in step.unlisted]:
            context.log.warning(f"an object was not taken: {line}")
        context.log.info(f"{len(asked)} runs asked for; {said}")
        if all(step.failed for step in steps) and not asked:
            raise dg.Failure(said)
        requests = [dg.RunRequest(run_key=key, partition_key=key) for key in asked]
        unasked = islice(_without_run(context.instance, list(overtaken), label), max_runs)
        requests += [dg.RunRequest(run_key=key, partition_key=overtaken[key]) for key in unasked]
        requests += again(context.instance, job, label)
        if not requests and not forgotten:
            return dg.SkipReason(f"nothing to run; {said}")
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else f"{len(forgotten)} batches are partitions again; {said}",
            dynamic_partitions_requests=[batches.build_add_request([*asked, *forgotten])],
        )

    return discovery


def told(step: TickResult) -> str:
    """Return one line about a source, for the tick's page."""
    if step.note and not (step.listed or step.batches):
        return f"{step.source}: {step.note}"
    at = f"listed as far as {step.cursor!r}" if step.cursor else f"listed to its end ({step.n_passes} times)"
    wait = f", the oldest for {step.oldest_s:.0f} s" if step.waiting else ""
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
    """Yield keys of the waiting batches that are to be run, oldest first.

    A batch that is a partition already was asked for: it is yielded only when that run never came to be. Of the others
    no more manifests are read than runs are asked for.
    """
    asked = {batch_number(key): key for key in known}
    yield from _without_run(instance, [asked[number] for number in waiting if number in asked], label)
    new = [number for number in waiting if number not in asked][:max_runs]
    yield from _without_run(instance, [found.batch for found in manifests(store, dataset, new)], label)


def _without_run(instance: dg.DagsterInstance, keys: Sequence[str], label: str) -> Iterator[str]:
    """Yield run keys for which this code location never launched a run.

    One that failed is for a person, or for Dagster's retries.
    """
    for start in range(0, len(keys), _ASKED_AT_ONCE):
        some = keys[start : start + _ASKED_AT_ONCE]
        launched = dg.RunsFilter(tags={_RUN_KEY: list(some), **tags_of(label)}, statuses=LAUNCHED)
        started = {run.tags[_RUN_KEY] for run in instance.get_runs(launched)}
        yield from (key for key in some if key not in started)
