"""The near step at which a start goes on: the newest one that is whole, and never parts of two attempts."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.checkpoints.marker import Checkpoint, StoredObject, encode
from penstock.checkpoints.near.choice import NearNode, choose_near_step

RUN = "run"
ATTEMPTS = ("a" * 16, "b" * 16)
STEPS = (20, 40)
SHA = "0" * 64


@cache
def checkpoint(step, attempt, parts=2, at_us=0, run=RUN):
    """Return a marker's content, whose parts are named after the attempt."""
    stored = [
        StoredObject(name=f"{attempt}-{number:05d}.safetensors", nbytes=100 + number, sha256=SHA)
        for number in range(parts)
    ]
    index = StoredObject(name=f"{attempt}-index.json", nbytes=10, sha256=SHA)
    return Checkpoint(
        run=run, step=step, at_us=at_us, world_size=1, index=index, parts=tuple(stored), plan="p"
    )


def node(name, markers=(), files=()):
    """Return a node. markers: checkpoints. files: (step, name, size)."""
    sizes = {}
    for step, file, nbytes in files:
        sizes.setdefault(step, {})[file] = nbytes
    return NearNode(name=name, markers={one.step: encode(one) for one in markers}, files=sizes)


def whole(one):
    return [(one.step, stored.name, stored.nbytes) for stored in one.objects]


MARKERS = {(step, attempt): encode(checkpoint(step, attempt)) for step, attempt in product(STEPS, ATTEMPTS)}


def newest_whole(nodes, above, unreadable):
    """Return (step, attempt) by going over all attempts: what any start may choose."""
    best = None
    for step, attempt in product(STEPS, ATTEMPTS):
        expected = checkpoint(step, attempt)
        copies = sum(one.markers.get(step) == MARKERS[step, attempt] for one in nodes)
        pairs = {(file, nbytes) for one in nodes for file, nbytes in one.files.get(step, {}).items()}
        is_whole = all((stored.name, stored.nbytes) in pairs for stored in expected.objects)
        if copies and is_whole and step > above and (step, attempt) not in unreadable:
            best = max(best or (), (step, copies, attempt))
    return best and (best[0], best[2])


OBJECTS = [
    (step, stored.name, stored.nbytes - cut)
    for step, attempt in product(STEPS, ATTEMPTS)
    for stored in checkpoint(step, attempt).objects
    for cut in (0, 1)
]


@st.composite
def clusters(draw):
    """Draw nodes, each with a marker or none per step, and most of the objects, some of them cut."""
    nodes = []
    for number in range(draw(st.integers(1, 3))):
        markers = []
        for step in STEPS:
            attempt = draw(st.sampled_from([*ATTEMPTS, None]))
            if attempt is not None:
                markers.append(checkpoint(step, attempt))
        order = draw(st.sampled_from([1, -1]))  # of a whole object and a cut one the last one is there
        present = draw(st.integers(0, 2**24 - 1)) | draw(st.integers(0, 2**24 - 1))
        files = [one for bit, one in enumerate(OBJECTS[::order]) if present >> bit & 1]
        nodes.append(node(f"n{number}", markers, files))
    return nodes


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    nodes=clusters(),
    above=st.sampled_from([-1, 20, 40]),
    unreadable=st.sets(st.tuples(st.sampled_from(STEPS), st.sampled_from(ATTEMPTS)), max_size=1),
)
def test_choice_is_the_newest_whole_step(nodes, above, unreadable):
    choice = choose_near_step(nodes, RUN, above=above, unreadable=unreadable)
    expected = newest_whole(nodes, above, unreadable)
    if expected is None:
        assert choice.checkpoint is None
        return
    step, attempt = expected
    assert choice.checkpoint == checkpoint(step, attempt)
    for stored in choice.checkpoint.objects:
        assert stored.name.startswith(attempt)
        assert choice.holders[stored.name]
        for name in choice.holders[stored.name]:
            (holder,) = (one for one in nodes if one.name == name)
            assert holder.files[step][stored.name] == stored.nbytes


def test_rejection_says_which_step_and_why():
    newer, older = checkpoint(40, ATTEMPTS[0]), checkpoint(20, ATTEMPTS[1])
    files = [*whole(older), *whole(newer)[:-1]]
    choice = choose_near_step([node("n1", [newer, older], files), node("n2", [newer])], RUN)
    assert choice.checkpoint == older
    ((step, line),) = choice.rejections
    assert step == 40
    assert ATTEMPTS[0] in line
    assert newer.parts[-1].name in line
    cut = (40, newer.parts[-1].name, 7)
    choice = choose_near_step([node("n1", [newer, older], [*files, cut])], RUN)
    assert choice.checkpoint == older
    assert "7 bytes on n1" in choice.rejections[0].reason


def test_parts_of_two_attempts_never_make_one_step():
    one, other = (checkpoint(40, attempt) for attempt in ATTEMPTS)
    files = [*whole(one)[:2], *whole(other)[2:], *whole(other)[:1]]
    assert choose_near_step([node("n1", [one], files), node("n2", [other], files)], RUN).checkpoint is None


def test_more_nodes_then_the_greater_attempt_decide_between_two_at_a_step():
    one, other = (
        checkpoint(40, attempt, at_us=at_us) for attempt, at_us in zip(ATTEMPTS, (9, 1), strict=True)
    )
    files = [*whole(one), *whole(other)]
    nodes = [node("n1", [one], files), node("n2", [one]), node("n3", [other])]
    assert choose_near_step(nodes, RUN).checkpoint == one
    assert choose_near_step([*nodes[1:], node("n1", [], files)], RUN).checkpoint == other


@pytest.mark.parametrize("at_us", [-1, 0, 2**62])
def test_times_decide_nothing(at_us):
    newer, older = checkpoint(40, ATTEMPTS[0], at_us=at_us), checkpoint(20, ATTEMPTS[1], at_us=5)
    choice = choose_near_step([node("n1", [newer, older], whole(newer) + whole(older))], RUN)
    assert choice.checkpoint == newer


def _rename_part(name):
    one = checkpoint(40, ATTEMPTS[0])
    return replace(one, parts=(replace(one.parts[0], name=name), one.parts[1]))


BAD_MARKERS = {
    "cut": lambda: encode(checkpoint(40, ATTEMPTS[0]))[:-9],
    "empty": lambda: b"",
    "no JSON": lambda: b"\xff\x00",
    "of another step": lambda: encode(checkpoint(20, ATTEMPTS[0])),
    "of another run": lambda: encode(checkpoint(40, ATTEMPTS[0], run="other")),
    "path in a name": lambda: encode(_rename_part("../../../etc/passwd")),
    "a part twice": lambda: encode(_rename_part(checkpoint(40, ATTEMPTS[0]).parts[1].name)),
    "negative size": lambda: encode(
        replace(checkpoint(40, ATTEMPTS[0]), index=StoredObject(name="x", nbytes=-1, sha256=SHA))
    ),
    "text as a size": lambda: encode(
        replace(checkpoint(40, ATTEMPTS[0]), parts=(StoredObject(name="x", nbytes="1", sha256=SHA),))
    ),
    "loader that is a list": lambda: encode(replace(checkpoint(40, ATTEMPTS[0]), loader=[1])),
    "version that is a number": lambda: encode(replace(checkpoint(40, ATTEMPTS[0]), versions=(1,))),
    "time that is text": lambda: encode(replace(checkpoint(40, ATTEMPTS[0]), at_us="now")),
}


@pytest.mark.parametrize("damage", BAD_MARKERS)
def test_bad_marker_is_one_rejection_and_the_older_step_counts(damage):
    older = checkpoint(20, ATTEMPTS[1])
    files = [*whole(older), *whole(checkpoint(40, ATTEMPTS[0]))]
    bad = NearNode(name="n1", markers={40: BAD_MARKERS[damage]()}, files={})
    choice = choose_near_step([bad, node("n2", [older], files)], RUN)
    assert choice.checkpoint == older
    ((step, line),) = choice.rejections
    assert step == 40
    assert line.startswith("near step 40: ")
    assert "\n" not in line


def test_step_that_a_person_set_aside_takes_the_later_ones_with_it():
    newer, older = checkpoint(40, ATTEMPTS[0]), checkpoint(20, ATTEMPTS[1])
    nodes = [node("n1", [newer, older], whole(newer) + whole(older))]
    for below, expected in ((41, newer), (40, older), (30, older), (20, None)):
        assert choose_near_step(nodes, RUN, below=below).checkpoint == expected
