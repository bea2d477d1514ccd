"""Unusual steps in a terminal: those beyond the first page are counted, and reached by Enter."""

import loader
from penstock.view.terminal.addresses import RunPage
from penstock.view.terminal.record_screen import LinkList
from tests.view.conftest import BATCH, write_photos


def test_steps_beyond_the_first_page_are_reached(look, tmp_path):
    with loader.Root(tmp_path / "root") as root:
        plan = loader.plan({"photos": write_photos(root).select("jpg", "cls")}, seed=3, global_batch=BATCH)
        trail = loader.Trail(root, "whole", ranks="all", tensors_every=0)
        with loader.Loader(plan, 0, 1, steps=40, trail=trail, framework="numpy", workers=0) as batches:
            for batch in batches:
                batches.note(loss=float("nan") if batch.step < 28 else 4.38, grad_norm=0.98)

    async def test(terminal):
        assert "Unusual steps: 28, the worst first" in terminal.text
        assert "8 more unusual steps" in terminal.text
        (loss,) = [one for one in terminal.lines if one.strip().startswith("loss ") and " to " in one]
        (norm,) = [one for one in terminal.lines if one.strip().startswith("grad_norm")]
        assert "4.38 to 4.38" in loss
        assert "0.98 to 0.98" in norm
        (struck,) = [one for one in terminal.lines if one.strip().startswith("unusual steps")]
        assert struck.count("!") > 20
        assert struck.index("!") == norm.index("▁")
        assert struck.rindex("!") < loss.index("▁")
        assert "step 20 " not in terminal.text
        lines = terminal.app.screen.query(LinkList).first()
        texts = [str(option.prompt) for option in lines.options]
        lines.highlighted = texts.index("8 more unusual steps")
        await terminal.press("enter")
        assert all(f"step {step} " in terminal.text for step in range(20, 28))
        assert "previous unusual steps, from number 1" in terminal.text

    look(test, RunPage(run="whole"), root=tmp_path / "root", size=(100, 80))
