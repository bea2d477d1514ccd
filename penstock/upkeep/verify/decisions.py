"""Verify the records under `follows/`: the decisions of `loader.online`, and the plans that `loader.follow` adopted."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from loader.dataset.log.entries import DAMAGED
from loader.dataset.log.state import State
from loader.errors import ObjectNotFound, PenstockError
from loader.rollouts.record import FOLLOW_FORMAT, parse_decision, parse_like, record_body
from loader.storage import Store
from loader.storage.store import is_there
from loader.storage.threads import DaemonPool

from .shard import Problem

AT_ONCE = 16
"""Records that are read at once; a damaged one may have 16 MiB."""
_DECISION = re.compile(r"follows/([^/]+)/(\d{19})\.json")
_REPLACEMENT = re.compile(r"follows/([^/]+)/(\d{19})/(p-[0-9a-f]{64})\.json")
_LIKE = re.compile(r"follows/[^/]+/like/[^/]+\.json")
_PLAN = re.compile(r"p-[0-9a-f]{64}")


def check_decisions(
    store: Store,
    keys: Sequence[str],
    plans: Collection[str],
    state: State,
) -> Iterator[Problem]:
    """Yield the problems of records: damage, another name than their content's, and plans that are missing.

    keys: the records. plans: keys of the plans that were listed. Costs a request per record.
    """
    check = partial(_check, store, plans, state)
    with DaemonPool(AT_ONCE, "penstock-verify") as pool:
        for first in range(0, len(keys), AT_ONCE):
            block = keys[first : first + AT_ONCE]
            for key, what in zip(block, pool.map(check, block), strict=True):
                if what:
                    yield Problem(address=key, what=what)


def _check(
    store: Store,
    plans: Collection[str],
    state: State,
    key: str,
) -> str:
    """Return the problem with a record, or ""."""
    try:
        data = store.get(key).data
    except ObjectNotFound:
        return ""  # a root that is moved meanwhile
    except (PenstockError, OSError) as error:
        return str(error)
    try:
        body = record_body(key, data)
        plan, is_excused = _plan_name(key, body, state)
    except PenstockError as error:
        return str(error)
    except DAMAGED as error:
        return (
            f"it is not a record of this name ({type(error).__name__}: {error}): it was damaged, edited or renamed; "
            "restore it from a mirror"
        )
    if not plan or is_excused:
        return ""
    plan_key = f"plans/{plan}.json"
    # Asked again: it may be younger than the listing.
    if plan_key in plans or is_there(store, plan_key):
        return ""
    return (
        f"its {plan_key} is missing, and no takedown deleted it: restore that plan from a mirror, or no rank can read "
        "these steps again"
    )


def _plan_name(
    key: str,
    body: Mapping[str, Any],
    state: State,
) -> tuple[str, bool]:
    """Return the plan that a record names, or "", and whether a takedown may have deleted it. Raises: `DAMAGED`."""
    if _LIKE.fullmatch(key):
        parse_like(body, key)
        return "", False
    has_takedowns = bool(state.denies)
    replacement = _REPLACEMENT.fullmatch(key)
    if replacement is not None:
        decision = parse_decision(body, replacement[1], int(replacement[2]))
        return decision.plan, has_takedowns
    named = _DECISION.fullmatch(key)
    if named is None:
        raise ValueError("its name is none of a record's")
    run = named[1]
    step = int(named[2])
    if body["format"] == FOLLOW_FORMAT:
        return _follow_plan(body, run, step), has_takedowns
    decision = parse_decision(body, run, step)
    version = state.by_id(decision.cursor.version)
    # A takedown retires the versions that had the sample, and deletes their plans.
    is_retired = version is not None and version.retired is not None
    return decision.plan, has_takedowns and is_retired


def _follow_plan(body: Mapping[str, Any], run: str, step: int) -> str:
    """Return the plan of a record of `loader.follow`. Raises: `DAMAGED`."""
    own = (body["run"], body["step"])
    if own != (run, step):
        raise ValueError(f"it is of step {own[1]!r:.40} of run {own[0]!r:.140}")
    plan = body["plan"]
    for name in (plan, body["before"]):
        if not isinstance(name, str) or not _PLAN.fullmatch(name):
            raise ValueError(f"{name!r:.80} is not a hash of a plan")
    return str(plan)
