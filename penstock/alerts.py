"""Alerts to people: messages to the log, to webhooks, or to Slack or a service with its message format.

    PENSTOCK_ALERTS="slack+https://hooks.slack.com/services/...,webhook+https://oncall.example/hook"

Hook addresses are secrets: messages, logs and configuration show only their host.
"""

import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from http.client import HTTPException
from typing import Literal
from urllib.parse import urlsplit

from .web_address import web_address

Severity = Literal["error", "warning", "resolved"]
HANDBOOK = "docs/operations.md"
_ATTEMPTS = 3
_PAUSE_S = 1.0
_TIMEOUT_S = 10.0
_SIGNS = {"error": ":red_circle:", "warning": ":large_yellow_circle:", "resolved": ":large_green_circle:"}
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "resolved": logging.INFO}
ACCEPTED = "log, webhook+http(s)://..., slack+http(s)://..., separated by commas"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A message for a person."""

    name: str
    """Heading of the on-call page, such as `batch-stopped`."""
    severity: Severity
    """"error", "warning" or "resolved"."""
    dataset: str
    """Name of the dataset."""
    what: str
    """One-sentence message, without secrets."""
    details: str = ""
    """Further text; "" for none."""
    url: str = ""
    """Page about the problem; "" for none."""

    @property
    def handbook(self) -> str:
        """URL of the remedy on the on-call page."""
        return f"{HANDBOOK}#{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChannel:
    """A destination of alerts."""

    kind: str
    """"log", "webhook" or "slack"."""
    url: str = ""
    """Address of the hook, a secret; "" for the log."""

    @property
    def shown(self) -> str:
        """The channel without its secret."""
        if self.url:
            return f"{self.kind}+{urlsplit(self.url).hostname}"
        return self.kind


def channels(setting: str) -> tuple[AlertChannel, ...]:
    """Return the log and the channels in a setting. Raises: ValueError, whose message shows no address."""
    result = [AlertChannel(kind="log")]
    for position, item in enumerate(filter(None, (part.strip() for part in setting.split(","))), 1):
        kind, plus, url = item.partition("+")
        if item == "log":
            continue
        if not plus or kind not in ("webhook", "slack") or web_address(url) is None:
            raise ValueError(
                f"entry {position} of the alerts' setting is not a channel; accepted: {ACCEPTED}"
            )
        result.append(AlertChannel(kind=kind, url=url))
    return tuple(result)


def send(alert: Alert, to: tuple[AlertChannel, ...]) -> list[str]:
    """Send an alert to all channels; return a message per failed channel.

    Each channel gets three attempts of at most ten seconds.
    """
    return [problem for channel in to for problem in _deliver(alert, channel)]


def _deliver(alert: Alert, channel: AlertChannel) -> Iterator[str]:
    if channel.kind == "log":
        about = ""
        if alert.dataset:
            about = f" [{alert.dataset}]"
        _log.log(_LEVELS[alert.severity], "%s%s: %s (%s)", alert.name, about, alert.what, alert.handbook)
        return
    body = json.dumps(_slack(alert) if channel.kind == "slack" else _plain(alert)).encode()
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S * 2 ** (attempt - 1))
        reason, final = _post(channel.url, body)
        if not reason:
            return
        if final:
            break
    problem = f"{channel.shown} did not take the alert {alert.name}: {reason}"
    _log.error("%s", problem)
    yield problem


def _post(url: str, body: bytes) -> tuple[str, bool]:
    """Return (failure reason without the address, or "", whether to stop trying)."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
            return "", True
    except urllib.error.HTTPError as error:
        with error:
            # A refusal is final; an overloaded server may accept the alert later.
            return f"it answered {error.code}", error.code < 500 and error.code != 429
    # Its kind only: the error's text may quote the address, which is a secret.
    except urllib.error.URLError as error:
        return f"it cannot be reached ({type(error.reason).__name__})", False
    except (OSError, ValueError, HTTPException) as error:  # HTTPException: its answer is not HTTP
        return f"it cannot be reached ({type(error).__name__})", False


def _plain(alert: Alert) -> dict[str, str]:
    return asdict(alert) | {"handbook": alert.handbook}


# https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
def _slack(alert: Alert) -> dict[str, str]:
    lines = [
        f"{_SIGNS[alert.severity]} *{_escape(alert.name)}* {_escape(alert.dataset)}",
        _escape(alert.what),
    ]
    lines += [f"```{_escape(alert.details)[:2000]}```"] if alert.details else []
    lines += [f"<{alert.url}|Dagster page>"] if alert.url else []
    return {"text": "\n".join([*lines, f"Handbook: {alert.handbook}"])}


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
