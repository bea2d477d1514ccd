"""A card as one HTML file: no script, no request, pictures inside; light and dark, for the screen and for paper."""

from ..value import Card
from .sections import shown
from .templates import templates


def render_html(card: Card) -> str:
    """Return the whole page. Raises: MissingDependency."""
    return templates().get_template("card.html.j2").render(shown(card))
