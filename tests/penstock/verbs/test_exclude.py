"""`penstock exclude`: text, JSON and exit status."""

import io
import os
import sys

import numpy as np
import pytest

import loader
from penstock.exclusion_records import records

TOLD = ("--reason", "wrong label", "--by", "ann")


def test_samples_are_excluded_and_taken_back(cli, own):
    done = cli("exclude", "d@4", "k3", "k5", *TOLD, "--page", "http://x/v/d/4", root=own)
    assert (done.code, done.err) == (0, "")
    root = loader.Root(own)
    version, (record,) = root.open("d@5"), records(root.store, "d")
    assert done.out.splitlines() == [
        f"d@5  {version.id}",
        "2 samples excluded, 11 remain",
        f"later builds leave them out too ({record.path}); penstock exclude --withdraw ends this",
    ]
    assert record.page == "http://x/v/d/4"
    again = cli("exclude", "d@4", "k5", "k3", *TOLD, "--page", "http://x/v/d/4", root=own)
    assert (again.code, again.out) == (0, done.out)
    cli("exclude", "d", "k7", *TOLD, root=own)
    again = cli("exclude", "d@4", "k5", "k3", *TOLD, "--page", "http://x/v/d/4", root=own)
    assert again.out.splitlines()[1] == "2 samples already excluded, 10 remain"
    done = cli("exclude", "d", "k3", "--withdraw", *TOLD, root=own)
    assert done.code == 0
    assert "1 exclusions withdrawn" in done.out
    assert (
        "No version changes: later builds of d include the samples again; import and register only"
        in done.out
    )
    assert len(root.versions("d")) == 6


def test_exclusions_that_stand_are_listed(cli, own):
    assert cli("exclude", "d", "--list", root=own).out == "d has no exclusions\n"
    cli("exclude", "d@4", "k5", "k3", *TOLD, "--page", "http://x", root=own)
    cli("exclude", "d", "k7", "--reason", "blurred\x1b", "--by", "bob", root=own)
    cli("exclude", "d", "k3", "--withdraw", *TOLD, root=own)
    root = loader.Root(own)
    first, second, _ = records(root.store, "d")
    done = cli("exclude", "d", "--list", "--json", root=own)
    told = {"reason": "wrong label", "by": "ann", "page": "http://x", "version": "d@4"}
    assert done.json == {
        "dataset": "d",
        "newest": "d@6",
        "exclusions": [
            {"key": "k5", "live": False, **told, "at_us": first.at_us, "record": first.path},
            {
                "key": "k7",
                "live": False,
                "reason": "blurred\x1b",
                "by": "bob",
                "page": "",
                "at_us": second.at_us,
                "version": "d@5",
                "record": second.path,
            },
        ],
    }
    assert cli("exclude", "d@2", "--list", "--json", root=own).json == done.json
    text = cli("exclude", "d", "--list", root=own).out
    assert [line.split()[0] for line in text.splitlines()] == ["key", "k5", "k7"]
    assert text.splitlines()[1].split()[3:] == ["ann", "wrong", "label"]
    assert "\x1b" not in text
    assert len(root.versions("d")) == 6


def test_key_written_again_by_hand_is_listed_as_live_and_excluded_again(cli, own):
    cli("exclude", "d@4", "k3", "k5", *TOLD, root=own)
    with loader.Root(own) as root:
        with root.write("d") as writer:
            writer.add("k3", {"cls": 1, "x.npy": np.zeros(2, np.float32)})
        assert "k3" in root.open("d@6").samples().collect()["key"]
    listed = cli("exclude", "d", "--list", "--json", root=own).json
    assert [(one["key"], one["live"]) for one in listed["exclusions"]] == [("k3", True), ("k5", False)]
    assert "  live  " in cli("exclude", "d", "--list", root=own).out.splitlines()[1]
    cli("exclude", "d@4", "k3", "k5", *TOLD, root=own)
    listed = cli("exclude", "d", "--list", "--json", root=own).json
    assert [one["live"] for one in listed["exclusions"]] == [False, False]
    assert listed["newest"] == "d@7"


def test_json(cli, own):
    done = cli("exclude", "d@4", "k3", *TOLD, "--json", root=own)
    root = loader.Root(own)
    (record,) = records(root.store, "d")
    told = {"dataset": "d", "keys": ["k3"], "record": record.path}
    assert done.json == {**told, "name": "d@5", "id": root.open("d@5").id, "samples": 12}
    done = cli("exclude", "d", "k3", "--withdraw", *TOLD, "--json", root=own)
    _, ended = records(root.store, "d")
    assert done.json == {**told, "record": ended.path}


def test_keys_of_a_file(cli, own, tmp_path, monkeypatch):
    (tmp_path / "keys.txt").write_bytes(b"k3\r\n\nk5")
    assert cli("exclude", "d@4", "k2", "--from", tmp_path / "keys.txt", *TOLD, "--json", root=own).json[
        "keys"
    ] == ["k2", "k3", "k5"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"k4\n")))
    assert cli("exclude", "d", "--from", "-", *TOLD, "--json", root=own).json["keys"] == ["k4"]
    (tmp_path / "keys.txt").write_bytes(b"\xff")
    for file in (tmp_path / "keys.txt", tmp_path / "none.txt"):
        done = cli("exclude", "d", "--from", file, *TOLD, "--json", root=own)
        assert (done.code, done.json["error"]) == (2, "InvalidRuntime")
        assert str(file) in done.err


HOSTILE = "k\x1b]0;x\x07\u202e<b>"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("d@4", "zz", *TOLD), "SampleNotFound: d@4 has no live sample 'zz'"),
        (("d@4", HOSTILE, *TOLD), "SampleNotFound"),
        (("d@4", *TOLD), "InvalidRuntime: no key is given"),
        (("d@2", "k3", *TOLD), "VersionRetired"),
        (("d@9", "k3", *TOLD), "VersionNotFound"),
        (("d@4", "k3", "--reason", "", "--by", "ann"), "InvalidRuntime: an exclusion needs a reason"),
        (("d@4", "k3", "--by", "ann"), "--reason"),
        (("d@4", "k12", "--whole-objects", *TOLD), "InvalidRuntime: d@4 does not name the raw object"),
        (("d@4", "k3", "--whole-objects", "--withdraw", *TOLD), "InvalidRuntime: --withdraw takes keys"),
        (("d@4", "k3", "--list"), "InvalidRuntime: --list takes only a dataset"),
        (("d@4", "--list", "--withdraw"), "InvalidRuntime: --list takes only a dataset"),
        (("nothing", "--list"), "VersionNotFound"),
        (("d@4", "k3", "--withdraw", *TOLD), "SampleNotFound: 'k3' of d: no exclusion stands"),
    ],
)
def test_mistakes_of_the_caller(cli, own, arguments, error):
    done = cli("exclude", *arguments, root=own)
    assert done.code == 2
    assert error in done.err
    assert not {"\x1b", "\x07", "\u202e"} & set(done.err)
    root = loader.Root(own)
    assert (len(root.versions("d")), records(root.store, "d")) == (4, [])


def test_words_reach_a_terminal_without_its_commands(cli, own):
    done = cli("exclude", "d@4", "k3", "--reason", HOSTILE, "--by", HOSTILE, root=own)
    assert done.code == 0
    done = cli("exclude", "d", "k3", "--reason", "x", "--by", "y", root=own)
    assert done.code == 2
    assert "was excluded already, by" in done.err
    assert not {"\x1b", "\x07", "\u202e"} & set(done.err)


@pytest.mark.parametrize("verb", ["register", "import"])
def test_excluded_sample_stays_out_when_its_object_changes(tmp_path, cli, verb):
    place, root = tmp_path / "in", tmp_path / "root"
    place.mkdir()
    for name in "abc":
        (place / f"{name}.txt").write_text(name)
    command = verb, "files", place, "notes"
    assert cli(*command, root=root).code == 0
    assert cli("exclude", "notes", "b", "--by", "ann", "--reason", "wrong", root=root).code == 0
    (place / "b.txt").write_text("another b")
    done = cli(*command, root=root)
    assert (done.code, "excluded samples of changed objects stay out" in done.out) == (0, True), done.err
    with loader.Root(root) as opened:
        assert sorted(opened.open("notes").keys([0, 1])) == ["a", "c"]
        assert len(opened.open("notes")) == 2
    (place / "c.txt").write_text("another c")
    assert "stay out" not in cli(*command, root=root).out


@pytest.mark.parametrize("verb", ["register", "import"])
def test_withdrawn_sample_returns_once_its_object_changes(tmp_path, cli, verb):
    place, root = tmp_path / "in", tmp_path / "root"
    place.mkdir()
    for name in "ab":
        (place / f"{name}.txt").write_text(name)
    command, why = (verb, "files", place, "notes"), ("notes", "b", "--by", "ann", "--reason", "wrong")
    assert cli(*command, root=root).code == 0
    assert cli("exclude", *why, root=root).code == 0
    done = cli("exclude", *why, "--withdraw", root=root)
    assert "import and register only once their objects change" in done.out
    assert cli(*command, "--json", root=root).json["samples"] == 1
    os.utime(place / "b.txt", (1, 1))
    assert cli(*command, "--json", root=root).json["samples"] == 2
