"""The exporter's figures beside a second implementation, and what damage and hostile names do to a scrape."""

import json
import math
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

import loader
from loader.dataset.slices import list_slices, remove_slice
from loader.dataset.tables.slice_record import MAX_RECORD_BYTES
from loader.errors import Transient
from loader.run.trail.read_trail import read_rows
from loader.run.trail.trail import trail_folder
from penstock.cli import main
from penstock.metrics import root_reader
from penstock.metrics.cost_reader import CostReader
from penstock.metrics.exporter import build_registry
from penstock.metrics.families import GAUGES, MOST_LABEL, PREFIX, Labels, RootCollector
from penstock.metrics.root_reader import RootReader
from penstock.nodes.node_check import CheckStatus, NodeCheckResult, put_failures
from penstock.train.run_folder import RunFolder
from penstock.usage.prices import PriceTable
from penstock.usage.stored import stored_bytes
from tests.penstock.metrics.histories import even_steps, put_interval, put_start, put_steps
from tests.proxy_stores import ObservedStore

N_SCRAPES = 40
"""Enough to read what is new of everything."""
Figures = dict[tuple[str, tuple[str, ...]], float]
WEEK_S = 7 * 86_400.0


def now_us() -> int:
    return time.time_ns() // 1000


def scrape(root: loader.Root) -> Figures:
    """(metric without its prefix, values of labels) -> value, by Prometheus' own parser."""
    return scrape_figures(RootCollector([root]))


def scrape_figures(collector: RootCollector) -> Figures:
    text = generate_latest(build_registry([collector])).decode()
    figures = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name.removeprefix(PREFIX), tuple(sample.labels.values())
            assert key not in figures
            figures[key] = sample.value
    return figures


def scraped(root: loader.Root) -> RootReader:
    reader = RootReader(root)
    reader.read()
    return reader


def read_scrapes(reader: RootReader) -> None:
    for _ in range(N_SCRAPES):
        reader.read()


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    """A root with two datasets, three slices of which one is removed, two recorded runs and one with a log only."""
    root = loader.Root(tmp_path / "root")
    for dataset, n in (("photos", 9), ("clips", 4)):
        with root.write(dataset) as writer:
            for number in range(n):
                writer.add(f"k{number}", {"txt": str(number)})
    root.save_slice("photos@1", "cups", ["k1", "k2"], by="ann", why="look")
    root.save_slice("photos@1", "cups", ["k1", "k2", "k3"], by="ann", why="more")
    root.save_slice("clips@1", "gone", ["k1"], by="ann", why="look")
    remove_slice(root, "clips", "gone", by="ann", why="no")
    begun_us = now_us() - 400_000_000
    for run, wait_us in (("big", 30_000), ("small", 400_000)):
        attempt = put_start(root.store, run, begun_us)
        folder = RunFolder(root.store, run)
        folder.put_event(attempt, 0, "first_batch", 0, {"took_us": 1}, begun_us + 1_000_000)
        put_steps(root.store, run, even_steps(0, 60, begun_us + 2_000_000, wait_us=wait_us))
        put_interval(root.store, run, attempt, 60, begun_us + 62_000_000, wait_s=wait_us * 60 / 1e6)
        folder.put_event(attempt, 1, "saved", 60, {"took_us": 5}, begun_us + 63_000_000)
        put_steps(root.store, run, even_steps(60, 60, begun_us + 64_000_000, wait_us=wait_us, substituted=1))
    RunFolder(root.store, "small").put_event(1, 2, "ended", 120, {}, begun_us + 130_000_000)
    put_steps(root.store, "bare", even_steps(0, 5, now_us() - 5_000_000, loss=math.nan))
    return root


def test_figures_equal_the_ones_of_the_verbs(root: loader.Root, capsys: pytest.CaptureFixture[str]) -> None:
    figures = scrape(root)

    def verb(*words: str) -> object:
        capsys.readouterr()
        main([*words, "--root", root.url, "--json"])
        return json.loads(capsys.readouterr().out)

    for dataset in root.datasets():
        version = root.open(dataset)
        assert figures["version_samples", (dataset,)] == len(version)
        assert figures["version_timestamp_seconds", (dataset,)] == version.manifest["created_us"] / 1e6
    listed = {(one.dataset, one.name): one.n_samples for one in list_slices(root).slices}
    assert listed == {("photos", "cups"): 3}
    assert {labels: value for (name, labels), value in figures.items() if name == "slice_samples"} == listed
    for run in ("big", "small", "bare"):
        folder = trail_folder(run)
        names = [info.key.removeprefix(folder) for info in root.store.list(folder)]
        steps = read_rows(root.store, folder, names, [])
        assert figures["training_step", (run,)] == steps["step"].max()
        assert figures["training_last_step_timestamp_seconds", (run,)] == steps["at_us"].max() / 1e6
        assert figures["training_substituted", (run,)] == steps["substituted"].sum()
        bad = steps.filter(~steps["note.loss"].is_finite())
        assert figures["training_not_finite_steps", (run,)] == bad["step"].n_unique()
    for run in ("big", "small"):
        goodput = verb("train", "goodput", run)["goodput"]  # type: ignore[index]
        assert figures["training_goodput_ratio", (run,)] == pytest.approx(goodput)
        assert figures["training_starts", (run,)] == len(RunFolder(root.store, run).attempts())
        assert figures["training_failures", (run,)] == 0
        assert figures["training_checkpoint_step", (run,)] == 60
    assert figures["training_waiting_ratio", ("big",)] == pytest.approx(0.03)
    assert figures["training_waiting_ratio", ("small",)] == pytest.approx(0.4)
    states = [labels for (name, labels), value in figures.items() if name == "training_state" and value]
    assert sorted(states) == [("bare", "running"), ("big", "running"), ("small", "finished")]
    assert figures["node_suspects", ()] == len(verb("node", "suspects")) == 0  # type: ignore[arg-type]
    assert all(figures["up", (part,)] == 1 for part in ("versions", "slices", "trainings", "nodes"))


def test_every_metric_is_exported(root: loader.Root) -> None:
    prices = PriceTable(gib_month=2.0**19, gpu_hour=2.0)
    collector = RootCollector([root], has_cost=True, prices=prices)
    figures = scrape_figures(collector)
    assert {name for name, _ in figures} == set(GAUGES)
    assert {name for name, _ in scrape(root)} == {name for name in GAUGES if not name.startswith("dataset_")}
    for row in stored_bytes(root.store, root.state).rows("dataset"):
        assert figures["dataset_stored_bytes", (row.name,)] == row.nbytes
        assert figures["dataset_freed_bytes", (row.name,)] == row.frees
        assert figures["dataset_stored_price", ("USD", row.name)] == pytest.approx(row.nbytes / 2**11)
    assert figures["up", ("cost",)] == 1
    root.store.put(root.state.versions("clips")[0].manifest, b"torn")
    assert scrape_figures(collector)["up", ("cost",)] == 1  # not read again within the hour
    assert scrape_figures(RootCollector([root], has_cost=True))["up", ("cost",)] == 0


def test_failed_check_makes_a_suspect_like_the_verb(
    root: loader.Root, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [NodeCheckResult(check="disk", status=CheckStatus.FAILED, text="bad sector")]
    put_failures(root.store, "m3", results)
    capsys.readouterr()
    main(["node", "suspects", "--root", root.url, "--json"])
    assert [row["node"] for row in json.loads(capsys.readouterr().out)] == ["m3"]
    assert scrape(root)["node_suspects", ()] == 1


def test_run_that_is_silent_for_seven_days_is_dropped(root: loader.Root) -> None:
    begun_s = time.time()
    for later_s, names in (
        (0, {"big", "small", "bare"}),
        (WEEK_S - 60, {"big", "small", "bare"}),
        (WEEK_S + 60, set()),
    ):
        reader = RootReader(root, lambda later_s=later_s: begun_s + later_s)  # type: ignore[misc]
        reader.read()
        assert set(reader.runs) == names


def test_states_change_with_silence(root: loader.Root) -> None:
    begun_s = time.time()
    reader = RootReader(root, lambda: begun_s + 3600)
    reader.read()
    states = {name: run.state(reader.read_s) for name, run in reader.runs.items()}
    assert states == {"big": "stalled", "small": "finished", "bare": "silent"}


def test_later_scrapes_reach_the_figures_of_a_first_one(root: loader.Root) -> None:
    reader = RootReader(root)
    reader.read()
    store = root.store
    later_us = now_us()
    put_steps(store, "big", even_steps(120, 30, later_us, loss=math.inf))
    put_steps(store, "big", even_steps(150, 30, later_us + 31_000_000))
    RunFolder(store, "big").put_event(1, 3, "saved", 150, {"took_us": 5}, later_us + 5)
    attempt = put_start(store, "big", later_us + 62_000_000)
    # The second start repeats steps, on two ranks, so its log is in another folder.
    put_steps(store, "big", even_steps(140, 20, later_us + 63_000_000), place="0-of-2")
    put_interval(store, "big", attempt, 160, later_us + 90_000_000)
    put_steps(store, "new", even_steps(0, 5, later_us))
    put_start(store, "newer", later_us)
    with root.write("photos") as writer:
        writer.add("later", {"txt": "x"})
    root.save_slice("photos@2", "late", ["later"], by="ann", why="look")
    for _ in range(16):
        reader.read()
    fresh = RootReader(root)
    fresh.read()
    assert set(reader.runs) == set(fresh.runs) == {"big", "small", "bare", "new", "newer"}
    assert reader.versions == fresh.versions
    assert reader.slices == fresh.slices
    for name, run in fresh.runs.items():
        own = reader.runs[name]
        assert own.trail.not_finite == run.trail.not_finite
        assert (own.trail.last_step, own.last_us) == (run.trail.last_step, run.last_us)
        assert own.record.checkpoint == run.record.checkpoint
        assert len(own.record.attempts) == len(run.record.attempts)
        assert own.record.goodput() == pytest.approx(run.record.goodput(), nan_ok=True)
        assert own.waiting == pytest.approx(run.waiting, nan_ok=True)
    assert fresh.runs["big"].trail.not_finite == tuple(range(120, 140))  # steps 140 to 149 were made again


def test_damage_hides_nothing_else(root: loader.Root) -> None:
    before = scrape(root)
    store = root.store
    manifest = root.state.versions("clips")[0].manifest
    store.put(manifest, b"torn")
    store.put("trails/big/0-of-1/0000000000000000999-0123456789abcdef.parquet", b"no table")
    store.put("trainings/small/events/000001-000009.json", b"{")
    store.put("slices/photos/cups/000003.json", b"[]")
    store.put("nodes/checks/9000000000000000-m1-aa.json", b"null")
    after = scrape(root)
    assert ("version_samples", ("clips",)) not in after
    assert after["version_samples", ("photos",)] == 9
    # A slice is its newest number, also for `penstock slice ls`.
    assert ("slice_samples", ("photos", "cups")) not in after
    for part in ("versions", "slices", "trainings"):
        assert after["up", (part,)] == 0
    for run in ("big", "small"):
        assert after["training_state", (run, "damaged")] == 1
        assert after["training_step", (run,)] == before["training_step", (run,)]
    assert after["training_state", ("bare", "running")] == 1


def test_what_a_scrape_could_not_read_a_later_one_reads(
    root: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable = ["slices/photos/"]

    def fail(verb: str, key: str) -> None:
        if verb.startswith("get") and key.startswith(tuple(unreadable)):
            raise Transient(f"cannot read {key}")

    store = root.store
    monkeypatch.setattr(root, "store", ObservedStore(store, fail))
    reader = RootReader(root)
    reader.read()
    assert (reader.slices, "slices" in reader.errors) == ({}, True)
    unreadable.clear()
    read_scrapes(reader)
    assert reader.slices == scraped(root).slices
    RunFolder(store, "big").put_event(1, 2, "ended", 120, {})
    unreadable.append("trainings/big/events/")
    read_scrapes(reader)
    assert reader.errors["trainings"].startswith("cannot read trainings/big/events/")
    unreadable.clear()
    read_scrapes(reader)
    assert reader.runs["big"].state(reader.read_s) == "finished"


def test_run_that_a_failing_store_has_not_shown_stays(
    root: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun_us = now_us() - 3 * 86_400_000_000
    attempt = put_start(root.store, "old", begun_us)
    RunFolder(root.store, "old").put_event(attempt, 0, "ended", 0, {}, begun_us + 1_000_000)
    unreadable = ["trainings/old/"]

    def fail(verb: str, key: str) -> None:
        if key.startswith(tuple(unreadable)):
            raise Transient(f"cannot read {key}")

    monkeypatch.setattr(root, "store", ObservedStore(root.store, fail))
    reader = scraped(root)
    read_scrapes(reader)
    assert reader.runs["old"].newest_us == 0
    unreadable.clear()
    read_scrapes(reader)
    assert reader.runs["old"].state(reader.read_s) == "finished"


def test_version_that_is_newest_again_has_its_figures(root: loader.Root) -> None:
    reader = scraped(root)
    version = root.open("clips")
    with root.write("clips") as writer:
        writer.add("later", {"txt": "x"})
    torn = root.state.versions("clips")[-1]
    root.store.put(torn.manifest, b"torn")
    reader.read()
    assert "clips" not in reader.versions
    root.retire(torn.name, reason="torn")
    reader.read()
    assert reader.versions["clips"].number == version.number


def test_cost_that_could_not_be_read_says_so_until_it_is_read(
    root: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = time.time()
    unreadable = ["trainings/"]

    def fail(verb: str, key: str) -> None:
        if key.startswith(tuple(unreadable)):
            raise Transient(f"cannot read {key}")

    monkeypatch.setattr(root, "store", ObservedStore(root.store, fail))
    reader = CostReader(root, None)
    problems = [reader.read(now_s) for _ in range(2)]
    assert problems[0] == problems[1] != []
    unreadable.clear()
    assert reader.read(now_s + 3601) == []


def test_new_slices_are_found_wherever_their_names_are(
    root: loader.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root_reader, "PAGE", 2)
    reader = scraped(root)
    for name in ("aaa", "cups", "zzz"):
        root.save_slice("photos@1", name, ["k1"], by="ann", why="look")
    read_scrapes(reader)
    assert reader.slices == scraped(root).slices
    assert {"aaa", "cups", "zzz"} <= {name for _, name in reader.slices}


def test_large_records_are_read_and_larger_ones_are_named(root: loader.Root) -> None:
    root.save_slice("photos@1", "rare", ["k1", "k2"], by="ann", why="a long reason " * 200_000)
    assert root.store.head("slices/photos/rare/000001.json").nbytes > 2**20
    reader = RootReader(root)
    reader.read()
    assert reader.errors == {}
    assert reader.slices["photos", "rare"].n_samples == 2
    root.store.put("slices/photos/rare/000002.json", bytes(MAX_RECORD_BYTES + 1))
    root.store.put("trainings/small/faults/000001-0.json", bytes(2**21))
    reader = RootReader(root)
    reader.read()
    assert reader.errors["slices"].startswith("slices/photos/rare/000002.json has 8,388,609 bytes")
    assert "trainings/small/faults/000001-0.json" in reader.errors["trainings"]


def test_what_has_no_metrics_is_logged_once(
    root: loader.Root, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root.save_slice("photos@1", "plates", ["k1"], by="ann", why="look")
    for name in ("MOST_DATASETS", "MOST_SLICES", "MOST_RUNS"):
        monkeypatch.setattr(root_reader, name, 1)
    reader = RootReader(root)
    for _ in range(2):
        reader.read()
    assert (len(reader.versions), len(reader.runs), reader.errors) == (1, 1, {})
    assert sorted(text for text in caplog.messages if "without metrics" in text) == [
        "datasets without metrics: 1; only the first by name have them",
        "slices without metrics: 2; only the first by name have them",
        "trainings without metrics: 2; only the newest have them",
    ]


def test_restored_object_ends_the_damage(root: loader.Root) -> None:
    key = "trainings/big/events/000001-000001.json"
    data = root.store.get(key).data
    root.store.put(key, b"{")
    reader = RootReader(root)
    reader.read()
    assert reader.runs["big"].state(reader.read_s) == "damaged"
    assert "trainings" in reader.errors
    root.store.put(key, data)
    for _ in range(4):
        reader.read()
    assert reader.runs["big"].state(reader.read_s) == "running"
    assert not reader.errors


@settings(deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=40), max_size=20, unique=True))
def test_label_values_are_one_line_and_distinct(texts: list[str]) -> None:
    labels = Labels()
    hostile = [*texts, 'a"b\\c', "line\nline", "\u202eabc", "\u2066abc", "x" * 1_000_000, "x" * 1_000_001]
    values = {text: labels.value(text) for text in hostile}
    assert len(set(values.values())) == len(set(hostile))
    for value in values.values():
        assert len(value) <= MOST_LABEL + 8
        assert not set(value) & {"\n", "\r", "\u202e", "\u2066", "\x00"}
    assert all(labels.value(text) == value for text, value in values.items())


@pytest.mark.parametrize("generate", ["prometheus", "openmetrics"])
def test_hostile_dataset_survives_prometheus_text(root: loader.Root, generate: str) -> None:
    from penstock.metrics.families import Families, add_figures
    from penstock.metrics.root_reader import VersionFigures

    reader = RootReader(root)
    reader.read()
    names = ['q"uote', "new\nline", "\u202ebidi", "back\\slash", "y" * 1_000_000]
    for name in names:
        reader.versions[name] = VersionFigures(1, 1, 1)

    class Filled(RootCollector):
        def collect(self):  # type: ignore[no-untyped-def]
            families = Families()
            add_figures(families, reader)
            yield from families.all()

    registry = build_registry([Filled([])])
    if generate == "prometheus":
        families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    else:
        families = list(parse_openmetrics(generate_openmetrics(registry).decode()))
    samples = next(own for own in families if own.name == "penstock_version_samples").samples
    assert {sample.labels["dataset"] for sample in samples} >= {'q"uote', "new line", "bidi", "back\\slash"}


def test_several_roots_have_a_label(root: loader.Root, tmp_path: Path) -> None:
    other = loader.Root(tmp_path / "other")
    with other.write("photos") as writer:
        writer.add("k", {"txt": "x"})
    text = generate_latest(build_registry([RootCollector([root, other])])).decode()
    family = next(
        own for own in text_string_to_metric_families(text) if own.name == "penstock_version_samples"
    )
    figures = {(one.labels["dataset"], one.labels["root"]): one.value for one in family.samples}
    assert figures == {("photos", root.url): 9, ("clips", root.url): 4, ("photos", other.url): 1}
