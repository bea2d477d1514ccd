"""The filter of random resized crops: C does what Python says, bit for bit; antialiased, and inside the box."""

import hashlib
import os
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import loader.native
from loader.native import python

VERBS = [python]
if loader.native.KIND != "Python":
    from loader.native import _native

    VERBS.append(_native)
each = pytest.mark.parametrize("verbs", VERBS, ids=lambda verbs: verbs.__name__.rpartition(".")[2])


def resample_box(verbs, source, box, size, shrunk=1, flip=False):
    into = np.full((*size, source.shape[2]), 99, np.uint8)
    verbs.resample(source, source.shape, shrunk, box, into, size, flip)
    return into


def scatter_values(height, width, channels):
    """Values without a pattern: products of whole numbers."""
    steps = np.arange(height * width * channels, dtype=np.uint32).reshape(height, width, channels)
    return (steps * 2654435761 >> 13 & 255).astype(np.uint8)


@st.composite
def crops(draw):
    """Arguments of `resample`: mostly boxes that are there, sometimes one that is not."""
    sides = st.one_of(st.integers(1, 9), st.integers(1, 80))
    height, width, channels = draw(sides), draw(sides), draw(st.sampled_from([1, 3, 3, 4]))
    shrunk = draw(st.sampled_from([1, 1, 2, 4, 8, 7]))
    size = draw(sides), draw(sides)
    box_height, box_width = draw(st.integers(1, height * shrunk)), draw(st.integers(1, width * shrunk))
    top, left = (
        draw(st.integers(0, height * shrunk - box_height)),
        draw(st.integers(0, width * shrunk - box_width)),
    )
    numbers = [height, width, channels, shrunk, top, left, box_height, box_width, *size]
    if draw(st.integers(0, 5)) == 0:
        odd = st.one_of(st.integers(-2, 90), st.sampled_from([2**20, 2**20 + 1, 2**40, -(2**40)]))
        numbers[draw(st.integers(0, len(numbers) - 1))] = draw(odd)
    source = draw(st.sampled_from(["scattered", "black", "white"]))
    pixels = (
        scatter_values(height, width, channels)
        if source == "scattered"
        else np.full((height, width, channels), 255 * (source == "white"), np.uint8)
    )
    return pixels, numbers, draw(st.booleans()), (*size, channels)


@settings(deadline=None, max_examples=int(os.environ.get("NATIVE_EXAMPLES", settings().max_examples)))
@given(of=crops())
def test_resample_is_the_same_in_c_and_in_python(of):
    pixels, (height, width, channels, shrunk, top, left, box_height, box_width, *size), flip, room = of
    results = []
    for verbs in VERBS:
        into, message = np.full(room, 7, np.uint8), None
        shape, box = (height, width, channels), (top, left, box_height, box_width)
        try:
            verbs.resample(pixels, shape, shrunk, box, into, tuple(size), flip)
        except ValueError as error:
            message = str(error)
            assert (into == 7).all()
        results.append((message, into.tobytes()))
    assert all(result == results[0] for result in results)


def test_resample_is_the_same_for_every_small_size():
    """All sides from 1 to 28 px to all sides from 1 to 28 px, rows and columns at once."""
    for n in range(1, 29):
        source = scatter_values(n, 29 - n, 3)
        for m in range(1, 29):
            box, size = (0, 0, n, 29 - n), (m, 29 - m)
            results = [resample_box(verbs, source, box, size, flip=n % 2 == 0) for verbs in VERBS]
            assert all(np.array_equal(result, results[0]) for result in results)


def test_resample_is_the_same_for_the_longest_sides():
    """2**20 px: no sum leaves its integer. Some weights of 2**16 pixels are 0 or 1, and still sum up to one."""
    for sides, size, shrunk in (
        ((1, 2**20), (1, 2**16), 1),
        ((1, 2**20), (1, 2**16), 8),
        ((1, 7), (1, 2**16), 8),
    ):
        source = scatter_values(*sides, 1)
        box = (0, 0, sides[0] * shrunk, sides[1] * shrunk)
        results = [resample_box(verbs, source, box, size, shrunk) for verbs in VERBS]
        assert all(np.array_equal(result, results[0]) for result in results)
    white = np.full((1, 2**20, 1), 255, np.uint8)
    assert (resample_box(VERBS[-1], white, (0, 0, 8, 2**23), (1, 32), 8) == 255).all()


@each
def test_resample_gives_the_bits_on_record(verbs):
    source = scatter_values(90, 130, 3)
    cases = {
        "shrink": ((3, 5, 80, 120), (31, 47), 1, False),
        "flip": ((3, 5, 80, 120), (31, 47), 1, True),
        "enlarge": ((40, 50, 20, 31), (64, 77), 1, False),
        "both": ((0, 0, 90, 20), (40, 40), 1, False),
        "shrunk before": ((101, 7, 600, 1003), (56, 91), 8, True),
        "one pixel": ((0, 0, 90, 130), (1, 1), 1, False),
        "as it is": ((2, 3, 30, 40), (30, 40), 1, False),
    }
    digests = {
        name: hashlib.sha256(resample_box(verbs, source, box, size, shrunk, flip).tobytes()).hexdigest()[:12]
        for name, (box, size, shrunk, flip) in cases.items()
    }
    assert digests == {
        "shrink": "9bbb26882cc8",
        "flip": "015c95ee014a",
        "enlarge": "6c4b918681e6",
        "both": "da15be75a518",
        "shrunk before": "4d93f661d797",
        "one pixel": "4ac5fe6b86e1",
        "as it is": "4ee7c78dc218",
    }


@each
def test_resample_keeps_one_colour(verbs):
    """Weights sum up to one exactly, of 1 pixel as of 3,000: nothing grows darker or brighter."""
    for level in (1, 127, 255):
        for sides in ((1, 3000), (7, 200), (224, 3)):
            source = np.full((*sides, 3), level, np.uint8)
            for size in ((1, 1), (3, 2), (5, 224)):
                assert (resample_box(verbs, source, (0, 0, *sides), size) == level).all()


@each
def test_resample_of_the_same_size_changes_nothing(verbs):
    source = scatter_values(20, 30, 4)
    assert np.array_equal(resample_box(verbs, source, (3, 4, 10, 20), (10, 20)), source[3:13, 4:24])
    assert np.array_equal(
        resample_box(verbs, source, (3, 4, 10, 20), (10, 20), flip=True), source[3:13, 4:24][:, ::-1]
    )


@each
def test_resample_flips_columns(verbs):
    source = scatter_values(50, 60, 3)
    for size in ((20, 25), (90, 71), (3, 1)):
        plain = resample_box(verbs, source, (5, 6, 40, 50), size)
        assert np.array_equal(resample_box(verbs, source, (5, 6, 40, 50), size, flip=True), plain[:, ::-1])


@each
def test_resample_reads_the_box_only(verbs):
    for shrunk, box in ((1, (7, 9, 11, 13)), (4, (28, 36, 44, 52)), (4, (29, 37, 42, 50))):
        source = scatter_values(30, 40, 3)
        before = resample_box(verbs, source, box, (5, 21), shrunk)
        top, left = box[0] // shrunk, box[1] // shrunk
        bottom, right = -(-(box[0] + box[2]) // shrunk), -(-(box[1] + box[3]) // shrunk)
        outside = np.ones((30, 40), bool)
        outside[top:bottom, left:right] = False
        source[outside] ^= 255
        assert np.array_equal(resample_box(verbs, source, box, (5, 21), shrunk), before)
        for y, x in ((top, left), (bottom - 1, right - 1)):  # and all of the box
            other = source.copy()
            other[y, x] ^= 255
            assert not np.array_equal(
                resample_box(verbs, other, box, (30, 30), shrunk),
                resample_box(verbs, source, box, (30, 30), shrunk),
            )


@each
@pytest.mark.parametrize("size", [(1, 1), (31, 47), (64, 64), (100, 100), (150, 150), (299, 40)])
def test_resample_is_pillows_bilinear_to_one_level(verbs, size):
    """Pillow rounds rows to whole levels; here they keep seven bits more."""
    source = scatter_values(150, 200, 3)
    box = (10, 20, 100, 100)
    expected = Image.fromarray(source[10:110, 20:120]).resize(size[::-1], Image.Resampling.BILINEAR)
    error = np.abs(resample_box(verbs, source, box, size).astype(int) - np.asarray(expected))
    assert error.max() <= 1
    assert error.mean() <= 0.3


@each
def test_resample_lets_no_detail_alias(verbs):
    """Stripes of two pixels, which a result a third as large cannot show, become even grey.

    A filter of two taps turns them into wide stripes.
    """
    x = np.arange(240)
    stripes = np.broadcast_to(np.where(x // 2 % 2, 255, 0).astype(np.uint8)[None, :, None], (240, 240, 3))
    source = np.ascontiguousarray(stripes)
    for pixels in (source, np.ascontiguousarray(source.swapaxes(0, 1))):
        small = resample_box(verbs, pixels, (0, 0, 240, 240), (75, 75)).astype(int)[2:-2, 2:-2]
        boxes = np.asarray(Image.fromarray(pixels).resize((75, 75), Image.Resampling.BOX)).astype(int)[
            2:-2, 2:-2
        ]
        aliased = np.asarray(Image.fromarray(pixels).resize((75, 75), Image.Resampling.NEAREST)).astype(int)
        assert small.std() < boxes.std() < aliased.std()
        assert small.std() < 12


@each
def test_resample_refuses_what_it_cannot_write(verbs):
    source, into = scatter_values(4, 4, 3), np.zeros((2, 2, 3), np.uint8)
    into.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        verbs.resample(source, source.shape, 1, (0, 0, 4, 4), into, (2, 2), False)
    with pytest.raises(ValueError, match="source: 47 bytes, not 48"):
        verbs.resample(
            source.reshape(-1)[:47], source.shape, 1, (0, 0, 4, 4), np.zeros(12, np.uint8), (2, 2), False
        )
    with pytest.raises(ValueError, match="into: 11 bytes, not 12"):
        verbs.resample(source, source.shape, 1, (0, 0, 4, 4), np.zeros(11, np.uint8), (2, 2), False)


@each
def test_resample_holds_nothing_afterwards(verbs):
    source, into = bytearray(48), bytearray(12)
    before = sys.getrefcount(source), sys.getrefcount(into)
    verbs.resample(source, (4, 4, 3), 1, (0, 0, 4, 4), into, (2, 2), False)
    with pytest.raises(ValueError):
        verbs.resample(source, (4, 4, 3), 1, (0, 0, 4, 4), into, (2, 3), False)
    assert (sys.getrefcount(source), sys.getrefcount(into)) == before
    source.append(0)  # raises BufferError while a buffer is held
    into.append(0)


@each
def test_resample_leaves_the_interpreter_free(verbs):
    """A thread counts while another filters; with the lock held it could not before the end."""
    source, into = np.zeros((700, 700, 3), np.uint8), np.zeros((400, 400, 3), np.uint8)
    done, counted = threading.Event(), 0

    def filter_often():
        for _ in range(20 if verbs is not python else 1):
            verbs.resample(source, source.shape, 1, (0, 0, 700, 700), into, (400, 400), False)
        done.set()

    thread = threading.Thread(target=filter_often)
    thread.start()
    while not done.is_set():
        counted += 1
    thread.join()
    assert counted > 100
