"""A plain page of the card's kind: one HTML file, no script, no request, light and dark."""

from collections.abc import Sequence
from importlib.resources import files

from .escape import html_text

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Forbids a page to load or run anything, whatever stands in it."""


def page(title: str, header: str, sections: Sequence[tuple[str, str]], footer: str) -> str:
    """The whole page. title and footer are texts; header and the sections (title, body) are HTML, with what came from
    data escaped; a section without a body is left out."""
    style = files(__package__).joinpath("style.css").read_text("utf-8")
    bodies = "".join(
        f"<section><h2>{html_text(name)}</h2>{body}</section>" for name, body in sections if body
    )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        "<meta name=viewport content='width=device-width, initial-scale=1'><meta name=referrer content=no-referrer>"
        f"<title>{html_text(title)}</title><style>{style}</style></head><body>"
        f"<header>{header}</header><main>{bodies}</main><footer>{html_text(footer)}</footer></body></html>\n"
    )
