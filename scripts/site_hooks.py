"""Hooks of MkDocs (mkdocs.yml): titles for named examples, a search that works from a folder, no other host."""

import re
from typing import Any

NAMED = re.compile(r"^```(\w+) ([\w.-]+)$", re.M)
"""The fence of an example that a test runs: MkDocs takes no bare name after the language."""

SOURCES = re.compile(r"^Source: (?:[^\n]+\n)+\n(?=<!-- reference\n)", re.M)
"""Links to the code, for readers of the file: the site has the reference in their place."""

REFERENCE = re.compile(r"<!-- reference\n(.*?)-->", re.S)
"""Lines of mkdocstrings, which only the site understands."""

SHIM = re.compile(r'(?<=<script src=")https://unpkg\.com/iframe-worker/shim(?="></script>)')
"""The theme's own stand-in for workers lies at another host."""

FOREIGN = re.compile(
    r"<(?:script|img|iframe|source|link(?![^>]*rel=.?canonical))\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^\"'> ]+"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Titles a named example with its name, and shows the reference of an API page."""
    markdown = SOURCES.sub("", markdown)
    markdown = REFERENCE.sub(r"\1", markdown)
    return NAMED.sub(r'```\1 title="\2"', markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Serves the stand-in for workers from the site. Raises: PluginError for a page that asks another host."""
    from mkdocs.exceptions import PluginError

    above = "../" * page.url.count("/")
    output = SHIM.sub(f"{above}site/worker.js", output)
    if found := FOREIGN.search(output):
        raise PluginError(f"{page.file.src_uri} would ask another host: {found[0]}")
    return output
