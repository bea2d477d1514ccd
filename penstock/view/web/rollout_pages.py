"""A rollout's page, and its group's."""

from starlette.requests import Request
from starlette.routing import Route

import loader
from loader.errors import PenstockError

from ...text import clean
from ..inspect.packed_documents import plan_sequence
from ..inspect.sample_record import SampleRecord, check_ordinal
from ..inspect.version_record import sample_fields
from ..rollouts.group_record import group_record
from ..rollouts.open_rollout import OpenRollout, open_rollout
from ..rollouts.rollout_record import MOST_LINKED_PAGES, PAGE, rollout_record
from ..sections.relations import sequence_box
from ..sections.sample import rollout_sections
from ..sections.section import Section
from ..similarity_query import like_page
from .episode_pages import SAMPLE, requested_version
from .page import Page, Site, number, page_routes


def rollout_routes(site: Site) -> list[Route]:
    return page_routes(site, f"{SAMPLE}/group", _group)


def rollout_page(site: Site, version: loader.Version, ordinal: int, request: Request) -> Page:
    """Return a rollout's page. `?by=` colours its tokens by a value; `?from=` is a token of the page to show."""
    query = request.query_params
    (names,) = sample_fields(version, [ordinal])

    def open_requested() -> OpenRollout:
        return open_rollout(version, ordinal, names)

    key = ("rollout", version.id, ordinal)
    rollout = site.opened.cached(site.opened.episodes, key, open_requested)
    search = site.opened.run_search(query.get("trainings"))
    first = number(request, "from", 0)
    record = rollout_record(rollout, query.get("by", ""), first, search, site.opened.slice_search)
    sample = record.sample
    like = like_page(version, sample.key)
    more = {
        "page": rollout_sections(record, like, _sequence_sections(site, sample), query),
        "page_tokens": PAGE,
        "most_pages": MOST_LINKED_PAGES,
    }
    title = f"{clean(record.sample.key, 120)} of {version.name}"
    return Page(template="rollout", record=record, title=title, more=more)


def _sequence_sections(site: Site, sample: SampleRecord) -> list[Section]:
    """Return the sequence that the newest training with this rollout packed it into, if it packs."""
    held = next((held for held in sample.trainings if held.slots), None)
    if held is None:
        return []
    slot = held.slots[-1]
    try:
        sequence = plan_sequence(site.opened.training(held.training), slot.step, slot.slot)
    except PenstockError:  # the slot's own page shows the error
        return []
    if sequence is None:
        return []
    return [sequence_box(held, *sequence, sample.key)]


def _group(site: Site, request: Request) -> Page:
    version = requested_version(site, request)
    ordinal = request.path_params["ordinal"]
    check_ordinal(version, ordinal)
    record = group_record(version, ordinal, request.query_params.get("by", ""))
    return Page(
        template="group",
        fragment="group_members",
        record=record,
        title=f"{record.value} of {version.name}",
    )
