"""An extension of griffe for the API pages: the parameters and errors that a docstring names become a list."""

import re
from typing import Any

from griffe import Class, Extension, Function


class Parameters(Extension):
    """Turns "seed: 0 to 7. batch: samples; Raises: Corrupt." into a list, for the names that the object has."""

    def on_function_instance(self, *, func: Function, **_: Any) -> None:
        """Rewrites the docstring of a function."""
        _rewrite(func, {one.name.lstrip("*") for one in func.parameters})

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Rewrites the docstring of a class, whose names are its fields and the parameters of its making."""
        names = {name for name, one in cls.members.items() if one.is_attribute}
        if isinstance(made := cls.members.get("__init__"), Function):
            names |= {one.name.lstrip("*") for one in made.parameters}
        _rewrite(cls, names)


def _rewrite(obj: Class | Function, names: set[str]) -> None:
    if obj.docstring is None:
        return
    known = "|".join(map(re.escape, sorted({*names, "Raises"} - {"self"})))
    start = rf"(?:^|(?<=[.;:)]))\s*\b((?:(?:{known})(?:, | and ))*(?:{known})): "
    obj.docstring.value = "\n\n".join(_listed(one, start) for one in obj.docstring.value.split("\n\n"))


def _listed(paragraph: str, start: str) -> str:
    if paragraph.startswith(" ") or not re.search(start, paragraph):
        return paragraph
    text = re.sub(r"\s*\n\s*", " ", paragraph)
    text = re.sub(start, lambda found: f"\n- **{found[1]}**: ", text).strip()
    return re.sub(r"^(?!- )(.*)\n- ", r"\1\n\n- ", text)
