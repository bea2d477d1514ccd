"""The sections of docs/extending.md and examples/my_package: the page's files and tests run by pytest in a folder."""

import dataclasses
import importlib
import io
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader
from loader.errors import DecodeFailed, InvalidField
from tests.refusals import refusal
from tests.servers.processes import python

ROOT = Path(__file__).parent.parent
SECTIONS = re.findall(
    r"^## A (\w+)\n(.*?)(?=^## |\Z)", (ROOT / "docs" / "extending.md").read_text(), re.M | re.S
)
FILES = {
    section: files
    for section, text in SECTIONS
    if (files := dict(re.findall(r"^```\w+ (\w+\.\w+)\n(.*?)^```", text, re.M | re.S)))
}
"""Section -> name of a file -> its text, on the page or in examples/my_package."""
for _section, _name in (
    ("dataset", "portraits.py"),
    ("featurizer", "mean_colour.py"),
    ("model", "liking.py"),
    ("modality", "points.py"),
    ("store", "sqlite_store.py"),
):
    FILES[_section][_name] = (ROOT / "examples" / "my_package" / _name).read_text()

TESTS = {"featurizer": 9, "model": 10, "dataset": 2, "modality": 9, "store": 41}
"""Section -> tests that its reader runs."""


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """follow(section) -> the reader's folder: tests, and `my_package` with the other files, installed there."""

    def write(section: str) -> Path:
        package = tmp_path / "my_package"
        package.mkdir()
        for name, code in FILES[section].items():
            if name == "pyproject.toml":
                install(tmp_path, code)
            else:
                (tmp_path if name.startswith("test_") else package).joinpath(name).write_text(code)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(ROOT))))
        return tmp_path

    return write


def example(section: str, file: str) -> dict[str, Any]:
    """Return the names that the example's module defines."""
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(FILES[section][file], f"{section}: {file}", "exec"), names)
    return names


def install(folder: Path, project: str) -> None:
    """What pip writes about a package with these entry points."""
    about = folder / "my_package-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n")
    groups = tomllib.loads(project)["project"]["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in groups.items()]
    (about / "entry_points.txt").write_text("\n".join(lines))


def run_tests(folder: Path, *options: str) -> tuple[dict[str, int], str]:
    """Outcome -> number of tests, and what pytest prints."""
    done = python("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *options, folder, cwd=folder)
    said = re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout.splitlines()[-1])
    assert said, done.stdout + done.stderr
    return {outcome: int(n) for n, outcome in said}, done.stdout


@pytest.mark.parametrize("section", TESTS)
def test_tests_of_a_section_pass(section: str, follow) -> None:
    outcomes, said = run_tests(follow(section))
    assert outcomes == {"passed": TESTS[section]}, said


BROKEN = {  # section, file -> test that finds it -> what the file says, what it says then
    ("store", "sqlite_store.py"): {
        "test_list_is_in_key_order": ("ORDER BY key", "ORDER BY etag"),
        "test_put_if_absent": ("OR IGNORE", "OR REPLACE"),
    },
    ("modality", "points.py"): {
        "test_value_outlives_its_bytes": (".copy()", ""),
        "test_garbage_is_refused_with_a_reason": ("raise DecodeFailed(", "raise KeyError("),
    },
    ("featurizer", "mean_colour.py"): {
        "test_spawned_process_makes_the_same": (
            *("mean(axis=(0, 1))", "mean(axis=(0, 1)) + __import__('os').getpid()"),
        ),
        "test_rubbish_is_rejected": (
            "import kind_field, photo\n",
            "import kind_field\nfrom loader.modalities import find_decoder\n\n"
            "def photo(sample, field):\n    return find_decoder(field)(sample[field], None)\n",
        ),
    },
    ("model", "liking.py"): {"test_same_bits_in_any_batch": ("sigmoid()", "softmax(0)")},
}


@pytest.mark.parametrize(
    ("section", "file"),
    [
        pytest.param(*at, marks=() if at[0] in ("store", "featurizer") else pytest.mark.nightly)
        for at in BROKEN
    ],
)
def test_suite_finds_what_is_wrong(section: str, file: str, follow) -> None:
    """Each fault has a test of its own that finds it: one run of a section's tests shows all."""
    path, broken = follow(section) / "my_package" / file, BROKEN[section, file]
    for right, wrong in broken.values():
        assert path.read_text().count(right) == 1
        path.write_text(path.read_text().replace(right, wrong))
    outcomes, said = run_tests(path.parents[1], "-k", " or ".join(broken))
    assert outcomes.keys() == {"failed"}, said
    assert all(test in said for test in broken)


TRAINING = """
import numpy as np
import loader
from my_package.points import decode

if __name__ == "__main__":
    with loader.Root("sqlite://objects.db") as root, root.write("clouds") as writer:
        for number in range(8):
            writer.add(f"{number}", {"scan.xyz": np.full((2, 3), number, "<f4").tobytes()})
    plan = loader.plan({"clouds": loader.Root("sqlite://objects.db").open("clouds@1")}, seed=7, global_batch=4)
    how = {"framework": "numpy", "workers": 1, "executor": "processes", "decode": {"scan.xyz": decode}}
    with loader.Loader(plan, 0, 1, **how) as batches:
        print(sorted(float(cloud[0, 0]) for step in (0, 1) for cloud in batches.batch_at(step)["scan.xyz"]))
"""


def test_training_reads_a_package_s_modality_from_a_package_s_store(follow) -> None:
    folder = follow("store")
    (folder / "my_package" / "points.py").write_text(FILES["modality"]["points.py"])
    (folder / "train.py").write_text(TRAINING)
    done = python("train.py", cwd=folder)
    assert done.stdout == f"{[float(n) for n in range(8)]}\n", done.stderr


def test_every_section_is_followed() -> None:
    assert FILES.keys() == TESTS.keys()


def test_scheme_whose_package_does_not_import_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, '[project.entry-points."penstock.stores"]\nlost = "no_such_package.store:open_lost"')
    monkeypatch.syspath_prepend(str(tmp_path))
    opener = "no_such_package.store:open_lost"
    with refusal(loader.errors.MissingDependency, what="lost://", given=opener):
        loader.storage.open_store("lost://place")


def test_dataset_is_a_whole_set_of_assets() -> None:
    from dagster_project.definitions import build_defs

    spec = example("dataset", "portraits.py")["SPEC"]
    keys = {key.to_user_string() for key in build_defs(datasets=[spec]).resolve_all_asset_keys()}
    assert keys == {
        f"portraits/{stage}"
        for stage in (
            "raw_objects",
            "media",
            "units",
            "feature_picture",
            "feature_phash",
            "samples",
            "version",
            "refresh",
            "quarantine",
            "reconciliation",
            "training_run",
        )
    }


def test_dataset_s_own_check_runs() -> None:
    import polars as pl

    check = example("dataset", "portraits.py")["known_licences"]
    table = pl.DataFrame({"licence": ["CC0", "CC-BY-4.0"]})
    assert check(table, None).passed
    assert not check(pl.DataFrame({"licence": ["CC0", "unknown"]}), None).passed


def test_modality_reads_what_it_writes() -> None:
    module = example("modality", "points.py")
    points = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(module["decode"](module["encode"]("a.xyz", points)), points)
    with refusal(DecodeFailed, what="xyz", given=13):
        module["decode"](b"x" * 13)
    with refusal(InvalidField, what="a.xyz", given=(3,), accepted="[points, 3]"):
        module["encode"]("a.xyz", np.zeros(3))


def test_model_is_one_file_and_one_feature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    from assets.featurizers.models import ModelFeaturizer
    from assets.spec import DatasetSpec, Feature

    (tmp_path / "shown_liking.py").write_text(FILES["model"]["liking.py"])
    monkeypatch.syspath_prepend(str(tmp_path))
    weights = tmp_path / "liking.safetensors"
    importlib.import_module("shown_liking").save(weights, seed=1)
    feature = Feature(name="shown_liking:Liking", parameters={"weights": str(weights), "device": "cpu"})
    (kept,) = DatasetSpec(name="portraits", features=(feature,)).features
    assert kept.stage == "feature_liking"
    liking = kept.build()
    assert isinstance(liking, ModelFeaturizer)
    photos = []
    for seed in range(3):
        sink = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 255, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(sink, "JPEG")
        photos.append({"jpg": sink.getvalue()})
    alone = [liking("image", photo).columns["liking_ratio"] for photo in photos]
    assert len(set(alone)) == 3
    for batch_size in (1, 2):
        sized = dataclasses.replace(liking, batch_size=batch_size)
        together = sized.features("image", photos)
        backwards = sized.features("image", photos[::-1])[::-1]
        assert together == backwards
        if batch_size == 1:
            assert [made.columns["liking_ratio"] for made in together] == alone  # type: ignore[union-attr]
