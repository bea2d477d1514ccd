"""The statistics behind the drift gate: chance is given what it is owed, and no more."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.drift.captions import caption_findings, texts_of
from assets.drift.findings import UNKNOWN, Difference, stands_out
from assets.drift.numbers import Drawn, distance, level, stability
from assets.drift.shares import Counted, share_difference
from assets.drift.thresholds import Thresholds

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
    """80 of 100 against 50 of 100 is no chance, unless these are 10 objects."""
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
    mine = Difference(effect=effect, chance=0.05, noise=0.1)

    def others(factor: float) -> list[Difference]:
        return [Difference(effect=one * factor, chance=0.05, noise=0.1) for one in effects]

    if not stands_out(mine, 0.2, lambda: others(1.0)):
        assert not stands_out(mine, 0.2, lambda: others(1.0 + wider))
    assert not stands_out(mine, 2.0, list)
    assert stands_out(mine, 0.2, list) == (effect > 0.2)
    assert not stands_out(UNKNOWN, 0.0, list)


def texts(words: list[str], shift: int) -> list[dict[str, object]]:
    said = [f"here is {word} again" for word in words]
    return [
        {"key": f"{i:03d}.jpg", "label": "", "title": word, "text": said[(i + shift) % len(words)]}
        for i, word in enumerate(words)
    ]


@pytest.mark.parametrize("shift", [-1, 1])
def test_texts_of_the_neighbour_are_seen_without_a_baseline(shift: int) -> None:
    words = [f"word{'abcdefghij'[i % 10]}{'abcdefghij'[i // 10]}" for i in range(60)]
    assert caption_findings(texts_of(texts(words, 0), {}), [], Thresholds(), 1e-6) == []
    (found,) = caption_findings(texts_of(texts(words, shift), {}), [], Thresholds(), 1e-6)
    assert (found.what, found.certain) == ("texts of another row", True)
    assert f"row {shift:+d}" in found.now
    few = texts_of(texts(words[:10], shift), {})
    assert caption_findings(few, [], Thresholds(), 1e-6) == []  # ten texts are no proof


def test_lengths_of_the_neighbour_are_seen_without_a_baseline() -> None:
    draw = np.random.default_rng(3)
    seconds = draw.uniform(1, 30, 200)
    said = ["x" * round(12 * length) for length in seconds]

    def objects(shift: int) -> list[dict[str, object]]:
        return [{"key": f"{i:03d}", "text": said[(i + shift) % 200]} for i in range(200)]

    durations = {f"{i:03d}": float(length) for i, length in enumerate(seconds)}
    assert caption_findings(texts_of(objects(0), durations), [], Thresholds(), 1e-6) == []
    (found,) = caption_findings(texts_of(objects(1), durations), [], Thresholds(), 1e-6)
    assert found.what == "texts of another row"
