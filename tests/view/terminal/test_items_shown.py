"""A run over a dataset in a terminal: its order, and its values by --recipe."""

import pytest

import loader
from penstock.view.terminal.addresses import SlotPage, StepPage
from tests.view import item_recipes

BATCH = 4


@pytest.fixture
def folder(tmp_path):
    with loader.Root(tmp_path / "root") as root:
        plan = loader.plan({"photos": item_recipes.view()}, seed=7, global_batch=BATCH)
        trail = loader.Trail(root, "items", tensors_every=1)
        with loader.Loader(plan, 0, 1, steps=2, trail=trail, framework="numpy") as batches:
            assert [len(batch) for batch in batches] == [BATCH, BATCH]
    return tmp_path / "root"


@pytest.mark.parametrize("recipe", [None, "tests.view.item_recipes:photos"])
def test_terminal_shows_a_dataset_as_far_as_it_goes(look, folder, recipe):
    at = StepPage(run="items", step=1)
    is_made = recipe is not None

    async def step(terminal):
        assert ("no digest" in terminal.text) is not is_made
        assert ("32 x 24 px" in terminal.text) is is_made
        assert "dataset 'photos', fingerprint photos-v1, 40 items" in terminal.text
        await terminal.press("b")
        assert "basket: 1" not in terminal.text

    async def slot(terminal):
        assert ("pass --recipe module:function" in terminal.text) is not is_made
        assert ("photo-" in terminal.text) is is_made
        assert "source photos item" in terminal.text
        await terminal.press("b")
        assert "basket: 1" not in terminal.text

    shown = {"root": folder, "recipe": recipe, "pictures": "none", "size": (120, 40)}
    look(step, at, **shown)
    look(slot, SlotPage(step=at, slot=2), **shown)
