"""Makes the screenshot of the explorer in the README: `make screenshot` writes it.

It needs Chromium. Letters are those of the machine's fonts, so the file differs from one machine to
another, and the site is made without it.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import blockbuster_fusion as bb

HERE = Path(__file__).parent
FILE = HERE / "screenshots" / "explorer.webp"
STEP = "step-15"
"""The last step before the first snapshot: one list is left in memory, and the page says why."""


def write(file: Path = FILE) -> None:
    """Writes what a window of 1280 by 800 pixels shows of the page of attention."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    try:
        from helpers.chromium import started_browser
    finally:
        sys.path.pop(0)
    with TemporaryDirectory() as folder, started_browser() as browser:
        page = bb.explore(bb.examples.attention(), note=bb.examples.about("attention"))
        browser.offline()
        browser.look(1280, 800)
        browser.open(f"{page.save(Path(folder) / 'attention.html').as_uri()}#{STEP}")
        browser.wait("document.getAnimations().length === 0")
        file.parent.mkdir(exist_ok=True)
        browser.screenshot(file)


if __name__ == "__main__":
    write()
    print(FILE.relative_to(HERE.parent))
