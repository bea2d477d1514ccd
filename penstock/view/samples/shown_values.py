"""Values of a sample's fields, each by its kind: in words, with its marks, and whether there is a picture of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import loader
from loader.run.recipe.recipe import stored_view

from ...class_names import class_names_of
from ...text import clean
from ..json_record import Record
from ..kinds import kind_of
from ..kinds.array_drawing import as_array
from ..kinds.kind import Facts, Mark, TokenBox
from ..kinds.lengths import length_marks
from ..kinds.video import frames_of
from ..replays.replayed_values import Texts
from ..replays.token_texts import special_tokens

MOST_LINES = 40
"""Lines that are told of a value."""
MOST_BOXES = 4096
"""Tokens that are told one by one."""
MOST_LETTERS = 2000
"""Letters of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown(Record):
    """One value of a field."""

    field: str
    """Name of the field."""
    kind: str
    """Name of its kind, of `kinds.KINDS`."""
    lines: tuple[str, ...]
    """Its content in words: shape, dtype and range, the text, the tokens."""
    marks: tuple[Mark, ...]
    """Faults that a person may not see."""
    boxes: tuple[TokenBox, ...] = ()
    """Tokens one by one; empty for other kinds."""


def version_of(plan: "loader.Plan", source: str) -> "loader.Version | None":
    """Return the version that a source of a plan reads; None for one without bytes."""
    view = stored_view(plan.sources[source].view)
    return None if view is None else view.version


def facts_of(
    sample: Mapping[str, Any], field: str, version: "loader.Version | None", texts: Texts | None = None
) -> Facts:
    """Return the facts that are known of a field beside its value. version: of the sample, whose manifest names them.

    A classification's labels are the dataset's, for fields whose name ends in `cls`. texts: of tokens.
    """
    told: dict[str, Any] = {}
    if version is not None:
        told = dict(version.facts.get(field, {}))
        if field.rpartition(".")[2] == "cls" and (labels := class_names_of(version)):
            told.setdefault("labels", labels)
    # Facts of the writer's own may be anything that JSON holds: those of another type are none of ours.
    vocabulary, rate = (told.get(name) for name in ("vocabulary", "rate"))
    names = (told.get("tokenizer"), told.get("tokenizer_sha256"))
    tokenizer = ", SHA-256 ".join(clean(one, 120) for one in names if isinstance(one, str) and one)
    return Facts(
        field=field,
        sample=sample,
        tokenizer=tokenizer,
        labels=told.get("labels"),
        vocabulary=vocabulary if type(vocabulary) is int and vocabulary > 0 else None,
        special=special_tokens(told),
        rate=float(rate) if type(rate) is int and rate > 0 else None,
        decode=partial(_text, texts[field]) if texts and field in texts else None,
    )


def _text(texts: Mapping[int, str], ids: Sequence[int]) -> str:
    return "".join(texts.get(token, "") for token in ids)


def shown(field: str, value: object, facts: Facts) -> Shown:
    """Return a value by its kind."""
    kind = kind_of(value, facts)
    return Shown(
        field=clean(field, 200),
        kind=kind.name,
        lines=tuple(line[:MOST_LETTERS] for line in kind.lines(value, facts)[:MOST_LINES]),
        marks=tuple(kind.marks(value, facts)),
        boxes=kind.boxes(value, facts)[:MOST_BOXES],
    )


def shown_sample(
    sample: Mapping[str, Any],
    version: "loader.Version | None",
    texts: Texts | None = None,
    cut: Mapping[str, str] | None = None,
) -> tuple[Shown, ...]:
    """Return every field of a sample, in its order: no field is left out. texts: of tokens.

    cut: field whose beginning alone is there -> its length in words. Nothing is said of lengths then.
    """
    facts = {name: facts_of(sample, name, version, texts) for name in sample}
    found = [shown(name, value, facts[name]) for name, value in sample.items()]
    if cut:
        return tuple(
            replace(one, lines=(cut[name], *one.lines)) if name in cut else one
            for name, one in zip(sample, found, strict=True)
        )
    lengths = {
        name: (one.kind, _units(one.kind, value), facts[name].rate or 0.0)
        for one, (name, value) in zip(found, sample.items(), strict=True)
        if facts[name].rate and one.kind in ("audio", "video")
    }
    sounds = {clean(name, 80): n / rate for name, (kind, n, rate) in lengths.items() if kind == "audio"}
    for at, name in enumerate(sample):
        kind, n, rate = lengths.get(name, ("", 0, 0.0))
        if kind == "video":
            found[at] = replace(
                found[at], marks=(*found[at].marks, *length_marks(n / rate, sounds, 1 / rate))
            )
    return tuple(found)


def _units(kind: str, value: object) -> int:
    """Return the frames of a clip, or the samples of a sound."""
    array = as_array(value)
    clip = frames_of(array) if array is not None and kind == "video" else array
    return 0 if clip is None else clip.shape[0 if kind == "video" else -1]
