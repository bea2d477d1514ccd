"""The sample that an item of a dataset becomes."""

from collections import namedtuple

import numpy as np
import pytest
from PIL import Image

from loader.errors import InvalidSample
from loader.run.items.item_fields import item_columns, item_fields
from tests.refusals import refusal

Pair = namedtuple("Pair", "image label")


@pytest.mark.parametrize(
    ("item", "names", "fields"),
    [
        ({"image": 1, "label": 2}, None, {"image": 1, "label": 2}),
        (
            {"image": 1, "meta": {"size": {"w": 3}, "id": 4}},
            None,
            {"image": 1, "meta.size.w": 3, "meta.id": 4},
        ),
        ((1, 2), None, {"0": 1, "1": 2}),
        ((1, 2), ("image", "label"), {"image": 1, "label": 2}),
        (Pair(1, 2), ("a", "b"), {"image": 1, "label": 2}),
        (7, None, {"item": 7}),
        ([1, 2], None, {"item": [1, 2]}),
        ((1, {"a": 2}), None, {"0": 1, "1.a": 2}),
    ],
)
def test_item_becomes_fields(item, names, fields):
    assert item_fields(item, names) == fields


def test_image_becomes_an_array():
    image = Image.new("RGB", (3, 2), (1, 2, 3))
    array = item_fields((image, 5), None)["0"]
    assert array.dtype == np.uint8
    assert array.shape == (2, 3, 3)
    assert array[1, 2].tolist() == [1, 2, 3]


class Own:
    pass


@pytest.mark.parametrize(
    ("item", "names", "says"),
    [
        (None, None, "it is None, as if __getitem__ had no return"),
        ((number for number in ()), None, "it is a generator, which can be read once only"),
        (iter([1]), None, "it is a list_iterator, which can be read once only"),
        ({1: 2}, None, "it has the field 1; a field's name is a string"),
        ({"a": {2: 3}}, None, "it has the field a.2; a field's name is a string"),
        ({"a.b": 1, "a": {"b": 2}}, None, "it has the field 'a.b' twice"),
        ((1, 2, 3), ("image", "label"), "it is a tuple of 3 values, and fields = ('image', 'label') names 2"),
        ({}, None, "it is empty"),
        ((), None, "it is empty"),
    ],
)
def test_item_that_is_no_sample_says_why(item, names, says):
    with pytest.raises(InvalidSample) as raised:
        item_fields(item, names)
    assert says in str(raised.value)


def test_dataset_that_returns_itself_is_refused():
    dataset = Own()
    with refusal(InvalidSample, what="item", given="the dataset"):
        item_fields(dataset, None, dataset)


@pytest.mark.parametrize(
    ("items", "names"),
    [
        ([(1, "a"), (2, "b")], None),
        ([(1, "a"), (2, "b")], ("number", "text")),
        ([{"a": 1, "b": 2}, {"a": 3, "b": 4}], None),
        ([7, 8], None),
        ([[1], [2, 3]], ("a",)),
    ],
)
def test_items_of_one_form_become_columns(items, names):
    columns = item_columns(items, names)
    fields = [item_fields(item, names) for item in items]
    assert list(columns) == list(fields[0])
    assert columns == {name: [sample[name] for sample in fields] for name in columns}


@pytest.mark.parametrize(
    ("items", "names"),
    [
        ([(1,), (1, 2)], None),
        ([(1, 2)], ("a",)),
        ([()], None),
        ([{}], None),
        ([{"a": 1}, {"b": 1}], None),
        ([{1: 1}], None),
        ([{"a": {"b": 1}}, {"a": {"b": 2}}], None),
        ([(1, {"a": 1})], None),
        ([(Image.new("RGB", (3, 2)), 5)], None),
        ([Pair(1, 2)], None),
        ([None], None),
        ([iter([1])], None),
        ([1, "a"], None),
        ([ValueError()], None),
    ],
)
def test_other_items_are_looked_at_one_by_one(items, names):
    assert item_columns(items, names, dataset=ValueError()) is None
