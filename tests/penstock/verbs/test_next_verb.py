"""An error ends with the verb that helps next, where there is one."""

import shlex
from argparse import Namespace
from pathlib import Path

import pytest

import loader
from loader import errors
from penstock.cli import parser
from penstock.verbs.verb import next_verb

HELPED = [
    (("ls", "nope"), "penstock ls"),
    (("show", "nope"), "penstock ls"),
    (("show", "nope@3"), "penstock ls"),
    (("verify", "v-0123456789"), "penstock ls"),
    (("gc", "retire", "nope", "--keep-last", "1"), "penstock ls"),
    (("gc", "sweep", "--dataset", "nope"), "penstock ls"),
    (
        ("takedown", "request", "--dataset", "nope", "--sample", "k", "--reason", "t", "--by", "x"),
        "penstock ls",
    ),
    (("show", "d@9"), "penstock ls d"),
    (("diff", "d@1", "d@9"), "penstock ls d"),
    (("order", "d@nope", "--step", "0", "--batch", "1"), "penstock ls d"),
    (("show", "d@2"), "penstock ls d"),
    (("checkpoints", "verify", "nope"), "penstock checkpoints ls"),
]


@pytest.mark.parametrize(
    ("verb", "command"), HELPED, ids=lambda v: " ".join(v) if isinstance(v, tuple) else ""
)
def test_verb_that_helps(cli, sample_root, verb, command):
    root, _ = sample_root
    run = cli(*verb, root=root)
    assert run.err.splitlines()[-1] == f"  next: {command} --root {root}"
    words = shlex.split(run.err.splitlines()[-1].removeprefix("  next: penstock "))
    assert cli(*words).code == 0, "the command can be pasted"


def test_root_from_the_environment_is_not_repeated(penstock, sample_root):
    root, _ = sample_root
    run = penstock("show", "d@9", env={"PENSTOCK_ROOT": root})
    assert run.err.splitlines()[-1] == "  next: penstock ls d"


def test_root_with_blanks_is_quoted(cli, tmp_path):
    root = tmp_path / "my root"
    loader.Root(root).create()
    assert cli("ls", "d", root=root).err.endswith(f"  next: penstock ls --root '{root}'\n")


NOT_HELPED = [
    ("show", "a b"),
    ("order", "d@1", "--step", "-1", "--batch", "4"),
    ("explain", "p-nope", "--step", "0"),
    ("takedown", "run", "99"),
]


@pytest.mark.parametrize("verb", NOT_HELPED, ids=" ".join)
def test_no_verb_where_none_helps(cli, sample_root, verb):
    root, _ = sample_root
    run = cli(*verb, root=root)
    assert (run.code, "next:" in run.err) == (2, False)


def test_json_is_the_error_alone(cli, sample_root):
    root, _ = sample_root
    run = cli("show", "d@9", "--json", root=root)
    assert set(run.json) == {"error", "message"}
    assert "next:" not in run.out
    assert "next:" in run.err


def test_damaged_log_names_repair(cli, own):
    path = Path(own) / "log" / "000000000002.json"
    path.write_bytes(path.read_bytes().replace(b'"number":1', b'"number":2'))
    run = cli("ls", root=own)
    assert (run.code, run.err.startswith("penstock: CorruptLog: ")) == (1, True)
    assert run.err.splitlines()[-1] == (
        f"  next: penstock repair --by NAME --root {own}  # lists what it would write; --apply writes it"
    )
    assert cli("repair", "--by", "ann", root=own).err.count("next: penstock repair") == 0


def test_missing_object_names_verify_which_finds_it(cli, own):
    manifest = loader.Root(own).record("d@1").manifest
    (Path(own) / manifest).unlink()
    run = cli("show", "d@1", root=own)
    assert run.err.splitlines()[-1] == f"  next: penstock verify --root {own}  # --full reads every byte"
    found = cli("verify", root=own)
    assert (found.code, manifest in found.out) == (1, True)


VERIFY = "penstock verify  # --full reads every byte"
DOCTOR = "penstock doctor  # writes a little and removes it"
SHOW, PLAN = ("show", "d@1"), ("explain", "p-0", "--step", "0")
BY_CLASS = [
    (errors.Corrupt, SHOW, VERIFY),
    (errors.Corrupt, PLAN, VERIFY),
    (errors.Corrupt, ("verify",), None),
    (errors.Corrupt, ("checkpoints", "verify", "r"), None),
    (errors.Corrupt, ("migrate", "run", "/target"), None),
    (errors.DecodeFailed, SHOW, None),
    (errors.TooManyCorrupt, SHOW, None),
    (errors.CorruptLog, ("migrate", "run", "/target"), None),
    (errors.Transient, SHOW, DOCTOR),
    (errors.Throttled, ("gc", "plan"), DOCTOR),
    (errors.Forbidden, ("ls",), DOCTOR),
    (errors.Forbidden, ("doctor",), None),
    (errors.Transient, ("doctor", "s3://b/x"), None),
    (errors.Transient, ("migrate", "status", "s3://b/x"), None),
    (errors.Transient, ("takedown", "prove", "1", "--mirror", "s3://b/x"), None),
    (errors.Transient, ("annotate", "d", "n", "--from", "s3://b/x.csv", "--author", "a"), None),
    (errors.InvalidStore, SHOW, None),
    (errors.MissingDependency, SHOW, None),
    (errors.VersionNotFound, SHOW, None),
]


@pytest.mark.parametrize(
    ("kind", "words", "command"), BY_CLASS, ids=lambda v: v.__name__ if isinstance(v, type) else None
)
def test_class_decides(kind, words, command):
    assert next_verb(kind("what is wrong"), parser().parse_args(words)) == command


def test_what_the_message_says_is_not_said_again():
    error = errors.Corrupt("its tables hold 3 samples; run penstock verify d@1")
    assert next_verb(error, parser().parse_args(SHOW)) is None


def test_every_verb_has_its_words():
    assert parser().parse_args(("checkpoints", "ls")).verb_path == "checkpoints ls"
    assert isinstance(parser().parse_args(("ls",)), Namespace)
    assert parser().parse_args(("ls",)).verb_path == "ls"
