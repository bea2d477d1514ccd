"""A training on Slurm goes through each kind of fault once, as `make prove-trainings` does for an hour."""

from itertools import islice
from pathlib import Path

import pytest

from tests.trainings.proof import KINDS, proof

pytestmark = pytest.mark.slurm


def test_training_goes_through_each_fault_with_every_step_as_undisturbed(tmp_path: Path) -> None:
    with proof(tmp_path, seed=1) as run:
        for fault in islice(run.faults_in_order(), KINDS):
            run.disturb(fault)
        run.end()
    assert run.problems == []
