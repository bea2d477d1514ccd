"""Token ids: one sequence, or several documents packed into one.

`<field>.segment_ids` and `<field>.loss_mask` (or without the prefix), and float fields of equal length, describe them.
So does the mask of a rollout or a chat: `mask.npy` of `tokens.npy`, `q.mask.npy` of `q.tokens.npy`.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from loader.rollouts.rollout_fields import MASK as MASK_FIELD
from loader.rollouts.rollout_fields import TOKENS as TOKENS_FIELD

from .array_values import Array, as_array, shape_text
from .kind import Facts, Kind, Mark, TokenBox, mark
from .text import MAX_LINES, limit_line

MAX_TOKENS = 2**14
"""Most tokens shown individually."""
MAX_LENGTH = 2**24
"""Tokens; a longer sequence is shown as an array."""
TOKENS_A_LINE = 24
MAX_TOKEN_LETTERS = 80
IGNORED = -100
"""torch.nn.CrossEntropyLoss's `ignore_index`."""

SEGMENTS = "segment_ids"
LOSS = "loss_mask"
OPEN_MASKED = "«"
"""Begins masked tokens in text."""
CLOSE_MASKED = "»"
"""Ends masked tokens in text."""
LAYOUT = (SEGMENTS, LOSS, "position_ids")
"""Ends of the fields that packing adds."""
_NAMES = frozenset({"tokens", "token_ids", "input_ids", "labels"})
_COMPANIONS = frozenset({SEGMENTS, LOSS, "position_ids", "attention_mask"})
_BLANKS = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
_ENDS = re.compile(
    r"^\W*(eos|eot|eod|im_end|/s|end_?of_?(text|turn|sentence|document)|endoftext)\W*$", re.IGNORECASE
)


def _sequence(value: object, facts: Facts) -> Array | None:
    words = facts.field.split(".")
    has_vocabulary = facts.vocabulary is not None or bool(facts.special)
    # Segment ids and masks are whole numbers of equal length, but no tokens.
    if words[-1] in _COMPANIONS or not (has_vocabulary or _NAMES.intersection(words)):
        return None
    array = as_array(value)
    if array is None or array.dtype.kind not in "iu" or array.size > MAX_LENGTH:
        return None
    if array.ndim == 1:
        return array
    if array.ndim == 2 and array.shape[0] == 1:
        return array.reshape(-1)
    return None


def _ids(value: object, facts: Facts) -> Array:
    ids = _sequence(value, facts)
    assert ids is not None  # guaranteed by `fits`
    return ids


def _companion(facts: Facts, name: str, n: int) -> Array | None:
    for field in (f"{facts.field}.{name}", name):
        array = as_array(facts.sample.get(field))
        if array is not None and array.size == n and array.dtype.kind in "biuf":
            return array.reshape(-1)
    return None


def fits(value: Any, facts: Facts) -> bool:
    return _sequence(value, facts) is not None


def fits_packed(value: Any, facts: Facts) -> bool:
    ids = _sequence(value, facts)
    return ids is not None and _companion(facts, SEGMENTS, ids.size) is not None


def boxes(value: Any, facts: Facts) -> tuple[TokenBox, ...]:
    ids = _ids(value, facts)
    segments = _companion(facts, SEGMENTS, ids.size)
    is_masked = _loss_mask(ids, facts)
    values = _values(facts, ids.size)
    texts: dict[int, str] = {}
    out = []
    for position, token in enumerate(ids[:MAX_TOKENS].tolist()):
        if token not in texts:
            # A sequence repeats most of its tokens, and a tokenizer's decode takes microseconds each.
            texts[token] = _text(token, facts)
        segment = None
        if segments is not None:
            segment = int(segments[position])
        box = TokenBox(
            id=token,
            text=texts[token],
            special=token in facts.special,
            segment=segment,
            masked=bool(is_masked[position]),
            values={field: float(column[position]) for field, column in values.items()},
        )
        out.append(box)
    return tuple(out)


def _loss_mask(ids: Array, facts: Facts) -> Array:
    """Return which tokens the loss leaves out: bool [n]."""
    masked: Array = ids == IGNORED
    masks = (_companion(facts, LOSS, ids.size), _own_mask(facts, ids.size))
    for mask in masks:
        if mask is not None:
            masked = np.logical_or(masked, mask == 0)
    return masked


def _own_mask(facts: Facts, n: int) -> Array | None:
    """Return the mask that a rollout or a chat stores beside its tokens, or None."""
    if not facts.field.endswith(TOKENS_FIELD):
        return None
    return _companion(facts, facts.field.removesuffix(TOKENS_FIELD) + MASK_FIELD, n)


def _values(facts: Facts, n: int) -> Mapping[str, Array]:
    """Return field -> floats [n] of each field with one float per token."""
    out: dict[str, Array] = {}
    if not n:
        return out
    for field, value in facts.sample.items():
        array = as_array(value)
        if array is not None and array.dtype.kind == "f" and array.shape in ((n,), (1, n)):
            out[limit_line(field)] = array.reshape(-1)
    return out


def _text(token: int, facts: Facts) -> str:
    text = facts.special.get(token)
    if text is None and facts.decode is not None and _is_known(token, facts):
        text = facts.decode([token])
    if text is None:
        return ""
    return limit_line(text[:MAX_TOKEN_LETTERS].translate(_BLANKS))


def _is_known(token: int, facts: Facts) -> bool:
    return token >= 0 and (facts.vocabulary is None or token < facts.vocabulary)


def lines(value: Any, facts: Facts) -> tuple[str, ...]:
    ids = _ids(value, facts)
    out = [f"{ids.size:,} tokens, {shape_text(value)}"]
    is_masked = bool(ids.size) and _has_mask(ids, facts)
    if is_masked:
        n_targets = int(np.count_nonzero(~_loss_mask(ids, facts)))
        out.append(f"{n_targets:,} of them are targets of the loss")
        out.append(f"{OPEN_MASKED}{CLOSE_MASKED} enclose the others")
    if facts.tokenizer and facts.decode is None:
        out.append(limit_line(f"by {facts.tokenizer}: add tokenizers() beside the recipe to show their text"))
    out += [f"{field} for each" for field in _values(facts, ids.size)]
    segments = _companion(facts, SEGMENTS, ids.size)
    shown = boxes(value, facts)
    for name, start, stop in _pieces(segments, ids.size):
        if name is not None and len(out) < MAX_LINES:
            out.append(f"{name}, {stop - start:,} tokens")
        for line_start in range(start, min(stop, len(shown)), TOKENS_A_LINE):
            if len(out) >= MAX_LINES:
                return (*out, f"… {ids.size:,} tokens in all")
            line_stop = min(stop, line_start + TOKENS_A_LINE)
            out.append(_line(shown[line_start:line_stop], is_enclosed=is_masked))
    return tuple(out)


def _line(shown: Sequence[TokenBox], *, is_enclosed: bool) -> str:
    """Return tokens as text. is_enclosed: enclose masked ones."""
    stretches = []
    for masked, boxes_of_stretch in groupby(shown, lambda box: is_enclosed and box.masked):
        text = "|".join(box.text or str(box.id) for box in boxes_of_stretch)
        if masked:
            text = f"{OPEN_MASKED}{text}{CLOSE_MASKED}"
        stretches.append(text)
    return limit_line("|".join(stretches))


def _pieces(segments: Array | None, n: int) -> list[tuple[str | None, int, int]]:
    """Return (name, first, last + 1) of each document and each stretch between."""
    if segments is None or not n:
        return [(None, 0, n)]
    # [boundaries]: first token of each further stretch.
    changes = np.flatnonzero(np.diff(segments)) + 1
    pieces: list[tuple[str | None, int, int]] = []
    for start, stop in pairwise([0, *changes.tolist(), n]):
        name = "no document"
        if segments[start]:
            name = f"document {int(segments[start])}"
        pieces.append((name, start, stop))
    return pieces


def _has_mask(ids: Array, facts: Facts) -> bool:
    if _companion(facts, LOSS, ids.size) is not None or _own_mask(facts, ids.size) is not None:
        return True
    return bool((ids == IGNORED).any())


def marks(value: Any, facts: Facts) -> tuple[Mark, ...]:
    ids = _ids(value, facts)
    if not ids.size:
        return (mark("empty", "no tokens"),)
    out = []
    n_words = np.inf if facts.vocabulary is None else facts.vocabulary
    # -100 marks positions that the loss ignores.
    is_negative = (ids < 0) & (ids != IGNORED)
    outside = ids[is_negative | (ids >= n_words)]
    if outside.size:
        text = f"tokens outside the vocabulary of {n_words:,}: {outside.size:,}, such as {int(outside[0])}"
        out.append(mark("out_of_vocabulary", text))
    if _loss_mask(ids, facts).all():
        out.append(mark("no_target", f"the loss counts none of the {ids.size:,} tokens"))
    return (*out, *_end_marks(ids, facts))


def _end_marks(ids: Array, facts: Facts) -> tuple[Mark, ...]:
    ends = [token for token, name in facts.special.items() if _ENDS.match(name)]
    if not ends:
        return ()
    segments = _companion(facts, SEGMENTS, ids.size)
    pieces = _pieces(segments, ids.size)
    whole = [(name, stop) for name, _, stop in pieces if name != "no document"]
    if segments is None:
        # Padding after a single sequence consists of special tokens, too.
        padding = [token for token in facts.special if token not in ends]
        is_text = ~np.isin(ids, padding) & (ids != IGNORED)
        positions = np.flatnonzero(is_text)
        whole = []
        if positions.size:
            whole.append(("the sequence", int(positions[-1]) + 1))
    without_end = [name for name, stop in whole if int(ids[stop - 1]) not in ends]
    if not without_end:
        return ()
    text = f"{without_end[0]} does not end with {limit_line(facts.special[ends[0]])}"
    if len(without_end) > 1:
        text += f", and {len(without_end) - 1:,} more"
    return (mark("no_end", text),)


TOKENS = Kind(name="tokens", fits=fits, lines=lines, marks=marks, boxes=boxes)
PACKED = Kind(name="packed", fits=fits_packed, lines=lines, marks=marks, boxes=boxes)
