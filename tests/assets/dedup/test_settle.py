"""Which of near samples stay: the rule as it is written down, followed sample by sample, gives the same."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.dedup.near_pairs import find, index_images, table_image_hashes
from assets.dedup.policy import NearDuplicates
from assets.dedup.settle import (
    best_of_groups,
    compared_frame,
    quality_classes,
    quality_measures,
    settle,
    table_candidates,
)
from loader.errors import FieldMismatch
from tests.refusals import refusal

Row = dict[str, Any]
POLICY = NearDuplicates(max_distance=4)


def row(key: str, *hashes: int, **told: Any) -> Row:
    facts = {
        "kind": "image" if len(hashes) == 1 else "video",
        "split": "train",
        "raw_sha256": key,
        "phash": "-".join(f"{value:016x}" for value in hashes),
        "phash_mirrored": "-".join(f"{value ^ (2**64 - 1):016x}" for value in hashes),
        "phash_flat": False,
        "phash_flat_mask": 0,
        "source_width_px": 100,
        "source_height_px": 100,
    }
    return {"key": key, **facts, **told}


def settle_copies(
    new: Sequence[Row], published: Sequence[Row], policy: NearDuplicates = POLICY
) -> tuple[dict[str, str], dict[str, str]]:
    """(key -> what it is a copy of, published key -> what supersedes it)."""
    mine = table_candidates(compared_frame(new), [one["raw_sha256"] for one in new])
    theirs, members = best_of_groups(compared_frame(published), grouped=True)
    near = find(index_images(theirs.pictures, policy.max_distance), mine.pictures, mirrored=policy.mirrored)
    found = settle(mine, theirs, near, policy)
    keys = [one["key"] for one in published]
    superseded = {keys[at]: copy.of for place, copy in found.superseded.items() for at in members[place]}
    return {key: copy.of for key, copy in found.copies.items()}, superseded


# The rule, sample by sample and pair by pair.


def bits(one: Row, other: Row, column: str = "phash") -> int | None:
    """How many bits two samples differ in; None where they are not compared."""
    if one["kind"] != other["kind"] or one["phash_flat_mask"] != other["phash_flat_mask"]:
        return None
    ours, theirs = (text.split("-") for text in (one[column], other["phash"]))
    differ = [
        (int(a, 16) ^ int(b, 16)).bit_count()
        for place, (a, b) in enumerate(zip(ours, theirs, strict=True))
        if not one["phash_flat_mask"] >> place & 1
    ]
    return max(differ) if differ else None


def surest_distance(one: Row, other: Row, policy: NearDuplicates) -> tuple[int, int] | None:
    """(0 as it is or 1 turned, bits) of the surer way in which `one` is near to `other`."""
    for turned, column in enumerate(("phash", "phash_mirrored")[: 1 + policy.mirrored]):
        distance = bits(one, other, column)
        if distance is not None and distance <= policy.max_distance:
            return turned, distance
    return None


def quality(one: Row) -> tuple[int, ...]:
    return tuple(quality_classes(quality_measures(compared_frame([one])))[0].tolist())


def by_the_rule(
    new: Sequence[Row], published: Sequence[Row], policy: NearDuplicates
) -> tuple[dict[str, set[str]], dict[str, str]]:
    """As `settle_copies`, with every sample that is as near as the nearest."""
    better = policy.keep == "better"
    order = sorted(
        range(len(new)), key=lambda at: (tuple(-x for x in quality(new[at])) if better else (), at)
    )
    pinned = {
        one["key"]
        for one in published
        if not better
        or policy.action == "mark"
        or any(other["split"] != one["split"] and surest_distance(other, one, policy) for other in new)
    }
    stays: list[Row] = []
    copies: dict[str, set[str]] = {}
    superseded: dict[str, str] = {}
    for sample in (new[at] for at in order):
        above = {
            one["key"]: (*near, 1)
            for one in stays
            if one["raw_sha256"] != sample["raw_sha256"] and (near := surest_distance(sample, one, policy))
        }
        below = []
        for one in published:
            near = surest_distance(sample, one, policy)
            if near is None or one["key"] in superseded:
                continue
            if one["key"] in pinned or quality(one) >= quality(sample):
                above[one["key"]] = (*near, 0)
            else:
                below.append(one["key"])
        if above:
            copies[sample["key"]] = {key for key, near in above.items() if near == min(above.values())}
        else:
            stays.append(sample)
            superseded.update(dict.fromkeys(below, sample["key"]))
    return copies, superseded


@st.composite
def rows(draw: st.DrawFn, name: str, bases: Sequence[int]) -> list[Row]:
    """Samples around a few pictures, some of them flat, of some objects, splits and sizes."""

    def near_one() -> int:
        base = draw(st.sampled_from(bases))
        return base ^ sum(1 << bit for bit in draw(st.frozensets(st.integers(0, 63), max_size=4)))

    found = []
    for number in range(draw(st.integers(0, 9))):
        n_pictures = draw(st.sampled_from([1, 1, 3]))
        mask = draw(st.sampled_from([0, 0, 0, 1] if n_pictures == 1 else [0, 0, 1, 2, 6, 7]))
        found.append(
            row(
                f"{name}{number}",
                *(near_one() for _ in range(n_pictures)),
                raw_sha256=f"{name}{draw(st.integers(0, 12))}",
                split=draw(st.sampled_from(["train", "train", "validation"])),
                source_width_px=draw(st.sampled_from([100, 101, 150, 200, None])),
                source_nbytes=draw(st.sampled_from([None, 10_000, 10_100, 50_000])),
                phash_flat_mask=mask,
                phash_flat=mask == 2**n_pictures - 1,
            )
        )
    return found


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Row], list[Row], NearDuplicates]:
    first = draw(st.integers(0, 2**64 - 1))
    bases = [first, first ^ 0b111, first ^ (2**64 - 1), draw(st.integers(0, 2**64 - 1))]
    policy = NearDuplicates(
        max_distance=draw(st.integers(2, 6)),
        keep=draw(st.sampled_from(["better", "better", "first"])),
        action=draw(st.sampled_from(["drop", "drop", "mark"])),
        mirrored=draw(st.booleans()),
    )
    return draw(rows("n", bases)), draw(rows("p", bases)), policy


@settings(derandomize=True, max_examples=70, deadline=None)
@given(batches())
def test_rule(batch: tuple[list[Row], list[Row], NearDuplicates]) -> None:
    new, published, policy = batch
    copies, superseded = settle_copies(new, published, policy)
    expected_copies, expected_superseded = by_the_rule(new, published, policy)
    assert copies.keys() == expected_copies.keys()
    assert superseded == expected_superseded
    # Of published samples that look the same to a hash, one speaks for all.
    same_look = {one["key"]: (one["phash"], one["split"]) for one in [*new, *published]}
    for key, of in copies.items():
        assert same_look[of] in {same_look[other] for other in expected_copies[key]}


@settings(derandomize=True, max_examples=50, deadline=None)
@given(batches())
def test_what_holds_of_every_outcome(batch: tuple[list[Row], list[Row], NearDuplicates]) -> None:
    new, published, policy = batch
    copies, superseded = settle_copies(new, published, policy)
    told = {one["key"]: one for one in [*new, *published]}
    stay = told.keys() - copies.keys() - superseded.keys()
    assert {*copies.values(), *superseded.values()} <= stay  # nothing is a copy of what goes
    for key, of in copies.items():
        assert surest_distance(told[key], told[of], policy)
    for key, of in superseded.items():
        assert surest_distance(told[of], told[key], policy)
        assert told[key]["split"] == told[of]["split"]
        assert quality(told[of]) > quality(told[key])
    kept = [one for one in new if one["key"] in stay]
    for at, one in enumerate(kept):
        for other in kept[at + 1 :]:
            assert (
                one["raw_sha256"] == other["raw_sha256"]
                or bits(one, other) is None
                or (bits(one, other) > policy.max_distance)
            )
        for other in published:
            assert other["key"] not in stay or not surest_distance(one, other, policy)


def test_many_blocks_are_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(8)
    bases = draw.integers(0, 2**64, 40, np.uint64).tolist()
    new = [
        row(
            f"n{at}",
            bases[at % 40] ^ 1 << int(draw.integers(64)),
            source_width_px=int(draw.integers(50, 500)),
        )
        for at in range(600)
    ]
    published = [row(f"p{at}", base) for at, base in enumerate(bases[::2])]
    whole = settle_copies(new, published)
    monkeypatch.setattr("assets.dedup.settle.BLOCK", 7)
    assert settle_copies(new, published) == whole
    assert len(whole[0]) > 500


def test_along_a_chain_only_what_is_near_to_what_stays_goes() -> None:
    """Each picture is 3 bits from the next: of five, the first, third and fifth stay."""
    chain = [row(f"n{at}", (1 << 3 * at) - 1, source_width_px=1000 >> at) for at in range(5)]
    assert settle_copies(chain, []) == ({"n1": "n0", "n3": "n2"}, {})


def test_what_was_superseded_is_nobodys_better_copy() -> None:
    """The middle one goes for the best, so the worst, which is near to the middle one only, stays."""
    middle = row("p", 0, source_width_px=200)
    best, worst = row("n0", 0b1111, source_width_px=400), row("n1", 0b1111_0000)
    assert settle_copies([best, worst], [middle]) == ({}, {"p": "n0"})
    assert settle_copies([worst], [middle]) == ({"n1": "p"}, {})


def test_of_published_ones_that_look_the_same_the_best_speaks() -> None:
    """Older versions may hold several: size comes before bytes among them too, and all go for a better one."""
    larger = row("p0", 5, source_width_px=200, source_nbytes=10_000)
    denser = row("p1", 5, source_width_px=100, source_nbytes=90_000)
    new = row("n", 5, source_width_px=150)
    for published in ([larger, denser], [denser, larger]):
        assert settle_copies([new], published) == ({"n": "p0"}, {})
        assert settle_copies([row("n", 5, source_width_px=400)], published) == ({}, {"p0": "n", "p1": "n"})


def test_pieces_of_one_object_are_not_compared() -> None:
    pieces = [row(f"n{at}", 5, 5, 5, raw_sha256="video") for at in range(3)]
    assert settle_copies(pieces, []) == ({}, {})
    other = row("p", 5, 5, 5, source_width_px=1000)
    assert settle_copies(pieces, [other]) == ({"n0": "p", "n1": "p", "n2": "p"}, {})


def test_better_one_of_another_split_does_not_take_the_place() -> None:
    published = row("p", 5, split="validation")
    better = row("n0", 4, source_width_px=2000)
    assert settle_copies([better], [published]) == ({"n0": "p"}, {})
    best = row("n1", 5, source_width_px=4000, split="validation")
    assert settle_copies([best], [published]) == ({}, {"p": "n1"})
    # Its split pins it, so that the one of its own split does not take its place either.
    assert settle_copies([better, best], [published]) == ({"n0": "p", "n1": "p"}, {})


def test_reason_says_how_near_and_why_the_other_stays() -> None:
    mine = table_candidates(
        compared_frame(new := [row("a", 1, source_width_px=200), row("b", 2**64 - 2), row("c", 2**60)]),
        [one["raw_sha256"] for one in new],
    )
    theirs, _ = best_of_groups(compared_frame([row("p", 2**60, split="validation")]), grouped=True)
    policy = replace(POLICY, max_distance=1)
    near = find(index_images(theirs.pictures, 1), mine.pictures, mirrored=True)
    found = settle(mine, theirs, near, policy)
    assert {key: copy.reason for key, copy in found.copies.items()} == {
        "b": "near_duplicate of a (distance 0 mirrored, the other has more pixels: 20000 against 10000)",
        "c": "near_duplicate of p (distance 0, the other was published before as validation, which it stays)",
    }


@pytest.mark.parametrize(
    ("told", "better"),
    [
        ({"source_width_px": 120}, "has more pixels: 12000 against 10000"),
        ({"source_width_px": 104}, ""),  # the same class of size
        ({"source_nbytes": 16_000}, "has more bytes per pixel: 1.6 against 1"),
        ({"source_nbytes": 10_500}, ""),
        ({"source_nbytes": 10_000, "sharpness_laplacian_var": 90.0}, "is sharper: 90"),
        ({"source_nbytes": 50_000, "source_width_px": 80}, ""),  # size comes first
    ],
)
def test_what_makes_a_copy_the_better_one(told: Mapping[str, Any], better: str) -> None:
    published = row("p", 5, source_nbytes=10_000)
    new = row("n", 5, **{"source_nbytes": 10_000, **told})
    mine, theirs = (table_candidates(compared_frame([one]), [one["key"]]) for one in (new, published))
    near = find(index_images(theirs.pictures, 1), mine.pictures, mirrored=False)
    found = settle(mine, theirs, near, POLICY)
    if not better:
        assert (list(found.copies), found.superseded) == (["n"], {})
    else:
        assert [copy.why for copy in found.superseded.values()] == [f"the other {better}"]


def test_video_is_judged_by_its_bytes_per_second() -> None:
    longer = row("n", 5, 5, 5, source_nbytes=40_000, source_duration_s=40.0)
    shorter = row("p", 5, 5, 5, source_nbytes=20_000, source_duration_s=2.0)
    assert settle_copies([longer], [shorter]) == ({"n": "p"}, {})


def test_what_is_not_a_hash_is_refused() -> None:
    with refusal(FieldMismatch, what="phash", given="nonsense"):
        table_image_hashes(compared_frame([row("n", 5, phash="nonsense")]))
