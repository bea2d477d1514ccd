"""Names of functions: the share named by a participle or ending in a preposition, in each room. It only falls.

tests/names.txt holds both counts of each room, a folder of two names such as loader/order. `SLACK` names more keep
small, unrelated commits green. `python tests/test_names.py` writes the file anew, and lets no count rise.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
COUNTS = Path(__file__).parent / "names.txt"
ROOMS = ("loader/", "penstock/", "resources/", "assets/", "dagster_project/", "tests/")
SLACK = 2
DEFINITION = re.compile(r"^\s*(?:async )?def _*(\w+)", re.M)
REGULAR = re.compile(r"\w{2,}(?<!e)ed")
# fmt: off
IRREGULAR = {
    "begun", "bound", "broken", "brought", "built", "chosen", "done", "drawn", "fed", "felt", "found", "given", "gone",
    "grown", "heard", "held", "hidden", "kept", "known", "laid", "left", "lost", "made", "meant", "met", "paid", "said",
    "seen", "sent", "shown", "sought", "spent", "spoken", "stood", "stuck", "taken", "told", "written",
}
VERBS = {"embed"}
PREPOSITIONS = {
    "about", "above", "across", "after", "against", "along", "among", "around", "at", "before", "behind", "below",
    "beside", "between", "beyond", "by", "down", "for", "from", "in", "into", "near", "of", "off", "on", "out", "over",
    "since", "to", "towards", "until", "up", "upon", "with", "within", "without",
}
# fmt: on


def is_participle(name: str) -> bool:
    """Return whether a name begins with a past participle."""
    first = name.split("_")[0]
    return first in IRREGULAR or (first not in VERBS and REGULAR.fullmatch(first) is not None)


def is_preposition(name: str) -> bool:
    """Return whether a name ends in a preposition."""
    return name.split("_")[-1] in PREPOSITIONS


def counts() -> dict[str, Counter[str]]:
    """Return room -> its functions with such names."""
    rooms: dict[str, Counter[str]] = {}
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    for path in listed.stdout.splitlines():
        if not path.startswith(ROOMS) or not (ROOT / path).exists():
            continue
        count = rooms.setdefault("/".join(path.split("/")[:-1][:2]), Counter())
        for name in DEFINITION.findall((ROOT / path).read_text()):
            count["participles"] += is_participle(name)
            count["prepositions"] += is_preposition(name)
    return dict(sorted(rooms.items()))


def read_record() -> dict[str, tuple[int, int]]:
    """Return room -> what tests/names.txt allows: participles, prepositions."""
    lines = [line.split() for line in COUNTS.read_text().splitlines()]
    return {name: (int(participles), int(prepositions)) for participles, prepositions, name in lines}


def test_no_room_has_more_participles_or_prepositions_than_recorded() -> None:
    allowed = read_record()
    worse = {}
    for name, count in counts().items():
        participles, prepositions = allowed.get(name, (0, 0))
        if count["participles"] > participles + SLACK or count["prepositions"] > prepositions + SLACK:
            worse[name] = (dict(count), allowed.get(name))
    assert not worse, f"room: (now, allowed); name what a function returns or does: {worse}"


def test_names_are_judged_by_their_first_and_last_word() -> None:
    assert [name for name in ("told", "parsed_rows", "feed", "speed_s", "embed") if is_participle(name)] == [
        "told",
        "parsed_rows",
    ]
    assert [name for name in ("facts_of", "of_facts", "look_up") if is_preposition(name)] == [
        "facts_of",
        "look_up",
    ]


def main() -> None:
    """Write tests/names.txt; no count of a recorded room rises."""
    former = read_record() if COUNTS.exists() else {}
    lines = []
    for name, count in counts().items():
        most = former.get(name, (count["participles"], count["prepositions"]))
        lines.append(f"{min(count['participles'], most[0])} {min(count['prepositions'], most[1])} {name}\n")
    COUNTS.write_text("".join(lines))


if __name__ == "__main__":
    main()
