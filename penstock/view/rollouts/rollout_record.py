"""A rollout's page: one page of its tokens by turns, coloured by a value, and facts about the whole."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loader.errors import InvalidRuntime
from loader.rollouts.rollout_fields import LOGPROBS

from ...text import clean
from ..inspect.sample_record import SampleRecord, sample_record
from ..inspect.sample_slices import SliceSearch
from ..json_record import JsonRecord
from ..kinds.kind import Mark, TokenBox
from ..kinds.tokens import TOKENS as TOKEN_KIND
from ..sample_relations import RunSearch
from ..shown_values import field_facts
from .open_rollout import FieldShape, OpenRollout
from .shades import (
    ShadeLabel,
    choices,
    is_logprob,
    legend,
    policy_versions,
    shades,
    token_titles,
)
from .strips import Stripe, ValueLine, stripes, value_line
from .turns import RolloutTurn

PAGE = 1024
"""Tokens per page."""
MOST_LINKED_PAGES = 256
"""Most pages that the drawing of the whole rollout links; more would be too narrow for a pointer."""
MOST_POLICIES = 12
"""Most policy versions listed."""
GROUP_COLUMNS = ("group_id", "pair_id")
"""Columns whose equal values make a group."""
_MOST_MARKS_TOKENS = 2**20


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class RolloutToken(JsonRecord):
    id: int
    text: str
    """Special token's name, or text, or ""."""
    is_special: bool
    is_sampled: bool
    shade: str
    """Class of its colour, or ""."""
    title: str
    """All values of the token, in one line."""


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class TokenStretch(JsonRecord):
    """Tokens of one turn, or between turns, on this page."""

    turn: int
    """Number of the turn, or -1."""
    role: str
    """Role of the turn, or ""."""
    first: int
    """First token on this page."""
    is_continued: bool
    """True if the turn began on an earlier page."""
    n_sampled: int
    tokens: tuple[RolloutToken, ...]


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class RolloutRecord(JsonRecord):
    sample: SampleRecord
    """Without decoded values."""
    field: str
    """Token field."""
    n_tokens: int
    """0 if the tokens are damaged."""
    n_sampled: int
    by: str
    """Value that colours the tokens: one of `choices`."""
    choices: Mapping[str, str]
    """Value of `?by=` -> name."""
    first: int
    """First token of this page."""
    stop: int
    """Token after the last one of this page."""
    line: ValueLine
    """The chosen value, or the log-probabilities, over the whole rollout."""
    line_name: str
    """Name of the line's value, or ""."""
    sampled: tuple[Stripe, ...]
    """Sampled stretches of the whole rollout."""
    turns: tuple[RolloutTurn, ...]
    n_turns: int
    """All turns, also those beyond the listed ones."""
    policies: tuple[tuple[int, int], ...]
    """(policy version, tokens that it sampled), ascending."""
    n_policies: int
    """All policy versions."""
    shapes: tuple[FieldShape, ...]
    """Fields by name: tokens, mask and turns, and the first of the others."""
    n_fields: int
    """All fields, also those beyond the listed ones."""
    groups: Mapping[str, str]
    """Column -> value that makes a group with other samples."""
    stretches: tuple[TokenStretch, ...] = ()
    """This page's tokens."""
    legend: tuple[ShadeLabel, ...] = ()
    marks: tuple[Mark, ...] = ()
    """Warnings about the tokens."""
    tokenizer: str = ""
    """Its name, or ""."""
    has_text: bool = False
    """True if any token of this page has a text."""


def rollout_record(
    rollout: OpenRollout,
    by: str = "",
    first: int = 0,
    search: RunSearch | None = None,
    slices: SliceSearch | None = None,
) -> RolloutRecord:
    """Return a rollout's record. by: one of `choices`, or "" for the first. first: a token of the page to show.

    search, slices: as in `sample_record`.

    Raises: InvalidRuntime for an unknown `by`, or a token beyond the last.
    """
    names = choices(rollout)
    chosen = by or next(iter(names))
    if chosen not in names:
        accepted = ", ".join(clean(name, 80) for name in names)
        raise InvalidRuntime(f"by = {by!r:.100}; accepted: {accepted}")
    if first and first >= rollout.n_tokens:
        raise InvalidRuntime(f"from = {first}; this rollout has {rollout.n_tokens} tokens, from 0")
    # Pages begin at multiples, so a link to any token of a turn opens the same page as the pager does.
    page_first = first // PAGE * PAGE
    page_stop = min(page_first + PAGE, rollout.n_tokens)
    sample = sample_record(
        rollout.version,
        rollout.ordinal,
        search,
        slices,
        decode=False,
    )
    line, line_name = _line(
        rollout,
        chosen,
        names,
    )
    policies, n_policies = _policies(rollout)
    record = RolloutRecord(
        sample=sample,
        field=rollout.tokens,
        n_tokens=rollout.n_tokens,
        n_sampled=int(rollout.is_sampled.sum()),
        by=chosen,
        choices=names,
        first=page_first,
        stop=page_stop,
        line=line,
        line_name=line_name,
        sampled=stripes(rollout.is_sampled),
        turns=rollout.turns,
        n_turns=rollout.n_turns,
        policies=policies,
        n_policies=n_policies,
        shapes=rollout.shapes,
        n_fields=rollout.n_fields,
        groups={name: sample.columns[name] for name in GROUP_COLUMNS if sample.columns.get(name)},
    )
    if rollout.n_tokens:
        return _with_tokens(record, rollout)
    return record


def _with_tokens(record: RolloutRecord, rollout: OpenRollout) -> RolloutRecord:
    """Return the record with the tokens of its page."""
    facts = field_facts(
        rollout.values,
        rollout.tokens,
        rollout.version,
    )
    token_range = slice(record.first, record.stop)
    own = {field: array[token_range] for field, array in rollout.values.items()}
    boxes = TOKEN_KIND.boxes(own[rollout.tokens], replace(facts, sample=own))
    tokens = _tokens(
        rollout,
        boxes,
        record.by,
        record.first,
    )
    return replace(
        record,
        stretches=tuple(
            _stretches(
                rollout.turns,
                tokens,
                record.first,
            )
        ),
        legend=legend(rollout, record.by),
        marks=_marks(rollout, facts),
        tokenizer=facts.tokenizer,
        has_text=any(token.text and not token.is_special for token in tokens),
    )


def _tokens(
    rollout: OpenRollout,
    boxes: Sequence[TokenBox],
    by: str,
    first: int,
) -> list[RolloutToken]:
    stop = first + len(boxes)
    classes = shades(
        rollout,
        by,
        slice(first, stop),
    )
    titles = token_titles(
        rollout,
        [box.values for box in boxes],
        first,
    )
    sampled = rollout.is_sampled[first:stop].tolist()
    tokens = []
    for box, shade, title, is_sampled in zip(
        boxes,
        classes,
        titles,
        sampled,
        strict=True,
    ):
        token = RolloutToken(
            id=box.id,
            text=box.text,
            is_special=box.special,
            is_sampled=is_sampled,
            shade=shade,
            title=title,
        )
        tokens.append(token)
    return tokens


def _marks(rollout: OpenRollout, facts: Any) -> tuple[Mark, ...]:
    """Return the marks of the first tokens, all of any real rollout."""
    token_range = slice(0, _MOST_MARKS_TOKENS)
    own = {field: array[token_range] for field, array in rollout.values.items()}
    return TOKEN_KIND.marks(own[rollout.tokens], replace(facts, sample=own))


def _stretches(
    turns: Sequence[RolloutTurn],
    tokens: Sequence[RolloutToken],
    first: int,
) -> Iterator[TokenStretch]:
    """Yield the page's tokens by turn. Where turns overlap, a token belongs to the turn that begins first."""
    place = first
    stop = first + len(tokens)
    bounded = [turn for turn in turns if turn.stop > max(turn.start, first) and turn.start < stop]
    for turn in sorted(bounded, key=lambda turn: (turn.start, turn.number)):
        if turn.start > place:
            yield _stretch(
                tokens,
                None,
                place,
                turn.start,
                first,
            )
            place = turn.start
        if turn.stop > place:
            turn_stop = min(turn.stop, stop)
            yield _stretch(
                tokens,
                turn,
                place,
                turn_stop,
                first,
            )
            place = turn_stop
    if place < stop:
        yield _stretch(
            tokens,
            None,
            place,
            stop,
            first,
        )


def _stretch(
    tokens: Sequence[RolloutToken],
    turn: RolloutTurn | None,
    start: int,
    stop: int,
    first: int,
) -> TokenStretch:
    own = tuple(tokens[start - first : stop - first])
    return TokenStretch(
        turn=-1 if turn is None else turn.number,
        role="" if turn is None else turn.role,
        first=start,
        is_continued=turn is not None and turn.start < start,
        n_sampled=sum(token.is_sampled for token in own),
        tokens=own,
    )


def _line(
    rollout: OpenRollout,
    by: str,
    names: Mapping[str, str],
) -> tuple[ValueLine, str]:
    field = by
    values = rollout.values.get(by)
    if values is None or values.dtype.kind != "f":
        field = LOGPROBS
        values = rollout.values.get(LOGPROBS)
    if values is None or values.dtype.kind != "f":
        return ValueLine(
            path="",
            low=0.0,
            high=0.0,
        ), ""
    is_shown = rollout.is_sampled
    if not is_logprob(field):
        is_shown = is_shown | (values != 0)  # a reward may stand at a token that the policy did not sample
    return value_line(values, is_shown), names[field]


def _policies(rollout: OpenRollout) -> tuple[tuple[tuple[int, int], ...], int]:
    known = policy_versions(rollout)
    if known is None:
        return (), 0
    versions, counts = known
    pairs = [
        (int(one), int(n))
        for one, n in zip(
            versions.tolist(),
            counts.tolist(),
            strict=True,
        )
    ]
    return tuple(pairs[:MOST_POLICIES]), len(pairs)
