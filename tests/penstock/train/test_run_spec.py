"""The TOML file of a run: every mistake names file, key and what is accepted."""

from pathlib import Path

import pytest

from loader.errors import InvalidSpec
from penstock.train.run_spec import RunSpec, parse_spec, read_spec
from tests.refusals import refusal

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
    assert parse_spec(spec.to_json(), "the record") == spec


@pytest.mark.parametrize(("nodes", "text", "counts"), [("8", "8", (8, 8)), ('"6-8"', "6-8", (6, 8))])
def test_nodes_are_a_number_or_a_range(
    tmp_path: Path, nodes: str, text: str, counts: tuple[int, int]
) -> None:
    more = f'nodes = {nodes}\ntrackers = ["mlflow"]\npriority = "low"\ngpus_per_node = 8\nwalltime_s = 60\n'
    spec = read(tmp_path, more + GOOD)
    assert (spec.nodes, spec.node_range, spec.trackers) == (text, counts, ("mlflow",))
    assert parse_spec(spec.to_json(), "the record") == spec


@pytest.mark.parametrize(
    ("old", "new", "key", "value"),
    [
        ("ranks_per_node = 8", "ranks = 8", "ranks", None),
        ("ranks_per_node = 8", "ranks_per_node = 0", "ranks_per_node", "0"),
        ("ranks_per_node = 8", 'nodes = "8-6"', "nodes", "'8-6'"),
        ("ranks_per_node = 8", "nodes = true", "nodes", "True"),
        ("ranks_per_node = 8", "nodes = 0", "nodes", "0"),
        ("ranks_per_node = 8", "walltime_s = -1", "walltime_s", "-1"),
        ("ranks_per_node = 8", 'trackers = "mlflow"', "trackers", "'mlflow'"),
        ('command = ["python", "train.py"]', 'command = "python train.py"', "command", "'python train.py'"),
        ('record = "s3://lab/penstock"', "", "record", "missing"),
        ('run = "big-7"', 'run = "a/b"', "run", "a/b"),
        ('NCCL_DEBUG = "WARN"', '"A-B" = "x"', "env", "{'A-B': 'x'}"),
        ("[env]", "[env", "TOML", "TOMLDecodeError"),
    ],
)
def test_mistake_names_file_and_key(tmp_path: Path, old: str, new: str, key: str, value: str | None) -> None:
    with refusal(InvalidSpec, what=key, where=f"{tmp_path}/run.toml", given=value):
        read(tmp_path, GOOD.replace(old, new))


PASSWORD = "hunter2secret"
URLS = (
    f"s3://ann:{PASSWORD}@lab/penstock",
    f"https://{PASSWORD}@hub.example/repository",
    f"https://lab.example/x?X-Amz-Signature={PASSWORD}",
)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("record", "record = '{url}'"),
        ("checkpoints", "record = 'data'\ncheckpoints = '{url}'"),
        ("command[2]", "record = 'data'\ncommand = ['python', 'train.py', '--data={url}']"),
        ("trackers[0]", "record = 'data'\ntrackers = ['{url}']"),
        ("srun[0]", "record = 'data'\nsrun = ['--container-image={url}']"),
        ("env.MLFLOW_TRACKING_URI", "record = 'data'\n[env]\nMLFLOW_TRACKING_URI = '{url}'"),
    ],
)
def test_url_with_a_secret_is_refused_by_field(tmp_path: Path, name: str, line: str, url: str) -> None:
    text = 'run = "big-7"\n' + line.format(url=url)
    if not name.startswith("command"):
        text = 'command = ["python", "train.py"]\n' + text
    with pytest.raises(InvalidSpec) as caught:
        read(tmp_path, text)
    assert f"run.toml: {name} has a URL with a password" in str(caught.value)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "word",
    ["--pad-token=eos", "abfss://data@lab.dfs.core.windows.net/x", "git@host:x", "s3://lab/a@b", "key=3"],
)
def test_word_without_a_secret_is_accepted(tmp_path: Path, word: str) -> None:
    assert read(tmp_path, GOOD.replace('"train.py"', f'"{word}"')).command == ("python", word)


def test_wrong_value_is_shown_without_its_secret(tmp_path: Path) -> None:
    with refusal(
        InvalidSpec, what="command", where=f"{tmp_path}/run.toml", given="'python s3://***@lab/penstock'"
    ) as caught:
        read(tmp_path, GOOD.replace('["python", "train.py"]', f'"python {URLS[0]}"'))
    assert PASSWORD not in str(caught.value)


def test_settings_replace_keys_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(GOOD)
    settings = ["walltime_s=7200", "env.A=b=c", "priority=low", 'command=["python", "b.py"]', "nodes=6-8"]
    spec = read_spec(tmp_path / "run.toml", settings)
    assert (spec.walltime_s, spec.priority, spec.command, spec.nodes) == (
        7200,
        "low",
        ("python", "b.py"),
        "6-8",
    )
    assert spec.env == {"NCCL_DEBUG": "WARN", "A": "b=c"}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("walltime=1", "walltime is not a key"),
        ("walltime_s=long", "walltime_s = 'long'; accepted: a whole number"),
        ("walltime_s", "accepted: KEY=VALUE"),
        (f"record={URLS[0]}", "record has a URL with a password"),
    ],
)
def test_wrong_setting_names_its_key(tmp_path: Path, setting: str, message: str) -> None:
    (tmp_path / "run.toml").write_text(GOOD)
    with pytest.raises(InvalidSpec) as caught:
        read_spec(tmp_path / "run.toml", [setting])
    assert message in str(caught.value)


def test_options_of_srun_are_whole_and_leave_penstocks_alone(tmp_path: Path) -> None:
    options = ["--cpu-bind=cores", "--container-image=/images/a b.sqsh", "--unbuffered"]
    assert read(tmp_path, f"srun = {options}\n" + GOOD).srun == tuple(options)
    for wrong in ("-N 2", "cpu-bind", "--cpu-bind cores", "--x=a\\nb"):
        with refusal(InvalidSpec, what="srun", accepted="whole options"):
            read(tmp_path, f'srun = ["{wrong}"]\n' + GOOD)
    for wrong, option in (("--nodes=2", "--nodes"), ("--ntask=2", "--ntask"), ("--label", "--label")):
        with refusal(InvalidSpec, what="srun", given=option):
            read(tmp_path, f'srun = ["{wrong}"]\n' + GOOD)


def test_record_has_later_keys_only_if_the_file_has(tmp_path: Path) -> None:
    """An earlier release refuses keys that it does not know."""
    assert "srun" not in read(tmp_path, GOOD).to_json()
