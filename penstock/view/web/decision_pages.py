"""Decisions of online runs: the chart of a run's page, and a page of each decision."""

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from loader.api.report import check_run
from loader.errors import NotRecorded, PenstockError

from ...text import clean
from ..replays.training import Training
from ..rollouts.decisions import (
    is_online,
)
from ..run_decisions import open_decision, open_decisions
from ..sections.decision import decision_sections
from ..sections.decisions import decisions_sections
from .page import Page, Site, page_routes, section_page


def decision_routes(site: Site) -> list[Route]:
    return [
        *page_routes(site, "/r/{run}/{step:number}/decision", _decision),
        *page_routes(site, "/r/{run}/decisions", _decisions),
    ]


def step_decision(site: Site, training: Training, step: int) -> dict[str, Any]:
    """Return a step's decision, or why it is not known. Costs nothing for a run that is not online."""
    if not is_online(training):
        return {}
    try:
        return {"decision": open_decision(site.opened, training.name, step).row}
    except NotRecorded:
        return {}
    except PenstockError as error:
        return {"decision_error": clean(error, 600)}


def _decisions(site: Site, request: Request) -> Page:
    run = check_run(request.path_params["run"])
    chart = open_decisions(site.opened, run)
    return section_page(chart, decisions_sections(run, chart))


def _decision(site: Site, request: Request) -> Page:
    run = check_run(request.path_params["run"])
    record = open_decision(site.opened, run, request.path_params["step"])
    return section_page(record, decision_sections(record))
