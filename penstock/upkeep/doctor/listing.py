"""Probe listings: every key once, in order, after a given key, and only below a prefix."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from loader.errors import StoreError

from .finding import Finding, fail, ok
from .scratch import Scratch

AT_ONCE = 32
ODD = ("a b", "a+b", "a.b", "a/b", "a0", "A", "Z/z", "ü", "%41", "日本", "𝄞", "~")
"""Names that servers order or escape wrongly. (A disk cannot hold both 'a' and 'a/b'.)"""
PUBLISH_ELSEWHERE = "histories and collections are read by listing: publish elsewhere"


def listing(scratch: Scratch, many: int) -> Iterator[Finding]:
    """Check a listing of odd names, and of `many` keys. `many` requests and a few.

    More than 1,000 keys show whether pages join.
    """
    base = (
        scratch.prefix + "list/"
    )  # (an empty object looks like a folder that a console made: none is empty)
    names = [f"odd/{name}" for name in ODD] + [f"many/{number:06}" for number in range(many)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda name: scratch.store.put(scratch.key(f"list/{name}"), b"x"), names))
    names.sort()
    try:
        yield _compared(scratch, base, names)
    except StoreError as error:
        yield fail("listing", str(error), PUBLISH_ELSEWHERE)


def _compared(scratch: Scratch, base: str, names: list[str]) -> Finding:
    def listed(prefix: str, start_after: str | None = None) -> list[str]:
        after = None if start_after is None else base + start_after
        return [info.key[len(base) :] for info in scratch.store.list(base + prefix, after)]

    middle = names[len(names) // 2]
    asked = {
        "everything": (listed(""), names),
        f"what follows {middle!r}": (listed("", middle), [name for name in names if name > middle]),
        "what follows the last": (listed("", names[-1]), []),
        "the prefix 'odd/a'": (listed("odd/a"), [name for name in names if name.startswith("odd/a")]),
        "a prefix that nothing has": (listed("nothing"), []),
    }
    for what, (listed_keys, expected) in asked.items():
        if listed_keys != expected:
            return fail("listing", f"of {what}: {_difference(listed_keys, expected)}", PUBLISH_ELSEWHERE)
    return ok(
        "listing",
        f"{len(names):,} keys, odd names among them, come once each and in order, after a key and by prefix",
    )


def _difference(listed_keys: list[str], expected: list[str]) -> str:
    if missing := sorted(set(expected) - set(listed_keys)):
        return f"{len(missing)} of {len(expected)} keys are missing ({missing[0]!r} ...)"
    if extra := sorted(set(listed_keys) - set(expected)):
        return f"{len(extra)} keys come that were not asked for ({extra[0]!r} ...)"
    return "some keys come twice" if len(listed_keys) > len(expected) else "the keys are not in order"
