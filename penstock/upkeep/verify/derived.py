"""Check objects that are named after their content, or that contain their name or a checksum.

They are plans, views, packs, lists, windows, norms, seals, cards, gate pages, reports, trails, exclusions, takedowns.
"""

import hashlib
import re
from collections.abc import Callable, Iterator

import numpy as np

from loader.api.report import FORMAT, Report
from loader.dataset.log.state import State
from loader.dataset.norms.norm import parse_norm
from loader.dataset.shards.shard import crc32c, parse_seal
from loader.dataset.tables.parquet import parse_stored, table_facts
from loader.dataset.versions.stored_list import parse_list
from loader.dataset.versions.windows import check_windows
from loader.errors import ObjectNotFound, PenstockError
from loader.json_text import DamagedJson, parse_json_object
from loader.order.sources.best_fit import PackTable
from loader.run.trail.start_record import parse_start
from loader.storage import Store

from ..exclusion import parse
from .shard import Problem

AGAIN = "delete it, it is made again"
_CARD = re.compile(r"cards/([^/]+)/([0-9]{6})-(v-[0-9a-f]{64})/card\.json")
_NAMED = re.compile(
    r"(?:takedowns/[0-9]{12}/|gates/[^/]+/.*-|trails/.*-)([0-9a-f]{16})\.(?:json|html|parquet)"
)
_START = re.compile(r"trails/[^/]+/start-[0-9a-f]{16}\.json")
_REPORT = re.compile(r"reports/training/[^/]+/runs/[^/]+/[0-9a-f]{32}\.json")


def check_stored(store: Store, key: str, state: State) -> Iterator[Problem]:
    """Yield the problem with an object whose key is below one of `CHECKS`, if any. Costs at most one request."""
    check = CHECKS.get(key.partition("/")[0])
    if check is None or (key.startswith("cards/") and not key.endswith("/card.json")):
        return
    try:
        what = check(key, store.get(key).data, state)
    except ObjectNotFound as error:
        # A collector or takedown deletes some of these: an object that is no longer listed is no problem.
        what = str(error) if any(info.key == key for info in store.list(key)) else ""
    except (PenstockError, OSError) as error:
        what = str(error)
    except (ValueError, LookupError, TypeError) as error:
        what = f"it cannot be read: {type(error).__name__} {error}"
    if what:
        yield Problem(address=key, what=what)


def _plan(key: str, data: bytes, _: State) -> str:
    id = f"p-{hashlib.sha256(data).hexdigest()}"
    if key != f"plans/{id}.json":
        return (
            f"its content belongs to plans/{id}.json: it was edited or renamed; restore it, or save it again"
        )
    return ""


def _view(key: str, data: bytes, _: State) -> str:
    table = parse_stored(data, key, key)
    if "crc32c" not in table.column_names:
        return ""  # from a release without checksums
    rows = zip(*(table[name].to_pylist() for name in ("first_ordinal", "bits", "crc32c")), strict=True)
    wrong = [first for first, bits, crc in rows if crc32c(bits) != crc]
    return f"the bits from ordinal {wrong[0]} on are damaged; {AGAIN}" if wrong else ""


def _pack(key: str, data: bytes, _: State) -> str:
    table = parse_stored(data, key, key)
    stated = table_facts(table).get("content_sha256")
    if key.endswith(".checks.parquet") or stated is None:
        return ""  # pages have checksums, and each row is compared with the index before it is used
    columns = [
        table[name].to_numpy().astype(np.int64) for name in ("sequence", "document", "start", "length")
    ]
    actual = PackTable(*columns).sha256
    return "" if actual == stated else f"the sha256 of its rows is {actual}, it states {stated}; {AGAIN}"


def _windows(key: str, data: bytes, _: State) -> str:
    check_windows(data, key, key)
    return ""


def _norm(key: str, data: bytes, _: State) -> str:
    parse_norm(data, key, key)
    return ""


def _list(key: str, data: bytes, _: State) -> str:
    parse_list(data, key, key)
    return ""


def _seal(key: str, data: bytes, _: State) -> str:
    parse_seal(data, key, key)
    return ""


def _card(key: str, data: bytes, state: State) -> str:
    named = _CARD.fullmatch(key)
    if named is None:
        return ""
    of, described = state.by_id(named[3]), parse_json_object(data)["version"]
    if of is None or (of.dataset, of.number) != (named[1], int(named[2])):
        return f"the log has no version {named[1]}@{int(named[2])} of that id"
    return "" if described == of.id else f"it describes {described}; {AGAIN}"


def _named(key: str, data: bytes, _: State) -> str:
    named, actual = _NAMED.fullmatch(key), hashlib.sha256(data).hexdigest()[:16]
    if named is None or named[1] == actual:
        return ""
    return f"its content has sha256 {actual}...: it was edited or renamed; restore it from a mirror"


def _report(key: str, data: bytes, _: State) -> str:
    if _REPORT.fullmatch(key) is None:
        return ""
    try:
        body = parse_json_object(data)
    except DamagedJson as error:
        return f"it is no JSON object: it was edited ({error}); restore it from a mirror"
    if body.pop("format") != FORMAT:
        return ""  # from a newer penstock, which may name reports differently
    try:
        own_key = Report.from_json(body).key
    except (TypeError, KeyError) as error:
        return f"it has other fields than a report ({error}): it was edited; restore it from a mirror"
    if key != own_key:
        return f"its content belongs to {own_key}: it was edited or renamed; restore it from a mirror"
    return ""


def _trail(key: str, data: bytes, state: State) -> str:
    if _START.fullmatch(key) is None:
        return _named(key, data, state)
    own_key = parse_start(data, key).key
    return (
        ""
        if key == own_key
        else f"its content belongs to {own_key}: it was edited or renamed; restore it from a mirror"
    )


def _exclusion(key: str, data: bytes, _: State) -> str:
    if key.endswith(".json"):
        parse(data, key)
    return ""


CHECKS: dict[str, Callable[[str, bytes, State], str]] = {
    "plans": _plan,
    "views": _view,
    "packs": _pack,
    "lists": _list,
    "norms": _norm,
    "seals": _seal,
    "cards": _card,
    "takedowns": _named,
    "gates": _named,
    "exclusions": _exclusion,
    "reports": _report,
    "trails": _trail,
    "windows": _windows,
}
