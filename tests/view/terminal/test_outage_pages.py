"""A store that fails under an open terminal: pages say so, and are shown again once it answers."""

import loader
from penstock.view import open_items, outage
from penstock.view.terminal.addresses import RootPage, StepPage, VersionPage


def test_pages_say_that_the_store_is_down_and_come_back(look, bucket, monkeypatch) -> None:
    monkeypatch.setattr(outage, "OUTAGE_S", 0)
    monkeypatch.setattr(open_items, "FRESH_S", -1.0)

    async def test(terminal) -> None:
        assert terminal.lines[0].startswith("one step 1: rank 0 of 1")
        bucket.fail(500)
        await terminal.press("]")
        assert terminal.lines[0].strip() == "Transient"
        text = " ".join(terminal.text.split())
        assert f"cannot read {bucket.url}/" in text
        assert "nothing needs a restart" in text
        assert "has of step 2: rank 0 of 1: digest " in text
        for place in (VersionPage(dataset="photos", number=1), RootPage()):
            terminal.app.open(place)
            await terminal.settle()
            assert terminal.lines[0].strip() == "Transient"
        terminal.app.open(StepPage(run="one", step=2))
        await terminal.settle()
        await terminal.press("u")
        assert terminal.lines[0].startswith("one: 6 steps recorded")
        assert terminal.lines[-1].startswith("the trail is as it was read at 20")
        bucket.fail(None)
        terminal.app.open(StepPage(run="one", step=2))
        await terminal.settle()
        assert terminal.lines[0].startswith("one step 2: rank 0 of 1")

    with loader.Root(bucket.url, options=bucket.options()) as root:
        look(test, StepPage(run="one", step=1), root=root, pictures="none")
