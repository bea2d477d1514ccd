"""No text of the data is read as anything but text: hostile captions, labels, licences, keys and reasons."""

import re
from html.parser import HTMLParser

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from penstock.card.render import render_html, render_markdown, table
from penstock.card.value import front_matter, render_json
from penstock.text import WORD_JOINER, clean, html_text, markdown_text, yaml_text

HOSTILE = [
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    '" onload="alert(1)',
    "' autofocus onfocus=alert(1) '",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "javascript:alert(1)",
    "[click](https://evil.example/)",
    "![](https://evil.example/pixel.gif)",
    "<https://evil.example>",
    "https://evil.example/?a=b",
    "www.evil.example",
    "somebody@evil.example",
    "mailto:somebody@evil.example",
    "[x]: https://evil.example",
    "| a | b |",
    "\\|",
    "\\",
    "a\n\n# heading\n",
    "\r\n---\r\n",
    "---",
    "- item",
    "1. item",
    "12) item",
    "> quote",
    "    code",
    "`code`",
    "``",
    "**strong** _em_ ~~gone~~",
    "$x$ $$y$$",
    "<details open>",
    "license: mit",
    'a"\nlicense: mit\nb: "',
    "*alias &anchor !tag %x",
    "{{ 7 * 7 }} {% raw %}",
    "\u202egnp.exe",
    "\u2028\u2029\x85\x0b\x0c",
    "\x00\x1b[31m",
    "\ufeff\ufffe\uffff",
    "😀 e\u0301 中文 עברית",
    "\ud800",
    "",
    " ",
    "#1 + 2 = 3!",
]
texts = st.one_of(
    st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=12)), max_size=4).map("".join),
    st.lists(st.sampled_from(HOSTILE), max_size=3).map(" ".join),
)
bounded = settings(
    derandomize=True,
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

TAGS = frozenset(
    """a b body br code dd div dl dt figcaption figure footer h1 h2 h3 head header html i img li line main meta nav p
    pre q rect section small span style svg table tbody td th thead title tr ul""".split()  # noqa: SIM905
)
ATTRIBUTES = frozenset(
    """alt aria-hidden aria-label charset class content dir height hidden href http-equiv id lang loading name role
    scope src style tabindex title viewbox width x x1 x2 y y1 y2""".split()  # noqa: SIM905
)


class Page(HTMLParser):
    """Checks every tag and attribute while it reads; collects what is shown, and the quotes apart."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.shown, self.quotes, self.alts, self._quote = [], [], [], False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        assert tag in TAGS, tag
        for name, value in attributes:
            assert name in ATTRIBUTES, (tag, name)
            if name == "href":
                assert re.fullmatch(r"#[a-z-]+", value)
            if name == "src":
                assert re.match(r"data:image/(jpeg|png);base64,[A-Za-z0-9+/=]+$", value)
            if name == "style":
                assert re.fullmatch(r"--w:[0-9.]+", value)
            if name == "alt":
                self.alts.append(value)
        self._quote = tag == "q"
        if tag == "q":
            self.quotes.append("")

    def handle_endtag(self, tag):
        assert tag in TAGS, tag
        self._quote = False

    def handle_data(self, data):
        self.shown.append(data)
        if self._quote:
            self.quotes[-1] += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data!r}")

    def handle_decl(self, decl):
        assert decl == "doctype html"

    def unknown_decl(self, data):
        raise AssertionError(f"a declaration: {data!r}")

    def handle_pi(self, data):
        raise AssertionError(f"an instruction: {data!r}")


def everywhere(blank, text):
    return blank(caption=text, label=text, licence=text, key=text, reason=text)


@bounded
@given(text=texts)
def test_page_shows_texts_and_reads_none(blank, text):
    page = Page(render_html(everywhere(blank, text)))
    if clean(text):
        assert page.quotes == [clean(text)] * 2
        assert page.alts == [f"photo: {clean(text)}"]
        assert clean(text, 60) in page.shown


def test_page_asks_for_nothing_and_runs_nothing(blank):
    page = render_html(everywhere(blank, "<script src=//evil.example></script>"))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "default-src 'none'" in policy
    assert "script" not in policy
    assert "url(" not in page
    assert "@import" not in page
    assert "<script" not in page


commonmark = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


def inlines(text):
    """(types of the block tokens, inline tokens) of a Markdown text."""
    blocks = commonmark.parse(text)
    return [token.type for token in blocks], [token.children for token in blocks if token.type == "inline"]


def plain(children):
    assert {child.type for child in children} <= {"text", "text_special"}, [child.type for child in children]
    return "".join(child.content for child in children).replace(WORD_JOINER, "")


@bounded
@given(cells=st.lists(texts, min_size=3, max_size=3))
def test_table_keeps_its_shape_and_its_texts(cells):
    made = table(["a", "b", "c"], [cells, ["x", "y", "z"]])
    types, found = inlines(made)
    assert types.count("table_open") == 1
    assert types.count("tr_open") == 3
    assert types.count("td_open") == 6
    shape = {
        f"{tag}_{end}" for tag in ("table", "thead", "tbody", "tr", "th", "td") for end in ("open", "close")
    }
    assert set(types) <= shape | {"inline"}
    told = [clean(cell, 300).replace(WORD_JOINER, "") for cell in cells]
    assert [plain(children) for children in found] == ["a", "b", "c", *told, "x", "y", "z"]


@bounded
@given(text=texts)
def test_line_is_a_paragraph(text):
    types, found = inlines(markdown_text(text))
    told = clean(text).replace(WORD_JOINER, "")
    if not told.strip():
        assert not found or not plain(found[0]).strip()
        return
    assert types == ["paragraph_open", "inline", "paragraph_close"]
    assert plain(found[0]) == told


@bounded
@given(text=texts)
def test_no_address_is_left_for_a_renderer_that_looks_for_them(text):
    """GitHub's rules, and those of Dagster's page, look at the text after escapes were read."""
    _, found = inlines(markdown_text(text))
    shown = "".join(child.content for children in found for child in children)
    address = r"(?:https?|ftp)://\S|\bwww\.\S|[\w.+-]@[\w-]+\.[\w-]|\b(?:mailto|xmpp):[^\s\u2060]"
    assert not re.search(address, shown, re.IGNORECASE)


@bounded
@given(text=texts)
def test_markdown_card_holds_no_link_no_html_and_only_its_own_picture(blank, text):
    made = render_markdown(everywhere(blank, text), {"image": "examples-image.jpg"})
    head, _, body = made.removeprefix("---\n").partition("\n---\n")
    types, found = inlines(body)
    assert "html_block" not in types
    assert "hr" not in types
    assert types.count("fence") == 1
    assert "code_block" not in types
    for children in found:
        kinds = {child.type for child in children}
        assert kinds <= {"text", "text_special", "image", "strong_open", "strong_close"}, kinds
        for child in children:
            if child.type == "image":
                assert child.attrs["src"] == "examples-image.jpg"
    told = yaml.safe_load(head)
    assert set(told) <= {
        "pretty_name",
        "license",
        "license_name",
        "language",
        "size_categories",
        "task_categories",
        "tags",
    }
    assert told["pretty_name"] == "d"


@bounded
@given(text=texts)
def test_yaml_gives_the_text_back(text):
    assert yaml.safe_load(f"a: {yaml_text(text)}\nb: 1") == {"a": clean(text), "b": 1}


@bounded
@given(text=texts)
def test_json_and_clean(blank, text):
    render_json(everywhere(blank, text)).encode()
    assert clean(clean(text)) == clean(text)
    assert len(clean(text)) <= len(text)
    assert "\n" not in clean(text)
    assert not set(html_text(text)) & set("<>\"'")


@pytest.mark.parametrize(
    ("licence", "told"),
    [
        ("CC BY 4.0", ["cc-by-4.0", "unknown"]),
        ("MIT", ["mit", "unknown"]),
        ("Ours, 2.0!", ["other", "unknown"]),
    ],
)
def test_hub_knows_the_licence(blank, licence, told):
    head = yaml.safe_load(front_matter(blank(licence=licence)).strip("-\n"))
    assert head["license"] == told
    assert head.get("license_name") == ("ours-2.0" if told[0] == "other" else None)
    assert head["size_categories"] == ["n<1K"]


def test_long_text_ends_somewhere():
    assert clean("x" * 10**7, 20) == "x" * 19 + "…"
