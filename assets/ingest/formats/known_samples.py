"""Samples of raw objects beside those that the dataset has of them: an object that grew brings what is new alone.

A sample is known by the address of its raw object and its `source_key`. Where keys are those of a whole place
(`DatasetSpec.keyed_by_place`), the place stands for the object. Beside the newest version

- one with the content of a live sample is left out, as one that was published before;
- one with another content takes the place of the live samples, if nothing else leaves it out, and keeps their split;
- one with the content of a sample that was left out of the dataset since stays left out;
- any other is new. It has the split that the object had when it was first published, unless its format names one.

Content is fields and metadata. Its hashes stand in the tables of units. Of samples that an earlier release has
published nobody has kept one: theirs counts as another content.

Of samples in place nobody compares contents, since the earlier bytes are gone. All come in but those that were left out
of the dataset since. Together they take the place of every live sample of the object, also of those that it lost.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loader.dataset.writing.spill import Buffer, Sample

from ...media.objects import refusal_row
from ...media.unit import dropped
from .sample_facts import Row, Taken

_HASH_LETTERS = 32


@dataclass(slots=True)
class Earlier:
    """Samples that a dataset has under one source key; plain, so that nodes get it."""

    live: dict[str, str] = field(default_factory=dict)
    """Key of a live sample -> hash of its content, "" where nobody knows."""
    gone: list[str] = field(default_factory=list)
    """Hashes of samples that were left out since, "" where nobody knows."""
    split: str = ""
    """Split of the live samples; "" without one."""

    def add(self, row: Row, content: str) -> None:
        """Take a sample. row: of `_rows`."""
        if row["live"]:
            self.live[row["key"]], self.split = content, row["split"]
        else:
            self.gone.append(content)


@dataclass(slots=True)
class EarlierSamples:
    """Samples that a dataset has of a raw object, or of its place; plain, so that nodes get them."""

    first_sha256: str = ""
    """SHA-256 of the object when it was first published; "" for one that was not."""
    by_key: dict[str, Earlier] = field(default_factory=dict)
    """Source key -> its samples."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Samples of a batch beside the earlier ones."""

    contents: dict[str, str] = field(default_factory=dict)
    """Key of a sample that comes in -> hash of its content."""
    replaces: dict[str, list[str]] = field(default_factory=dict)
    """Key of a sample that comes in -> keys of the published ones whose place it takes."""
    objects: set[str] = field(default_factory=set)
    """Keys of the objects that a sample comes in of."""
    known: dict[str, int] = field(default_factory=dict)
    """Key of an object -> samples of it that are left out: the dataset has them, or had them."""

    @classmethod
    def of_all(cls, units: Iterable["Beside"]) -> "Beside":
        """Return the samples of all units of a batch."""
        made = cls()
        for one in units:
            made.contents.update(one.contents)
            made.replaces.update(one.replaces)
            made.objects.update(one.objects)
            for key, n_known in one.known.items():
                made._leave_out(key, n_known)
        return made

    def taken(self, sample: Sample, earlier: EarlierSamples, has_own_split: bool) -> Sample | None:
        """Return a sample as it comes in; None for one that is left out. has_own_split: its format names it."""
        content, of = content_of(sample.fields, sample.metadata), sample.source["raw_key"]
        found = earlier.by_key.get(sample.source["source_key"], Earlier())
        before = found.live.values() or found.gone
        if content in before or (not found.live and "" in before):
            self._leave_out(of)
            return None
        self.contents[sample.key] = content
        self.objects.add(of)
        if found.live:
            self.replaces[sample.key] = sorted(found.live)
            if not has_own_split:
                sample = replace(sample, source={**sample.source, "split": found.split})
        return sample

    def taken_in_place(self, key: str, source: Mapping[str, str], earlier: EarlierSamples) -> bool:
        """Return whether a sample in place comes in. key: its key in the dataset. source: its provenance."""
        of, found = source["raw_key"], earlier.by_key.get(source["source_key"], Earlier())
        if found.gone and not found.live:
            self._leave_out(of)
            return False
        self.objects.add(of)
        if found.live:
            self.replaces[key] = sorted(found.live)
        return True

    def replace_lost(self, first_of: Mapping[str, str], earlier: Mapping[str, EarlierSamples]) -> None:
        """Let the first sample of an object in place take the place of those that the object has no more.

        first_of: key of an object -> key of its first sample that comes in. earlier: key of an object -> what the
        dataset has of it alone.
        """
        taken = {key for keys in self.replaces.values() for key in keys}
        for of, first in first_of.items():
            had = earlier.get(of, EarlierSamples()).by_key.values()
            if lost := {key for one in had for key in one.live} - taken:
                self.replaces[first] = sorted({*self.replaces.get(first, ()), *lost})

    def told_in(self, taken: Taken, raws: Mapping[str, Row]) -> Taken:
        """Return samples of a batch with what these are beside the earlier ones.

        Objects all of whose samples were left out are refused. raws: rows of the batch's objects, by key.
        """
        refusals = [*taken.refusals]
        for key, n_known in sorted(self.known.items()):
            if key not in self.objects:
                why = f"all of its {n_known} samples were published before, or left out of the dataset since"
                refusals.append(refusal_row(key, raws[key]["sha256"], dropped("dedup", "nothing_new", why)))
        n_known = sum(self.known.values())
        return replace(taken, refusals=refusals, replaces=self.replaces, n_known=n_known)

    def _leave_out(self, of: str, n_known: int = 1) -> None:
        self.known[of] = self.known.get(of, 0) + n_known


def content_of(fields: Mapping[str, Buffer], metadata: Mapping[str, Any]) -> str:
    """Return the hash of a sample's fields and metadata, 32 hex: SHA-256 of each field, and of the columns as JSON."""
    told = {name: value for name, value in metadata.items() if value is not None}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in fields.items()}
    text = json.dumps([hashes, told], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LETTERS]
