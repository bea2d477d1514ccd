"""The digest of a version's content: equal for equal samples however they lie, another one for every difference."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import InvalidRuntime
from penstock.formats.content_digest import _hash, content_digest
from tests.refusals import refusal

NUMBERS = itertools.count()
SAMPLES = {
    f"k{i}": ({"bin": bytes([i]) * (3 + i), "x.npy": np.arange(i)}, {"w": i, "kind": "ab"[i % 2]})
    for i in range(7)
}


def write_version(folder, samples, **how):
    """A version of these samples in a root of its own."""
    with loader.Root(folder / f"root{next(NUMBERS)}").write("d", **how) as writer:
        for key, (fields, metadata) in samples.items():
            writer.add(key, fields, metadata=metadata, source={"raw_uri": f"s3://{next(NUMBERS)}"})
    return writer.version


def digest(version, **how):
    done = content_digest(version, **how)
    assert done.failures == []
    assert done.samples == len(version)
    return done.digest


@settings(max_examples=10, deadline=None)
@given(
    order=st.permutations(sorted(SAMPLES)), part=st.integers(1, 8), grouped=st.booleans(), full=st.booleans()
)
def test_order_parts_and_groups_do_not_count(tmp_path_factory, order, part, grouped, full) -> None:
    folder = tmp_path_factory.mktemp("digest")
    groups = {"x.npy": "arrays"} if grouped else None
    version = write_version(folder, {key: SAMPLES[key] for key in order}, part_samples=part, groups=groups)
    assert digest(version, full=full) == digest(write_version(folder, SAMPLES), full=full)


def change_sample(key="k3", fields=None, metadata=None, new_key=None):
    samples = {name: (dict(one), dict(row)) for name, (one, row) in SAMPLES.items()}
    samples[key][0].update(fields or {})
    samples[key][1].update(metadata or {})
    if new_key:
        samples[new_key] = samples.pop(key)
    return samples


@pytest.mark.parametrize("full", [False, True])
def test_every_difference_counts(tmp_path, full) -> None:
    swapped = change_sample()
    swapped["k2"], swapped["k3"] = SAMPLES["k3"], SAMPLES["k2"]
    renamed = {
        key: ({"bim" if name == "bin" else name: data for name, data in fields.items()}, row)
        for key, (fields, row) in SAMPLES.items()
    }
    fewer = {key: one for key, one in SAMPLES.items() if key != "k6"}
    differing = [
        SAMPLES,
        change_sample(fields={"bin": b"\3" * 5 + b"\4"}),
        change_sample(fields={"bin": b"\3" * 7}),
        change_sample(metadata={"kind": "a"}),
        change_sample(metadata={"w": None}),
        change_sample(new_key="k33"),
        swapped,
        renamed,
        fewer,
    ]
    digests = [digest(write_version(tmp_path, samples), full=full) for samples in differing]
    assert len(set(digests)) == len(differing)
    version = write_version(tmp_path, SAMPLES)
    with loader.Root(version.store.url) as root:
        excluded = root.exclude("d", ["k6"], reason="none")
        assert digest(root.open(excluded.name), full=full) == digests[-1]


def test_parts_of_a_hash_do_not_run_into_one_another() -> None:
    assert len({_hash(b"a", b"bc"), _hash(b"ab", b"c"), _hash(b"abc"), _hash(b"abc", b"")}) == 4


def test_what_is_left_out_does_not_count(tmp_path) -> None:
    plain = {key: ({"bin": fields["bin"]}, {"w": row["w"]}) for key, (fields, row) in SAMPLES.items()}
    without = ["x.npy", "kind"]
    assert digest(write_version(tmp_path, SAMPLES), without=without) == digest(write_version(tmp_path, plain))


def test_damaged_byte_gives_no_digest(tmp_path, cli) -> None:
    version = write_version(tmp_path, SAMPLES)
    (tar,) = (tmp_path / version.store.url).rglob("*.tar")
    data = bytearray(tar.read_bytes())
    data[data.index(b"\5" * 8)] ^= 1
    tar.chmod(0o644)
    tar.write_bytes(data)
    believed = cli("digest", "d", root=version.store.url)
    assert believed.code == 0
    assert believed.out.startswith(digest(version))
    read = cli("digest", "d", "--full", "--json", root=version.store.url)
    assert read.code == 1
    assert read.json["digest"] == ""
    assert "k5" in read.json["failures"][0]


def test_number_of_threads_is_needed(tmp_path) -> None:
    with refusal(InvalidRuntime, what="--workers", given=0, accepted="a number above 0"):
        content_digest(write_version(tmp_path, SAMPLES), workers=0)
