"""/docs in a browser: it shows every route of the document, and sends what one types."""

import shutil

import pytest

from octavo.testing.scripted import Scripted
from octavo.testing.served import PATIENCE
from tests.contract import agents

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


def test_the_page(tmp_path):
    wrong, asked = [], []
    with Scripted(agents.folder(tmp_path), ["--api-key", "key"]) as server, sync_api.sync_playwright() as play:
        server.say("", "Sunny.")
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(extra_http_headers={"Authorization": "Bearer key"})
        page.set_default_timeout(PATIENCE * 1000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{server.url}/docs")
        page.fill("#key", "key")
        page.locator("#key").blur()
        page.wait_for_selector("details")
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
            route = page.locator("details", has=page.get_by_text(path, exact=True)).first
            route.locator("summary").click()
            assert route.locator("h4").all_text_contents() == ["body", "answer", "events"]
            assert route.locator("td code").count() > 20
            route.locator("button").click()
            sync_api.expect(route.locator("pre")).to_contain_text("Sunny.", timeout=PATIENCE * 1000)
        browser.close()
        assert not wrong
        assert all(url.startswith(server.url) or url == "data:," for url in asked), asked
