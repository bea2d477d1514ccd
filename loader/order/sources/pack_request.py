"""The request to pack documents, `loader.pack`, and the checks of its arguments."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ...errors import InvalidPlan
from ..random.plan_hash import int_in_range
from .packing import (
    HIGHEST_FILL,
    LOWEST_FILL,
    MAX_LENGTH_TOKENS,
    NEW_FIELDS,
    SEGMENT_IDS,
    TOTALS,
    PackBy,
)


def pack(
    field: str,
    length: int,
    *,
    pad_id: int = 0,
    lengths: str | None = None,
    checksums: bool = False,
    beside: Mapping[str, int] | None = None,
    together: str | None = None,
    split: bool = True,
    columns: Sequence[str] = (),
    ragged: Sequence[str] = (),
) -> PackBy:
    """Return a request to pack token documents into sequences of one length, each a slot of a batch.

    field: an `.npy` field with a document's tokens: one dimension, one integer dtype.
    length: tokens per sequence. Longer documents are split; nothing is dropped.
    pad_id: padding token at the end of a sequence.
    lengths: SQL expression on the samples table for a document's number of tokens, such as "n_tokens". By default the
    number follows from the field's bytes in the index.
    checksums: True reads every split document whole, now, and stores checksums for its pieces in the root. Loaders then
    read only the pieces that they need. Only for tokens without `beside`.
    beside: other `.npy` fields with a value or array per token ([T] or [T, ...]), such as labels, a loss mask or
    weights. They are laid out like the tokens. Maps each to the whole number (or truth value) for positions without
    a token: `{"labels.npy": -100, "loss.npy": False}`.
    together: column of the samples table. Documents with one value, such as a preference pair, share a sequence and
    stay next to each other; none is split. For pairs and small groups: a group must fit into a sequence.
    split: False splits no document. Documents longer than `length` are then refused.
    columns: columns of the samples table. `batch["reward"]` is a list with an array per sequence, whose entry k belongs
    to segment k + 1. "ordinal" is the document's ordinal in its version. `batch.totals` has the step's sum of each
    column of whole numbers or truth values.
    ragged: other `.npy` fields with any number of rows per document, for split=False. `batch["kept.npy"]` is a list
    with the rows of each sequence, `batch["kept.npy.segment_ids"]` with the segments of the rows.

    Raises: InvalidPlan.
    """
    _check_texts(field, lengths, together)
    _check_truths(checksums=checksums, split=split)
    side_fields = _check_side_fields(field, beside)
    is_split = split and together is None
    if checksums:
        _check_single_pieces(side_fields, is_split=is_split)
    column_names = _check_names("columns", columns, "('reward',)")
    ragged_names = _check_names("ragged", ragged, "('kept.npy',)")
    _check_new_names(field, side_fields, column_names, ragged_names)
    if ragged_names and is_split:
        message = f"pack(ragged={ragged!r}) needs split=False: rows without a token cannot be cut"
        raise InvalidPlan(message, what="ragged", given=ragged, accepted="split=False")
    return PackBy(
        field=field,
        length=int_in_range("pack: length", length, 1, MAX_LENGTH_TOKENS),
        pad_id=int_in_range("pack: pad_id", pad_id, LOWEST_FILL, HIGHEST_FILL),
        lengths=lengths,
        checksums=checksums,
        side_fields=side_fields,
        together=together,
        split=is_split,
        columns=column_names,
        ragged=ragged_names,
    )


def _check_texts(field: object, lengths: object, together: object) -> None:
    if not isinstance(field, str) or not field:
        raise InvalidPlan(
            f"pack({field!r}): the name of an .npy field is needed, such as 'tokens.npy'",
            what="field",
            where="pack",
            given=field,
            accepted="the name of an .npy field",
        )
    if lengths is not None and (not isinstance(lengths, str) or not lengths.strip()):
        raise InvalidPlan(
            f"pack(lengths={lengths!r}): an SQL expression on the samples table is needed",
            what="lengths",
            where="pack",
            given=lengths,
            accepted="an SQL expression on the samples table",
        )
    if together is not None and (not isinstance(together, str) or not together):
        raise InvalidPlan(
            f"pack(together={together!r}): the name of a column is needed, such as 'pair_id'",
            what="together",
            where="pack",
            given=together,
            accepted="the name of a column",
        )


def _check_single_pieces(side_fields: Sequence[tuple[str, int]], *, is_split: bool) -> None:
    """Raise InvalidPlan if no piece of a document could be read singly."""
    if side_fields:
        message = (
            f"pack(checksums=True, beside={dict(side_fields)!r}): only tokens are read by the piece; leave one of the "
            "two out"
        )
        raise InvalidPlan(message, what="beside", given=dict(side_fields), accepted="checksums=False")
    if not is_split:
        message = "pack(checksums=True) is for split documents, and here none is split; leave it out"
        raise InvalidPlan(message, what="checksums", given=True, accepted="split documents")


def _check_truths(**arguments: object) -> None:
    for name, value in arguments.items():
        if not isinstance(value, bool):
            message = f"pack({name}={value!r}): True or False is needed"
            raise InvalidPlan(message, what=name, where="pack", given=value, accepted=[True, False])


def _check_names(argument: str, request: object, example: str) -> tuple[str, ...]:
    """Return the names of `pack(columns=)` or `pack(ragged=)`, checked: texts, each once."""
    are_names = isinstance(request, Sequence) and not isinstance(request, str)
    names: tuple[Any, ...] = ()
    if are_names:
        names = tuple(cast(Sequence[Any], request))
        for name in names:
            are_names = are_names and isinstance(name, str) and bool(name)
    if not are_names:
        message = f"pack({argument}={request!r:.200}): a tuple of names is needed, such as {example}"
        raise InvalidPlan(message, what=argument, given=request, accepted="a tuple of names")
    repeats = sorted({name for name in names if names.count(name) > 1})
    if repeats:
        message = f"pack({argument}=) names {repeats} twice; name each once"
        raise InvalidPlan(message, what=argument, given=repeats, accepted="each name once")
    return names


def _check_new_names(
    field: str,
    side_fields: Sequence[tuple[str, int]],
    columns: Sequence[str],
    ragged: Sequence[str],
) -> None:
    """Raise InvalidPlan if a batch, or its totals, would have two values of one name."""
    batch_fields = {field}
    batch_fields.update(name for name, _ in side_fields)
    batch_fields.update(f"{field}.{suffix}" for suffix in NEW_FIELDS)
    for name in ragged:
        new_names = {name, f"{name}.{SEGMENT_IDS}"}
        if new_names & batch_fields:
            raise InvalidPlan(
                f"pack(ragged=): {name!r} is one of the batch's other fields, {sorted(batch_fields)}; name another one",
                what="ragged",
                given=name,
                accepted=f"other names than {sorted(batch_fields)}",
            )
        batch_fields |= new_names
    for name in columns:
        if name in batch_fields:
            message = (
                f"pack(columns=): {name!r} is a field of the batch, which has one value of a name; leave the column "
                "out"
            )
            raise InvalidPlan(message, what="columns", given=name, accepted="no field of the batch")
        if name in TOTALS:
            message = (
                f"pack(columns=): batch.totals[{name!r}] is the step's number of {name}; leave the column out, or "
                "store it under another name"
            )
            raise InvalidPlan(message, what="columns", given=name, accepted="no total of the batch")


def _check_side_fields(field: str, request: object) -> tuple[tuple[str, int], ...]:
    """Return (field, fill) pairs from `pack(beside=)`, checked."""
    if request is None:
        return ()
    if not isinstance(request, Mapping) or not all(isinstance(name, str) and name for name in request):
        message = (
            f"pack(beside={request!r}): fields and the whole number that stands where there is no token are needed, "
            'such as {"labels.npy": -100}'
        )
        raise InvalidPlan(message, what="beside", given=request, accepted="field -> whole number")

    token_fields = [field]
    token_fields += [f"{field}.{suffix}" for suffix in NEW_FIELDS]
    for name in request:
        if name in token_fields:
            message = f"pack(beside=): {name!r} is the tokens' own; name another field of the documents"
            raise InvalidPlan(message, what="beside", given=name, accepted="another field than the tokens'")

    side_fields = []
    for name, fill in request.items():
        if isinstance(fill, bool):
            fill = int(fill)  # `int_in_range` refuses truth values
        number = int_in_range(f"pack: beside[{name!r}]", fill, LOWEST_FILL, HIGHEST_FILL)
        side_fields.append((name, number))
    return tuple(side_fields)
