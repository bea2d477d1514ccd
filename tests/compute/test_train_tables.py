"""A cluster's file as training runs use it: names of priorities, options of sbatch, checks of nodes."""

import pytest

from loader.errors import InvalidCluster
from penstock.compute.cluster import NodeCheck, read_cluster
from tests.refusals import refusal

FILE = """
engine = "slurm"
[priorities]
low = "scavenger"
[train]
options = ["--requeue=expedite"]
[train.checks.gpu]
command = ["dcgmi", "diag", "-r", "1"]
limit_s = 90
[train.checks.store]
command = ["penstock", "node", "check"]
"""


def test_tables_of_trainings_are_read(tmp_path):
    (tmp_path / "cluster.toml").write_text(FILE)
    cluster = read_cluster(tmp_path / "cluster.toml")
    assert cluster.priorities == {"low": "scavenger"}
    assert cluster.train.options == ("--requeue=expedite",)
    assert cluster.train.checks["gpu"] == NodeCheck(command=("dcgmi", "diag", "-r", "1"), limit_s=90)
    assert cluster.train.checks["store"].limit_s == 60


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('engine = "slurm"', 'engine = "local"', {"what": "priorities", "given": "local"}),
        ('engine = "slurm"', 'engine = "kubernetes"', {"what": "options", "given": "kubernetes"}),
        ("options =", "option =", {"what": "train.option", "accepted": ["options", "checks", "on_node"]}),
        ("limit_s = 90", 'limit_s = "90"', {"what": "train.checks[...].limit_s"}),
        ("[priorities]\nlow = ", "[priorities]\nlow = 3 #", {"what": "priorities[...]"}),
    ],
)
def test_mistake_in_a_table_is_named(tmp_path, old, new, fault):
    (tmp_path / "cluster.toml").write_text(FILE.replace(old, new))
    with refusal(InvalidCluster, where=tmp_path / "cluster.toml", **fault):
        read_cluster(tmp_path / "cluster.toml")
