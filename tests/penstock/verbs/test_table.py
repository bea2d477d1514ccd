"""Tables: rich ones on a terminal, the same plain text everywhere else."""

import builtins
import json
import os
import pty
import re
import subprocess
import sys

import pytest

import loader
from penstock.verbs.verb import Table, show
from tests.servers.processes import python

LINE = "─"
"""Below the header of a table by rich; plain text has none."""


def on_a_terminal(*arguments, root, columns=160, **env):
    """What a process shows on a terminal of its own."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "penstock", *arguments, "--root", str(root)],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**clean(), "TERM": "xterm-256color", "COLUMNS": str(columns), **env},
    )
    os.close(slave)
    shown = b""
    try:
        while data := os.read(master, 65536):
            shown += data
    except OSError:  # how a terminal ends on Linux
        pass
    finally:
        os.close(master)
    error = process.communicate()[1].decode()
    assert (process.returncode, error) == (0, "")
    return shown.decode().replace("\r\n", "\n")


def clean():
    left_out = ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TERM", "COLUMNS", "PENSTOCK_ROOT")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def letters(shown):
    """Without colours."""
    return re.sub("\x1b\\[[0-9;]*m", "", shown)


def test_terminal_shows_tables(sample_root):
    root, _ = sample_root
    shown = on_a_terminal("ls", "d", root=root)
    assert "\x1b[1m" in shown
    header, line, *rows = letters(shown).splitlines()
    assert re.split("  +", header.strip()) == [
        *("version", "id", "created (UTC)", "samples", "bytes", "names, holds")
    ]
    assert set(line) == {LINE}
    assert [row.split()[0] for row in rows] == ["d@1", "d@2", "d@3", "d@4"]
    assert rows[1].split()[-2:] == ["(retired:", "leak)"]
    show = letters(on_a_terminal("show", "d@4", root=root))
    assert show.count(LINE * 20) >= 2
    assert "13 samples (1 excluded) in 4 parts\n\ngroup " in show
    numbers = letters(on_a_terminal("order", "d@4", "--step", "0", "--batch", "12", root=root)).splitlines()
    slots = [row[: len("slot")] for row in numbers[2:]]
    assert slots == [f"{slot:>4}" for slot in range(12)], "numbers end below each other"


def test_terminal_that_wants_plain_text(penstock, sample_root):
    root, _ = sample_root
    verbs = (("ls",), ("show", "d@4"), ("order", "d@4", "--step", "3", "--batch", "6"))
    for verb, env in zip(verbs, ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}), strict=True):
        assert on_a_terminal(*verb, root=root, **env) == penstock(*verb, root=root).out


def test_json_on_a_terminal(sample_root):
    root, _ = sample_root
    shown = on_a_terminal("ls", "d", "--json", root=root)
    assert [row["name"] for row in json.loads(shown)] == ["d@1", "d@2", "d@3", "d@4"]


@pytest.mark.parametrize("env", [{"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}, {"TERM": "xterm"}], ids=str)
def test_no_terminal_is_plain_whatever_is_set(penstock, cli, sample_root, env):
    root, _ = sample_root
    assert penstock("ls", root=root, env=env).out == cli("ls", root=root).out


def test_plain_text_is_what_it_was(cli, own):
    """To the letter: scripts read it."""
    root = loader.Root(own)
    root.hold("d@4", by="alice", why="audit")
    of = {record.name: record.id for record in root.versions("d")}
    names = {"d@1": "paper", "d@2": "(retired: leak)", "d@3": "", "d@4": "prod (held by alice: audit)"}
    of_each = r"  \d{4}-\d\d-\d\d \d\d:\d\d +\d+ +\d+\.\d KiB"
    for line, (name, told) in zip(cli("ls", "d", root=own).out.splitlines(), names.items(), strict=True):
        start = re.escape(f"{name:<24} {of[name][:18]}")
        assert re.fullmatch(f"{start}{of_each}" + (re.escape(f"  {told}") if told else ""), line)
    assert cli("hold", "ls", root=own).out == f"{'d@4':<24} alice: audit\n"
    body = cli("order", "d@4", "--step", "3", "--batch", "6", "--json", root=own).json
    assert cli("order", "d@4", "--step", "3", "--batch", "6", root=own).out == "".join(
        f"{slot:>6}  {source}  {key}\n" for slot, source, key in body["ids"]
    )
    assert cli("lease", "ls", root=own).out == "no leases\n"
    version = root.open("d@1")
    (row,) = cli("lease", "ls", "--json", root=own).json
    said = cli("lease", "ls", root=own).out
    assert said.startswith(f"{version.name:<24} {row['holder']} on {row['host']}, last beat ")
    assert said.endswith(" ago, not seen by a collector yet\n")
    cli("takedown", "request", "--subject", "x", "--reason", "t-1", "--by", "desk", root=own)
    (row,) = cli("takedown", "ls", "--json", root=own).json
    assert cli("takedown", "ls", root=own).out == f"{row['takedown']:>8}  {row['scope']:<16} desk: t-1\n"


def test_plain_show_is_what_it_was(cli, own, tmp_path):
    (tmp_path / "labels.csv").write_text("key,label\nk1,cat\nk2,dog\n")
    cli("annotate", "d@1", "labels-v1", "--from", tmp_path / "labels.csv", "--author", "ann", root=own)
    shown = cli("show", "d@5", root=own).out
    manifest = loader.Root(own).open("d@5").manifest
    assert f"\n\n{'group':<16} {'samples':>10} {'parts':>7} {'bytes':>10}  fields\n" in shown
    assert f"\n\n{'column':<24} {'present':>10}  type\n{'key':<24} {'100 %':>10}  string\n" in shown
    assert f"\n\n{'annotation':<16} {'samples':>10}  {'when (UTC)':<19}  columns, by whom\n" in shown
    assert re.search(rf"\n{'labels-v1':<16} +\d  [\d-]+ [\d:]+  label, by ann\n", shown)
    for name, group in manifest["groups"].items():
        assert re.search(rf"\n{name:<16} {group['n_rows']:>10} {group['n_parts']:>7} ", shown)
    assert "select one kind" not in shown


TABLE = Table(form=("{:<4}", " {:>3}", "  {}"), header=("a", "b", "c"), rows=[("x", 1, "[bold]"), ("y", 22)])


def test_row_may_end_early():
    assert str(TABLE) == "a      b  c\nx      1  [bold]\ny     22"


class Terminal:
    """Standard output that says it is one."""

    def __init__(self, file):
        self.file = file

    def isatty(self):
        return True

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.fixture
def render_table(monkeypatch, capsys):
    """render_table(blocks, columns) -> what stands on such a terminal."""

    def render(blocks, columns=80):
        with monkeypatch.context() as patch:
            for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
                patch.delenv(name, raising=False)
            patch.setenv("TERM", "xterm")
            patch.setenv("COLUMNS", str(columns))
            patch.setattr(sys, "stdout", Terminal(sys.stdout))
            show(blocks)
        return letters(capsys.readouterr().out)

    return render


def test_cells_are_text_and_no_markup(render_table):
    told = render_table([Table(form=("{}",), header=("[red]h",), rows=[("[bold]:cat:\x1b]52;c;cm0=\x07",)])])
    assert LINE in told
    assert "[red]h" in told
    assert "[bold]:cat:\\x1b]52;c;cm0=\\x07" in told


def test_narrow_terminal_loses_nothing(render_table):
    id = "v-0123456789abcdef0123456789abcdef"
    told = render_table([Table(form=("{}", " {}"), header=("id", "why"), rows=[(id, "leak")])], columns=20)
    _, line, *rows = told.splitlines()
    assert set(line) == {LINE}
    assert max(map(len, rows)) <= 20
    assert "".join(row.split()[0] for row in rows) == id


def test_without_rich_it_is_plain(render_table, monkeypatch):
    imported = builtins.__import__

    def refuse(name, *rest):
        if name.partition(".")[0] == "rich":
            raise ImportError(name)
        return imported(name, *rest)

    assert LINE in render_table(["first", TABLE])
    monkeypatch.setattr(builtins, "__import__", refuse)
    assert render_table(["first", TABLE]) == f"first\n{TABLE}\n"


def test_rich_is_imported_for_a_table_on_a_terminal_alone(sample_root):
    root, _ = sample_root
    code = (
        "import sys; from penstock.cli import main; main(['ls', '--root', sys.argv[1]]); "
        "print('rich' in sys.modules)"
    )
    run = python("-c", code, root, check=True, env=clean())
    assert run.stdout.endswith("\nFalse\n")


def test_bench_is_a_table_too(sample_root):
    root, _ = sample_root
    told = letters(on_a_terminal("bench", "d@4", "--batch", "6", "--seconds", "0.05", root=root))
    header = next(line for line in told.splitlines() if "samples/s" in line)
    assert header.split() == ["ms/batch", "samples/s", "MB/s", "share"]
    assert LINE * 20 in told
