"""Assert that code refuses with an error of a type and with its fields, without pinning its English."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loader.errors import PenstockError, plain_value

ABSENT = object()
"""Default of a field that a test does not compare."""


@contextmanager
def refusal(
    kind: type[BaseException] | tuple[type[BaseException], ...],
    *,
    what: object = ABSENT,
    where: object = ABSENT,
    given: object = ABSENT,
    accepted: object = ABSENT,
    within: str = "",
) -> Iterator[pytest.ExceptionInfo[PenstockError]]:
    """Assert that the block raises an error of `kind` whose stated fields are equal to these; yield its info.

    `within` is a part of the field `where`: the address of a stored sample has an id that differs from run to run.
    At least one field is required: many checks raise the same type. Expected values are compared as
    fields hold them, so a test may pass the very argument that is refused. After the block `.value` is the error.

    Use `pytest.raises(..., match=)` instead where the text is the contract: what the command line prints, and the
    remedy (the pip line, the next command, "did you mean").
    """
    stated = {"what": what, "where": where, "given": given, "accepted": accepted}
    expected = {name: plain_value(value) for name, value in stated.items() if value is not ABSENT}
    if not expected:
        raise TypeError("refusal() needs a field: what, where, given or accepted")
    with pytest.raises(kind) as caught:
        yield caught
    actual = {name: getattr(caught.value, name, ABSENT) for name in expected}
    # By repr: NaN differs from itself, and 1 equals True.
    assert repr(actual) == repr(expected), f"{type(caught.value).__name__}: {caught.value}"
    assert within in (getattr(caught.value, "where", None) or ""), (
        f"{within!r} is not in {caught.value.where!r}"
    )
