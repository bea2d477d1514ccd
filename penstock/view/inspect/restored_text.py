"""Tokens whose text does not come back: decoded, they are none of the texts of their sample that they were made of."""

from collections.abc import Mapping
from itertools import takewhile

import numpy as np

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.errors import PenstockError

from ...text import clean
from ..kinds.kind import Facts
from ..kinds.stored_bytes import MAX_TEXT_BYTES, read_bounded
from ..samples.marks import StepMark, step_mark
from .version_record import fields_of

_SHOWN = 24
"""Letters of both texts that are shown, from where they differ."""


def restored_marks(
    version: loader.Version, ordinal: int, restored: Mapping[str, str], slot: int
) -> list[StepMark]:
    """Return a mark per field of tokens that give back none of the texts that its facts name (`text_fields`).

    Tokens that are cut off give the beginning back, which is no loss; blanks at both ends do not count. Other letters
    and blanks do: a tokenizer that writes in lower case loses text. Costs the bytes of these texts.

    restored: field -> text of its stored tokens, without special ones.
    """
    found = []
    for field, text in restored.items():
        try:
            texts = _texts(version, ordinal, field)
        except PenstockError as error:
            found.append(
                step_mark("unreadable", f"the text of its tokens: {clean(error, 300)}", [slot], field)
            )
            continue
        if texts and not any(_is_beginning(text, one.strip()) for one in texts.values()):
            name, one = next(iter(texts.items()))
            found.append(step_mark("not_restored", _told(text.strip(), name, one.strip()), [slot], field))
    return found


def _texts(version: loader.Version, ordinal: int, field: str) -> dict[str, str]:
    """Return field -> text, of those that a field of tokens was made of. Raises: errors of reading; Corrupt."""
    told = version.facts.get(field, {}).get("text_fields")
    (there,) = fields_of(version, [ordinal])
    names = [one for one in told if one in there] if isinstance(told, list) else []
    if not names:
        return {}
    (address,) = version.address(np.array([ordinal]), names)
    if sum(one.nbytes for one in address.fields.values()) > MAX_TEXT_BYTES:
        return {}
    (stored,) = read_fields(version.shard_store, [address])
    read = {name: read_bounded(data, Facts(field=name)).value for name, data in stored.items()}
    return {name: text for name, text in read.items() if isinstance(text, str)}


def _is_beginning(restored: str, text: str) -> bool:
    """Return whether a text comes back, perhaps cut off: within a letter of several bytes it ends in U+FFFD."""
    given = restored.strip()
    return text.startswith((given, given.rstrip("\ufffd"))) and bool(restored or not text)


def _told(restored: str, name: str, text: str) -> str:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(restored, text, strict=False))
    at = sum(1 for _ in same)
    given, wanted = (clean(one[at : at + _SHOWN]) for one in (restored, text))
    return (
        f"the stored tokens do not give {clean(name, 80)} back: from letter {at:,} “{given}” for “{wanted}”"
    )
