"""How an attempt is cut into arrays of Slurm, and what sbatch and the nodes are told."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import InvalidCluster
from penstock.compute.engines.slurm import (
    MOST_STARTS,
    Array,
    Elements,
    SlurmCluster,
    element_script,
    sbatch_options,
)
from penstock.compute.engines.slurm_arrays import attempt_arrays
from tests.refusals import refusal


@given(st.integers(0, 5000), st.integers(1, 700), st.integers(1, 1000))
def test_arrays_hold_each_element_once_and_keep_to_the_slots(n_blocks, slots, array_max):
    arrays = attempt_arrays(n_blocks, slots, array_max)
    elements = [array.first + i for array in arrays for i in range(array.size)]
    assert elements == list(range(min(n_blocks, 4 * slots)))
    assert all(1 <= array.at_once <= array.size <= array_max for array in arrays)
    assert sum(array.at_once for array in arrays) <= max(slots, len(arrays))
    if n_blocks:
        assert sum(array.at_once for array in arrays) >= min(slots, len(elements))


def test_options_name_what_a_slot_gets():
    cluster = SlurmCluster(
        slots=2,
        cpus=4,
        memory_bytes=2**31 + 1,
        gpus=2,
        gpu_type="h100",
        limit_s=90,
        queue="long",
        account="lab",
    )
    options = sbatch_options(cluster, "pk-x-1", Array(first=10, size=5, at_once=2))
    for one in (
        "--array=0-4%2",
        "--mem=2049M",
        "--gres=gpu:h100:2",
        "--time=0:90",
        "--partition=long",
        "--account=lab",
    ):
        assert one in options
    assert not [one for one in options if one.startswith("--tmp")]


@pytest.mark.parametrize(
    "wrong", [{"slots": 0}, {"slots": 1, "cpus": 0}, {"slots": 1, "gpus": -1}, {"slots": "4"}]
)
def test_number_that_is_none_is_named(wrong):
    name = list(wrong)[-1]
    with refusal(InvalidCluster, what=name, given=wrong[name]):
        SlurmCluster(**wrong)


def test_why_elements_wait_is_told_in_words_of_slurm_and_in_plain_ones():
    reasons = {
        "Resources": 38,
        "ReqNodeNotAvail, UnavailableNodes:m[1-4]": 2,
        "AssocGrpCpuLimit": 1,
        "New": 1,
    }
    found = Elements(states={}, reasons=reasons, held=(), jobs=["7 in partition long", "8 in partition long"])
    assert found.reason.split("; ") == [
        "Resources (38): all nodes that fit are busy, down or drained",
        "ReqNodeNotAvail, UnavailableNodes:m[1-4] (2): nodes are down, drained or reserved",
        "AssocGrpCpuLimit (1): a limit of the account or of its quality of service",
        "New (1)",
    ]
    assert found.place == "Slurm job 7 in partition long and 1 more"


def test_element_gives_up_after_eight_runners(tmp_path):
    begun = tmp_path / "be'gun $HOME"
    script = element_script(
        ["sh", "-c", 'echo "$4" >> "$0"; exit 9', str(begun)], environment="", first=40, elements=50
    )
    quick = script.replace("sleep 1\n", "")
    assert quick != script
    ended = subprocess.run(
        ["sh", "-c", quick], env={"SLURM_ARRAY_TASK_ID": "2", "SLURMD_NODENAME": "m1"}, check=False
    )
    assert (ended.returncode, begun.read_text().split()) == (9, ["50"] * MOST_STARTS)
