"""What a process of tests/dataset/forks.py does: sweeps a root, two objects at a time, and kills itself at a verb of
the store."""

from forks import Mortal

import loader
from penstock.collect import Options, collect, plan


def run(url, options, at, when="before"):
    plan.ROWS = 2
    root = loader.Root(url, options=options)
    root._use(Mortal(root.store, at, when))
    return collect(root, Options(name="c"), apply=True, now_us=80 * 3_600_000_000).swept.objects
