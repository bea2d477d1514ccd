"""`PENSTOCK_DATASETS`: specs of a folder or a module outside of this repository, and what is said of broken ones."""

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import dagster as dg
import pytest

from assets.featurizers import make
from dagster_project.definitions import build_defs
from dagster_project.own_datasets import BROKEN, VARIABLE, load_datasets
from penstock.compute.pool import LocalCompute
from tests.servers.patience import PATIENCE_S

HEAD = "from assets.spec import DatasetSpec, Feature\n\n"
HEALTHY = f'{HEAD}SPEC = DatasetSpec(name="{{0}}")\n'
BAD_FILES = {
    "typo.py": ("def broken(:\n", 1, "SyntaxError"),
    "raises.py": ("\nnumber = 1\nnumber / 0\n", 3, "ZeroDivisionError: division by zero"),
    "impossible.py": (
        HEAD + '# half is missing\nSPEC = DatasetSpec(name="b", splits={"train": 0.5})\n',
        4,
        "splits=",
    ),
    "forgotten.py": ("number = 1\n", 1, "the file defines no SPEC; accepted: SPEC = DatasetSpec(...)"),
    "a_dict.py": ("\nSPEC = {}\n", 2, "SPEC is a dict; accepted: SPEC = DatasetSpec(...)"),
    "leaves.py": ("import sys\n\nsys.exit(3)\n", 3, "SystemExit: 3"),
    "random.py": (HEALTHY.format("c"), 3, "the name 'random' belongs to"),
    "the_demo.py": (HEALTHY.format("demo"), 3, "the name 'demo' belongs to a dataset of this repository"),
    "uses_a_helper.py": ("from _wrong_helper import x\n", 0, "KeyError: 'x'"),
}
"""File -> its text, the line that is named, part of the error. A helper's line is asked for by itself."""
SCHEDULED = (
    "from assets.spec import Upkeep\n"
    + HEAD
    + 'SPEC = DatasetSpec(name="d", upkeep=Upkeep(release="every day"))\n'
)
Lab = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """lab(files) -> a folder with these files, which PENSTOCK_DATASETS names; what it imports is forgotten."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def make_folder(files: Mapping[str, str]) -> Path:
        folder = tmp_path / "sets"
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        monkeypatch.setenv(VARIABLE, str(folder))
        return folder

    yield make_folder
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def dataset_names(made: dg.Definitions) -> set[str]:
    return {key.path[0] for key in made.resolve_all_asset_keys()}


def test_datasets_of_a_folder_stand_beside_the_demo(lab: Lab) -> None:
    lab({"lab_birds.py": HEALTHY.format("birds"), "lab_fish.py": HEALTHY.format("fish")})
    made = build_defs()
    assert dataset_names(made) == {"demo", "birds", "fish"}
    assert {"birds_ingest", "fish_release"} < {job.name for job in made.resolve_all_job_defs()}
    assert not made.metadata


def test_datasets_are_those_of_this_repository_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "", " "):
        monkeypatch.delenv(VARIABLE, raising=False) if value is None else monkeypatch.setenv(VARIABLE, value)
        assert dataset_names(build_defs()) == {"demo"}


def test_broken_datasets_are_named_by_file_and_line_and_stop_no_other(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    files = {name: text for name, (text, _, _) in BAD_FILES.items()}
    folder = lab({**files, "_wrong_helper.py": "\n{}['x']\n", "lab_birds.py": HEALTHY.format("birds")})
    (folder / "weekly.py").write_text(SCHEDULED)
    with caplog.at_level(logging.ERROR):
        made = build_defs()
    assert dataset_names(made) == {"demo", "birds", BROKEN}
    expected = {name: (f"{folder / name}:{line}", error) for name, (_, line, error) in BAD_FILES.items()}
    expected["uses_a_helper.py"] = (f"{folder / '_wrong_helper.py'}:2", "KeyError: 'x'")
    expected["weekly.py"] = (f"{folder / 'weekly.py'}:4", "invalid cron schedule 'every day'")
    (listed,) = (made.metadata or {}).values()
    shown = {spec.key.path[1]: spec for spec in made.resolve_all_asset_specs() if spec.key.path[0] == BROKEN}
    assert shown.keys() == {name.removesuffix(".py") for name in expected}
    for name, (where, error) in expected.items():
        spec = shown[name.removesuffix(".py")]
        assert spec.metadata["file"].value == where
        assert where in (spec.description or "")
        assert error in (spec.description or "")
        assert f"- `{where}`: " in str(listed.value)
        assert any(where in line and error in line for line in caplog.messages), name


def test_second_dataset_of_one_name_is_named(lab: Lab) -> None:
    """Names of jobs and sensors have letters, digits and `_` only: `my.set` and `my_set` clash."""
    folder = lab({"lab_one.py": HEALTHY.format("my.set"), "lab_two.py": HEALTHY.format("my_set")})
    loaded, (broken,) = load_datasets()
    assert [one.spec.name for one in loaded] == ["my.set"]
    assert broken.where == f"{folder / 'lab_two.py'}:3"
    assert f"the name 'my_set' belongs to {folder / 'lab_one.py'}" in broken.error


def test_helpers_and_tests_define_no_dataset(lab: Lab) -> None:
    failing = "raise RuntimeError\n"
    lab(
        {
            "lab_birds.py": HEALTHY.format("birds"),
            "_notes.py": failing,
            "test_birds.py": failing,
            "conftest.py": failing,
        }
    )
    loaded, broken = load_datasets()
    assert ([one.spec.name for one in loaded], broken) == (["birds"], [])


def test_module_names_its_dataset_and_a_package_those_of_its_files(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = lab(
        {
            "lab_package/__init__.py": "",
            "lab_package/fish.py": "from ._common import NAME\n" + HEAD + "SPEC = DatasetSpec(name=NAME)\n",
            "lab_package/_common.py": 'NAME = "fish"\n',
            "lab_package/torn.py": "\n1 / 0\n",
            "lab_module.py": HEALTHY.format("birds"),
        }
    )
    sys.path.append(str(folder))
    monkeypatch.setenv(VARIABLE, "lab_module")
    loaded, broken = load_datasets()
    assert ([one.spec.name for one in loaded], broken) == (["birds"], [])
    monkeypatch.setenv(VARIABLE, "lab_package")
    loaded, (torn,) = load_datasets()
    assert [one.spec.name for one in loaded] == ["fish"]
    assert torn.where == f"{folder / 'lab_package' / 'torn.py'}:2"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("/no/such/folder", "there is no folder /no/such/folder"),
        ("no_such_module", "there is no module 'no_such_module'"),
        ("no_such_package.sets", "No module named 'no_such_package'"),
        ("{empty}", "the folder has no Python file with a SPEC"),
    ],
)
def test_variable_that_names_nothing_is_shown(
    value: str, reason: str, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv(VARIABLE, value.format(empty=tmp_path / "empty"))
    made = build_defs()
    assert dataset_names(made) == {"demo", BROKEN}
    (text,) = (str(one.value) for one in (made.metadata or {}).values())
    assert reason in text
    assert f"{VARIABLE} accepts a folder of Python files, or the name of an importable module" in text


FEATURIZER = """
from typing import ClassVar
from assets.featurizers import Features, Featurizer

class Length(Featurizer):
    name: ClassVar[str] = "length"
    output_fields: ClassVar[tuple[str, ...]] = ()
    output_columns: ClassVar[tuple[str, ...]] = ("length_bytes",)

    def __call__(self, kind, sample):
        return Features(fields={}, columns={"length_bytes": len(sample["txt"])})

def length_of(text):
    return Length()("text", {"txt": text}).columns["length_bytes"]
"""


def test_worker_processes_import_helpers_of_the_folder(lab: Lab) -> None:
    spec = 'SPEC = DatasetSpec(name="birds", features=(Feature(name="_lab_length:Length"),))\n'
    lab({"_lab_length.py": FEATURIZER, "lab_birds.py": HEAD + spec})
    (birds,), broken = load_datasets()
    assert not broken
    assert [feature.stage for feature in birds.spec.features] == ["feature_length"]
    import _lab_length  # type: ignore[import-not-found]

    assert isinstance(make("_lab_length:Length"), _lab_length.Length)
    pool = LocalCompute(workers=1)
    try:
        (outcome,) = pool.map(_lab_length.length_of, [b"four"], timeout_s=PATIENCE_S)
    finally:
        pool.close()
    assert outcome.value == 4
