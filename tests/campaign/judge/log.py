"""The history of a root: `log/<n>.json`, every rule of docs/format.md, "The log"."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Objects = Mapping[str, bytes]
ENTRY = re.compile(r"log/([0-9]{12})\.json")
REPAIR = re.compile(r"log/repair-([0-9]+)\.json")
ENVELOPE = ("format", "n", "nonce", "prev", "at_us", "kind")


class Broken(Exception):
    """What lies there is not what docs/format.md says."""


def require(holds: bool, what: str) -> None:
    """Raises: Broken."""
    if not holds:
        raise Broken(what)


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def no_floats(text: str) -> float:
    raise Broken(f"canonical JSON has no floats, and there is {text}")


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """An object of canonical JSON. Raises: Broken."""
    try:
        value = json.loads(data, parse_float=no_floats, parse_constant=no_floats)
    except ValueError as error:
        raise Broken(f"{where} is not JSON: {error}") from error
    require(isinstance(value, dict), f"{where} is not an object")
    require(canonical(value) == data, f"{where} is not canonical JSON")
    return value


@dataclass
class Committed:
    """A version, as its commit says it."""

    dataset: str
    number: int
    id: str
    manifest: str
    sha256: str
    parent: str | None
    txn: str
    denies: int
    n: int
    retired: bool = False


@dataclass
class History:
    """What the log says after its last entry. denies: numbers of entries; names: (dataset, name) -> (kind, number)."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    txns: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, list[Committed]] = field(default_factory=dict)
    names: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    holds: set[tuple[str, int, str]] = field(default_factory=set)
    denies: list[int] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    def newest(self, dataset: str) -> Committed | None:
        """The newest version that is not retired."""
        return next((one for one in reversed(self.versions.get(dataset, [])) if not one.retired), None)

    def every(self) -> list[Committed]:
        """All versions of all datasets."""
        return [one for some in self.versions.values() for one in some]

    def by_id(self, id: str | None) -> Committed | None:
        """The version with this id."""
        return next((one for one in self.every() if one.id == id), None)

    def kept(self) -> list[Committed]:
        """Versions that the log keeps: not retired, named, held, or the parent of an open transaction."""
        named = {(dataset, number) for (dataset, _), (_, number) in self.names.items()}
        held = {(dataset, number) for dataset, number, _ in self.holds}
        parents = {one["parent"] for one in self.txns.values() if one["status"] == "open"}
        return [
            one
            for one in self.every()
            if not one.retired or (one.dataset, one.number) in named | held or one.id in parents
        ]


def read_log(objects: Objects) -> History:
    """Raises: Broken, naming the entry."""
    numbers = sorted(int(found[1]) for key in objects if (found := ENTRY.fullmatch(key)))
    require(numbers == list(range(1, len(numbers) + 1)), f"the log has entries {numbers}: one is missing")
    history, before, repaired = History(), "", repairs(objects)
    for n in numbers:
        key = f"log/{n:012d}.json"
        data = objects[key]
        entry = parse_object(data, key)
        require(entry.get("n") == n, f"{key} says that it is entry {entry.get('n')}")
        require(entry.get("format") == 1, f"{key} has format {entry.get('format')}")
        lacking = [name for name in ENVELOPE if name not in entry]
        require(not lacking, f"{key} lacks {lacking}")
        check_own(entry, key)
        linked = entry["prev"] == before or (n, entry["prev"], before) in repaired
        require(linked, f"{key} was not written after the entry that stands before it")
        fold = RULES.get(entry["kind"])
        require(fold is not None, f"{key} is of the kind {entry['kind']}")
        fold(history, entry, key)
        history.entries.append(entry)
        before = hashlib.sha256(data).hexdigest()
    return history


def repairs(objects: Objects) -> set[tuple[int, str, str]]:
    """(n, what entry n names as the one before, what that is in truth) of links that were repaired. Raises: Broken."""
    found = set()
    for key, data in objects.items():
        if REPAIR.fullmatch(key):
            body = parse_object(data, key)
            check_own(body, key)
            found.add((body["n"], body["was"], body["prev"]))
    return found


def check_own(body: dict[str, Any], key: str) -> None:
    """The checksum that an object says of itself; earlier releases wrote none. Raises: Broken."""
    rest = {name: value for name, value in body.items() if name != "checksum"}
    own = hashlib.sha256(canonical(rest)).hexdigest()
    require(body.get("checksum", own) == own, f"{key} does not have the checksum that it says")


def begin(history: History, entry: dict[str, Any], key: str) -> None:
    parent = history.by_id(entry["parent"])
    require(entry["txn"] not in history.txns, f"{key} begins {entry['txn']} again")
    if entry["parent"] is not None:
        require(parent is not None and parent.dataset == entry["dataset"], f"{key}: no such parent")
        require(not parent.retired, f"{key} begins on a version that was retired")
    history.txns[entry["txn"]] = {
        "dataset": entry["dataset"],
        "parent": entry["parent"],
        "status": "open",
        "gated": entry["kind"] == "gated",
    }


def commit(history: History, entry: dict[str, Any], key: str) -> None:
    txn = history.txns.get(entry["txn"])
    require(txn is not None and txn["status"] == "open", f"{key} commits a transaction that is not open")
    require(txn["dataset"] == entry["dataset"], f"{key} commits a transaction of another dataset")
    require(not txn["gated"] or bool(entry.get("verdict")), f"{key} commits gated parts without a verdict")
    there = history.versions.setdefault(entry["dataset"], [])
    newest = history.newest(entry["dataset"])
    require(entry["number"] == len(there) + 1, f"{key} has the number {entry['number']}")
    require(entry["parent"] == (newest.id if newest else None), f"{key} has another parent than the newest")
    require(entry["denies"] == (history.denies or [0])[-1], f"{key} has not applied every takedown")
    require(entry["id"] == f"v-{entry['sha256']}", f"{key}: the id is not the manifest's SHA-256")
    require(history.by_id(entry["id"]) is None, f"{key} commits what was committed before")
    names = ("dataset", "number", "id", "manifest", "sha256", "parent", "txn", "denies", "n")
    there.append(Committed(**{name: entry[name] for name in names}))
    txn["status"] = "committed"


def abort(history: History, entry: dict[str, Any], key: str) -> None:
    txn = history.txns.get(entry["txn"])
    require(txn is not None and txn["status"] == "open", f"{key} aborts a transaction that is not open")
    txn["status"] = "aborted"


def find_version(history: History, entry: dict[str, Any], key: str) -> Committed:
    there = history.versions.get(entry["dataset"], [])
    require(1 <= entry["number"] <= len(there), f"{key} is of a version that is not there")
    found = there[entry["number"] - 1]
    require(entry.get("id", found.id) == found.id, f"{key} names the version by another id")
    return found


def retire(history: History, entry: dict[str, Any], key: str) -> None:
    found = find_version(history, entry, key)
    require(not found.retired, f"{key} retires a version again")
    found.retired = True


def ref(history: History, entry: dict[str, Any], key: str) -> None:
    require(not find_version(history, entry, key).retired, f"{key} names a version that was retired")
    where = entry["dataset"], entry["name"]
    before = history.names.get(where)
    require(entry["ref_kind"] in ("tag", "alias"), f"{key} has the kind {entry['ref_kind']}")
    if before is not None:
        require(before[0] == entry["ref_kind"] == "alias", f"{key} moves a tag")
    require(entry["was"] == (before[1] if before else None), f"{key}: it named another version")
    history.names[where] = entry["ref_kind"], entry["number"]


def hold(history: History, entry: dict[str, Any], key: str) -> None:
    found = find_version(history, entry, key)
    one = found.dataset, found.number, entry["by"]
    if entry["action"] == "place":
        require(not found.retired, f"{key} holds a version that was retired")
        history.holds.add(one)
        return
    require(entry["action"] == "release" and one in history.holds, f"{key} releases what nobody holds")
    history.holds.discard(one)


def deny(history: History, entry: dict[str, Any], key: str) -> None:
    require(bool(entry["hashes"]), f"{key} takes down nothing")
    history.denies.append(entry["n"])


def mirror(history: History, entry: dict[str, Any], key: str) -> None:
    require(entry["upto"] < entry["n"], f"{key}: upto is no earlier entry")


def primary(history: History, entry: dict[str, Any], key: str) -> None:
    require(history.tokens[-1:] != [entry["token"]], f"{key} has the token of the move before it")
    history.tokens.append(entry["token"])


RULES = {
    "begin": begin,
    "gated": begin,
    "commit": commit,
    "abort": abort,
    "retire": retire,
    "ref": ref,
    "hold": hold,
    "deny": deny,
    "mirror": mirror,
    "primary": primary,
}
