"""Runs over datasets in the commands: what the plan shows by itself, and with the dataset that --recipe makes."""

import contextlib
import json
import sys

import numpy as np
import pytest

import loader
from loader.api.items import items_again
from loader.errors import InvalidPlan, InvalidRuntime, PlanMismatch, TransformFailed
from penstock.cli import main
from penstock.view.replays.recipe_function import load_recipe
from penstock.view.replays.replayed_values import Setting
from penstock.view.replays.replays import Replays
from tests.refusals import refusal
from tests.view import item_recipes
from tests.view.conftest import write_photos
from tests.view.test_web import Served

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


@pytest.fixture
def explained(folder):
    """explained(function): keys of step 1 of the run `items`, by a recipe that runs in this process."""

    def explain(function):
        recipe = f"{RECIPE}:{function}"
        setting = Setting(plan=plan_of(folder, "items").hash)
        with loader.Root(folder) as root:
            replays = Replays(root, load_recipe(recipe), title=f"--recipe {recipe}")
            with contextlib.closing(replays):
                return replays.inspect(setting, keys_of_step_1)

    return explain


def keys_of_step_1(replay):
    return [one.address.key for one in loader.explain(replay.plan, 1)]


@pytest.mark.parametrize("function", ["photos", "view_by_name", "as_items", "photos_function"])
def test_recipe_may_return_the_dataset_in_each_form(folder, explained, function):
    ordinals = plan_of(folder, "items").slots(1).ordinal.tolist()
    assert explained(function) == [item_recipes.key_of(ordinal) for ordinal in ordinals]


@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        ("other_fingerprint", PlanMismatch, ["'photos-v2'", "the plan 40 and 'photos-v1'"]),
        ("other_length", PlanMismatch, ["has 39 items", "the plan 40"]),
        ("other_name", PlanMismatch, ["is named 'pictures'"]),
        ("other_source", PlanMismatch, ["returns no dataset for source 'photos'", "it has 'pictures'"]),
        ("no_dataset", PlanMismatch, ["returns no dataset for source 'photos'", "it has none"]),
        ("number", InvalidPlan, [f"--recipe {RECIPE}:number, dataset 'photos': ", "no __getitem__"]),
        ("absent", InvalidRuntime, ["there is no such function"]),
    ],
)
def test_wrong_recipe_is_named_with_what_differs(explained, function, error, says):
    with pytest.raises(error) as raised:
        explained(function)
    assert all(text in str(raised.value) for text in says)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("failing_keys", ["LookupError: no name", "while naming item", "item_recipes.py:"]),
        (
            "missing_items",
            ["FileNotFoundError: photos.h5", "while opening the dataset 'photos'", "in _raise_missing"],
        ),
    ],
)
def test_error_of_the_users_code_is_named_with_its_line(command, function, says):
    code, _, errors = command("explain", "items@1", "--recipe", f"{RECIPE}:{function}")
    assert code != 0
    assert f"--recipe {RECIPE}:{function}" in errors
    assert all(text in errors for text in says)


def test_module_that_cannot_be_imported_is_named_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    (tmp_path / "train.py").write_text("import no_such_library\n")
    for recipe in ("train:photos", f"{tmp_path}/train.py:photos"):
        module = recipe.removesuffix(":photos")
        with refusal(TransformFailed, what="module", where=tmp_path, given=module) as raised:
            load_recipe(recipe)
        assert isinstance(raised.value.__cause__, ModuleNotFoundError)
        assert raised.value.__cause__.name == "no_such_library"


def test_recipe_that_prints_leaves_json_alone(command):
    code, body, errors = command("explain", "items@1", "--recipe", f"{RECIPE}:photos", as_json=True)
    assert code == 0
    assert len(body) == BATCH
    assert "loading photos" in errors


@pytest.mark.parametrize("length", [0, -5, 2**70, True, "40", None])
def test_stored_length_that_no_dataset_has_is_refused(folder, length):
    spec = {"kind": "items", "name": "photos", "length": length, "fingerprint": ""}
    with refusal(InvalidPlan, what="view", given=spec):
        items_again(spec, {})


def test_stored_texts_stay_in_their_line():
    spec = {"kind": "items", "name": "a\nplan p-1\x1b[2J", "length": 4, "fingerprint": "f\n" * 10_000}
    described = items_again(spec, {}).describe()
    assert described.isprintable()
    assert len(described) < 1000
    assert np.char.count(described, "\\n") > 1


def recorded_digest(folder, run, step):
    with loader.Root(folder) as root:
        rows = loader.read_trail(root, run).steps
    return int(rows.filter(rows["step"] == step)["digest"][0])


def test_batch_without_the_dataset_shows_the_order_and_no_digest(folder, command):
    ordinals = plan_of(folder, "items").slots(1).ordinal.tolist()
    recorded = f"{recorded_digest(folder, 'items', 1):016x}"
    code, body, _ = command("batch", "items@1", as_json=True)
    assert code == 0
    assert body["digest"] is None
    assert body["stage"] == "planned"
    assert [one["ordinal"] for one in body["slots"]] == ordinals
    assert all(one["missing"] and not one["shown"] for one in body["slots"])
    assert body["datasets"] == ["source photos: dataset 'photos', fingerprint photos-v1, 40 items"]
    proofs = {one["name"]: one for one in body["proofs"]}
    assert [proofs[name]["proved"] for name in ("planned", "bytes", "tensors")] == [True, None, None]
    assert (
        f"no digest: the items of photos are not made; the trail records {recorded}"
        in proofs["bytes"]["text"]
    )
    assert not body["marks"]
    code, text, _ = command("batch", "items@1")
    assert code == 0
    assert "8 of 8 slots, no digest" in text
    assert "pass --recipe module:function, which returns it" in text
    assert f"slot 2  {ordinals[2]}  source photos item {ordinals[2]}" in text
    digests = [line for line in text.splitlines() if recorded in line]
    assert len(digests) == 1
    assert "the trail records" in digests[0]


def test_batch_with_the_dataset_shows_values_and_proves_them(folder, command):
    ordinals = plan_of(folder, "items").slots(1).ordinal.tolist()
    code, body, _ = command("batch", "items@1", "--recipe", f"{RECIPE}:photos", as_json=True)
    assert code == 0
    assert body["digest"] == recorded_digest(folder, "items", 1)
    assert [one["key"] for one in body["slots"]] == [item_recipes.key_of(ordinal) for ordinal in ordinals]
    proofs = {one["name"]: one["proved"] for one in body["proofs"]}
    assert proofs == {"planned": True, "bytes": True, "code": True, "tensors": True}
    assert body["stage"] == "trained"
    for one, ordinal in zip(body["slots"], ordinals, strict=True):
        image, label = one["shown"]
        assert (image["field"], image["kind"]) == ("image", "image")
        assert "32 x 24 px" in image["lines"][0]
        assert any("uint8" in line for line in image["lines"])
        assert str(ordinal % 10) in label["lines"][0]


def test_batch_runs_the_transform_over_items(command):
    code, body, _ = command("batch", "turned@1", "--recipe", f"{RECIPE}:with_transform", as_json=True)
    assert code == 0
    assert {one["name"]: one["proved"] for one in body["proofs"]}["tensors"] is True
    assert body["stage"] == "trained"


def test_batch_of_other_content_is_not_proved(folder, command):
    code, body, _ = command("batch", "items@1", "--recipe", f"{RECIPE}:other_content", as_json=True)
    assert code == 0
    assert body["digest"] != recorded_digest(folder, "items", 1)
    assert {one["name"]: one["proved"] for one in body["proofs"]}["bytes"] is False
    assert body["stage"] != "trained"


def picture_of(slot):
    return next((value for value in slot["shown"] if value["field"] == "jpg"), None)


def test_batch_of_a_mixture_shows_the_stored_half(command):
    code, body, _ = command("batch", "mixed@1", as_json=True)
    assert code == 0
    assert body["digest"] is None
    assert body["stage"] == "decoded"
    stored = [one for one in body["slots"] if one["source"] == "stored"]
    assert 0 < len(stored) < BATCH
    assert all(one["version"] == "stored@1" and one["raw"] and not one["missing"] for one in stored)
    assert all([value["field"] for value in one["shown"]] == ["jpg", "cls"] for one in stored)
    code, whole, _ = command("batch", "mixed@1", "--recipe", f"{RECIPE}:as_items", as_json=True)
    assert code == 0
    assert {one["name"]: one["proved"] for one in whole["proofs"]}["bytes"] is True
    pictures = {one["slot"]: picture_of(one) for one in whole["slots"]}
    assert all(pictures[one["slot"]] == picture_of(one) for one in stored)


def test_slot_goes_as_far_as_its_dataset(folder, command, tmp_path):
    ordinal = int(plan_of(folder, "items").slots(1).ordinal[2])
    code, body, _ = command("batch", "items@1", "--slot", 2, as_json=True)
    assert code == 0
    assert (body["key"], body["version"], body["fields"]) == (str(ordinal), "", [])
    assert "pass --recipe module:function" in body["missing"]
    assert body["stage"] == "planned"
    assert not body["error"]
    (held,) = body["trainings"]
    assert held["training"] == "items"
    assert {"step": 1, "slot": 2, "attempt": 0} in held["slots"]
    words = ("batch", "items@1", "--slot", 2, "--recipe", f"{RECIPE}:photos")
    code, body, _ = command(*words, "--save", tmp_path / "values", as_json=True)
    assert code == 0
    assert body["key"] == item_recipes.key_of(ordinal)
    assert body["stage"] == "trained"
    assert not body["missing"]
    assert f"'{item_recipes.key_of(ordinal)}' = ordinal {ordinal} of 40\n" in body["explained"]
    (saved,) = (tmp_path / "values").glob("*image.npy")
    assert np.array_equal(np.load(saved), item_recipes.Photos()[ordinal]["image"])
    mixed = plan_of(folder, "mixed").slots(1)
    stored_slot = int(np.flatnonzero(mixed.source == 1)[0])
    code, body, _ = command("batch", "mixed@1", "--slot", stored_slot, as_json=True)
    assert code == 0
    assert body["version"] == "stored@1"
    assert [one["field"] for one in body["fields"]] == ["jpg", "cls"]
    assert body["provenance"]["raw_uri"].startswith("s3://raw/")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("other_fingerprint", ["PlanMismatch", "'photos-v2'"]),
        ("no_dataset", ["PlanMismatch", "no dataset for source 'photos'"]),
    ],
)
def test_batch_of_another_dataset_ends_with_what_differs(command, function, says):
    code, _, errors = command("batch", "items@1", "--recipe", f"{RECIPE}:{function}")
    assert code != 0
    assert all(text in errors for text in says)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            "failing",
            [
                "RuntimeError: labels.csv has no such row",
                "caused by KeyError",
                "of source 'photos'",
                "in __getitem__",
            ],
        ),
        ("dying", ["died while making a part"]),
    ],
)
def test_dataset_that_fails_leaves_the_order_shown(folder, command, function, says):
    code, text, _ = command("batch", "items@1", "--recipe", f"{RECIPE}:{function}")
    assert code == 0
    assert "The recipe failed: " in text
    assert all(word in text for word in [*says, "slots, no digest"])


def test_objects_of_the_dataset_are_named(command, tmp_path):
    recipe = ("--recipe", f"{RECIPE}:with_objects")
    code, body, _ = command("batch", "items@1", "--slot", 2, *recipe, "--save", tmp_path, as_json=True)
    assert code == 0
    assert not body["trouble"]
    assert body["repeats"]
    assert "tests.view.item_recipes.Thing" in json.dumps(body)
    assert list(tmp_path.glob("*thing.json"))


def test_trail_verify_makes_items_for_their_digests(folder, command):
    code, text, _ = command("trail", "verify", "items")
    assert code == 1
    assert f"{STEPS} records of steps 0 to 2: source 'photos' is the dataset 'photos'" in text
    assert f"0 differ, {STEPS} could not be checked" in text
    for run, function in (("items", "photos"), ("mixed", "as_items")):
        code, text, _ = command("trail", "verify", run, "--recipe", f"{RECIPE}:{function}")
        assert (code, "the items of datasets, equal the training's" in text) == (0, True)
    code, body, _ = command("trail", "verify", "mixed", "--recipe", f"{RECIPE}:other_content", as_json=True)
    assert code == 1
    assert [one["step"] for one in body["problems"]] == list(range(STEPS))
    assert all(one["checked"] for one in body["problems"])
    assert all("they differ in source 'photos'" in one["problem"] for one in body["problems"])


def test_stored_trail_names_no_code_to_run(folder, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = tmp_path / "planted_code.py"
    code.write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    with loader.Root(folder) as root:
        plan = loader.plan({"photos": item_recipes.view()}, seed=7, global_batch=BATCH)
        train(root, plan, "planted", recipe="planted_code:photos")
    for words in (
        ("batch", "planted@1"),
        ("batch", "planted@1", "--slot", 2),
        ("explain", "planted@1"),
        ("seen", "planted", "photos", 3),
        ("trail", "verify", "planted"),
        ("trail", "show", "planted"),
    ):
        command(*words)
    assert not (tmp_path / "ran").exists()
    command("batch", "planted@1", "--recipe", "planted_code:photos")
    assert (tmp_path / "ran").exists()


@pytest.fixture
def serve(folder):
    opened = []

    def start(recipe=None):
        name = None if recipe is None else f"{RECIPE}:{recipe}"
        opened.append(Served(folder, recipe=name))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_pages_without_the_dataset_show_the_order_and_no_digest(folder, serve):
    served = serve()
    recorded = f"{recorded_digest(folder, 'items', 1):016x}"
    record = served.get("/r/items/1.json").json()
    assert record["digest"] is None
    page = served.get("/r/items/1")
    assert page.status_code == 200
    assert "<span>no digest</span>" in page.text
    assert page.text.count(recorded) == 1
    assert "pass --recipe module:function, which returns it" in page.text
    assert "40 items" in page.text
    assert "<img" not in page.text
    ordinal = record["slots"][2]["ordinal"]
    assert f"item</i> {ordinal}, not made" in page.text
    slot = served.get("/r/items/1/2")
    assert slot.status_code == 200
    assert "fingerprint photos-v1" in slot.text
    assert "Raw object and Dagster run are not known" in slot.text
    assert "data-version" not in slot.text
    for path in ("/r/items", "/r/items/window?from=0&to=2", f"/r/{record['plan']}", f"/r/{record['plan']}/1"):
        assert served.get(path).status_code == 200
    mixed = served.get("/r/mixed/1")
    assert mixed.text.count("<img") == sum(
        one["source"] == "stored" for one in served.get("/r/mixed/1.json").json()["slots"]
    )


def test_pages_with_the_dataset_show_pictures_and_proofs(serve):
    served = serve("photos")
    page = served.get("/r/items/1")
    assert page.status_code == 200
    assert page.text.count("<img") == BATCH
    picture = served.get("/r/items/1/thumb/2/image")
    assert (picture.status_code, picture.headers["content-type"].partition("/")[0]) == (200, "image")
    slot = served.get("/r/items/1/2")
    assert slot.status_code == 200
    assert "photo-" in slot.text
    whole = served.get("/r/items/1/2/decoded/image/0")
    assert (whole.status_code, whole.headers["content-type"]) == (200, "image/png")
    record = served.get("/r/items/1.json").json()
    assert record["stage"] == "trained"


@pytest.mark.parametrize("function", ["other_fingerprint", "failing"])
def test_pages_with_another_dataset_say_what_differs_and_show_the_order(serve, function):
    served = serve(function)
    page = served.get("/r/items/1")
    assert page.status_code == 200
    assert "The recipe failed: " in page.text
    assert "<span>no digest</span>" in page.text
    assert served.get("/r/items/1/2").status_code == 200


def test_request_names_no_code_to_run(serve, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asked_code.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
    served = serve()
    for path in ("/r/items/1", "/r/items/1/2", "/r/items"):
        assert served.get(f"{path}?recipe=asked_code:photos").status_code == 200
    assert not (tmp_path / "ran").exists()
