"""The first page, and the images of its dataset cards."""

import html
from dataclasses import replace

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from loader.errors import InvalidRuntime

from ...text import clean
from ..board.dataset_cards import GROWTH_HEIGHT, GROWTH_WIDTH
from ..inspect.version_record import sample_fields
from ..kinds.stored_bytes import card_field
from ..polyline import SPARK_HEIGHT, SPARK_WIDTH
from ..sections.cost import cost_sections
from ..sections.home import home_sections
from .episode_pages import VERSION, requested_version
from .media import media_response, media_route, sample_thumbnail
from .page import Page, Site, page_routes, section_page

STRIP = 5
"""Images of a dataset's card."""
_CANDIDATES = 16
"""Samples looked at for them, evenly spread."""


def home_routes(site: Site) -> list[Route]:
    return [
        media_route(site, f"{VERSION}/strip/{{n:number}}", _strip_image),
        *page_routes(site, "/cost", _cost),
        *page_routes(site, "/", _home),
    ]


def _home(site: Site, request: Request) -> Page:
    more = {
        "strip": STRIP,
        "spark": {"width": SPARK_WIDTH, "height": SPARK_HEIGHT},
        "growth": {"width": GROWTH_WIDTH, "height": GROWTH_HEIGHT},
    }
    record = site.opened.home()
    page = section_page(record, home_sections(record))
    return replace(page, title="penstock", more={**(page.more or {}), **more})


def _cost(site: Site, request: Request) -> Page:
    table = site.opened.costs.read(site.opened.root)
    return section_page(table, cost_sections(table))


def _strip_image(site: Site, request: Request) -> Response:
    """Return image n of a version's strip, or a drawing with the field of a sample that has none."""
    n = request.path_params["n"]
    if n >= STRIP:
        raise InvalidRuntime(f"image {n} of a card; a card has images 0 to {STRIP - 1}")
    version = requested_version(site, request)
    ordinals = np.unique(np.linspace(0, max(0, len(version) - 1), _CANDIDATES).round().astype(int)).tolist()
    fields = sample_fields(version, ordinals) if len(version) else []
    shown = list[tuple[int, str]]()
    for ordinal, names in zip(ordinals, fields, strict=False):
        field = card_field(names)
        if field:
            shown.append((ordinal, field))
    if n < len(shown):
        thumbnail = sample_thumbnail(site, version, *shown[n])
        if thumbnail is not None:
            return media_response(thumbnail)
    name = "no sample"
    if fields:
        name = ", ".join(fields[n % len(fields)])
    return Response(_drawing(name), media_type="image/svg+xml")


def _drawing(name: str) -> str:
    text = html.escape(clean(name, 12))
    style = 'font-family="sans-serif" font-size="8" fill="#888" text-anchor="middle"'
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 48"><rect width="64" height="48" fill="#8884"/>'
        f'<text x="32" y="27" {style}>{text}</text></svg>'
    )
