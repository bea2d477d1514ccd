"""Jinja templates for HTML and Markdown. Every expression is cleaned and escaped as text.

Only a template's own output is `Markup`. Quote every attribute that contains an expression. In Markdown, `~` and `join`
would escape for HTML: place macros and text side by side.
"""

import base64
import html
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from loader.errors import MissingDependency

from ..text import clean, html_text, markdown_text, terminal_text
from ..units import number, share

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context

OWN = Path(__file__).parent / "rendering"
_ESCAPES = {"html": html_text, "md": markdown_text}
_DECLARING = ("e", "escape", "forceescape", "safe", "tojson", "urlize", "xmlattr")
"""Removed filters, whose results would count as escaped."""


@cache
def templates(folder: Path = OWN) -> "Environment":
    """Return the environment of a folder's `<name>.html.j2` and `<name>.md.j2`, which may include this package's.

    Additional filters: `base64`, `clean(longest)`, `number`, `share(whole)`, `fenced` (inside a Markdown fence), `line`
    (keeps blanks), `percent` (for decodeURIComponent). Undefined names raise. Raises: MissingDependency.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
        from markupsafe import Markup
    except ImportError as error:
        raise MissingDependency(
            f"a dataset card needs the package {error.name!r}, which is not installed: "
            "pip install 'penstock-data[card]'"
        ) from error

    @pass_context
    def escaped(context: "Context", value: Any) -> Markup:
        if isinstance(value, Markup):
            return value
        language = str(context.name).split(".")[-2]
        return Markup(_ESCAPES[language](value))

    environment = Environment(
        loader=FileSystemLoader([folder, OWN]),
        autoescape=True,  # macros and blocks are Markup; everything else passes through `escaped`
        finalize=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in _DECLARING:
        del environment.filters[name]
    environment.filters |= {
        "base64": lambda data: Markup(base64.b64encode(data).decode()),  # megabytes of harmless characters
        "clean": clean,
        "line": lambda text: Markup(html.escape(terminal_text(str(text).replace("\n", " ")))),
        "percent": lambda text: Markup(quote(str(text), safe="")),
        "fenced": lambda text: Markup(clean(text)),  # one line cannot end a fence
        "number": number,
        "share": share,
    }
    return environment
