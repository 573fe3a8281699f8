"""A headless Chromium for tests that use the page. Where there is none they are skipped; with CI set they fail."""

from __future__ import annotations

import os
import shutil

import pytest


def find_chromium() -> str | None:
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


@pytest.fixture(scope="module")
def browser():
    path = find_chromium()
    if path is None:
        message = "no Chromium; `apt-get install chromium` provides one"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
