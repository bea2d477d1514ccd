"""A group's page: rollouts of one prompt side by side, or the answers of a preference pair."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loader
from loader.dataset.versions.sample_rows import live_row
from loader.errors import Corrupt, InvalidRuntime
from loader.modalities.array import decode
from loader.rollouts.rollout_fields import TURNS

from ...text import clean
from ..inspect.version_record import sample_fields
from ..json_record import JsonRecord
from .group_members import group_members
from .open_rollout import mask_field, read_separately, tokens_field
from .rollout_record import GROUP_COLUMNS
from .strips import Stripe, stripes
from .turns import last_text

NUMBERS = ("reward", "score", "n_tokens", "n_sampled", "n_turns", "policy_min", "policy_max")
"""Columns of numbers in the table, in order."""
TEXTS = ("finish", "chosen", "env", "task", "model", "checkpoint", "trajectory_id", "prompt_id")
"""Further columns in the table, in order."""
_IDENTITIES = frozenset(("trajectory_id",))
"""Columns that tell nothing if each member has its own value."""
ADVANTAGES = "advantages.npy"
MOST_BYTES = 2**20
"""Largest field of a member that is read, in bytes."""
MOST_TOTAL_BYTES = 48 * 2**20
"""Most bytes read for a page."""


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class GroupMember(JsonRecord):
    """A sample of a group."""

    ordinal: int
    """Index in the version."""
    key: str
    numbers: Mapping[str, float]
    """Column of NUMBERS -> finite value."""
    texts: Mapping[str, str]
    """Column of TEXTS -> value."""
    advantage: float | None
    """Mean advantage of its sampled tokens; None if it has none that is finite."""
    sampled: tuple[Stripe, ...]
    """Sampled stretches, on the scale of the longest member."""
    width: float
    """Its length on that scale: 1,000 for the longest member."""
    answer: str
    """First characters of its last turn with a text, or ""."""
    errors: tuple[str, ...]
    """Fields that could not be read, and why."""


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class GroupRecord(JsonRecord):
    dataset: str
    number: int
    """Number of the version."""
    ordinal: int
    """Sample from which the page was opened."""
    column: str
    """One of `GROUP_COLUMNS`."""
    value: str
    n_samples: int
    """All samples of the group; the first are listed."""
    members: tuple[GroupMember, ...]
    """In the version's order."""
    shown_numbers: tuple[str, ...]
    """Columns of NUMBERS that a member has."""
    shown_texts: tuple[str, ...]
    """Columns of TEXTS that differ between members."""
    common: Mapping[str, str]
    """Columns of TEXTS with one value for all members."""
    mean_reward: float | None
    largest_reward: float
    """Largest magnitude of a reward, for bars."""
    largest_advantage: float
    """Largest magnitude of an advantage, for bars."""
    newest_policy: float | None
    """Newest policy version that sampled a member; None if none is known."""
    other_columns: tuple[str, ...]
    """Other columns that make a group with this sample."""


@dataclass(slots=True)
class _Read:
    """Facts from the fields of a member."""

    n_tokens: int = 0
    is_sampled: NDArray[np.bool_] | None = None
    advantage: float | None = None
    answer: str = ""
    errors: tuple[str, ...] = ()


def group_record(
    version: loader.Version,
    ordinal: int,
    column: str = "",
) -> GroupRecord:
    """Return the group of a sample. column: one of `GROUP_COLUMNS`, or "" for the first that the sample has.

    Raises: InvalidRuntime if the sample has no such group; Corrupt; StoreError.
    """
    row = live_row(version, ordinal)
    own = [name for name in GROUP_COLUMNS if row.get(name) not in (None, "")]
    chosen = column or next(iter(own), GROUP_COLUMNS[0])
    if chosen not in own:
        accepted = ", ".join(own) or "no column"
        raise InvalidRuntime(
            f"sample {ordinal} of {version.name} has no {clean(chosen, 80)}; accepted: {accepted}",
            what="column of a group",
            where=f"sample {ordinal} of {version.name}",
            given=chosen,
            accepted=own,
        )
    members, n_samples = _members(
        version,
        ordinal,
        chosen,
        row[chosen],
    )
    rewards = [one.numbers["reward"] for one in members if "reward" in one.numbers]
    advantages = [one.advantage for one in members if one.advantage is not None]
    mean_reward = None
    if rewards:
        mean_reward = sum(rewards) / len(rewards)
    policies = [one.numbers["policy_max"] for one in members if "policy_max" in one.numbers]
    differing, common = _texts(members)
    dataset, _, version_number = version.name.partition("@")
    return GroupRecord(
        dataset=dataset,
        number=int(version_number),
        ordinal=ordinal,
        column=chosen,
        value=clean(row[chosen], 200),
        n_samples=n_samples,
        members=members,
        shown_numbers=tuple(name for name in NUMBERS if any(name in one.numbers for one in members)),
        shown_texts=differing,
        common=common,
        mean_reward=mean_reward,
        largest_reward=max(map(abs, rewards), default=0.0),
        largest_advantage=max(map(abs, advantages), default=0.0),
        newest_policy=max(policies, default=None),
        other_columns=tuple(name for name in own if name != chosen),
    )


def _members(
    version: loader.Version,
    ordinal: int,
    column: str,
    value: object,
) -> tuple[tuple[GroupMember, ...], int]:
    """Return (members of the sample's group, the number of all)."""
    group = group_members(
        version,
        ordinal,
        column,
        value,
        (*NUMBERS, *TEXTS),
    )
    keys = version.keys(np.array(group.ordinals, np.int64))
    reads = _read(version, group.ordinals)
    longest = max((one.n_tokens for one in reads), default=0)
    members = []
    for number, columns, key, fields in zip(
        group.ordinals,
        group.columns,
        keys,
        reads,
        strict=True,
    ):
        members.append(
            _member(
                number,
                key,
                columns,
                fields,
                longest,
            )
        )
    return tuple(members), group.n_samples


def _member(
    ordinal: int,
    key: str,
    columns: Mapping[str, Any],
    fields: _Read,
    longest: int,
) -> GroupMember:
    numbers: dict[str, float] = {}
    for name in NUMBERS:
        value = columns.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            numbers[name] = value
    texts = {name: clean(columns[name], 120) for name in TEXTS if columns.get(name) not in (None, "")}
    sampled: tuple[Stripe, ...] = ()
    if fields.is_sampled is not None:
        sampled = stripes(fields.is_sampled, longest)
    return GroupMember(
        ordinal=ordinal,
        key=key,
        numbers=numbers,
        texts=texts,
        advantage=fields.advantage,
        sampled=sampled,
        width=round(1000.0 * fields.n_tokens / longest, 2) if longest else 0.0,
        answer=fields.answer,
        errors=fields.errors,
    )


def _texts(rows: Sequence[GroupMember]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (columns that differ between members, column -> value that all members share)."""
    # Columns that all members share stand once above the table, which has room for the others then.
    differing: list[str] = []
    common: dict[str, str] = {}
    for name in TEXTS:
        values = {one.texts.get(name, "") for one in rows}
        if values == {""}:
            continue
        if len(values) == 1:
            (common[name],) = values
        elif name not in _IDENTITIES or len(values) < len(rows):
            differing.append(name)
    return tuple(differing), common


def _read(version: loader.Version, ordinals: Sequence[int]) -> list[_Read]:
    """Return facts from the members' masks, advantages and turns."""
    addresses = []
    reads = [_Read() for _ in ordinals]
    budget = MOST_TOTAL_BYTES
    for read, ordinal, names in zip(
        reads,
        ordinals,
        sample_fields(version, ordinals),
        strict=True,
    ):
        own = [name for name in (_mask_name(names), ADVANTAGES, TURNS) if name in names]
        (address,) = version.address(np.array([ordinal]), own)
        small = {}
        for name, place in address.fields.items():
            if place.nbytes <= min(MOST_BYTES, budget):
                small[name] = place
                budget -= place.nbytes
            else:
                read.errors += (f"{clean(name, 80)} has {place.nbytes:,} bytes and is not read here",)
        addresses.append(replace(address, fields=small))
    for read, data in zip(
        reads,
        read_separately(version, addresses),
        strict=True,
    ):
        _describe(read, data)
    return reads


def _mask_name(names: Sequence[str]) -> str:
    tokens = tokens_field(names)
    return mask_field(tokens) if tokens else ""


def _describe(read: _Read, data: Mapping[str, bytes | Corrupt]) -> None:
    """Add what these fields say."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in data.items():
        try:
            if isinstance(value, Corrupt):
                raise value
            if name == TURNS:
                read.answer = last_text(value)
            else:
                arrays[name] = decode(value)
        except Corrupt as error:
            read.errors += (clean(f"{name}: {error}", 300),)
    mask = next((array for name, array in arrays.items() if name != ADVANTAGES), None)
    if mask is None or mask.ndim != 1 or mask.dtype.kind not in "biuf":
        return
    read.n_tokens = len(mask)
    read.is_sampled = mask != 0
    advantages = arrays.get(ADVANTAGES)
    if advantages is not None and advantages.shape == mask.shape and advantages.dtype.kind == "f":
        sampled = advantages[read.is_sampled].astype(np.float64)
        mean = float(sampled.mean()) if len(sampled) else math.nan
        read.advantage = mean if math.isfinite(mean) else None
