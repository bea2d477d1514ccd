"""What is called trained: values that were replayed and proved, and steps that were recorded."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from penstock.cli import main
from penstock.view.inspect.step_range import step_range
from penstock.view.replays.training import Training
from tests.view import recipes
from tests.view.conftest import STEPS, train
from tests.view.test_proofs import Viewed, proved
from tests.view.test_web import Served

FAR = 99_999_999


def stages(viewed, step, slot=1):
    """Stages of a step and of a slot of it; `transformed` is there unless the stage is `decoded`."""
    record = viewed.slot(step, slot)[1]
    shown = {one.transformed is not None for one in record.fields if one.decoded is not None}
    assert shown == {record.stage != "decoded"}
    return viewed.step(step, 0, 1)[1].stage, record.stage


def change(folder, run, column, change_one):
    """Change a column of a run's only table of steps."""
    (rows,) = (folder / f"root/trails/{run}/0-of-1").glob("*.parquet")
    table = pq.read_table(rows)
    at = table.column_names.index(column)
    values = pa.array([change_one(one) for one in table[column].to_pylist()], table.schema.field(column).type)
    pq.write_table(table.set_column(at, column, values), rows)


@pytest.mark.parametrize(
    ("recipe", "stage"), [(recipes.recipe, "trained"), (None, "decoded"), (recipes.floats, "transformed")]
)
def test_values_are_called_trained_where_they_are_proved(trained, recipe, stage):
    with loader.Root(trained) as root, Viewed(root, "one", recipe) as viewed:
        assert stages(viewed, 1) == (stage, stage)


@pytest.mark.parametrize("recipe", [recipes.plain, None])
@pytest.mark.parametrize("tensors_every", [0, 1])
def test_values_of_a_training_without_a_transform_are_trained(root, plan, recipe, tensors_every):
    train(root, plan, "plain", recipe=recipes.plain, steps=2, tensors_every=tensors_every)
    with Viewed(root, "plain", recipe) as viewed:
        assert stages(viewed, 1) == ("trained", "trained")


@pytest.mark.parametrize(
    ("column", "tensors_every"), [("digest", 0), ("digest", 1), ("crc.jpg", 1), ("crc.cls", 1)]
)
def test_values_that_differ_from_the_trail_are_not_trained(root, plan, tmp_path, column, tensors_every):
    train(root, plan, "one", tensors_every=tensors_every)
    change(tmp_path, "one", column, lambda value: value ^ 1)
    with Viewed(root, "one") as viewed:
        assert stages(viewed, 1) == ("transformed", "transformed")


def test_values_of_a_transform_that_is_no_function_are_not_trained(root, plan):
    state = {"n": 0}

    def count(sample, rng):
        state["n"] += 1
        return {"jpg": sample["jpg"] // state["n"]}

    trail = loader.Trail(root, "one", ranks="all", tensors_every=0)
    with loader.Loader(
        plan, 0, 1, steps=1, trail=trail, transform=count, framework="numpy", workers=0
    ) as all_:
        assert len(list(all_)) == 1
    with Viewed(root, "one", lambda: {"transform": count}) as viewed:
        assert viewed.slot(0, 1)[1].stage == "transformed"


def test_plan_alone_is_not_trained(root, plan):
    plan.save(root)
    for recipe, stage in ((recipes.recipe, "transformed"), (None, "decoded")):
        with Viewed(root, plan.hash, recipe) as viewed:
            assert stages(viewed, 1) == (stage, stage)
            assert "no trail shows" in viewed.step(1, 0, 1)[1].untrained


@pytest.mark.parametrize("recipe", [recipes.recipe, None])
def test_step_that_never_happened_is_said(trained, recipe):
    with loader.Root(trained) as root, Viewed(root, "one", recipe) as viewed:
        _, record = viewed.step(FAR, 0, 1)
        _, slot = viewed.slot(FAR, 1)
        assert set(proved(record).values()) == {None}
        told = f"step {FAR} was not trained: the trail of one ends at step {STEPS - 1}"
        assert record.untrained == slot.untrained == told
        assert "trained" not in (record.stage, slot.stage)
        assert all(one.step < STEPS for held in slot.trainings for one in held.slots)
        assert viewed.step(STEPS - 1, 0, 1)[1].untrained == viewed.slot(0, 1)[1].untrained == ""


def test_step_in_a_gap_of_the_trail_is_said(root, plan, tmp_path):
    train(root, plan, "one")
    (rows,) = (tmp_path / "root/trails/one/0-of-1").glob("*.parquet")
    table = pq.read_table(rows)
    pq.write_table(table.filter(pa.array([step not in (0, 3) for step in range(STEPS)])), rows)
    with Viewed(root, "one") as viewed:
        for step, why in ((0, "it begins at step 1"), (3, "it has a gap there")):
            _, record = viewed.step(step, 0, 1)
            assert record.untrained.endswith(why)
            assert set(proved(record).values()) == {None}
            assert record.stage == viewed.slot(step, 1)[1].stage == "transformed"
    training = Training(root, "one")
    window = step_range(training, 2, STEPS + 2)
    training.close()
    assert window.unrecorded == (3, STEPS, STEPS + 1, STEPS + 2)


def labels(page):
    return set(re.findall('data-stage="([^"]*)"', page)) - {"raw"}


@pytest.mark.parametrize(
    ("recipe", "stage", "shown"),
    [
        (None, "decoded", {"decoded", "stored"}),
        ("tests.view.recipes:recipe", "trained", {"trained", "decoded", "stored"}),
        ("tests.view.recipes:floats", "transformed", {"transformed", "decoded", "stored"}),
    ],
)
def test_pages_name_the_stage_of_their_values(trained, recipe, stage, shown):
    served = Served(trained, recipe=recipe)
    try:
        assert labels(served.get("/r/one/2/3").text) == shown
        for path in ("/r/one/2", "/r/one/2/3"):
            assert served.get(f"{path}.json").json()["stage"] == stage
            assert ("values as trained" in served.get(path).text) is (stage == "trained")
        far = served.get(f"/r/one/{FAR}")
        assert f"step {FAR} was not trained" in far.text
        assert ">proved<" not in far.text
        assert f"step {FAR} was not trained" in served.get(f"/r/one/{FAR}/3").text
        window = served.get(f"/r/one/window?from=2&to={STEPS + 3}")
        assert "4 of these steps are not on the trail but as planned" in window.text
    finally:
        served.close()


@pytest.mark.parametrize(
    ("recipe", "stage"),
    [
        ([], "decoded"),
        (["--recipe", "tests.view.recipes:recipe"], "trained"),
        (["--recipe", "tests.view.recipes:floats"], "transformed"),
    ],
)
def test_slot_as_text_names_the_stage_of_its_values(trained, capsys, recipe, stage):
    command = ["batch", "one@2", "--slot", "3", "--root", str(trained), *recipe]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert [one.split()[0] for one in told.splitlines() if "uint8" in one or "float32" in one] == (
        ["decoded"] if stage == "decoded" else ["decoded", stage]
    )
    assert main([*command, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["stage"] == stage
    assert {one["transformed"] is None for one in body["fields"]} == {stage == "decoded"}
    for more in ([], ["--slot", "3"]):
        assert main(["batch", f"one@{FAR}", "--root", str(trained), *recipe, *more]) == 0
        told = capsys.readouterr().out
        assert f"step {FAR} was not trained: the trail of one ends at step {STEPS - 1}" in told
        assert "proved " not in told.replace("not proved", "")
