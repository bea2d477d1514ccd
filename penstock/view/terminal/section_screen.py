"""Pages whose sections the terminal draws as lines, of which those with a link open a page."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual.actions import SkipAction
from textual.binding import Binding
from textual.content import Content
from textual.widget import Widget
from textual.widgets.option_list import Option

from ...text import terminal_text
from ..sections.characters.section_line import LineTone, SectionLine
from ..sections.characters.section_lines import page_sections, section_lines
from ..sections.section import Section, SectionPage
from .addresses import PageAddress, parse_page
from .record_screen import LinkList, RecordScreen, heading, line

_STYLES: dict[LineTone, str] = {
    "": "",
    "heading": "bold",
    "bad": "bold $error",
    "quiet": "$text-muted",
    "hint": "$text-muted",
}


WALK_KEYS: list[Any] = [
    Binding("left_square_bracket", "follow('[')", "the one before"),
    Binding("right_square_bracket", "follow(']')", "the one after"),
]


class SectionScreen(RecordScreen):
    """A page of sections. Subclasses load it."""

    record: SectionPage | None

    def title_of(self, record: SectionPage) -> str:
        return record.caption

    def widgets(self, record: SectionPage) -> Iterable[Widget]:
        lines: list[SectionLine] = []
        for section in page_sections(record):
            widgets = self.section_widgets(section)
            if widgets is None:
                lines += section_lines(section, self.app.size.width - 2)
                continue
            yield from line_widgets(lines)
            yield from widgets
            lines = []
        yield from line_widgets(lines)

    def section_widgets(self, section: Section) -> Iterable[Widget] | None:
        """Return widgets of a section that is more than lines; None for lines."""
        return None

    def selected_sample(self) -> tuple[str, str] | None:
        if self.record is None:
            return None
        return self.record.sample

    def provenance_lines(self) -> list[str]:
        if self.record is None:
            return []
        lines = [self.record.caption]
        for fold in self.record.folds:
            if fold.anchor in ("explain", "stored"):
                lines += [line.text for line in section_lines(fold, self.app.size.width)]
        return lines if self.record.folds else []

    def focus_content(self) -> None:
        lists = self.query(SectionList)
        if lists:
            lists.first().focus()
        else:
            super().focus_content()

    def action_follow(self, key: str) -> None:
        """Open the page of a key, if this page has one."""
        if self.record is None:
            return
        pages = {link.key: parse_page(link.page) for link in self.record.keys}
        page = pages.get(key)
        if page is not None:
            self.viewer.open(page)

    def command(self) -> str:
        if self.record is None:
            return self.viewer.command()
        return self.viewer.command(*self.record.command, names=self.record.names)


def line_widgets(lines: Sequence[SectionLine]) -> list[Widget]:
    """Return widgets of lines: one list if a line opens a page."""
    if any(shown.page is not None for shown in lines):
        return [SectionList(lines)]
    widgets: list[Widget] = []
    for shown in lines:
        if shown.tone == "heading":
            widgets.append(heading(shown.text))
        else:
            widgets.append(line(shown.text, bad=shown.tone == "bad"))
    return widgets


class SectionList(LinkList):
    """All lines of a page. Arrow keys go from line to line with a link, and scroll where none follows.

    If a line has several links, the left and right keys choose the one that Enter opens.
    """

    BINDINGS: ClassVar[list[Any]] = [
        Binding("left", "choose_link(-1)", show=False),
        Binding("right", "choose_link(1)", show=False),
    ]

    DEFAULT_CSS = """
    SectionList { border: none; padding: 0; background: $background; }
    SectionList:focus { border: none; background-tint: $foreground 0%; }
    SectionList > .option-list--option-disabled { color: $foreground; }
    """

    def __init__(self, lines: Sequence[SectionLine], name: str = "") -> None:
        """name: of the list, for its screen."""
        super().__init__([])
        self._name = name
        self._shown = lines
        self._chosen = [0] * len(lines)
        self._first: int | None = None
        self._last: int | None = None
        for position, shown in enumerate(lines):
            links = _links(shown)
            self._pages.append(None)
            if links:
                self._pages[position] = parse_page(links[0][1])
                self._last = position
            if links and self._first is None:
                self._first = position
            self.add_option(Option(_content(shown, 0), disabled=not links))
        self.highlighted = self._first

    def highlight_first(self, *kinds: type[PageAddress]) -> None:
        """Put the cursor on the first link to such a page, if there is one."""
        for position, page in enumerate(self._pages):
            if isinstance(page, kinds):
                self.highlighted = position
                break

    def highlight_text(self, text: str) -> None:
        """Put the cursor on the first link with this text, if there is one."""
        texts = [shown.link for shown in self._shown]
        if text and text in texts:
            self.highlighted = texts.index(text)

    def action_choose_link(self, by: int) -> None:
        """Choose the next or the previous link of the line with the cursor."""
        position = self.highlighted
        if position is None:
            raise SkipAction
        shown = self._shown[position]
        links = _links(shown)
        if len(links) < 2:
            raise SkipAction  # the page's own key
        number = max(0, min(len(links) - 1, self._chosen[position] + by))
        self._chosen[position] = number
        self._pages[position] = parse_page(links[number][1])
        self.replace_option_prompt_at_index(position, _content(shown, number))

    def action_cursor_down(self) -> None:
        # Beyond the last link only text follows: scroll instead of jumping to the first link.
        if self.highlighted == self._last:
            self.scroll_down()
        else:
            super().action_cursor_down()

    def action_cursor_up(self) -> None:
        if self.highlighted == self._first:
            self.scroll_up()
        else:
            super().action_cursor_up()

    def action_page_down(self) -> None:
        self.scroll_page_down()

    def action_page_up(self) -> None:
        self.scroll_page_up()


def _links(shown: SectionLine) -> list[tuple[str, str]]:
    """Return (part of the text, address) of the links of a line that the terminal has pages for."""
    links = list(shown.others)
    if shown.page is not None:
        links.insert(0, (shown.link, shown.page))
    return [link for link in links if parse_page(link[1]) is not None]


def _content(shown: SectionLine, chosen: int) -> Content:
    """Return a line with its links underlined, of several the chosen one also reversed."""
    text = terminal_text(shown.text)
    content = Content.styled(text, _STYLES[shown.tone])
    links = _links(shown)
    end = 0
    for number, (name, _) in enumerate(links):
        # From the last link's end: two links of a line may have one name.
        start = text.find(name, end)
        if start < 0:  # a narrow column has cut it
            continue
        end = start + len(name)
        style = "underline"
        if len(links) > 1 and number == chosen:
            style = "underline reverse"
        content = content.stylize(style, start, end)
    return content
