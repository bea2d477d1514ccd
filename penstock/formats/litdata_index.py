"""A LitData dataset's index: its chunks, and the leaves of its samples."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from loader.dataset.columnar.column_names import field_name, metadata_name
from loader.errors import Corrupt, InvalidStore, PenstockError
from loader.json_text import DamagedJson, parse_json, parse_json_object
from loader.keywords import is_whole_number

from .reading.exported import KEY, METADATA, Exported
from .reading.indexed import check_apart

ABSENT = "absent"
"""Leaf of penstock's exports: JSON list of fields that a sample lacks."""
JSON = "json"
NUMBERS = {"int": "i8", "float": "f8", "bool": "bool"}
"""Encoding of a single number -> dtype word."""
WORDS = {
    "bytes": "",
    "str": "txt",
    "text": "txt",
    "jpeg": "jpg",
    "jpeg_array": "jpeg-array",
    "png": "png",
    "pil": "pil",
    "tifffile": "tiff",
    "tiff": "tiff",
    "pdf": "pdf",
    "graph": "graph.pickle",
    "pickle": "pickle",
}
"""Encoding -> field name's last word. Graphs are stored as pickles."""
EXTENSIONS = {"file": "", "image": "jpg", "video": "mp4", "audio": "wav", "mesh": "glb", "nifti": "nii"}
"""Encoding that an extension may follow -> word without one."""
_TORCH = (
    "f4", "f4", "f8", "f8", "c8", "c8", "c16", "c16", "f2", "f2", "bf16", "u1",
    "i1", "i2", "i2", "i4", "i4", "i8", "i8", "bool", "u2",
)  # fmt: skip
_NUMPY = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "bool")
DTYPES = {"tensor": _TORCH, "numpy": _NUMPY}
"""Array encoding -> dtype word per dtype number."""
_FLAT = {f"no_header_{name}": words for name, words in DTYPES.items()}
_TOKENS = "TokensLoader"
_PLAIN = "PyTreeLoader"


class Leaf(NamedTuple):
    """A value of each sample: a leaf of the tree (PyTorch's pytree) that LitData flattens."""

    name: str
    """Keys and indices on its path, joined by dots."""
    encoding: str
    """Encoding, up to a colon."""
    field: str
    """Field, without the dtype word if each value has its own; "" for numbers and JSON."""
    column: str
    """Column of a number, JSON or an array's shape, or ""."""
    word: str
    """Dtype word of a number or flat array, or ""."""


class LitDataChunk(NamedTuple):
    nbytes: int
    """Size in bytes."""
    n_samples: int
    """Number of samples."""
    first: int
    """Index of its first sample in the dataset."""
    n_tokens: int | None
    """Tokens; None if samples are not token streams."""


class LitDataIndex(NamedTuple):
    chunks: Mapping[str, LitDataChunk]
    """By object key."""
    leaves: tuple[Leaf, ...]
    """In the order of their values."""
    is_tokens: bool
    """True if samples are only tokens, without a leading size."""

    def with_prefix(self, prefix: str) -> "LitDataIndex":
        """Return a copy with all keys prefixed."""
        return self._replace(chunks={f"{prefix}{key}": chunk for key, chunk in self.chunks.items()})


def parse_index(data: bytes, name: str, exported: Exported | None) -> LitDataIndex:
    """Parse an index. name: index name for errors.

    Raises: Corrupt if damaged; InvalidStore for an unsupported layout; InvalidSample if two leaves need one column.
    """
    try:
        document = parse_json_object(data)
        if "shards" in document and "chunks" not in document:
            message = f"{name} lists shards of MDS, and no chunks: penstock register mds"
            raise InvalidStore(message, where=name, given="shards of MDS", accepted="chunks of LitData")
        listed = document["chunks"]
        config = document["config"]
        if type(listed) is not list:
            raise TypeError(f"chunks is a {type(listed).__name__}, no list")
        _check_layout(name, config)
        is_tokens = config.get("item_loader") == _TOKENS
        leaves = _leaves(config, name, is_tokens, exported)
        chunks: dict[str, LitDataChunk] = {}
        first = 0
        for number, entry in enumerate(listed):
            key, chunk = _chunk(entry, first, is_tokens)
            if key in chunks:
                raise Corrupt(f"{name}: chunks[{number}] is {key}, and it comes twice")
            chunks[key] = chunk
            first += chunk.n_samples
    except PenstockError:
        raise
    except (DamagedJson, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        message = f"{name}, byte 0: it is not an index of LitData: {error!r}"
        raise Corrupt(message, where=name, accepted="an index of LitData") from error
    check_apart({leaf.name: leaf.column for leaf in leaves if leaf.column}, name)
    return LitDataIndex(chunks, leaves, is_tokens)


def _check_layout(name: str, config: dict[str, Any]) -> None:
    if config.get("encryption"):
        message = (
            f"{name}: its chunks are encrypted. Write the dataset again with optimize(..., encryption=None)"
        )
        raise InvalidStore(message, what="encryption", where=name, accepted="chunks without encryption")
    codec = config.get("compression") or config.get("ipc_compression")
    if codec:
        raise InvalidStore(
            f"{name}: its chunks are compressed ({codec!r}): no sample can be read by itself. Copy its samples "
            "(penstock import litdata-compressed), or write the dataset again with optimize(..., compression=None)",
            what="compression",
            where=name,
            given=codec,
            accepted="chunks without compression",
        )
    loader = config.get("item_loader") or _PLAIN
    if loader in (_TOKENS, _PLAIN):
        return
    hint = ""
    if loader == "ParquetLoader":
        hint = ". Its tables: penstock import parquet"
    message = f"{name}: its chunks are for {loader!r}; accepted: {_PLAIN} and {_TOKENS}{hint}"
    raise InvalidStore(message, what="item_loader", where=name, given=loader, accepted=[_PLAIN, _TOKENS])


def _chunk(entry: dict[str, Any], first: int, is_tokens: bool) -> tuple[str, LitDataChunk]:
    key = entry["filename"]
    nbytes = entry["chunk_bytes"]
    n_samples = entry["chunk_size"]
    numbers = [nbytes, n_samples]
    n_tokens = None
    if is_tokens:
        n_tokens = entry.get("dim")
        numbers.append(n_tokens)
    if type(key) is not str or not all(is_whole_number(value, 0, 2**33 - 1) for value in numbers):
        raise ValueError(f"a chunk is {entry!r}")
    return key, LitDataChunk(nbytes, n_samples, first, n_tokens)


def _leaves(
    config: dict[str, Any], where: str, is_tokens: bool, exported: Exported | None
) -> tuple[Leaf, ...]:
    encodings = config["data_format"]
    spec = config["data_spec"]
    if type(encodings) is not list or not all(type(one) is str for one in encodings) or not encodings:
        raise ValueError(f"data_format {encodings!r}")
    protocol, tree = parse_json(spec)
    if protocol != 1:
        raise ValueError(f"data_spec has the protocol {protocol!r}")
    names = [".".join(path) for path in _paths(tree, ())]
    if names == [""]:  # the sample is the value itself
        names = ["tokens" if is_tokens else "data"]
    if len(set(names)) != len(encodings) or len(names) != len(encodings):
        raise ValueError(f"data_spec has the leaves {names}, and data_format {encodings}")
    pairs = zip(names, encodings, strict=True)
    leaves = tuple(_leaf(name, encoding, where, exported) for name, encoding in pairs)
    if is_tokens and (len(leaves) != 1 or leaves[0].encoding not in _FLAT):
        raise ValueError(f"data_format {encodings!r} of tokens")
    return leaves


def _paths(tree: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each leaf of a tree as PyTorch's `treespec_dumps` writes it."""
    kind = tree["type"]
    context = tree["context"]
    children = tree["children_spec"]
    if kind is None:
        if children:
            raise ValueError("a leaf of data_spec has children")
        yield path
        return
    if type(context) is str:
        context = parse_json(context)
    if type(context) is dict and "dict_context" in context:  # the context of a defaultdict
        context = context["dict_context"]
    names: Sequence[Any] = range(len(children))
    if type(context) is list and len(context) == len(children):
        names = context
    for name, child in zip(names, children, strict=True):
        yield from _paths(child, (*path, str(name)))


def _leaf(name: str, encoding: str, where: str, exported: Exported | None) -> Leaf:
    kind, _, detail = encoding.partition(":")
    # Penstock's exports name fields as the version does, so their names get no word.
    is_own = exported is not None and (name in exported.fields or name in (KEY, METADATA, ABSENT))
    field = ""
    column = ""
    word = ""
    if kind in _FLAT:
        word = _FLAT[kind][int(detail)]
        field = name if is_own else field_name(name, word)
    elif kind in DTYPES:
        field = name
        column = metadata_name(f"{name}_shape", "litdata")
    elif kind in NUMBERS:
        word = NUMBERS[kind]
        column = metadata_name(name, "litdata")
    elif is_own:
        field = name
    elif kind == JSON:
        column = metadata_name(name, "litdata")
    elif kind in EXTENSIONS:
        field = field_name(name, detail or EXTENSIONS[kind])
    elif kind in WORDS:
        last = "graph.pickle"
        if detail != "pickle":
            last = WORDS[kind]
        field = field_name(name, last)
    else:
        known = sorted({*NUMBERS, *_FLAT, *DTYPES, *WORDS, *EXTENSIONS, JSON})
        message = (
            f"{where}: the leaf {name!r} has the encoding {encoding!r}, of a custom serializer; accepted: "
            f"{', '.join(known)}"
        )
        raise InvalidStore(message, what=name, where=where, given=encoding, accepted=known)
    return Leaf(name, kind, field, column, word)
