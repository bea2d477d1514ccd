"""An extension of griffe for the API pages: the errors of a docstring, and a function's parameters, become a list."""

import re
from typing import Any

from griffe import Class, Extension, Function


class Parameters(Extension):
    """Turns "seed: 0 to 7. batch: samples; Raises: Corrupt." into a list, for the parameters that a function has.

    Fields of a class, and arguments in a section "Args:", stand in the docstring as griffe reads them.
    """

    def on_function_instance(self, *, func: Function, **_: Any) -> None:
        """Rewrites the docstring of a function."""
        _rewrite(func, {one.name.lstrip("*") for one in func.parameters})

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Rewrites the errors in the docstring of a class."""
        _rewrite(cls, set())


def _rewrite(obj: Class | Function, names: set[str]) -> None:
    if obj.docstring is None:
        return
    known = "|".join(map(re.escape, sorted({*names, "Raises"} - {"self"})))
    start = rf"(?:^|(?<=[.;:)]))\s*\b((?:(?:{known})(?:, | and ))*(?:{known})): "
    obj.docstring.value = "\n\n".join(_listed(one, start) for one in obj.docstring.value.split("\n\n"))


def _listed(paragraph: str, start: str) -> str:
    if paragraph.startswith((" ", "Args:")) or not re.search(start, paragraph):
        return paragraph
    text = re.sub(r"\s*\n\s*", " ", paragraph)
    text = re.sub(start, lambda found: f"\n- **{found[1]}**: ", text).strip()
    return re.sub(r"^(?!- )(.*)\n- ", r"\1\n\n- ", text)
