"""Every kind over every value: nothing is raised, all that comes out is bounded, clean and of a type on the list."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from penstock.view.kinds import KINDS, Facts, find_kind
from penstock.view.kinds.kind import MEDIA_TYPES, WEIGHTS
from tests.view.kinds.values import HOSTILE_TEXT, HUGE, VALUES

CASES = [pytest.param(value, id=name) for name, value in VALUES.items()]
UNCLEAN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def draw_facts(value):
    """Facts under which a value may be of one kind or another."""
    n = value.size if isinstance(value, np.ndarray) and value.ndim == 1 else 0
    beside = {"segment_ids": np.arange(n) // 7, "loss_mask": np.arange(n) % 2, "advantage": np.ones(n)}
    return [
        Facts(field="x", sample={"x": value}),
        Facts(field="jpg", labels={1: "cat"}),
        Facts(field="cls", labels=["cat", HOSTILE_TEXT]),
        Facts(field="tokens.npy", vocabulary=100, special={7: HOSTILE_TEXT}, decode=repr),
        Facts(field="tokens.npy", special={7: "<eos>"}, sample={"tokens.npy": value, **beside}),
        Facts(field="flac", rate=8000.0, sample={"flac": value}),
        Facts(field="video", rate=-1e300),
        Facts(field="meta.json"),
        Facts(field=HOSTILE_TEXT, sample={HOSTILE_TEXT: value}),
    ]


def render_kind(kind, value, facts):
    return (
        kind.lines(value, facts),
        kind.marks(value, facts),
        kind.boxes(value, facts),
        kind.thumbnail(value, facts),
        kind.thumbnail(value, facts, 48),
        kind.detail(value, facts),
    )


@pytest.mark.parametrize("value", CASES)
def test_value_is_shown(value) -> None:
    by_kind = {(find_kind(value, facts).name, facts.labels is None): facts for facts in draw_facts(value)}
    for facts in by_kind.values():
        check(value, facts)


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
def test_huge_value_is_shown(value) -> None:
    check(value, Facts(field="x"))


def check(value, facts) -> None:
    kind = find_kind(value, facts)
    lines, marks, boxes, thumbnail, small, detail = render_kind(kind, value, facts)
    assert 1 <= len(lines) <= 260
    assert max(map(len, lines)) <= 1100
    texts = [*lines, *(one.text for one in marks), *(one.text for one in boxes)]
    assert not any(UNCLEAN.search(text) for text in texts)
    assert {one.name for one in marks} <= set(WEIGHTS)
    assert len({one.name for one in marks}) == len(marks)
    assert len(boxes) <= 2**14
    for edge, media in ((192, thumbnail), (48, small)):
        if media is not None:
            with Image.open(io.BytesIO(media.data)) as picture:
                assert max(picture.size) <= edge
                assert min(picture.size) >= 1
    for media in detail:
        assert media.type in MEDIA_TYPES
        assert len(media.data) <= 2**27
    again = render_kind(kind, value, facts)
    assert repr(again) == repr((lines, marks, boxes, thumbnail, small, detail))
    assert [one.data for one in again[-1]] == [one.data for one in detail]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_whether_a_kind_fits_is_told_of_any_value(kind) -> None:
    for value in VALUES.values():
        for facts in draw_facts(value):
            assert kind.fits(value, facts) in (True, False)


def test_each_kind_shows_something() -> None:
    found = {find_kind(value, facts).name for value in VALUES.values() for facts in draw_facts(value)}
    assert found == set(KINDS)


def test_hostile_text_is_still_read() -> None:
    text = " ".join(find_kind(HOSTILE_TEXT, Facts(field="x")).lines(HOSTILE_TEXT, Facts(field="x")))
    assert "<script>" in text  # pages escape it
    assert r"a\x1b]52;c;eA==\x07b\u202edcba\u2066\x9b31m" in text
    assert r"\ud800" in text


def test_media_type_that_a_browser_would_run_is_refused() -> None:
    from penstock.view.kinds import Media

    with pytest.raises(ValueError, match=r"image/svg\+xml.*accepted: image/png"):
        Media(type="image/svg+xml", data=b"")
