"""The site that `make docs` builds: its links lead somewhere, and a browser shows every page without errors."""

import functools
import json
import threading
from contextlib import closing
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(__file__).parent.parent / "build" / "docs"
PAGES = sorted(path.relative_to(SITE) for path in SITE.rglob("*.html")) if SITE.exists() else []
NOT_EXAMPLES = ("index", "sg_execution_times")
SHARES = 4
"""Pages are opened in so many tests, which several processes can share."""
MEASURE = """async () => {
    if (window.MathJax?.startup?.promise) await MathJax.startup.promise;
    const images = [...document.images];
    images.forEach(image => { image.loading = "eager"; });
    await Promise.all(images.map(image => image.decode().catch(() => null)));
    return {
        overflow: document.documentElement.scrollWidth - window.innerWidth,
        broken: images.filter(image => !image.naturalWidth).map(image => image.src),
    };
}"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PAGES, reason="needs the site: make docs"),
]


class Links(HTMLParser):
    """The links of a page, what it loads, and the places in it that links can point to."""

    def __init__(self, page: Path):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed((SITE / page).read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if "id" in values:
            self.places.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif "src" in values or tag == "link":
            self.loads.append(values.get("src") or values["href"])


@functools.cache
def links_of(page: Path) -> Links:
    return Links(page)


def test_links_lead_to_places_that_exist():
    missing = []
    for page in PAGES:
        for target in links_of(page).links + links_of(page).loads:
            address = urlsplit(target)
            if address.scheme:
                continue
            file = (SITE / page).parent / unquote(address.path) if address.path else SITE / page
            if not file.exists():
                missing.append(f"{page}: {target}")
            elif address.fragment and file.suffix == ".html":
                place = file.resolve().relative_to(SITE.resolve())
                if unquote(address.fragment) not in links_of(place).places:
                    missing.append(f"{page}: {target}")
    assert not missing, "\n".join(missing[:20])


def test_nothing_is_loaded_from_elsewhere():
    for page in PAGES:
        assert not [load for load in links_of(page).loads if urlsplit(load).scheme in ("http", "https")], page


def test_examples_ran_without_warnings():
    examples = [page for page in PAGES if page.match("gallery/*/*.html") and page.stem not in NOT_EXAMPLES]
    assert len(examples) >= 16
    for page in examples:
        text = (SITE / page).read_text(encoding="utf-8")
        assert "sphx-glr-single-img" in text or "sphx-glr-multi-img" in text, f"{page} has no picture"
        assert "Traceback" not in text, page
        assert "Warning:" not in text, page


@pytest.fixture(scope="module")
def address():
    """The site on a port of this machine, since pages read from files may not load other files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("share", range(SHARES))
def test_a_browser_shows_every_page(share, address, chromium):
    problems = []
    with closing(chromium.new_page()) as view:
        view.on("console", lambda line: problems.append(f"{view.url}: {line.text}") if line.type == "error" else None)
        view.on("pageerror", lambda error: problems.append(f"{view.url}: {error}"))
        for page in PAGES[share::SHARES]:
            view.set_viewport_size({"width": 1200, "height": 900})
            view.goto(f"{address}/{page}")
            for width in (1200, 400):
                view.set_viewport_size({"width": width, "height": 900})
                seen = view.evaluate(MEASURE)
                if seen["overflow"] > 0 or seen["broken"]:
                    problems.append(f"{page} at {width} pixels: {seen}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.parametrize(
    ("word", "title"),
    [
        ("conditional", "Conditional"),
        ("quantile", "Probabilities, quantiles and boxes"),
        ("missing", "Fill in missing values"),
        ("categorical", "Categories"),
    ],
)
def test_search_finds(word, title, address, chromium):
    with closing(chromium.new_page()) as view:
        view.goto(f"{address}/search.html?q={word}")
        view.wait_for_selector("#search-results li a", timeout=20_000)
        view.wait_for_timeout(1000)  # more results follow the first one
        found = view.locator("#search-results li a").all_inner_texts()
    assert any(title in own for own in found[:10]), found


def test_notebooks_of_examples_are_there_and_hold_their_code():
    found = 0
    for page in (page for page in PAGES if page.match("gallery/*/*.html") and page.stem not in NOT_EXAMPLES):
        [notebook] = {link for link in links_of(page).links if link.endswith(".ipynb")}
        content = json.loads((SITE / page).parent.joinpath(unquote(notebook)).read_text(encoding="utf-8"))
        assert content["nbformat"] == 4
        code = ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]
        for cell in code:
            compile(cell.replace("%matplotlib inline", ""), notebook, "exec")
        assert any("rtbm" in cell for cell in code), page
        found += 1
    assert found >= 16
