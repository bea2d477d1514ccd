"""A machine without memory is not a damaged table: Arrow raises one class of error for both."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import loader
from loader.dataset.tables import parquet
from loader.dataset.tables.parquet import parse_table
from loader.dataset.tables.small_tables import parse_small_table
from loader.errors import Corrupt
from loader.modalities.fields import is_machine_fault

LARGE = pa.ArrowMemoryError("malloc of size 68719476736 failed")
IMPOSSIBLE = pa.ArrowMemoryError("malloc of size 281474976710720 failed")
names = itertools.count()


def raises(error):
    def read(*arguments, **options):
        raise error

    return read


@pytest.mark.parametrize(("error", "wanted"), [(LARGE, MemoryError), (IMPOSSIBLE, Corrupt)])
@pytest.mark.parametrize("parse", [parse_table, parse_small_table])
def test_table_without_memory_is_not_corrupt(monkeypatch, parse, error, wanted):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), sink)
    monkeypatch.setattr(pq.ParquetFile, "read", raises(error))
    with pytest.raises(wanted) as caught:
        parse(sink.getvalue().to_pybytes(), "a.parquet")
    assert isinstance(caught.value, Corrupt) == (wanted is Corrupt)


@pytest.mark.parametrize(("error", "wanted"), [(LARGE, MemoryError), (IMPOSSIBLE, Corrupt)])
def test_index_without_memory_is_not_corrupt(monkeypatch, error, wanted):
    with loader.Root(f"memory://table-memory-{next(names)}") as root:
        with root.write("points") as writer:
            for number in range(8):
                writer.add(f"{number}", {"x.npy": np.zeros(1, np.float32)})
        plan = loader.plan({"points": root.open("points@1")}, seed=1, global_batch=4)
        monkeypatch.setattr(pq.ParquetFile, "read_row_group", raises(error))
        monkeypatch.setattr(pq.ParquetFile, "read", raises(error))
        with loader.Loader(plan, 0, 1, workers=0) as batches:
            with pytest.raises(wanted) as caught:
                next(batches)
            assert batches.metrics()["substituted_total"] == 0
    assert isinstance(caught.value, Corrupt) == (wanted is Corrupt)


def test_size_that_no_machine_has_is_of_the_bytes():
    assert is_machine_fault(LARGE)
    assert not is_machine_fault(IMPOSSIBLE)
    assert is_machine_fault(pa.ArrowMemoryError("x"))


def test_string_array_refuses_more_text_than_its_offsets_reach(monkeypatch):
    assert parquet.string_array(["ä", "", "bc"]).to_pylist() == ["ä", "", "bc"]
    monkeypatch.setattr(parquet, "MAX_TEXT_BYTES", 3)
    assert parquet.string_array(["ä", "b"]).to_pylist() == ["ä", "b"]
    with pytest.raises(ValueError) as refused:
        parquet.string_array(["ä", "", "bc"])
    assert str(refused.value) == "4 bytes of texts; an array has at most 3"
