"""The table of docs/formats.md agrees with the registries."""

import re
from pathlib import Path

from assets.sources import in_place_formats, read_formats
from penstock.formats.registry import EXPORTED, IMPORTED, REGISTERED, TABLES
from penstock.verbs.formats import LEROBOT

PAGE = Path(__file__).parents[4] / "docs" / "formats.md"
ROW = re.compile(r"^\| (`[a-z`, -]+`) \| (all|register, import|import) \| (copy, in place|copy) \|", re.M)
COMMANDS = {
    "all": {"register", "import", "export"},
    "register, import": {"register", "import"},
    "import": {"import"},
}


def test_formats_page_agrees_with_registries():
    rows = {
        name: (COMMANDS[commands], source)
        for names, commands, source in ROW.findall(PAGE.read_text())
        for name in re.findall(r"[a-z-]+", names)
    }
    registered, imported = {*REGISTERED, *TABLES, LEROBOT}, {*REGISTERED, *IMPORTED}
    assert imported == {*in_place_formats(), *read_formats()}
    assert rows == {
        name: (
            {
                command
                for command, names in (("register", registered), ("import", imported), ("export", EXPORTED))
                if name in names
            },
            "copy, in place" if name in in_place_formats() else "copy",
        )
        for name in registered | imported | EXPORTED
    }
