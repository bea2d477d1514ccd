"""The templates of pages and of Markdown, in which every expression is text.

The engine cleans and escapes each expression for the language of its file, unless a template made it: `Markup`. So a
template has nothing to remember, and what came from data ends no tag, no table and no line. An attribute with an
expression is quoted. Markdown of a macro and text stand side by side: `~` and `join` would escape the text for HTML.
"""

import base64
import html
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from loader.errors import MissingDependency

from ...text import clean, html_text, markdown_text, terminal_text
from ...units import number, share

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context

OWN = Path(__file__).parent
_ESCAPES = {"html": html_text, "md": markdown_text}
_DECLARING = ("e", "escape", "forceescape", "safe", "tojson", "urlize", "xmlattr")
"""Filters of the engine whose result counts as escaped, whatever the language."""


@cache
def templates(folder: Path = OWN) -> "Environment":
    """Return the templates `<name>.html.j2` and `<name>.md.j2` of a folder, which may include this package's.

    Filters beside the engine's: `base64` of bytes; `clean(longest)` of a text; `fenced` of a text between the fences of
    Markdown's code, where escapes are read as they stand; `number`, `share(whole)`. `line` is of a text whose blanks
    stay, and `percent` of one that a script takes back with decodeURIComponent. An undefined name raises. Raises:
    MissingDependency.
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
        autoescape=True,  # what macros and blocks make is Markup; all else comes to `escaped`
        finalize=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in _DECLARING:
        del environment.filters[name]
    environment.filters |= {
        "base64": lambda data: Markup(base64.b64encode(data).decode()),  # megabytes, in harmless letters
        "clean": clean,
        "line": lambda text: Markup(html.escape(terminal_text(str(text).replace("\n", " ")))),
        "percent": lambda text: Markup(quote(str(text), safe="")),
        "fenced": lambda text: Markup(clean(text)),  # on one line, which ends no fence
        "number": number,
        "share": share,
    }
    return environment
