"""A card as Markdown, for a repository, or for the Hugging Face Hub as README.md."""

import re
from collections.abc import Mapping, Sequence

from ..value import Card
from .hub_metadata import front_matter
from .sections import shown
from .templates import templates


def render_markdown(card: Card, sheets: Mapping[str, str] | None = None) -> str:
    """Return the whole card. sheets: kind -> file name of a picture of its examples, beside the Markdown file.

    Raises: MissingDependency.
    """
    body = templates().get_template("card.md.j2").render(shown(card), sheets=sheets or {})
    return re.sub(r"\n{3,}", "\n\n", f"{front_matter(card)}\n\n{body.strip()}\n")


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: int | None = None) -> str:
    """Return a Markdown table. right: the column from which on numbers stand on the right.

    Raises: MissingDependency.
    """
    made: str = templates().get_template("parts.md.j2").module.table(header, rows, right)  # type: ignore[attr-defined]
    return made.strip()
