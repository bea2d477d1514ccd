"""Random lives of a root, by the model of lives.py."""

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test


def test_what_is_needed_stays_and_nothing_else(properties, shared, at_scale):
    run_state_machine_as_test(
        shared("penstock/upkeep/gc/lives").machine(properties),
        settings=settings(
            max_examples=at_scale(3, 6), stateful_step_count=20, deadline=None, derandomize=True
        ),
    )
