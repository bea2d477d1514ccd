"""The application: routes of trainings and datasets, and static files, behind the guard."""

from collections.abc import Collection
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from loader.errors import InvalidRuntime

from ..open_data import OpenData
from . import actions, training_pages, version_pages
from .guard import Guard, csrf
from .page import Site, error_response

_STATIC = Path(__file__).parent / "static"


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
    """Return the viewer as an ASGI application; arguments as of `Guard` and `Site`."""
    site = Site(opened=opened, ui=ui, csrf=csrf(token) if writes else "")

    async def nothing_there(request: Request, error: Exception) -> Response:
        path = request.scope["path"]
        told = InvalidRuntime(f"there is no page {path[:200]!r}; the first page lists runs and datasets")
        return error_response(site, request, told, as_json=path.endswith(".json"))

    routes: list[Route | Mount] = [
        *actions.routes(site),
        *training_pages.routes(site),
        *version_pages.routes(site),
    ]
    routes.append(Mount("/static", StaticFiles(directory=_STATIC)))
    app = Starlette(routes=routes, exception_handlers={404: nothing_there})
    return Guard(app, token=token, hosts=hosts, name=cookie, prefix=prefix, writes=writes)
