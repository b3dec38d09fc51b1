import pytest
import torch
from hypothesis import settings

from browser import CHROMIUM

torch.set_num_threads(1)
settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("random", deadline=None, print_blob=True)  # make test-random
settings.load_profile("repeatable")


@pytest.fixture(scope="module")
def chromium():
    """The system's browser, driven by Playwright."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def set_threads():
    """torch.set_num_threads, and one thread again after the test."""
    yield torch.set_num_threads
    torch.set_num_threads(1)
