"""Interleavings of every kind of actor on the real code, at length: jobs of `make prove`.

An actor is interrupted by others at every one of its requests; and there are interleavings by chance, chosen anew each
time: one that fails is shrunk, and told with its seed.
"""

import logging
from collections import Counter
from functools import partial

import actors
from hypothesis import HealthCheck, given, settings

INTERRUPTED = {
    ("read", "retire", "collect"): 5,
    ("tag", "retire", "collect"): 3,
    ("hold", "retire", "collect"): 3,
    ("write", "takedown", "collect"): 6,
    ("annotate", "bring", "takedown", "collect"): 10,
    ("bring", "takedown", "collect"): 6,
    ("group", "takedown", "collect", "shared"): 12,
    ("collect", "takedown", "shared"): 20,
    ("takedown", "write", "collect"): 100,
}
"""The actor that is interrupted, and who does it, one after the other: about so many seconds."""
LONG_S = 30
"""What takes longer is several jobs."""
EXAMPLES = 160
"""Interleavings by chance."""


def interrupt_job(kinds, start, step):
    """A job: the first of the actors is interrupted at every `step`-th request."""
    logging.disable(logging.WARNING)  # of clocks that were put back
    return Counter(interruptions=sum(1 for _ in actors.interrupt_everywhere(kinds, start=start, step=step)))


def by_chance(examples):
    """A job."""
    logging.disable(logging.WARNING)
    done = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(actors.runs())
    def all_hold(run):
        actors.draw_race(**run)
        done.update(interleavings=1)

    all_hold()
    return done


def jobs():
    """name -> (seconds, call) of what `make prove` does."""
    for kinds, about_s in INTERRUPTED.items():
        shares = -(-about_s // LONG_S)
        for start in range(1, shares + 1):
            who = f"{kinds[0]} interrupted by {', '.join(kinds[1:])}"
            name = f"{who}, at request {start} and each {shares} on"
            yield name, (about_s / shares, partial(interrupt_job, kinds, start, shares))
    for number in range(1, 5):
        yield f"actors by chance, {number} of 4", (EXAMPLES / 8, partial(by_chance, EXAMPLES // 4))
