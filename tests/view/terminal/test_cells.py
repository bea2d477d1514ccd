"""Pictures, tokens and charts in cells of a terminal."""

import sys

import numpy as np
import pytest

from penstock.view.kinds.image import png
from penstock.view.kinds.kind import TokenBox
from penstock.view.sections.characters.curve_lines import curve_lines
from penstock.view.sections.characters.running_median import running_median
from penstock.view.terminal.picture_cells import choose_mode, picture_widget
from penstock.view.terminal.slot_screen import tokens_text


def cells(widget):
    """(letter, colour, ground) of each cell, row by row."""
    rows = [widget.render_line(y) for y in range(int(widget.styles.height.value))]
    return [
        [
            (
                one.text,
                one.style and tuple(one.style.color.triplet),
                one.style and tuple(one.style.bgcolor.triplet),
            )
            for one in row
        ]
        for row in rows
    ]


def test_cell_is_two_pixels() -> None:
    pixels = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [9, 9, 9]]], np.uint8)
    widget = picture_widget(png(pixels), "halves", 2, 1)
    assert cells(widget) == [[("▀", (255, 0, 0), (0, 0, 255)), ("▀", (0, 255, 0), (9, 9, 9))]]


def test_shades_need_no_colour() -> None:
    pixels = np.array(
        [[[level]] * 2 for level in (0, 60, 128, 180, 255) for _ in range(2)], np.uint8
    ).reshape(10, 2, 1)
    widget = picture_widget(png(pixels), "shades", 2, 5)
    assert [widget.render_line(y).text for y in range(5)] == ["  ", "░░", "▒▒", "▓▓", "██"]


@pytest.mark.parametrize(
    ("shape", "fitted"), [((100, 50), (10, 10)), ((50, 100), (20, 5)), ((1, 1000), (20, 1))]
)
def test_picture_keeps_its_shape(shape, fitted) -> None:
    widget = picture_widget(png(np.zeros((*shape, 3), np.uint8)), "halves", 20, 10)
    assert (widget.styles.width.value, widget.styles.height.value) == fitted


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({"TMUX": "/tmp/tmux-0/default,1,0"}, "halves"),
        ({"TERM": "screen-256color"}, "halves"),
        ({"TERM": "xterm"}, "halves"),
    ],
)
def test_inside_tmux_and_without_a_terminal_pictures_are_half_cells(monkeypatch, environment, mode) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setattr(sys, "__stdout__", None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert choose_mode("auto", no_color=False) == mode
    assert choose_mode("auto", no_color=True) == "shades"
    assert choose_mode("kitty", no_color=True) == "kitty"


def test_tokens_are_told_apart_without_colours() -> None:
    def box(id, text, **more):
        return TokenBox(
            id=id, text=text, **{"special": False, "segment": None, "masked": False, "values": {}, **more}
        )

    text = tokens_text([box(1, "<bos>", special=True), box(7, "␣cat", masked=True), box(9, "", segment=1)])
    assert text.plain == "<bos>␣cat9 "
    assert [str(span.style) for span in text.spans] == ["bold", "dim reverse", "underline"]


def test_chart_names_the_scale_of_each_metric_and_the_steps() -> None:
    chart = {"step": [0, 1, 2, 3], "loss": [3.0, None, 1.0, 2.0], "lr": [2e-5] * 4, "nothing": [None] * 4}
    assert curve_lines(chart, [1], "", 37) == [
        "loss             1 to 3          █    ▁ ▅",
        "lr               2e-05 to 2e-05  ▁ ▁  ▁ ▁",
        "nothing          no finite value         ",
        "unusual steps                      !     ",
        "step                             0      3",
    ]
    assert {len(one) for one in curve_lines({"step": range(10_000), "a": range(10_000)}, [9], "", 60)} == {60}


def test_main_metric_has_its_range_and_its_running_median() -> None:
    steps = range(240)
    loss = [(240 - step) / 10 + 3 * (step % 10 == 0) for step in steps]
    loss[7] = None
    lines = curve_lines({"step": steps, "loss": loss}, [], "loss", 80)
    rows = lines[: lines.index(next(line for line in lines if line.startswith("loss")))]
    assert len(rows) == 6
    assert rows[0].split()[0] == "25"
    assert sum("░" in row for row in rows) >= 5
    medians = [next(i for i, row in enumerate(rows) if row[column] == "█") for column in range(30, 80)]
    assert medians == sorted(medians)
    assert (medians[0], medians[-1]) == (1, 5)


def test_running_median_ignores_a_missing_value_and_an_outlier() -> None:
    assert running_median([1.0, 1.0, None, 900.0, 2.0, 2.0]) == [1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    assert running_median([None, None]) == [None, None]
    assert running_median([]) == []


@pytest.mark.parametrize("mode", ["kitty", "sixel"])
def test_terminal_is_asked_before_its_answers_would_be_keys(monkeypatch, mode) -> None:
    monkeypatch.delitem(sys.modules, "textual_image.widget", raising=False)
    assert choose_mode(mode, no_color=False) == mode
    assert "textual_image.widget" in sys.modules
