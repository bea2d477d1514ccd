"""What names a sample that is taken down: its keys and provenance, as keyed hashes that a proof may hold."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from loader.dataset.denied import TESTED, keyed_hash

KIND = "mark"
NAMING = re.compile(r"(^|_)(of|key|keys|id|ids|uri|sha256|reason|error|name|names)$")
"""Columns that name samples, or say why: others, such as labels, may hold a word that is also somebody's key."""
TAKEN_DOWN = "(taken down)"
_BETWEEN = re.compile(r"[\s'\"(),;\[\]{}<>]+")


@dataclass(frozen=True, slots=False, kw_only=True)
class Marks:
    """Of one dataset. hashes: of what is taken down and of what names it; plain: the names, where they are still known,
    which finds them in the midst of a text."""

    salt: str
    dataset: str
    hashes: frozenset[str]
    plain: frozenset[str] = frozenset()
    _known: dict[str, bool] = field(default_factory=dict, repr=False, compare=False)

    def has(self, text: str) -> bool:
        """Whether this is one of the names, exactly."""
        if text not in self._known:
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[text] = any(one in self.hashes for one in spellings(self.salt, self.dataset, text))
        return self._known[text]

    def names(self, text: str) -> bool:
        """Whether a text is, or holds, one of the names."""
        return self.has(text) or any(map(self.has, words(text))) or bool(self._in_plain(text))

    def without(self, text: str) -> str:
        """The text without the names."""
        if self.has(text):
            return TAKEN_DOWN
        if self._pattern is not None:
            text = self._pattern.sub(TAKEN_DOWN, text)
        for word in words(text):
            if self.has(word):
                text = text.replace(word, TAKEN_DOWN)
        return text

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        longest = sorted((name for name in self.plain if len(name) > 2), key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)") if longest else None

    def _in_plain(self, text: str) -> re.Match[str] | None:
        return self._pattern.search(text) if self._pattern is not None else None


def words(text: str) -> set[str]:
    """Its words, as they may be names: shorter ones than four letters are anybody's."""
    return {word for word in _BETWEEN.split(text) if len(word) > 3}


def mark(salt: str, dataset: str, text: str) -> str:
    """The hash of a name of a dataset's sample."""
    return keyed_hash(salt, KIND, dataset, text)


def marks_of(
    salt: str, dataset: str, names: Iterable[str], denied: Iterable[str], more: Iterable[str] = ()
) -> Marks:
    """names: in plain; denied: the hashes of the deny entry; more: marks that are on record already."""
    plain = frozenset(name for name in names if name)
    own = {mark(salt, dataset, name) for name in plain}
    return Marks(salt=salt, dataset=dataset, hashes=frozenset(own | set(denied) | set(more)), plain=plain)


def spellings(salt: str, dataset: str, text: str) -> Iterator[str]:
    """Every hash that this text would be found by."""
    yield mark(salt, dataset, text)
    for kind in TESTED:
        yield keyed_hash(salt, kind, "", text)
        yield keyed_hash(salt, kind, dataset, text)


def by_dataset(marks: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """dataset -> its marks, sorted."""
    out: dict[str, set[str]] = {}
    for dataset, one in marks:
        out.setdefault(dataset, set()).add(one)
    return {dataset: sorted(some) for dataset, some in sorted(out.items())}
