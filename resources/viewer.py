"""Addresses of the viewer's pages, for links in Dagster: below PENSTOCK_VIEW_URL, none if it is not set."""

from urllib.parse import quote, urlsplit

import dagster as dg

from loader.errors import InvalidRuntime

VARIABLE = "PENSTOCK_VIEW_URL"


def viewer_url() -> str:
    """Return the viewer's address without a trailing slash; "" if the variable is not set.

    Raises: InvalidRuntime for anything but http(s)://host/path, since all users of Dagster see it.
    """
    url = (dg.EnvVar(VARIABLE).get_value() or "").rstrip("/")
    if not url:
        return ""
    parts = urlsplit(url)
    is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise InvalidRuntime(
            f"{VARIABLE} is not an address for all users of Dagster; accepted: http(s)://host:port/path without a "
            "password, query or fragment"
        )
    return url


def version_page(dataset: str, number: int) -> str:
    """Return the address of a version's page; "" for no viewer. Raises: as `viewer_url`."""
    return _page("v", dataset, number)


def sample_page(dataset: str, number: int, ordinal: int) -> str:
    """Return the address of a sample's page; "" for no viewer. Raises: as `viewer_url`."""
    return _page("v", dataset, number, "s", ordinal)


def run_page(run: str) -> str:
    """Return the address of a training's page; "" for no viewer. Raises: as `viewer_url`."""
    return _page("r", run)


def _page(*segments: str | int) -> str:
    url = viewer_url()
    return "/".join([url, *(quote(str(one), safe="") for one in segments)]) if url else ""
