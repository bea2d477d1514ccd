"""Dataset pages: the first page, versions, samples, and differences between versions."""

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from loader.api.explain import provenance

from ..episodes.open_episode import is_episode
from ..inspect.sample_record import check_ordinal, sample_record
from ..inspect.version_record import PAGE, difference, fields_of, root_record, version_record
from .episode_pages import SAMPLE, VERSION, episode_page, episode_routes, requested_version
from .media import (
    FIELD_TYPES,
    media_response,
    media_route,
    neighbours_field,
    raw_response,
    raw_shown,
    sample_media,
    sample_thumbnail,
    stored_response,
    thumbnail_field,
)
from .page import Page, Site, number, page_routes


def routes(site: Site) -> list[Route]:
    return [
        *episode_routes(site),
        media_route(site, f"{SAMPLE}/thumb/{{field}}", _thumbnail),
        media_route(site, f"{SAMPLE}/stored/{{field}}", _stored),
        media_route(site, f"{SAMPLE}/raw", _raw),
        media_route(site, f"{SAMPLE}/decoded/{{field}}/{{n:number}}", _decoded),
        *page_routes(site, SAMPLE, _sample),
        *page_routes(site, f"{VERSION}/diff/{{other:number}}", _diff),
        *page_routes(site, VERSION, _version),
        *page_routes(site, "/", _home),
    ]


def _home(site: Site, request: Request) -> Page:
    return Page(template="home", record=root_record(site.opened.root), title="penstock")


def _version(site: Site, request: Request) -> Page:
    version = requested_version(site, request)
    query = request.query_params
    record = version_record(
        version, where=query.get("where", ""), sort=query.get("sort", ""), first=number(request, "from", 0)
    )
    thumbs = {row.ordinal: thumbnail_field(row.fields) for row in record.rows}
    more = {"thumbs": thumbs, "page": PAGE, "quoted": _sql_literal}
    return Page(template="version", record=record, title=version.name, more=more)


def _sample(site: Site, request: Request) -> Page:
    version, ordinal = requested_version(site, request), _ordinal(request)
    check_ordinal(version, ordinal)
    if is_episode(version, fields_of(version, [ordinal])[0]):
        return episode_page(site, request)
    search = site.opened.run_search(request.query_params.get("trainings"))
    record = sample_record(version, ordinal, search)
    pictures = {
        one.field: len(sample_media(site, version, record.ordinal, one.field))
        for one in record.fields
        if one.decoded is not None
    }
    plays = {one.field: FIELD_TYPES.get(one.field.rpartition(".")[2].lower(), "") for one in record.fields}
    more = {"pictures": pictures, "plays": plays, "thumb": neighbours_field(version, record.neighbours)}
    more["raw"] = raw_shown(site, record.provenance.get("raw_uri", ""))
    return Page(template="sample", record=record, title=f"{version.name} sample {record.ordinal}", more=more)


def _diff(site: Site, request: Request) -> Page:
    dataset = request.path_params["dataset"]
    a = site.opened.version(dataset, int(request.path_params["number"]))
    b = site.opened.version(dataset, int(request.path_params["other"]))
    record = difference(a, b)
    return Page(template="diff", record=record, title=f"{a.name} and {b.name}")


def _sql_literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _thumbnail(site: Site, request: Request) -> Response:
    return media_response(
        sample_thumbnail(
            site, requested_version(site, request), _ordinal(request), request.path_params["field"]
        )
    )


def _stored(site: Site, request: Request) -> Response:
    version, ordinal = requested_version(site, request), _ordinal(request)
    check_ordinal(version, ordinal)
    return stored_response(site, version, ordinal, request.path_params["field"], request)


def _raw(site: Site, request: Request) -> Response:
    version, ordinal = requested_version(site, request), _ordinal(request)
    check_ordinal(version, ordinal)
    (address,) = version.address(np.array([ordinal]), [])
    (origin,) = provenance(version, [address])
    return raw_response(site, origin.get("raw_uri", ""), f"raw-{ordinal}.bin", request)


def _decoded(site: Site, request: Request) -> Response:
    media = sample_media(
        site, requested_version(site, request), _ordinal(request), request.path_params["field"]
    )
    n = int(request.path_params["n"])
    return media_response(media[n] if n < len(media) else None)


def _ordinal(request: Request) -> int:
    return int(request.path_params["ordinal"])
