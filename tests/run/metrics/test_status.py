"""The status line: what it says, and that nothing but a terminal sees it."""

import io
import os
import pty
import re

import pytest

import loader
from loader.run.metrics import Status, show_progress


@pytest.fixture
def batches(versions):
    plan = loader.plan({"p": versions["photos"].select("cls")}, seed=1, global_batch=10)
    with loader.Loader(plan, 0, 1, workers=2, steps=4, framework="numpy") as batches:
        yield batches


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self):
        return True


def test_line(batches):
    assert batches.status_line() == "step 0"
    next(batches)
    next(batches)
    line = batches.status_line()
    assert re.fullmatch(
        r"step 2  [\d,]+ samples/s  [\d.]+ MB/s  training waits \d+ %  workers:( [a-z]+ \d+ %){1,3}  "
        r"limited by: [a-z]+",
        line,
    ), line
    assert batches.status_line() == "step 2", "nothing happened since"


def test_rates_and_shares_are_those_since_the_last_line():
    status = Status()
    names = ("plan", "address", "fetch_wait", "verify", "decode", "transform", "collate")
    names += ("handover_wait", "room_wait", "consumer_wait", "consumer_busy", "peer_wait")
    before = {f"{name}_seconds_sum": 50.0 for name in names}
    before |= {"consumed_samples_total": 10**6, "fetched_bytes_total": 10**9}
    status.line(1000, before, executor="threads")
    now = dict(before)
    now["fetch_wait_seconds_sum"] += 6.1
    now["peer_wait_seconds_sum"] += 1.1
    now["decode_seconds_sum"] += 3.9
    now["consumer_wait_seconds_sum"] += 3.0
    now["consumer_busy_seconds_sum"] += 1.0
    now["consumed_samples_total"] += 3248
    now["fetched_bytes_total"] += 380_000_000
    assert status.line(1234, now, executor="threads") == (
        "step 1,234  812 samples/s  95.0 MB/s  training waits 75 %  workers: fetch 50 % decode 39 % peers 11 %  "
        "limited by: store"
    )


def test_file_sees_nothing(batches, capsys):
    out = io.StringIO()
    assert [batch.step for batch in batches.with_status(out)] == [0, 1, 2, 3]
    batches.seek(0)
    assert len(list(batches.with_status())) == 4
    assert list(show_progress(iter("abc"), lambda: "line", out, every_s=0)) == ["a", "b", "c"]
    assert out.getvalue() == "".join(capsys.readouterr()) == ""


def test_real_terminal_sees_one_line_rewritten(batches):
    parent, child = pty.openpty()
    with os.fdopen(child, "w") as terminal:
        assert [batch.step for batch in show_progress(batches, batches.status_line, terminal, every_s=0)] == [
            0,
            1,
            2,
            3,
        ]
        seen = ""
        while not seen.endswith("\n"):  # a terminal gives what it has, not what it will have
            seen += os.read(parent, 2**16).decode()
    os.close(parent)
    assert [line.split()[1] for line in seen.split("\r")[1:5]] == ["1", "2", "3", "4"]
    assert seen.count("\n") == 1
    assert seen.endswith("\n")


def test_shorter_line_leaves_nothing_of_the_longer_one():
    lines = iter(["long line", "short", "longest line of all"])
    out = Terminal()
    assert list(show_progress(iter("abc"), lambda: next(lines), out, every_s=0)) == ["a", "b", "c"]
    assert out.getvalue() == "\rlong line\rshort    \rlongest line of all\n"


def test_it_is_throttled():
    out, told = Terminal(), []
    assert (
        len(list(show_progress(iter(range(1000)), lambda: told.append(1) or "", out, every_s=3600))) == 1000
    )
    assert told == []
    assert out.getvalue() == ""


def test_loop_that_is_left_ends_the_line():
    out = Terminal()
    run = show_progress(iter("abc"), lambda: "line", out, every_s=0)
    next(run)
    next(run)
    run.close()
    assert out.getvalue() == "\rline\n"
