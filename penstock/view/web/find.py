"""The search box of the header: the page of what was typed."""

import re

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from loader.dataset.versions.samples_table import live_ordinals
from loader.errors import InvalidRuntime, PenstockError, SampleNotFound
from loader.keywords import did_you_mean

from ..open_data import OpenData
from ..page_address import address
from .page import MOST_DIGITS, Site, error_response, in_thread

MOST_CHARACTERS = 400
MOST_SEARCHED = 32
"""Datasets whose newest version is searched for a key. Each search reads one column of that version."""
_NUMBER = re.compile(f"[0-9]{{1,{MOST_DIGITS}}}")


def find_route(site: Site) -> Route:
    """Return the route that redirects to the page of `?text=`, or of `?run=` with its `?step=`."""

    def redirect(request: Request) -> Response:
        query = request.query_params
        if query.get("run"):
            step = query.get("step", "").strip()
            page = address("r", query["run"])
            if step:
                page = address("r", query["run"], step)
            return RedirectResponse(page, 303)
        text = query.get("text", "").strip()
        try:
            page = site.opened.answer(lambda: find_page(site.opened, text))
        except PenstockError as error:
            return error_response(site, request, error, as_json=False)
        return RedirectResponse(page or "./", 303)

    async def respond(request: Request) -> Response:
        return await in_thread(site.page_threads, lambda: redirect(request))

    return Route("/find", respond)


def find_page(opened: OpenData, text: str) -> str:
    """Return the relative address of a run, plan, step, dataset, version or sample; "" for the first page.

    text: such as `big-7`, `big-7@1234`, `photos`, `photos@7`, `p-5959dc`, or a sample's key.
    Raises: InvalidRuntime for too long a text; SampleNotFound if nothing has that name.
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidRuntime(
            f"the search text has {len(text):,} characters; accepted: up to {MOST_CHARACTERS}"
        )
    if not text:
        return ""
    name, at, number = text.rpartition("@")
    if not at:
        name = text
    step = ""
    if _NUMBER.fullmatch(number):
        step = number
    runs = opened.run_names()
    datasets = opened.root.datasets()
    if name in datasets:
        return _version_page(opened, name, step)
    if name in runs or name.startswith("p-"):
        if step:
            return address("r", name, step)
        return address("r", name)
    sample = _sample_page(opened, datasets, text)
    if sample:
        return sample
    near = did_you_mean(name, [*datasets, *runs])
    searched = ""
    if len(datasets) > MOST_SEARCHED:
        searched = f" Keys were searched in the first {MOST_SEARCHED} of {len(datasets):,} datasets."
    raise SampleNotFound(
        f"no run, dataset or sample of the newest versions is called {text!r}{near or '.'}{searched} Accepted: a run "
        "(big-7), a step (big-7@1234), a dataset (photos), a version (photos@7), a plan (p-...), or a sample's key"
    )


def _version_page(opened: OpenData, dataset: str, number: str) -> str:
    if number:
        return address("v", dataset, number)
    newest = opened.root.state.newest(dataset) or opened.root.versions(dataset)[-1]
    return address("v", dataset, newest.number)


def _sample_page(opened: OpenData, datasets: list[str], key: str) -> str:
    for dataset in datasets[:MOST_SEARCHED]:
        newest = opened.root.state.newest(dataset)
        if newest is None:
            continue
        version = opened.version(dataset, newest.number)
        ordinal = int(live_ordinals(version, [key])[0])
        if ordinal >= 0:
            return address("v", dataset, newest.number, "s", ordinal)
    return ""
