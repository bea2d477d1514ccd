"""Pages of a version beside its samples."""

from starlette.requests import Request
from starlette.routing import Route

from ..inspect.version_contents import version_contents
from ..inspect.version_lineage import version_lineage
from ..sections.version_tabs import contents_sections, lineage_sections
from .episode_pages import VERSION, requested_version
from .page import Page, Site, page_routes, section_page


def version_tab_routes(site: Site) -> list[Route]:
    """Return the routes of a version's columns and of its lineage."""
    return [
        *page_routes(site, f"{VERSION}/columns", _columns),
        *page_routes(site, f"{VERSION}/lineage", _lineage),
    ]


def _columns(site: Site, request: Request) -> Page:
    version = requested_version(site, request)
    record = version_contents(version)
    return section_page(record, contents_sections(record))


def _lineage(site: Site, request: Request) -> Page:
    version = requested_version(site, request)
    record = version_lineage(site.opened.root, version)
    return section_page(record, lineage_sections(record, site.ui))
