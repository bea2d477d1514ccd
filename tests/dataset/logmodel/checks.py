"""What must hold, said again without the code that is checked: over raw entries, and over beliefs."""

from loader.dataset.log.entries import Entry

from .roles import live_items, manifest_items
from .world import Histories, Role, Violation, World


def check_log(entries: list[Entry]) -> None:
    """Hold a log to the rules, its last entry against those before it. Raises: Violation."""
    before, entry = entries[:-1], entries[-1]
    if entry.prev != (before[-1].sha256 if before else ""):
        raise Violation("an entry was written after one that is not before it")
    if any(e.nonce == entry.nonce for e in before):
        raise Violation("one append was written twice")
    if entry.kind == "commit":
        _check_commit(before, entry)
    if entry.kind == "abort" and any(
        _same_transaction(e, entry) and e.kind in ("commit", "abort") for e in before
    ):
        raise Violation("a settled transaction was aborted")
    if entry.kind == "ref":
        moves = [e.body["number"] for e in before if e.kind == "ref" and e.body["name"] == entry.body["name"]]
        if entry.body["was"] != (moves[-1] if moves else None):
            raise Violation("an alias moved from where it was not")


def _same_transaction(left: Entry, right: Entry) -> bool:
    return left.body.get("txn") == right.body["txn"]


def _check_commit(before: list[Entry], entry: Entry) -> None:
    if any(_same_transaction(e, entry) and e.kind == "abort" for e in before):
        raise Violation("an aborted transaction was committed")
    if any(_same_transaction(e, entry) and e.kind == "commit" for e in before):
        raise Violation("one transaction made two versions")
    commits = [e for e in before if e.kind == "commit"]
    if entry.body["number"] != len(commits) + 1:
        raise Violation("version numbers have a gap or a double")
    last_deny = max((e.n for e in before if e.kind == "deny"), default=0)
    items, denied = manifest_items(str(entry.body["manifest"])), _denied_hashes(before)
    if items != live_items(items, denied) or entry.body["denies"] != last_deny:
        raise Violation("denied content was committed")
    retired = {e.body["id"] for e in before if e.kind == "retire"}
    live = [c for c in commits if c.body["id"] not in retired]
    if entry.body["parent"] != (live[-1].body["id"] if live else None):
        raise Violation("a version was not built on the newest one: an update is lost")
    if live and not live_items(manifest_items(str(live[-1].body["manifest"])), denied) <= items:
        raise Violation("an update is lost")


def _denied_hashes(entries: list[Entry]) -> frozenset[str]:
    return frozenset(str(h) for e in entries if e.kind == "deny" for h in e.body["hashes"])  # type: ignore[attr-defined]


def check_beliefs(world: World, roles: tuple[Role, ...], histories: Histories) -> None:
    """Hold what every process believes against the log. Raises: Violation."""
    entries = histories.entries(world.log)
    for role, process in zip(roles, world.processes, strict=True):
        last = len(role.appends) - 1
        written = sum(e.nonce == f"{role.name}.{last}" for e in entries)
        if process.end is None or process.end == "crashed":
            continue
        if written != process.end.startswith("appended"):
            raise Violation(f"a process ended with {process.end} and its entry is in the log {written} times")
        if role.txn is not None and process.end.startswith(("appended", "found")):
            _check_published(role, process.end.split()[-1], entries)


def _check_published(role: Role, number: str, entries: list[Entry]) -> None:
    mine = [e for e in entries if e.kind == "commit" and e.body["txn"] == role.txn]
    if [str(e.body["number"]) for e in mine] != [number]:
        raise Violation("a version that was reported as committed is not in the log")
    retired_at = min(
        (e.n for e in entries if e.kind == "retire" and e.body["id"] == mine[0].body["id"]), default=None
    )
    for later in entries[mine[0].n - 1 :]:
        if later.kind != "commit" or (retired_at is not None and later.n > retired_at):
            continue
        items = manifest_items(str(later.body["manifest"]))
        if not live_items(role.adds, _denied_hashes(entries[: later.n])) <= items:
            raise Violation("a version that was reported as committed is not in a later one")
