"""A training's page, and the page of a plan that no training has recorded."""

from collections.abc import Sequence

from starlette.requests import Request

from loader.errors import InvalidRuntime

from ..inspect.run_record import run_news, run_record
from ..replays.training import Training
from ..run_decisions import run_decisions
from ..sections.laid_over import MOST_OVER
from ..sections.run import plan_sections, run_sections
from .page import Page, Site, number, section_page


def run_page(site: Site, request: Request) -> Page:
    """Return the page. Its `.json` with `?since=STEP` has the steps after that one, for a page that follows a run."""
    training = site.opened.training(request.path_params["run"])
    if training.charted is None:
        return _plan_page(training)
    path: str = request.scope["path"]
    is_json = path.endswith(".json")
    if is_json and "since" in request.query_params:
        since = number(request, "since")
        news = run_news(training, since)
        return section_page(news, None)
    first = number(request, "unusual", 0)
    record = run_record(training, first)
    if is_json:
        return section_page(record, None)
    overview = site.opened.overview(training)
    decisions = run_decisions(site.opened, training)
    over = _overlay_runs(site, training.name, request.query_params.getlist("over"))
    page = run_sections(
        record,
        overview,
        decisions,
        over,
    )
    return section_page(record, page)


def _overlay_runs(site: Site, run: str, names: Sequence[str]) -> list[str]:
    """Return the runs to lay over another one. Raises: RunNotFound; InvalidRuntime for too many, or for a plan."""
    others = [name for name in dict.fromkeys(names) if name != run]
    if len(others) > MOST_OVER:
        raise InvalidRuntime(f"over names {len(others):,} runs; accepted are up to {MOST_OVER}")
    for name in others:
        if site.opened.training(name).charted is None:
            raise InvalidRuntime(
                f"over = {name[:100]!r}: no training has recorded this plan, so it has no curves"
            )
    return others


def _plan_page(training: Training) -> Page:
    plan = training.plan(0)
    text = str(plan.describe())
    record = {
        "plan": plan.hash,
        "describe": text,
    }
    return section_page(record, plan_sections(training.name, text.splitlines()))
