"""Verify a copied plain prefix: compare both listings and the manifest, and with `full` every byte."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from typing import Any

from loader.errors import PenstockError
from loader.storage import Store
from loader.storage.cloud.listing import differ
from loader.storage.stream import MAX_BYTES
from loader.storage.threads import DaemonPool

from ...progress import progress
from ...units import size
from ..copying.items import Copied, Digest, in_words
from ..copying.journal import Journal
from .prefix_copy import FOLDER, Sides, both_sides, check_places, is_marker, omitted_files

AT_ONCE = 16


@dataclass(slots=True, kw_only=True)
class PrefixVerdict:
    source: str
    """Source URL."""
    target: str
    """Target URL."""
    full: bool
    """True if every byte was read."""
    checked: int = 0
    """Source objects that the target has."""
    nbytes: int = 0
    """Bytes of the checked objects."""
    read: int = 0
    """Objects whose bytes were compared."""
    unhashed: int = 0
    """Objects accepted by size, unread."""
    extra: int = 0
    """Objects that only the target has."""
    problems: dict[str, str] = field(default_factory=dict)
    """Key -> problem."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        how = f"{self.read} of them read"
        if not self.full:
            how = f"sizes and ETags{f', {how}' if self.read else ''} (--full reads every byte)"
        lines = [
            f"{self.source} -> {self.target}: {self.checked} objects ({size(self.nbytes)}) are there, {how}; "
            f"{self.extra} others at the target; {len(self.problems)} problems",
            *(f"  {key}: {what}" for key, what in self.problems.items()),
        ]
        if self.unhashed:
            lines.append(f"  {self.unhashed} were accepted by size: --full compares them with the source")
        return "\n".join(lines)


def verify_prefix(source: Store, target: Store, *, full: bool, scratch: str | None = None) -> PrefixVerdict:
    """Compare the target with the source and the journal.

    full: compare all objects in the target with their recorded hashes; an unhashed object is read at the source too.
    Otherwise an object is read if its two ETags may be MD5s and differ. This stops at the first such pair with
    equal bytes: ETags (with KMS) then prove nothing.

    Raises: as `check_places`; as listing.
    """
    check_places(source, target)
    verdict = PrefixVerdict(source=source.url, target=target.url, full=full)
    pool = DaemonPool(AT_ONCE, "penstock-verify")
    refused = dict[str, str]()
    try:
        with Journal(target, FOLDER, scratch) as journal:
            waiting: list[tuple[Sides, Future[str]]] = []
            etags_tell = True

            def take() -> None:
                nonlocal etags_tell
                sides, result = waiting.pop(0)
                if _take(sides, result.result(), verdict, journal) and _differ(sides):
                    etags_tell = False

            def seen() -> Iterator[Sides]:
                for sides in both_sides(source, target, journal, refused.__setitem__):
                    if _is_there(source, sides, verdict) and (full or (etags_tell and _differ(sides))):
                        waiting.append((sides, pool.submit(_compare, source, target, sides)))
                    # A bounded number ahead: a listing may have millions of objects.
                    while len(waiting) >= 4 * AT_ONCE:
                        take()
                    yield sides

            for _ in progress(seen(), "verify"):
                pass
            while waiting:
                take()
            # What this run hashed, the next one compares without the source.
            if full:
                journal.keep()
        refused.update(omitted_files(source))
        verdict.problems.update((path, f"never copied: {why}") for path, why in refused.items())
    finally:
        pool.dismiss()
    return verdict


def _is_there(source: Store, sides: Sides, verdict: PrefixVerdict) -> bool:
    here = sides.source
    there = sides.target
    noted = sides.noted
    if here is None:
        verdict.extra += 1
        return False
    if there is None:
        if not is_marker(source, here):
            verdict.problems[sides.key] = "not at the target: run the migration again"
        return False
    if there.nbytes != here.nbytes:
        verdict.problems[sides.key] = f"{there.nbytes} bytes at the target, {here.nbytes} at the source"
        return False
    verdict.checked += 1
    verdict.nbytes += here.nbytes
    verdict.unhashed += noted is None or not noted.digest
    if noted is not None and noted.etag != here.etag:
        verdict.problems[sides.key] = (
            "another object at the source than was copied (its ETag): run the migration again"
        )
    return True


def _differ(sides: Sides) -> bool:
    return bool(sides.source and sides.target and differ(sides.source.etag, sides.target.etag))


def _compare(source: Store, target: Store, sides: Sides) -> str:
    try:
        assert sides.target is not None
        right = ""
        if sides.noted:
            right = sides.noted.digest
        where = "when it was copied"
        there = _digest(target, sides.key, sides.target.nbytes, right)
        if not right:
            right = _digest(source, sides.key, sides.target.nbytes, there)
            where = "at the source"
    except PenstockError as error:
        return f"!{error}"
    if there == right:
        return there
    return f"!{in_words(there)} at the target, {in_words(right)} {where}"


def _take(sides: Sides, result: str, verdict: PrefixVerdict, journal: Journal) -> bool:
    if result.startswith("!"):
        verdict.problems[sides.key] = result[1:]
        return False
    verdict.read += 1
    if sides.noted is None or not sides.noted.digest:
        assert sides.source is not None
        # `_is_there` counted it before its bytes were read.
        verdict.unhashed -= 1
        if verdict.full:
            journal.add(
                Copied(path=sides.key, nbytes=sides.source.nbytes, digest=result, etag=sides.source.etag)
            )
    return True


def _digest(store: Store, key: str, nbytes: int, like: str) -> str:
    digest = Digest(like, "sha256")
    etag = None
    for offset in range(0, nbytes, MAX_BYTES):
        data, etag = store.get_range(key, offset, min(MAX_BYTES, nbytes - offset), etag)
        digest.update(data)
    return str(digest)
