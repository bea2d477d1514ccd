"""Decisions of an online run: counts over steps and of one decision, whatever the records hold."""

import json

import numpy as np
import pytest

import loader
from loader.errors import Corrupt, FormatTooNew, NotRecorded
from loader.rollouts.cursor import Cursor
from loader.rollouts.record import DecisionRecord, LikeRecord, RunRecords
from loader.run.trail.recorder import RunRecorder
from penstock.cli import main
from penstock.view.rollouts import decisions
from penstock.view.rollouts.decision_lines import decision_lines
from penstock.view.rollouts.decisions import decision_chart, decision_detail, decision_summary, summary_lines
from penstock.view.sections.characters.section_lines import page_lines
from penstock.view.sections.decisions import decisions_sections
from tests.refusals import refusal
from tests.view.conftest import write_photos
from tests.view.rollouts.rig import HOSTILE
from tests.view.test_web import Served

PLAN = "p-" + "0" * 64


def record(step, run="on", steps=1, **changed):
    """A decision whose counts follow from its step."""
    counts = {"groups": 8, "sequences": 5, "trained": 30 + step, "stale": step, "small": 2}
    counts["by"] = [[HOSTILE, 0, 10 + step, 1], [HOSTILE, 3, 5, step], ["math", 3, 15, 2]]
    body = {
        "before": PLAN,
        "plan": PLAN,
        "policy": step,
        "asked": {"groups": 8, "ref": HOSTILE, "pack": {"length": 64}},
        "cursor": Cursor(version="v-1", parts=4, last="run-1-w0", ranges={1: np.array([[0, 3], [5, 9]])}),
        "counts": counts,
    }
    return DecisionRecord(run=run, step=step, steps=steps, **{**body, **changed})


def write_decisions(root, firsts, run="on", **changed):
    root.create_if_empty()
    records = RunRecords(root.store, run)
    for step in firsts:
        records.create(record(step, run, **changed))


def row_facts(row):
    return row.step, row.trained, row.stale, row.small, row.error


def test_chart_has_the_counts_of_each_decision(root):
    write_decisions(root, range(0, 20, 2), steps=2)
    chart = decision_chart(root.store, "on")
    assert [row_facts(row) for row in chart.rows] == [(n, 30 + n, n, 2, "") for n in range(0, 20, 2)]
    lines = decision_lines(chart.rows)
    assert (lines.first, lines.last, lines.most) == (0, 18, 48)
    assert [lines.trained.count("L"), len(lines.dots), lines.damaged] == [9, 10, ()]


def test_chart_of_many_decisions_reads_few_of_them(root, monkeypatch):
    monkeypatch.setattr(decisions, "MOST_SHOWN", 9)
    monkeypatch.setattr(decisions, "MOST_LISTED", 3)
    write_decisions(root, range(50))
    reads = []

    def record_read(records, step):
        reads.append(step)
        return decisions.read_row(records, step)

    chart = decision_chart(root.store, "on", record_read)
    assert chart.n_decisions == 50
    assert sorted(reads) == [row.step for row in chart.rows]
    assert len(reads) == 9
    assert [row.step for row in chart.rows][-3:] == [47, 48, 49]


def test_chart_of_a_run_that_repeats_another_has_both(root):
    write_decisions(root, range(6), run="first")
    RunRecords(root.store, "on").create_like(LikeRecord(run="on", like="first", until=4))
    write_decisions(root, [4, 5, 6], policy=99)
    chart = decision_chart(root.store, "on")
    assert (chart.like, chart.until, chart.n_decisions) == ("first", 4, 7)
    assert [row.policy for row in chart.rows] == [0, 1, 2, 3, 99, 99, 99]
    assert decision_detail(root.store, "on", 3).owner == "first"
    assert decision_detail(root.store, "on", 4).owner == "on"


def test_detail_adds_up_by_environment_and_length(root):
    write_decisions(root, [0, 3], steps=3)
    detail = decision_detail(root.store, "on", 5)
    assert (detail.row.step, detail.row.steps, detail.has_next) == (3, 3, False)
    by = {one.env: (one.trained, one.withheld) for one in detail.by}
    assert by.pop("math") == ((0, 0, 0, 15), (0, 0, 0, 2))
    assert list(by.values()) == [((13, 0, 0, 5), (1, 0, 0, 3))]
    assert (detail.n_undecided, detail.n_undecided_parts, detail.most) == (7, 1, 15)
    assert detail.asked["pack"] == '{"length": 64}'
    assert decision_detail(root.store, "on", 0).has_next
    with refusal(NotRecorded, what="decision", within="run 'on'", given=6):
        decision_detail(root.store, "on", 6)


def test_arguments_beyond_the_listed_ones_are_counted(root, monkeypatch):
    monkeypatch.setattr(decisions, "MOST_ARGUMENTS", 1)
    write_decisions(root, [0])
    detail = decision_detail(root.store, "on", 0)
    assert (list(detail.asked), detail.n_asked) == (["groups"], 3)
    served = Served(root, recipe=None)
    try:
        page = served.get("/r/on/0/decision").text
    finally:
        served.close()
    assert "and 2 more" in page


def test_summary_adds_up_the_decisions_and_names_the_newest_plan(root):
    write_decisions(root, range(6), run="first")
    RunRecords(root.store, "on").create_like(LikeRecord(run="on", like="first", until=4))
    newest = "p-" + "1" * 64
    write_decisions(root, [4], policy=70)
    write_decisions(root, [5], policy=99, plan=newest)
    summary = decision_summary(root, "on")
    assert (summary.n_decisions, summary.n_counted, summary.last_step, summary.policy) == (6, 6, 5, 99)
    assert (summary.groups, summary.trained, summary.stale, summary.small) == (48, 6 * 30 + 15, 15, 12)
    assert (summary.plan, summary.error) == (newest, "")
    lines = list(summary_lines(summary))
    assert lines == [
        "  6 decisions, as run first before step 4; the newest begins at step 5, with policy 99",
        f"  newest plan {newest}",
        "  trained 195 rollouts of 48 groups; withheld 15 stale, 12 of small groups",
    ]
    root.store.put(record(1, "first").key, b"{")
    damaged = decision_summary(root, "on")
    assert damaged.n_counted == 5
    assert "1.json" in next(summary_lines(damaged))


def test_trail_verbs_show_the_decisions_of_a_run(root, capsys):
    plan = loader.plan({"photos": write_photos(root).select("jpg", "cls")}, seed=3, global_batch=2)
    shared = RunRecorder(loader.Trail(root, "on"))
    with loader.Loader(plan, workers=0, framework="numpy", steps=3, trail=shared) as batches:
        for _ in batches:
            batches.note(loss=1.0)
    shared.close(wait=True)
    write_decisions(root, range(3), plan=plan.hash)
    assert main(["trail", "show", "on", "--root", root.url]) == 0
    text = capsys.readouterr().out
    assert "3 decisions; the newest begins at step 2, with policy 2" in text
    assert f"newest plan {plan.hash}" in text
    assert main(["trail", "show", "on", "--root", root.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decisions"]["trained"] == 93
    assert main(["trail", "ls", "--root", root.url, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["plans"], row["problem"]) == ([plan.hash], "")


DAMAGED = {
    "no JSON": b"{",
    "another run": record(2, "off").to_json(),
    "another step": record(7).to_json(),
    "a newer format": json.dumps({**json.loads(record(2).to_json()), "format": 3}).encode(),
    "a negative count": record(2).to_json().replace(b'"small":2', b'"small":-2'),
    "a count of text": record(2).to_json().replace(b'"small":2', b'"small":"<b>"'),
    "a quartile of nine": record(2).to_json().replace(b'"math",3', b'"math",9'),
    "following": b'{"format": 1, "before": "p-1", "plan": "p-1", "step": 2}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_record_is_named_and_hides_no_other(root, name):
    write_decisions(root, range(5))
    key = record(2).key
    root.store.put(key, DAMAGED[name])
    chart = decision_chart(root.store, "on")
    assert [row.step for row in chart.rows if row.error] == [2]
    assert key in chart.rows[2].error
    assert [row.trained for row in chart.rows] == [30, 31, 0, 33, 34]
    lines = decision_lines(chart.rows)
    assert [dot.step for dot in lines.damaged] == [2]
    with pytest.raises((Corrupt, FormatTooNew, NotRecorded)) as caught:
        decision_detail(root.store, "on", 2)
    fault = caught.value
    expected = {
        "a newer format": ("format", f"{root.url}/{key}"),
        "following": (key, "run 'on'"),
    }
    assert (fault.what, fault.where) == expected.get(name, (key, root.url))
    assert decision_detail(root.store, "on", 1).has_next


def test_runs_that_repeat_each_other_in_a_circle_are_named(root):
    root.create_if_empty()
    for run, like in (("a", "b"), ("b", "a")):
        root.store.put(f"follows/{run}/like/{like}.json", LikeRecord(run=run, like=like, until=3).to_json())
    chart = decision_chart(root.store, "a")
    assert chart.rows == ()
    assert "circle" in chart.error


def test_pages_escape_what_records_say(root):
    write_decisions(root, range(4))
    root.store.put(record(3).key, b"{")
    served = Served(root, recipe=None)
    try:
        for path in ("/r/on/decisions", "/r/on/1/decision"):
            answer = served.get(path)
            assert answer.status_code == 200
            assert "<img src=x" not in answer.text
            assert "\u202e" not in answer.text
            assert "style=" not in answer.text
            assert served.ask("GET", path).status_code == 403
            assert served.get(f"{path}.json").status_code == 200
        assert "&lt;img src=x onerror=alert(1)&gt;" in answer.text
        assert [served.get(f"/r/on/{step}/decision").status_code for step in (2, 3, 9)] == [200, 502, 502]
        assert served.get("/r/on%2F..%2Fx/decisions").status_code == 404
    finally:
        served.close()


def test_lines_of_decisions_are_bars_and_the_newest_first(root):
    write_decisions(root, range(3))
    page = decisions_sections("on", decision_chart(root.store, "on"))
    lines = [line.text for line in page_lines(page, 100)]
    (trained,) = [line for line in lines if line.startswith("trained ")]
    assert "30 to 32" in trained
    assert "█" in trained
    table = lines[next(i for i, line in enumerate(lines) if "policy" in line) + 1 :]
    assert [line.split()[0] for line in table[:3]] == ["2", "1", "0"]


def test_run_page_shows_the_decisions_of_an_online_run_alone(root):
    plan = loader.plan({"photos": write_photos(root).select("jpg", "cls")}, seed=3, global_batch=2)
    shared = RunRecorder(loader.Trail(root, "on"))
    for trail, run in ((shared, "on"), (loader.Trail(root, "plain"), "plain")):
        with loader.Loader(plan, workers=0, framework="numpy", steps=3, trail=trail) as batches:
            for _ in batches:
                batches.note(loss=1.0)
        write_decisions(root, range(3), run)
    shared.close(wait=True)
    served = Served(root, recipe=None)
    try:
        page = served.get("/r/on").text
        assert page.count('class="area"') == 3
        assert 'href="../r/on/2/decision"' in page
        assert 'class="area"' not in served.get("/r/plain").text
        assert "rollouts trained" not in served.get("/r/plain/1").text
    finally:
        served.close()
