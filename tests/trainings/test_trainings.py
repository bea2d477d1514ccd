"""A training on Slurm goes through each kind of fault once, as `make prove-trainings` does for an hour."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from tests.trainings.proof import FULL, KINDS, Size, proof

pytestmark = pytest.mark.slurm


def test_training_goes_through_each_fault_with_every_step_as_undisturbed(
    tmp_path: Path, at_scale: Callable[[Size, Size], Size]
) -> None:
    with proof(tmp_path, seed=1, size=at_scale(("2-4", 1, 0.2), FULL)) as run:
        for fault in islice(run.faults_in_order(), KINDS):
            run.disturb(fault)
        run.end()
    assert run.problems == []
