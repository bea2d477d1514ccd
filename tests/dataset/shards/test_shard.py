"""A shard is a tar that tarfile and webdataset read; the same samples give the same bytes."""

import hashlib
import io
import json
import string
import subprocess
from pathlib import Path
from unittest.mock import patch

import google_crc32c
import numpy as np
import pytest
import webdataset
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loader.dataset.names import check_field, check_key, member_name, member_names
from loader.dataset.shards import shard
from loader.dataset.writing.part_writer import make_sample
from loader.errors import FieldTooLarge, InvalidField, InvalidKey
from loader.storage.disk.folder_files import DIRECT_ALIGNMENT, DIRECT_BYTES
from tests.refusals import refusal
from tests.servers.processes import python

CI = settings(max_examples=40, deadline=None, derandomize=True)


def is_accepted(check, *args):
    try:
        check(*args)
    except (InvalidKey, InvalidField):
        return False
    return True


keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(
    lambda k: is_accepted(check_key, k)
)
word = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=8)
fields = st.lists(word, min_size=1, max_size=3).map(".".join).filter(lambda f: is_accepted(check_field, f))
payload = st.binary(max_size=1600)


@st.composite
def samples(draw, max_size=8):
    names = draw(st.lists(fields, min_size=1, max_size=3, unique_by=str.lower))
    chosen = draw(st.lists(keys, min_size=1, max_size=max_size, unique=True))
    fit = [k for k in chosen if all(is_accepted(member_name, k, f) for f in names)]
    return {key: {name: draw(payload) for name in names} for key in fit or ["k"]}


@CI
@given(samples())
def test_tarfile_reads_it_and_offsets_point_at_payloads(properties, made):
    properties.tar_holds(made)


@CI
@given(samples(), st.randoms(use_true_random=False))
def test_order_of_adding_changes_no_byte(properties, made, random):
    """The order of adding, and whether samples were spilled, change no byte of the shard."""
    order = list(made)
    random.shuffle(order)
    samples = made
    orders = [order, order[::-1]]
    memory_bytes = 400
    hashes = {hashlib.sha256(properties.make_shard(samples)[0]).hexdigest()}
    for order in orders:
        shuffled = {key: samples[key] for key in order}
        for limit in (memory_bytes, 2**20):
            hashes.add(hashlib.sha256(properties.make_shard(shuffled, limit)[0]).hexdigest())
    assert len(hashes) == 1


@CI
@given(samples(), st.data(), st.integers(0, 100_000))
def test_members_in_blocks_are_those_that_come_one_by_one(made, data, larger):
    """The same bytes and places, and digests as of the file, however many are taken at once."""
    members = [(key, name, body) for key, row in made.items() for name, body in row.items()]
    members.append(("larger", "bin", bytes(100_000 + larger)))
    one_by_one, in_blocks = [], []
    with patch.object(shard, "WRITE_BYTES", shard.PAGE_BYTES):
        writer = shard.ShardWriter(lambda block: one_by_one.append(bytes(block)))
        places = [writer.add(*member) for member in members]
        hashed = writer.finish(), writer.pages
        writer, found = shard.ShardWriter(lambda block: in_blocks.append(bytes(block))), []
        while len(found) < len(members):
            some = members[len(found) : len(found) + data.draw(st.integers(1, 4))]

            def fill(memory, at, some=some):
                for start, (_, _, body) in zip(at.tolist(), some, strict=True):
                    memory[start : start + len(body)] = np.frombuffer(body, np.uint8)
                return np.array([google_crc32c.value(body) for _, _, body in some])

            sizes = np.array([len(body) for _, _, body in some])
            names = [member_name(key, name) for key, name, _ in some]
            found += map(tuple, writer.add_many(names, sizes, fill).tolist())
    assert (found, writer.finish(), writer.pages) == (places, *hashed)
    file = b"".join(in_blocks)
    assert file == b"".join(one_by_one)
    assert hashed[0] == hashlib.sha256(file).hexdigest()
    pages = [file[at : at + shard.PAGE_BYTES] for at in range(0, len(file), shard.PAGE_BYTES)]
    assert hashed[1] == b"".join(hashlib.sha256(page).digest() for page in pages)


class Writes:
    """Takes a shard's blocks: their bytes, sizes and addresses."""

    def __init__(self):
        self.whole, self.sizes, self.addresses = hashlib.sha256(), [], []

    def __call__(self, block):
        self.whole.update(block)
        self.sizes.append(len(block))
        self.addresses.append(np.frombuffer(block, np.uint8).ctypes.data)


def write_shard(payloads):
    """Return what writing the payloads gives: (rows, SHA-256, page hashes, SHA-256 of the blocks), and the blocks."""
    writes = Writes()
    writer = shard.ShardWriter(writes)
    rows = [writer.add(f"k{number}", "bin", data) for number, data in enumerate(payloads)]
    return (rows, writer.finish(), writer.pages, writes.whole.hexdigest()), writes


MIB = 2**20


@pytest.mark.parametrize(
    "nbytes", [2 * MIB, 2 * MIB + 1, 4 * MIB - 512, 4 * MIB, 4 * MIB - 1024, 9 * MIB + 3]
)
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_large_payload_gives_the_bytes_of_small_writes(nbytes, kind):
    large = np.random.default_rng(nbytes).bytes(nbytes)
    payloads = [b"before", kind(large), b"between", kind(large[5:]), b""]
    in_pieces, _ = write_shard(payloads)
    with patch.object(shard, "LARGE_BYTES", 2**40):
        at_once, _ = write_shard(payloads)
    assert in_pieces == at_once


def test_large_payload_is_written_past_the_page_cache():
    """A folder takes writes that are large and aligned without another copy of their bytes."""
    _, writes = write_shard([b"before", bytes(20 * MIB)])
    *blocks, _ = writes.sizes
    assert min(blocks) >= DIRECT_BYTES
    assert [address % DIRECT_ALIGNMENT for address in writes.addresses] == [0] * len(writes.addresses)


@CI
@given(
    st.lists(keys | st.sampled_from(["__a__", "k" * 146, "k" * 147]), max_size=4),
    st.lists(fields, max_size=3),
)
@example(["__a__/b"], ["cls"])
def test_names_of_members_are_those_of_each(some, names):
    try:
        each = [member_name(key, name) for key in some for name in names]
    except InvalidKey as error:
        with refusal(InvalidKey, **error.fields):
            member_names(some, names)
        return
    assert member_names(some, names) == each


@CI
@given(st.lists(keys, min_size=1, max_size=12, unique=True))
def test_samples_lie_in_hash_order(properties, made):
    """Samples lie in the order of their key's blake2b-128, whatever the keys are."""
    keys = [k for k in made if is_accepted(member_name, k, "x")] or ["k"]
    _, rows = properties.make_shard({key: {"x": b"."} for key in keys})
    found = [key for group in rows for key in group.keys]
    assert found == sorted(keys, key=lambda key: hashlib.blake2b(key.encode(), digest_size=16).digest())


@CI
@given(samples())
def test_webdataset_reads_it(properties, made):
    shard = {"url": "shard.tar", "stream": io.BytesIO(properties.make_shard(made)[0])}
    files = webdataset.tariterators.tar_file_expander([shard])
    found = {
        sample.pop("__key__"): {name: data for name, data in sample.items() if not name.startswith("__")}
        for sample in webdataset.tariterators.group_by_keys(files)
    }
    assert found == {key: {f.lower(): data for f, data in row.items()} for key, row in made.items()}


def test_order_of_fields_changes_no_byte(properties):
    made = {f"k{i}": {"b.bin": b"%d" % i * 99, "a": b"%d" % i} for i in range(12)}
    backwards = {key: dict(reversed(fields.items())) for key, fields in made.items()}
    assert properties.make_shard(made)[0] == properties.make_shard(backwards)[0]


def test_webdataset_reads_the_file(properties, tmp_path):
    """In a process of its own: webdataset leaves the file open."""
    made = {f"{'long/' * (i * 2)}k{i}": {"cls": b"%d" % i, "a.txt": b"x" * i * 300} for i in range(9)}
    (tmp_path / "s.tar").write_bytes(properties.make_shard(made)[0])
    code = (
        "import webdataset, json; print(json.dumps({s['__key__']: [s['cls'].decode(), len(s['a.txt'])] "
        "for s in webdataset.WebDataset('s.tar', shardshuffle=False)}))"
    )
    run = python("-c", code, check=True, cwd=tmp_path)
    assert json.loads(run.stdout) == {
        key: [row["cls"].decode(), len(row["a.txt"])] for key, row in made.items()
    }


@pytest.mark.parametrize("nbytes", range(95, 151))
@pytest.mark.parametrize("letter", ["a", "é", "a/"])
def test_long_names(properties, nbytes, letter):
    """Names that ustar cannot hold get a pax header; every length around the borders is read back."""
    room = nbytes - len(".x")
    key = (letter * nbytes)[: room // len(letter.encode()) * len(letter)]
    key = key.rstrip("/") + "b" * (room - len(key.rstrip("/").encode()))
    assert len(member_name(key, "x").encode()) == nbytes
    properties.tar_holds({key: {"x": b"1" * nbytes}, "other": {"x": b"2"}})


def test_gnu_tar_and_python_extract_the_same(properties, tmp_path):
    made = {key: {"x": key.encode()} for key in ("a", "d/é", "p" * 140, "q/" * 60 + "r", "-v", " ", "*")}
    (tmp_path / "s.tar").write_bytes(properties.make_shard(made)[0])
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "xf", "s.tar", "-C", "out"], cwd=tmp_path, check=True, capture_output=True)
    for key in made:
        assert (tmp_path / "out" / f"{key}.x").read_bytes() == key.encode()


BAD_KEYS = {
    "": "is empty",
    "/a": "starts with '/'",
    "a//b": "has an empty, '.' or '..' component",
    "a/": "has an empty, '.' or '..' component",
    "../a": "has an empty, '.' or '..' component",
    "a/./b": "has an empty, '.' or '..' component",
    "a.b": "has a '.' in its last component",
    "d/a.jpg": "has a '.' in its last component",
    "a\0b": "contains a control character",
    "a\nb": "contains a control character",
    "a\x7f": "contains a control character",
    "a\ud800": "is not encodable as UTF-8",
    7: "is a int",
    b"a": "is a bytes",
    None: "is a NoneType",
}


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_keys(key):
    with pytest.raises(InvalidKey) as caught:
        make_sample(key, {"cls": 1})
    assert BAD_KEYS[key] in str(caught.value)
    assert repr(key) in str(caught.value)


@pytest.mark.parametrize("key", ["a" * 150, "é" * 74, "__meta__/a", "__meta"])
def test_keys_that_no_reader_would_find(key):
    with pytest.raises(InvalidKey) as caught:
        make_sample(key, {"x__": b""})
    assert repr(key) in str(caught.value)
    assert "'x__'" in str(caught.value)


@pytest.mark.parametrize(
    "field",
    ["pkl", "a.pkl", "a.PTH", "pickle", "pt", "x.joblib", "", ".jpg", "a..b", "a b", "__key__", "ä", 3],
)
def test_refused_fields(field):
    with pytest.raises(InvalidField) as caught:
        make_sample("k", {field: b""})
    assert repr(field) in str(caught.value)


def test_fields_that_differ_in_case_only():
    with refusal(InvalidField, what="field", where="sample 'k'", given=["JPG", "jpg"]):
        make_sample("k", {"JPG": b"", "jpg": b""})


def test_field_of_5_gib_is_refused_before_it_is_copied():
    """The memory is reserved, never touched: had a byte-wise copy begun, this would need 5 GiB."""
    import mmap

    import numpy as np

    Path("/proc/self/clear_refs").write_text("5")  # the peak of what ran before in this process is forgotten
    before = resident_kib("VmRSS")
    with mmap.mmap(-1, 5 * 2**30) as mapped:
        view = memoryview(mapped)
        array = np.frombuffer(view, np.uint8)
        for field, value in (("mp4", view), ("mp4", mapped), ("x.npy", array)):
            with pytest.raises(FieldTooLarge, match=f"field '{field}' of sample 'k'.*5368709120"):
                make_sample("k", {field: value})
        del array, value
        view.release()
    assert resident_kib("VmHWM") - before < 2**18


def resident_kib(line):
    status = Path("/proc/self/status").read_text()
    return next(int(one.split()[1]) for one in status.splitlines() if one.startswith(line))


def test_escape_key_gives_valid_keys_that_differ():
    from loader import escape_key

    texts = [
        "a.jpg",
        "a%2Ejpg",
        "",
        "/",
        "//",
        "a/",
        "/a",
        "..",
        "x/../y",
        "\udcff",
        "a\n",
        "%",
        "a%",
        "ü/ö.ä",
    ]
    escaped = [check_key(escape_key(text)) for text in texts]
    assert len(set(escaped)) == len(texts)
    again = [escape_key(text) for text in escaped]
    assert len(set(again)) == len(texts)


def test_escape_key_refuses_half_a_character():
    from loader import escape_key

    with refusal(InvalidKey, what="key", given="a\ud800"):
        escape_key("a\ud800")


@CI
@given(st.lists(st.text(max_size=12), unique=True, max_size=6))
def test_escape_key_is_injective(texts):
    from loader import escape_key

    escaped = [check_key(escape_key(text)) for text in texts]
    assert len(set(escaped)) == len(texts)
