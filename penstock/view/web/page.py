"""Render a record as HTML by its template, and as JSON under `.json`. Errors are shown instead."""

import asyncio
import gzip
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from anyio import CapacityLimiter
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
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
    NotIndexed,
    NotRecorded,
    PenstockError,
    RunNotFound,
    SampleNotFound,
    SliceNotFound,
    StoreError,
    VersionNotFound,
    VersionRetired,
)

from ...card.render import templates
from ...text import shell_command
from ...threads import DaemonThreads
from ..inspect.recorded_step import failure_record
from ..json_record import plain
from ..open_data import OpenData
from ..outage import DOWN, OUTAGE_S
from ..page_address import WrongParameter, address
from ..sections.section import SectionPage
from ..sections.texts import plain_text
from .static_files import PATH

PATIENCE_S = 1.5
"""Seconds until a browser gets a progress page."""
KEPT_S = 10.0
"""Seconds that a finished page waits for its request."""
_THREADS = DaemonThreads()
LEAST_COMPRESSED_BYTES = 2000
"""Bytes of an answer from which on it is compressed."""
MOST_DIGITS = 18
"""Digits of an address's number, which fits into 64 bits. Python rejects 4,301 digits."""
THREADS = 32
"""Pages made at the same time, and images. Static files have their own threads."""
_HERE = Path(__file__).parent / "templates"
COMMON_TEMPLATES = ("section_page", "layout", "sections")
_STATUS: Mapping[type[PenstockError], int] = {
    WrongParameter: 400,
    RunNotFound: 404,
    VersionNotFound: 404,
    SampleNotFound: 404,
    SliceNotFound: 404,
    FieldNotFound: 400,
    NotIndexed: 404,
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


async def in_thread(limiter: CapacityLimiter, make: Callable[[], Response]) -> Response:
    """Return `make`'s response, called in a thread that does not delay shutdown."""
    async with limiter:
        try:
            return await asyncio.get_running_loop().run_in_executor(_THREADS, make)
        except asyncio.CancelledError:  # the server is shutting down, but the browser still gets a response
            return PlainTextResponse("the viewer ends", 503)


@dataclass(slots=True, eq=False)
class _Pending:
    task: "asyncio.Task[Response]"
    began_at: float = field(default_factory=time.monotonic)
    done_at: float | None = None

    def ended(self, _: object) -> None:
        self.done_at = time.monotonic()

    def is_old(self) -> bool:
        return self.done_at is not None and time.monotonic() - self.done_at > KEPT_S


class PendingPages:
    """Pages by address; a second request waits for the same page."""

    def __init__(self) -> None:
        self._pages: dict[Hashable, _Pending] = {}

    async def get(
        self,
        key: Hashable,
        limiter: CapacityLimiter,
        make: Callable[[], Response],
        progress: Callable[[float], Response],
    ) -> Response:
        """Return `make`'s response; if that takes too long, `progress`'s."""
        for old in [one for one, page in self._pages.items() if page.is_old()]:
            del self._pages[old]
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = _Pending(asyncio.create_task(in_thread(limiter, make)))
            page.task.add_done_callback(page.ended)
        done, _ = await asyncio.wait({page.task}, timeout=PATIENCE_S)
        seconds = time.monotonic() - page.began_at
        if not done:
            return await in_thread(limiter, partial(progress, seconds))
        # Given out once: a reload makes the page anew, from the newest data.
        self._pages.pop(key, None)
        return page.task.result()


class _Number(Convertor[int]):
    """An integer in a path, `{step:number}`; too many digits match no page."""

    regex = f"[0-9]{{1,{MOST_DIGITS}}}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Settings shared by all pages."""

    opened: OpenData
    """Open versions and runs."""
    ui: str = ""
    """Dagster's webserver URL, or ""."""
    csrf: str = ""
    """Value that a POST must carry; "" if read-only."""
    page_threads: CapacityLimiter = field(default_factory=partial(CapacityLimiter, THREADS))
    """Limit on pages' threads."""
    media_threads: CapacityLimiter = field(default_factory=partial(CapacityLimiter, THREADS))
    """Limit on threads for images and audio, separate so that slow stores do not delay pages."""
    pending: PendingPages = field(default_factory=PendingPages)
    """Pages in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    template: str
    """Without `.html.j2`."""
    record: Any
    """Record to show."""
    title: str
    more: Mapping[str, Any] | None = None
    """Other template values."""
    fragment: str = ""
    """Template of the part that changes, for requests of the page's script; "" for the whole page."""


Make = Callable[[Site, Request], Page]


def section_page(record: Any, page: SectionPage | None) -> Page:
    """Return a page of sections. record: for its `.json`. page: None if only that is needed."""
    if page is None:
        return Page(template="", record=record, title="")
    return Page(template="section_page", record=record, title=plain_text(page.title), more={"page": page})


def page_routes(site: Site, path: str, make: Make) -> list[Route]:
    """Return the routes of a page's record as JSON and HTML."""

    def respond(request: Request, as_json: bool) -> Response:
        try:
            page = site.opened.answer(lambda: make(site, request))
        except PenstockError as error:
            return error_response(site, request, error, as_json=as_json)
        if as_json:
            return compress_response(request, JSONResponse(plain(page.record)))
        return compress_response(request, html(site, request, page))

    async def as_html(request: Request) -> Response:
        make_page = partial(respond, request, False)
        # Only a browser gets the page of progress, which reloads itself: a script would take it for the answer.
        takes_html = "text/html" in request.headers.get("accept", "")
        is_browser = takes_html and not is_fragment(request)
        if not is_browser:
            return await in_thread(site.page_threads, make_page)
        key = request.scope["path"], request.scope["query_string"]
        return await site.pending.get(
            key, site.page_threads, make_page, partial(progress_response, site, request)
        )

    async def as_json(request: Request) -> Response:
        return await in_thread(site.page_threads, partial(respond, request, True))

    json_path = "/index.json"
    if path != "/":
        json_path = f"{path}.json"
    return [Route(json_path, as_json), Route(path, as_html)]


def compress_response(request: Request, response: Response) -> Response:
    """Return a response compressed by gzip if the client takes it, such as every browser.

    Each value of a facet is a link with the whole filter, so 30 kB become 4. A guess at the csrf value by the length of
    answers (BREACH) needs requests with the cookie from other sites, which SameSite=Strict keeps out.
    """
    accepted = request.headers.get("accept-encoding", "")
    body = bytes(response.body)
    if "gzip" not in accepted or len(body) < LEAST_COMPRESSED_BYTES:
        return response
    # Level 4 takes 0.2 ms for 40 kB; level 9 three times that, for 5 % less.
    response.body = gzip.compress(body, compresslevel=4, mtime=0)
    response.headers["content-length"] = str(len(response.body))
    response.headers["content-encoding"] = "gzip"
    response.headers["vary"] = "accept-encoding"
    return response


def is_fragment(request: Request) -> bool:
    """Return whether a script asks for the part of a page that changes, not a person for a page."""
    return request.headers.get("hx-request") == "true"


def compile_templates() -> None:
    """Compile what every page includes, which takes as long as drawing it."""
    environment = templates(_HERE)
    for name in COMMON_TEMPLATES:
        environment.get_template(f"{name}.html.j2")


def html(site: Site, request: Request, page: Page, status: int = 200) -> HTMLResponse:
    """Return HTML. Template value `up` is the relative path to the first page, `static` the files' folder."""
    depth = request.scope["path"].count("/") - 1
    up = "../" * depth or "./"
    template = page.template
    if is_fragment(request):
        template = page.fragment or template
    text = (
        templates(_HERE)
        .get_template(f"{template}.html.j2")
        .render(
            record=page.record,
            title=page.title,
            up=up,
            static=up + PATH,
            site=site,
            address=address,
            command=partial(_command, site),
            query=dict(request.query_params),
            json_address=json_address(request),
            **(page.more or {}),
        )
    )
    return HTMLResponse(text, status)


def progress_response(site: Site, request: Request, seconds: float) -> Response:
    """Return a page that retries the requested one every second."""
    more = {"seconds": int(seconds), "recipe": site.opened.recipe_state()}
    return html(site, request, Page(template="progress", record=None, title="penstock …", more=more), 202)


def error_response(site: Site, request: Request, error: PenstockError, *, as_json: bool) -> Response:
    status = error_status(error)
    record = failure_record(error)
    response: Response
    if as_json:
        response = JSONResponse(plain(record), status)
    else:
        failure = Page(template="error", fragment="error_found", record=record, title=record.error)
        response = html(site, request, failure, status)
    response.headers.update(retry_header(error))
    return response


def retry_header(error: PenstockError) -> dict[str, str]:
    """Return the Retry-After header of a temporary failure."""
    if isinstance(error, DOWN):
        return {"retry-after": str(OUTAGE_S)}
    return {}


def error_status(error: PenstockError) -> int:
    # In the order of `_STATUS`, where subclasses come before their base.
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)


def json_address(request: Request) -> str:
    """Return the address of a page's JSON, relative to the page."""
    last = request.scope["path"].rpartition("/")[2]
    query = request.scope["query_string"].decode("latin-1")
    address = "index.json"
    if last:
        address = f"{quote(last)}.json"
    if query:
        address += f"?{query}"
    return address


def number(request: Request, name: str, default: int | None = None) -> int:
    text = request.query_params.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise InvalidRuntime(
            f"{name} = {text[:100]!r}; pass a whole number from 0, of up to {MOST_DIGITS} digits"
        )
    return int(text)


def _command(site: Site, *words: object, names: Sequence[object] = ()) -> str:
    return shell_command(site.opened.root.url, *words, names=names)
