"""The pages in a real Chromium: state by state, with and without JavaScript, narrow and wide.

Skipped with a message where there is no Chromium; NOETL_CHAIN_TEST_CHROMIUM names another one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.types import ASGIApp

from sidecar.settings import Bind
from sidecar.web.api import Endpoint, application
from sidecar.web.faces import Faced
from sidecar.web.listener import Listener
from sidecar.web.pages import Pages
from sidecar.web.stream import Hub
from tests.web.given import (
    AWAY,
    EVIL,
    HEADLINES,
    HEALTHY,
    LONGEST,
    ROOTS,
    STATES,
    TOKEN,
    TWO,
    WRONG,
    E,
    Given,
    standing,
    tallies,
    told,
)

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = os.environ.get("NOETL_CHAIN_TEST_CHROMIUM") or shutil.which("chromium")
ROOT = ["--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else []
LOCAL = Bind("127.0.0.1", 0)
PAGES = {
    "overview": "/",
    "list": "/executions",
    "two events": f"/executions/{TWO}",
    "500 events": f"/executions/{LONGEST}?all",
    "divergent": f"/executions/{WRONG}",
    "refused": f"/executions/{ROOTS}",
    "hostile": f"/executions/{EVIL}",
    "login": "/login",
    "not found": f"/executions/{E + 99}",
}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here: apt-get install chromium"),
]


class Serving:
    """An application on a real socket, in a thread with a loop of its own."""

    def __init__(self, app: ASGIApp, hub: Hub) -> None:
        self._ready = threading.Event()
        self._app = app
        self.hub = hub
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(10)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listener = Listener(self._app, LOCAL, ending=self.hub.close)
        self.url = f"http://127.0.0.1:{listener.port}"
        self._ready.set()
        await listener.run(self._stop)

    def call(self, work: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        self.call(self._stop.set)
        self._thread.join(10)
        assert not self._thread.is_alive()


def serving(given: Given) -> Serving:
    """Pages, login and the stream of `given`."""
    hub = Hub()
    pages = Pages(given, lambda: given.status(), lambda: given.opened, tokened=True)  # noqa: PLW0108 - it changes
    table = (*pages.endpoints(), Endpoint("/api/v1/events", hub.answer))
    return Serving(Faced(application(table, LOCAL, TOKEN), tokened=True), hub)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=ROOT)
        yield started
        started.close()


@pytest.fixture(scope="module")
def sites() -> Iterator[dict[str, Serving]]:
    started = {state: serving(given) for state, given in STATES.items()}
    yield started
    for each in started.values():
        each.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a page in a context of its own; at the end nothing may have been refused or thrown."""
    contexts = []
    complaints: list[str] = []

    def heard(message: Any) -> None:
        # A page that is refused is told as an error, too; a policy that was broken has other words.
        if message.type in ("error", "warning") and "status of 4" not in message.text:
            complaints.append(message.text)

    def open_page(url: str, **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", heard)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda sent: complaints.extend([sent.url] * (sent.url[:21] != url[:21])))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize("scripts", [True, False], ids=["with scripts", "without scripts"])
@pytest.mark.parametrize("state", STATES)
def test_a_state_is_told_with_and_without_scripts(
    sites: dict[str, Serving], opened: Any, state: str, scripts: bool
) -> None:
    page = opened(sites[state].url + "/", java_script_enabled=scripts)
    assert HEADLINES[state] in page.get_by_role("status").inner_text()
    for landmark in ("banner", "navigation", "main", "contentinfo", "search"):
        assert page.get_by_role(landmark).count() == 1, landmark
    assert page.get_by_role("heading", name="The two numbers").count() == 1


_OVERFLOW = "() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]"


@pytest.mark.parametrize("name", PAGES)
def test_no_page_is_wider_than_its_window(sites: dict[str, Serving], opened: Any, name: str) -> None:
    page = opened(sites["divergent"].url + PAGES[name])
    for width in (375, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        wide, window = page.evaluate(_OVERFLOW)
        assert wide <= window == width


_CONTRAST = """() => {
  const channel = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (at) => {
    for (; at; at = at.parentElement) {
      const found = parse(getComputedStyle(at).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walk.nextNode()) {
    const at = walk.currentNode.parentElement;
    if (!walk.currentNode.textContent.trim() || at.closest(".sr, .skip, script, title, option")) continue;
    const svg = at instanceof SVGElement;
    const ink = parse(getComputedStyle(at)[svg ? "fill" : "color"]);
    const [a, b] = [light(ink), light(ground(at))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    seen += 1;
    if (ratio < 4.5) poor.push(`${ratio.toFixed(2)} ${walk.currentNode.textContent.trim().slice(0, 40)}`);
  }
  return [seen, poor];
}"""


@pytest.mark.parametrize("name", ["overview", "list", "divergent", "refused", "login", "not found"])
def test_every_text_stands_out_from_its_ground(sites: dict[str, Serving], opened: Any, name: str) -> None:
    token = {"authorization": f"Bearer {TOKEN}"}
    page = opened(sites["divergent"].url + PAGES[name], extra_http_headers=token)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        seen, poor = page.evaluate(_CONTRAST)
        assert seen > 8
        assert poor == []


def test_light_and_dark_differ(sites: dict[str, Serving], opened: Any) -> None:
    page = opened(sites["healthy"].url + "/")
    grounds = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.add(page.evaluate("() => getComputedStyle(document.documentElement).backgroundColor"))
    assert len(grounds) == 2


@pytest.mark.parametrize("headers", [{}, {"authorization": f"Bearer {TOKEN}"}], ids=["closed", "open"])
def test_hostile_text_does_nothing(sites: dict[str, Serving], opened: Any, headers: dict[str, str]) -> None:
    page = opened(sites["divergent"].url + PAGES["hostile"], extra_http_headers=headers)
    assert page.evaluate("() => window.hacked === undefined")
    assert page.locator("main script, main img, main iframe").count() == 0
    assert "<script>" in page.locator("svg.chain[role=img]").text_content()
    assert ("window.hacked" in " ".join(page.locator("pre.body").all_inner_texts())) is bool(headers)


def test_a_browser_logs_in_sees_bodies_and_logs_out(sites: dict[str, Serving], opened: Any) -> None:
    page = opened(sites["divergent"].url + PAGES["divergent"], java_script_enabled=False)
    assert page.locator("pre.body").count() == 0
    page.get_by_role("link", name="Log in with the token").click()
    page.get_by_label("Token").fill("a wrong one")
    page.get_by_role("button", name="Log in").click()
    assert page.get_by_role("alert").inner_text().startswith("401")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    page.goto(sites["divergent"].url + PAGES["divergent"])
    assert "s3cr3t" in page.locator("pre.body").first.inner_text()
    assert page.evaluate("() => document.cookie") == ""
    page.get_by_role("button", name="Log out").click()
    page.goto(sites["divergent"].url + PAGES["divergent"])
    assert page.locator("pre.body").count() == 0


def test_the_search_box_leads_to_an_execution_and_its_findings_are_linked(
    sites: dict[str, Serving], opened: Any
) -> None:
    page = opened(sites["divergent"].url + "/", java_script_enabled=False)
    page.get_by_label("Execution", exact=True).fill(str(LONGEST))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/executions/{LONGEST}")
    page.go_back()
    page.get_by_role("link", name=str(WRONG)).click()
    page.wait_for_url(f"**/executions/{WRONG}#finding-41")
    assert page.locator("#finding-41").is_visible()


def test_the_keyboard_reaches_the_content_and_what_scrolls_and_shows_where_it_is(
    sites: dict[str, Serving], opened: Any
) -> None:
    page = opened(sites["divergent"].url + PAGES["500 events"])
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"
    met = []
    for _ in range(3):
        page.keyboard.press("Tab")
        met.append(
            page.evaluate(
                "() => document.activeElement.getAttribute('aria-label') || document.activeElement.tagName"
            )
        )
        assert page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert "Drawing of the chain" in met
    assert "SUMMARY" in met
    before = page.evaluate("() => document.querySelector('.drawing').scrollTop")
    page.locator(".drawing").focus()
    page.keyboard.press("End")
    page.wait_for_function(f"() => document.querySelector('.drawing').scrollTop > {before}")


def test_numbers_change_in_place_when_the_stream_says_so(browser: Any, opened: Any) -> None:
    given = Given(lambda: told(standing(HEALTHY)))
    site = serving(given)
    try:
        page = opened(site.url + "/")
        page.wait_for_function("() => document.getElementById('stream').textContent === '· live'")
        page.evaluate("() => { window.stayed = true; }")
        page.get_by_label("Execution", exact=True).fill("123")
        bad = standing(tallies(match=1470, divergent=2), findings={"divergent": 2}, kinds={"payload": 2})
        given.status = lambda: told(bad)
        site.call(lambda: site.hub.publish("status", {}))
        page.wait_for_function(
            "() => document.getElementById('headline').textContent.includes('2 open findings')"
        )
        assert "payload 2" in page.locator("#numbers").inner_text()
        assert page.evaluate("() => window.stayed")
        assert page.get_by_label("Execution", exact=True).input_value() == "123"
    finally:
        site.close()


def test_an_execution_is_refreshed_by_its_own_verdicts_alone(opened: Any) -> None:
    given = Given(lambda: told(standing(HEALTHY)), dict(STATES["divergent"].shown))
    site = serving(given)
    try:
        page = opened(f"{site.url}/executions/{AWAY}")
        page.wait_for_function("() => document.getElementById('stream').textContent === '· live'")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        site.call(lambda: site.hub.publish("verdict", {"execution_id": str(TWO)}))
        site.call(lambda: site.hub.publish("verdict", {"execution_id": str(AWAY)}))
        given.shown[AWAY] = STATES["divergent"].shown[WRONG]
        page.wait_for_function("() => document.getElementById('headline').textContent.includes('divergent')")
        assert asked == [f"{site.url}/executions/{AWAY}"]
    finally:
        site.close()


def test_when_the_sidecar_goes_away_the_page_stays_and_says_so(opened: Any) -> None:
    site = serving(Given(lambda: told(standing(HEALTHY))))
    page = opened(site.url + "/")
    page.wait_for_function("() => document.getElementById('stream').textContent === '· live'")
    site.close()
    page.wait_for_function("() => document.getElementById('stream').textContent.includes('trying again')")
    assert HEADLINES["healthy"] in page.get_by_role("status").inner_text()


def test_printed_nothing_scrolls_and_nothing_is_cut(sites: dict[str, Serving], opened: Any) -> None:
    page = opened(sites["divergent"].url + PAGES["500 events"])
    page.emulate_media(media="print")
    flow = "(each) => getComputedStyle(each).overflowY !== 'visible'"
    cut = page.evaluate(f"() => [...document.querySelectorAll('.scroll')].filter({flow}).length")
    assert cut == 0
    assert not page.get_by_role("search").is_visible()
