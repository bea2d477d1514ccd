"""The process of a recipe: it may hang, die or fail, and the viewer goes on with decoded values."""

import sys
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.errors import InvalidRuntime, TransformFailed, WorkerFailed
from penstock.view.inspect.shown.shown_batch import shown_batch
from penstock.view.inspect.slot_record import slot_values
from penstock.view.inspect.step_record import step_record, step_values
from penstock.view.replays.recipe_process import RecipeProcess
from penstock.view.replays.replayed_values import itself
from penstock.view.replays.replays import Replayers, Replays
from penstock.view.replays.training import Training

FILE = Path(__file__).with_name("recipes.py")


@pytest.fixture
def asked(trained):
    """asked(recipe, limit_s): the process of a recipe, and the training `one`."""
    opened = []

    def ask(recipe, limit_s=60.0):
        root = loader.Root(trained)
        process, training = RecipeProcess(root, recipe, limit_s=limit_s), Training(root, "one")
        opened.extend((process, training, root))
        return process, training

    yield ask
    for one in opened:
        one.close()


def test_values_of_the_process_are_those_of_this_one(asked, trained):
    from tests.view import recipes

    process, training = asked(f"{FILE}:recipe")
    setting = training.setting(2, recipe=True)
    with loader.Root(trained) as root:
        here = Replays(root, recipes.recipe())
        a, b = process.batch(setting, 2, 0, 1, itself), here.batch(setting, 2, 0, 1, itself)
        assert (a.digest, a.crc32c, a.ids) == (b.digest, b.crc32c, b.ids)
        one, two = process.slot(setting, 2, 3, itself), here.slot(setting, 2, 3, itself)
        np.testing.assert_array_equal(one.trained["jpg"], two.trained["jpg"])
        assert (one.draws, one.placements, one.address) == (two.draws, two.placements, two.address)
        assert {name: fact.sha256 for name, fact in process.functions(setting).transforms.items()} == {
            name: fact.sha256 for name, fact in here.functions(setting).transforms.items()
        }
        here.close()


def test_a_transform_that_hangs_is_ended_and_decoded_values_are_shown(asked, trained):
    process, training = asked("tests.view.recipes:hanging", limit_s=2.0)
    replayers = Replayers(plain=Replays(training.root), recipe=process)
    values, trouble = step_values(training, replayers, 1, 0, 1, itself)
    assert "gave no answer in 2 s" in trouble
    assert all(one["jpg"].ndim == 3 for one in values.slots)
    record = step_record(training, shown_batch(training.plan(1), values), None, trouble)
    assert {one.name: one.proved for one in record.proofs} == {
        "planned": True,
        "bytes": True,
        "code": None,
        "tensors": None,
    }
    replayers.plain.close()


def test_a_process_that_dies_is_told_and_replaced(asked):
    process, training = asked("tests.view.recipes:dying")
    setting = training.setting(1, recipe=True)
    for _ in range(2):
        with pytest.raises(WorkerFailed, match="died"):
            process.batch(setting, 1, 0, 1, itself)
    assert process.functions(setting).transforms


def test_a_value_that_cannot_leave_its_process_is_told(asked):
    process, training = asked("tests.view.recipes:unsendable")
    with pytest.raises(TransformFailed):
        process.slot(training.setting(1, recipe=True), 1, 0, itself)
    replayers = Replayers(plain=Replays(training.root), recipe=process)
    values, trouble = slot_values(training, replayers, 1, 0, itself)
    assert "generator" in trouble
    assert set(values.decoded) == {"jpg", "cls"}
    replayers.plain.close()


@pytest.mark.parametrize(
    ("recipe", "error", "message"),
    [
        ("tests.view.recipes:raising", TransformFailed, "ValueError: no such file: labels.csv"),
        ("tests.view.recipes:nothing", InvalidRuntime, "gave NoneType"),
        ("tests.view.recipes:absent", InvalidRuntime, "no such function"),
        ("tests.view.nowhere:recipe", TransformFailed, "No module named"),
        (f"{FILE.parent}/nowhere.py:recipe", InvalidRuntime, "no such file"),
    ],
)
def test_a_recipe_that_cannot_be_had_is_told(asked, recipe, error, message):
    process, training = asked(recipe)
    with pytest.raises(error, match=message):
        process.functions(training.setting(1, recipe=True))


@pytest.mark.parametrize("recipe", ["train", ":recipe", "train:", "train:a b", "train:recipe()"])
def test_another_form_is_refused(trained, recipe):
    with loader.Root(trained) as root, pytest.raises(InvalidRuntime, match="module:function"):
        RecipeProcess(root, recipe)


def test_a_name_of_a_trail_is_never_imported(trained, monkeypatch):
    """A look without --recipe runs nothing of the user's."""
    monkeypatch.delitem(sys.modules, "tests.view.recipes", raising=False)
    with loader.Root(trained) as root:
        training = Training(root, "one")
        replayers = Replayers(plain=Replays(root))
        values, _ = step_values(training, replayers, 1, 0, 1, itself)
        assert step_record(training, shown_batch(training.plan(1), values), None).slots
        assert "tests.view.recipes" not in sys.modules
        replayers.close()
        training.close()


def test_small_operations_of_torch_run_on_one_thread(asked, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    process, training = asked("tests.view.recipes:threads")
    values = process.slot(training.setting(1, recipe=True), 1, 0, itself)
    assert values.trained["threads"] == 1
    process.close()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    values = process.slot(training.setting(1, recipe=True), 1, 0, itself)
    assert values.trained["threads"] == 2
