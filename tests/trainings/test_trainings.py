"""A training on Slurm goes through each kind of fault once, as `make prove-trainings` does for an hour.

CI's takes the first nine kinds.
"""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from tests.trainings.proof import FULL, KINDS, Size, proof

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]


def test_training_goes_through_each_fault_with_every_step_as_undisturbed(
    tmp_path: Path, at_scale: Callable[[tuple[int, Size], tuple[int, Size]], tuple[int, Size]]
) -> None:
    faults, size = at_scale((5, ("2-4", 1, 0.2)), (KINDS, FULL))
    with proof(tmp_path, seed=1, size=size) as run:
        for fault in islice(run.faults_in_order(), faults):
            run.disturb(fault)
        run.end()
    assert run.problems == []
