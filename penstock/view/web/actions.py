"""Actions of the viewer, where the server was started with --allow-writes: samples are excluded, one version for all.

`guard` has admitted the request: JSON, of this server's own page, with its CSRF header.
"""

from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from loader.errors import InvalidRuntime, PenstockError
from loader.json_text import parse_json_object

from ..basket import exclude_basket
from .page import MOST_DIGITS, Site

MOST_SAMPLES = 10_000


def routes(site: Site) -> list[Route]:
    """Return the routes of actions; none where the server only reads."""
    if not site.csrf:
        return []

    async def exclude_samples(request: Request) -> Response:
        body = await request.body()
        try:
            return JSONResponse(await run_in_threadpool(_exclude, site, body))
        except PenstockError as error:
            return PlainTextResponse(f"{type(error).__name__}: {error}", 409)

    return [Route("/exclude", exclude_samples, methods=["POST"])]


def _exclude(site: Site, body: bytes) -> dict[str, Any]:
    """Exclude the samples of a basket, those of one dataset together. Raises: InvalidRuntime; as `exclude`."""
    samples, reason, by, page = _parsed(body)
    return {"versions": list(exclude_basket(site.opened.root, samples, reason=reason, by=by, page=page))}


def _parsed(body: bytes) -> tuple[list[tuple[str, str]], str, str, str]:
    """Return (version, key) of each sample, the reason, the person and the page. Raises: InvalidRuntime."""
    try:
        given = parse_json_object(body)
        samples = [(str(one["version"]), str(one["key"])) for one in given["samples"]]
        reason, by, page = (str(given[name]) for name in ("reason", "by", "page"))
        numbers = [version.partition("@")[2] for version, _ in samples]
        known = all(one.isdecimal() and len(one) <= MOST_DIGITS for one in numbers)
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidRuntime(f"no basket: {type(error).__name__}: {error}") from error
    if not samples or len(samples) > MOST_SAMPLES or not known:
        raise InvalidRuntime(
            f"a basket of {len(samples)} samples; accepted: 1 to {MOST_SAMPLES}, each with a version such as photos@3"
        )
    return samples, reason, by, page
