"""The TOML file of a run: every mistake names file, key and what is accepted."""

from pathlib import Path

import pytest

from loader.errors import InvalidSpec
from penstock.train.run_spec import RunSpec, read_spec, spec_of

GOOD = """
run = "big-7"
command = ["python", "train.py"]
ranks_per_node = 8
record = "s3://lab/penstock"
[env]
NCCL_DEBUG = "WARN"
"""


def read(tmp_path: Path, text: str) -> RunSpec:
    (tmp_path / "run.toml").write_text(text)
    return read_spec(tmp_path / "run.toml")


def test_file_is_read_and_comes_back_from_its_record(tmp_path: Path) -> None:
    spec = read(tmp_path, GOOD)
    assert (spec.run, spec.command, spec.ranks_per_node) == ("big-7", ("python", "train.py"), 8)
    assert spec.env == {"NCCL_DEBUG": "WARN"}
    assert (spec.nodes, spec.node_range, spec.trackers) == ("1", (1, 1), ())
    assert spec_of(spec.to_json(), "the record") == spec


@pytest.mark.parametrize(("nodes", "text", "counts"), [("8", "8", (8, 8)), ('"6-8"', "6-8", (6, 8))])
def test_nodes_are_a_number_or_a_range(
    tmp_path: Path, nodes: str, text: str, counts: tuple[int, int]
) -> None:
    more = f'nodes = {nodes}\ntrackers = ["mlflow"]\npriority = "low"\ngpus_per_node = 8\nwalltime_s = 60\n'
    spec = read(tmp_path, more + GOOD)
    assert (spec.nodes, spec.node_range, spec.trackers) == (text, counts, ("mlflow",))
    assert spec_of(spec.to_json(), "the record") == spec


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ranks_per_node = 8", "ranks = 8", "ranks is no key; accepted: run, command"),
        (
            "ranks_per_node = 8",
            "ranks_per_node = 0",
            "ranks_per_node = 0; accepted: a whole number, 1 or more",
        ),
        ("ranks_per_node = 8", 'nodes = "8-6"', 'a range such as "6-8"'),
        ("ranks_per_node = 8", "nodes = true", "nodes = True; accepted: a whole number"),
        ("ranks_per_node = 8", "nodes = 0", "nodes = 0; accepted: a whole number"),
        ("ranks_per_node = 8", "walltime_s = -1", "walltime_s = -1; accepted: a whole number, 0 or more"),
        ("ranks_per_node = 8", 'trackers = "mlflow"', "trackers = 'mlflow'; accepted: a list of texts"),
        ('command = ["python", "train.py"]', 'command = "python train.py"', "accepted: a list of texts"),
        ('record = "s3://lab/penstock"', "", "record is missing"),
        ('run = "big-7"', 'run = "a/b"', "run = 'a/b'"),
        ('NCCL_DEBUG = "WARN"', '"A-B" = "x"', "env = .*accepted: a table of NAME = text"),
        ("[env]", "[env", "run.toml: "),
    ],
)
def test_mistake_names_file_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(
        InvalidSpec, match=f"run.toml: .*{message}" if not message.startswith("run.toml") else message
    ):
        read(tmp_path, GOOD.replace(old, new))
