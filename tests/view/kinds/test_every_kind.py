"""Every kind over every value: nothing is raised, all that comes out is bounded, clean and of a type on the list."""

import io
import re

import pytest
from PIL import Image

from penstock.view.kinds import KINDS, Facts, kind_of
from penstock.view.kinds.kind import MEDIA_TYPES, WEIGHTS
from tests.view.kinds.values import HOSTILE_TEXT, HUGE, VALUES

FIELDS = ("jpg", "tokens.npy", "flac", "mp4", "caption.txt", "meta.json", "x")
CASES = [pytest.param(value, id=name) for name, value in VALUES.items()]
UNCLEAN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def shown(value, facts):
    kind = kind_of(value, facts)
    return (
        kind.name,
        kind.lines(value, facts),
        kind.marks(value, facts),
        kind.thumbnail(value, facts),
        kind.thumbnail(value, facts, 48),
        kind.detail(value, facts),
    )


@pytest.mark.parametrize("value", CASES)
def test_a_value_is_shown(value) -> None:
    check(value)


@pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)
def test_a_huge_value_is_shown(value) -> None:
    check(value)


def check(value) -> None:
    facts = Facts(field="x", sample={"x": value})
    name, lines, marks, thumbnail, small, detail = shown(value, facts)
    assert name in KINDS
    assert 1 <= len(lines) <= 260
    assert max(map(len, lines)) <= 1100
    assert not any(UNCLEAN.search(text) for text in (*lines, *(one.text for one in marks)))
    assert {one.name for one in marks} <= set(WEIGHTS)
    assert len({one.name for one in marks}) == len(marks)
    for edge, media in ((192, thumbnail), (48, small)):
        if media is not None:
            with Image.open(io.BytesIO(media.data)) as picture:
                assert max(picture.size) <= edge
                assert min(picture.size) >= 1
    for media in detail:
        assert media.type in MEDIA_TYPES
        assert len(media.data) <= 2**27
    assert (name, lines, marks, thumbnail, small, detail) == shown(value, facts)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_whether_a_kind_fits_is_told_of_any_value_in_any_field(kind) -> None:
    for value in VALUES.values():
        for field in FIELDS:
            facts = Facts(field=field, labels=["cat"], vocabulary=10, rate=16_000.0, sample={field: value})
            assert kind.fits(value, facts) in (True, False)


def test_each_kind_shows_something() -> None:
    found = {kind_of(value, Facts(field=field)).name for value in VALUES.values() for field in FIELDS}
    assert found == set(KINDS)


def test_hostile_text_is_still_read() -> None:
    text = " ".join(kind_of(HOSTILE_TEXT, Facts(field="x")).lines(HOSTILE_TEXT, Facts(field="x")))
    assert "<script>" in text  # pages escape it
    assert r"a\x1b]52;c;eA==\x07b\u202edcba\u2066\x9b31m" in text
    assert r"\ud800" in text


def test_a_media_type_that_a_browser_would_run_is_refused() -> None:
    from penstock.view.kinds import Media

    with pytest.raises(ValueError, match=r"image/svg\+xml.*accepted: image/png"):
        Media(type="image/svg+xml", data=b"")
