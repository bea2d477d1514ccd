"""Worlds by the thousand, on as many processes as there are cores: jobs of `make prove` and of `make campaign`."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from .faults import KINDS

EACH = 50
"""Worlds of a job."""
ABOUT_S = 0.5
"""Of a world, on one core."""
PROVED = 400
"""Worlds of `make prove`."""
Job = tuple[float, Callable[[], "Counter[str]"]]


def run(seeds: range, kinds: Collection[str] = KINDS) -> "Counter[str]":
    """A job. Raises: AssertionError with the story of each world in which something was wrong."""
    import pyarrow as pa

    from .campaign import run_world, smallest

    pa.set_cpu_count(1)
    done: Counter[str] = Counter()
    stories = []
    for seed in seeds:
        came = run_world(seed, kinds)
        done += came.counted
        if came.violation:
            stories.append(story(smallest(came, kinds), came.violation))
    assert not stories, "\n\n".join(stories)
    return done


def story(came: Any, violation: str) -> str:
    """What went wrong, with the fewest faults that it takes, and how to see it again."""
    return (
        f"world {came.seed}: {violation}\nwith as few faults as it takes: {came.violation}\n{came.story()}\n"
        f"  again: python tests/campaign --seed {came.seed}"
    )


def jobs(worlds: int = PROVED, first: int = 0, kinds: Collection[str] = KINDS) -> Iterator[tuple[str, Job]]:
    """name -> (seconds, call) of so many worlds."""
    for start in range(first, first + worlds, EACH):
        seeds = range(start, min(start + EACH, first + worlds))
        name = f"worlds {seeds[0]} to {seeds[-1]} of the campaign"
        yield name, (ABOUT_S * len(seeds), partial(run, seeds, kinds))
