"""Styles, scripts and the icon, under an address with their digest, so that browsers keep them for good."""

import hashlib
from pathlib import Path

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER = Path(__file__).parent / "static"
# "private": the files need the token's cookie as pages do, so no shared cache may hand them out.
_KEPT = "private, max-age=31536000, immutable"


def _folder_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


DIGEST = _folder_digest(FOLDER)
"""Digest of all files: scripts import each other by relative addresses, so all share one folder."""
PATH = f"static/{DIGEST}/"
"""Path of the folder, relative to the viewer's first page."""


SHEETS = ("tokens.css", "view.css")
"""Styles of every page, in order; served as one file, `page.css`: a request less for a first page."""


class _Immutable:
    """ASGI middleware: a file that was sent never changes at its address."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_age(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in (200, 206, 304):
                MutableHeaders(scope=message)["cache-control"] = _KEPT
            await send(message)

        await self._app(scope, receive, with_age)


def static_route() -> Mount:
    """Return the route of `PATH`. An address with another digest matches no page."""
    sheet = b"".join((FOLDER / name).read_bytes() for name in SHEETS)

    def page_sheet(request: Request) -> Response:
        return Response(sheet, media_type="text/css")

    files = Mount("/", StaticFiles(directory=FOLDER))
    routes = Router([Route("/page.css", page_sheet), files])
    return Mount(f"/static/{DIGEST}", _Immutable(routes))
