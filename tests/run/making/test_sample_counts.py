"""Work of the interpreter per sample, which holds its lock: counted in calls and lines, so the same on any machine."""

import gc
import sys

import numpy as np
import pytest

import loader
import loader.native

FEW, MANY = 8, 56
"""Samples of a batch. What two batches differ in is the work of the samples in between."""
PIXELS = np.zeros((40, 40, 3), np.uint8)


@pytest.fixture(scope="module")
def version(media, tmp_path_factory):
    """Enough samples for three batches of each size."""
    picture = media.picture(3, "JPEG")
    with loader.Root(str(tmp_path_factory.mktemp("counts"))) as root:
        with root.write("d") as writer:
            for i in range(3 * MANY):
                writer.add(f"{i:04d}", {"jpg": picture, "mask.jpg": picture, "cls": i})
        yield root.open("d@latest")


def count_calls(run):
    """What run() takes of this thread: (calls of functions, of Python and of C; lines of Python)."""
    counts = {"call": 0, "c_call": 0, "line": 0}

    def count(frame, event, argument):
        if event in counts:
            counts[event] += 1
        return count

    # A collection would count the finalizers of what earlier tests left.
    gc.collect()
    gc.disable()
    try:
        sys.setprofile(count)
        try:
            run()
        finally:
            sys.setprofile(None)
        calls = counts["call"] + counts["c_call"]
        sys.settrace(count)
        try:
            run()
        finally:
            sys.settrace(None)
    finally:
        gc.enable()
    return np.array([calls, counts["line"]])


def per_sample(version, fields, **how):
    """(calls, lines) per sample of a batch that this thread makes, with those of the decoder and the transform."""
    found = []
    for size in (FEW, MANY):
        plan = loader.plan({"d": version.select(*fields)}, seed=1, global_batch=size)
        # Each step is made by itself, by whoever asks for it.
        options = {"workers": 0, "prefetch": 0, "framework": "numpy"}
        with loader.Loader(plan, 0, 1, steps=3, **options, **how) as batches:
            next(batches)
            found.append(count_calls(lambda: next(batches)))
    return (found[1] - found[0]) / (MANY - FEW)


def nothing(data, rng):
    return PIXELS


def draws(data, rng):
    rng.random()
    return PIXELS


def transform(sample, rng):
    return {"jpg": PIXELS, "cls": 1}


def transform_that_draws(sample, rng):
    rng.random()
    return {"jpg": PIXELS}


CASES = {
    "a decoder": (["jpg"], {"decode": {"jpg": nothing}}, 24, 60),
    "a decoder that draws": (["jpg"], {"decode": {"jpg": draws}}, 24, 60),
    "two decoders and ours": (
        ["jpg", "mask.jpg", "cls"],
        {"decode": {"jpg": draws, "mask.jpg": draws}},
        45,
        135,
    ),
    "a transform": (["jpg", "cls"], {"decode": {"jpg": nothing}, "transform": transform}, 47, 120),
    "a transform of bytes that draws": (
        ["jpg"],
        {"decode": False, "transform": transform_that_draws},
        30,
        72,
    ),
    "ours": (["jpg"], {}, 22, 74),
    "ours, cropped at random": (
        ["jpg"],
        {"decode": {"jpg": loader.random_resized_crop((6, 8), flip=0.5)}},
        41,
        135,
    ),
    "ours of one shape": (["jpg"], {"decode": {"jpg": loader.image(size=(6, 8), crop="random")}}, 185, 430),
}
"""What is made -> fields, options, most calls and lines: a sixth above what they are."""
IN_PYTHON = np.array([26, 38])
"""Calls and lines per field, and of the transform, where no compiler was: of reading, checking and hashing."""
RESAMPLED_IN_PYTHON = np.array([103, 320])
"""The same of one image that `resample` of the extension crops and scales in a single call."""


@pytest.mark.parametrize("case", CASES)
def test_sample_takes_few_calls_and_lines_of_python(version, case):
    """All threads share the interpreter's lock: what one holds it for, the others wait for."""
    fields, how, calls, lines = CASES[case]
    most = np.array([calls, lines])
    if loader.native.KIND == "Python":
        most += (len(fields) + ("transform" in how)) * IN_PYTHON
        if case == "ours, cropped at random":
            most += RESAMPLED_IN_PYTHON
    took = per_sample(version, fields, **how)
    assert (took <= most).all(), f"(calls, lines) = {took.tolist()}; at most {most.tolist()}"
