"""`penstock card REF`."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

import loader

from .verb import Answer, Verb


def arguments(parser: ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("ref", help="e.g. photos@3")
    parser.add_argument("--html", default=None, metavar="FILE", help="write it as one HTML file")
    parser.add_argument("--into", default=None, metavar="FOLDER", help="write it as JSON, Markdown and HTML")
    parser.add_argument("--save", action="store_true", help="write it into the root, where there is none yet")
    parser.add_argument(
        "--examples", type=int, default=None, metavar="N", help="samples of each kind; 0 reads no media"
    )


def run(arguments: Namespace) -> Answer:
    """Return the dataset card: as Markdown, or written where the arguments say."""
    from ..card.as_json import card_document
    from ..card.build import EXAMPLES, build_card
    from ..card.rendering.markdown import render_markdown
    from ..card.stored import save_card, write_card, write_html

    n_examples = EXAMPLES if arguments.examples is None else arguments.examples
    root = loader.Root(arguments.root)
    made = build_card(root, root.open(arguments.ref), n_examples=n_examples)
    lines = []
    if arguments.html is not None:
        lines.append(str(write_html(Path(arguments.html), made)))
    if arguments.into is not None:
        lines += map(str, write_card(Path(arguments.into), made))
    if arguments.save:
        saved = save_card(root.store, made)
        lines += [f"{root.url}/{saved.folder}/{name}" for name in saved.written]
        lines += [f"{root.url}/{saved.folder}/{name} is another card and was kept" for name in saved.kept]
    text = "\n".join(lines)
    if not text and not arguments.json:
        text = render_markdown(made).rstrip("\n")
    return card_document(made), text, 0


VERB = Verb(
    text="the dataset card of a version: counts, licences, where it comes from, examples",
    run=run,
    arguments=arguments,
)
