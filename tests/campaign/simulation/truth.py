"""What actors tried, and what they were told: held against what a root holds in the end."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Content = dict[str, dict[str, Any]]


class Violation(BaseException):
    """What must not be."""


@dataclass
class Change:
    """What somebody tried. samples: key -> fields, of a publish; subjects: key -> whose the sample is; base: id of the
    version that it was made from; keys: excluded; group, field, label: what a group or an annotation adds; id: of the
    version that came of it, once that was said."""

    name: str
    kind: str
    actor: str
    samples: Content = field(default_factory=dict)
    subjects: dict[str, str] = field(default_factory=dict)
    base: str = ""
    keys: tuple[str, ...] = ()
    label: str = ""
    id: str = ""
    error: str = ""


@dataclass
class Truth:
    """changes: name -> what was tried; done: (what, its fields) of everything else that was acknowledged."""

    changes: dict[str, Change] = field(default_factory=dict)
    subjects: dict[str, str] = field(default_factory=dict)
    done: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    producers: dict[str, dict[str, Any]] = field(default_factory=dict)
    denied: dict[int, str] = field(default_factory=dict)
    saved: dict[tuple[str, int], bytes] = field(default_factory=dict)
    tried: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    _known: dict[str, Content] = field(default_factory=dict)

    def begin(self, kind: str, actor: str, **facts: Any) -> Change:
        """Somebody tries something."""
        change = Change(name=f"{kind}-{len(self.changes)}", kind=kind, actor=actor, **facts)
        self.changes[change.name] = change
        self.subjects |= change.subjects
        return change

    def expected(self, history: Any, record: Any) -> Content:
        """What a version has to hold: what its parent holds, after the change that its producer names."""
        if record.id not in self._known:
            parent = history.by_id(record.parent)
            before = self.expected(history, parent) if parent else {}
            self._known[record.id] = self._after(history, record, before)
        return self._known[record.id]

    def _after(self, history: Any, record: Any, before: Content) -> Content:
        producer = self.producers.get(record.sha256, {})
        after = {key: dict(fields) for key, fields in before.items()}
        change = self.changes.get(producer.get("op", ""))
        if change is None:
            if "takedown" not in producer:
                raise AssertionError(f"{record.id} was tried by nobody: {producer}")
        elif change.kind == "publish":
            after |= {key: dict(fields) for key, fields in change.samples.items()}
        elif change.kind == "exclude":
            after = {key: fields for key, fields in after.items() if key not in change.keys}
        else:
            base = history.by_id(change.base)
            computed = self.expected(history, base) if change.kind == "group" else change.keys
            added = {"group": "t.txt", "annotate": "column label"}[change.kind]
            value = change.label.encode() if change.kind == "group" else change.label
            for key in after.keys() & set(computed):
                if change.kind == "annotate" or added not in after[key]:
                    after[key][added] = value
        gone = {subject for n, subject in self.denied.items() if n <= record.denies}
        return {key: fields for key, fields in after.items() if self.subjects.get(key) not in gone}
