"""Versions that a collector takes from under an open terminal: the reason is told, and what the trail keeps."""

from penstock.view.terminal.addresses import StepPage, VersionPage
from tests.view.conftest import sweep


def test_terminal_tells_the_reason_and_the_trail(look, folder, step_facts):
    digests, loss = step_facts(2)

    async def terminal_text(terminal):
        text = " ".join(terminal.text.split())
        assert terminal.lines[0].strip() == "VersionRetired"
        assert "(faces in it)" in text
        return text

    async def test(terminal) -> None:
        await terminal.press("enter")
        assert "step 2 slot 0" in terminal.lines[0]
        sweep(folder)
        await terminal.press("right")
        assert f"notes: loss = {loss:.6g}" in await terminal_text(terminal)
        await terminal.press("u")
        text = await terminal_text(terminal)
        assert all(f"rank {rank} of 3: digest {digest:016x}" in text for rank, digest in enumerate(digests))
        await terminal.press("u")
        assert terminal.lines[0].startswith("three: 6 steps recorded")
        terminal.app.open(VersionPage(dataset="photos", number=1))
        await terminal.settle()
        await terminal_text(terminal)

    look(test, StepPage(run="three", step=2), root=folder, pictures="none")
