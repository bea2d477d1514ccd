"""Metrics of another tool: notes of a run beside its trail, and digests where no trail has one."""

import json

import numpy as np
import polars as pl
import pytest

import loader
from loader.errors import InvalidRuntime
from penstock.view.inspect.run_record import run_record
from penstock.view.inspect.shown_batch import show_batch
from penstock.view.inspect.step_record import step_record, step_values
from penstock.view.replays.metrics_file import read_metrics
from penstock.view.replays.replays import Replayers, Replays
from penstock.view.replays.training import Training
from tests.refusals import refusal
from tests.view.conftest import STEPS

ROWS = [
    {"step": 2, "loss": 0.5, "lr": None, "text": "a", "digest": str(2**64 - 1)},
    {"step": 0, "loss": float("nan"), "lr": 1.0, "text": "b", "digest": "00ff"},
    {"step": 2, "loss": None, "lr": 3.0, "text": "c", "digest": None},
    {"step": None, "loss": 9.0, "lr": 9.0, "text": "d", "digest": "1"},
]


def csv(path):
    pl.DataFrame(ROWS).write_csv(path)


def lines(path):
    path.write_text(
        "\n".join(json.dumps({k: v for k, v in row.items() if v is not None}) for row in ROWS) + "\n\n"
    )


def parquet(path):
    pl.DataFrame(ROWS).write_parquet(path)


@pytest.mark.parametrize(("name", "write"), [("m.csv", csv), ("m.jsonl", lines), ("m.parquet", parquet)])
def test_every_form_gives_the_same_numbers(tmp_path, name, write):
    write(tmp_path / name)
    found = read_metrics(tmp_path / name)
    assert found.notes == ("loss", "lr")
    assert found.frame["step"].to_list() == [0, 2]
    assert found.at(2) == {"loss": 0.5, "lr": 3.0}
    assert np.isnan(found.at(0)["loss"])
    assert found.at(1) == found.at(3) == {}
    assert found.has_digest(2, 2**64 - 1)
    assert not found.has_digest(0, 2**64 - 1)


@pytest.mark.parametrize("digest", [7, 2**63 + 5, 2**64 - 1, 0x1234567812345678])
@pytest.mark.parametrize("form", ["{0}", "{1}", "{0:016x}", "{0:#x}", " {0:016X} "])
def test_digest_is_read_in_every_form(tmp_path, digest, form):
    signed = digest - 2**64 if digest >= 2**63 else digest
    (tmp_path / "m.csv").write_text(f"step,digest\n4,{form.format(digest, signed)}\n")
    found = read_metrics(tmp_path / "m.csv")
    assert found.has_digest(4, digest)
    assert not found.has_digest(4, digest ^ 1)
    assert not found.has_digest(5, digest)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("m.csv", "epoch,loss\n1,2\n", "columns"),
        ("m.csv", "step,loss\n-1,2\n", "steps"),
        ("m.csv", "step,loss\n1.5,2\n", "steps"),
        ("m.csv", "step,loss\nnan,2\n", "columns"),
        ("m.csv", "step,loss\nfirst,2\n", "columns"),
        ("m.csv", "", "file"),
        ("m.csv", "step,loss\n", "columns"),
        ("m.csv", "step,loss\n,2\n", "columns"),
        ("m.jsonl", "", "columns"),
        ("m.jsonl", '{"step": null}', "steps"),
        ("m.jsonl", "[1]\n", "file"),
        ("m.jsonl", '{"step": 1', "file"),
        ("m.jsonl", "[" * 10**5, "file"),
        ("m.parquet", "no parquet", "file"),
        ("m.csv", "step,step\x1b\n1,2\n", "column names"),
        ("m.csv", "step,a\x1b,a\x07\n1,2,3\n", "column names"),
        ("m.txt", "step,loss\n1,2\n", "file"),
        (
            "m.csv",
            ",".join(["step", *map(str, range(101))]) + "\n" + ",".join(["1"] * 102) + "\n",
            "numeric columns",
        ),
    ],
)
def test_another_file_is_refused_by_name(tmp_path, name, text, what):
    (tmp_path / name).write_text(text)
    with refusal(InvalidRuntime, what=what, where=tmp_path / name):
        read_metrics(tmp_path / name)
    with refusal(InvalidRuntime, what="file", where=tmp_path / "none.csv"):
        read_metrics(tmp_path / "none.csv")


def test_names_of_columns_are_text_without_commands_to_a_terminal(tmp_path):
    found = metrics(tmp_path, "step,a\x1b[2J\u202eb,<b>\n1,2,3\n")
    assert not {"\x1b", "\u202e"} & set("".join(found.notes))
    assert list(found.at(1).values()) == [2.0, 3.0]


def metrics(tmp_path, text):
    (tmp_path / "m.csv").write_text(text)
    return read_metrics(tmp_path / "m.csv")


def test_metrics_stand_beside_the_notes_of_the_trail(trained, tmp_path):
    rows = "".join(f"{step},{step / 2},{7 if step < 30 else 7000}\n" for step in range(1, 31))
    with loader.Root(trained) as root:
        bare = run_record(training := Training(root, "one"))
        training.close()
        training = Training(root, "one", metrics=metrics(tmp_path, f"step,loss,grad\n{rows}"))
        record = run_record(training)
        notes = training.notes(3)
        training.close()
    assert notes == {"loss": pytest.approx(1.03), "loss (m.csv)": 1.5, "grad": 7.0}
    chart = record.chart
    assert chart["step"] == tuple(range(31))
    assert chart["loss"][:STEPS] == bare.chart["loss"]
    assert chart["loss (m.csv)"] == (None, *(step / 2 for step in range(1, 31)))
    assert (record.n_steps, record.last_step, record.differing) == (31, 30, bare.differing)
    assert record.starts == bare.starts


def test_plan_with_metrics_alone_has_a_chart_and_unusual_steps(root, plan, tmp_path):
    plan.save(root)
    rows = "".join(f"{step},{step % 3 if step != 20 else 900}\n" for step in range(40))
    training = Training(root, plan.hash, metrics=metrics(tmp_path, f"step,loss\n{rows}"))
    record = run_record(training)
    training.close()
    assert [one.step for one in record.spikes] == [20]
    assert record.chart["loss"][20] == 900.0
    assert (record.first_step, record.last_step, record.starts) == (0, 39, ())


def test_digest_of_the_file_proves_the_bytes_of_a_plan(root, plan, tmp_path):
    plan.save(root)
    with loader.Replay(plan, decode=False, framework="numpy") as replay:
        whole, first = replay.digest(2), replay.digest(3, 0, 2)
    text = f"step,digest\n2,{whole}\n3,{first:016x}\n4,{whole}\n"
    training = Training(root, plan.hash, metrics=metrics(tmp_path, text))
    replayers = Replayers(plain=Replays(root))

    def is_proved(step, rank, world_size):
        shown, trouble = step_values(training, replayers, step, rank, world_size, show_batch)
        return step_record(training, shown, None, trouble).proofs[1].proved

    cases = [(2, 0, 1), (2, 1, 2), (3, 0, 2), (3, 1, 2), (3, 0, 1), (4, 0, 1), (5, 0, 1)]
    assert [is_proved(*one) for one in cases] == [True, True, True, None, False, False, None]
    replayers.close()
    training.close()
