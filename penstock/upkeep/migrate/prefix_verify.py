"""Verify a copied plain prefix: compare both listings and the manifest, and with `full` every byte."""

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
            n_read = ""
            if self.read:
                n_read = f", {how}"
            how = f"sizes and ETags{n_read} (--full reads every byte)"
        lines = [
            f"{self.source} -> {self.target}: {self.checked} objects ({size(self.nbytes)}) are there, {how}; "
            f"{self.extra} others at the target; {len(self.problems)} problems"
        ]
        for key, problem in self.problems.items():
            lines.append(f"  {key}: {problem}")
        if self.unhashed:
            lines.append(f"  {self.unhashed} were accepted by size: --full compares them with the source")
        return "\n".join(lines)


def verify_prefix(source: Store, target: Store, *, full: bool, scratch: str | None = None) -> PrefixVerdict:
    """Compare the target with the source and the journal.

    full: read every object at the target and compare it with its recorded hash, or, if it has none, with the source.
    Otherwise an object is read only if its two ETags may be MD5s and differ. If such an object has equal bytes, the
    store's ETags prove nothing (with KMS), and no more objects are read.

    Raises: as `check_places`; as listing.
    """
    check_places(source, target)
    verdict = PrefixVerdict(source=source.url, target=target.url, full=full)
    pool = DaemonPool(AT_ONCE, "penstock-verify")
    refused = dict[str, str]()  # key -> why a listing cannot return it
    try:
        with Journal(target, FOLDER, scratch) as journal:
            comparisons: list[tuple[Sides, Future[str]]] = []  # submitted, oldest first
            etags_are_hashes = True  # until two objects with other ETags have equal bytes

            def finish_oldest() -> None:
                nonlocal etags_are_hashes
                sides, comparison = comparisons.pop(0)
                is_equal = _record_comparison(sides, comparison.result(), verdict, journal)
                if is_equal and _etags_differ(sides):
                    etags_are_hashes = False

            all_sides = both_sides(source, target, journal, refused.__setitem__)
            for sides in progress(all_sides, "verify"):
                if not _check_listed(source, sides, verdict):
                    continue
                must_read = full or (etags_are_hashes and _etags_differ(sides))
                if must_read:
                    comparison = pool.submit(_compare, source, target, sides)
                    comparisons.append((sides, comparison))
                # A bounded number ahead: a listing may have millions of objects.
                while len(comparisons) >= 4 * AT_ONCE:
                    finish_oldest()
            while comparisons:
                finish_oldest()
            # What this run hashed, the next one compares without the source.
            if full:
                journal.keep()
        refused.update(omitted_files(source))
        for path, why in refused.items():
            verdict.problems[path] = f"never copied: {why}"
    finally:
        pool.dismiss()
    return verdict


def _check_listed(source: Store, sides: Sides, verdict: PrefixVerdict) -> bool:
    """Compare what the listings and the journal have of an object; return whether its bytes can be compared."""
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
    # `_record_comparison` takes this back if it reads the bytes.
    verdict.unhashed += noted is None or not noted.digest
    if noted is not None and noted.etag != here.etag:
        verdict.problems[sides.key] = (
            "another object at the source than was copied (its ETag): run the migration again"
        )
    return True


def _etags_differ(sides: Sides) -> bool:
    """Return whether the ETags, if they are MD5s, prove that the objects differ."""
    return bool(sides.source and sides.target and differ(sides.source.etag, sides.target.etag))


def _compare(source: Store, target: Store, sides: Sides) -> str:
    """Return the digest of the target's bytes if they are right, else "!" and what is wrong."""
    try:
        assert sides.target is not None
        expected = ""
        if sides.noted:
            expected = sides.noted.digest
        where = "when it was copied"
        actual = _digest(target, sides.key, sides.target.nbytes, expected)
        if not expected:
            expected = _digest(source, sides.key, sides.target.nbytes, actual)
            where = "at the source"
    except PenstockError as error:
        return f"!{error}"
    if actual == expected:
        return actual
    return f"!{in_words(actual)} at the target, {in_words(expected)} {where}"


def _record_comparison(sides: Sides, result: str, verdict: PrefixVerdict, journal: Journal) -> bool:
    """Record the result of `_compare`; return whether the bytes are right."""
    if result.startswith("!"):
        verdict.problems[sides.key] = result[1:]
        return False
    verdict.read += 1
    if sides.noted is None or not sides.noted.digest:
        assert sides.source is not None
        # `_check_listed` counted it before its bytes were read.
        verdict.unhashed -= 1
        if verdict.full:
            copied = Copied(
                path=sides.key,
                nbytes=sides.source.nbytes,
                digest=result,
                etag=sides.source.etag,
            )
            journal.add(copied)
    return True


def _digest(store: Store, key: str, nbytes: int, like: str) -> str:
    """Return the digest of an object's bytes, by the algorithm of the digest `like`; sha256 if that is ""."""
    digest = Digest(like, "sha256")
    etag = None  # after the first range: an object that is replaced meanwhile raises an error
    for offset in range(0, nbytes, MAX_BYTES):
        length = min(MAX_BYTES, nbytes - offset)
        data, etag = store.get_range(key, offset, length, etag)
        digest.update(data)
    return str(digest)
