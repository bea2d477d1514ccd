"""Watch: alerts about a dataset, from its root alone, every five minutes. It never starts a run.

A tick costs what `Batches.look` does, the newest version's manifest and four requests for the log; the first one of a
code server reads every record.
"""

import time

import dagster as dg

from assets.alarms import alarms, due
from assets.batches import IngestBatches
from assets.pages.report import dagster_name
from assets.spec import DatasetSpec
from loader.dataset.versions.version import open_record
from resources.alerts import AlertsResource
from resources.storage import RootResource

EVERY_S = 300


def sensor(spec: DatasetSpec, batches: dg.DynamicPartitionsDefinition) -> dg.SensorDefinition:
    """Return the dataset's sensor, as the registry wants it."""
    book = IngestBatches(spec.name)  # remembers what it read, for as long as the code server lives

    @dg.sensor(
        name=f"{dagster_name(spec.name)}_watch",
        minimum_interval_seconds=EVERY_S,
        description=f"Sends an alert when a batch of {spec.name} was stopped, waits for too long, or nothing comes.",
    )
    def watch(
        context: dg.SensorEvaluationContext, root: RootResource, alerts: AlertsResource
    ) -> dg.SensorResult | dg.SkipReason:
        with root.opened() as opened:
            found = book.current(opened)
            newest = opened.state.newest(spec.name)
            published_us = open_record(opened.store, newest).manifest["created_us"] if newest else None
        now_s = time.time()
        published_s = published_us / 1e6 if published_us else None
        lasting = alarms(spec.name, found, published_s, spec.alerts, now_s)
        to_send, told = due(lasting, context.cursor or "", now_s)
        problems = [problem for alert in to_send for problem in alerts.send(alert)]
        for problem in problems:
            context.log.error(problem)
        context.update_cursor(told)
        said = "; ".join(alarm.alert.what for alarm in lasting) or "nothing is the matter"
        return dg.SkipReason(f"{len(to_send)} alerts sent, {len(problems)} not delivered; {said}"[:1000])

    return watch
