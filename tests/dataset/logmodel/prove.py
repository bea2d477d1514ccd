"""Every interleaving of the root's log in the model: jobs of `make prove`."""

from collections import Counter
from functools import partial

from .explore import explore
from .scenarios import scenarios
from .world import Rules

EXTRA = 1
"""Faults and crashes of each scenario on top of what the test suite explores."""
ABOUT_S = {
    "two publishers, takedown, collector": 45,
    "three publishers": 20,
    "added group, takedown, retirement": 8,
}
"""A scenario's seconds; of others 2."""


def run_scenario(number):
    """A job: one scenario. Raises: Violation."""
    return Counter(worlds=explore(scenarios(EXTRA)[number], Rules()).worlds)


def jobs():
    """name -> (seconds, call) of what `make prove` does."""
    for number, scenario in enumerate(scenarios(EXTRA)):
        yield f"model of {scenario.name}", (ABOUT_S.get(scenario.name, 2), partial(run_scenario, number))
