"""Chromium without a window, and what it is asked about a page."""

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

#: What Debian calls it, and what others do.
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")

#: A browser at rest asks its maker for updates, and complains of what it cannot reach.
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
    """The paths of the browser and of its driver; skip the test if there is none, fail if there must be."""
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
    """A browser that logs what its pages say on the console and ask the network for."""
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
    """Give the page so many CSS pixels: windows cannot be as narrow as phones."""
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(browser: webdriver.Chrome, media: str = "", scheme: str = "light") -> None:
    """Show the page as on a screen or on paper, by day or by night."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def events(browser: webdriver.Chrome) -> list[dict[str, Any]]:
    """What the browser's protocol told since it was last asked."""
    return [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]


def screenshot(browser: webdriver.Chrome, path: Path) -> None:
    """A picture of the whole page."""
    size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    options = {"clip": {**size, "scale": 1}, "captureBeyondViewport": True}
    path.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))


def pdf(browser: webdriver.Chrome) -> bytes:
    """The page, printed."""
    prefer(browser)
    options = {"preferCSSPageSize": True, "printBackground": True}
    return base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", options)["data"])
