"""Runs over datasets in the commands: what the plan shows by itself, and with the dataset that --recipe makes."""

import json

import numpy as np
import pytest

import loader
from penstock.cli import main
from tests.view import item_recipes
from tests.view.conftest import write_photos

STEPS = 3
BATCH = 8
RECIPE = "tests.view.item_recipes"


def train(root, plan, run, **options):
    """Return the digests of a run of one rank that kept a trail."""
    plan.save(root)
    trail = loader.Trail(root, run, tensors_every=1, recipe=options.pop("recipe", ""))
    with loader.Loader(plan, 0, 1, steps=STEPS, trail=trail, framework="numpy", **options) as batches:
        return [batch.digest for batch in batches]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A root with the runs `items`, `mixed` with a version, and `turned` by a transform."""
    folder = tmp_path_factory.mktemp("items") / "root"
    with loader.Root(folder) as root:
        plan = loader.plan({"photos": item_recipes.view()}, seed=7, global_batch=BATCH)
        train(root, plan, "items")
        train(root, plan, "turned", transform=item_recipes.mirrored)
        stored = write_photos(root, "stored").select("jpg", "cls")
        sources = {"photos": item_recipes.view(), "stored": stored}
        train(root, loader.plan(sources, seed=7, global_batch=BATCH), "mixed")
    return folder


@pytest.fixture
def command(folder, capfd):
    """command(words): (exit status, JSON or text, text on stderr)."""

    def run(*words, as_json=False):
        arguments = [*map(str, words), "--root", str(folder)]
        if as_json:
            arguments.append("--json")
        code = main(arguments)
        shown = capfd.readouterr()
        out = json.loads(shown.out) if as_json and shown.out else shown.out
        return code, out, shown.err

    return run


def plan_of(folder, run):
    with loader.Root(folder) as root:
        return loader.plan_of(root, run, 0)


def test_explain_without_the_dataset_shows_what_the_plan_has(folder, command):
    ordinals = plan_of(folder, "items").slots(1).ordinal.tolist()
    code, body, _ = command("explain", "items@1", as_json=True)
    assert code == 0
    assert [one["ordinal"] for one in body] == ordinals
    assert [one["key"] for one in body] == list(map(str, ordinals))
    dataset = {
        "name": "photos",
        "length": item_recipes.N,
        "fingerprint": item_recipes.FINGERPRINT,
        "is_open": False,
    }
    assert all(one["dataset"] == dataset for one in body)
    assert not any("crc" in json.dumps(one) for one in body)
    code, text, _ = command("explain", "items@1", "--slot", "2")
    assert code == 0
    assert f"'{ordinals[2]}' = ordinal {ordinals[2]} of {item_recipes.N} (by its ordinal" in text
    assert "fingerprint photos-v1" in text
    assert "raw object and Dagster run are not known" in text


def test_explain_with_the_dataset_names_its_items(folder, command):
    ordinals = plan_of(folder, "items").slots(1).ordinal.tolist()
    code, body, _ = command("explain", "items@1", "--recipe", f"{RECIPE}:photos", as_json=True)
    assert code == 0
    assert [one["key"] for one in body] == [item_recipes.key_of(ordinal) for ordinal in ordinals]
    assert all(one["dataset"]["is_open"] for one in body)


def test_explain_of_a_mixture_traces_the_stored_half(folder, command):
    plan = plan_of(folder, "mixed")
    with loader.Root(folder) as root:
        alone = root.open("stored@1")
    code, body, _ = command("explain", "mixed@1", as_json=True)
    assert code == 0
    stored = [one for one in body if one["source"] == "stored"]
    assert 0 < len(stored) < len(body) == BATCH
    assert {one["source"] for one in body} == {"photos", "stored"}
    for one in stored:
        assert one["version_id"] == alone.id
        assert one["fields"]["jpg"]["crc32c"]
        assert one["provenance"]["raw_uri"].startswith("s3://raw/")
        assert "dataset" not in one
    assert [one["ordinal"] for one in body] == plan.slots(1).ordinal.tolist()


def test_seen_finds_an_item_by_number_and_by_name(folder, command):
    ordinal = int(plan_of(folder, "items").slots(1).ordinal[4])
    code, by_number, _ = command("seen", "items", "photos", ordinal, as_json=True)
    assert code == 0
    assert {"step": 1, "slot": 4, "epoch": 0, "attempt": 0} in by_number["seen"]
    assert "names of a dataset's items need --recipe" in by_number["note"]
    key = item_recipes.key_of(ordinal)
    code, by_name, _ = command("seen", "items", "photos", key, "--recipe", f"{RECIPE}:photos", as_json=True)
    assert code == 0
    assert by_name["seen"] == by_number["seen"]
    assert "note" not in by_name
    code, _, errors = command("seen", "items", "photos", key)
    assert code != 0
    assert "the plan has only the items' numbers; for their names pass --recipe" in errors


def test_seen_in_all_runs_goes_by_number(folder, command):
    ordinal = int(plan_of(folder, "items").slots(1).ordinal[4])
    code, body, _ = command("seen", "--runs", "photos", ordinal, as_json=True)
    assert code == 0
    assert [1 in run["steps"] for run in body if run["run"] in ("items", "turned")] == [True, True]
    code, _, errors = command("seen", "--runs", "photos", ordinal, "--recipe", f"{RECIPE}:photos")
    assert code != 0
    assert "leave out --recipe" in errors


@pytest.mark.parametrize("function", ["photos", "named", "as_items", "opened_by_function"])
def test_recipe_may_return_the_dataset_in_each_form(folder, command, function):
    code, body, _ = command(
        "explain", "items@0", "--slot", "0", "--recipe", f"{RECIPE}:{function}", as_json=True
    )
    assert code == 0
    assert body[0]["key"].startswith("photo-")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("other_fingerprint", ["PlanMismatch", "'photos-v2'", "the plan 40 and 'photos-v1'"]),
        ("other_length", ["PlanMismatch", "has 39 items", "the plan 40"]),
        ("other_name", ["PlanMismatch", "is named 'pictures'"]),
        ("other_source", ["PlanMismatch", "no dataset for source 'photos'", "it has 'pictures'"]),
        ("no_dataset", ["PlanMismatch", "no dataset for source 'photos'", "it has none"]),
        ("failing_keys", ["LookupError: no name", "while naming item", "item_recipes.py:"]),
        ("unopened", ["FileNotFoundError: photos.h5", "while opening the dataset 'photos'", "in _unopened"]),
        ("absent", ["there is no such function"]),
    ],
)
def test_wrong_recipe_is_named_with_what_differs(folder, command, function, says):
    code, _, errors = command("explain", "items@1", "--recipe", f"{RECIPE}:{function}")
    assert code != 0
    for text in says:
        assert text in errors
    if "PlanMismatch" not in says:
        assert f"--recipe {RECIPE}:{function}" in errors


def test_module_that_cannot_be_imported_is_named_with_its_folder(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import no_such_library\n")
    for recipe in ("train:photos", f"{tmp_path}/train.py:photos"):
        code, _, errors = command("explain", "items@1", "--recipe", recipe)
        assert code != 0
        assert f"--recipe {recipe}: the module" in errors
        assert f"from the folder {tmp_path}" in errors
        assert "No module named 'no_such_library'" in errors


def test_recipe_that_prints_leaves_json_alone(command):
    code, body, errors = command("explain", "items@1", "--recipe", f"{RECIPE}:photos", as_json=True)
    assert code == 0
    assert len(body) == BATCH
    assert "loading photos" in errors


@pytest.mark.parametrize("length", [0, -5, 2**70, True, "40", None])
def test_stored_length_that_no_dataset_has_is_refused(folder, length):
    spec = {"kind": "items", "name": "photos", "length": length, "fingerprint": ""}
    with pytest.raises(loader.errors.InvalidPlan, match="a length from 1 to"):
        loader.api.items.items_again(spec, {})


def test_stored_texts_stay_in_their_line():
    spec = {"kind": "items", "name": "a\nplan p-1\x1b[2J", "length": 4, "fingerprint": "f\n" * 10_000}
    described = loader.api.items.items_again(spec, {}).describe()
    assert described.isprintable()
    assert len(described) < 1000
    assert np.char.count(described, "\\n") > 1
