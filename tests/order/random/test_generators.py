"""Generators of samples and fields are those of numpy's Philox with their key."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.order.random.generators import _philox

WORDS = st.integers(0, 2**64 - 1)


@given(WORDS, WORDS)
def test_generator_draws_as_philox_with_its_key(first, second):
    ours = _philox([first, second])
    numpys = np.random.Generator(np.random.Philox(key=np.array([first, second], np.uint64)))
    same = str(ours.bit_generator.state)
    assert same == str(numpys.bit_generator.state)
    copies = [ours, copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]  # noqa: S301 - our own
    draws = [(one.random(3).tolist(), one.integers(0, 2**40), one.permutation(5).tolist()) for one in copies]
    assert (
        draws == [(numpys.random(3).tolist(), numpys.integers(0, 2**40), numpys.permutation(5).tolist())] * 3
    )


def test_generator_refuses_children_that_do_not_follow_from_its_key():
    with pytest.raises(TypeError, match="does not implement spawning"):
        _philox([1, 2]).spawn(1)
