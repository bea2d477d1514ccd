"""The statistics behind the drift gate: chance is given what it is owed, and no more."""

import math
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.drift.captions import caption_findings, object_texts
from assets.drift.columns import count_zeros
from assets.drift.distributions import Drawn, distance, distribution, level, ratio, settle_ties, stability
from assets.drift.findings import UNKNOWN, EffectSize, Thresholds, is_notable, non_finite_findings
from assets.drift.shares import Counted, index_difference, mix, share_difference


@pytest.mark.parametrize(
    ("earlier", "known", "found"),
    [
        ([[1.0, 2.0]], ["loss"], ["2 infinite"]),
        ([[1.0], [math.inf]], ["loss"], []),
        ([["a"]], ["loss"], ["2 infinite"]),
        ([], ["loss"], ["2 infinite"]),
        ([[1.0]], [], []),
    ],
    ids=["new", "usual", "other type", "no batch", "new column"],
)
def test_infinities_are_found_where_earlier_batches_have_none(
    earlier: list[list[Any]], known: list[str], found: list[str]
) -> None:
    batch = pl.DataFrame({"loss": [1.0, math.inf, -math.inf], "key": ["a", "b", "c"]})
    findings = non_finite_findings(batch, [pl.DataFrame({"loss": values}) for values in earlier], known)
    assert [finding.now for finding in findings] == found


ALPHA = 0.01
DRAWS = 400


def counted(k: int, n: int, objects: int | None = None) -> Counted:
    return Counted(k=k, n=n, objects=n if objects is None else objects)


@pytest.mark.parametrize("share", [0.001, 0.05, 0.5])
def test_equal_shares_differ_beyond_chance_as_seldom_as_is_said(share: float) -> None:
    draw = np.random.default_rng(1)
    k, m = draw.binomial(500, share, DRAWS), draw.binomial(3_000, share, DRAWS)
    found = [
        share_difference(counted(int(a), 500), counted(int(b), 3_000), ALPHA)
        for a, b in zip(k, m, strict=True)
    ]
    alarms = sum(one.effect > one.noise for one in found)
    assert alarms <= 2 * ALPHA * DRAWS + 3 * math.sqrt(2 * ALPHA * DRAWS)  # two sides


def test_samples_of_one_object_are_no_evidence_of_their_own() -> None:
    """80 of 100 against 50 of 100 is not chance, unless these are 10 objects."""
    many = share_difference(counted(80, 100), counted(500, 1_000), ALPHA)
    few = share_difference(counted(80, 100, 10), counted(500, 1_000, 100), ALPHA)
    assert many.effect == few.effect == pytest.approx(0.3)
    assert many.effect > many.noise
    assert few.effect < few.noise


def test_one_distribution_differs_from_itself_as_seldom_as_is_said() -> None:
    draw = np.random.default_rng(2)
    alarms = dict.fromkeys(("level", "distance", "stability"), 0)
    edges = np.quantile(draw.lognormal(0, 1, 100_000), np.arange(1, 10) / 10)
    for _ in range(DRAWS):
        now, before = (Drawn(values=np.sort(draw.lognormal(0, 1, n)), objects=n) for n in (400, 4_000))
        for name, found in (
            ("level", level(now, before, ALPHA)),
            ("distance", distance(now, before, ALPHA)),
            ("stability", stability(now, before, edges, ALPHA)),
        ):
            alarms[name] += found.effect > found.noise
    assert max(alarms.values()) <= ALPHA * DRAWS + 4 * math.sqrt(ALPHA * DRAWS), alarms


@given(st.lists(st.floats(0, 1), min_size=1, max_size=16), st.floats(0.0, 2.0), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_more_spread_among_batches_never_makes_a_finding(
    effects: list[float], effect: float, wider: float
) -> None:
    mine = EffectSize(effect=effect, chance=0.05, noise=0.1)

    def others(factor: float) -> list[EffectSize]:
        return [EffectSize(effect=one * factor, chance=0.05, noise=0.1) for one in effects]

    if not is_notable(mine, 0.2, lambda: others(1.0)):
        assert not is_notable(mine, 0.2, lambda: others(1.0 + wider))
    assert not is_notable(mine, 2.0, list)
    assert is_notable(mine, 0.2, list) == (effect > 0.2)
    assert not is_notable(UNKNOWN, 0.0, list)


def noisy(value: float, n: int, seed: int, digits: float = 1e-13) -> Drawn:
    """One number as a library computes it: other last digits each time, and those of odd seeds by a bit more."""
    noise = np.random.default_rng(seed).standard_normal(n) + 3 * (seed % 2)
    return Drawn(values=np.sort(value * (1 + digits * noise) + digits * noise * (value == 0)), objects=n)


@pytest.mark.parametrize("value", [4 / 3, -23.0, 0.0, 1e9, 1e-5])
@pytest.mark.parametrize("digits", [1e-16, 1e-13, 1e-8])
def test_last_digits_are_no_difference(value: float, digits: float) -> None:
    if not value:
        digits = min(digits, 1e-13)  # of nothing there are no digits, but what is left of a sum
    batches = [noisy(value, 200, seed, digits) for seed in (0, 2, 4, 6)]
    limits = (0.2, 0.1, 0.2)
    for seed in (1, 3, 8):
        assert distribution(noisy(value, 200, seed, digits), batches, 1e-6, limits, column="x") == []
    moved = noisy(value * 1.001 + 0.001 * (value == 0), 200, 7, digits)
    assert distribution(moved, batches, 1e-6, limits, column="x")


def test_equal_numbers_have_no_level_that_moves() -> None:
    """Their mean is another by its last digits in one batch and in several, and so is their deviation."""
    for n in range(2, 60):
        batches = [Drawn(values=np.full(7 * n, 4 / 3), objects=7 * n) for _ in range(3)]
        now = Drawn(values=np.full(n, 4 / 3), objects=n)
        assert distribution(now, batches, 1e-6, (0.2, 0.1, 0.2), column="x") == []


def test_numbers_that_lie_close_but_are_many_are_told_apart() -> None:
    """A feature around 1 with a spread of 0.01, 20,000 times: neighbours lie within the last digits."""
    draw = np.random.default_rng(0)
    batches = [Drawn(values=np.sort(draw.normal(1, 0.01, 20_000)), objects=20_000) for _ in range(4)]
    (now,) = settle_ties([batches[0]])
    assert np.abs(now.values - batches[0].values).max() < 1e-5
    moved = Drawn(values=np.sort(draw.normal(1.004, 0.01, 20_000)), objects=20_000)
    assert distribution(moved, batches, 1e-6, (0.2, 0.1, 0.2), column="x")


def test_what_is_nothing_but_for_its_last_digits_is_a_zero() -> None:
    assert count_zeros(np.array([0.0, 1e-17, -1e-15, 1e-6, np.nan]), 5).k == 3


SKEWED: Mapping[str, Callable[[np.random.Generator, int], Any]] = {
    "normal": lambda draw, n: draw.normal(0, 1, n),
    "lognormal": lambda draw, n: draw.lognormal(0, 2, n),
    "one in a hundred": lambda draw, n: 1.0 * (draw.random(n) < 0.01),
    "two values": lambda draw, n: 1.0 + (draw.random(n) < 0.3),
}


@pytest.mark.parametrize("name", SKEWED)
@pytest.mark.parametrize("n", [4, 30, 300])
def test_levels_of_few_or_skewed_numbers_differ_as_seldom_as_is_said(name: str, n: int) -> None:
    draw, alarms = np.random.default_rng(4), [0, 0]
    for _ in range(DRAWS):
        now, before = (Drawn(values=np.sort(SKEWED[name](draw, k)), objects=k) for k in (n, 3 * n))
        found = level(now, before, ALPHA), ratio(now.values + 5, before.values + 5, ALPHA)
        alarms = [n + (one.effect > one.noise) for n, one in zip(alarms, found, strict=True)]
    assert max(alarms) <= ALPHA * DRAWS + 3 * math.sqrt(ALPHA * DRAWS)


def test_level_that_moved_is_seen_at_any_size() -> None:
    draw = np.random.default_rng(5)
    for n, moved in ((30, 2.5), (300, 0.7), (3_000, 0.25)):
        before = Drawn(values=np.sort(draw.normal(0, 1, 3 * n)), objects=3 * n)
        found = level(Drawn(values=np.sort(draw.normal(moved, 1, n)), objects=n), before, 1e-7)
        assert found.effect > found.noise, n


@pytest.mark.parametrize("n", [8, 30, 300])
@pytest.mark.parametrize("n_values", [3, 30, 150])
def test_mix_of_many_rare_values_differs_as_seldom_as_is_said(n: int, n_values: int) -> None:
    draw, alarms = np.random.default_rng(6), 0
    weights = 1 / np.arange(1, n_values + 1)
    weights /= weights.sum()
    for _ in range(DRAWS):
        now, before = (
            [counted(int(k), total) for k in draw.multinomial(total, weights)] for total in (n, 3 * n)
        )
        found = index_difference(now, before, ALPHA)
        alarms += found.effect > found.noise
    assert alarms <= ALPHA * DRAWS + 3 * math.sqrt(ALPHA * DRAWS)


def shoots(*shares: int) -> dict[str, Counted]:
    """A batch of 200 photos, of so many photos of each shoot, with names that no other batch has."""
    names = (f"shoot-{next(SHOOTS)}" for _ in shares)
    return {name: counted(k, sum(shares)) for name, k in zip(names, shares, strict=True)}


SHOOTS = count()


def test_new_shoot_is_usual_where_every_batch_had_new_ones() -> None:
    batches = [shoots(80, 70, 50), shoots(120, 80), shoots(60, 50, 50, 40), shoots(100, 60, 40)]
    assert mix(shoots(90, 60, 50), batches, 1e-5, (0.1, 0.2), what="share", column="source") == []


def test_value_that_never_came_stands_out_where_batches_are_alike() -> None:
    batches = [{"a": counted(k, 200), "b": counted(200 - k, 200)} for k in (96, 103, 100, 108)]
    now = {"a": counted(70, 200), "b": counted(70, 200), "c": counted(60, 200)}
    found = mix(now, batches, 1e-5, (0.1, 0.2), what="share", column="source")
    assert "source = 'c'" in [one.column for one in found]


def texts(words: list[str], shift: int) -> list[dict[str, object]]:
    said = [f"here is {word} again" for word in words]
    return [
        {"key": f"{i:03d}.jpg", "label": "", "title": word, "text": said[(i + shift) % len(words)]}
        for i, word in enumerate(words)
    ]


@pytest.mark.parametrize("shift", [-1, 1])
def test_texts_of_the_neighbour_are_seen_without_a_baseline(shift: int) -> None:
    words = [f"word{'abcdefghij'[i % 10]}{'abcdefghij'[i // 10]}" for i in range(60)]
    assert caption_findings(object_texts(texts(words, 0), {}), [], Thresholds(), 1e-6) == []
    (found,) = caption_findings(object_texts(texts(words, shift), {}), [], Thresholds(), 1e-6)
    assert (found.what, found.certain) == ("texts of another row", True)
    assert f"row {shift:+d}" in found.now
    # The first 10 texts are their own: the examples come from the rest.
    mixed = [*texts(words, 0)[:10], *texts(words, shift)[10:]]
    (found,) = caption_findings(object_texts(mixed, {}), [], Thresholds(), 1e-6)
    assert found.keys == ("010.jpg", "011.jpg", "012.jpg")
    few = object_texts(texts(words[:10], shift), {})
    assert caption_findings(few, [], Thresholds(), 1e-6) == []  # ten texts are not proof


def test_finding_names_texts_without_words_of_their_object() -> None:
    words = [f"word{'abcdefghij'[i % 10]}{'abcdefghij'[i // 10]}" for i in range(60)]
    rows = texts(words, 0)
    batches = [object_texts(rows, {})] * 3
    for row in rows[20:]:
        row["text"] = "no such thing"
    (found,) = caption_findings(object_texts(rows, {}), batches, Thresholds(), 1e-6)
    assert found.keys == ("020.jpg", "021.jpg", "022.jpg")


def test_lengths_of_the_neighbour_are_seen_without_a_baseline() -> None:
    draw = np.random.default_rng(3)
    seconds = draw.uniform(1, 30, 200)
    said = ["x" * round(12 * length) for length in seconds]

    def objects(shift: int) -> list[dict[str, object]]:
        return [{"key": f"{i:03d}", "text": said[(i + shift) % 200]} for i in range(200)]

    durations = {f"{i:03d}": float(length) for i, length in enumerate(seconds)}
    assert caption_findings(object_texts(objects(0), durations), [], Thresholds(), 1e-6) == []
    (found,) = caption_findings(object_texts(objects(1), durations), [], Thresholds(), 1e-6)
    assert found.what == "texts of another row"
    # Each example has the text of a clip that is far longer or shorter.
    shifts_s = [abs(seconds[int(key)] - seconds[(int(key) + 1) % 200]) for key in found.keys]
    assert len(shifts_s) == 3
    assert min(shifts_s) > 20
