"""Compare a server's clock with this machine's. Signed requests need equal clocks; penstock's history needs none."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from http.client import HTTPException

from .finding import Finding, fail, note, ok, warn

REFUSED_S = 15 * 60
"""In seconds; S3 rejects requests whose signing time is off by more."""
NOTICED_S = 60
TIMEOUT_S = 5.0


def server_clock(endpoint: str) -> Iterator[Finding]:
    """Compare this machine's clock with the Date header from `endpoint`. Costs one unsigned request."""
    # Unsigned: a server refuses a signed one if the clocks differ, which is the question.
    request = urllib.request.Request(endpoint, method="HEAD")
    try:
        try:
            with urllib.request.urlopen(
                request, timeout=TIMEOUT_S
            ) as answer:  # an http(s) endpoint from the options
                date = answer.headers.get("Date")
        except urllib.error.HTTPError as error:  # 400, 403 and 404 have a date too
            date = error.headers.get("Date")
            error.close()
    except (OSError, ValueError, HTTPException) as error:  # HTTPException: not an HTTP server
        yield note("clock", f"{endpoint} was not asked for its time: {' '.join(str(error).split())}")
        return
    try:
        there = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError, OverflowError):
        yield note("clock", f"{endpoint} does not tell its time" + (f" ({date!r})" if date else ""))
        return
    yield compare_clocks(there - time.time(), endpoint)


def compare_clocks(ahead_s: float, where: str) -> Finding:
    """Return a finding. ahead_s: seconds by which the other clock is ahead, whole."""
    # The header has whole seconds, and the request's own time counts too.
    if abs(ahead_s) < NOTICED_S:
        return ok("clock", f"this machine and {where} agree within a minute")
    what = f"{where} is {duration_text(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} this machine's clock"
    set_it = "find out which of the two is wrong (`date -u`) and set it (chrony, systemd-timesyncd)"
    if abs(ahead_s) < REFUSED_S:
        return warn("clock", what, f"{set_it}: beyond 15 minutes signed requests are refused")
    return fail(
        "clock",
        what,
        f"{set_it}: requests signed more than 15 minutes off are refused, as if keys were wrong",
    )


def duration_text(seconds: float) -> str:
    """Return a duration as text: '90 seconds', '3.0 hours', '365 days'."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86_400:,.0f} days"
