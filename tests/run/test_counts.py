"""What a batch costs in counts, which no busy machine changes: calls, page faults, reads and system calls.

A bound is just above what is measured. It may fall; where a change raises it, the change costs every training that.
"""

from dataclasses import asdict

import pytest

BOUNDS = {
    ("photos", "caller"): {"calls": 860, "c_calls": 830, "faults": 40, "reads": 6},
    ("photos", "threads"): {"calls": 960, "own_calls": 140, "faults": 60, "reads": 8},
    ("photos", "processes"): {"calls": 290, "faults": 5, "worker_faults": 160, "reads": 2},
    ("own decoder", "caller"): {"calls": 660, "c_calls": 960, "faults": 40, "reads": 6},
    ("own decoder", "threads"): {"calls": 780, "own_calls": 140, "faults": 60, "reads": 8},
    ("own decoder", "processes"): {"calls": 290, "faults": 5, "worker_faults": 900, "reads": 2},
    ("tokens", "caller"): {"calls": 50, "c_calls": 36, "faults": 5, "reads": 1},
    ("tokens", "threads"): {"calls": 65, "own_calls": 30, "faults": 10, "reads": 1},
    ("tokens", "processes"): {"calls": 45, "faults": 5, "reads": 1},
    ("latents", "caller"): {"calls": 97, "c_calls": 87, "faults": 20, "reads": 2},
    ("latents", "threads"): {"calls": 130, "own_calls": 46, "faults": 150, "reads": 2},
    ("latents", "processes"): {"calls": 80, "faults": 5, "worker_faults": 400, "reads": 1},
    ("raw", "caller"): {"calls": 45, "c_calls": 41, "faults": 5, "reads": 1},
    ("raw", "threads"): {"calls": 70, "own_calls": 30, "faults": 10, "reads": 1},
    ("raw", "processes"): {"calls": 50, "faults": 5, "reads": 1},
}
"""(workload, executor) -> most of each count per batch. Own memory of a batch has 216 pages of photos, 1,176 of an own
decoder's, 32 of tokens, 512 of latents, and 25 of raw photos."""

IN_NIGHTLY = {
    *(("own decoder", executor) for executor in ("caller", "threads", "processes")),
    *(("latents", "caller"), ("latents", "threads"), ("tokens", "processes"), ("raw", "processes")),
}
"""Bounds that only nightly checks: other workloads run the same code."""

SYSTEM_CALLS = {
    ("photos", "caller"): 20,
    ("tokens", "caller"): 8,
    ("tokens", "threads"): 10,
    ("latents", "caller"): 50,
    ("latents", "processes"): 60,
    ("raw", "threads"): 10,
}
"""System calls per batch, of all processes."""


@pytest.fixture(scope="session")
def counts(shared):
    return shared("run/counts")


@pytest.fixture(scope="session")
def root(counts, tmp_path_factory):
    return counts.write(tmp_path_factory.mktemp("counts") / "root")


@pytest.mark.parametrize(
    ("workload", "executor"),
    [pytest.param(*of, marks=pytest.mark.nightly if of in IN_NIGHTLY else ()) for of in BOUNDS],
)
def test_counts_of_a_batch_stay_below_their_bounds(workload, executor, counts, root, at_scale):
    found = asdict(counts.count(root, workload, executor, times=at_scale(1, 8)))
    above = {name: found[name] for name, most in BOUNDS[workload, executor].items() if found[name] > most}
    assert not above, found


@pytest.mark.server
@pytest.mark.parametrize(("workload", "executor"), SYSTEM_CALLS)
def test_system_calls_of_a_batch_stay_below_their_bound(workload, executor, counts, root):
    found = counts.count_system_calls(root, workload, executor)
    assert sum(found.values()) < SYSTEM_CALLS[workload, executor], found
