"""Whose a cache folder is: nobody else reads private data there, or says what a training reads."""

import os
import shutil
import stat
from threading import Thread

import pytest

import loader
from loader.cache.node_cache import OpenCache
from loader.cache.pages import BadPage, Pages
from loader.cache.spec import NodeCache
from loader.errors import InvalidRuntime
from tests.refusals import refusal
from tests.servers.patience import PATIENCE_S

PAGE = 4096
SIZES = {"data/0.tar": 3 * PAGE}


def mode(path):
    return stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode)


def opened(folder, **options):
    return OpenCache(
        NodeCache(path=folder, limit_bytes=64 * PAGE, page_bytes=PAGE, **options), lambda *_: None
    )


@pytest.fixture
def another_user(monkeypatch):
    """From now on this process is not whom the files belong to."""
    return lambda: monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


@pytest.fixture(autouse=True)
def _open_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_nobody_else_can_look_into_it(make_origin, reader, folder, page_files, put):
    one = reader(make_origin(SIZES), folder, page_bytes=PAGE)
    one.get("data/0.tar", (0, 2 * PAGE))
    one.store.claim("data/0.tar", 2)
    assert len(page_files()) == 2
    made = [path for path in folder.rglob("*") if path.is_file()]
    assert {mode(path) for path in made} == {0o600}
    assert {path.parent.name for path in made} >= {"cache", "claims", "wanted", "loaders"}
    assert {mode(path) for path in (folder, *folder.rglob("*")) if path.is_dir()} == {0o700}
    shutil.rmtree(folder / "pages")  # as somebody may who makes room
    name = "ab" * 16 + "00" * 4
    assert put(one.cache, name, bytes(PAGE))
    assert {mode(path) for path in (folder / "pages", folder / "pages" / name[-2:])} == {0o700}


def test_one_of_an_earlier_release_is_closed(make_origin, reader, folder):
    origin = make_origin(SIZES)
    reader(origin, folder, page_bytes=PAGE).get("data/0.tar", (0, PAGE))
    os.chmod(folder, 0o755)
    again = reader(origin, folder, page_bytes=PAGE)
    again.get("data/0.tar", (0, PAGE))
    assert (mode(folder), again.counts["hits"]) == (0o700, 1)


def test_somebody_elses_folder_is_refused(folder, another_user):
    opened(folder)
    another_user()
    with refusal(InvalidRuntime, what="owner", where=folder, given=os.getuid()):
        opened(folder)
    with refusal(InvalidRuntime, what="owner", where=folder, given=os.getuid()):
        loader.Loader(one_sample(), cache=folder)


def one_sample():
    with loader.Root("memory://whose").write("d") as writer:
        writer.add("k", {"cls": 1})
    return loader.plan({"d": writer.version}, seed=1, global_batch=1)


@pytest.mark.parametrize("bits", [0o777, 0o775, 0o702])
@pytest.mark.parametrize("empty", [True, False])
def test_folder_that_others_write_to_is_refused(folder, bits, empty):
    folder.mkdir() if empty else opened(folder)
    os.chmod(folder, bits)
    with refusal(InvalidRuntime, what="mode", where=folder, given=bits):
        opened(folder)
    assert mode(folder) == bits


def test_folder_that_is_no_cache_keeps_its_mode(folder):
    folder.mkdir()
    (folder / "mine.txt").write_text("x")
    os.chmod(folder, 0o755)
    with refusal(InvalidRuntime, what="cache", where=folder, given="mine.txt", accepted="an empty folder"):
        opened(folder)
    assert mode(folder) == 0o755


def test_link_of_ones_own_leads_to_it(folder, tmp_path, another_user):
    opened(folder)
    (tmp_path / "link").symlink_to(folder)
    opened(tmp_path / "link")
    another_user()
    with refusal(InvalidRuntime, what="owner", where=f"{tmp_path}/link", given=os.getuid()):
        opened(tmp_path / "link")


def test_page_that_another_user_made_is_none(make_origin, reader, folder, another_user, put):
    """Whatever its checksum: also where the folder became another's while it was open."""
    one = reader(make_origin(SIZES), folder, page_bytes=PAGE)
    name = one.store.page_name("data/0.tar", 0)
    assert put(one.cache, name, bytes(PAGE))
    assert one.cache.read(name, [slice(0, 4)]) == [bytes(4)]
    another_user()
    with pytest.raises(BadPage, match=f"is user {os.getuid()}'s"):
        Pages(str(folder)).read(name, [slice(0, 4)], None)
    assert Pages(str(folder), shared=True).read(name, [slice(0, 4)], None)[0] == [bytes(4)]


def test_users_who_trust_one_another_share_one(folder, another_user, put):
    shared = opened(folder, shared=True)
    name = "ab" * 20
    assert put(shared, name, bytes(PAGE))
    os.chmod(folder, 0o777)
    another_user()
    assert opened(folder, shared=True).read(name, [slice(0, 4)]) == [bytes(4)]
    assert mode(folder / "pages" / name[-2:] / name) == 0o644
    with refusal(InvalidRuntime, what="cache shared", given="yes", accepted=[True, False]):
        NodeCache(path=folder, shared="yes")


def test_pipe_in_a_pages_place_is_waited_for_by_nobody(tmp_path):
    pages, name, failed = Pages(str(tmp_path), shared=True), "ab" * 32, []
    os.makedirs(os.path.dirname(pages.path(name)), exist_ok=True)
    os.mkfifo(pages.path(name))

    def read():
        try:
            pages.read(name, [slice(0, 4)], None)
        except (BadPage, OSError) as error:
            failed.append(error)

    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(PATIENCE_S)
    assert len(failed) == 1
