"""The lasso against a scalar test of points in polygons, and its text against hostile ones."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidRuntime
from penstock.search.map.lasso import GRID, MAP_UNITS, Corners, in_lasso, lasso_grid, lasso_text, parse_lasso
from tests.refusals import refusal

CELL = MAP_UNITS // GRID

# Corners in the middle of cells and at their ends are the cases that rounding would decide.
coordinates = st.one_of(
    st.integers(0, MAP_UNITS - 1),
    st.integers(0, GRID - 1).map(lambda cell: cell * CELL),
    st.integers(0, GRID - 1).map(lambda cell: cell * CELL + CELL // 2),
)
corners = st.tuples(coordinates, coordinates)
polygons = st.lists(corners, min_size=3, max_size=64).map(tuple)
points = st.lists(corners, min_size=1, max_size=40)


def is_inside(polygon: Corners, x: int, y: int) -> bool:
    """Return whether the centre of the point's cell is inside, edge by edge, in fractions."""
    x_centre = x // CELL * CELL + CELL // 2
    y_centre = y // CELL * CELL + CELL // 2
    n_crossed = 0
    for number, (x1, y1) in enumerate(polygon):
        x0, y0 = polygon[number - 1]
        if (y0 <= y_centre) == (y1 <= y_centre):
            continue
        crossing = x0 + Fraction((y_centre - y0) * (x1 - x0), y1 - y0)
        n_crossed += crossing <= x_centre
    return n_crossed % 2 == 1


@settings(max_examples=150, deadline=None)
@given(polygons, points)
def test_lasso_selects_as_a_scalar_test_does(polygon: Corners, samples: list[tuple[int, int]]) -> None:
    places = np.array(samples, np.uint16)
    selected = in_lasso(lasso_grid(polygon), places[:, 0], places[:, 1])
    assert selected.tolist() == [is_inside(polygon, x, y) for x, y in samples]


@given(polygons)
def test_text_returns_the_corners(polygon: Corners) -> None:
    assert parse_lasso(lasso_text(polygon)) == polygon


def test_whole_map_and_crossed_lasso() -> None:
    last = MAP_UNITS - 1
    whole = lasso_grid(((0, 0), (last, 0), (last, last), (0, last)))
    assert whole.shape == (GRID, GRID)
    assert whole.all()
    hourglass = lasso_grid(((0, 0), (last, 0), (0, last), (last, last)))
    assert hourglass[GRID // 2, 10]
    assert hourglass[GRID // 2, -10]
    assert not hourglass[10, GRID // 2]
    twice = lasso_grid(((0, 0), (last, 0), (last, last), (0, last)) * 2)
    assert not twice.any(), "even-odd"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", {"what": "corners", "given": 1, "accepted": "3 to 64"}),
        ("1,2;3,4", {"what": "corners", "given": 2, "accepted": "3 to 64"}),
        (";".join(["1,2"] * 65), {"what": "corners", "given": 65, "accepted": "3 to 64"}),
        ("1,2;3,4;5", {"what": "corner", "given": "5", "accepted": "X,Y"}),
        ("1,2;3,4;5,6,7", {"what": "coordinate", "given": "6,7", "accepted": "0 to 65,535"}),
        ("1,2;3,4;5,65536", {"what": "coordinate", "given": "65536", "accepted": "0 to 65,535"}),
        ("1,2;3,4;5,-6", {"what": "coordinate", "given": "-6", "accepted": "0 to 65,535"}),
        ("1,2;3,4;5,6.5", {"what": "coordinate", "given": "6.5", "accepted": "0 to 65,535"}),
        ("1,2;3,4;5,nan", {"what": "coordinate", "given": "nan", "accepted": "0 to 65,535"}),
        ("1,2;3,4;5,1e3", {"what": "coordinate", "given": "1e3", "accepted": "0 to 65,535"}),
        ("1,2;3,4;5,٣", {"what": "coordinate", "accepted": "0 to 65,535"}),
        ("1,2;3,4;5,0000000006", {"what": "coordinate", "given": "0000000006", "accepted": "0 to 65,535"}),
        ("1,2;3,4;\x00,6", {"what": "coordinate", "accepted": "0 to 65,535"}),
        ("9" * 100_000, {"what": "lasso", "given": 100000, "accepted": 768}),
    ],
)
def test_other_texts_are_refused_with_the_form(text: str, fault: dict[str, object]) -> None:
    with refusal(InvalidRuntime, **fault) as refused:
        parse_lasso(text)
    assert 'a lasso is 3 to 64 corners "X,Y;X,Y;..." of whole numbers from 0 to 65,535' in str(refused.value)
    assert len(str(refused.value)) < 250
