"""Images of maps: the right pixels in the right colours, in both themes, and the sample at a point."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loader.errors import InvalidRuntime
from penstock.search.map.drawing import DARK, LIGHT, SIDE_PX, Box, Palette, draw, nearest, parse_box
from penstock.search.map.lasso import MAP_UNITS
from penstock.view import web
from tests.refusals import refusal

Array = np.ndarray[Any, np.dtype[Any]]
TOKENS = Path(web.__file__).parent / "static/tokens.css"


def image(png: bytes) -> Array:
    """Return uint8 [SIDE_PX, SIDE_PX, 3]."""
    drawn = Image.open(io.BytesIO(png))
    assert (drawn.format, drawn.size) == ("PNG", (SIDE_PX, SIDE_PX))
    return np.asarray(drawn.convert("RGB"))


def places(*points: tuple[int, int]) -> tuple[Array, Array]:
    stacked = np.array(points, np.uint16).reshape(-1, 2)
    return stacked[:, 0], stacked[:, 1]


def rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour[1:]))


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_colours_are_those_of_the_style_sheet(palette: Palette) -> None:
    text = TOKENS.read_text()
    for name, colour in {
        "ground": palette.ground,
        "all": palette.every,
        "found": palette.selected,
        "edge": palette.categories[8],
        **{f"c{number + 1}": palette.categories[number] for number in range(8)},
    }.items():
        match = re.search(rf"--{name}: light-dark\((#\w+), (#\w+)\)", text)
        assert match is not None
        assert match[1 if palette is LIGHT else 2] == colour, name


def test_selected_samples_are_coloured_over_all_others() -> None:
    x, y = places((16_384, 16_384), (49_152, 16_384), (16_384, 49_152))
    pixels = image(draw(x, y, selected=np.array([True, False, False])))
    assert pixels[128, 128].tolist() == rgb(LIGHT.selected)
    assert pixels[128, 384].tolist() == rgb(LIGHT.every)
    assert pixels[384, 128].tolist() == rgb(LIGHT.every)
    assert pixels[384, 384].tolist() == rgb(LIGHT.ground)
    assert (image(draw(x, y, palette=DARK))[0, 0] == rgb(DARK.ground)).all()


def test_categories_have_their_colours_and_the_ninth_is_grey() -> None:
    points = [(4_096 * number + 2_048, 32_768) for number in range(12)]
    x, y = places(*points)
    pixels = image(draw(x, y, categories=np.arange(12).astype(np.uint8)))
    for number in range(12):
        expected = LIGHT.categories[min(number, 8)]
        assert pixels[256, 32 * number + 16].tolist() == rgb(expected)


def test_pixel_has_the_colour_of_most_samples() -> None:
    x, y = places(*[(32_768, 32_768)] * 5)
    pixels = image(draw(x, y, categories=np.array([3, 1, 3, 1, 3], np.uint8)))
    assert pixels[256, 256].tolist() == rgb(LIGHT.categories[3])


def test_dense_pixels_are_stronger_and_single_samples_visible() -> None:
    rng = np.random.default_rng(0)
    n = 100_000
    x = np.clip(rng.normal(32_768, 3_000, n), 0, MAP_UNITS - 1).astype(np.uint16)
    y = np.clip(rng.normal(32_768, 3_000, n), 0, MAP_UNITS - 1).astype(np.uint16)
    x[0], y[0] = 100, 100
    pixels = image(draw(x, y)).astype(int)
    ground = np.array(rgb(LIGHT.ground))
    strength = np.abs(pixels - ground).sum(axis=2)
    assert strength[256, 256] > strength[0, 0] > 60


def test_box_shows_its_part_only() -> None:
    box = Box(0, 0, MAP_UNITS // 2, MAP_UNITS // 4)
    x, y = places((MAP_UNITS // 4, MAP_UNITS // 8), (MAP_UNITS // 2, 0), (0, MAP_UNITS // 4))
    pixels = image(draw(x, y, box=box))
    assert pixels[256, 256].tolist() == rgb(LIGHT.selected)
    is_drawn = (pixels != rgb(LIGHT.ground)).any(axis=2)
    assert is_drawn[240:272, 240:272].sum() == is_drawn.sum()
    one_unit = image(draw(*places((7, 9)), box=Box(7, 9, 8, 10)))
    assert (one_unit != rgb(LIGHT.ground)).any()


def test_empty_map_and_empty_selection_are_drawn() -> None:
    x, y = places()
    assert (image(draw(x, y)) == 255).all()
    x, y = places((5, 5), (60_000, 60_000))
    nothing = np.zeros(2, bool)
    pixels = image(draw(x, y, selected=nothing, categories=np.zeros(2, np.uint8)))
    assert {tuple(colour) for colour in pixels.reshape(-1, 3).tolist()} == {
        tuple(rgb(LIGHT.ground)),
        tuple(rgb(LIGHT.every)),
    }


def test_nearest_is_the_nearest_by_brute_force() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, MAP_UNITS, 500).astype(np.uint16)
    y = rng.integers(0, MAP_UNITS, 500).astype(np.uint16)
    selected = rng.random(500) < 0.5
    for x0, y0 in rng.integers(0, MAP_UNITS, (200, 2)).tolist():
        for within in (300, 2_000, 70_000):
            squares = (x.astype(int) - x0) ** 2 + (y.astype(int) - y0) ** 2
            squares[~selected] = 2**40
            expected = int(squares.argmin())
            if squares[expected] > within**2:
                expected = None
            assert nearest(x, y, (x0, y0), within, selected) == expected
    assert nearest(*places(), (1, 1), 10) is None


def test_box_is_parsed_or_refused() -> None:
    assert parse_box("") == (0, 0, MAP_UNITS, MAP_UNITS)
    assert parse_box("1,2,30,65536") == (1, 2, 30, 65_536)
    for text in (
        "1,2,3",
        "1,2,1,4",
        "1,4,2,4",
        "0,0,65537,3",
        "-1,0,3,4",
        "a,b,c,d",
        "1,2,3,²",
        "0" * 99,
        "1,2,3,4,5",
    ):
        with refusal(InvalidRuntime, what="box", given=text):
            parse_box(text)
