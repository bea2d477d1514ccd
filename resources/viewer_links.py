"""Links from Dagster's pages to the viewer's."""

from urllib.parse import quote

import dagster as dg

from loader.errors import InvalidRuntime
from penstock.web_address import web_address

VARIABLE = "PENSTOCK_VIEW_URL"


def viewer_url() -> str:
    """Return the viewer's URL without a trailing slash; "" if the variable is not set.

    Raises: InvalidRuntime unless it is http(s)://host/path: all users of Dagster see it.
    """
    url = (dg.EnvVar(VARIABLE).get_value() or "").rstrip("/")
    if not url:
        return ""
    parts = web_address(url)
    if parts is None or parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidRuntime(
            f"{VARIABLE} is not an address for all users of Dagster; accepted: http(s)://host:port/path without a "
            "password, query or fragment",
            what=VARIABLE,
            accepted="http(s)://host:port/path",
        )
    return url


def version_page(dataset: str, number: int) -> str:
    """Return the URL of a version's page; "" without a viewer. Raises: as `viewer_url`."""
    return _page("v", dataset, number)


def sample_page(dataset: str, number: int, ordinal: int) -> str:
    """Return the URL of a sample's page; "" without a viewer. Raises: as `viewer_url`."""
    return _page("v", dataset, number, "s", ordinal)


def run_page(run: str) -> str:
    """Return the URL of a training run's page; "" without a viewer. Raises: as `viewer_url`."""
    return _page("r", run)


def _page(*segments: str | int) -> str:
    url = viewer_url()
    if not url:
        return ""
    # A slash within a name would begin another segment.
    quoted = [quote(str(segment), safe="") for segment in segments]
    return "/".join([url, *quoted])
