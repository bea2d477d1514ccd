"""Names, titles and licences of uploads on Dagster's pages: text, whatever they hold."""

import pytest
from markdown_it import MarkdownIt

from assets.pages.report import bars, code_block, link
from penstock.text import Markdown, markdown_table

HOSTILE = [
    "[click](https://evil.example/)",
    "![](https://evil.example/pixel.gif)",
    "https://evil.example/?a=b",
    "www.evil.example",
    "<img src=https://evil.example/x>",
    "somebody@evil.example",
    "a | b \\| c",
    "`code` *stress* _stress_ ~~gone~~ $x$",
    "a\n\n# heading\n\n| x |",
    "\\[click](https://evil.example/)",
]
RENDERED = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def token_kinds(markdown):
    """Kinds of all tokens of Markdown, as renderers read it."""
    tokens = RENDERED.parse(markdown)
    return {one.type for token in tokens for one in (token, *(token.children or ()))}


PLAIN = token_kinds(markdown_table(("a", "b"), [("x", "y")])) | {"text_special"}


@pytest.mark.parametrize("text", HOSTILE)
def test_cell_is_text(text):
    for made in (markdown_table(("object", "licence"), [(text, "x"), ("y", text)]), bars({text: 3, "y": 4})):
        assert token_kinds(made) <= PLAIN
        assert RENDERED.render(made).count("<tr>") == 3
        assert not any(
            address in made for address in ("://evil", "www.evil", "@evil")
        )  # found in plain text too


def test_link_of_our_own_is_one():
    assert "link_open" in token_kinds(markdown_table(("batch",), [(Markdown("[b](/assets/b)"),)]))


@pytest.mark.parametrize("line", ["```\n![](https://evil.example/x)\n```", "`````", "x\r\n```\n# y"])
def test_block_of_lines_is_ended_by_none(line):
    block = code_block("sh", "penstock ls", line)
    assert [token.type for token in RENDERED.parse(block)] == ["fence"]


@pytest.mark.parametrize("text", HOSTILE)
def test_link_leads_to_its_target(text):
    made = markdown_table(("sample",), [(link(text, "http://view.example/v/photos/3/s/1"),)])
    opened = [
        one.attrs["href"]
        for token in RENDERED.parse(made)
        for one in token.children or ()
        if one.type == "link_open"
    ]
    assert opened == ["http://view.example/v/photos/3/s/1"]
    assert link(text, "") == text
