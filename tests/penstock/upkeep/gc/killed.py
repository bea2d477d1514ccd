"""What a process of tests/dataset/forks.py does: sweeps a root, two objects at a time, and kills itself at a verb of
the store."""

import loader
from penstock.upkeep.gc import Moment, Options, collect, plan
from tests.mortal_store import Death


def run(url, options, at, when="before"):
    plan.ROWS = 2
    root = loader.Root(url, options=options)
    root._use(Death(at, when).of(root.store))
    later_us = 80 * 3_600_000_000  # than a look of properties.py
    moment = Moment(at_us=later_us, run="one", run_us=later_us)
    return collect(root, Options(name="c"), apply=True, at=moment).swept.objects
