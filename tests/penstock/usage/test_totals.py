"""GPU-hours of jobs and runs: parts add up, time outside the period counts for nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.usage.sacct import parse_jobs
from penstock.usage.totals import StartUsage, group_usage, job_usage, usage_row, weekly_gpu_hours

H = 3600 * 1_000_000
RUN = StartUsage(
    account="vision",
    user="ann",
    run="big-7",
    versions=("photos@3", "text@1"),
    submitted_us=0,
    begun_us=2 * H,
    ended_us=12 * H,
    nodes=2,
    gpus=16,
    asked_gpu_s=16 * 24 * 3600,
    parts={"new steps": 0.5, "repeated steps": 0.1, "idle": 0.1, "saving": 0.1, "unknown": 0.2},
)
OTHER = StartUsage(
    account="speech", user="bob", begun_us=0, ended_us=10 * H, gpus=4, failures_us=(10 * H - 1,)
)


def test_row_adds_up_what_a_run_and_a_job_used():
    run, job = group_usage("account", [OTHER, RUN], 0, 100 * H)
    assert (run.name, run.starts, run.asked, run.allocated) == ("vision", 1, 384, 160)
    assert (run.new_steps, run.lost, run.unknown, run.other) == pytest.approx((80, 32, 32, 16))
    assert (run.queue_hours, run.node_hours, run.failures) == (2, 20, 0)
    assert (job.allocated, job.unknown, job.asked, job.failures) == (40, 40, 40, 1)
    assert job.failures_per_1000_node_days == 1 / (10 / 24) * 1000
    assert usage_row("total", [OTHER, RUN], 0, 100 * H).allocated == 200


def test_period_cuts_time_and_counts_an_end_once():
    before, after = (usage_row("", [OTHER, RUN], *period) for period in ((0, 5 * H), (5 * H, 100 * H)))
    assert (before.allocated, after.allocated) == (3 * 16 + 5 * 4, 7 * 16 + 5 * 4)
    assert (before.failures, after.failures) == (0, 1)
    assert (before.queue_hours, after.queue_hours) == (2, 0)
    assert (before.asked, after.asked) == (384 + 40, 0)


def test_start_counts_for_each_version_that_it_read():
    rows = group_usage("dataset", [OTHER, RUN], 0, 100 * H)
    assert [(row.name, row.allocated) for row in rows] == [("photos@3", 160), ("text@1", 160), ("", 40)]


def test_waiting_job_has_queue_hours_only():
    line = (
        "7|w|ann|vision|normal|batch|PENDING|3600|Unknown|4|None assigned|gres/gpu=8||120|Resources|Unknown"
    )
    (job,) = parse_jobs(line)
    row = usage_row("", [job_usage(job, 3 * H)], 0, 3 * H)
    assert (row.starts, row.allocated, row.queue_hours, row.asked) == (0, 0, 2, 16)
    assert row.failures_per_1000_node_days is None


@pytest.mark.parametrize(("state", "ended"), [("PENDING", "Unknown"), ("CANCELLED", "10800")])
def test_job_without_a_limit_asks_for_nothing_before_it_begins(state: str, ended: str) -> None:
    line = f"7|w|ann|vision|normal|batch|{state}|3600|Unknown|4|None assigned|gres/gpu=8|||None|{ended}"
    (job,) = parse_jobs(line)
    row = usage_row("", [job_usage(job, 3 * H)], 0, 3 * H)
    assert (row.queue_hours, row.asked) == (2, 0)


def test_start_that_fails_at_once_has_a_row():
    line = "7|w|ann|vision|normal|batch|FAILED|3600|3600|1|m1||||NonZeroExitCode|3600"
    (job,) = parse_jobs(line)
    (row,) = group_usage("user", [job_usage(job, 3 * H)], 0, 3 * H)
    assert (row.name, row.starts, row.failures) == ("ann", 0, 1)


def test_requeued_job_asks_once():
    lines = [
        f"7|w|ann|vision|normal|batch|{state}|{begun}|{begun}|1|m1|gres/gpu=2|gres/gpu=2|600|None|{begun + 3600}"
        for state, begun in (("PREEMPTED", 0), ("COMPLETED", 7200))
    ]
    starts = [
        job_usage(job, 9 * H, first=not place) for place, job in enumerate(parse_jobs("\n".join(lines)))
    ]
    row = usage_row("", starts, 0, 9 * H)
    assert (row.starts, row.asked, row.allocated, row.failures) == (2, 20, 4, 0)


def test_weeks_end_with_the_period():
    week = 7 * 24 * H
    start = StartUsage(begun_us=week // 2, ended_us=3 * week, gpus=1)
    assert weekly_gpu_hours([start], 0, 3 * week) == [84, 168, 168]
    assert weekly_gpu_hours([start], 0, 3 * week - 1) == pytest.approx([168, 168])


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 9)), max_size=9),
    st.integers(1, 99),
)
def test_periods_partition_all_sums(times: list[tuple[int, int, int]], cut: int) -> None:
    starts = [
        StartUsage(submitted_us=0, begun_us=a * H, ended_us=(a + b) * H, gpus=gpus, parts={"new steps": 1.0})
        for a, b, gpus in times
    ]
    both = [usage_row("", starts, *period) for period in ((0, cut * H), (cut * H, 200 * H))]
    whole = usage_row("", starts, 0, 200 * H)
    for name in ("asked", "allocated", "new_steps", "queue_hours", "node_hours"):
        assert sum(getattr(row, name) for row in both) == pytest.approx(getattr(whole, name))
