"""A cluster's file as training runs use it: names of priorities, options of sbatch, checks of nodes."""

import pytest

from loader.errors import InvalidCluster
from penstock.compute.cluster import NodeCheck, read_cluster

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
    ("old", "new", "message"),
    [
        ('engine = "slurm"', 'engine = "local"', "priorities is for kubernetes and slurm"),
        ('engine = "slurm"', 'engine = "kubernetes"', "options is for slurm"),
        ("options =", "option =", "train.option is no key; accepted: options, checks"),
        ("limit_s = 90", 'limit_s = "90"', "int"),
        ("[priorities]\nlow = ", "[priorities]\nlow = 3 #", "str"),
    ],
)
def test_mistake_in_a_table_is_named(tmp_path, old, new, message):
    (tmp_path / "cluster.toml").write_text(FILE.replace(old, new))
    with pytest.raises(InvalidCluster, match=message):
        read_cluster(tmp_path / "cluster.toml")
