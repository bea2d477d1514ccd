"""`penstock checkpoints ls` and `verify`: complete, unfinished, damaged; without torch."""

import pytest

import loader
from loader.storage import open_store
from penstock.checkpoints import marker
from penstock.checkpoints.marker import Checkpoint, StoredObject
from tests.servers.processes import python

PART = b"abc" * 1000


@pytest.fixture
def place(tmp_path):
    """Runs a (steps 5 and 10, and 15 unfinished) and b (step 1)."""
    root = tmp_path / "root"
    store = open_store(str(root))
    for run, step in (("a", 5), ("a", 10), ("b", 1)):
        made = [
            StoredObject(name=name, nbytes=len(PART), sha256=marker.sha256(PART))
            for name in ("i.json", "p.safetensors")
        ]
        versions = ({"source": "p", "id": "v-12", "name": "photos@3"},)
        one = Checkpoint(
            run=run,
            step=step,
            at_us=1_700_000_000_000_000,
            world_size=8,
            index=made[0],
            parts=(made[1],),
            plan="p-0123456789abcdef0123",
            versions=versions,
            loader={"step": step},
        )
        for part in one.objects:
            store.put(one.key(part), PART)
        store.put(marker.marker_key(run, step), marker.encode(one))
    store.put(marker.part_key("a", 15, "half.safetensors"), PART)
    return root


def test_ls_names_checkpoints_and_their_data(place, cli):
    said = cli("checkpoints", "ls", root=place)
    assert said.code == 0
    lines = said.out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["a", "5"], ["a", "10"], ["a", "15"], ["b", "1"]]
    assert "2023-11-14 22:13:20" in lines[1]
    assert lines[1].endswith("photos@3 p-0123456789abcdef")
    assert "no marker: the save is running, or was killed" in lines[3]
    body = cli("checkpoints", "ls", "b", "--json", root=place).json
    assert body == [
        {
            "run": "b",
            "step": 1,
            "complete": True,
            "problem": "",
            "nbytes": 6000,
            "set_aside": False,
            "saved": "2023-11-14 22:13:20",
            "ranks": 8,
            "plan": "p-0123456789abcdef0123",
            "versions": [{"source": "p", "id": "v-12", "name": "photos@3"}],
        }
    ]
    said = cli("checkpoints", "ls", "c", root=place)
    assert said.code == 2
    assert "has no run 'c'; its runs: a, b" in said.err


def test_ls_passes_over_a_file_beside_the_runs(place, cli):
    said = cli("checkpoints", "ls", "--json", root=place)
    (place / "checkpoints" / "aa").write_bytes(b"x")
    assert cli("checkpoints", "ls", "--json", root=place).json == said.json != []


def test_ls_of_a_root_without_any(tmp_path, cli):
    loader.Root(tmp_path / "root").begin("d")
    assert cli("checkpoints", "ls", "--json", root=tmp_path / "root").json == []
    assert "has no checkpoints" in cli("checkpoints", "ls", root=tmp_path / "root").out


def test_ls_names_what_cannot_be_loaded(place, cli):
    parts = place / "checkpoints" / "a" / "parts"
    (parts / "000000000005" / "p.safetensors").unlink()
    (parts / "000000000010" / "p.safetensors").write_bytes(PART[:-1])
    (place / "checkpoints" / "b" / "steps" / "000000000001.json").write_text("{}")
    said = cli("checkpoints", "ls", root=place)
    assert said.code == 1
    assert said.out.count("1 of 2 objects are missing or of another size") == 2
    assert "000000000001.json has 2 bytes, and is not the marker that was written" in said.out


def test_verify_reads_every_byte(place, cli):
    said = cli("checkpoints", "verify", "a", root=place)
    assert (said.code, said.out) == (0, "a: 2 checkpoints, 4 objects, 11.7 KiB; nothing wrong\n")
    parts = place / "checkpoints" / "a" / "parts"
    (parts / "000000000005" / "p.safetensors").unlink()
    (parts / "000000000005" / "i.json").write_bytes(PART[:-1])
    (parts / "000000000010" / "p.safetensors").write_bytes(PART[:-1] + b"x")
    said = cli("checkpoints", "verify", "a", "--json", root=place)
    assert said.code == 1
    assert [
        (one["step"], one["object"].rpartition("/")[2], one["problem"]) for one in said.json["problems"]
    ] == [
        (5, "i.json", "it has 2999 bytes; 3000 were written"),
        (5, "p.safetensors", "it is missing; 3,000 bytes were written"),
        (10, "p.safetensors", "its SHA-256 differs from the recorded one"),
    ]
    assert cli("checkpoints", "verify", "a", "--step", "5", root=place).code == 1
    said = cli("checkpoints", "verify", "a", "--step", "7", root=place)
    assert said.code == 2
    assert "no checkpoint of step 7; the newest are: 5, 10" in said.err


def test_verify_refuses_unknown_runs(place, cli, tmp_path):
    """Nothing would be wrong with it."""
    said = cli("checkpoints", "verify", "A", root=place)
    assert said.code == 2
    assert "has no run 'A'; its runs: a, b. Check the name, and that --root" in said.err
    said = cli("checkpoints", "verify", "a", "--json", root=tmp_path / "none")
    assert (said.code, said.json["error"]) == (2, "CheckpointNotFound")
    assert "its runs: none" in said.json["message"]
    (place / "checkpoints" / "b" / "steps" / "000000000001.json").unlink()
    said = cli("checkpoints", "verify", "b", root=place)  # its first save goes on, or was killed
    assert (said.code, said.out) == (0, "b: 0 checkpoints, 0 objects, 0 B; no finished save yet\n")


def test_listing_imports_no_torch():
    code = "import sys, penstock.checkpoints, penstock.checkpoints.listing; print('torch' in sys.modules)"
    done = python("-c", code, check=True)
    assert done.stdout == "False\n"
