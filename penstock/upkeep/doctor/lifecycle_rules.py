"""Find lifecycle rules that would delete a root's files or archive them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .finding import Finding, fail, ok, warn

CHECK = "lifecycle"
MAY_GO = ("heartbeats/", "leases/")
"""Prefixes whose objects may be lost, since their writers recreate them."""
ARCHIVES = {"GLACIER", "DEEP_ARCHIVE"}
"""Tiers that need a restore before a read; Google's ARCHIVE does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """An active rule without a tag filter; a root's objects have no tags."""

    name: str
    """Rule name, or ""."""
    prefix: str
    """Prefix of the affected keys in the bucket."""
    deletes: str = ""
    """Time of deletion, in words; "" if it deletes nothing."""
    archives: str = ""
    """Archive tier that it moves objects into, or ""."""
    aborts: bool = False
    """True if it aborts unfinished uploads."""


def rules_of_s3(configured: Iterable[Mapping[str, Any]]) -> Iterator[Rule]:
    """Yield the rules in a GetBucketLifecycleConfiguration response that can affect a root."""
    for rule in configured:
        chosen = rule.get("Filter", {})
        # S3 nests several conditions in `And`, but not a single one.
        chosen = {**chosen, **chosen.get("And", {})}
        if rule.get("Status") != "Enabled" or chosen.get("Tag") or chosen.get("Tags"):
            continue
        expires = rule.get("Expiration", {})
        tiers = [move.get("StorageClass", "") for move in rule.get("Transitions", ())]
        yield Rule(
            name=rule.get("ID", ""),
            # Older configurations have the prefix beside the filter.
            prefix=chosen.get("Prefix", rule.get("Prefix", "")),
            deletes=_when(expires.get("Days"), expires.get("Date")),
            archives=next((tier for tier in tiers if tier in ARCHIVES), ""),
            aborts="AbortIncompleteMultipartUpload" in rule,
        )


NEVER_MET = {
    *("daysSinceNoncurrentTime", "noncurrentTimeBefore"),  # apply to old generations
    *("daysSinceCustomTime", "customTimeBefore"),  # apply to objects with a custom time, which a root's lack
}
"""Google's conditions that a root's live objects never meet."""
ENDINGS = (".tar", ".parquet", ".json", ".jsonl", ".safetensors", ".html", ".md", ".jpg")
"""Suffixes of a root's keys."""
FURTHER = {
    "createdBefore": "written before",
    "matchesSuffix": "that end in",
    "matchesStorageClass": "of the storage class",
    "matchesPattern": "that match",
}
"""Condition that some of a root's objects may meet -> its readable form."""


def rules_of_gcs(configured: Iterable[Mapping[str, Any]]) -> Iterator[Rule]:
    """Yield a Google bucket's rules that can affect a root, one per prefix.

    A rule acts once all its conditions hold; without an age, also on new objects.
    """
    for number, rule in enumerate(configured):
        condition = rule.get("condition", {})
        action = rule.get("action", {}).get("type")
        old = condition.get("isLive") is False or int(condition.get("numNewerVersions") or 0) > 0
        if old or any(condition.get(name) is not None for name in NEVER_MET):
            continue
        if (endings := condition.get("matchesSuffix")) and not any(map(_ends_a_key, endings)):
            continue
        for prefix in condition.get("matchesPrefix") or [""]:
            yield Rule(
                name=f"number {number + 1}",
                prefix=prefix,
                deletes=_when_of_gcs(condition) if action == "Delete" else "",
                aborts=action == "AbortIncompleteMultipartUpload",
            )


def judge_rules(rules: Iterable[Rule], root: str) -> Iterator[Finding]:
    """Yield findings about a root whose keys begin with `root` ('' or 'a/b/')."""
    rules = list(rules)
    harmless = True
    for rule in rules:
        reach = _reach(rule.prefix, root)
        if reach is None:
            continue
        named = "a rule without a name"
        if rule.name:
            named = f"rule {rule.name!r}"
        mend = "take the root out of it, or give it the prefix of something else: only `penstock gc` deletes here"
        if rule.deletes:
            harmless = False
            yield fail(CHECK, f"{named} deletes {reach} {rule.deletes}", mend)
        if rule.archives:
            harmless = False
            what = f"{named} moves {reach} into {rule.archives}, which cannot be read before it is restored"
            yield fail(CHECK, what, "end that transition (GLACIER_IR and STANDARD_IA can be read at once)")
    if harmless:
        yield ok(
            CHECK,
            f"{len(rules)} rules, none of which deletes or archives the root's files"
            if rules
            else "no rules",
        )
    if not any(rule.aborts and (root.startswith(rule.prefix) or rule.prefix == "") for rule in rules):
        what = "no rule gives up unfinished multipart uploads, which are paid for and seen in no listing"
        yield warn(CHECK, what, "add one: AbortIncompleteMultipartUpload after 7 days")


def _when(days: Any, date: Any) -> str:
    if days is not None:
        return f"{days} days after they were written"
    return f"from {date} on" if date is not None else ""


def _ends_a_key(ending: str) -> bool:
    return any(ending.endswith(one) or one.endswith(ending) for one in ENDINGS)


def _when_of_gcs(condition: Mapping[str, Any]) -> str:
    words = [_when(condition.get("age"), None) or "as soon as they are written"]
    for name, phrase in FURTHER.items():
        if value := condition.get(name):
            words.append(f"those {phrase} {value if isinstance(value, str) else ' or '.join(value)}")
    return ", ".join(words)


def _reach(prefix: str, root: str) -> str | None:
    if root.startswith(prefix):
        return "the whole root (data/, log/ ...)"
    inside = prefix[len(root) :]
    if not prefix.startswith(root) or inside.startswith(MAY_GO):
        return None
    return f"{inside}* of the root"
