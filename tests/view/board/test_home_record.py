"""The first page's record: what it says of runs and datasets, what it costs, and what damage does to it."""

import math
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import loader
from loader.run.trail.trail import trail_folder
from loader.run.trail.trail_outline import MOST_OBJECTS, list_runs, trail_outline
from penstock.metrics.conditions import STALLED_LEAST_S
from penstock.nodes.node_check import CheckStatus, NodeCheckResult, put_failures
from penstock.stages import StageRecord, append_record
from penstock.view.board import unpublished
from penstock.view.board.attention import attention_items
from penstock.view.board.home_record import MOST_TRAININGS, Board
from penstock.view.board.training_lines import training_line
from penstock.view.board.unpublished import unpublished_datasets
from penstock.view.polyline import polyline_points
from penstock.view.sections import home as home_module
from penstock.view.sections.characters.section_lines import page_lines
from penstock.view.sections.home import home_sections
from tests.view.conftest import BATCH, train, write_photos
from tests.view.recipes import plain
from tests.view.test_costs import Counted
from tests.view.test_web import Served


def home_record(root):
    return Board().record(root)


def item_subjects(record):
    return [(item.name, item.subject) for item in record.attention]


def make_plan(root):
    view = root.open("photos@latest").select("jpg", "cls")
    return loader.plan({"photos": view}, seed=3, global_batch=BATCH)


@pytest.fixture
def home(root):
    """A root with two versions of photos and the run `one`."""
    write_photos(root)
    write_photos(root, numbers=range(20, 23))
    train(root, make_plan(root), "one", recipe=plain)
    return root


def test_home_names_runs_and_datasets(home):
    record = home_record(home)
    (line,) = record.trainings
    (card,) = record.cards
    trail = loader.read_trail(home, "one")
    assert (line.run, line.last_step, line.metric) == ("one", trail.steps["step"].max(), "loss")
    assert line.now == trail.steps["note.loss"][-1]
    assert line.reads == ("photos@2",)
    assert (card.number, card.n_samples, card.n_versions) == (2, len(home.open("photos@2")), 2)
    assert [one.number for one in record.datasets["photos"]] == [2, 1]
    assert (record.runs, record.attention) == (("one",), ())


def test_loss_that_is_not_finite_needs_attention(home):
    keep = loader.Trail(home, "bad", recipe="tests.view.recipes:plain")
    with loader.Loader(make_plan(home), 0, 1, steps=4, trail=keep, framework="numpy", workers=0) as batches:
        for batch in batches:
            batches.note(loss=math.nan if batch.step == 2 else 1.0)
    record = home_record(home)
    line = next(one for one in record.trainings if one.run == "bad")
    assert (line.n_not_finite, line.first_not_finite) == (1, 2)
    assert item_subjects(record) == [("loss-not-finite", "bad")]
    assert record.attention[0].page == "r/bad/2"


def test_state_follows_from_the_last_step_and_the_record(home):
    (line,) = home_record(home).trainings
    begun_s = line.last_us / 1e6
    assert line.at(begun_s + 1).state == "running"
    assert line.at(begun_s + STALLED_LEAST_S + 1).state == "silent"
    recorded = replace(line, recorded="running")
    later_s = begun_s + STALLED_LEAST_S + 1
    assert recorded.at(later_s).state == "stalled"
    slow = replace(recorded, median_step_us=STALLED_LEAST_S * 1e6)
    assert slow.at(later_s).state == "running"
    assert replace(recorded, recorded="finished").at(later_s).state == "finished"
    names = [item.name for item in attention_items([recorded.at(later_s)], [], later_s)]
    assert names == ["run-stalled"]


def test_damaged_run_log_and_manifest_hide_nothing_else(home):
    train(home, make_plan(home), "two", recipe=plain)
    write_photos(home, "others", numbers=range(30, 32))
    folder = home.url.removeprefix("file://")
    (name,) = next(one for one in list_runs(home.store) if one.run == "two").rows
    with open(f"{folder}/{trail_folder('two')}{name}", "wb") as file:
        file.write(b"no table")
    with open(f"{folder}/{home.state.versions('others')[0].manifest}", "ab") as file:
        file.write(b" ")
    record = home_record(home)
    assert {line.run: bool(line.error) for line in record.trainings} == {"one": False, "two": True}
    assert {card.dataset: bool(card.error) for card in record.cards} == {"others": True, "photos": False}
    assert item_subjects(record) == [("dataset-damaged", "others"), ("run-damaged", "two")]


def test_batch_that_was_stopped_since_needs_attention(root):
    with root.write(
        "clips", producer={"batch": "000002-aa", "gate": {"checks": {"drift": "passed"}}}
    ) as writer:
        writer.add("a", {"txt": "a"})
    for partition, verdict in (("000001-aa", "failed"), ("000002-aa", "published"), ("000003-aa", "failed")):
        record = StageRecord(
            dataset="clips",
            stage="version",
            partition=partition,
            verdict=verdict,
            run_id="r",
            code_version="1",
            fingerprint=partition,
            reason="drift: too far",
        )
        append_record(root.store, record)
    (card,) = home_record(root).cards
    assert card.gate == "passed"
    assert [(one.batch, one.reason) for one in card.stopped] == [("000003-aa", "drift: too far")]
    assert item_subjects(home_record(root)) == [("batch-stopped", "clips")]


def stage_record(root, dataset, verdict, reason="", partition="000001-aa"):
    record = StageRecord(
        dataset=dataset,
        stage="version",
        partition=partition,
        verdict=verdict,
        run_id="r",
        code_version="1",
        fingerprint=partition,
        reason=reason,
    )
    append_record(root.store, record)


def test_dataset_without_a_version_has_its_reason(home, tmp_path, monkeypatch):
    stage_record(home, "clips", "failed", "drift: <b>too far</b>\u202e\n" + "x" * 1_000_000)
    stage_record(home, "photos", "published")
    stage_record(home, "photos-b", "started")
    stage_record(home, "photos0", "failed", "blank")
    stage_record(home, "torn", "failed", "w")
    home.store.put("stages/torn/version/000001-aa/000000000001.json", b"[")
    home.store.put("stages/No Name/version/x/000000000001.json", b"[")
    record = home_record(home)
    reasons = {one.dataset: [batch.reason[:5] for batch in one.stopped] for one in record.unpublished}
    assert reasons == {"clips": ["drift"], "photos-b": [], "photos0": ["blank"], "torn": [home.url[:5]]}
    assert "is not a stage record" in record.unpublished[3].stopped[0].reason
    stopped = [(name, subject) for name, subject in item_subjects(record) if name == "batch-stopped"]
    assert stopped == [("batch-stopped", name) for name in ("clips", "photos0", "torn")]
    lines = [line.text for line in page_lines(home_sections(record), 100)]
    (text,) = [line for line in lines if line.startswith("clips  no version")]
    assert text.isprintable()
    assert not [line for line in lines if line.startswith("At most")]
    for module in (unpublished, home_module):
        monkeypatch.setattr(module, "MOST_UNPUBLISHED", 2)
    bounded = [line.text for line in page_lines(home_sections(home_record(home)), 100)]
    assert "At most 2 datasets without a version are shown, the first by name." in bounded
    assert len(text) < 400
    with Served(tmp_path / "root", recipe=None) as served:
        page = served.get("/").text
    assert "&lt;b&gt;too far&lt;/b&gt;" in page
    assert "x" * 1_000 not in page
    assert "its first batch is not published yet" in page


def test_node_with_a_failed_check_needs_attention(home):
    put_failures(
        home.store, "m3", [NodeCheckResult(check="disk", status=CheckStatus.FAILED, text="bad sector")]
    )
    home.store.put("nodes/checks/9000000000000000-m4-aa.json", b"{")
    board = Board()
    for _ in range(2):
        (item,) = board.record(home).attention
        assert (item.name, item.severity, item.subject) == ("node-suspect", "warning", "m3")
        assert item.text == "disk failed: bad sector"
        assert item.runbook.endswith("#node-suspect")
    assert attention_items([], [], time.time(), suspects={}) == ()


def test_datasets_without_a_version_cost_a_listing_a_dataset(root):
    """However many batches and stages they have."""
    costs = []
    for n in (1, 40):
        for i in range(n):
            stage_record(root, "one", "started", partition=f"{i:06d}-aa")
            stage_record(root, "two", "started", partition=f"{i:06d}-aa")
        store = Counted(root.store)
        assert [one.dataset for one in unpublished_datasets(store, ["one"])] == ["two"]
        costs.append(store.requests)
    assert costs == [{"list": 4, "get": 1}, {"list": 4, "get": 4}]


def test_reads_do_not_grow_with_the_length_of_a_run(home):
    (listed,) = list_runs(home.store)
    place, _, rest = listed.rows[0].partition("/")
    data = home.store.get(trail_folder("one") + listed.rows[0]).data
    reads = Counter()
    for run, n in (("of-30", 30), ("of-90", 90)):
        for info in home.store.list(f"{trail_folder('one')}start-"):
            start = info.key.rpartition("/")[2]
            home.store.put_if_absent(trail_folder(run) + start, home.store.get(info.key).data)
        for number in range(n):
            name = f"{place}/{number:019d}{rest[19:]}"
            home.store.put_if_absent(trail_folder(run) + name, data)
        longer = next(one for one in list_runs(home.store) if one.run == run)
        outline = trail_outline(counting(home.store, reads, run), longer)
        assert (len(longer.rows), outline.is_whole) == (n, False)
    assert reads == {"of-30": MOST_OBJECTS + 1, "of-90": MOST_OBJECTS + 1}


def counting(store, reads, run):
    """The store, counting reads under a run's name."""

    class Counting:
        url = store.url

        def __getattr__(self, name):
            return getattr(store, name)

        def get(self, key, *arguments, **options):
            reads[run] += 1
            return store.get(key, *arguments, **options)

    return Counting()


def test_newest_runs_have_a_line_and_others_a_name(home):
    listed = list_runs(home.store)
    assert [one.run for one in listed] == ["one"]
    names = [f"r{n}" for n in range(MOST_TRAININGS + 2)]
    for name in names:
        train(home, make_plan(home), name, recipe=plain, steps=1)
    record = home_record(home)
    assert len(record.trainings) == MOST_TRAININGS
    assert record.runs == tuple(sorted(["one", *names]))


def test_forged_plan_names_no_version(home):
    listed = list_runs(home.store)[0]
    line = training_line(home, home.store, listed, None)
    plan = trail_outline(home.store, listed).starts[-1].plan
    folder = home.url.removeprefix("file://")
    with open(f"{folder}/plans/{plan}.json", "w") as file:
        file.write("[")
    assert line.reads
    assert training_line(home, home.store, listed, None).reads == ()


@pytest.mark.parametrize("values", [[1.0, 3.0, 2.0], [5.0, 5.0], [0.0] * 3])
def test_points_of_a_line_lie_in_its_drawing(values):
    points = polyline_points(range(len(values)), values, width=100, height=20)
    numbers = np.array([point.split(",") for point in points.split()], float)
    assert numbers[0, 0] == 0
    assert numbers[-1, 0] == 100
    assert (numbers[:, 1] >= 2).all()
    assert (numbers[:, 1] <= 18).all()
    assert polyline_points([0], [1.0]) == ""


def test_record_is_made_again_when_a_run_continues(home):
    board = Board()
    before = board.record(home).trainings[0].last_step
    train(home, make_plan(home), "one", recipe=plain, steps=9)
    assert board.record(home).trainings[0].last_step == 8 > before
    assert board.record(home).read_us <= time.time() * 1e6


def test_lines_for_terminals_have_state_step_and_size(home):
    page = home_sections(home_record(home))
    lines = [line.text for line in page_lines(page, 100)]
    (run,) = [line for line in lines if line.startswith("one ")]
    assert run.split()[:3] == ["one", "running", "5"]
    assert "1.05" in run
    assert run.endswith("photos@2")
    assert not [line for line in lines if "node suspects" in line], "no training has a record of nodes"
    (card,) = [line for line in lines if line.startswith("photos@2  ")]
    assert card.startswith(f"photos@2  {len(home.open('photos@2'))} samples")
