"""The stage of values in a terminal: trained is said of what was replayed and proved."""

import pytest

from penstock.view.terminal.addresses import SlotPage, StepPage

FAR = 99_999_999


@pytest.mark.parametrize(("recipe", "stage"), [(None, "decoded"), ("tests.view.recipes:recipe", "trained")])
def test_terminal_names_the_stage_of_its_values(look, trained, recipe, stage):
    at = StepPage(run="one", step=2)

    async def slot(terminal):
        assert ("trained: image" in terminal.text) is (stage == "trained")
        assert "decoded: image" in terminal.text
        names = []
        for _ in range(5):
            await terminal.press("t")
            names.append(terminal.lines[-1].strip())
        wanted = [*dict.fromkeys((stage, "decoded")), "stored", "raw", "all stages"]
        assert names[: len(wanted)] == wanted

    async def far(terminal):
        assert f"step {FAR} was not trained" in terminal.text
        assert " proved " not in terminal.text.replace("not proved", "")

    look(slot, SlotPage(step=at, slot=3), recipe=recipe, pictures="none")
    look(far, StepPage(run="one", step=FAR), recipe=recipe, pictures="none")
