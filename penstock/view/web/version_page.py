"""A version's page: facets, the filter, and samples as a grid or a table."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request

import loader
from loader.errors import InvalidRuntime

from ...search.map.drawing import parse_box
from ..board.dataset_cards import gate_result
from ..facets.facet_terms import column_order
from ..facets.facets import facets_in_sight, first_columns, unread_columns
from ..facets.filter_address import parse_filter
from ..facets.map_columns import map_columns
from ..facets.version_columns import VersionColumns
from ..facets.version_filter import MOST_ADDRESS_BYTES, VersionFilter, has_texts
from ..inspect.grid_rows import LABEL, GridRow
from ..inspect.version_record import PAGE, VersionPageRecord, version_record
from ..kinds.field_sparks import has_spark
from ..kinds.stored_bytes import card_field
from ..maps.map_record import has_vectors
from ..maps.zoom import box_text
from ..polyline import SPARK_HEIGHT, SPARK_WIDTH
from ..sections.facets import (
    HEIGHT,
    MOST_OPEN,
    facet_sections,
    filter_query,
    form_parameters,
    label_colours,
    link_filter,
)
from ..sections.slices import save_command, slice_actions
from ..sections.texts import SparkPiece
from ..sections.version_tabs import version_tabs
from ..similarity_query import parse_like
from .episode_pages import requested_version
from .map_pages import map_values
from .page import Page, Site, is_fragment, number

MOST_CELLS_NOW = 200_000
"""Most values that an unfiltered page reads before it is shown: 40 ms of processor time."""


def version_page(site: Site, request: Request) -> Page:
    """Return the page. A wrong filter keeps the page and its status; the record's `.json` gets status 400."""
    version = requested_version(site, request)
    query = request.query_params
    requested = parse_filter(query.getlist)
    is_json = request.scope["path"].endswith(".json")
    facet_names = _names(query.getlist("facet"))
    columns = site.opened.columns
    counted = facets_in_sight(version, columns)
    later: list[str] = []
    if not is_json:
        counted, later = _split_columns(version, columns, requested, _asks_counts(request))
    record = version_record(
        version,
        requested,
        first=number(request, "from", 0),
        columns=_names(query.getlist("cols")),
        facet_names=[*counted, *facet_names],
        layout=query.get("as", ""),
        exact=query.get("exact", "") == "1",
        cache=columns,
        keep_page=not is_json,
        most_bytes=MOST_ADDRESS_BYTES,
        liked=partial(parse_like, site.opened, version),
    )
    record = replace(record, box=_box(query))
    more: dict[str, Any] = {
        "page": PAGE,
        "histogram_height": HEIGHT,
        "spark": {"width": SPARK_WIDTH, "height": SPARK_HEIGHT},
        "filtered": partial(filter_query, record),
        "column_order": column_order,
        "hidden": form_parameters(record),
    }
    if not is_json:
        more |= _page_values(site, version, record, facet_names)
        more |= {"later": later, **_map(site, version, query)}
        # A record has no facets to click, so only a page plans.
        columns.plan_ahead(version, first_columns(version, columns, MOST_OPEN))
    return Page(
        template="version",
        fragment="version_found",
        record=record,
        title=version.name,
        more=more,
    )


def _page_values(
    site: Site,
    version: loader.Version,
    record: VersionPageRecord,
    facet_names: Sequence[str],
) -> dict[str, Any]:
    """Return the template values that only a drawn page needs. facet_names: columns whose facets a person opened."""
    command = save_command(
        site.opened.root.url,
        version.name,
        record.sql,
        link_filter(record),
    )
    return {
        "thumbs": {row.ordinal: card_field(row.fields) for row in record.rows},
        "facets": facet_sections(record, facet_names),
        "dots": label_colours(record),
        "facts": _facts(version),
        "addable": _addable(version, record.columns, site.opened.columns),
        "sparks": _sparks(record.rows),
        "slice_actions": [slice_actions(version.name, name) for name in record.within],
        "save_command": command,
        "tabs": version_tabs(version.dataset, version.number, "Samples"),
        "has_texts": has_texts(version),
    }


def _map(
    site: Site,
    version: loader.Version,
    query: QueryParams,
) -> dict[str, Any]:
    """Return the template values of the map beside the samples, if it was read; a first page asks for it when shown."""
    values: dict[str, Any] = {"has_vectors": has_vectors(version), "map": None}
    if site.opened.columns.has_places(version):
        values |= map_values(
            site,
            version,
            query,
            "../../",
            is_beside=True,
        )
    return values


def _box(query: QueryParams) -> str:
    """Return the part of the map for the page's links; "" for a wrong one, which the map names."""
    try:
        return box_text(parse_box(query.get("box", "")))
    except InvalidRuntime:
        return ""


def _split_columns(
    version: loader.Version,
    columns: VersionColumns,
    requested: VersionFilter,
    is_asked: bool,
) -> tuple[list[str], list[str]]:
    """Return (columns to count for a page, columns that its script asks for when the page is shown).

    A filter needs all of them. Without one the page shows counts of stored statistics, and does not wait for columns.
    """
    drawn = first_columns(version, columns, MOST_OPEN)
    if requested.is_filtered:
        # A click is one request: its answer has all counts.
        return drawn, []
    unread = unread_columns(version, columns, drawn)
    # Cards show labels, which are read even if stored statistics count them.
    if LABEL in drawn and LABEL not in unread and not columns.has_codes(version, LABEL):
        unread.append(LABEL)
    n_cells = len(unread) * len(version)
    if is_asked or n_cells <= MOST_CELLS_NOW:
        return unread, []
    return [], unread


def _asks_counts(request: Request) -> bool:
    """Return whether a script or an address asks for the counts that a first page leaves for later."""
    return is_fragment(request) or request.query_params.get("counted") == "1"


def _names(values: Sequence[str]) -> list[str]:
    names: list[str] = []
    for value in values:
        names += value.split(",")
    return [name for name in names if name]


def _sparks(rows: Sequence[GridRow]) -> dict[int, dict[str, SparkPiece]]:
    """Return the lines of a table: ordinal -> field -> line."""
    sparks = {}
    for row in rows:
        sparks[row.ordinal] = {
            name: SparkPiece(points=spark.points, ticks=(), text=spark.text)
            for name, spark in row.sparks.items()
        }
    return sparks


def _addable(
    version: loader.Version,
    shown: Sequence[str],
    columns: VersionColumns,
) -> list[str]:
    """Return the columns, and the fields with lines, that a table does not show yet."""
    names = [*version.manifest["columns"], *filter(has_spark, version.fields)]
    if columns.has_places(version):
        names += map_columns(version)
    return [name for name in names if name not in {*shown, "key"}]


def _facts(version: loader.Version) -> Mapping[str, Any]:
    """Return bytes, checks of the gate and the Dagster run, from the manifest."""
    manifest = version.manifest
    producer = manifest["producer"]
    return {
        "nbytes": sum(group["nbytes"] for group in manifest["groups"].values()),
        "gate": gate_result(producer),
        "run": str(producer.get("dagster_run_id", "")),
    }
