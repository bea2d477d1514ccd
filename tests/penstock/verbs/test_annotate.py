"""`penstock annotate`: labels from a file."""

import json
import os
import subprocess
import sys

import loader
from penstock.upkeep.verify.tables import check_statistics


def labels(tmp_path, *rows):
    path = tmp_path / "labels.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_labels_from_a_file(cli, own, tmp_path):
    path = labels(
        tmp_path,
        {"key": "k2", "kind": "c", "mood": "x"},
        {"key": "zz", "kind": "c"},
        {"key": "k1", "kind": "c"},
    )
    done = cli("annotate", "d@prod", "labels", "--from", path, "--author", "ann", root=own)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1:] == [
        "1 samples annotated from 3 rows",
        "2 keys have no live sample:",
        "  'zz' (line 2 of labels.jsonl)",
        "  'k1' (line 3 of labels.jsonl)",  # it was excluded
    ]
    version = loader.Root(own).open("d@5")
    assert done.out.splitlines()[0] == f"d@5  {version.id}"
    assert len(version.select("cls").where("kind = 'c' AND mood = 'x'")) == 1
    shown = cli("show", "d@5", root=own).out
    assert "labels                    1  " in shown
    assert "kind, mood, by ann" in shown
    lines = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line}
    assert lines["mood"] == ["7.1", "%", "string"]
    assert lines["w"] == ["100", "%", "int64"]
    body = cli("show", "d@5", "--json", root=own).json
    assert body["present"]["mood"] == 1
    assert [(one["name"], one["author"], one["columns"]) for one in body["annotations"]] == [
        ("labels", "ann", ["kind", "mood"])
    ]
    assert cli("verify", "d@5", "--full", root=own).code == 0
    changed = cli("diff", "d@4", "d@5", "--json", root=own).json["columns"]
    assert sorted(changed) == ["kind", "mood"]
    assert changed["kind"][1]["categories"] == {"a": 4, "b": 5, "c": 1}


def test_verify_counts_what_was_said_last(cli, own, tmp_path):
    """Also a removed value, and rows that say who and when; statistics that are of what was there before are found."""
    rows = [
        {"key": "k2", "w": None, "kind": "c", "annotated_by": "ben"},
        {"key": "k3", "w": 100, "annotated_at_us": 1},
    ]
    arguments = (
        "annotate",
        "d",
        "labels",
        "--from",
        labels(tmp_path, *rows),
        "--author",
        "ann",
        "--nulls",
        "remove",
    )
    assert cli(*arguments, root=own).code == 0
    assert cli("verify", "d@5", "--full", root=own).code == 0
    root = loader.Root(own)
    version = root.open("d@5")
    version.manifest["stats"].pop()
    found = [problem.what for problem in check_statistics(version)]
    assert "they are of 14 values, there are 13" in found
    assert "max is 13.0, computed again it is 100.0" in found


def test_json_and_options(cli, own, tmp_path):
    (tmp_path / "labels.csv").write_text("id,unit,kind,x\n1,u3,c,1\n2,u3,d,2\n3,u9,,3\n4,u77,e,4\n")
    done = cli(
        *(
            "annotate",
            "d",
            "units",
            "--from",
            tmp_path / "labels.csv",
            "--author",
            "ann",
            "--key",
            "unit",
            "--on",
        ),
        *("unit_id", "--columns", "kind", "--nulls", "remove", "--last-wins", "--json"),
        root=own,
    )
    version = loader.Root(own).open("d@5")
    assert done.json == {
        "name": "d@5",
        "id": version.id,
        "rows": 4,
        "samples": 2,
        "overruled": 1,
        "unmatched": 1,
        "first_unmatched": [{"key": "u77", "at": "line 5 of labels.csv"}],
    }
    assert len(version.select("cls").where("kind = 'd'")) == 1
    assert len(version.select("cls").where("key = 'k9' AND kind IS NULL")) == 1


def test_what_is_refused(cli, own, tmp_path):
    path = labels(tmp_path, {"key": "k2", "kind": "c"}, {"key": "zz", "kind": "c"})
    arguments = ("annotate", "d", "labels", "--from", path)
    assert cli(*arguments, root=own).code == 2  # nobody says so
    for more, error in (
        (
            ("--author", "ann", "--strict"),
            "InvalidKey: 1 of 2 keys have no live sample in d@4: 'zz' (line 2 of",
        ),
        (("--author", "ann", "--on", "w"), "FieldNotFound: samples of d@4 are not found by 'w'"),
        (
            ("--author", "ann", "--columns", "x"),
            "FieldNotFound: there is no column 'x' in labels.jsonl, but kind",
        ),
    ):
        done = cli(*arguments, *more, root=own)
        assert done.code == 2
        assert error in done.err
    path.write_text('{"key": "k2"\n')
    done = cli(*arguments, "--author", "ann", root=own)
    assert (done.code, "line 1 of labels.jsonl is not JSON" in done.err) == (2, True)
    done = cli(
        "annotate", "d", "labels", "--from", tmp_path / "no.csv", "--author", "ann", "--json", root=own
    )
    assert (done.code, done.json["error"]) == (2, "InvalidSample")
    assert len(loader.Root(own).versions("d")) == 4


def test_terminal_sees_how_far_it_is(own, tmp_path):
    """Quiet anywhere else: the tests above look at what comes out there."""
    path = labels(tmp_path, {"key": "k2", "kind": "c"}, {"key": "k3", "kind": "c"})
    ours, theirs = os.openpty()
    command = ("annotate", "d", "labels", "--from", path, "--author", "ann", "--root", own)
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=False,
    )
    os.close(theirs)
    shown = os.read(ours, 2**16).decode()
    os.close(ours)
    assert done.returncode == 0, shown
    for what in ("read labels.jsonl", "compare with d@4", "write labels"):
        assert f"\r{what} [{'#' * 30}] 100% " in shown
