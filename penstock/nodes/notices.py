"""Texts for a person, each said once until it changes."""

from collections.abc import Callable
from typing import NamedTuple


class Subject(NamedTuple):
    """Subject of a text."""

    name: str
    """Name of a node, job or run."""
    kind: str
    """Kind of fact, such as "proof"."""


class Notices:
    """Last text about each subject."""

    def __init__(self) -> None:
        self._texts: dict[Subject, str] = {}

    def is_new(self, subject: Subject, text: str) -> bool:
        """Return whether the text differs from the last one about its subject, and note it."""
        before = self._texts.get(subject)
        self._texts[subject] = text
        return before != text

    def drop(self, is_over: Callable[[Subject], bool]) -> None:
        """Forget the subjects that are over: if one comes back, its text is new."""
        self._texts = {subject: text for subject, text in self._texts.items() if not is_over(subject)}
