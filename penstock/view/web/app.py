"""The web application behind the guard: routes, static files, and the exclusion of samples."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from loader.errors import InvalidRuntime, PenstockError
from loader.json_text import parse_json_object

from ..front_ends import exclude_basket
from ..open_data import OpenData
from . import record_pages
from .guard import Guard, csrf
from .page import MOST_DIGITS, Site, error_response

MOST_SAMPLES = 10_000
_STATIC = Path(__file__).parent / "static"


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
    samples, reason, by, page = _parsed(body)
    return {"versions": list(exclude_basket(site.opened.root, samples, reason=reason, by=by, page=page))}


def _parsed(body: bytes) -> tuple[list[tuple[str, str]], str, str, str]:
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
        *record_pages.training_routes(site),
        *record_pages.version_routes(site),
    ]
    routes.append(Mount("/static", StaticFiles(directory=_STATIC)))
    app = Starlette(routes=routes, exception_handlers={404: not_found})
    return Guard(app, token=token, hosts=hosts, name=cookie, prefix=prefix, writes=writes)
