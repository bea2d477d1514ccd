"""Versions that a collector takes from under an open viewer: the reason is told, and what the trail keeps."""

import json

import pytest

import loader
from loader.errors import VersionRetired
from penstock.cli import main
from penstock.view import open_items
from penstock.view.open_data import OpenData
from tests.refusals import refusal
from tests.view.conftest import sweep
from tests.view.test_web import Served

RECIPE = "tests.view.recipes:recipe"
PAGES = [
    "/r/three/2?world=3&rank=1",
    "/r/three/2/3",
    "/r/three/window",
    "/v/photos/1",
    "/v/photos/1?where=width+%3E+42",
    "/v/photos/1/s/3",
]
MEDIA = [
    "/r/three/2/thumb/3/jpg?world=3&rank=1",
    "/r/three/2/3/decoded/jpg/0",
    "/v/photos/1/s/3/thumb/jpg",
    "/v/photos/1/s/3/stored/jpg",
]


@pytest.fixture
def serve(folder):
    opened = []

    def serve(**options):
        opened.append(Served(folder, **options))
        return opened[-1]

    yield serve
    for one in opened:
        one.close()


@pytest.mark.parametrize("recipe", [None, RECIPE])
def test_pages_that_were_open_tell_the_reason_once_their_version_is_swept(serve, folder, step_facts, recipe):
    served = serve(recipe=recipe)
    for path in (*PAGES, *MEDIA, "/r/three", "/v/others/1"):
        assert served.get(path).status_code == 200
    sweep(folder)
    for path in (*PAGES[::-1], *MEDIA, "/r/three/4"):
        answer = served.get(path)
        assert answer.status_code == 410, path
        assert "faces in it" in answer.text
        assert "its data is deleted" in answer.text
        assert ">proved<" not in answer.text
    for path in ("/", "/v/others/1"):
        assert served.get(path).status_code == 200
    run = served.get("/r/three")
    assert run.status_code == 200
    assert "faces in it" in run.text
    digests, loss = step_facts(2)
    for path in PAGES[:2]:
        text = served.get(path).text
        assert all(f"{digest:016x}" in text for digest in digests)
        assert f"loss <b>{loss:.5g}</b>" in text
    assert not served.get("/v/photos/1.json").json()["recorded"]


def test_record_of_a_swept_step_has_what_the_trail_has(serve, folder, step_facts):
    sweep(folder)
    served = serve(recipe=None)
    digests, loss = step_facts(3)
    step, slot = (served.get(path).json() for path in ("/r/three/3.json", "/r/three/3/4.json"))
    for body in (step, slot):
        assert body["error"] == "VersionRetired"
        told = body["recorded"]
        assert (told["training"], told["step"], told["notes"]) == ("three", 3, {"loss": loss})
        assert [(one["rank"], one["world_size"], one["digest"]) for one in told["parts"]] == [
            (rank, 3, digest) for rank, digest in enumerate(digests)
        ]
        assert all(set(one["crc32c"]) == {"jpg", "cls"} for one in told["parts"])
    assert set(slot["recorded"]["largest"]) <= {"4"} < set(step["recorded"]["largest"])
    assert served.get("/r/three/999999.json").json()["recorded"] is None


def test_verb_tells_the_trails_digests_and_notes(folder, step_facts, capsys):
    sweep(folder)
    capsys.readouterr()
    digests, loss = step_facts(1)
    for more in ([], ["--slot", "2"]):
        assert main(["batch", "three@1", "--root", str(folder), *more]) == 2
        told = capsys.readouterr().err
        assert "faces in it" in told
        assert all(f"digest {digest:016x}" in told for digest in digests)
        assert f"loss = {loss:.6g}" in told
    assert main(["batch", "three@1", "--root", str(folder), "--json"]) == 2
    assert f"{digests[2]:016x}" in json.loads(capsys.readouterr().out)["message"]


def test_version_that_lies_in_memory_whole_is_looked_at_again(folder, monkeypatch):
    with loader.Root(folder) as root:
        opened = OpenData(root)
        version = opened.version("photos", 1)
        assert opened.version("photos", 1) is version
        monkeypatch.setattr(open_items, "FRESH_S", -1.0)
        assert opened.version("photos", 1) is version
        sweep(folder)
        for _ in range(2):
            with refusal(VersionRetired, what="photos@1", given="faces in it"):
                opened.version("photos", 1)
        opened.close()


def test_missing_object_that_nobody_swept_is_told_as_such(serve, folder):
    served = serve(recipe=None)
    assert served.get("/v/photos/1/s/3").status_code == 200
    for path in folder.glob("data/*/*/media-*.tar"):
        path.unlink()
    answer = served.get("/r/three/2")
    assert answer.status_code == 502
    assert "there is no such object" in answer.text
    assert "by the trail of" in answer.text
