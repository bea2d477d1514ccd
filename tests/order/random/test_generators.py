"""Generators of samples and fields are those of numpy's Philox with their key."""

import copy
import logging
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.order.random import philox_generators
from loader.order.random.generators import field_generator, field_words, sample_generator, sample_words
from loader.order.random.keyed_permutation import key
from loader.order.random.philox_generators import philox_generator

WORDS = st.integers(0, 2**64 - 1)


def numpys(first, second):
    return np.random.Generator(np.random.Philox(key=np.array([first, second], np.uint64)))


def draws(rng):
    """Draws of every width, which leave half a word and a part of the buffer behind."""
    half = rng.integers(0, 9, dtype=np.uint32)
    return rng.random(3).tolist(), int(rng.integers(0, 2**40)), rng.permutation(5).tolist(), int(half)


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4))
def test_generator_draws_as_philox_with_its_key(keys):
    """Also the one that is used again after it has drawn for another sample."""
    for words in keys:
        expected = numpys(*words)
        assert str(philox_generator(*words).bit_generator.state) == str(expected.bit_generator.state)
        assert philox_generator(*words).bit_generator.seed_seq.generate_state(2).tolist() == list(words)
        assert draws(philox_generator(*words)) == draws(expected)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 2**64 - 1)])
def test_generator_is_copied_with_its_state(first, second):
    ours, expected = philox_generator(first, second), numpys(first, second)
    assert (type(ours), type(ours.bit_generator)) == (np.random.Generator, np.random.Philox)
    assert ours.random() == expected.random()
    copies = [copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), ours]  # noqa: S301 - our own
    assert [draws(one) for one in copies] == [draws(expected)] * 3


KEPT = {
    "generator": lambda rng: rng,
    "method": lambda rng: rng.random,
    "bit generator": lambda rng: rng.bit_generator,
    "generator over its bits": lambda rng: np.random.Generator(rng.bit_generator),
    "shallow copy": copy.copy,
    "seed sequence": lambda rng: rng.bit_generator.seed_seq,
}


def draw_values(kept):
    if isinstance(kept, np.random.Generator):
        return kept.random(9).tolist()
    if isinstance(kept, np.random.Philox):
        return kept.random_raw(9).tolist()
    return kept.generate_state(2).tolist() if hasattr(kept, "generate_state") else kept(9).tolist()


@pytest.mark.parametrize("keep", KEPT.values(), ids=KEPT)
def test_generator_that_is_kept_goes_on_as_it_would(keep):
    """What is left of it after the call, while others draw, draws as numpy's does."""
    ours = [keep(philox_generator(7, number)) for number in range(5)]
    philox_generator(8, 8).random(3)
    assert [draw_values(one) for one in ours] == [
        draw_values(keep(numpys_keyed(7, number))) for number in range(5)
    ]


def numpys_keyed(first, second):
    return np.random.Generator(np.random.Philox(philox_generators.PhiloxKey(first, second)))


def test_generator_that_nobody_keeps_is_used_again():
    made = {id(philox_generator(7, number).bit_generator) for number in range(50)}
    assert len(made) <= 2  # the first may find one that a test kept


def reseed(rng):
    rng.__init__(np.random.MT19937(3))


def reseed_bits(rng):
    rng.bit_generator.__init__(5)


def set_state(rng):
    rng.bit_generator.state = np.random.Philox(9).state


@pytest.mark.parametrize("change", [reseed, reseed_bits, set_state])
def test_generator_that_was_changed_does_not_change_the_next(change):
    for number in range(4):
        change(philox_generator(7, number))
        assert draws(philox_generator(8, number)) == draws(numpys(8, number))


def test_generator_that_is_kept_without_its_key_goes_on_as_it_would():
    """Another's pickled state brings another seed sequence, so that the key has one holder less."""
    rng, expected = philox_generator(7, 7), np.random.Generator(np.random.Philox(3))
    rng.bit_generator.__setstate__(expected.bit_generator.__reduce__()[2])
    for number in range(3):
        philox_generator(8, number).random()
        assert draws(rng) == draws(expected)


@pytest.mark.parametrize("line", range(11))
def test_generator_is_whole_if_another_is_made_between_two_lines(line):
    """As a handler of a signal may do, in the same thread."""
    lines, kept = [], []

    def interrupt(frame, event, argument):
        if frame.f_globals["__name__"] != philox_generators.__name__:
            return None
        if event == "line":
            if len(lines) == line:
                kept.append(philox_generator(9, 9))
            lines.append(frame.f_lineno)
        return interrupt

    philox_generator(7, 0)
    sys.settrace(interrupt)
    try:
        ours = philox_generator(7, 1)
    finally:
        sys.settrace(None)
    assert len(kept) == 1
    assert draws(ours) == draws(numpys(7, 1))
    assert draws(kept[0]) == draws(numpys(9, 9))


def test_generators_of_threads_are_apart():
    def check_draws(number):
        for turn in range(200):
            rng, expected = philox_generator(number, turn), numpys(number, turn)
            for _ in range(3):
                assert rng.random() == expected.random()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check_draws, range(4)))


def test_another_memory_layout_of_numpy_gives_the_same_draws(monkeypatch, caplog):
    """Said once: then every sample gets a new generator."""
    monkeypatch.setattr(philox_generators, "_KEY_AT", philox_generators._KEY_AT + 8)
    monkeypatch.setattr(philox_generators, "_thread_generators", philox_generators._ThreadGenerators())
    philox_generators._has_known_layout.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            for number in range(3):
                assert draws(philox_generator(7, number)) == draws(numpys(7, number))
    finally:
        monkeypatch.undo()
        philox_generators._has_known_layout.cache_clear()
    (said,) = caplog.messages
    assert f"numpy {np.__version__} has an unknown memory layout of Philox" in said
    assert philox_generators._has_known_layout()


@given(
    WORDS, st.text(max_size=90), st.integers(0, 2**40), st.lists(st.integers(0, 2**53), max_size=4), st.text()
)
def test_words_are_the_keys_of_the_order(seed, source, epoch, ordinals, field):
    at = seed, source, epoch, np.array(ordinals, np.int64)
    assert sample_words(*at) == [
        tuple(key(seed, source, "augment", epoch, ordinal, word) for word in (0, 1)) for ordinal in ordinals
    ]
    assert field_words(*at, field) == [
        tuple(key(seed, source, "decode", epoch, ordinal, field, word) for word in (0, 1))
        for ordinal in ordinals
    ]
    for ordinal in ordinals:
        one = seed, source, epoch, ordinal
        assert draws(sample_generator(*one)) == draws(numpys(*sample_words(*at)[ordinals.index(ordinal)]))
        assert draws(field_generator(*one, field)) == draws(
            numpys(*field_words(*at, field)[ordinals.index(ordinal)])
        )


def test_generator_refuses_children_that_do_not_follow_from_its_key():
    with pytest.raises(TypeError, match="does not implement spawning"):
        philox_generator(1, 2).spawn(1)
