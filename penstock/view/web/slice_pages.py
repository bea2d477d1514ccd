"""The pages of slices, and the requests that save, exclude and remove one."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from loader.dataset.slices import Samples, remove_slice
from loader.dataset.versions.slice_members import newest_slice
from loader.errors import InvalidRuntime, PenstockError
from loader.json_text import parse_json_object

from ...upkeep.exclusion import exclude_slice
from ..facets.filter_address import ParameterValues, parse_filter
from ..facets.filter_members import find_ordinals
from ..facets.slice_samples import check_rule
from ..facets.version_filter import VersionFilter, check_limit
from ..inspect.slices_record import slices_record
from ..sections.slices import slice_sections, slices_sections
from ..similarity_query import parse_like
from .page import MOST_DIGITS, Page, Site, number, page_routes, section_page

MOST_KEYS = 10_000
"""Keys of one request; a body has at most a mebibyte."""
Write = Callable[[Site, bytes], dict[str, Any]]


def slice_routes(site: Site) -> list[Route]:
    """Return the pages of slices; with `--allow-writes` also the routes that change them."""
    routes = [
        *page_routes(site, "/slices/{dataset}/{name}", _slice),
        *page_routes(site, "/slices", _slices),
    ]
    if site.csrf:
        routes += [
            _writing_route(site, "/slice", _save),
            _writing_route(site, "/slice/exclude", _exclude),
            _writing_route(site, "/slice/remove", _remove),
        ]
    return routes


def _slices(site: Site, request: Request) -> Page:
    first = number(request, "from", 0)
    record = slices_record(
        site.opened.root,
        site.opened.slice_trainings,
        first,
    )
    return section_page(record, slices_sections(record))


def _slice(site: Site, request: Request) -> Page:
    path = request.path_params
    record = site.opened.slice_page(path["dataset"], path["name"])
    return section_page(record, slice_sections(record))


def _writing_route(site: Site, path: str, write: Write) -> Route:
    async def respond(request: Request) -> Response:
        body = await request.body()
        try:
            answer = await run_in_threadpool(write, site, body)
        except PenstockError as error:
            return PlainTextResponse(f"{type(error).__name__}: {error}", 409)
        return JSONResponse(answer)

    return Route(path, respond, methods=["POST"])


def _save(site: Site, body: bytes) -> dict[str, Any]:
    request = _parse_body(body)
    try:
        page = str(request["page"])
        samples = _samples(site, request)
    except (TypeError, KeyError) as error:
        raise InvalidRuntime(f"not a slice: {type(error).__name__}: {error}") from error
    saved = site.opened.root.save_slice(
        request["version"],
        request["name"],
        samples,
        by=request["by"],
        why=request["why"],
        page=page,
    )
    return saved.to_json()


def _exclude(site: Site, body: bytes) -> dict[str, Any]:
    """Exclude a slice's samples, as `penstock exclude --slice`."""
    request = _parse_body(body)
    opened = site.opened.root.open(request["version"])
    record = newest_slice(opened, request["name"])
    check_rule(record)
    _, version, missing = exclude_slice(
        site.opened.root,
        request["version"],
        request["name"],
        reason=request["why"],
        by=request["by"],
    )
    return {"versions": [version.name], "gone": list(missing)}


def _remove(site: Site, body: bytes) -> dict[str, Any]:
    """End a slice, as `penstock slice rm`."""
    request = _parse_body(body)
    dataset, _, _ = request["version"].partition("@")
    removed = remove_slice(
        site.opened.root,
        dataset,
        request["name"],
        by=request["by"],
        why=request["why"],
    )
    return removed.to_json()


def _parse_body(body: bytes) -> dict[str, Any]:
    """Return a request with its texts: version, name, by, why. Raises: InvalidRuntime."""
    try:
        request = parse_json_object(body)
        texts = {name: str(request[name]) for name in ("version", "name", "by", "why")}
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidRuntime(f"not a slice: {type(error).__name__}: {error}") from error
    version = texts["version"]
    version_number = version.partition("@")[2]
    # A bare dataset would be another version for each of two people.
    if not version_number.isdecimal() or len(version_number) > MOST_DIGITS:
        raise InvalidRuntime(f"version = {version[:100]!r}; pass one such as photos@3")
    return {**request, **texts}


def _samples(site: Site, request: Mapping[str, Any]) -> Samples:
    """Return the keys of a list, the SQL of a rule, or the ordinals that any other filter of a page finds.

    Raises: InvalidRuntime; FieldNotFound; KeyError; as `find_ordinals`.
    """
    if "keys" in request:
        keys = [str(key) for key in request["keys"]]
        if not keys or len(keys) > MOST_KEYS:
            raise InvalidRuntime(f"{len(keys):,} keys; accepted: 1 to {MOST_KEYS:,}")
        return keys
    asked = _parse_query(request)
    if asked == VersionFilter():
        raise InvalidRuntime(
            "neither keys nor a filter: pass keys, or where, words, like, in, not, lasso or t"
        )
    if asked.is_rule and "filter" not in request:
        check_limit(asked.sql, "where")
        return asked.sql
    dataset, _, version_number = request["version"].partition("@")
    version = site.opened.version(dataset, int(version_number))
    return find_ordinals(
        version,
        asked,
        site.opened.columns,
        request.get("k"),
        partial(parse_like, site.opened, version),
    )


def _parse_query(request: Mapping[str, Any]) -> VersionFilter:
    """Return the filter in a page's query (`filter`), or in members of their own. The order is not part of it."""
    values: ParameterValues = partial(_values, request)
    if "filter" in request:
        values = QueryParams(str(request["filter"]).removeprefix("?")).getlist
    return replace(parse_filter(values), sort="")


def _values(request: Mapping[str, Any], name: str) -> list[str]:
    """Return the values of a part of a filter: a text, or a list of texts."""
    value = request.get(name, [])
    if isinstance(value, str):
        return [value]
    return [str(one) for one in value]
