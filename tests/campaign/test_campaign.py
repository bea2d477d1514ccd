"""A few worlds of the campaign, and bugs that it must find; `make campaign` runs it at length."""

import ast
import importlib
import secrets
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.servers.processes import python

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # two packages beside this file; `prove.py` runs them without pytest
try:
    campaign = importlib.import_module("simulation.campaign")
    faults = importlib.import_module("simulation.faults")
    planted = importlib.import_module("simulation.planted")
    prove = importlib.import_module("simulation.prove")
finally:
    sys.path.remove(str(HERE))


def test_nothing_is_lost_half_visible_or_left():
    done = prove.run(range(8, 18))
    assert done["acknowledged"] > 80
    assert all(done[f"faults: {kind}"] for kind in faults.KINDS), done


def test_world_without_faults():
    came = campaign.run_world(1, ())
    assert came.violation == ""
    assert came.world.faults.seen == []


def test_world_is_the_same_each_time():
    first, second = (campaign.run_world(4) for _ in range(2))
    assert first.world.trace == second.world.trace
    assert first.world.faults.seen == second.world.faults.seen
    assert first.world.bucket.bytes() == second.world.bucket.bytes()


def test_world_ignores_the_other_threads_of_its_process():
    done = threading.Event()

    def read_clocks_and_draw():
        while not done.is_set():
            time.time()
            time.monotonic()
            secrets.token_hex()

    thread = threading.Thread(target=read_clocks_and_draw)
    thread.start()
    try:
        first, second = (campaign.run_world(4).world.bucket.bytes() for _ in range(2))
    finally:
        done.set()
        thread.join()
    assert first == second


def test_it_runs_as_a_script_from_another_folder() -> None:
    """As `make campaign` runs it: tests/penstock must not hide the package of that name."""
    done = python(HERE, "--worlds", "1", "--first", "8", cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(": none bad\n")


def test_world_that_goes_wrong_is_told_with_few_faults(capsys):
    with planted.BUGS["no_grace"]():
        came = next(filter(lambda came: came.violation, map(campaign.run_world, range(10))))
        least = campaign.smallest(came)
    assert least.violation
    assert len(least.world.faults.seen) <= len(came.world.faults.seen)
    assert "look" in least.story()


@pytest.mark.mutants
@pytest.mark.parametrize("name", planted.BUGS)
def test_planted_bug_is_found(name):
    assert planted.first_detection(name) is not None


def test_judge_shares_nothing_with_what_it_judges():
    for path in (HERE / "judge").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            packages = {name.partition(".")[0] for name in names}
            assert packages.isdisjoint({"loader", "penstock", "assets", "resources", "simulation"}), path
