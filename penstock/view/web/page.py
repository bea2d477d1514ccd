"""Pages: a record as HTML by its template, as JSON at the same address with `.json`, and errors said in their place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from anyio import CapacityLimiter
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from loader.errors import (
    Corrupt,
    Denied,
    FieldNotFound,
    FormatTooNew,
    InvalidName,
    InvalidPlan,
    InvalidRuntime,
    MissingDependency,
    NotRecorded,
    PenstockError,
    RunNotFound,
    SampleNotFound,
    StoreError,
    VersionNotFound,
    VersionRetired,
)

from ...card.templates import templates
from ..inspect.recorded_step import failure_record
from ..json_record import plain
from ..open_data import OpenData
from ..outage import DOWN, OUTAGE_S
from ..shell_command import shell_command
from .pending import PendingPages, in_thread

MOST_DIGITS = 18
"""Digits of a number in an address: those of any that 64 bits hold. Python refuses to read 4,301."""
THREADS = 32
"""Pages that are made at once, and as many pictures. Static files have threads of their own."""
_HERE = Path(__file__).parent / "templates"
_STATUS: Mapping[type[PenstockError], int] = {
    RunNotFound: 404,
    VersionNotFound: 404,
    SampleNotFound: 404,
    FieldNotFound: 400,
    NotRecorded: 404,
    InvalidPlan: 404,
    InvalidRuntime: 404,
    InvalidName: 404,
    VersionRetired: 410,
    Denied: 403,
    **dict.fromkeys(DOWN, 503),
    StoreError: 502,
    Corrupt: 502,
    FormatTooNew: 502,
    MissingDependency: 501,
}


class _Number(Convertor[int]):
    """A whole number in a path, as `{step:number}`; one of more digits is of no page."""

    regex = f"[0-9]{{1,{MOST_DIGITS}}}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Settings of the server that every page knows."""

    opened: OpenData
    """Open versions and trainings."""
    ui: str = ""
    """URL of Dagster's webserver; "" for none."""
    csrf: str = ""
    """Value that a POST carries; "" where the server only reads."""
    page_threads: CapacityLimiter = field(default_factory=partial(CapacityLimiter, THREADS))
    """Threads that make pages."""
    media_threads: CapacityLimiter = field(default_factory=partial(CapacityLimiter, THREADS))
    """Threads that make pictures and sounds, which may wait for a store: pages do not wait for them."""
    pending: PendingPages = field(default_factory=PendingPages)
    """Pages that browsers wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The answer to an address."""

    template: str
    """Name of the template, without `.html.j2`."""
    record: Any
    """The record."""
    title: str
    """Title of the page."""
    more: Mapping[str, Any] | None = None
    """Values for the template alone."""


Make = Callable[[Site, Request], Page]


def page_routes(site: Site, path: str, make: Make) -> list[Route]:
    """Return the routes of a page: its record as JSON, and as HTML."""

    def respond(request: Request, as_json: bool) -> Response:
        try:
            made = site.opened.answer(lambda: make(site, request))
        except PenstockError as error:
            return error_response(site, request, error, as_json=as_json)
        if as_json:
            return JSONResponse(plain(made.record))
        return html(site, request, made)

    async def as_html(request: Request) -> Response:
        page = partial(respond, request, False)
        if "text/html" not in request.headers.get("accept", ""):
            return await in_thread(site.page_threads, page)
        key = request.scope["path"], request.scope["query_string"]
        return await site.pending.get(key, site.page_threads, page, partial(progress_response, site, request))

    async def as_json(request: Request) -> Response:
        return await in_thread(site.page_threads, partial(respond, request, True))

    json_path = f"{path}.json" if path != "/" else "/index.json"
    return [Route(json_path, as_json), Route(path, as_html)]


def html(site: Site, request: Request, made: Page, status: int = 200) -> HTMLResponse:
    """Return a page as HTML. `up` leads to the first page by a relative path, under any prefix."""
    depth = request.scope["path"].count("/") - 1
    text = (
        templates(_HERE)
        .get_template(f"{made.template}.html.j2")
        .render(
            record=made.record,
            title=made.title,
            up="../" * depth or "./",
            site=site,
            address=address,
            command=partial(_command, site),
            query=dict(request.query_params),
            json_address=json_address(request),
            **(made.more or {}),
        )
    )
    return HTMLResponse(text, status)


def progress_response(site: Site, request: Request, seconds: float) -> Response:
    """Return the page in place of one that is not made yet. The browser asks for that one again, every second."""
    more = {"seconds": int(seconds), "recipe": site.opened.recipe_state()}
    return html(site, request, Page(template="progress", record=None, title="penstock …", more=more), 202)


def error_response(site: Site, request: Request, error: PenstockError, *, as_json: bool) -> Response:
    """Return an error as the page it is in place of."""
    status, record = status_of(error), failure_record(error)
    response: Response
    if as_json:
        response = JSONResponse(plain(record), status)
    else:
        response = html(site, request, Page(template="error", record=record, title=record.error), status)
    response.headers.update(retry_after(error))
    return response


def retry_after(error: PenstockError) -> dict[str, str]:
    """Return the header of an answer that may be another one in a moment."""
    return {"retry-after": str(OUTAGE_S)} if isinstance(error, DOWN) else {}


def status_of(error: PenstockError) -> int:
    """Return the HTTP status of an error."""
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)


def json_address(request: Request) -> str:
    """Return the relative address of this page's record."""
    last = request.scope["path"].rpartition("/")[2]
    query = request.scope["query_string"].decode("latin-1")
    return f"{quote(last)}.json" + (f"?{query}" if query else "") if last else "index.json"


def address(*parts: object, **query: object) -> str:
    """Return a path of quoted parts, relative to the first page, with a query of what is not None or ""."""
    path = "/".join(quote(str(part), safe="@") for part in parts)
    asked = {name: value for name, value in query.items() if value not in (None, "")}
    return path + (f"?{urlencode(asked)}" if asked else "")


def number(request: Request, name: str, default: int | None = None) -> int:
    """Return a whole number of the query. Raises: InvalidRuntime."""
    given = request.query_params.get(name, "")
    if not given and default is not None:
        return default
    if not given.isdecimal() or len(given) > MOST_DIGITS:
        raise InvalidRuntime(
            f"{name} = {given[:100]!r}; a whole number from 0, of {MOST_DIGITS} digits at most, is needed"
        )
    return int(given)


def _command(site: Site, *words: object, names: Sequence[object] = ()) -> str:
    """Return a command of `penstock` over this root, as `shell_command`."""
    return shell_command(site.opened.root.url, *words, names=names)
