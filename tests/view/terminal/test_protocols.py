"""Pictures by a terminal's own protocol: the answers that choose it, and sixels as every terminal reads them."""

import os
import pty
import re
import sys
import termios
from fcntl import ioctl
from struct import pack
from threading import Thread

import numpy as np
import pytest
from PIL import Image

from penstock.view.kinds.image import png
from penstock.view.terminal import picture_cells
from penstock.view.terminal.picture_cells import choose_mode, picture_widget

NAME, REGISTERS, ATTRIBUTES = "\x1b[>q", "\x1b[?1;1;0S", "\x1b[c"
QUESTIONS = re.compile(r"\x1b_G.*?\x1b\\|\x1b\[[>?]?[\d;]*[a-zA-Z]")
NO_SIXEL, SIXEL = "\x1b[?62;c", "\x1b[?63;1;2;4;6c"


def terminal(attributes=NO_SIXEL, name="", registers="", kitty=False):
    """Question -> answer; a question that it does not know is not answered."""
    graphics = "\x1b_Gi=1;OK\x1b\\" if kitty else ""
    named = name and f"\x1bP>|{name}\x1b\\"
    return {ATTRIBUTES: attributes, NAME: named, REGISTERS: registers, "graphics": graphics}


def answering(master, answers):
    """Answer questions in their order, as a terminal does, until it is closed."""
    asked = ""
    while True:
        try:
            asked += os.read(master, 4096).decode()
        except OSError:
            return
        while question := QUESTIONS.search(asked):
            asked = asked[question.end() :]
            known = "graphics" if question[0].startswith("\x1b_G") else question[0]
            os.write(master, answers.get(known, "").encode())


@pytest.fixture
def show_pictures(monkeypatch):
    """show_pictures(answers): pictures are shown by a terminal that gives them."""
    for name in [one for one in sys.modules if one.split(".")[0] == "textual_image"]:
        monkeypatch.delitem(sys.modules, name)  # it asks when it is imported
    monkeypatch.delitem(sys.modules, "penstock.view.terminal.sixel_picture", raising=False)
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    picture_cells.color_registers.cache_clear()
    opened = []

    def show(answers):
        master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, pack("HHHH", 24, 80, 800, 480))
        opened.extend([os.fdopen(os.dup(slave), "r"), os.fdopen(slave, "w")])
        monkeypatch.setattr(sys, "__stdin__", opened[-2])
        monkeypatch.setattr(sys, "__stdout__", opened[-1])
        one = Thread(target=answering, args=(master, answers))
        one.start()
        opened.append((master, one))

    yield show
    reader, writer, (master, one) = opened
    reader.close()
    writer.close()
    one.join()
    os.close(master)
    picture_cells.color_registers.cache_clear()


@pytest.mark.parametrize(
    ("answers", "mode"),
    [
        (terminal(name="kitty(0.26.5)", kitty=True), "halves"),
        (terminal(name="kitty(0.28.0)", kitty=True), "kitty"),
        (terminal(name="kitty(0.41.1)", kitty=True), "kitty"),
        (terminal(name="another 9.1", kitty=True), "halves"),
        (terminal(kitty=True), "halves"),
        (terminal(SIXEL, name="XTerm(379)"), "sixel"),
        (terminal(SIXEL, name="WezTerm 2024", kitty=True), "sixel"),
        (terminal(), "halves"),
    ],
)
def test_auto_takes_a_protocol_by_which_pictures_are_drawn(show_pictures, answers, mode):
    show_pictures(answers)
    assert choose_mode("auto", no_color=False) == mode


@pytest.mark.parametrize("mode", ["auto", "sixel"])
@pytest.mark.parametrize(
    ("registers", "most"), [("\x1b[?1;0;16S", 16), ("\x1b[?1;0;1024S", 256), ("\x1b[?1;3S", 256), ("", 256)]
)
def test_sixel_picture_has_the_colours_of_its_terminal(show_pictures, mode, registers, most):
    show_pictures(terminal(SIXEL, registers=registers))
    assert choose_mode(mode, no_color=False) == "sixel"
    sys.__stdin__.close()  # whoever asks now gets no answer
    pixels = np.random.default_rng(1).integers(0, 256, (48, 48, 3), np.uint8)
    numbers = {int(one) for one in re.findall(r"#(\d+)", sixels(pixels))}
    assert most * 3 // 4 <= len(numbers) <= most
    assert max(numbers) < most


def sixels(pixels):
    """The control sequence that draws a picture."""
    (drawing,) = picture_widget(png(pixels), "sixel", 10, 5).compose()
    return drawing._image_to_sixels(Image.fromarray(pixels), drawing._sixel_options)


def test_colours_are_selected_after_they_are_defined():
    """A terminal may only define the colour that `#0;2;0;0;0` tells, as xterm does, or select it as well."""
    drawn = sixels(np.zeros((12, 12, 3), np.uint8))
    assert drawn.startswith('\x1bP0;0;0q"1;1;12;12#0;2;0;0;0#0!12~')
    commands = re.findall(
        r"#[\d;]+", sixels(np.random.default_rng(1).integers(0, 256, (48, 48, 3), np.uint8))
    )
    defined = [at for at, one in enumerate(commands) if ";" in one]
    assert len(defined) > 100
    assert all(commands[at + 1] == commands[at].partition(";")[0] for at in defined)
