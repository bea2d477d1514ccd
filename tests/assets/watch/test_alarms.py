"""When a person is told: by rules, and by a model of what may be told."""

from hypothesis import given, settings
from hypothesis import strategies as st

from assets.arrivals.batches import IngestBatch, Standing
from assets.spec import LIMITS, Limits
from dagster_project.sensors.alerting import REMINDER_S, Alarm, alarms, due
from loader.errors import InvalidSpec
from penstock.alerts import Alert
from tests.refusals import refusal

NOW_S = 1_800_000_000.0


def batch(key: str, standing: Standing, landed_ago_s: float = 60.0, stopped_by: str = "") -> IngestBatch:
    landed_us = int((NOW_S - landed_ago_s) * 1e6) if standing != "waiting" else 0
    return IngestBatch(
        key=key, standing=standing, objects=10, nbytes=1000, landed_at_us=landed_us, stopped_by=stopped_by
    )


def names(*batches: IngestBatch, published_s: float | None = None, limits: Limits = LIMITS) -> list[str]:
    return [alarm.key for alarm in alarms("cats", batches, published_s, limits, NOW_S)]


def test_every_stopped_batch_is_named_with_its_reason() -> None:
    found = alarms(
        "cats", [batch("1-a", "stopped", stopped_by="media: 3 of 4 unreadable")], None, Limits(), NOW_S
    )
    assert [(alarm.alert.what, alarm.alert.details) for alarm in found] == [
        ("batch 1-a was stopped", "media: 3 of 4 unreadable")
    ]


def test_backlog_is_old_when_its_oldest_batch_is() -> None:
    limits = Limits(backlog_s=100)
    assert names(batch("1-a", "ready", 101), batch("2-b", "in_progress", 5), limits=limits) == ["backlog-old"]
    assert names(batch("1-a", "ready", 99), limits=limits) == []
    assert names(batch("1-a", "published", 500), batch("2-b", "nothing_new", 500), limits=limits) == []
    assert names(batch("1-a", "ready", 1e9), limits=Limits(backlog_s=None)) == []


def test_silence_counts_from_the_newest_landing() -> None:
    limits = Limits(silence_s=100)
    assert names(batch("1-a", "published", 500), batch("2-b", "published", 101), limits=limits) == [
        "nothing-arrives"
    ]
    assert names(batch("1-a", "published", 500), batch("2-b", "published", 99), limits=limits) == []
    assert names(limits=limits) == []  # a dataset that never had any is not silent: it is new


def test_version_gets_old() -> None:
    assert names(published_s=NOW_S - 101, limits=Limits(version_s=100)) == ["version-old"]
    assert names(published_s=NOW_S - 99, limits=Limits(version_s=100)) == []


def test_limits_that_make_no_sense_are_refused() -> None:
    with refusal(InvalidSpec, what="backlog_s", given=0):
        Limits(backlog_s=0)


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.floats(1.0, REMINDER_S), st.sets(st.sampled_from("abc"))), max_size=30))
def test_alarm_is_told_at_its_beginning_daily_and_at_its_end(looks: list[tuple[float, set[str]]]) -> None:
    """Against a model that keeps, of each lasting alarm, when it was last told."""
    told, at_s, last = "", 0.0, dict[str, float]()
    for after_s, lasting in looks:
        at_s += after_s
        now = [
            Alarm(alert=Alert(name="batch-stopped", severity="error", dataset="d", what=key), subject=key)
            for key in sorted(lasting)
        ]
        due_alerts, told = due(now, told, at_s)
        alerts = [one.alert for one in due_alerts]
        begun = {key for key in lasting if key not in last or at_s - last[key] >= REMINDER_S}
        over = last.keys() - lasting
        assert sorted(alert.what for alert in alerts if alert.severity == "error") == sorted(begun)
        assert sorted(alert.what for alert in alerts if alert.severity == "resolved") == sorted(
            f"batch-stopped is over: {key}" for key in over
        )
        last = {key: at_s if key in begun else last[key] for key in lasting}


def test_what_was_told_and_cannot_be_read_is_told_again() -> None:
    now = [Alarm(alert=Alert(name="backlog-old", severity="error", dataset="d", what="x"))]
    assert len(due(now, "torn {", 1.0)[0]) == 1
