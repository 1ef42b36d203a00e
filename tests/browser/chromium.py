"""Debian's Chromium, driven by Playwright; every page notes what a page must not do."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contrail.console.assets import Assets
from contrail.testing import eventually
from tests.interop.peers import unavailable

AXE = Path(__file__).parents[2] / "ui" / "node_modules" / "axe-core" / "axe.min.js"
INSTALL = "apt-get install chromium"
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener('securitypolicyviolation', (event) => {
  window.violations.push(event.violatedDirective + ' ' + event.blockedURI);
});
"""
# A request without a login is an answer, not an error of the page.
_EXPECTED = (
    "400 (Bad Request)",
    "401 (Unauthorized)",
    "403 (Forbidden)",
    "404 (Not Found)",
    "503 (Service Unavailable)",
)


class Blocking:
    """An object of Playwright's asyncio API whose calls wait; its loop runs in a thread of its own.

    Playwright's own blocking API runs tests inside of a greenlet, where Python 3.11 cannot format
    the traceback of a failed assertion.
    """

    def __init__(self, of: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._of = of
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._of, name)
        if not callable(found) or type(found).__module__.startswith("playwright"):
            return self._wrapped(found)

        def call(*given: Any, **named: Any) -> Any:
            called = _called(found, *given, **named)
            return self._wrapped(asyncio.run_coroutine_threadsafe(called, self._loop).result())

        return call

    def _wrapped(self, one: Any) -> Any:
        is_theirs = type(one).__module__.startswith("playwright")
        return Blocking(one, self._loop) if is_theirs else one


async def _called(found: Any, *given: Any, **named: Any) -> Any:
    """Calls that are not awaited talk to the browser too: all of them belong to the loop."""
    told = found(*given, **named)
    return await told if inspect.isawaitable(told) else told


@contextmanager
def browser() -> Iterator[Any]:
    """A browser; skips the test, with the reason, where there is none or the page is not built."""
    program = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if program is None:
        unavailable("there is no Chromium here", INSTALL)
    if importlib.util.find_spec("playwright") is None:
        unavailable("Playwright is not installed", "pip install playwright")
    if not Assets().has_page:
        unavailable("the console's page is not built", "make setup")
    from playwright.async_api import async_playwright

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="browser", daemon=True)
    thread.start()
    try:
        starting = async_playwright().start()
        playwright = Blocking(asyncio.run_coroutine_threadsafe(starting, loop).result(), loop)
        # The sandbox needs rights that containers do not give; pages come from our own server.
        opened = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield opened
        finally:
            opened.close()
            playwright.stop()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@dataclass
class Tab:
    """A tab of its own context, and its complaints."""

    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)
        self.page.wait_for_selector("h1, [data-state]")

    def log_in(self, account: str, password: str) -> None:
        self.go("/")
        self.page.fill("#account", account)
        self.page.fill("#password", password)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector(".shell")

    def settled(self) -> None:
        """Wait until nothing is loading any more."""
        self.until("!document.querySelector('[data-state=loading]')")

    def until(self, expression: str) -> None:
        """Wait until JavaScript is true; the policy bars what Playwright's own waiting needs."""
        eventually(lambda: self.page.evaluate(expression), expression)

    def require_clean(self) -> None:
        """No violation of the policy, no error of a script."""
        assert self.page.evaluate("window.violations") == []
        assert self.complaints == []

    def serious(self) -> list[str]:
        """The serious findings of axe in both themes, by rule and element; the policy stays on."""
        if not AXE.exists():
            unavailable("axe-core is not installed", "make setup")
        # By the protocol of the debugger, not by a script element, which the policy refuses.
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        self.page.emulate_media(color_scheme="light")
        told = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        # The themes differ in nothing but their colours.
        self.page.emulate_media(color_scheme="dark")
        contrast = "axe.run(document, {runOnly: ['color-contrast'], resultTypes: ['violations']})"
        told += self.page.evaluate(contrast)["violations"]
        return [
            f"{one['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:160]}"
            for one in told
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]


@contextmanager
def tab(browser: Any, url: str, **options: Any) -> Iterator[Tab]:
    """A tab without history; ``options`` are those of a browser context, such as color_scheme."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
    context.add_init_script(_NOTE_VIOLATIONS)
    opened = Tab(context.new_page(), url)

    def heard(message: Any) -> None:
        if message.type == "error" and not any(one in message.text for one in _EXPECTED):
            opened.complaints.append(message.text)

    opened.page.on("console", heard)
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    try:
        yield opened
    finally:
        context.close()
