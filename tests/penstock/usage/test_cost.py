"""Cost by dataset and owner: against sums by hand, with the operator's prices; hostile prices are refused."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

import loader
from penstock.cli import main
from penstock.train.intervals import ADDED, ROW, interval_bytes, interval_sum, interval_values
from penstock.train.run_folder import RunFolder
from penstock.train.run_spec import RunSpec
from penstock.usage.cost import group_costs
from penstock.usage.prices import PriceTable, read_prices
from penstock.usage.stored import stored_bytes
from penstock.usage.totals import StartUsage

H = 3600 * 10**6


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    """Datasets photos (of ann, then bob) and words (of bob), and a run that read photos@2 and words@1 for an hour."""
    root = loader.Root(tmp_path / "root")
    for dataset, owner, keys in (("photos", "ann", "ab"), ("photos", "bob", "cd"), ("words", "bob", "e")):
        with root.write(dataset, producer={"owner": owner}) as writer:
            for key in keys:
                writer.add(key, {"x": key.encode() * 5000})
    begun_us = time.time_ns() // 1000 - 2 * H
    folder = RunFolder(root.store, "big-7")
    folder.put_spec(RunSpec(run="big-7", command=("true",), record=root.url, gpus_per_node=8))
    attempt = folder.begin_attempt({"at_us": begun_us, "id": "x", "ranks": 1})
    versions = [{"name": "photos@2"}, {"name": "words@1"}]
    folder.put_event(attempt, 0, "first_batch", 0, {"versions": versions}, begun_us + 1)
    put_interval(folder, attempt, 10, begun_us + H // 2, requests=70, nbytes=500)
    put_interval(folder, attempt, 20, begun_us + H, requests=30, nbytes=1500)
    return root


def put_interval(
    folder: RunFolder, attempt: int, end_step: int, ended_us: int, requests: int, nbytes: int
) -> None:
    row = np.zeros(1, ROW)
    row["node"] = b"m1"
    row["end_step"] = end_step
    row["ended_us"] = ended_us
    row["step_s"] = 60.0
    row["bytes"] = nbytes
    row["requests"] = requests
    folder.put_interval(attempt, *interval_bytes(row.tobytes()))


def cost_rows(
    root: loader.Root, capsys: pytest.CaptureFixture[str], *words: str
) -> dict[str, dict[str, object]]:
    capsys.readouterr()
    assert main(["usage", "--root", root.url, *words, "--json"]) == 0
    return {row["name"]: row for row in json.loads(capsys.readouterr().out)["cost"]}


@pytest.mark.parametrize("by", ["dataset", "owner"])
def test_cost_has_bytes_requests_and_gpu_hours(
    root: loader.Root, capsys: pytest.CaptureFixture[str], by: str
) -> None:
    rows = cost_rows(root, capsys, "--by", by)
    stored = {row.name: row for row in stored_bytes(root.store, root.state).rows(by)}
    assert rows.keys() == stored.keys()
    for name, row in rows.items():
        own = stored[name]
        assert (row["versions"], row["nbytes"], row["frees"]) == (own.versions, own.nbytes, own.frees)
        # ann's photos@1 is not the version that the run read.
        read = name != "ann"
        assert row["requests"] == (100 if read else 0)
        assert row["read_nbytes"] == (2000 if read else 0)
        assert row["gpu_hours"] == pytest.approx(8 if read else 0)


def test_retiring_a_dataset_frees_what_its_row_has(
    root: loader.Root, capsys: pytest.CaptureFixture[str]
) -> None:
    frees = cost_rows(root, capsys, "--by", "dataset")["words"]["frees"]
    before = stored_bytes(root.store, root.state).nbytes
    root.retire("words@1", reason="old")
    after = stored_bytes(root.store, root.state).nbytes
    assert before - after == frees


def test_prices_are_the_operators(
    root: loader.Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(
        'currency = "EUR"\ngpu_hour = 2.5\ngib_month = 1073.741824\nthousand_requests = 10\ngib_read = 1073.741824\n'
    )
    row = cost_rows(root, capsys, "--by", "dataset", "--prices", str(file))["words"]
    assert row["currency"] == "EUR"
    assert row["stored_price_per_month"] == pytest.approx(row["nbytes"] / 1e6, abs=1e-4)  # type: ignore[operator]
    assert row["read_price"] == pytest.approx(8 * 2.5 + 100 / 1000 * 10 + 2000 / 1e6, abs=1e-3)
    capsys.readouterr()
    assert main(["usage", "--root", root.url, "--by", "owner", "--prices", str(file)]) == 0
    assert "EUR/month" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu_hour = -1", "a number from 0"),
        ("gpu_hour = nan", "a number from 0"),
        ("gpu_hour = inf", "a number from 0"),
        ("gpu_hour = 1e6", "a number from 0 to below 1,000,000"),
        ("gpu_hour = true", "a number from 0"),
        ('gpu_hour = "2.10"', "a number from 0"),
        ("gpu_hours = 2", "did you mean"),
        ('currency = "\\u001b[31m"', "three capital letters"),
        ("currency = 5", "three capital letters"),
        ("gpu_hour = ", "cannot be read as TOML"),
        ("a = " + "[" * 5000, "cannot be read as TOML"),
        ("#" * 70_000, "more than 65,536 bytes"),
    ],
)
def test_hostile_prices_are_refused(
    root: loader.Root, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    assert main(["usage", "--root", root.url, "--by", "dataset", "--prices", str(file)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "\x1b" not in error
    assert "Traceback" not in error


def test_prices_need_a_grouping_that_has_them(root: loader.Root, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--root", root.url, "--by", "user", "--prices", "x.toml"]) == 2
    assert "--prices is for --by dataset or owner" in capsys.readouterr().err


def test_missing_prices_are_named(root: loader.Root, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["usage", "--root", root.url, "--by", "owner", "--prices", "missing.toml"]) == 2
    assert "missing.toml" in capsys.readouterr().err


def test_start_counts_by_its_share_of_the_interval(root: loader.Root) -> None:
    stored = stored_bytes(root.store, root.state)
    start = StartUsage(begun_us=0, ended_us=10 * H, gpus=2, versions=("photos@1", "photos@2"), requests=1000)
    rows = {row.name: row for row in group_costs("dataset", stored, [start], 4 * H, 9 * H)}
    assert rows["photos"].gpu_hours == pytest.approx(10)  # once, although it read two versions
    assert rows["photos"].requests == pytest.approx(500)
    assert rows["words"].gpu_hours == 0


def test_version_that_is_gone_counts_for_its_dataset(root: loader.Root) -> None:
    stored = stored_bytes(root.store, root.state)
    start = StartUsage(begun_us=0, ended_us=H, gpus=1, versions=("lost@3",))
    by_dataset = {row.name: row for row in group_costs("dataset", stored, [start], 0, 2 * H)}
    assert (by_dataset["lost"].versions, by_dataset["lost"].gpu_hours) == (0, 1)
    by_owner = {row.name: row for row in group_costs("owner", stored, [start], 0, 2 * H)}
    assert by_owner[""].gpu_hours == 1


def test_interval_of_an_earlier_release_has_no_requests() -> None:
    import io

    import pyarrow.parquet as pq

    row = np.zeros(1, ROW)
    row["node"] = b"m1"
    row["end_step"] = 5
    row["bytes"] = 7
    _, data = interval_bytes(row.tobytes())
    file = io.BytesIO()
    pq.write_table(pq.read_table(io.BytesIO(data)).drop_columns([ADDED]), file)
    interval = interval_sum(1, 5, interval_values(file.getvalue(), "w"), "w")
    assert (interval.requests, interval.nbytes) == (0, 7)


def test_price_of_nothing_is_nothing() -> None:
    assert PriceTable().training_price(1, 1, 1) == PriceTable().storage_price(1) == 0
    with pytest.raises(loader.errors.InvalidRuntime):
        read_prices("/nonexistent")
