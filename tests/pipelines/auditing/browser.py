"""Chromium without a window, and questions to ask it about a page."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

#: The names of the browser: Debian's, and others'.
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")

#: An idle browser looks for updates, and logs errors if it cannot reach them.
_QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-prefers-reduced-motion",
    "--hide-scrollbars",
)


def need_chromium() -> tuple[str, str]:
    """Find the browser and its driver. Without them, skip the test, or fail it where they are required."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if browser and driver:
        return browser, driver
    missing = (
        "the page is looked at with chromium and chromedriver (Debian: chromium, chromium-driver), and one is missing"
    )
    if os.environ.get("CRENEL_REQUIRE_BROWSER"):
        pytest.fail(missing)
    pytest.skip(missing)


@contextlib.contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """Start a browser that logs its pages' console messages and network requests."""
    browser, driver = need_chromium()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = browser
        for flag in (*_QUIET, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        running = webdriver.Chrome(options, Service(driver))
        try:
            yield running
        finally:
            running.quit()


def resize(browser: webdriver.Chrome, width: int, height: int = 900, scale: float = 1) -> None:
    """Set the width of the page in CSS pixels: a window cannot be as narrow as a phone."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(browser: webdriver.Chrome, media: str = "", scheme: str = "light") -> None:
    """Show the page as on a screen or in print, light or dark."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def events(browser: webdriver.Chrome) -> list[dict[str, Any]]:
    """Return the browser's events since the last call."""
    return [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]


def screenshot(browser: webdriver.Chrome, path: Path) -> None:
    """Take a picture of the whole page."""
    size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    options = {"clip": {**size, "scale": 1}, "captureBeyondViewport": True}
    path.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def pdf(browser: webdriver.Chrome) -> bytes:
    """Print the page."""
    prefer(browser)
    options = {"preferCSSPageSize": True, "printBackground": True}
    return base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", options)["data"])
