"""`loader.items`: a dataset that you bring as a source of a plan."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import EmptyView, InvalidPlan, PlanMismatch
from ..order.random.lanes import MAX_SAMPLES
from ..order.sources.items_source import Dataset, ItemKeys, ItemsSource
from ..order.sources.items_view import ItemsView, check_keys, escape_text, fingerprint_of_keys

ACCEPTED = (
    "a dataset with __len__ and __getitem__(int), or a function without arguments that returns one, is needed"
)


def items(
    dataset: Dataset | Callable[[], Dataset],
    *,
    name: str | None = None,
    fields: Sequence[str] | None = None,
    keys: ItemKeys | None = None,
    fingerprint: str | None = None,
    length: int | None = None,
    seeded: bool | Callable[[Any, np.random.Generator], object] = True,
    collate: Callable[[list[Any]], Any] | None = None,
) -> ItemsView:
    """Return a dataset as a plan's source: a torch `Dataset`, a Hugging Face dataset, a list, or your own class.

    Args:
        dataset: Has `__len__` and `__getitem__(int)`; `__getitems__(list)` is used if it exists. Or a function without
            arguments that returns one, called once in each process: for open files and databases. It is called here for
            the length, unless `length` is stated, and its result closed by `close()` if it has one.
        name: Name of the data, in messages and digests; None is the source's name in the plan.
        fields: Names of a tuple's values, such as ("image", "label"); None names them "0", "1", and so on.
        keys: Names of the items, a list or a function `int -> str`; None names them by their ordinals.
        fingerprint: Any text that changes if the content does. None takes a Hugging Face dataset's own, or a hash of a
            list of `keys`; without both, changed content of the same length goes unnoticed.
        length: Number of items; None asks the dataset.
        seeded: True seeds Python's, numpy's and torch's global generators for each item. `function(dataset, rng)` seeds
            the dataset's own generators from `rng`. False accepts items that differ from run to run.
        collate: `collate(items) -> anything`, as torch's `collate_fn`. It gets a rank's items of a step as the dataset
            returned them, before any transform, without padding. Its result is `batch.collated`; the fields stay. Only
            for a plan with one source, and without `micro_batch`.

    Raises: InvalidPlan for anything that is not a dataset, with the way out; EmptyView for one without items.
    """
    is_factory = _is_opener(dataset)
    opened: Any = dataset
    if is_factory and length is None:
        opened = opened()
    if is_factory and length is None and _is_opener(opened):
        message = f"the function {_describe(dataset)} returns another function; {ACCEPTED}"
        raise InvalidPlan(message, what="dataset", given=_describe(dataset), accepted="a dataset")
    n = _dataset_length(opened, length)
    names = check_keys(keys, n)
    known_fingerprint = _keys_fingerprint(opened, _check_text("fingerprint", fingerprint), names)
    if opened is not dataset:
        # Each process opens its own; this one was opened for its length.
        close = getattr(opened, "close", None)
        if callable(close):
            close()
    source = ItemsSource(
        dataset=dataset,
        is_factory=is_factory,
        fields=_check_fields(fields),
        keys=names,
        seeded=_check_seeded(seeded),
        collate=_check_collate(collate),
    )
    return ItemsView(
        _check_text("name", name),
        n,
        known_fingerprint,
        source,
    )


def items_again(spec: Mapping[str, Any], datasets: Mapping[str, Any]) -> ItemsView:
    """Return the view of a saved plan over its dataset; without the dataset if none is passed.

    Raises: InvalidPlan; PlanMismatch if the dataset is another one than was planned.
    """
    name: Any = spec.get("name")
    length: Any = spec.get("length")
    fingerprint: Any = spec.get("fingerprint")
    is_text = isinstance(name, str) and isinstance(fingerprint, str)
    is_number = isinstance(length, int) and not isinstance(length, bool)
    if not is_text or not is_number or not 1 <= length <= MAX_SAMPLES:
        raise InvalidPlan(
            f"the plan's JSON is damaged: a view of items is '{escape_text(repr(dict(spec)))}'; a name, a length from "
            f"1 to {MAX_SAMPLES} and a fingerprint are needed",
            what="view",
            given=dict(spec),
            accepted="a name, a length and a fingerprint",
        )
    planned = ItemsView(name, length, fingerprint, None)
    if name not in datasets:
        return planned
    dataset = datasets[name]
    if isinstance(dataset, ItemsView):
        view = dataset
    else:
        view = items(dataset)
    if view.name not in ("", name):
        message = (
            f"items['{escape_text(name)}'] is named {view.name!r}: it is not the dataset that was planned; pass the "
            "one with the plan's name"
        )
        raise PlanMismatch(message, what=f"items[{name!r}]", given=view.name, accepted=name)
    if len(view) != length or view.fingerprint != fingerprint:
        raise PlanMismatch(
            f"items['{escape_text(name)}'] has {len(view)} items and the fingerprint {view.fingerprint!r}, the "
            f"plan {length} and '{escape_text(fingerprint)}': it is not the dataset that was planned. Usual causes are "
            "added files, an unsorted os.listdir and a shuffle() without a seed, and with Hugging Face's datasets "
            "files at another path and a transform that holds a generator; pass the same dataset, or make a new plan",
            what=f"items[{name!r}]",
            given=(len(view), view.fingerprint),
            accepted=(length, fingerprint),
        )
    assert view.source is not None
    return planned.over(view.source)


def _is_opener(dataset: Any) -> bool:
    """Return whether a dataset is a function that opens one. Raises: InvalidPlan for what cannot be a source."""
    shown = _describe(dataset)
    if isinstance(dataset, str | bytes | bytearray):
        message = (
            f"a source is {dataset!r}, which is text and no dataset; open a version with root.open(...), or pass the "
            "dataset itself"
        )
        raise InvalidPlan(message, what="dataset", given=dataset, accepted="a version or a dataset")
    if isinstance(dataset, Mapping):
        raise _mapping_refusal(dataset)
    if _is_instance("torch.utils.data", "DataLoader", dataset):
        message = f"{shown} is a DataLoader, which has an order of its own; pass its .dataset"
        raise InvalidPlan(message, what="dataset", given=shown, accepted="its .dataset")
    if _is_instance("torch.utils.data", "IterableDataset", dataset):
        message = (
            f"{shown} is an IterableDataset, which has no item by number; pass a map-style dataset, or import the "
            "stream into a version (penstock import)"
        )
        raise InvalidPlan(message, what="dataset", given=shown, accepted="a map-style dataset")
    if type(dataset).__module__.partition(".")[0] == "tensorflow":
        message = f"{shown} is TensorFlow's, which has no item by number; pass tfds.data_source(...)"
        raise InvalidPlan(message, what="dataset", given=shown, accepted="tfds.data_source(...)")
    if isinstance(dataset, Iterator):
        raise InvalidPlan(
            f"{shown} can be read once, in one order; pass list(...) of it, or a map-style dataset",
            what="dataset",
            given=shown,
            accepted="list(...) of it, or a map-style dataset",
        )
    # A class may have it for its type arguments; a call of the class opens a dataset.
    if hasattr(dataset, "__getitem__") and not isinstance(dataset, type):
        if not hasattr(dataset, "__len__"):
            message = f"{shown} has no __len__; add one, since the order needs the number of items"
            raise InvalidPlan(message, what="dataset", given=shown, accepted="__len__")
        return False
    if callable(dataset):
        return True
    if hasattr(dataset, "__iter__"):
        message = (
            f"{shown} has no __getitem__(int), and gives its items in an order of its own; pass the dataset that it "
            "reads, which has __len__ and __getitem__(int)"
        )
        raise InvalidPlan(message, what="dataset", given=shown, accepted="__len__ and __getitem__(int)")
    message = f"{shown} has no __getitem__(int); {ACCEPTED}"
    raise InvalidPlan(message, what="dataset", given=shown, accepted="__getitem__(int)")


def _mapping_refusal(mapping: Mapping[Any, Any]) -> InvalidPlan:
    """Return the error for a mapping, such as the splits of a Hugging Face dataset."""
    shown = _describe(mapping)
    for name, value in mapping.items():
        if hasattr(value, "__getitem__") and hasattr(value, "__len__") and not isinstance(value, str | bytes):
            message = f"{shown} is a mapping of datasets; pass one of them, such as [{name!r}] of it"
            return InvalidPlan(message, what="dataset", given=shown, accepted=f"[{name!r}] of it")
    message = f"{shown} is a mapping, whose items have no order; pass list(...) of its values"
    return InvalidPlan(message, what="dataset", given=shown, accepted="list(...) of its values")


def _is_instance(module: str, name: str, value: object) -> bool:
    """Return whether a value is of a class whose module is imported; nothing is imported to find out."""
    # A class whose module is not imported has no instances.
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(value, kind)


def _dataset_length(dataset: Any, length: int | None) -> int:
    n = length
    if n is None:
        try:
            n = len(dataset)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidPlan(
                f"{_describe(dataset)} has no length ({error}); state it with loader.items(length=)",
                what="length",
                where=_describe(dataset),
                accepted="loader.items(length=)",
            ) from None
    # An integer of numpy is accepted too.
    if isinstance(n, bool) or not hasattr(n, "__index__") or not 0 <= n <= MAX_SAMPLES:
        message = (
            f"length = {n!r}: a whole number from 1 to {MAX_SAMPLES} is needed; pass a dataset that repeats without "
            "end before its repeat()"
        )
        raise InvalidPlan(message, what="length", given=n, accepted=f"a whole number from 1 to {MAX_SAMPLES}")
    if n == 0:
        message = f"{_describe(dataset)} has no items; at least 1 is needed"
        raise EmptyView(message, what="length", where=_describe(dataset), given=0, accepted="at least 1")
    return int(n)


def _keys_fingerprint(dataset: Any, text: str, keys: ItemKeys | None) -> str:
    if text:
        return text
    own = getattr(dataset, "_fingerprint", None)  # of Hugging Face's datasets: changes with each transform
    if isinstance(own, str) and own:
        return f"hf-{own}"
    if keys is not None and not callable(keys):
        return fingerprint_of_keys(keys)
    return ""


def _check_text(option: str, value: str | None) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not value:
        message = f"{option} = {value!r}: a string of at least one character is needed"
        raise InvalidPlan(message, what=option, given=value, accepted="a string of at least one character")
    return value


def _check_fields(fields: Sequence[str] | None) -> tuple[str, ...] | None:
    if fields is None:
        return None
    names = tuple(fields)
    if isinstance(fields, str) or not names or not all(isinstance(name, str) and name for name in names):
        message = f"fields = {fields!r}: names of a tuple's values are needed, such as ('image', 'label')"
        raise InvalidPlan(message, what="fields", given=fields, accepted="names of a tuple's values")
    if len(set(names)) < len(names):
        raise InvalidPlan(
            f"fields = {names}: each name once", what="fields", given=names, accepted="each name once"
        )
    return names


def _check_seeded(seeded: Any) -> Any:
    if isinstance(seeded, bool) or callable(seeded):
        return seeded
    raise InvalidPlan(
        f"seeded = {seeded!r}; accepted: True, False, or a function (dataset, rng)",
        what="seeded",
        given=seeded,
        accepted="True, False, or a function (dataset, rng)",
    )


def _check_collate(collate: Any) -> Any:
    if collate is None or callable(collate):
        return collate
    raise InvalidPlan(
        f"collate = {collate!r}; accepted: None, or a function of a list of items, such as "
        "torch.utils.data.default_collate",
        what="collate",
        given=collate,
        accepted="None, or a function of a list of items",
    )


def _describe(value: object) -> str:
    kind = type(value)
    return f"the {kind.__module__}.{kind.__qualname__}"
