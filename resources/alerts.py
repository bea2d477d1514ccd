"""The alerts' channels as a Dagster resource, and links to the viewer's pages."""

from urllib.parse import quote, urlsplit

import dagster as dg
from pydantic import Field

from loader.errors import InvalidRuntime
from penstock.alerts import ACCEPTED, Alert, AlertChannel, channels, send


class AlertsResource(dg.ConfigurableResource[None]):
    """Sends alerts to the channels that the environment names."""

    variable: str = Field(
        default="PENSTOCK_ALERTS",
        description=f"The environment variable that names the channels: {ACCEPTED}.",
    )

    webserver_variable: str = Field(
        default="PENSTOCK_WEBSERVER",
        description="The environment variable with the address of Dagster's pages.",
    )

    def page(self, path: str) -> str:
        """Return the URL of a Dagster page, or "" if no webserver is configured."""
        place = dg.EnvVar(self.webserver_variable).get_value()
        if not place:
            return ""
        base = place.rstrip("/")
        return f"{base}/{path}"

    def send(self, alert: Alert) -> list[str]:
        """Send an alert like the function `send`. Raises: ValueError for an invalid setting."""
        return send(alert, self.channels())

    def channels(self) -> tuple[AlertChannel, ...]:
        """Return the configured channels. Raises: ValueError."""
        try:
            return channels(dg.EnvVar(self.variable).get_value() or "")
        except ValueError as error:
            raise ValueError(f"{self.variable}: {error}") from None


VARIABLE = "PENSTOCK_VIEW_URL"


def viewer_url() -> str:
    """Return the viewer's URL without a trailing slash; "" if the variable is not set.

    Raises: InvalidRuntime unless it is http(s)://host/path: all users of Dagster see it.
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
    return "/".join([url, *(quote(str(one), safe="") for one in segments)]) if url else ""
