"""The alerts' channels as a Dagster resource."""

import dagster as dg
from pydantic import Field

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
