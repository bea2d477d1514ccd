"""Every format of the registry: one version for everyone, killed and repeated, damage and losses named.

`exchange/test_formats_in_buckets.py` compares folder and bucket, `exchange/test_laws.py` export and import,
`tests/oracles` reads exports by the format's own library. A format's own file holds only its oddities.
"""

import shutil
from contextlib import nullcontext

import pytest

import loader
from fuzz.place_case import OPTIONS
from fuzz.places import PLACE_FORMATS, objects_of
from loader.dataset.root import root_over
from loader.errors import LossyExport, PenstockError
from loader.storage import open_store
from penstock.formats import EXPORTED, FORMATS, REGISTERED, TABLES, exporter_named, run_import
from penstock.formats.content_digest import content_digest
from penstock.formats.export_selection import select
from penstock.formats.importer import NO_OPTIONS
from penstock.formats.lerobot.lerobot_registered import register_lerobot
from penstock.formats.registration.adoption import adopt
from penstock.formats.registration.register import register
from penstock.formats.registration.sealing import seal
from penstock.formats.run_export import export
from penstock.formats.run_import import import_place
from tests.mortal_store import PUTS, SIDES, Death, Killed, stop

VERBS = [
    *(("register", name) for name in sorted({*REGISTERED, *TABLES, "lerobot"})),
    *((verb, name) for verb in ("import", "shuffle") for name in PLACE_FORMATS),
]
SHARD_BYTES = 2**12
"""Of an import: several units, and units of several parts."""
verbs = pytest.mark.parametrize(("verb", "name"), VERBS)


@pytest.fixture(autouse=True)
def in_process(monkeypatch):
    """Formats are read in this process, and no heartbeat writes."""
    monkeypatch.setattr(run_import, "in_workers", lambda readable, *_: nullcontext(readable))
    monkeypatch.setattr("loader.dataset.leases.Heartbeat.start", lambda self: self)


def make(verb, name, place, root, workers=1, dataset="d"):
    """Register or import a place; return the version, and (new, unchanged, skipped) objects or parts."""
    options = OPTIONS.get(name, NO_OPTIONS)
    if verb != "register":
        how = {"shuffle": verb == "shuffle", "workers": workers, "shard_bytes": SHARD_BYTES}
        done = import_place(root, name, open_store(place), dataset, options=options, **how)
        assert done.failures == []
        return root.open(dataset), (done.new, done.same, done.skipped)
    if name == "lerobot":
        done = register_lerobot(root, open_store(place), dataset, workers=workers)
    else:
        done = register(root, name, place, dataset, fields=options.fields)
    return done.version, (done.new, done.same, 0)


@verbs
def test_a_place_is_one_version_for_everyone(verb, name, format_places, tmp_path):
    """Also where it was moved to, with any number of threads; again, it is unchanged; nothing is written there."""
    place, moved = format_places / name, tmp_path / "moved"
    before = objects_of(place)
    root = loader.Root(tmp_path / "a")
    version, (new, same, _) = make(verb, name, place, root)
    assert (new > 0, same) == (True, 0)
    shutil.copytree(place, moved, copy_function=shutil.copy2)
    elsewhere = loader.Root(tmp_path / "b")
    assert make(verb, name, moved, elsewhere, workers=5)[0].id == version.id
    again, (none, unchanged, _) = make(verb, name, place, root)
    assert (again.id, none, unchanged) == (version.id, 0, new)
    assert len(root.versions("d")) == 1
    assert make(verb, name, moved, elsewhere, dataset="others")[0].id != version.id
    assert objects_of(place) == before


@verbs
def test_killed_and_repeated_it_is_the_same_version(verb, name, format_places, tmp_path, at_scale):
    place, url = format_places / name, f"memory://{tmp_path.name}"
    expected, _ = make(verb, name, place, root_over(open_store(f"{url}/whole")))
    skipped = set()
    for k in range(1, 100, at_scale(5, 3)):
        store = open_store(f"{url}/{k}")
        try:
            make(verb, name, place, root_over(Death(k, SIDES[k % 2 == 0], PUTS, stop).of(store)))
        except Killed:
            version, (*_, parts) = make(verb, name, place, root_over(store))
            assert (version.id, version.number) == (expected.id, 1)
            skipped.add(parts)
        else:
            break
    assert 6 < k < 97
    assert verb == "register" or max(skipped) > 0


@pytest.mark.parametrize("name", [name for verb, name in VERBS if verb == "register"])
def test_a_registration_is_its_import_and_is_read_without_its_owner(name, format_places, tmp_path):
    """Sealed and adopted; an import of lerobot has videos, and not runs of packets."""
    place = tmp_path / "place"
    shutil.copytree(format_places / name, place, copy_function=shutil.copy2)
    root = loader.Root(tmp_path / "root")
    version, _ = make("register", name, place, root)
    copies, _ = make("import", name, place, loader.Root(tmp_path / "copies"))
    assert seal(version).failures == adopt(root, "d").failures == []
    shutil.rmtree(place)
    adopted = loader.Root(root.url).open("d")
    assert adopted.id == version.id
    for full in (False, True):
        digests = [content_digest(one, full=full) for one in (adopted, copies)]
        assert digests[0].failures == []
        assert (digests[0].digest == digests[1].digest) == (name != "lerobot")


def outcome(verb, name, place, root):
    """The errors of a place."""
    try:
        if verb == "register":
            make(verb, name, place, root)
            return []
        options = OPTIONS.get(name, NO_OPTIONS)
        return import_place(root, name, open_store(place), "d", options=options).failures
    except PenstockError as error:
        return [str(error)]


@pytest.mark.parametrize(
    ("verb", "name"), [one for one in VERBS if one[0] != "shuffle" and one[1] not in ("csv", "files")]
)
def test_an_object_that_is_cut_is_named(verb, name, format_places, tmp_path):
    """Files and CSV may end anywhere."""
    place = tmp_path / "place"
    shutil.copytree(format_places / name, place)
    companions = FORMATS[name].companions
    objects = {
        key: data for key, data in objects_of(place).items() if not (companions and companions.search(key))
    }
    key = max(objects, key=lambda one: len(objects[one]))
    (place / key).write_bytes(objects[key][: len(objects[key]) * 2 // 3 - 3])  # not behind a record
    root = loader.Root(tmp_path / "root")
    errors = outcome(verb, name, place, root)
    assert any(key in why for why in errors), errors
    assert root.datasets() == []


@pytest.mark.parametrize("name", sorted({*EXPORTED} - {"lerobot"}))  # episodes: exchange/test_lerobot.py
def test_losses_are_refused_by_name_and_reported(name, exported_root, tmp_path):
    version = loader.Root(exported_root).open("tokens" if name == "megatron" else "d")
    losses = [loss.name for loss in exporter_named(name).losses(select(version))]
    if losses:
        with pytest.raises(LossyExport) as refused:
            export(version, name, open_store(tmp_path / "out"))
        assert all(loss in str(refused.value) for loss in losses)
        assert not (tmp_path / "out").exists()
    done = export(version, name, open_store(tmp_path / "out"), lossy=True)
    assert ([one["name"] for one in done.lost], done.failures) == (losses, [])
