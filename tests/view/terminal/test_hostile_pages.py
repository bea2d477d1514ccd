"""Pages of a terminal over data that would turn or break it."""

import loader
from penstock.view.facets.version_filter import VersionFilter
from penstock.view.terminal.addresses import SamplePage, VersionPage


def test_version_without_label_is_filtered_in_a_terminal(look, tmp_path):
    with loader.Root(tmp_path / "root") as root, root.write("bare") as writer:
        for i in range(5):
            writer.add(f"k{i}", {"txt": "a"}, metadata={"size": i})

    async def test(terminal):
        assert "2 found" in terminal.text
        assert "k4" in terminal.text

    look(
        test,
        VersionPage(dataset="bare", number=1, filter=VersionFilter(where="size > 2")),
        root=tmp_path / "root",
    )


def test_no_text_of_a_page_turns_the_terminal(look, tmp_path):
    key = "turned\u202eyek\u2066 \x9b2J"
    with loader.Root(tmp_path / "root") as root, root.write("odd") as writer:
        writer.add(key, {"txt": "a"}, metadata={"label": key})
    version = VersionPage(dataset="odd", number=1)

    async def test(terminal):
        assert "odd@1 sample 0 of 1: turnedyek 2J" in terminal.lines[0]
        for letter in ("\u202e", "\u2066", "\x9b"):
            assert letter not in terminal.text
        await terminal.press("e")
        assert "turned" in terminal.text
        for letter in ("\u202e", "\u2066", "\x9b"):
            assert letter not in terminal.text

    look(test, SamplePage(version=version, ordinal=0), root=tmp_path / "root")
