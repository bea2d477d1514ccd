"""The code of docs/throughput.md does what the page says."""

import re
import threading
import urllib.request
from pathlib import Path

import pytest

import loader
from loader.run.metrics import COUNTERS, LIMITS, STAGES

PAGE = (Path(__file__).parents[3] / "docs" / "throughput.md").read_text()
STATUS, SERVE, TEXTFILE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def batches(versions):
    plan = loader.plan({"p": versions["photos"].select("cls")}, seed=1, global_batch=10)
    with loader.Loader(plan, 0, 1, workers=2, steps=5, framework="numpy") as batches:
        yield batches


@pytest.fixture
def next_step(families):
    """next_step(text) -> what the text says of the next step."""
    return lambda text: families(text)["penstock_step"].samples[0].value


def test_loop(batches):
    trained = []
    exec(STATUS, {"batches": batches, "train": trained.append})
    assert [batch.step for batch in trained] == [0, 1, 2, 3, 4]


def test_serving_while_batches_are_taken(batches, next_step):
    known = {"batches": batches, "port": 0}
    before = set(threading.enumerate())
    exec(SERVE, known)
    server = known["server"]
    (thread,) = set(threading.enumerate()) - before
    try:
        for expected in range(6):
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert next_step(answer.read().decode()) == expected
            next(batches, None)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_textfile(batches, next_step, tmp_path):
    next(batches)
    exec(TEXTFILE, {"batches": batches, "folder": tmp_path, "rank": 0})
    (written,) = tmp_path.iterdir()
    assert written.name == "penstock-0.prom"
    assert next_step(written.read_text(encoding="utf-8")) == 1


def test_every_name_is_explained():
    for name in (*STAGES.values(), *COUNTERS, *LIMITS.values()):
        assert f"`{name}`" in PAGE, name
