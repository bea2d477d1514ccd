"""Arrays: range and first values told exactly, planes drawn."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from penstock.view.kinds import Facts, find_kind
from penstock.view.kinds import array_values as drawing
from penstock.view.kinds.array import ARRAY
from penstock.view.kinds.array_values import array_range, ranges_cached

FACTS = Facts(field="latent.npy")


def test_range_is_numpys() -> None:
    array = 1e6 + np.random.default_rng(3).standard_normal((300, 7, 500))
    found = array_range(array)
    assert (found.low, found.high, found.finite) == (array.min(), array.max(), array.size)
    assert found.mean == pytest.approx(array.mean(), rel=1e-12)
    assert found.deviation == pytest.approx(array.std(), rel=1e-6)


def test_values_that_are_not_finite_are_counted_apart() -> None:
    found = array_range(np.array([1.0, np.nan, np.inf, -np.inf, 3.0, np.nan]))
    assert (found.low, found.high, found.mean, found.deviation) == (1.0, 3.0, 2.0, 1.0)
    assert (found.nan, found.infinite, found.finite) == (2, 2, 2)


@pytest.mark.parametrize(
    "turn", [lambda a: a[::-1, :, ::-1], lambda a: a.transpose(2, 0, 1), lambda a: a[::2]]
)
def test_every_value_counts_however_it_lies_in_memory(turn) -> None:
    array = turn(np.random.default_rng(4).standard_normal((8, 9, 10)))
    assert array_range(array).mean == pytest.approx(array.mean(), abs=1e-12)
    assert (array_range(array).low, array_range(array).high) == (array.min(), array.max())


@pytest.mark.parametrize("bad", [np.nan, np.inf, None])
def test_value_that_is_looked_at_once_is_told_as_ever(bad) -> None:
    rng = np.random.default_rng(5)
    values = [rng.standard_normal((3, 20, 30)).astype(np.float32) for _ in range(3)]
    if bad is not None:
        values[1][1, 2, 3] = bad
    values += [value.transpose(1, 2, 0) for value in values] + [values[0][:, ::2], values[0][0]]

    def kind_facts(value):
        kind = find_kind(value, FACTS)
        return kind.lines(value, FACTS), kind.marks(value, FACTS), kind.thumbnail(value, FACTS)

    wanted = [kind_facts(value) for value in values]
    with ranges_cached():
        assert [kind_facts(value) for value in values] == wanted


def test_whole_numbers_are_told_exactly() -> None:
    assert ARRAY.lines(np.array([-(2**40), 2**40]), FACTS)[1].startswith(f"from -{2**40:,} to {2**40:,}")


def test_line_tells_shape_range_and_first_values() -> None:
    value = np.arange(20, dtype=np.float32)
    assert ARRAY.lines(value, FACTS) == (
        "float32 [20]",
        "from 0 to 19, mean 9.5, deviation 5.766",
        "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 …",
    )


@pytest.mark.parametrize(
    "value",
    [torch.tensor([0.5, 2.0], dtype=torch.bfloat16), np.array([0.5, 2.0], ml_dtypes.bfloat16)],
    ids=["torch", "numpy"],
)
def test_bfloat16_keeps_its_name_and_values(value) -> None:
    assert find_kind(value, FACTS) is ARRAY
    assert ARRAY.lines(value, FACTS) == ("bfloat16 [2]", "from 0.5 to 2, mean 1.25, deviation 0.75", "0.5 2")


def test_plane_is_drawn_a_pixel_a_value(read_pixels) -> None:
    value = np.array([[0.0, 5.0], [10.0, 2.5]])
    assert read_pixels(*ARRAY.detail(value, FACTS))[:, :, 0].tolist() == [[0, 128], [255, 64]]
    large = read_pixels(ARRAY.thumbnail(value, FACTS))
    assert large.shape == (192, 192, 1)
    assert large[0, 0] == 0
    assert large[191, 0] == 255


def test_planes_lie_beside_one_another(read_pixels) -> None:
    value = np.stack([np.full((3, 4), i / 20) for i in range(21)])
    shown = read_pixels(*ARRAY.detail(value, FACTS))[0, :, 0]
    assert shown.tolist()[::5] == [round(255 * i / 20) for i in np.linspace(0, 20, 8).astype(int)]
    assert shown.shape == (8 * 4 + 7,)
    assert ARRAY.lines(value, FACTS)[-1] == "shown from 0 to 1, 8 of 21 planes"


def test_rank_1_is_not_drawn() -> None:
    assert ARRAY.thumbnail(np.arange(9), FACTS) is None
    assert ARRAY.detail(np.arange(9), FACTS) == ()


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (np.array([1.0, np.nan]), ["nan"]),
        (np.array([1.0, np.inf]), ["infinite"]),
        (np.full(9, 3), ["constant"]),
        (np.zeros((0, 3)), ["empty"]),
        (np.arange(9), []),
        (np.float32(0), []),
    ],
)
def test_marks(value, names) -> None:
    assert [one.name for one in ARRAY.marks(value, FACTS)] == names


@settings(deadline=None)
@given(
    arrays(np.uint8, array_shapes(min_dims=1, max_dims=3, max_side=12)),
    st.sampled_from([lambda one: one, np.transpose, lambda one: one[..., :-1]]),
    st.sampled_from([7, drawing.CHUNK_BYTES]),
)
def test_bytes_have_the_range_of_their_values(value, turned, together) -> None:
    """To the last bit: they are counted by value, and others are added up."""
    value = turned(value)
    if value.size:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drawing, "CHUNK_BYTES", together)
            found, wide = array_range(value), array_range(value.astype(np.int16, order="K"))
        assert replace(found, counts=()) == wide
        assert found.counts == tuple(np.bincount(value.ravel(), minlength=256).tolist())
