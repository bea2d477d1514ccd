"""Marks: names of denied samples as keyed hashes, which a proof may contain."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from loader.dataset.log.denies import keyed_hash
from loader.dataset.log.state import Deny

KIND = "mark"
TAKEN_DOWN = "(taken down)"
_OURS = re.compile(r"(\(taken down\)|(?:taken down|takedown) \(log entry \d+\))")
"""Text that takedowns write, which is never a name."""
_WORD = re.compile(r"[^\s'\"(),;\[\]{}<>]+")
# Next to an identifier's character a name is part of another name.
_BEFORE = r"(?<![\w\-/%~+@=.])"
"""Boundary before a name."""
_AFTER = r"(?![\w\-/%~+@=])"
"""Boundary after a name; a dot may follow (`key.jpg`)."""
_SHORTEST = 4  # shorter words are too common
_MOST_PLACES = 400
"""Most candidate spans in one word; a word with more is only checked whole."""


@dataclass(frozen=True, slots=False, kw_only=True)
class Marks:
    """One dataset's denied names."""

    salt: str
    """Salt of the hashes."""
    dataset: str
    """Name of the dataset."""
    kinds: tuple[str, ...]
    """Kinds of names in the deny entry."""
    entry_hashes: frozenset[str]
    """Hashes in the deny entry, one per name, its kind and its dataset."""
    denied_marks: frozenset[str]
    """Marks of the denied samples' names, which a takedown records outside the deny entry."""
    plain: frozenset[str] = frozenset()
    """Denied names known in plain text, found within longer texts too."""
    others: frozenset[str] = frozenset()
    """Marks of names that remaining samples share; these are not denied."""
    _known: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def has(self, text: str) -> bool:
        """Return whether a text is exactly a denied name."""
        known = self._known.get(text)  # another thread may clear the cache at any moment
        if known is not None:
            return known
        if len(self._known) > 100_000:
            self._known.clear()
        hashed = self.mark(text)
        is_denied = hashed in self.denied_marks or any(self._denies(kind, text) for kind in self.kinds)
        has_name = hashed not in self.others and is_denied
        self._known[text] = has_name
        return has_name

    def takes(self, kind: str, text: str) -> bool:
        """Return whether this name is denied. kind: its kind, or ""; kinds may share a name."""
        if kind in self.kinds and self._denies(kind, text):
            return True
        hashed = self.mark(text)
        return hashed not in self.others and hashed in self.denied_marks

    def mark(self, text: str) -> str:
        return mark(self.salt, self.dataset, text)

    def _denies(self, kind: str, text: str) -> bool:
        return not self.entry_hashes.isdisjoint(self._hashes_in_entry(kind, text))

    def _hashes_in_entry(self, kind: str, name: str) -> tuple[str, str]:
        """Return the hashes by which a deny entry may deny a name: in all datasets, or in this one."""
        everywhere = ""
        return (
            keyed_hash(self.salt, kind, everywhere, name),
            keyed_hash(self.salt, kind, self.dataset, name),
        )

    @property
    def all_known(self) -> bool:
        """True if `plain` has every denied name, so that texts need no hash."""
        known_marks = {self.mark(name) for name in self.plain}
        if not self.denied_marks <= known_marks:
            return False
        known_hashes: set[str] = set()
        for name in self.plain:
            for kind in self.kinds:
                known_hashes.update(self._hashes_in_entry(kind, name))
        return self.entry_hashes <= known_hashes

    def adding(self, names: Iterable[str]) -> "Marks":
        """Return these marks with names added, except shared names."""
        name_of_mark = {self.mark(name): name for name in names if name}
        marks = name_of_mark.keys() - self.others
        plain = self.plain.union(name_of_mark[mark] for mark in marks)
        return replace(self, plain=plain, denied_marks=self.denied_marks | marks)

    def names(self, text: str) -> bool:
        """Return whether a text is or contains a denied name."""
        return self.without(text) != text

    def without(self, text: str) -> str:
        """Return the text with denied names replaced."""
        if self.has(text):
            return TAKEN_DOWN
        if (pattern := self._pattern) is not None:
            text = _between_ours(text, lambda piece: pattern.sub(TAKEN_DOWN, piece))
        return _between_ours(text, lambda piece: _WORD.sub(lambda word: self._word(word[0]), piece))

    def _word(self, word: str) -> str:
        starts = [one.start() for one in re.finditer(_BEFORE, word)]
        ends = [one.start() for one in re.finditer(_AFTER, word)]
        if len(starts) * len(ends) > _MOST_PLACES:
            starts = [0]
            ends = [len(word)]
        out = ""
        done = 0  # characters of the word that `out` stands for
        for start in starts:
            for end in reversed(ends):  # the longest name first
                if start >= done and end - start >= _SHORTEST and self.has(word[start:end]):
                    out += word[done:start] + TAKEN_DOWN
                    done = end
        return out + word[done:]

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        names = [re.escape(name) for name in self.plain if len(name) > 2]
        if not names:
            return None
        # The first alternative that fits wins, so a name stands before the names that it begins with.
        names.sort(key=len, reverse=True)
        return re.compile(rf"{_BEFORE}(?:{'|'.join(names)}){_AFTER}")


def _between_ours(text: str, change: Callable[[str], str]) -> str:
    """Return the text, changed except for what takedowns wrote."""
    pieces = _OURS.split(text)
    # split() by a group returns the other texts at even places, and takedowns' texts at odd ones.
    pieces[::2] = map(change, pieces[::2])
    return "".join(pieces)


def mark(salt: str, dataset: str, text: str) -> str:
    """Return the mark (keyed hash) of a sample's name."""
    return keyed_hash(salt, KIND, dataset, text)


def dataset_marks(
    deny: Deny, dataset: str, names: Iterable[str], known: Iterable[str] = (), others: Iterable[str] = ()
) -> Marks:
    """Return a deny entry's marks in a dataset.

    names: denied ones in plain text. known: recorded marks, as names of deleted samples have no plain text. others:
    marks of names that remaining samples share; these are not denied.
    """
    marks = Marks(
        salt=deny.salt,
        dataset=dataset,
        kinds=tuple(deny.scope.split()),
        entry_hashes=frozenset(deny.hashes),
        denied_marks=frozenset(known),
        others=frozenset(others),
    )
    return marks.adding(names)
