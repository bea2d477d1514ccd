"""Colour the tokens of a rollout by one of its values: classes of `rollout.css`, with a legend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.rollouts.rollout_fields import LOGPROBS, VERSIONS

from ...units import number
from ..json_record import JsonRecord
from .open_rollout import OpenRollout, mask_field

BY_MASK = "mask"
BOUNDS = (0.5, 1.0, 2.0, 3.0, 5.0)
"""Negative log-probabilities at which the next shade begins: probabilities of 61, 37, 14, 5 and 0.7 %."""
SIGNED_STEPS = 3
"""Shades of a positive, and of a negative value."""
CATEGORIES = 8
"""Colours of policy versions; later ones begin again."""
MOST_LEGEND = 12
"""Most policy versions in a legend."""

Array = NDArray[Any]


@dataclass(
    frozen=True,
    slots=True,
    kw_only=True,
)
class ShadeLabel(JsonRecord):
    """An entry of the legend."""

    shade: str
    """Class, or "" for no colour."""
    text: str


def choices(rollout: OpenRollout) -> dict[str, str]:
    """Return value of `?by=` -> its name, the log-probabilities first."""
    names = {}
    if LOGPROBS in rollout.values and rollout.values[LOGPROBS].dtype.kind == "f":
        names[LOGPROBS] = "log-probability"
    names[BY_MASK] = "mask"
    for field, array in rollout.values.items():
        if array.dtype.kind == "f" and field != LOGPROBS:
            names[field] = _LABELS.get(field, field.removesuffix(".npy"))
    if rollout.versions is not None:
        names[VERSIONS] = _LABELS[VERSIONS]
    return names


_LABELS = {
    "advantages.npy": "advantage",
    "rewards.npy": "reward",
    "ref_logprobs.npy": "reference",
    VERSIONS: "policy version",
}


def is_logprob(field: str) -> bool:
    return "logprob" in field


def shades(
    rollout: OpenRollout,
    by: str,
    token_range: slice,
) -> list[str]:
    """Return the class of each token in a range. by: one of `choices`."""
    if by == BY_MASK:
        is_sampled = rollout.is_sampled[token_range]
        return _texts(
            np.where(
                is_sampled,
                "sampled",
                "",
            )
        )
    values = rollout.values[by]
    if by == VERSIONS:
        return _version_shades(values, token_range)
    if is_logprob(by):
        return _logprob_shades(values[token_range])
    return _sign_shades(values[token_range], largest(values))


def legend(rollout: OpenRollout, by: str) -> tuple[ShadeLabel, ...]:
    if by == BY_MASK:
        return (
            ShadeLabel(shade="sampled", text="sampled by the policy"),
            ShadeLabel(shade="", text="not sampled"),
        )
    values = rollout.values[by]
    if by == VERSIONS:
        return _version_legend(values)
    if is_logprob(by):
        labels = [ShadeLabel(shade="p0", text=f"0 to -{BOUNDS[0]:g}")]
        for level, bound in enumerate(BOUNDS, 1):
            labels.append(ShadeLabel(shade=f"p{level}", text=f"below -{bound:g}"))
        return tuple(labels)
    most = largest(values)
    if not most:
        return (ShadeLabel(shade="", text="0 everywhere"),)
    below = ShadeLabel(shade=f"n{SIGNED_STEPS}", text=f"to -{number(most)}")
    above = ShadeLabel(shade=f"g{SIGNED_STEPS}", text=f"to +{number(most)}")
    return (below, ShadeLabel(shade="", text="0"), above)


def largest(values: Array) -> float:
    """Return the largest finite magnitude, 0.0 without one."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0
    return float(np.abs(finite.astype(np.float64)).max())


def _texts(classes: Array) -> list[str]:
    texts: list[str] = classes.tolist()
    return texts


def _logprob_shades(values: Array) -> list[str]:
    is_finite = np.isfinite(values)
    level = np.digitize(
        -np.where(
            is_finite,
            values,
            0,
        ),
        BOUNDS,
    )  # [tokens]: 0 to len(BOUNDS)
    classes = np.char.add("p", level.astype(str))
    return _texts(
        np.where(
            is_finite,
            classes,
            "broken",
        )
    )


def _sign_shades(values: Array, most: float) -> list[str]:
    is_finite = np.isfinite(values)
    safe = np.where(
        is_finite,
        values,
        0,
    ).astype(np.float64)
    share = np.abs(safe) / (most or 1.0)
    level = np.ceil(share * SIGNED_STEPS).astype(int).astype(str)  # [tokens]: "0" to "3"
    sign = np.where(
        safe < 0,
        "n",
        "g",
    )
    classes = np.where(
        safe == 0,
        "",
        np.char.add(sign, level),
    )
    return _texts(
        np.where(
            is_finite,
            classes,
            "broken",
        )
    )


def policy_versions(rollout: OpenRollout) -> tuple[Array, Array] | None:
    """Return (versions that sampled tokens, ascending; number of tokens of each), or None without them."""
    values = rollout.versions
    if values is None:
        return None
    versions, counts = np.unique(values[rollout.is_sampled], return_counts=True)
    return versions, counts


def _version_shades(values: Array, token_range: slice) -> list[str]:
    versions = np.unique(values[values >= 0])
    # By place, not by number: two successive versions never have the same colour.
    place = np.searchsorted(versions, values[token_range])
    classes = np.char.add("v", (place % CATEGORIES + 1).astype(str))
    return _texts(
        np.where(
            values[token_range] >= 0,
            classes,
            "",
        )
    )


def _version_legend(values: Array) -> tuple[ShadeLabel, ...]:
    versions = np.unique(values[values >= 0]).tolist()
    labels = []
    for place, version in enumerate(versions[:MOST_LEGEND]):
        labels.append(ShadeLabel(shade=f"v{place % CATEGORIES + 1}", text=f"policy {version}"))
    if len(versions) > MOST_LEGEND:
        labels.append(ShadeLabel(shade="", text=f"and {len(versions) - MOST_LEGEND} more"))
    return tuple(labels)


def token_titles(
    rollout: OpenRollout,
    values: Sequence[Mapping[str, float]],
    first: int,
) -> list[str]:
    """Return a line about each token. values: field -> value, from `first` on."""
    mask = mask_field(rollout.tokens)
    ids = rollout.values[rollout.tokens]
    versions = rollout.versions
    titles = []
    for place, own in enumerate(values, first):
        words = [f"token {place:,}", f"id {ids[place]}"]
        for field, value in own.items():
            words.append(f"{field.removesuffix('.npy')} {value:.4g}")
        if versions is not None and versions[place] >= 0:
            words.append(f"policy {versions[place]}")
        if mask in rollout.values and not rollout.is_sampled[place]:
            words.append("not sampled")
        titles.append(" · ".join(words))
    return titles
