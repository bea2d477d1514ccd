"""The web application behind the guard: pages, static files, exclusion of samples."""

from collections.abc import Collection
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

import loader
from loader.api.explain import provenance
from loader.errors import InvalidRuntime, PenstockError
from loader.json_text import parse_json_object
from loader.order.sources.window_layout import ROW
from loader.order.sources.window_view import WindowView

from ..episodes.open_episode import is_episode
from ..inspect.recorded_step import attach_recorded_step
from ..inspect.run_comparison import run_comparison
from ..inspect.sample_record import check_ordinal, sample_record
from ..inspect.step_range import step_range
from ..inspect.step_record import StepRecord, part_of
from ..inspect.version_record import (
    difference,
    sample_fields,
)
from ..open_data import OpenData
from ..page_address import address
from ..replays.training import Training
from ..rollouts.open_rollout import is_rollout
from ..sample_relations import phash_neighbours
from ..sections.comparisons import comparison_sections, difference_sections
from ..sections.sample import SampleMedia, sample_sections
from ..sections.slot import slot_sections
from ..sections.step import step_sections
from ..sections.step_range import step_range_sections
from ..shown_values import version_of
from ..similarity_query import like_page
from .decision_pages import decision_routes, step_decision
from .episode_pages import SAMPLE, VERSION, episode_page, episode_routes, requested_version
from .find import find_route
from .guard import Guard, csrf
from .home_page import home_routes
from .map_pages import map_routes
from .media import (
    media_response,
    media_route,
    media_type,
    neighbours_field,
    raw_response,
    raw_shown,
    sample_media,
    sample_thumbnail,
    slot_media,
    stored_response,
)
from .page import MOST_DIGITS, Page, Site, error_response, number, page_routes, section_page
from .rollout_pages import rollout_page, rollout_routes
from .run_page import run_page
from .slice_pages import slice_routes
from .static_files import static_route
from .version_page import version_page
from .version_tab_pages import version_tab_routes

MOST_SAMPLES = 10_000
MOST_ALIKE = 4
"""Bad slots of a step whose look-alikes are counted: each reads the column of hashes once."""


def _action_routes(site: Site) -> list[Route]:
    if not site.csrf:  # the server was started without --allow-writes
        return []

    async def exclude_samples(request: Request) -> Response:
        body = await request.body()
        try:
            return JSONResponse(await run_in_threadpool(_exclude, site, body))
        except PenstockError as error:
            return PlainTextResponse(f"{type(error).__name__}: {error}", 409)

    return [Route("/exclude", exclude_samples, methods=["POST"])]


def _exclude(site: Site, body: bytes) -> dict[str, Any]:
    samples, reason, by, page = _parse_body(body)
    return {"versions": list(site.opened.exclude(samples, reason=reason, by=by, page=page))}


def _parse_body(body: bytes) -> tuple[list[tuple[str, str]], str, str, str]:
    try:
        request = parse_json_object(body)
        samples = [(str(sample["version"]), str(sample["key"])) for sample in request["samples"]]
        reason, by, page = (str(request[name]) for name in ("reason", "by", "page"))
        numbers = [version.partition("@")[2] for version, _ in samples]
        known = all(number.isdecimal() and len(number) <= MOST_DIGITS for number in numbers)
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidRuntime(f"not a basket: {type(error).__name__}: {error}") from error
    if not samples or len(samples) > MOST_SAMPLES or not known:
        raise InvalidRuntime(
            f"a basket of {len(samples)} samples; accepted: 1 to {MOST_SAMPLES}, each with a version such as photos@3"
        )
    return samples, reason, by, page


def application(
    opened: OpenData,
    *,
    token: str,
    hosts: Collection[str],
    cookie: str,
    prefix: str = "",
    ui: str = "",
    writes: bool = False,
) -> ASGIApp:
    """Return the ASGI application. `Guard` and `Site` describe the arguments."""
    site = Site(opened=opened, ui=ui, csrf=csrf(token) if writes else "")

    async def not_found(request: Request, error: Exception) -> Response:
        path = request.scope["path"]
        failure = InvalidRuntime(f"there is no page {path[:200]!r}; the first page lists runs and datasets")
        return error_response(site, request, failure, as_json=path.endswith(".json"))

    routes: list[Route | Mount] = [
        *_action_routes(site),
        *training_routes(site),
        *version_routes(site),
        *slice_routes(site),
        find_route(site),
        static_route(),
    ]
    app = Starlette(routes=routes, exception_handlers={404: not_found})
    return Guard(app, token=token, hosts=hosts, name=cookie, prefix=prefix, writes=writes)


def training_routes(site: Site) -> list[Route]:
    return [
        media_route(site, "/r/{run}/{step:number}/thumb/{slot:number}/{field}", _step_thumbnail),
        media_route(site, "/r/{run}/{step:number}/{slot:number}/{stage}/{field}/{n:number}", _slot_media),
        media_route(site, "/r/{run}/{step:number}/{slot:number}/raw", _slot_raw),
        *page_routes(site, "/r/{run}/{step:number}/{slot:number}", _slot),
        *page_routes(site, "/r/{run}/{step:number}", _step),
        Route("/r/{run}/against", _to_comparison),
        *page_routes(site, "/r/{run}/against/{other}", _comparison_page),
        *page_routes(site, "/r/{run}/window", _step_range),
        *decision_routes(site),
        *page_routes(site, "/r/{run}", run_page),
    ]


async def _to_comparison(request: Request) -> Response:
    # A form sends the other run in the query, and the page has it in its path.
    return RedirectResponse(address("against", request.query_params.get("run", "")), 303)


def _comparison_page(site: Site, request: Request) -> Page:
    runs = request.path_params["run"], request.path_params["other"]
    record = run_comparison(site.opened.root, *(loader.read_trail(site.opened.root, run) for run in runs))
    return section_page(record, comparison_sections(record))


def _step_range(site: Site, request: Request) -> Page:
    training = _training(site, request)
    first, last = (
        number(request, name) if request.query_params.get(name) else None for name in ("from", "to")
    )
    record = step_range(training, first, last)
    return section_page(record, step_range_sections(record))


def _step(site: Site, request: Request) -> Page:
    training = _training(site, request)
    step = request.path_params["step"]
    with attach_recorded_step(training, step):
        record = site.opened.step_record(training, step, *_part(training, request))
    page = step_sections(
        record,
        alike=_look_alikes(site, record),
        like_pages=_like_pages(site, record),
        n_unsearched=max(0, len(record.bad_slots) - MOST_ALIKE),
        recipe=site.opened.recipe or "",
        **step_decision(site, training, step),
    )
    return section_page(record, page)


def _look_alikes(site: Site, record: StepRecord) -> dict[int, int]:
    """Return bad slot -> number of its sample's look-alikes, for the first bad slots that have some."""
    alike = {}
    # Hashes of all samples are compared: a page of 64 bad slots would compare them 64 times.
    for row in record.bad_slots[:MOST_ALIKE]:
        dataset, _, version_number = row.version.partition("@")
        with suppress(PenstockError):  # the slot's own page shows the error
            version = site.opened.version(dataset, int(version_number))
            key = ("alike", version.id, row.ordinal)
            neighbours = site.opened.cached(
                site.opened.media, key, partial(phash_neighbours, version, row.ordinal)
            )
            if neighbours:
                alike[row.slot] = len(neighbours)
    return alike


def _like_pages(site: Site, record: StepRecord) -> dict[int, str]:
    """Return bad slot -> page of the samples most similar to its sample, for the first bad slots that have one."""
    pages = {}
    for row in record.bad_slots[:MOST_ALIKE]:
        dataset, _, version_number = row.version.partition("@")
        with suppress(PenstockError):  # the slot's own page shows the error
            page = like_page(site.opened.version(dataset, int(version_number)), row.key)
            if page:
                pages[row.slot] = page
    return pages


def _slot(site: Site, request: Request) -> Page:
    training = _training(site, request)
    path = request.path_params
    with attach_recorded_step(training, path["step"], path["slot"]):
        return _slot_page(site, request, training)


def _slot_page(site: Site, request: Request, training: Training) -> Page:
    step = request.path_params["step"]
    slot = request.path_params["slot"]
    record, values = site.opened.slot_record(training, step, slot, request.query_params.get("trainings"))
    images = {}
    for row in record.fields:
        for stage in ("decoded", *(("transformed", "original") if row.transformed is not None else ())):
            media = slot_media(site, training.name, values, record.trouble, stage, row.field)
            images[stage, row.field] = len(media)
    sizes = {
        name: (value.shape[1], value.shape[0])
        for name, value in values.decoded.items()
        if getattr(value, "ndim", 0) == 3
    }
    plan = training.plan(step)
    version = version_of(plan, values.source)
    view = plan.sources[values.source].view
    window = None
    if isinstance(view, WindowView) and ROW in values.decoded:
        window = (int(values.decoded[ROW]), view.layout.anchor)
    raw, raw_type = raw_shown(site, record.provenance.get("raw_uri", ""))
    shown = SampleMedia(
        images=images,
        sizes=sizes,
        raw=raw,
        raw_type=raw_type,
        thumb=neighbours_field(version, record.neighbours),
        like="" if version is None or record.packed else like_page(version, record.key),
    )
    part = _part(training, request)
    return section_page(record, slot_sections(record, shown, part, window=window, ui=site.ui))


def _slot_raw(site: Site, request: Request) -> Response:
    run, step, slot = (request.path_params[name] for name in ("run", "step", "slot"))
    values, _ = site.opened.slot(run, step, slot)
    version = version_of(site.opened.training(run).plan(step), values.source)
    origin = provenance(version, [values.address])[0] if version is not None else {}
    return raw_response(site, origin.get("raw_uri", ""), f"raw-{step}-{slot}.bin", request)


def _step_thumbnail(site: Site, request: Request) -> Response:
    path = request.path_params
    training = _training(site, request)
    part = _part(training, request)
    thumbnails, trouble = site.opened.thumbnails(training.name, path["step"], *part, path["slot"])
    return media_response(thumbnails.get(path["field"]), trouble)


def _slot_media(site: Site, request: Request) -> Response:
    path = request.path_params
    values, trouble = site.opened.slot(path["run"], path["step"], path["slot"])
    media = slot_media(site, path["run"], values, trouble, path["stage"], path["field"])
    return media_response(dict(enumerate(media)).get(path["n"]), trouble)


def _training(site: Site, request: Request) -> Training:
    return site.opened.training(request.path_params["run"])


def _part(training: Training, request: Request) -> tuple[int, int]:
    part = [number(request, name) if request.query_params.get(name) else None for name in ("rank", "world")]
    return part_of(training, request.path_params["step"], *part)


def version_routes(site: Site) -> list[Route]:
    return [
        *episode_routes(site),
        *rollout_routes(site),
        media_route(site, f"{SAMPLE}/thumb/{{field}}", _thumbnail),
        media_route(site, f"{SAMPLE}/stored/{{field}}", _stored_field),
        media_route(site, f"{SAMPLE}/raw", _raw),
        media_route(site, f"{SAMPLE}/decoded/{{field}}/{{n:number}}", _decoded_field),
        *page_routes(site, SAMPLE, _sample),
        *page_routes(site, f"{VERSION}/diff/{{other:number}}", _diff),
        *version_tab_routes(site),
        *map_routes(site),
        *page_routes(site, VERSION, version_page),
        *home_routes(site),
    ]


def _sample(site: Site, request: Request) -> Page:
    version, ordinal = _requested_sample(site, request)
    check_ordinal(version, ordinal)
    (names,) = sample_fields(version, [ordinal])
    if is_rollout(names):
        return rollout_page(site, version, ordinal, request)
    if is_episode(version, names):
        return episode_page(site, request)
    search = site.opened.run_search(request.query_params.get("trainings"))
    record = sample_record(
        version,
        ordinal,
        search,
        site.opened.slice_search,
        searches=site.opened.columns.searches,
    )
    images = {}
    for field in record.fields:
        if field.decoded is not None:
            media = sample_media(site, version, record.ordinal, field.field)
            images["decoded", field.field] = len(media)
    raw, raw_type = raw_shown(site, record.provenance.get("raw_uri", ""))
    shown = SampleMedia(
        images=images,
        players={one.field: media_type(one.field) for one in record.fields},
        raw=raw,
        raw_type=raw_type,
        thumb=neighbours_field(version, [*record.neighbours, *record.similar]),
        like=like_page(version, record.key),
    )
    return section_page(record, sample_sections(record, shown, request.query_params))


def _diff(site: Site, request: Request) -> Page:
    path = request.path_params
    a, b = (site.opened.version(path["dataset"], path[name]) for name in ("number", "other"))
    record = difference(a, b)
    return section_page(record, difference_sections(record))


def _thumbnail(site: Site, request: Request) -> Response:
    return media_response(
        sample_thumbnail(site, *_requested_sample(site, request), request.path_params["field"])
    )


def _stored_field(site: Site, request: Request) -> Response:
    version, ordinal = _requested_sample(site, request)
    check_ordinal(version, ordinal)
    return stored_response(site, version, ordinal, request.path_params["field"], request)


def _raw(site: Site, request: Request) -> Response:
    version, ordinal = _requested_sample(site, request)
    check_ordinal(version, ordinal)
    (address,) = version.address(np.array([ordinal]), [])
    (origin,) = provenance(version, [address])
    return raw_response(site, origin.get("raw_uri", ""), f"raw-{ordinal}.bin", request)


def _decoded_field(site: Site, request: Request) -> Response:
    media = sample_media(site, *_requested_sample(site, request), request.path_params["field"])
    return media_response(dict(enumerate(media)).get(request.path_params["n"]))


def _requested_sample(site: Site, request: Request) -> tuple[loader.Version, int]:
    return requested_version(site, request), request.path_params["ordinal"]
