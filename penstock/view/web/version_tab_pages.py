"""Pages of a version beside its samples."""

from functools import partial

from starlette.requests import Request
from starlette.routing import Route

from ..inspect.version_contents import version_contents
from ..inspect.version_lineage import version_lineage
from ..maps.groups_record import groups_record, parse_cosine
from ..maps.groups_sections import groups_sections
from ..sections.version_tabs import contents_sections, lineage_sections
from .episode_pages import VERSION, requested_version
from .page import Page, Site, page_routes, section_page


def version_tab_routes(site: Site) -> list[Route]:
    """Return the routes of a version's columns, of its lineage and of its groups."""
    return [
        *page_routes(site, f"{VERSION}/columns", _columns),
        *page_routes(site, f"{VERSION}/lineage", _lineage),
        *page_routes(site, f"{VERSION}/groups", _groups),
    ]


def _columns(site: Site, request: Request) -> Page:
    version = requested_version(site, request)
    record = version_contents(version)
    return section_page(record, contents_sections(record))


def _lineage(site: Site, request: Request) -> Page:
    version = requested_version(site, request)
    record = version_lineage(site.opened.root, version)
    return section_page(record, lineage_sections(record, site.ui))


def _groups(site: Site, request: Request) -> Page:
    version = requested_version(site, request)
    columns = site.opened.columns
    least_cosine = parse_cosine(request.query_params.get("cosine", ""))
    # A map that was laid out meanwhile adds clusters.
    key = ("groups", version.id, least_cosine, columns.map_error(version))
    record = site.opened.cached(
        site.opened.media,
        key,
        partial(
            groups_record,
            version,
            columns,
            least_cosine,
        ),
    )
    return section_page(record, groups_sections(record))
