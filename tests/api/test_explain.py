"""From a step back to bytes, raw objects and runs; every address is checked against the file itself."""

import json
import os
import tarfile

import google_crc32c
import numpy as np
import pytest

import loader
from loader.errors import InvalidPlan, InvalidRuntime
from tests.refusals import refusal
from tests.servers.processes import python


@pytest.fixture
def root(tmp_path):
    return loader.Root(str(tmp_path / "root"))


def write(root, name, numbers, part_samples=6):
    with root.write(name, part_samples=part_samples, groups={"x.npy": "arrays"}) as writer:
        for i in numbers:
            writer.add(
                f"{name}/{i:03d}",
                {"txt": f"{name} {i}" * (i % 4), "x.npy": np.arange(i)},
                metadata={"i": i},
                source={"raw_uri": f"s3://raw/{name}/{i}.bin", "raw_sha256": f"{i:064x}", "run_id": "run-7"}
                if i % 2
                else {"raw_uri": f"s3://raw/{name}/{i}.bin"},
            )
    return writer.version


@pytest.fixture
def plan(root):
    """Two sources; one grew twice and has samples excluded, so parts, rows and ordinals all differ."""
    write(root, "photos", range(20))
    root.exclude("photos", ["photos/004", "photos/011"], reason="blurred")
    write(root, "photos", range(20, 33), part_samples=4)
    web = write(root, "web", range(12))
    return loader.plan(
        {"photos": root.open("photos").where("i > 2"), "web": loader.source(web, weight=2)},
        seed=3,
        global_batch=9,
    )


def read_field(root, name, i, field):
    data = root.store.get(field.path).data[field.offset : field.offset + field.nbytes]
    assert google_crc32c.value(data) == field.crc32c
    return data


def test_every_address_holds_the_field(root, plan):
    for step in range(12):
        explained = loader.explain(plan, step)
        assert [(one.source, one.address.key) for one in explained] == plan.batch_ids(step)
        assert [one.slot for one in explained] == list(range(9))
        slots = plan.slots(step)
        for one in explained:
            name, i = one.source, int(one.address.key[-3:])
            assert (one.step, one.epoch, one.position) == (
                step,
                slots.epoch[one.slot],
                slots.position[one.slot],
            )
            assert one.address.ordinal == slots.ordinal[one.slot]
            fields = one.address.fields
            assert list(fields) == list(plan.sources[name].view.fields)
            assert read_field(root, name, i, fields["txt"]) == f"{name} {i}".encode() * (i % 4)
            for field, at in fields.items():
                with tarfile.open(os.path.join(root.url, at.path)) as tar:
                    (member,) = [m for m in tar if m.offset_data == at.offset]
                    assert member.size == at.nbytes
                    assert member.name == f"{one.address.key}.{field}"
                assert at.group == {"txt": "media", "x.npy": "arrays"}[field]


def test_provenance_is_what_the_writer_said(plan):
    seen = set()
    for step in range(8):
        for one in loader.explain(plan, step):
            name, i = one.source, int(one.address.key[-3:])
            wanted = {"raw_uri": f"s3://raw/{name}/{i}.bin"}
            if i % 2:
                wanted |= {"raw_sha256": f"{i:064x}", "run_id": "run-7"}
            assert one.provenance == wanted
            seen.add(one.address.part)
    assert len(seen) > 6  # parts of several runs


@pytest.mark.parametrize("world_size", [1, 2, 4, 9])
def test_ranks_together_explain_the_whole_batch(plan, world_size):
    whole = loader.explain(plan, 3)
    parts = [loader.explain(plan, 3, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert [one for part in parts for one in part] == whole
    for rank, part in enumerate(parts):
        with loader.Loader(plan, rank, world_size, workers=0) as batches:
            assert batches.batch_at(3).ids == [(one.source, one.address.key) for one in part]
        for number, one in enumerate(part):
            assert loader.explain(plan, 3, rank, world_size, slot=number) == [one]
    assert loader.explain(plan, 3, slot=7) == whole[7:8]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"slot": 9}, {"what": "slot", "given": 9}),
        ({"slot": -1}, {"what": "slot", "given": -1}),
        ({"rank": 0, "world_size": 3, "slot": 3}, {"what": "slot", "given": 3}),
        ({"rank": 3, "world_size": 3}, {"what": "rank", "given": 3}),
        ({"rank": 0}, {"what": "rank", "given": [0, None]}),
        ({"rank": 0, "world_size": 10}, {"what": "world_size", "given": 10}),
        ({"step": -1}, {"what": "step", "given": -1}),
        ({"step": 0.5}, {"what": "step", "given": 0.5}),
    ],
)
def test_what_cannot_be_explained(plan, arguments, fault: dict[str, object]):
    with refusal(InvalidRuntime, **fault):
        loader.explain(plan, **{"step": 2, **arguments})


def test_synthetic_source_has_no_bytes():
    plan = loader.plan({"s": loader.synthetic(50)}, seed=1, global_batch=5)
    with refusal(InvalidRuntime, what="source 's'", given="SyntheticView"):
        loader.explain(plan, 0)


def test_no_media_is_read(root, plan):
    for one in loader.explain(plan, 0):
        for at in one.address.fields.values():
            path = os.path.join(root.url, at.path)
            if os.path.exists(path):
                os.unlink(path)
    assert len(loader.explain(plan, 0)) == 9


OTHER = """
import json, sys
import loader

plan = loader.open_plan(loader.Root(sys.argv[1]), sys.argv[2])
assert plan.hash == sys.argv[2]
print(json.dumps([[one.to_json() for one in loader.explain(plan, step)] for step in (0, 5)]))
"""


def test_another_process_explains_a_saved_plan_alike(root, plan):
    plan.save(root)
    plan.save(root)
    done = python("-c", OTHER, root.url, plan.hash, check=True)
    assert json.loads(done.stdout) == [
        [one.to_json() for one in loader.explain(plan, step)] for step in (0, 5)
    ]


def test_unknown_plan(root, plan):
    plan.save(root)
    for unknown in ("p-" + "0" * 64, "latest", plan.hash[:-1]):
        with refusal(InvalidPlan, what="plan", where=root.url, given=unknown):
            loader.open_plan(root, unknown)


def test_what_it_prints_for_people(root, plan):
    one = next(one for step in range(9) for one in loader.explain(plan, step) if "run_id" in one.provenance)
    text = str(one)
    at = one.address.fields["x.npy"]
    for part in (
        f"step {one.step} slot {one.slot}",
        repr(one.address.key),
        one.address.version,
        one.address.version_id,
        one.address.part,
        f"{root.url}/{at.path} bytes [{at.offset}:{at.offset + at.nbytes}] crc32c {at.crc32c:08x}",
        one.provenance["raw_uri"],
        "run-7",
    ):
        assert part in text
    assert one.to_json()["fields"]["x.npy"]["crc32c"] == f"{at.crc32c:08x}"
