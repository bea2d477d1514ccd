"""Fetching media, from archives that lie in the cache already: nothing here asks a registry."""

import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from examples import media
from examples.media import ORIGINS, fetch, listed


def file(member: str, path: str, data: bytes) -> dict[str, str]:
    sha256 = hashlib.sha256(data).hexdigest()
    return {
        "member": member,
        "path": path,
        "sha256": sha256,
        "licence": "CC0-1.0",
        "author": "a",
        "title": "t",
    }


@pytest.fixture
def packages(tmp_path: Path) -> list[dict[str, Any]]:
    wheel = tmp_path / "cache" / "one-1.0"
    sdist = tmp_path / "cache" / "two-2.0"
    wheel.mkdir(parents=True)
    sdist.mkdir(parents=True)
    with zipfile.ZipFile(wheel / "one-1.0-py3-none-any.whl", "w") as bundle:
        bundle.writestr("one/a.jpg", b"photo")
        bundle.writestr("one/code.py", b"raise SystemExit")
    with tarfile.open(sdist / "two-2.0.tar.gz", "w:gz") as bundle:
        for name, data in (("two-2.0/b.wav", b"speech"), ("two-2.0/setup.py", b"raise SystemExit")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            bundle.addfile(member, io.BytesIO(data))
    return [
        {
            "name": "one",
            "version": "1.0",
            "format": "wheel",
            "file": [file("one/a.jpg", "photos/x/a b.jpg", b"photo")],
        },
        {
            "name": "two",
            "version": "2.0",
            "format": "sdist",
            "file": [file("two-2.0/b.wav", "speech/b.wav", b"speech")],
        },
    ]


def test_named_members_arrive_and_nothing_else(tmp_path: Path, packages: list[dict[str, Any]]) -> None:
    into = tmp_path / "raw"
    fetched = fetch(into, tmp_path / "cache", packages)
    assert (fetched.n_files, fetched.n_new, fetched.nbytes, fetched.problems) == (2, 2, 11, ())
    assert (into / "photos/x/a b.jpg").read_bytes() == b"photo"
    assert sorted(path.name for path in into.rglob("*") if path.is_file()) == [ORIGINS, "a b.jpg", "b.wav"]
    origins = json.loads((into / ORIGINS).read_text(encoding="utf-8"))
    assert origins["speech/b.wav"]["licence"] == "CC0-1.0"
    assert origins["speech/b.wav"]["origin"] == "two 2.0 (sdist) two-2.0/b.wav"
    assert fetch(into, tmp_path / "nowhere", packages).n_new == 0  # the second time no archive is looked for


def test_changed_file_is_brought_back(tmp_path: Path, packages: list[dict[str, Any]]) -> None:
    into = tmp_path / "raw"
    fetch(into, tmp_path / "cache", packages)
    (into / "speech/b.wav").write_bytes(b"spoilt")
    assert fetch(into, tmp_path / "cache", packages).n_new == 1
    assert (into / "speech/b.wav").read_bytes() == b"speech"


def test_other_bytes_than_listed_are_not_written(tmp_path: Path, packages: list[dict[str, Any]]) -> None:
    packages[0]["file"][0]["sha256"] = "0" * 64
    fetched = fetch(tmp_path / "raw", tmp_path / "cache", packages)
    assert "it is not written" in fetched.problems[0]
    assert (fetched.n_files, fetched.n_new) == (1, 1)
    assert not (tmp_path / "raw/photos").exists()


@pytest.mark.parametrize("damage", ["member", "archive", "none"])
def test_what_cannot_be_had_does_not_stop_the_rest(
    tmp_path: Path, packages: list[dict[str, Any]], damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / "one-1.0"
    if damage == "member":
        packages[0]["file"][0]["member"] = "one/gone.jpg"
    elif damage == "archive":
        (folder / "one-1.0-py3-none-any.whl").write_bytes(b"no zip")
    else:
        (folder / "one-1.0-py3-none-any.whl").unlink()
    fetched = fetch(tmp_path / "raw", tmp_path / "cache", packages)
    assert len(fetched.problems) == 1
    assert fetched.problems[0].startswith("one 1.0: ")
    assert (tmp_path / "raw/speech/b.wav").exists()


def test_package_that_pip_cannot_find_is_reported(
    tmp_path: Path, packages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # pip is asked, and has nowhere to look
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    packages[0] |= {"name": "penstock-test-package", "version": "9.9"}
    fetched = fetch(tmp_path / "raw", tmp_path / "cache", packages)
    assert "pip download penstock-test-package==9.9 failed" in fetched.problems[0]
    assert (tmp_path / "raw/speech/b.wav").exists()
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name == "penstock-test-package-9.9"]


def test_list_names_everything_a_reader_of_licences_wants() -> None:
    files = [file for package in listed() for file in package["file"]]
    assert {Path(file["path"]).parts[0] for file in files} == {"photos", "videos", "speech"}
    assert len({file["path"] for file in files}) == len(files)
    for entry in files:
        assert len(entry["sha256"]) == 64
        assert entry["licence"]
        assert entry["author"]
        assert not entry["path"].startswith("/")
        assert ".." not in entry["path"]
    assert {package["format"] for package in listed()} <= {"wheel", "sdist"}
    assert media.ORIGINS.startswith("_")
