"""Extensions of griffe for the API pages: names that `import loader` hands out late; docstrings as lists."""

import re
from typing import Any

from griffe import Alias, Class, Extension, Function


class Late(Extension):
    """Takes the names of `loader.api` that only a type checker imports for what they are: `__getattr__` gives them."""

    def on_alias_instance(self, *, alias: Alias, **_: Any) -> None:
        """Marks an import as one of the running program."""
        if alias.parent is not None and alias.parent.path == "loader.api":
            alias.runtime = True


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
