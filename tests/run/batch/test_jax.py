"""JAX in a process of its own: once it has started its threads, it objects to every fork of the process it is in."""

import re
import sys
from pathlib import Path

import pytest

import loader
from loader.errors import MissingDependency
from tests.servers.processes import python


@pytest.mark.server
def test_checks_of_jax_hold():
    checks = Path(__file__).parent.parent / "jax_checks.py"
    done = python("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", checks, cwd=checks.parents[2])
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^(\d+) passed", done.stdout, flags=re.M)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= checks.read_text().count("def test_")


def test_without_jax_the_error_says_what_to_install(versions, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    plan = loader.plan({"photos": versions["photos"].select("cls")}, seed=3, global_batch=7)
    with (
        loader.Loader(plan, 0, 1, framework="jax", workers=0) as batches,
        pytest.raises(MissingDependency, match=r"pip install 'penstock-data\[jax\]'"),
    ):
        next(batches)
