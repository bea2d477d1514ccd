"""Decisions of online runs: the chart of a run's page, and a page of each decision."""

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from loader.api.report import check_run
from loader.errors import NotRecorded, PenstockError
from loader.rollouts.record import RunRecords
from loader.storage.mirror import primary_of

from ...text import clean
from ..replays.training import Training
from ..rollouts.decision_lines import decision_lines
from ..rollouts.decisions import (
    MOST_LISTED,
    DecisionChart,
    DecisionDetail,
    DecisionRow,
    decision_chart,
    decision_detail,
    is_online,
    read_row,
)
from .page import Page, Site, page_routes


def decision_routes(site: Site) -> list[Route]:
    return [
        *page_routes(site, "/r/{run}/{step:number}/decision", _decision),
        *page_routes(site, "/r/{run}/decisions", _decisions),
    ]


def run_decisions(site: Site, training: Training) -> dict[str, Any]:
    """Return template values of a run's decisions. Costs nothing for a run that is not online."""
    if not is_online(training):
        return {"decisions": None}
    chart = _chart(site, training.name)
    listed = chart.rows[: -MOST_LISTED - 1 : -1]
    return {"decisions": chart, "listed": listed, "lines": decision_lines(chart.rows)}


def step_decision(site: Site, training: Training, step: int) -> dict[str, Any]:
    """Return template values of a step's decision. Costs nothing for a run that is not online."""
    if not is_online(training):
        return {"decision": None, "decision_error": ""}
    try:
        return {"decision": _detail(site, training.name, step), "decision_error": ""}
    except NotRecorded:
        return {"decision": None, "decision_error": ""}
    except PenstockError as error:
        return {"decision": None, "decision_error": clean(error, 600)}


def _decisions(site: Site, request: Request) -> Page:
    run = check_run(request.path_params["run"])
    chart = _chart(site, run)
    listed = chart.rows[: -MOST_LISTED - 1 : -1]
    more = {"run": run, "listed": listed, "lines": decision_lines(chart.rows)}
    return Page(template="decisions", record=chart, title=f"decisions of {run}", more=more)


def _decision(site: Site, request: Request) -> Page:
    run = check_run(request.path_params["run"])
    record = _detail(site, run, request.path_params["step"])
    return Page(template="decision", record=record, title=f"{run} decision of step {record.row.step}")


def _detail(site: Site, run: str, step: int) -> DecisionDetail:
    store = primary_of(site.opened.root.store)
    return site.opened.ask_primary(lambda: decision_detail(store, run, step))


def _chart(site: Site, run: str) -> DecisionChart:
    store = primary_of(site.opened.root.store)
    read = partial(_read, site)
    return site.opened.ask_primary(lambda: decision_chart(store, run, read))


def _read(site: Site, records: RunRecords, step: int) -> DecisionRow | None:
    """Return a decision's counts. A stored record never changes, so they are kept."""
    row: DecisionRow | None = site.opened.media.get(
        ("decision", records.run, step),
        lambda: read_row(records, step),
        lambda known: known is not None,
    )
    return row
