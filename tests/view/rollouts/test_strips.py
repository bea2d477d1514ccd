"""Lines of values over a rollout's tokens."""

import numpy as np

from penstock.view.rollouts.strips import value_line


def test_infinite_value_is_a_gap_and_does_not_scale_the_line():
    values = np.array([-1.0, -np.inf, np.nan, -2.0], np.float32)
    line = value_line(values, np.ones(4, np.bool_))
    assert (line.low, line.high) == (-2.0, 0.0)
    finite = value_line(np.array([-1.0, 0.0, 0.0, -2.0]), np.array([True, False, False, True]))
    assert line == finite


def test_line_without_a_finite_value_is_empty():
    line = value_line(np.array([np.inf, -np.inf]), np.ones(2, np.bool_))
    assert (line.path, line.low, line.high) == ("", 0.0, 0.0)
