"""A training tells what it trained: one file per report, whoever calls how often, and never an error."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.api.report import Report, _newest_number, new_reports
from loader.errors import Corrupt, Forbidden, FormatTooNew, InvalidName, InvalidRuntime, NotARoot
from loader.storage import open_store
from tests.refusals import refusal


def write(root: loader.Root, dataset: str, n: int = 12) -> None:
    with root.write(dataset) as writer:
        for number in range(n):
            writer.add(f"{dataset}-{number:03d}", {"cls": number})


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    made = loader.Root(tmp_path / "root")
    write(made, "photos")
    write(made, "web")
    return made


@pytest.fixture
def plan(root: loader.Root) -> loader.Plan:
    views = {"p": root.open("photos@1"), "w": root.open("web@1")}
    return loader.plan(views, seed=1, global_batch=4)


def report_list(root: loader.Root, dataset: str = "photos", after: int = 0) -> list[Report | Exception]:
    return [found for _, found in new_reports(root, dataset, after)]


def test_what_is_told_is_what_is_read(root: loader.Root, plan: loader.Plan) -> None:
    metrics = {"loss": torch.tensor(0.25), "accuracy": 1, "diverged": math.nan, "up": math.inf}
    place = "s3://user:secret@bucket/run?X-Amz-Signature=abcd"
    made = loader.report(root, plan, run="big-1", steps=(0, 99), checkpoint=place, metrics=metrics)
    assert [one.dataset for one in made] == ["photos", "web"]
    (found,) = report_list(root)
    assert found == made[0]
    assert isinstance(found, Report)
    version = root.open("photos@1")
    assert found.versions == ({"source": "p", "id": version.id, "name": "photos@1"},)
    assert (found.plan, found.first_step, found.last_step) == (plan.hash, 0, 99)
    assert found.metrics == {"loss": 0.25, "accuracy": 1.0, "diverged": "nan", "up": "inf"}
    assert "secret" not in found.checkpoint
    assert "abcd" not in found.checkpoint
    assert loader.open_plan(root, found.plan) == plan


def test_again_is_the_same_file(root: loader.Root, plan: loader.Plan) -> None:
    for _ in range(3):
        loader.report(root, plan, run="big", steps=(0, 9), strict=True)
    assert len(report_list(root)) == 1
    loader.report(root, plan, run="big", steps=(10, 19), strict=True)
    loader.report(root, plan, run="big", steps=(0, 9), strict=True)  # after another one: told twice, one file
    files = [info.key for info in root.store.list("reports/training/photos/runs/")]
    assert len(files) == 2
    assert [one.first_step for one in report_list(root) if isinstance(one, Report)] == [0, 10, 0]
    assert len(report_list(root, after=2)) == 1


def test_grown_plan_names_what_its_steps_could_read(root: loader.Root, plan: loader.Plan) -> None:
    with root.write("photos") as writer:
        writer.add("later", {"cls": 1})
    grown = plan.grow({"p": root.open("photos@2")}, 10)
    before, after = (
        loader.report(root, grown, run="r", steps=steps, strict=True)[0] for steps in ((0, 9), (0, 10))
    )
    assert [one["name"] for one in before.versions] == ["photos@1"]
    assert [one["name"] for one in after.versions] == ["photos@1", "photos@2"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"run": "no spaces"}, InvalidName),
        ({"run": "../up"}, InvalidName),
        ({"steps": 7}, InvalidRuntime),
        ({"steps": (5, 4)}, InvalidRuntime),
        ({"steps": (-1, 4)}, InvalidRuntime),
        ({"steps": (0.5, 4)}, InvalidRuntime),
        ({"metrics": {"loss": "low"}}, InvalidRuntime),
        ({"metrics": {"loss": torch.zeros(2)}}, InvalidRuntime),
        ({"metrics": {str(n): n for n in range(201)}}, InvalidRuntime),
        ({"plan": "p-123"}, InvalidRuntime),
    ],
)
def test_mistake_is_logged_or_with_strict_raised(
    root: loader.Root,
    plan: loader.Plan,
    given: dict,
    error: type[Exception],
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = {"plan": plan, "run": "big", "steps": (0, 9), **given}
    with caplog.at_level(logging.ERROR, "loader.api.report"):
        assert loader.report(root, **asked) == ()
    assert caplog.records[0].exc_info[0] is error
    with pytest.raises(error):
        loader.report(root, **asked, strict=True)
    assert report_list(root) == []


def test_place_that_is_no_root_ends_no_training(
    tmp_path: Path, plan: loader.Plan, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "loader.api.report"):
        assert loader.report(loader.Root(tmp_path / "other"), plan, run="r", steps=(0, 1)) == ()
    assert caplog.records[0].exc_info[0] is NotARoot
    other = loader.Root(tmp_path / "third")
    write(other, "photos")
    with refusal(InvalidRuntime, what="root", given=other.url):
        loader.report(other, plan, run="r", steps=(0, 1), strict=True)


def test_root_that_may_only_be_read_ends_no_training(root: loader.Root, plan: loader.Plan) -> None:
    folder = Path(root.url) / "reports"
    folder.write_text(
        "a file where the folder would be"
    )  # also root, whom no mode keeps from writing, fails here
    assert loader.report(root, plan, run="r", steps=(0, 1)) == ()
    with pytest.raises((Forbidden, OSError, loader.errors.StoreError)):
        loader.report(root, plan, run="r", steps=(0, 1), strict=True)


def test_ranks_that_report_at_once_lose_nothing(root: loader.Root, plan: loader.Plan) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def tell(number: int) -> None:
        loader.report(root, plan, run=f"run-{number % 8}", steps=(number, number), strict=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(tell, range(24)))
    steps = [one.first_step for one in report_list(root) if isinstance(one, Report)]
    assert sorted(steps) == list(range(24))


def test_what_was_changed_or_lost_stops_nobody(root: loader.Root, plan: loader.Plan) -> None:
    made = [loader.report(root, plan, run="r", steps=(n, n), strict=True)[0] for n in range(4)]
    body = json.loads(root.store.get(made[0].key).data)
    root.store.put(made[0].key, json.dumps({**body, "last_step": 7}).encode())
    root.store.put(made[1].key, b"{")
    root.store.delete_many([made[2].key])
    changed, broken, gone, whole = report_list(root)
    assert isinstance(changed, Corrupt)
    assert isinstance(broken, Corrupt)
    assert isinstance(gone, FileNotFoundError)
    assert whole == made[3]


def test_newer_report_and_one_with_other_fields_are_told_apart(root: loader.Root, plan: loader.Plan) -> None:
    one = loader.report(root, plan, run="r", steps=(0, 0), strict=True)[0]
    body = json.loads(root.store.get(one.key).data)
    for fields, error in (({"format": 99, "mood": "fine"}, FormatTooNew), ({"mood": "fine"}, Corrupt)):
        root.store.put(one.key, json.dumps({**body, **fields}).encode())
        (found,) = report_list(root)
        assert type(found) is error


SPOILT = [
    b'{"report":' * 5000,
    rb'{"report": "\ud800"}',
    b'{"report": 3}',
    b'{"report": "reports/training/photos/../../x"}',
    b'{"report": "reports/training/photos/%s"}' % (b"x" * 2000),
    b"[]",
]


@pytest.mark.parametrize("data", SPOILT, ids=range(len(SPOILT)))
def test_number_that_names_no_report_stops_nobody(root: loader.Root, plan: loader.Plan, data: bytes) -> None:
    (one,) = [
        one
        for one in loader.report(root, plan, run="r", steps=(0, 0), strict=True)
        if one.dataset == "photos"
    ]
    root.store.put("reports/training/photos/000000000001.json", data)
    pointer = json.dumps({"report": one.key}).encode()
    root.store.put("reports/training/photos/000000000002.json", pointer)
    bad, sound = report_list(root)
    assert isinstance(bad, Exception)
    assert sound == one


@pytest.mark.parametrize(
    "fields",
    [
        {"versions": [3]},
        {"versions": [{"id": "v-1"}]},
        {"metrics": {"loss": {}}},
        {"metrics": [1]},
        {"at_us": 10**18},
        {"at_us": "now"},
        {"first_step": 3},
        {"last_step": 2**63},
        {"plan": "../../penstock"},
        {"run": "a\nb"},
        {"checkpoint": None},
        {"dataset": 3},
    ],
    ids=str,
)
def test_report_of_other_types_is_none_under_whatever_name(root: loader.Root, fields: dict[str, Any]) -> None:
    """Its name fits its content: who can write reports can compute that too."""
    sound = {"run": "r", "plan": "p-" + "0" * 64, "first_step": 0, "last_step": 0, "versions": ()}
    body = {"dataset": "photos", **sound, **fields}
    forged = Report(**body)
    key = f"reports/training/photos/runs/{body['run']}/{forged.identity}.json"
    root.store.put(key.replace("\n", ""), forged.to_json())
    root.store.put("reports/training/photos/000000000001.json", json.dumps({"report": key}).encode())
    (found,) = report_list(root)
    assert isinstance(found, Exception)


@pytest.mark.parametrize(
    "data", [b'{"format":' * 5000, rb'{"format": 1, "run": "\ud800"}', b'{"format": 1e999}']
)
def test_report_that_is_damaged_is_told(root: loader.Root, plan: loader.Plan, data: bytes) -> None:
    (one, *_) = loader.report(root, plan, run="r", steps=(0, 0), strict=True)
    root.store.put(one.key, data)
    (found,) = report_list(root)
    assert isinstance(found, Corrupt)


def test_mlflow_is_told_the_same(root: loader.Root, plan: loader.Plan) -> None:
    class Run:
        def __init__(self) -> None:
            self.tags: dict[str, str] = {}
            self.metrics: dict[str, float] = {}

        def set_tags(self, tags: dict[str, str]) -> None:
            self.tags |= tags

        def log_metrics(self, metrics: dict[str, float], step: int) -> None:
            self.metrics |= {f"{name}@{step}": value for name, value in metrics.items()}

    run = Run()
    loader.report(root, plan, run="r", steps=(0, 9), metrics={"loss": 2}, mlflow=run, strict=True)
    assert run.tags["penstock.plan"] == plan.hash
    assert run.tags["penstock.version.w"] == f"web@1 {root.open('web@1').id}"
    assert run.tags["penstock.steps"] == "0..9"
    assert run.metrics == {"loss@9": 2.0}
    assert (
        len(loader.report(root, plan, run="r", steps=(0, 9), mlflow=object())) == 2
    )  # told, though that failed
    with pytest.raises(AttributeError):
        loader.report(root, plan, run="r", steps=(0, 9), mlflow=object(), strict=True)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(n=st.integers(0, 300))
def test_newest_number_is_found_in_few_requests(n: int) -> None:
    class Counting:
        asked = 0

        def head(self, key: str) -> None:
            self.asked += 1
            if int(key.rsplit("/", 1)[1].removesuffix(".json")) > n:
                raise loader.errors.ObjectNotFound(key)

    store = Counting()
    assert _newest_number(store, "photos") == n  # type: ignore[arg-type]
    assert store.asked <= 2 * math.ceil(math.log2(n + 2)) + 1


def test_store_is_opened_by_its_url_alone(root: loader.Root, plan: loader.Plan) -> None:
    """Without Dagster, by a process that knows the URL: plain JSON under the name that the docs give."""
    (made,) = loader.report(root, plan, run="r", steps=(0, 1), strict=True)[:1]
    store = open_store(root.url)
    pointer = json.loads(store.get("reports/training/photos/000000000001.json").data)
    assert pointer == {"report": made.key}
    assert json.loads(store.get(made.key).data)["run"] == "r"
