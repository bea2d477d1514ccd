"""Documents whose pieces are copied by one call, and others that need a decoder: the batches are the same."""

import io

import numpy as np
import pytest
from numpy.lib import format as npy_format

import loader
from loader.native import python
from loader.run.making import sequence_rows

TOKENS, MASK = "tokens.npy", "mask.npy"
N_DOCUMENTS = 40
PACK = loader.pack(TOKENS, 64, pad_id=9, lengths="n", beside={MASK: False})


def tokens(number):
    n = number * 7 % 50 + 1
    return (number * 100 + np.arange(n)).astype("<i4")


def usual(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def of_format_2(values):
    file = io.BytesIO()
    npy_format.write_array(file, values, version=(2, 0))
    return file.getvalue()


def with_short_header(values):
    """As numpy wrote it before it left room for a longer number of rows."""
    text = b"{'descr': %r, 'fortran_order': False, 'shape': (%d,), }" % (values.dtype.str, len(values))
    text = text.replace(b"b'", b"'").ljust(69) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values.tobytes()


def in_fortran_order(values):
    return usual(values).replace(b"'fortran_order': False", b"'fortran_order': True ")


HEADERS = [usual, of_format_2, with_short_header, in_fortran_order]


def write(root, header=lambda number: usual):
    with root.write("docs", part_samples=15) as writer:
        for number in range(N_DOCUMENTS):
            values = tokens(number)
            encoded = header(number)
            fields = {TOKENS: encoded(values), MASK: encoded(values % 3 == 0)}
            writer.add(f"{number:03d}", fields, metadata={"n": len(values)})
    return writer.version


def read_batches(version, **options):
    view = version.select(TOKENS, MASK)
    plan = loader.plan({"docs": view}, seed=3, global_batch=4, boundary="mask", pack=PACK)
    with loader.Loader(plan, 0, 1, epochs=1, workers=0, framework="numpy", **options) as batches:
        return list(batches)


def field_values(batch):
    return {name: values.tobytes() for name, values in batch.fields.items()}


def batch_documents(batches):
    """Return document number -> (its tokens, its mask), from the batches' segments."""
    documents = {}
    for batch in batches:
        for row in np.flatnonzero(batch.mask).tolist():
            segments = batch[f"{TOKENS}.segment_ids"][row]
            for segment in range(1, int(segments.max()) + 1):
                is_own = segments == segment
                if is_own.any():
                    values = batch[TOKENS][row][is_own]
                    documents[int(values[0]) // 100] = (values.tolist(), batch[MASK][row][is_own].tolist())
    return documents


@pytest.fixture(params=["disk", "bucket"])
def root(request, tmp_path, memory_root):
    if request.param == "bucket":
        yield memory_root
        return
    with loader.Root(str(tmp_path / "root")) as on_disk:
        on_disk.create()
        yield on_disk


def test_documents_of_any_header_are_delivered(root):
    version = write(root, lambda number: HEADERS[number % len(HEADERS)])
    expected = {}
    for number in range(N_DOCUMENTS):
        values = tokens(number)
        expected[number] = (values.tolist(), (values % 3 == 0).tolist())
    assert batch_documents(read_batches(version)) == expected


def test_own_decoder_and_python_make_the_same_batches(root, monkeypatch):
    version = write(root)
    expected = read_batches(version)
    own = read_batches(version, decode={TOKENS: lambda data, rng=None: np.load(io.BytesIO(data))})
    with monkeypatch.context() as patch:
        patch.setattr(sequence_rows, "copy_pieces", python.copy_pieces)
        patch.setattr(sequence_rows, "number_pieces", python.number_pieces)
        in_python = read_batches(version)
    for batches in (own, in_python):
        assert [field_values(batch) for batch in batches] == [field_values(batch) for batch in expected]
        assert [batch.digest for batch in batches] == [batch.digest for batch in expected]


def damage(root, version, number, field):
    """Change the last byte of a document's field in its shard."""
    addresses = {one.key: one for one in version.address(np.arange(N_DOCUMENTS), [field])}
    place = addresses[f"{number:03d}"].fields[field]
    data = bytearray(root.store.get(place.path).data)
    data[place.offset + place.nbytes - 1] ^= 1
    root.store.delete_many([place.path])
    root.store.put_if_absent(place.path, bytes(data))


@pytest.mark.parametrize("field", [TOKENS, MASK])
def test_document_with_one_corrupt_field_is_masked_in_all(root, field):
    version = write(root)
    whole = batch_documents(read_batches(version))
    damage(root, version, 5, field)
    reopened = root.open("docs@1")
    batches = read_batches(reopened, corrupt_budget=1.0)
    del whole[5]
    assert batch_documents(batches) == whole
    substitutions = [one for batch in batches for one in batch.substitutions]
    assert [one.address.key for one in substitutions] == ["005"]
    for batch in batches:
        without_token = batch[f"{TOKENS}.segment_ids"][batch.mask] == 0
        assert (batch[TOKENS][batch.mask][without_token] == 9).all()
        assert not batch[MASK][batch.mask][without_token].any()


def test_sample_of_a_transform_is_its_own(root):
    """A transform may change or keep it."""
    samples = []

    def keep(sample, rng):
        samples.append(sample)
        sample[TOKENS] += 1
        return sample

    version = write(root)
    expected = read_batches(version)
    changed = read_batches(version, transform=keep)
    for batch, other in zip(expected, changed, strict=True):
        rows = batch.mask
        assert np.array_equal(batch[TOKENS][rows] + 1, other[TOKENS][rows])
    assert len(samples) == sum(int(batch.mask.sum()) for batch in expected)
    assert all(sample[TOKENS].base is None for sample in samples)
