"""The documentation's site: its navigation has every page, and it asks no other host."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import loader

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SETTINGS = (ROOT / "mkdocs.yml").read_text()


class Settings(yaml.SafeLoader):
    """The file names two functions of the theme, which are of no interest here."""


Settings.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda _, name, node: name)


def pages(item: Any) -> Iterator[str]:
    """The files of a navigation."""
    if isinstance(item, str):
        yield item
    for inner in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
        yield from pages(inner)


def test_navigation_has_every_page_once() -> None:
    named = sorted(pages(yaml.load(SETTINGS, Settings)["nav"]))
    assert named == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_warning_ends_the_build() -> None:
    (command,) = re.findall(r"mkdocs build .*", (ROOT / "Makefile").read_text())
    assert command == "mkdocs build --strict"  # with --quiet MkDocs counts no warnings


def test_no_other_host_is_asked() -> None:
    parsed = yaml.load(SETTINGS, Settings)
    assert parsed["theme"]["font"] is False  # the theme would ask a host for its fonts
    assert not {"site_url", "repo_url", "extra_javascript"} & set(parsed)
    for path in (ROOT / "mkdocs.yml", *(DOCS / "site").iterdir()):
        assert "//" not in re.sub(r"xmlns=\S+|^\s*(#|//) .*", "", path.read_text(), flags=re.M), path


@pytest.mark.parametrize("tag", ["script src", "img src", "iframe src"])
@pytest.mark.parametrize("url", ["https://host.example/x.js", "//host.example/x.js", "http://host.example/"])
def test_page_that_would_ask_another_host_is_seen(tag: str, url: str) -> None:
    from scripts import site_hooks

    assert site_hooks.FOREIGN.search(f'<{tag}="{url}">')
    assert site_hooks.FOREIGN.search(f"<{tag}={url}>")
    assert not site_hooks.FOREIGN.search(f'<{tag}="assets/x.js"><a href="{url}">text</a>')


def test_every_public_name_of_the_loader_has_its_place_in_the_api() -> None:
    text = "".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    names = re.findall(r"^::: loader\.(\w+)$", text, re.M)
    assert sorted(names) == sorted(loader.__all__)


def test_api_pages_link_every_name_to_its_source() -> None:
    """A page makes sense where no site renders it: no line of mkdocstrings shows, and each name has a link."""
    for page in (DOCS / "api").glob("*.md"):
        text = page.read_text()
        shown = re.sub(r"<!-- reference\n.*?-->", "", text, flags=re.S)
        assert ":::" not in shown
        links = dict(re.findall(r"\[`(\w+)`\]\(\.\./\.\./([\w/]+\.py)\)", shown))
        names = re.findall(r"^::: \S*?(\w+)$", text, re.M)
        assert sorted(links) == sorted(set(names))
        for name, path in links.items():
            defined = rf"^(?:class|def) {name}\b|^{name}(?:: \S+)? = "
            is_module = path.endswith(f"/{name}.py")
            assert is_module or re.search(defined, (ROOT / path).read_text(), re.M), (name, path)


def test_site_shows_the_reference_in_place_of_the_links() -> None:
    from scripts import site_hooks

    markdown = (
        "Text.\n\nSource: [`A`](../../a.py),\n[`B`](../../b.py).\n\n<!-- reference\n::: a.A\n\n::: b.B\n-->\n"
    )
    assert site_hooks.on_page_markdown(markdown) == "Text.\n\n::: a.A\n\n::: b.B\n\n"


def test_every_file_that_a_page_names_is_there() -> None:
    packages = "loader|penstock|assets|resources|dagster_project|tests|examples"
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")):
        named = set(re.findall(rf"(?<![\w./])((?:{packages})/[\w/]+\.py)\b", page.read_text()))
        assert not [path for path in sorted(named) if not (ROOT / path).exists()], page
