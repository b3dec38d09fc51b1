"""Open an HTML page in headless Chromium, and tell whether its images have loaded and what went wrong.

python tests/browser.py build/paper/report.html
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

CHROMIUM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
OPTIONS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
PROBE = """<script>
const errors = [];
window.addEventListener("error", e => errors.push(e.message || (e.target && e.target.tagName) || "error"), true);
window.addEventListener("load", () => {
  const images = [...document.images];
  const found = {
    images: images.length,
    loaded: images.filter(i => i.complete && i.naturalWidth > 100).length,
    outside: [...document.querySelectorAll("[src], link[href]")]
      .filter(e => !(e.getAttribute("src") || e.getAttribute("href")).startsWith("data:")).length,
    overflow: document.documentElement.scrollWidth - window.innerWidth,
    errors: errors,
  };
  document.documentElement.setAttribute("data-found", JSON.stringify(found));
});
</script>"""


class Visit(NamedTuple):
    """What a browser saw."""

    images: int
    loaded: int
    outside: int
    """Files outside the page that it asks for."""
    overflow: int
    """Pixels by which the page is wider than the window."""
    errors: list[str]


def visit(page: Path, width: int = 1200) -> Visit:
    """Open a copy of a page that tells what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(page.read_text().replace("<head>", "<head>" + PROBE, 1))
        command = [
            str(CHROMIUM),
            *OPTIONS.split(),
            f"--user-data-dir={folder}/profile",
            f"--window-size={width},1000",
            "--enable-logging=stderr",
            "--virtual-time-budget=5000",
            "--dump-dom",
            copy.as_uri(),
        ]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'data-found="([^"]*)"', run.stdout)
    if found is None:
        raise AssertionError(f"the page was never loaded: {run.stderr[-500:]}")
    seen = json.loads(found[1].replace("&quot;", '"'))
    console = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    return Visit(seen["images"], seen["loaded"], seen["outside"], seen["overflow"], seen["errors"] + console)


if __name__ == "__main__":
    for width in (1200, 500):
        print(width, visit(Path(sys.argv[1]), width))
