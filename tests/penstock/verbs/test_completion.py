"""What the shell is offered behind `penstock ...`."""

import builtins
import os
import shutil
import sys
from pathlib import Path

import pytest

import loader
from penstock.cli import complete, local_names
from penstock.verbs import VERBS
from tests.servers.processes import python


@pytest.fixture
def completions(tmp_path):
    """completions(line, PENSTOCK_ROOT=...) -> words, as argcomplete's shell function asks for them."""

    def complete_line(line, **env):
        answer = tmp_path / "answer"
        answer.unlink(missing_ok=True)
        asked = {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_SHELL": "bash",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "COMP_TYPE": "9",
        }
        clean = {name: value for name, value in os.environ.items() if name != "PENSTOCK_ROOT"}
        script = Path(sys.executable).parent / "penstock"
        run = python("-W", "error", script, cwd=tmp_path, env={**clean, **asked, **env})
        assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
        return [word.rstrip() for word in answer.read_text().split("\n")] if answer.exists() else []

    return complete_line


def test_verbs_and_options(completions):
    assert set(completions("penstock ")) >= set(VERBS)
    assert completions("penstock che") == ["checkpoints"]
    assert {"ls", "verify"} <= set(completions("penstock checkpoints "))
    assert {"--step", "--batch", "--fields", "--root", "--json"} <= set(completions("penstock order d@1 --"))


def test_names_of_a_local_root(completions, sample_root):
    root, _ = sample_root
    assert set(completions("penstock show ", PENSTOCK_ROOT=root)) >= {"d", "other"}
    assert completions("penstock show ot", PENSTOCK_ROOT=f"file://{root}") == ["other"]
    assert completions(f"penstock diff --root {root} d ot") == ["other"]
    assert set(completions("penstock ls ", PENSTOCK_ROOT=root)) >= {"d", "other"}
    assert "d" not in completions("penstock explain ", PENSTOCK_ROOT=root), "it takes the hash of a plan"


def test_versions_behind_the_at_sign(completions, sample_root):
    root, _ = sample_root
    found = {word.rpartition("@")[2] for word in completions("penstock show d@", PENSTOCK_ROOT=root)}
    assert found == {"latest", "1", "3", "4", "paper", "prod"}, "d@2 is retired"


def damage_root(path, filled):
    shutil.copytree(filled, path)
    (path / "log" / "000000000001.json").write_text("{")
    return str(path)


@pytest.mark.parametrize("where", ["nowhere", "s3", "damaged", "none"])
def test_silence_where_anything_fails(completions, sample_root, tmp_path, where):
    roots = {
        "nowhere": tmp_path / "no",
        "s3": "s3://bucket/x",
        "damaged": damage_root(tmp_path / "r", sample_root[0]),
    }
    env = {} if where == "none" else {"PENSTOCK_ROOT": str(roots[where])}
    assert not {"d", "other"} & set(completions("penstock show ", **env))


def test_names_behind_a_hint(tmp_path):
    root = loader.Root(tmp_path / "root")
    for _ in range(3):
        with root.write("photos") as writer:
            writer.add(f"k{_}", {"cls": 1})
    for i in range(300):
        root.alias("photos@1", f"a{i % 2}") if i % 2 else root.alias("photos@2", "a1")
    assert list((tmp_path / "root" / "log").glob("state-*.json")), "the log is long enough"
    with root.write("later") as writer:
        writer.add("k", {"cls": 1})
    before = sorted(path.name for path in (tmp_path / "root" / "log").iterdir())
    assert local_names(root.url, "", versions=True) == ["later", "photos"]
    assert "photos@3" in local_names(root.url, "photos@", versions=True)
    assert sorted(path.name for path in (tmp_path / "root" / "log").iterdir()) == before


def test_names_cost_few_imports(sample_root):
    root, _ = sample_root
    code = (
        "import sys; from penstock import cli; "
        "assert cli.local_names(sys.argv[1], '', versions=False) == ['d', 'other']; "
        "print([m for m in ('numpy', 'pyarrow', 'fsspec', 'obstore') if m in sys.modules])"
    )
    run = python("-c", code, root, check=True)
    assert run.stdout == "[]\n"


def test_without_argcomplete_nothing_happens(cli, sample_root, monkeypatch):
    imported = builtins.__import__

    def refuse(name, *rest):
        if name == "argcomplete":
            raise ImportError(name)
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    root, _ = sample_root
    assert complete is not None
    assert cli("ls", root=root).code == 0
