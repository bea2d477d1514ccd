"""The map of a version: its page, its image, and the sample at a point."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

import loader
from loader.errors import InvalidRuntime, PenstockError, SampleNotFound

from ...search.map.drawing import DARK, LIGHT, Box, parse_box
from ..facets.filter_address import filter_parameters, parse_filter
from ..facets.map_columns import CLUSTER, COSINE, SHARE, map_columns
from ..kinds.kind import Media
from ..maps.map_record import NearRecord, map_image, map_record, near_record
from ..maps.zoom import box_text, zoom_boxes
from ..page_address import WrongParameter, address, version_address
from ..sections.version_tabs import version_tabs
from .episode_pages import VERSION, requested_version
from .media import media_response, media_route
from .page import Page, Site, error_response, is_fragment, number, page_routes

ORDERS = {COSINE: "outliers first", SHARE: "odd labels first"}
"""Column of the map -> name of its order."""
COLOURS = 12
"""Columns of categories that the page offers for its colours."""
ZOOMS = {
    "in": ("+", "+", "Zoom in"),
    "out": ("-", "\N{MINUS SIGN}", "Zoom out"),
    "left": ("", "\N{LEFTWARDS ARROW}", "Move left"),
    "right": ("", "\N{RIGHTWARDS ARROW}", "Move right"),
    "up": ("", "\N{UPWARDS ARROW}", "Move up"),
    "down": ("", "\N{DOWNWARDS ARROW}", "Move down"),
    "whole": ("0", "all", "Show the whole map"),
}
"""Name of a part of the map -> (key, text and label of its link)."""


def map_routes(site: Site) -> list[Route]:
    """Return the routes of a version's map."""

    async def to_sample(request: Request) -> Response:
        try:
            record = await run_in_threadpool(_near_response, site, request)
            if record.ordinal is None:
                raise SampleNotFound(f"no sample of this filter is near {record.x},{record.y}")
        except PenstockError as error:
            return error_response(site, request, error, as_json=False)
        return RedirectResponse(address("..", "s", record.ordinal), 303)

    near_json, _ = page_routes(site, f"{VERSION}/map/near", _near_page)
    return [
        media_route(site, f"{VERSION}/map.png", _image),
        near_json,
        Route(f"{VERSION}/map/near", to_sample),
        *page_routes(site, f"{VERSION}/map", _map),
    ]


NO_COLOUR = "-"
"""Value of `colour=` for a map without categories: an empty one stands for the default."""


def parse_colour(query: QueryParams) -> str | None:
    """Return the column that an address names; "" for none, None for the default."""
    colour = query.get("colour", "")
    if colour == NO_COLOUR:
        return ""
    return colour or None


def filter_query(query: QueryParams, **changes: object) -> str:
    """Return the query of an address with the same filter, and with these parameters changed; at least "?"."""
    # The order of the samples is not part of the map.
    requested = replace(parse_filter(query.getlist), like="", sort="")
    parameters = {**filter_parameters(requested), "colour": query.get("colour", "")}
    return address("", **{**parameters, **changes}) or "?"


def _map(site: Site, request: Request) -> Page:
    version = requested_version(site, request)
    # A fragment stands in the page of the version, whose address has one part less.
    base = "../../"
    if not is_fragment(request):
        base = "../../../"
    values = map_values(
        site,
        version,
        request.query_params,
        base,
        is_beside=is_fragment(request),
    )
    record = values["map"]
    values["tabs"] = version_tabs(record.dataset, record.number, "Map")
    return Page(
        template="map",
        fragment="map_part",
        record=record,
        title=f"{version.name} map",
        more=values,
    )


def map_values(
    site: Site,
    version: loader.Version,
    query: QueryParams,
    base: str,
    *,
    is_beside: bool,
) -> dict[str, Any]:
    """Return the template values of a map. base: path to the first page. is_beside: True beside a version's samples."""
    record = map_record(
        version,
        parse_filter(query.getlist),
        site.opened.columns,
        box=query.get("box", ""),
        colour=parse_colour(query),
    )
    part = Box(*record.box)
    box = box_text(part)
    kept = _page_parameters(query, is_beside)
    zooms = []
    for name, other in zoom_boxes(part).items():
        key, text, label = ZOOMS[name]
        page = filter_query(query, box=box_text(other), **kept)
        zooms.append({"name": name, "key": key, "text": text, "label": label, "query": page})
    return {
        "map": record,
        "map_page": base + version_address(version.name),
        "is_beside": is_beside,
        "image": filter_query(query, box=box),
        "dark": filter_query(query, box=box, theme="dark"),
        "unlassoed": filter_query(query, lasso="", box=box, **kept),
        "unzoomed": filter_query(query, **kept),
        "zooms": zooms,
        "whole": filter_query(query, colour="", box=box),
        "orders": _orders(version, query, box, kept),
        "map_hidden": _form_parameters(query, box),
        "corners": record.lasso.replace(";", " "),
        "colours": _colours(site, version),
    }


def _orders(
    version: loader.Version,
    query: QueryParams,
    box: str,
    kept: Mapping[str, str],
) -> list[tuple[str, str]]:
    """Return the (name, query) pairs of orders of the samples that the map has."""
    of_map = map_columns(version)
    orders = []
    for column, name in ORDERS.items():
        if column in of_map:
            orders.append((name, filter_query(query, box=box, **{**kept, "sort": column})))
    return orders


def _page_parameters(query: QueryParams, is_beside: bool) -> dict[str, str]:
    """Return the parameters of the samples that links of a map beside them keep."""
    if not is_beside:
        return {}
    return {name: query.get(name, "") for name in ("like", "sort", "cols", "as")}


def _form_parameters(query: QueryParams, box: str) -> list[tuple[str, str]]:
    """Return the (name, value) pairs of the filter and the drawn part for a form."""
    filtered = filter_query(query, colour="", box=box)
    pairs = parse_qsl(filtered.removeprefix("?"))
    return [(name, value) for name, value in pairs if value.isprintable()]


def _colours(site: Site, version: loader.Version) -> list[str]:
    """Return columns of few values, of which stored statistics count the values, and the map's clusters."""
    statistics = site.opened.columns.statistics(version)
    names = [name for name in map_columns(version) if name == CLUSTER]
    for name, column in sorted(statistics.items()):
        n_values = len(column.get("categories") or ())
        if 1 < n_values <= 300:
            names.append(name)
    return names[:COLOURS]


def _image(site: Site, request: Request) -> Response:
    version = requested_version(site, request)
    query = request.query_params
    palette = LIGHT
    if query.get("theme") == "dark":
        palette = DARK
    png = map_image(
        version,
        parse_filter(query.getlist),
        site.opened.columns,
        box=_parse_query_box(query),
        colour=parse_colour(query),
        palette=palette,
    )
    return media_response(Media(type="image/png", data=png))


def _parse_query_box(query: QueryParams) -> Box:
    try:
        return parse_box(query.get("box", ""))
    except InvalidRuntime as error:
        raise WrongParameter(str(error)) from error


def _near_page(site: Site, request: Request) -> Page:
    return Page(
        template="",
        record=_near_response(site, request),
        title="",
    )


def _near_response(site: Site, request: Request) -> NearRecord:
    version = requested_version(site, request)
    query = request.query_params
    return near_record(
        version,
        parse_filter(query.getlist),
        site.opened.columns,
        (number(request, "x"), number(request, "y")),
        _parse_query_box(query),
    )
