"""`penstock VERB`: text and JSON, exit status 0 done, 1 the data or the store, 2 the caller."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import loader

EVERY_VERB = [
    ("ls",),
    ("ls", "d"),
    ("show", "d@4"),
    ("diff", "d@1", "d@4"),
    ("verify", "d@4"),
    ("verify", "d@4", "--full"),
    ("order", "d@4", "--step", "3", "--batch", "6"),
    ("lease", "ls"),
    ("plans", "ls"),
    ("hold", "ls"),
    ("card", "d@4"),
]


@pytest.mark.parametrize("verb", [("ls", "d"), ("card", "d@4")], ids=" ".join)
def test_verb_prints_the_same_as_a_process(penstock, cli, sample_root, verb):
    root, _ = sample_root
    done = penstock(*verb, root=root)
    assert (done.code, done.err) == (0, "")
    assert done.out == cli(*verb, root=root).out


def test_errors_as_a_process(penstock, sample_root, tmp_path):
    root, plan = sample_root
    for arguments, where, code in (
        (("explain", plan, "--step", "2"), root, 0),
        (("show", "d@9"), root, 2),
        (("ls",), tmp_path, 2),
        (("ls",), None, 2),
        (("nope",), None, 2),
    ):
        done = penstock(*arguments, root=where)
        assert done.code == code
        assert bool(done.err) == bool(code) != bool(done.out)
        assert "Traceback" not in done.err


def test_package_that_is_not_installed_is_named_with_its_extra(cli, sample_root, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    verb = ("exclude", "d", "k1", "--by", "ann", "--reason", "blurred")
    missing = cli(*verb, root=sample_root[0])
    assert missing.code == 2
    assert missing.err == (
        "penstock: MissingDependency: polars is not installed: pip install 'penstock-data[tables]'\n"
    )


@pytest.mark.parametrize("verb", EVERY_VERB, ids=" ".join)
def test_text_and_json(cli, sample_root, verb):
    root, _ = sample_root
    text = cli(*verb, root=root)
    assert (text.code, text.err) == (0, "")
    assert text.out.strip()
    body = cli(*verb, "--json", root=root)
    assert (body.code, body.err) == (0, "")
    assert body.json is not None


def test_ls(cli, sample_root):
    root, _ = sample_root
    lines = cli("ls", root=root).out.splitlines()
    assert [line.split()[0] for line in lines] == ["d@1", "d@2", "d@3", "d@4", "other@1"]
    assert lines[0].endswith("paper")
    assert lines[1].endswith("(retired: leak)")
    assert lines[3].endswith("prod")
    body = cli("ls", "d", "--json", root=root).json
    ids = {record.name: record.id for record in loader.Root(root).versions("d")}
    assert [(row["name"], row["id"]) for row in body] == list(ids.items())
    assert [row["retired"] for row in body] == [None, "leak", None, None]
    assert [row["refs"] for row in body] == [["paper"], [], [], ["prod"]]
    version = loader.Root(root).open("d@4")
    groups, created_us = version.manifest["groups"].values(), version.manifest["created_us"]
    assert (body[3]["samples"], body[3]["created_us"]) == (len(version), created_us)
    assert body[3]["nbytes"] == sum(group["nbytes"] for group in groups)
    created = f"{datetime.fromtimestamp(created_us / 1e6, UTC):%Y-%m-%d %H:%M}"
    assert re.search(rf"  {created} +13 +\d+\.\d KiB  prod$", lines[3])


def test_ls_of_a_version_that_was_swept_shows_no_numbers(cli, own):
    root = loader.Root(own)
    root.store.delete_many([root.record("d@2", retired=True).manifest])
    (row,) = (row for row in cli("ls", "d", "--json", root=own).json if row["name"] == "d@2")
    assert (row["samples"], row["nbytes"], row["created_us"]) == (None, None, None)
    assert re.search(r"  - +- +-  \(retired: leak\)$", cli("ls", root=own).out.splitlines()[1])


def test_control_characters_reach_no_terminal(cli, own):
    """A reason, or a name, may not write to the clipboard or over what stood there."""
    cli("retire", "d@3", "--reason", "x\x1b]52;c;cm0=\x07\x9b2J\u202e\r", root=own)
    lines = cli("ls", root=own).out
    assert "(retired: x\\x1b]52;c;cm0=\\x07\\x9b2J\\u202e\\r)" in lines
    said = cli("show", "d@3", root=own)
    assert (said.code, said.err.isprintable() or "\x1b" not in said.err) == (2, True)


def test_ls_of_a_root_without_versions(cli, tmp_path):
    loader.Root(tmp_path).create()
    assert cli("ls", root=tmp_path).out == f"{tmp_path} has no versions yet\n"
    assert cli("ls", "--json", root=tmp_path).json == []


def test_show(cli, sample_root):
    root, _ = sample_root
    text = cli("show", "d@prod", root=root).out
    for part in (
        "d@4  v-",
        "13 samples (1 excluded) in 4 parts",
        "cls, x.npy",
        "emb.npy",
        "score",
        "double",
        "parent v-",
    ):
        assert part in text
    assert "run_id: r-1" in cli("show", "d@1", root=root).out
    body = cli("show", "d@1", "--json", root=root).json
    assert body["manifest"] == loader.Root(root).open("d@1").manifest
    assert body["fields"] == ["cls", "x.npy"]


def test_order_is_the_plans(cli, sample_root):
    root, _ = sample_root
    version = loader.Root(root).open("d@4")  # "emb" is there for some samples only
    plan = loader.plan({"d": version.select("cls")}, seed=5, global_batch=6)
    expected = [[slot, *one] for slot, one in enumerate(plan.batch_ids(7))]
    arguments = ("order", "d@4", "--step", "7", "--batch", "6", "--seed", "5")
    assert cli(*arguments, "--json", root=root).json["ids"] == expected
    ranks = [
        cli(*arguments, "--world", "4", "--rank", rank, "--json", root=root).json["ids"] for rank in range(4)
    ]
    assert [one for rank in ranks for one in rank] == expected
    assert cli(*arguments, root=root).out.split()[2::3] == [key for _, _, key in expected]


def test_explain(cli, sample_root):
    root, plan = sample_root
    body = cli("explain", plan, "--step", "2", "--json", root=root).json
    assert [one["slot"] for one in body] == list(range(6))
    (one,) = cli("explain", plan, "--step", "2", "--slot", "3", "--json", root=root).json
    assert one == body[3]
    data = (Path(root) / one["fields"]["cls"]["path"]).read_bytes()
    at = one["fields"]["cls"]
    assert data[at["offset"] : at["offset"] + at["nbytes"]].decode() == one["key"].removeprefix("k")
    number = int(one["key"].removeprefix("k"))
    assert one["provenance"] == (
        {"raw_uri": f"s3://raw/{number}", "unit_id": f"u{number}"} if number < 10 else {}
    )
    text = cli("explain", plan, "--step", "2", "--world", "3", "--rank", "1", root=root).out
    assert text.count("step 2 slot") == 2
    assert "step 2 slot 2:" in text
    assert at["path"] in cli("explain", plan, "--step", "2", "--slot", "3", root=root).out


def test_explain_and_seen_name_a_step_that_was_not_trained(cli, own):
    root = loader.Root(own)
    plan = loader.plan({"d": root.open("d@4").select("cls")}, seed=1, global_batch=4)
    plan.save(root)
    trail = loader.Trail(root, "points")
    with loader.Loader(plan, 0, 1, framework="numpy", workers=0, steps=4, trail=trail) as batches:
        assert len(list(batches)) == 4
    why = "step 999 was not trained: the trail of points ends at step 3"
    assert cli("explain", "points@999", root=own).out.startswith(why)
    body = cli("explain", "points@999", "--json", root=own).json
    assert {one["untrained"] for one in body} == {why}
    for trained in ("points@3", plan.hash):
        done = cli("explain", trained, "--step", "3", "--json", root=own).json
        assert not any("untrained" in one for one in done)
    key = body[0]["key"]
    assert cli("seen", "points@999", "d", key, root=own).out.startswith(why)
    assert cli("seen", "points@999", "d", key, "--json", root=own).json["untrained"] == why
    assert "untrained" not in cli("seen", "points", "d", key, "--json", root=own).json


def test_blank_reason_of_a_retirement_is_refused(cli, own):
    done = cli("retire", "d@3", "--reason", " ", root=own)
    assert (done.code, "the reason is ' '" in done.err) == (2, True)
    assert "retired" not in next(
        line for line in cli("ls", root=own).out.splitlines() if line.startswith("d@3")
    )


def test_retire(cli, own):
    done = cli("retire", "d@3", "--reason", "wrong crops", root=own)
    assert (done.code, done.out) == (0, "d@3 is retired: wrong crops\n")
    again = cli("show", "d@3", root=own)
    assert again.code == 2
    assert "VersionRetired" in again.err
    assert "wrong crops" in again.err
    assert cli("retire", "d@3", "--reason", "x", "--json", root=own).json["name"] == "d@3"
    assert cli("retire", "d@3", root=own).code == 2


def test_lease(cli, own):
    root = loader.Root(own)
    root.open("d@1")
    root.open("d@4")
    lines = cli("lease", "ls", root=own).out.splitlines()
    assert [line.split()[0] for line in lines] == ["d@1", "d@4"]
    rows = cli("lease", "ls", "--json", root=own).json
    assert [row["version"] for row in rows] == ["d@1", "d@4"]
    (host,) = {row["host"] for row in rows}
    assert all(f" on {host}, last beat " in line for line in lines)
    assert all(line.endswith(" ago, not seen by a collector yet") for line in lines)
    root.close()
    assert cli("lease", "ls", root=own).out == "no leases\n"


def test_hold(cli, own):
    assert cli("hold", "ls", root=own).out == "no holds\n"
    done = cli("hold", "add", "d@prod", "--by", "alice", "--why", "audit 2026", root=own)
    assert (done.code, done.out) == (0, "d@4 held by alice: audit 2026\n")
    assert cli("hold", "add", "d@4", "--by", "bob", "--why", "appeal", "--json", root=own).json["by"] == "bob"
    assert cli("hold", "ls", root=own).out.splitlines() == [
        f"{'d@4':<24} alice: audit 2026",
        f"{'d@4':<24} bob: appeal",
    ]
    assert (
        cli("ls", "d", root=own)
        .out.splitlines()[3]
        .endswith("prod (held by alice: audit 2026) (held by bob: appeal)")
    )
    holds = [{"by": "alice", "why": "audit 2026"}, {"by": "bob", "why": "appeal"}]
    assert cli("ls", "d", "--json", root=own).json[3]["holds"] == holds
    assert cli("show", "d@4", "--json", root=own).json["holds"] == holds
    assert "\nheld by alice: audit 2026\nheld by bob: appeal\n" in cli("show", "d@4", root=own).out
    cli("retire", "d@4", "--reason", "wrong crops", root=own)
    again = cli("hold", "add", "d@4", "--by", "carol", "--why", "x", root=own)
    assert (again.code, "VersionRetired" in again.err) == (2, True)
    assert cli("hold", "release", "d@4", "--by", "alice", root=own).out == "d@4 is no longer held by alice\n"
    none = cli("hold", "release", "d@4", "--by", "alice", root=own)
    assert (none.code, none.out) == (2, "alice does not hold d@4; holders: bob\n")
    (row,) = cli("hold", "ls", "--json", root=own).json
    assert (row["version"], row["by"], row["retired"]) == ("d@4", "bob", "wrong crops")


CALLERS_MISTAKES = [
    (("show", "dd@1"), "VersionNotFound", "no dataset 'dd', did you mean 'd'?"),
    (("show", "d@papre"), "VersionNotFound", "no d@papre, did you mean 'paper'?"),
    (("ls", "othre"), "VersionNotFound", "has no dataset 'othre', did you mean 'other'?"),
    (("plans", "ls", "othre"), "VersionNotFound", "did you mean 'other'?"),
    (("show", "d@9"), "VersionNotFound", "d has versions 1..4 (retired 2), tags paper, aliases prod"),
    (("show", "nope"), "VersionNotFound", "datasets here: d, other"),
    (("show", "d@2"), "VersionRetired", "leak"),
    (("show", "a b"), "InvalidName", "'a b'"),
    (("ls", "nope"), "VersionNotFound", "no dataset 'nope'"),
    (("diff", "d@1", "d@9"), "VersionNotFound", "d@9"),
    (("verify", "v-0123456789"), "VersionNotFound", "v-0123456789"),
    (("order", "d@1", "--step", "-1", "--batch", "4"), "Invalid", "step"),
    (("order", "d@1", "--step", "0", "--batch", "0"), "Invalid", "global_batch"),
    (("order", "d@1", "--step", "0", "--batch", "4", "--world", "2"), "InvalidRuntime", "world_size = 2"),
    (
        ("order", "d@1", "--step", "0", "--batch", "4", "--world", "2", "--rank", "2"),
        "InvalidRuntime",
        "rank = 2",
    ),
    (("explain", "p-nope", "--step", "0"), "RunNotFound", "no run 'p-nope'"),
    (("explain", "../x", "--step", "0"), "InvalidName", "../x"),
    (("retire", "d@9", "--reason", "x"), "VersionNotFound", "d@9"),
]


@pytest.mark.parametrize(
    ("verb", "name", "words"), CALLERS_MISTAKES, ids=lambda v: " ".join(v) if isinstance(v, tuple) else ""
)
def test_callers_mistakes(cli, sample_root, verb, name, words):
    root, _ = sample_root
    run = cli(*verb, "--json", root=root)
    assert run.code == 2
    assert run.err.startswith("penstock: ")
    assert "Traceback" not in run.err
    assert name in run.err
    assert words in run.err
    assert set(run.json) == {"error", "message"}
    assert name in run.json["error"]


def test_slot_out_of_range(cli, sample_root):
    root, plan = sample_root
    run = cli("explain", plan, "--step", "2", "--slot", "6", root=root)
    assert (run.code, run.out) == (2, "")
    assert "slots 0 to 5" in run.err


def test_wrong_roots(cli, tmp_path):
    nowhere = cli("ls", root=tmp_path / "none")
    assert nowhere.code == 2
    assert "NotARoot" in nowhere.err
    (tmp_path / "file").write_text("")
    assert "it holds other things (file" in cli("ls", root=tmp_path).err
    assert "is a file" in cli("ls", root=tmp_path / "file").err
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "penstock.json").write_text('{"format":2}')
    assert "FormatTooNew" in cli("ls", root=newer).err


def test_no_root(cli, monkeypatch):
    monkeypatch.delenv("PENSTOCK_ROOT", raising=False)
    none = cli("ls")
    assert none.code == 2
    assert "PENSTOCK_ROOT" in none.err


def test_environments_root(penstock, sample_root):
    root, _ = sample_root
    assert penstock("ls", env={"PENSTOCK_ROOT": root}).out == penstock("ls", root=root).out


@pytest.mark.parametrize(
    "arguments", [(), ("nope",), ("show",), ("order", "d@1"), ("lease", "rm"), ("order", "d", "--step", "x")]
)
def test_usage_errors(cli, arguments):
    run = cli(*arguments)
    assert (run.code, run.out) == (2, "")
    assert "usage: penstock" in run.err


def test_help_lists_the_verbs(cli):
    run = cli("--help")
    assert run.code == 0
    for verb in ("ls", "show", "diff", "verify", "order", "explain", "card", "retire", "lease", "hold", "gc"):
        assert f"\n    {verb} " in run.out
        assert cli(verb, "--help").code == 0


def test_damaged_data_is_status_1(cli, own):
    root = loader.Root(own)
    shard = root.open("d@4").parts.shard("media", 0)
    path = Path(own) / shard["path"]
    data = bytearray(path.read_bytes())
    data[512] ^= 1
    path.write_bytes(data)
    assert cli("verify", "d@4", root=own).code == 0
    run = cli("verify", "d@4", "--full", root=own)
    assert (run.code, run.err) == (1, "")
    first, *_, last = run.out.splitlines()
    assert first.startswith(f"d@4/{shard['part']} media[512:513] sample 'k")
    assert "field 'cls': its CRC-32C is" in first
    assert last.endswith("checked every byte: 2 problems")
    body = cli("verify", "d@4", "--full", "--json", root=own).json
    assert [sorted(problem) for problem in body["problems"]] == [["address", "what"]] * 2


def test_damaged_log_is_status_1(cli, own):
    path = Path(own) / "log" / "000000000002.json"
    path.write_bytes(path.read_bytes().replace(b'"number":1', b'"number":2'))
    run = cli("verify", "d@1", root=own)
    assert run.code == 1
    assert "Corrupt" in run.err
    assert "000000000002.json" in run.err


def test_missing_object_is_status_1(cli, own):
    manifest = loader.Root(own).record("d@1").manifest
    (Path(own) / manifest).unlink()
    run = cli("show", "d@1", root=own)
    assert run.code == 1
    assert manifest in run.err


def test_closed_pipe_is_no_error(sample_root, tmp_path):
    """`penstock ls | head -1`, with more to say than a pipe holds."""
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        for i in range(4000):
            writer.add(f"{'k' * 60}{i}", {"cls": 1})
    command = f"{sys.executable} -W error -m penstock order d --step 0 --batch 4000 --root {root.url} 2>err | head -1"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert run.stdout.startswith("     0  d  k")
    assert (tmp_path / "err").read_text() == ""


@pytest.mark.parametrize("name", ["loader.py", "loader/__init__.py"])
def test_somebody_elses_loader(penstock, sample_root, tmp_path, name):
    """A module of that name beside train.py: its file is named, and it is not run."""
    root, _ = sample_root
    foreign = tmp_path / name
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_text("raise SystemExit('ran the training')")
    run = penstock("ls", root=root, cwd=tmp_path)
    assert run.code == 2
    assert str(foreign) in run.err
    assert "which is not penstock's; rename that file" in run.err
    assert "ran the training" not in run.err


def test_json_is_one_document(cli, sample_root):
    root, _ = sample_root
    run = cli("show", "d@1", "--json", root=root)
    assert json.dumps(json.loads(run.out), indent=2) == run.out.rstrip("\n")


def test_script_is_the_module(sample_root):
    root, _ = sample_root
    script = Path(sys.executable).parent / "penstock"
    run = subprocess.run([script, "ls", "--root", root], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("d@1 ")


def test_plans_ls_names_the_versions_that_each_plan_reads(cli, own):
    root = loader.Root(own)
    before = {row["plan"] for row in cli("plans", "ls", "--json", root=own).json}
    view = root.open("d@4").select("cls").where("score > 1")
    saved = loader.plan(
        {"images": view, "others": root.open("other@1")}, seed=5, global_batch=3, allow_repeats=True
    ).save(root)
    root.store.put("plans/no-plan.json", b"[]")
    rows = {row["plan"]: row for row in cli("plans", "ls", "--json", root=own).json}
    assert rows.keys() == before | {saved}
    row = rows[saved]
    assert (row["global_batch"], row["seed"]) == (3, 5)
    images = {"version": "d@4", "fields": ["cls"], "where": "score > 1", "slices": []}
    assert row["sources"]["images"] == images
    (line,) = (line for line in cli("plans", "ls", root=own).out.splitlines() if line.startswith(saved))
    assert line.endswith("images: d@4 where score > 1, others: other@1")
    assert re.search(r"  \d{4}-\d\d-\d\d \d\d:\d\d +3 +5  ", line)
    assert saved not in cli("plans", "ls", "nobody", root=own).out
    assert saved in cli("plans", "ls", "other", root=own).out
    none = loader.Root(f"{own}-none")
    none.create()
    assert cli("plans", "ls", root=none.url).out == f"{none.url} has no saved plans\n"


def test_explain_takes_a_run_and_step(cli, own):
    root = loader.Root(own)
    plan = loader.plan({"d": root.open("d@4").select("cls")}, seed=1, global_batch=4)
    with loader.Loader(plan, 0, 1, steps=3, trail=loader.Trail(root, run="big-7")) as batches:
        last = [list(batch.ids) for batch in batches][2]
    told = cli("explain", "big-7@2", "--json", root=own).json
    assert [(one["source"], one["key"]) for one in told] == last
    assert cli("explain", plan.hash, "--step", "2", "--json", root=own).json == told
    assert cli("explain", "big-7", "--step", "2", "--slot", "1", "--json", root=own).json == told[1:2]
    run = cli("explain", "big-7", root=own)
    assert (run.code, "pass big-7@STEP, or --step STEP" in run.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "near"),
    [(("veriffy", "d"), "'verify'"), (("gc", "swep"), "'sweep'"), (("ls", "--jsno"), "'--json'")],
)
def test_unknown_word_of_the_command_line_names_the_closest(penstock, arguments, near):
    run = penstock(*arguments)
    assert run.code == 2
    assert f"did you mean {near}?" in run.err


def test_version_prints_the_installed_version(penstock):
    run = penstock("--version")
    assert run.code == 0
    assert re.match(r"penstock \d+\.\d+\.\d+ \(Python 3\.", run.out)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_full_disk_behind_standard_output_is_one_line(own, form):
    with Path("/dev/full").open("w") as full:
        program = [sys.executable, "-m", "penstock", "ls", "--root", str(own), *form]
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    line = "penstock: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_relative_root_in_a_deleted_folder_is_refused(cli, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    run = cli("ls", root="data")
    assert run.code == 2
    assert "InvalidStore: 'data' is relative, and the working directory is gone" in run.err


@pytest.mark.parametrize(
    "verb",
    [
        ("register", "files", "{}", "photos"),
        ("register", "lerobot", "{}", "arm"),
        ("migrate", "run", "{}"),
        ("migrate", "run", "copy", "--from", "{}"),
        ("migrate", "run", "{}/copy", "--from", "plain"),
    ],
)
def test_recorded_place_is_utf8(own, cli, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / os.fsdecode(b"b\xffd")
    for folder in (place, tmp_path / "plain"):
        folder.mkdir()
        (folder / "a.txt").write_text("a")
    run = cli(*(word.format(place) for word in verb), root=None if "--from" in verb else own)
    assert run.code == 2
    assert "is not UTF-8 text, and the URL is recorded: rename the folder" in run.err
    assert [one.name for one in place.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("words", "twice"),
    [
        (("takedown", "request", "--dataset", "a", "--dataset", "b"), "--dataset: given twice, 'a' and 'b'"),
        (("export", "d@1", "files", "x", "--where", "w > 1", "--where", "w < 1"), "--where: given twice"),
        (("exclude", "d", "--from", "a.txt", "--from", "b.txt"), "--from: given twice"),
        (("ls", "--root", "a", "--root", "b"), "--root: given twice, 'a' and 'b': give it once"),
    ],
)
def test_option_with_two_values_is_refused(cli, words, twice):
    run = cli(*words)
    assert run.code == 2
    assert f"argument {twice}" in run.err


def test_option_with_the_same_value_twice_is_accepted(own, cli):
    assert cli("ls", "--root", own, root=own).code == 0
