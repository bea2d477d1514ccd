"""Which tests run in `make ci`, and which only in `make nightly`: see CONTRIBUTING.md."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
LONG_S = 15
"""Seconds above which a test runs in nightly only, unless it is named below."""
# fmt: off
LONG_IN_CI = {
    "tests/compute/ray/test_ray_jobs.py::test_outcomes_are_the_same_bytes_as_here_and_no_secret_is_anywhere":
        "Ray",
    "tests/dagster_project/test_outages.py::test_kills_in_the_middle_lose_and_double_nothing":
        "a real daemon, its sensors, outages and kills",
    "tests/dagster_project/test_pages.py::test_catalog_names_every_asset_with_what_it_is":
        "Dagster's pages",
    "tests/penstock/train/test_local.py::test_run_is_preempted_stopped_and_resumed":
        "a run on one machine",
    "tests/rollouts/test_arithmetic.py::test_killed_run_and_its_repetitions_have_the_same_steps":
        "a GRPO run under kills",
    "tests/test_outage_walk.py::test_story_as_it_is_written":
        "the walkthrough",
    "tests/test_readme.py::test_tour_runs_as_it_stands_and_twice":
        "the tour",
    "tests/trainings/test_trainings.py::test_training_goes_through_each_fault_with_every_step_as_undisturbed":
        "trainings under faults",
}
"""At most eight, each with the promise that it alone holds in CI."""
OF_MANY_CASES = {
    "tests/penstock/formats/test_registry.py::test_bucket_gives_what_the_folder_gives",
    "tests/run/device/test_device_batches.py::test_batches_on_a_device_are_those_of_the_host",
    "tests/run/device/test_device_batches.py::test_memory_is_used_again_only_after_its_copy",
    "tests/run/test_counts.py::test_counts_of_a_batch_stay_below_their_bounds",
    "tests/run/workers/test_lives.py::test_nothing_is_left",
    "tests/storage/cloud/s3_direct/test_range_requests.py::test_one_of_many_under_a_fault",
    "tests/storage/test_conformance.py::TestStores::test_any_sequence_of_verbs_behaves_as_a_dictionary",
    "tests/view/test_proofs.py::test_each_run_of_a_plan_is_proved_with_the_substitutes_that_it_had",
    "tests/view/test_settings_proved.py::test_every_setting_is_proved_to_its_tensors",
}
"""Tests of many cases, each of a few seconds."""
# fmt: on
MARKERS = {
    "axe": "server",
    "azurite": "server",
    "ceph": "ceph",
    "chromium": "server",
    "kubernetes_api": "k8s",
    "postgres": "server",
    "ray_nodes": "ray",
    "slurm": "slurm",
}
"""Module of tests/servers -> marker of the tests that begin its server."""
CI_S = 1955
"""Bound of the seconds of slow.txt that CI runs. It falls."""


def seconds() -> dict[str, float]:
    """Return slow test -> seconds of all its cases."""
    lines = (ROOT / "tests/slow.txt").read_text().splitlines()
    return {test: float(taken) for taken, test in (line.split(" ", 1) for line in lines)}


def nightly() -> set[str]:
    """Return the tests that only nightly runs."""
    return set((ROOT / "tests/nightly.txt").read_text().splitlines())


@cache
def function_ids(file: str) -> set[str]:
    """Return the node ids of a file's test functions; those of classes may be inherited, and are left out."""
    if not (ROOT / file).exists():
        return set()
    tree = ast.parse((ROOT / file).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {f"{file}::{node.name}" for node in functions if node.name.startswith("test")}


def test_named_tests_exist() -> None:
    lists = nightly() | LONG_IN_CI.keys() | OF_MANY_CASES | seconds().keys()
    named = {test for test in lists if test.count("::") == 1}
    gone = [test for test in sorted(named) if test not in function_ids(test.partition("::")[0])]
    assert gone == [], "name functions that are there, without [cases]"


def test_long_tests_run_in_nightly() -> None:
    long = {test for test, taken in seconds().items() if taken >= LONG_S}
    assert len(LONG_IN_CI) <= 8
    assert long - nightly() - LONG_IN_CI.keys() - OF_MANY_CASES == set(), (
        "make it faster, or name it in tests/nightly.txt"
    )


def test_ci_has_a_bound_of_slow_tests() -> None:
    assert sum(taken for test, taken in seconds().items() if test not in nightly()) < CI_S


def test_tests_of_servers_carry_their_marker() -> None:
    bare = [
        f"{file.relative_to(ROOT)}: pytest.mark.{marker}"
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        for server, marker in MARKERS.items()
        if f"tests.servers.{server} " in (text := file.read_text()) and f"mark.{marker}" not in text
    ]
    assert bare == []


def test_every_guarantee_has_a_test_in_ci() -> None:
    rows = re.findall(r"^\| (.+?) \| (`tests/.+) \|$", (ROOT / "docs/guarantees.md").read_text(), flags=re.M)
    assert len(rows) > 80
    bare = [
        promise
        for promise, tests in rows
        if not any(map(_has_ci_test, re.findall(r"`(tests/[^`]+)`", tests)))
    ]
    assert bare == []


def _has_ci_test(place: str) -> bool:
    path, _, function = place.partition("::")
    files = [str(file.relative_to(ROOT)) for file in (ROOT / path).rglob("test_*.py")] or [path]
    tests = {test for file in files for test in function_ids(file)} - nightly()
    return f"{path}::{function}" in tests if function else bool(tests)
