"""axe-core, which looks for faults of accessibility in a page of Chromium. `scripts/install-servers.sh` fetches it."""

import hashlib
from functools import cache
from pathlib import Path

from tests.servers.chromium import Page

SCRIPT = Path(__file__).parents[2] / ".servers" / "node_modules" / "axe-core" / "axe.min.js"
SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
"""Of axe-core 4.14.1."""
LEVELS = "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']"
"""Rules of the levels A and AA."""
_RUN = f"""axe.run(document, {{resultTypes: ['violations'], runOnly: {{type: 'tag', values: {LEVELS}}}}})
    .then((result) => result.violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 200))]))"""


def violations(page: Page) -> dict[str, list[str]]:
    """Return rule -> elements that break it. DevTools add the script, which the pages' policy would refuse."""
    page.value_of(f"{_script()}; null")
    return dict(page.value_of(_RUN))


@cache
def _script() -> str:
    assert SCRIPT.is_file(), f"{SCRIPT} is missing: run make servers"
    script = SCRIPT.read_bytes()
    digest = hashlib.sha256(script).hexdigest()
    assert digest == SHA256, f"{SCRIPT} has the SHA-256 {digest}, not the one of axe-core 4.14.1"
    return script.decode()
