"""The lists that `migrate plan` writes for rclone and s5cmd name every key as it is, or say that they do not."""

import io
import json
import shlex

import pytest

import loader
from loader.storage import ObjectInfo, open_store
from penstock.cli import main
from penstock.upkeep.copying.items import Item
from penstock.upkeep.migrate.plan import MigrationPlan, plan_prefix
from tests.proxy_stores import ProxyStore

ODD = [
    "plain.bin",
    "a name with spaces",
    " begins and ends with one ",
    "st*r",
    "question?",
    "[a-z]{b,c}",
    "it's",
    'say "it"',
    "''",
    "# a comment",
    "a # comment",
    "a  #  #b",
    "a '#' b",
    "folder #/x",
    "back\\slash",
    "$HOME `id` $(id)",
    "a;b|c&d<e>f~!",
    "percent %20 +",
    "-rf",
    "ü/ä",
]


def words(line):
    """Of a line as `s5cmd run` (2.3.0) reads it: cut where a comment seems to begin, then as a shell splits it."""
    return shlex.split(line.split(" #")[0].strip())


@pytest.fixture
def places(tmp_path):
    source, target = open_store(str(tmp_path / "from here")), open_store(str(tmp_path / "to #there"))
    for key in ODD:
        source.put(key, key.encode())
    return source, target


def test_keys_of_every_kind_are_one_line_and_one_word(places):
    source, target = places
    rclone, s5cmd = io.StringIO(), io.StringIO()
    found = plan_prefix(source, target, rclone=rclone, s5cmd=s5cmd)
    assert (found.objects, found.unlisted) == (len(ODD), [])
    assert sorted(rclone.getvalue().split("\n")) == sorted([*ODD, ""])
    lines = s5cmd.getvalue().splitlines()
    assert sorted(map(words, lines)) == sorted(
        ["cp", "--raw", f"{source.url}/{key}", f"{target.url}/{key}"] for key in ODD
    )


def list_one_more(store, key):
    """The store; its listing has one key more, of an object that no store of ours could have written."""
    more = ObjectInfo(key=key, nbytes=3, etag="e")
    return ProxyStore(
        store, list=lambda plain, *given: iter(sorted([*plain.list(*given), more], key=lambda one: one.key))
    )


@pytest.mark.parametrize("key", ["two\nlines", "ends with one\r"])
def test_key_with_a_line_break_is_left_out_and_said(places, key):
    source, target = list_one_more(places[0], key), places[1]
    rclone, s5cmd = io.StringIO(), io.StringIO()
    found = plan_prefix(source, target, rclone=rclone, s5cmd=s5cmd)
    assert (found.objects, found.unlisted) == (len(ODD) + 1, [key])
    assert f"1 keys have a line break and are in no list (the first: {key!r})" in found.to_text()
    assert sorted(rclone.getvalue().split("\n")) == sorted([*ODD, ""])
    assert len(s5cmd.getvalue().splitlines()) == len(ODD)
    nobody_asked = plan_prefix(source, target)
    assert (nobody_asked.unlisted, "line break" in nobody_asked.to_text()) == ([], False)


def test_nothing_odd_is_said_of_other_plans(tmp_path, capsys):
    with loader.Root(str(tmp_path / "root")).write("d") as writer:
        writer.add("k", {"cls": 1})
    lists = [f"--{name}={tmp_path / name}" for name in ("rclone", "s5cmd")]
    arguments = ["migrate", "plan", str(tmp_path / "mirror"), "--root", str(tmp_path / "root")]
    assert main([*arguments, *lists, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unlisted"] == []
    paths = (tmp_path / "rclone").read_text().splitlines()
    assert [words(line)[2] for line in (tmp_path / "s5cmd").read_text().splitlines()] == [
        f"{tmp_path / 'root'}/{path}" for path in paths
    ]
    assert main(arguments) == 0
    assert "line break" not in capsys.readouterr().out


def test_either_list_alone():
    rclone = io.StringIO()
    plan = MigrationPlan(source="s3://a", target="s3://b")
    plan.add(Item(path="x y", nbytes=1), rclone=rclone)
    assert rclone.getvalue() == "x y\n"
