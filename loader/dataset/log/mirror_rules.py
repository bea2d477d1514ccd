"""Rules for recording a mirror and for moving a root to another location."""

import secrets
from collections.abc import Mapping

from .rules import Body, Done
from .state import State


def decide_mirror(state: State, url: str, upto: int) -> Body | Done[None]:
    """Record that the mirror at `url` has the log up to `upto`; `Done` if only mirror entries followed since."""
    earlier_upto = [_integer(mirror, "upto") for mirror in state.mirrors if mirror["url"] == url]
    if earlier_upto:
        # Two mirrors would otherwise record each other's record forever.
        last_upto = max(earlier_upto)
        entries_since = upto - last_upto
        mirror_entries = sum(last_upto < _integer(mirror, "n") <= upto for mirror in state.mirrors)
        only_mirror_entries = mirror_entries >= entries_since
        if only_mirror_entries:
            return Done(None)
    return {
        "kind": "mirror",
        "url": url,
        "upto": upto,
    }


def decide_primary(url: str, was: str, *, unreachable: bool = False) -> Body:
    """Move the root to `url` (`marker.check_primary`), which may be this location.

    unreachable: the former root does not respond.
    """
    body: dict[str, object] = {
        "kind": "primary",
        "url": url,
        "was": was,
        "token": secrets.token_hex(16),
    }
    if unreachable:
        body["gone"] = True
    return body


def _integer(mirror: Mapping[str, object], name: str) -> int:
    return int(str(mirror[name]))
