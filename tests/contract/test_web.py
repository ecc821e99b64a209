"""The web page at /, in a headless Chromium against a live server with a key; skipped where there is no Chromium.

One long file, so that one server and one browser do for all of it.
"""

import http.client
import json
import re
import shutil

import pytest

from octavo.front.server import web
from octavo.testing.scripted import Scripted, model
from octavo.testing.served import ENDLESS

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEY = "open sesame"
PATIENCE = 240_000  # ms
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> [x](javascript:window.hacked=1)'
MARKDOWN = f"""A **bold** word, `code`, and a list:

1. first
2. second
   - inner

```python
print("a line that is far wider than any phone, so that it has to scroll within its own box and not the page")
```

| a column | another column | a third column | a fourth column |
|---|---|---|---|
| 1 | 2 | 3 | {"x" * 80} |

{HOSTILE} and {"y" * 120} end.
"""
#: A chat template with tools and reasoning, in the notation of Hermes and Qwen3.
TEMPLATE = (
    "{% if tools %}{{ '<|turn|>system\\nTools: ' }}{{ tools | tojson }}"
    '{{ \'<tool_call>{"name": ..., "arguments": ...}</tool_call><|turn_end|>\\n\' }}{% endif %}'
    "{% for m in messages %}{{ '<|turn|>' + m.role + '\\n' }}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}{{ '<tool_call>' + call.function.name + '</tool_call>' }}{% endfor %}"
    "{{ '<|turn_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    "{% endif %}"
)
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CALLS = (
    f"<think>\nHm, {HOSTILE}?\n</think>\n\nLet me look.\n\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo <b>"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    config = {"max_position_embeddings": ENDLESS}
    folder = model(tmp_path_factory.mktemp("web"), TEMPLATE, specials=MARKS, config=config, latency=0.002)
    with Scripted(folder, ["--api-key", KEY]) as found:
        found.say_all({"markdown": [MARKDOWN], "endless": ["word " * 30_000], "turns": ["one", "two", "three"]})
        found.say("begins", MARKDOWN + "word " * 30_000)
        found.say_all({"how is it in oslo": [CALLS], "it rains there": ["Take an umbrella."]})
        yield found


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with sync_api.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def visit(browser, server):
    """``visit(path, key=..., **of the context)`` opens the page. At the end: no error was told, nothing was asked of
    another origin, no text ran as code."""
    opened, wrong = [], []

    def told(message):
        if message.type == "error" and not re.search("status of 40[01]", message.text):
            wrong.append(message.text)

    def asked(request):
        if not request.url.startswith(server.url + "/"):
            wrong.append(request.url)

    def go(path="/", key=KEY, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE)
        opened.append(context)
        if key:
            context.add_init_script(f"sessionStorage.setItem('octavo.key', {json.dumps(key)})")
        page = context.new_page()
        page.on("console", told)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", asked)
        page.goto(server.url + path)
        return page

    yield go
    for context in opened:
        for page in context.pages:
            assert page.evaluate("window.hacked") is None
            assert page.locator("main img, main script").count() == 0
        context.close()
    assert not wrong


def ask(page, text):
    page.fill("#input", text)
    page.keyboard.press("Enter")


def until(page, expression):
    """Wait until the page finds it true; looked at from outside, since the page itself may not evaluate a text."""
    for _ in range(PATIENCE // 50):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def done(page):
    page.wait_for_selector("#send:not([hidden])")
    until(page, "document.querySelector('.message:last-child')?.getAttribute('aria-busy') === 'false'")


def stream(*deltas, finish="stop", usage=None):
    """A whole answer of the chat route, as it would be streamed."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks += [{"choices": [], "usage": usage}] if usage else []
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def fake(page, *answers):
    """The chat route answers with these in turn; the bodies that were asked."""
    bodies, left = [], list(answers)

    def answer(route):
        bodies.append(json.loads(route.request.post_data))
        route.fulfill(status=200, content_type="text/event-stream", body=left.pop(0))

    page.route("**/v1/chat/completions", answer)
    return bodies


def test_an_answer_streams(visit):
    page = visit()
    ask(page, "begins")
    page.wait_for_selector(".message.assistant strong")
    assert page.is_visible("#stop"), "the first words are shown before the last ones are there"
    page.click("#stop")
    done(page)


def test_an_answer_is_laid_out(visit):
    page = visit()
    ask(page, "markdown please")
    done(page)
    answer = page.locator(".message.assistant")
    assert answer.locator("pre code").inner_text().startswith("print(")
    assert answer.locator("ol > li").count() == 2
    assert answer.locator("ol ul li").inner_text() == "inner"
    assert answer.locator("td").count() == 4
    assert HOSTILE in answer.inner_text()
    assert answer.locator("a").count() == 0
    assert re.search(r"\d+ tokens · [\d.]+ tok/s · first after", page.inner_text(".stats"))


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop(visit, server, how):
    page = visit()
    ask(page, "endless")
    until(page, "document.querySelector('.message.assistant')?.innerText.includes('word word')")
    if how == "button":
        page.click("#stop")
    else:
        page.keyboard.press("Escape")
    done(page)
    assert "stopped" in page.inner_text(".stats")
    running = "vllm:num_requests_running{"

    def idle():
        text = server.get("/metrics", Authorization=f"Bearer {KEY}")[1].decode()
        return all(line.endswith(" 0.0") for line in text.splitlines() if line.startswith(running))

    server.until("free engine", idle)


def test_the_key_is_asked_for(visit):
    page = visit(key=None)
    page.wait_for_selector("dialog[open]")
    assert page.evaluate("document.activeElement.id") == "key-input"
    assert page.is_hidden("#key-wrong")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#key-wrong:visible")
    page.keyboard.type(KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog", state="hidden")
    until(page, "document.getElementById('model').value === 'scripted'")
    assert page.evaluate("[sessionStorage['octavo.key'], JSON.stringify(localStorage).includes('sesame')]") == [
        KEY,
        False,
    ]
    ask(page, "turns")
    done(page)
    assert page.locator(".message.assistant .body.md").last.inner_text() in ("one", "two", "three")


def test_without_a_key_it_says_so_and_asks_again(visit):
    page = visit("/#board", key=None)
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.click("#board-note button")
    page.fill("#key-input", KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector(".figure")
    assert page.is_hidden("#board-note")
    page = visit(key=None)
    page.wait_for_selector("dialog[open]")
    page.click("#key-cancel")
    ask(page, "turns")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    done(page)
    assert "API key" in page.inner_text(".message .error")


def test_an_edit_stops_the_answer_before(visit):
    page = visit()
    ask(page, "endless")
    until(page, "document.querySelector('.message.assistant')?.innerText.includes('word word')")
    page.hover(".message.user")
    page.get_by_role("button", name="Edit").click()
    page.fill(".editing textarea", "endless, edited")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.message.assistant').innerText.includes('word word')")
    assert page.locator(".message").count() == 2
    assert page.is_visible("#stop")
    assert page.get_attribute(".message.assistant", "aria-busy") == "true"
    page.click("#stop")
    done(page)


def test_from_the_keyboard(visit):
    page = visit(viewport={"width": 1200, "height": 800})
    bodies = fake(page, stream({"content": "yes"}), stream({"content": "again"}), stream({"content": "edited"}))
    focused = "document.activeElement.id || document.activeElement.textContent"
    assert page.evaluate(focused) == "input"
    page.keyboard.type("two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("lines")
    page.keyboard.press("Enter")
    done(page)
    assert bodies[0]["messages"] == [{"role": "user", "content": "two\nlines"}]

    def tab_to(name, key="Shift+Tab"):
        for _ in range(40):
            if page.evaluate(focused) == name:
                ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
                assert ring != "none", f"{name} does not show that it has the focus"
                return
            page.keyboard.press(key)
        raise AssertionError(f"{name} cannot be reached")

    tab_to("Regenerate")
    page.keyboard.press("Enter")
    done(page)
    assert page.evaluate(focused) == "input"
    assert bodies[1]["messages"] == bodies[0]["messages"]
    tab_to("Edit")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    tab_to("Edit")
    page.keyboard.press("Enter")
    page.keyboard.type(" and more")
    page.keyboard.press("Enter")
    done(page)
    assert bodies[2]["messages"] == [{"role": "user", "content": "two\nlines and more"}]
    assert page.locator(".message").count() == 2
    tab_to("tune")
    page.keyboard.press("Enter")
    assert page.evaluate(focused) == "set-system"
    page.keyboard.press("Escape")
    assert page.evaluate(focused) == "tune"
    assert page.is_hidden("#settings")


def test_every_control_has_a_name(visit):
    page = visit()
    nameless = """[...document.querySelectorAll("button, input, select, textarea, a")].filter((one) =>
      !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.[0]?.textContent.trim()))
      .map((one) => one.id)"""
    assert page.evaluate(nameless) == []
    assert page.evaluate("document.documentElement.lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(visit, scheme):
    page = visit(viewport={"width": 360, "height": 700}, color_scheme=scheme, has_touch=True)
    wide = "[document.documentElement, ...document.querySelectorAll('main, #log')].some((one) => one.scrollWidth > 360)"
    ask(page, "markdown")
    done(page)
    assert not page.evaluate(wide)
    for drawer, control in (("menu", "new"), ("tune", "set-system")):
        page.click(f"#{drawer}")
        until(page, f"document.activeElement.id === '{control}'")
        assert not page.evaluate(wide)
        page.keyboard.press("Escape")
    page.click("#tab-board")
    page.wait_for_selector("#latencies svg")
    assert not page.evaluate(wide)


CONTRAST = """() => {
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => rgb.slice(0, 3).map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (node) => {
    const found = parse(getComputedStyle(node).backgroundColor);
    return found.length < 4 || found[3] === 1 ? found : behind(node.parentElement);
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    if (![...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim()) || !node.checkVisibility()) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push([node.tagName, node.className, node.textContent.slice(0, 30), ratio.toFixed(2)]);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(visit, scheme):
    page = visit(color_scheme=scheme)
    fake(page, stream({"reasoning": "hm"}, {"content": MARKDOWN}, {"tool_calls": [call(0, "f", "{}")]}), "data: {}\n\n")
    ask(page, "a")
    done(page)
    ask(page, "b")
    page.wait_for_selector(".message .error:visible")
    page.click("#tune")
    assert page.evaluate(CONTRAST) == []
    dark = (
        sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]))
        < 128 * 3
    )
    assert dark == (scheme == "dark")
    page.click("#tab-board")
    page.wait_for_selector("#latencies figure")
    assert page.evaluate(CONTRAST) == []


def call(index, name, arguments):
    return {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_reasoning_is_folded_and_calls_are_answered(visit):
    page = visit()
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    bodies = fake(
        page,
        stream(
            {"role": "assistant", "content": ""},
            {"reasoning": f"Let me {HOSTILE} "},
            {"reasoning": "think."},
            {"tool_calls": [call(0, "weather", '{"city": "Pa')]},
            {"tool_calls": [{"index": 0, "function": {"arguments": 'ris"}'}}]},
            {"tool_calls": [call(1, HOSTILE, HOSTILE)]},
            finish="tool_calls",
            usage={"prompt_tokens": 90, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 64}},
        ),
        stream({"content": "It rains."}),
    )
    page.click("#tune")
    page.fill("#set-tools", json.dumps(tools))
    page.fill("#set-system", "Be brief.")
    page.fill("#set-temperature", "0.5")
    page.fill("#set-stop", "END\nSTOP")
    page.select_option("#set-thinking", "on")
    ask(page, f"weather {HOSTILE}?")
    done(page)
    asked = bodies[0]
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (asked["tools"], asked["temperature"], asked["stop"]) == (tools, 0.5, ["END", "STOP"])
    assert asked["chat_template_kwargs"] == {"enable_thinking": True}
    assert asked["stream"] is True
    assert "top_p" not in asked
    thought = page.locator(".reasoning .body")
    assert thought.is_hidden()
    page.click(".reasoning summary")
    assert HOSTILE in thought.inner_text()
    assert json.loads(page.locator(".call pre").first.inner_text()) == {"city": "Paris"}
    assert HOSTILE in page.locator(".call").nth(1).inner_text()
    assert "64 of 90 prompt tokens cached" in page.inner_text(".stats")
    page.locator(".call textarea").first.fill("rain")
    page.get_by_role("button", name="Send results").click()
    done(page)
    _system, _user, answer, *results = bodies[1]["messages"]
    assert [one["function"]["arguments"] for one in answer["tool_calls"]] == ['{"city": "Paris"}', HOSTILE]
    assert answer["content"] is None
    assert "reasoning" not in answer
    assert [(one["tool_call_id"], one["content"]) for one in results] == [("c0", "rain"), ("c1", "")]
    assert page.locator(".message.assistant .body.md").last.inner_text() == "It rains."


def test_reasoning_and_calls_of_a_live_server(visit):
    page = visit()
    page.click("#tune")
    page.fill("#set-tools", json.dumps([{"type": "function", "function": {"name": "weather", "parameters": {}}}]))
    ask(page, "how is it in oslo")
    done(page)
    assert page.locator(".reasoning .body").is_hidden()
    page.click(".reasoning summary")
    assert page.inner_text(".reasoning .body") == f"Hm, {HOSTILE}?"
    assert page.locator(".message.assistant > .body.md").inner_text() == "Let me look."
    assert json.loads(page.inner_text(".call pre")) == {"city": "Oslo <b>"}
    page.fill(".call textarea", "it rains there")
    page.get_by_role("button", name="Send results").click()
    done(page)
    assert page.locator(".message.assistant > .body.md").last.inner_text() == "Take an umbrella."


def test_wrong_settings_are_told_before_anything_is_sent(visit):
    page = visit()
    bodies = fake(page)
    page.click("#tune")
    for field, value, said in (("temperature", "9", "Temperature"), ("tools", "[{", "not valid JSON")):
        page.fill(f"#set-{field}", value)
        assert said in page.inner_text("#set-error")
        ask(page, "hi")
        done(page)
        assert said in page.locator(".message .error").last.inner_text()
        page.fill(f"#set-{field}", "")
        assert page.is_hidden("#set-error")
    assert bodies == []


def test_what_the_server_refuses_is_shown(visit):
    page = visit()
    page.click("#tune")
    page.fill("#set-max_tokens", "99999999")
    ask(page, "turns")
    done(page)
    assert "max_tokens" in page.inner_text(".message .error")
    page.fill("#set-max_tokens", "")
    page.get_by_role("button", name="Try again").click()
    done(page)
    assert page.locator(".message.assistant").count() == 1
    assert page.is_hidden(".message .error")


def test_history_stays_in_this_browser(visit):
    page = visit()
    page.on("dialog", lambda dialog: dialog.accept())
    ask(page, f"turns {HOSTILE}")
    done(page)
    page.click("#new")
    assert page.locator(".message").count() == 0
    ask(page, "turns, second talk")
    done(page)
    page.reload()
    titles = page.locator("#talks .title")
    assert titles.all_inner_texts() == ["turns, second talk", f"turns {HOSTILE}"[:60].strip()]
    titles.nth(1).click()
    assert page.locator(".message").count() == 2
    assert HOSTILE in page.locator(".message.user").inner_text()
    page.locator("#talks li").nth(1).hover()
    page.locator("#talks .icon").nth(1).click()
    assert titles.all_inner_texts() == ["turns, second talk"]
    page.click("#forget")
    assert page.evaluate("localStorage['octavo.talks']") == "[]"
    ask(page, "turns")
    done(page)
    other = page.context.new_page()
    other.goto(page.url)
    ask(other, "turns in another tab")
    done(other)
    page.wait_for_selector("#talks .title:has-text('another tab')")
    assert page.locator(".message").count() == 2, "what is open here stays"
    ask(page, "turns again")
    done(page)
    other.reload()
    assert sorted(other.locator("#talks .title").all_inner_texts()) == ["turns", "turns in another tab"]
    other.close()
    page.evaluate("localStorage['octavo.talks'] = '{broken'; localStorage['octavo.settings'] = '3'")
    page.reload()
    page.wait_for_selector(".empty")


def test_the_board(visit, server):
    page = visit()
    server.post("/v1/completions", {"prompt": "turns", "max_tokens": 3}, Authorization=f"Bearer {KEY}")
    page.click("#tab-board")
    page.wait_for_selector("#latencies svg[aria-label^='Time to first token: p50 ']")
    figures = dict(one.split("\n")[:2] for one in page.locator(".figure").all_inner_texts())
    assert set(figures) == {
        "Running", "Waiting", "Output", "Prompt", "KV cache", "Cache hits", "Answered", "Preempted"
    }  # fmt: skip
    assert int(figures["Answered"]) >= 1
    assert page.locator("#lines svg[role=img]").count() == 3
    page.wait_for_selector("#lines polyline.s0", state="attached")  # the second look
    ask_more = {"prompt": "endless", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    start = """([body, key]) => { fetch("/v1/completions", {method: "POST", body: JSON.stringify(body),
      headers: {authorization: "Bearer " + key, "content-type": "application/json"}}); }"""
    page.evaluate(start, [ask_more, KEY])
    until(page, "document.querySelector('.figure strong').textContent === '1'")
    until(page, "parseFloat(document.querySelectorAll('.figure strong')[2].textContent) > 10")
    page.select_option("#span", "recent")
    page.wait_for_selector("#latencies svg[aria-label^='Between tokens: p50 ']")


def test_the_layout_does_not_depend_on_the_cuts(visit):
    """A text that grows ends as one that came whole, and no word of it is lost."""
    page = visit()
    same = """async ([texts]) => {
      const {Rendered} = await import("/web/render.js");
      return texts.filter((text) => {
        const [grown, whole] = [document.createElement("div"), document.createElement("div")];
        const view = new Rendered(grown);
        for (let at = 0; at <= text.length; at += 3) view.update(text.slice(0, at));
        view.update(text);
        new Rendered(whole).update(text);
        const words = text.match(/[a-z]{3,}/gi) ?? [];
        return grown.innerHTML !== whole.innerHTML || !words.every((one) => grown.textContent.includes(one));
      });
    }"""
    odd = [
        MARKDOWN, "# head\ntext\n## more ##\n***\nend", "> quote\n> - list\n>   more\nafter", "```\nnever closed\n**no",
        "~~~\n```\ninner\n```\n~~~\nafter", "a | b\n--|--\n1 | 2\n\n- one\n\n  still one\n- two\n    - deep\n3. three",
        "**open *mixed** up* `tick ``two` ticks``", "> " * 30 + "deep", "- a\n" * 50,
        "  - first is indented\n- then not",
        "tab\tand\r\nreturns", "[bad](javascript:alert) http://y.example/a.",
    ]  # fmt: skip
    assert page.evaluate(same, [odd]) == []
    links = """async () => {
      const {Rendered} = await import("/web/render.js");
      const root = document.createElement("div");
      new Rendered(root).update("[a](http://x.example/p) [b](javascript:alert) [c](//d.example) https://y.example/q.");
      return [...root.querySelectorAll("a")].map((one) => [one.textContent, one.getAttribute("href"), one.rel]);
    }"""
    rel = "noopener noreferrer"
    assert page.evaluate(links) == [
        ["a", "http://x.example/p", rel],
        ["https://y.example/q", "https://y.example/q", rel],
    ]


def test_files_are_open_closed_to_others_and_cached(server):
    for path in web.OPEN_PATHS:
        status, body = server.get(path)
        assert status == 200
        outside = re.findall(rb"(?:https?:)?//[\w.-]+\.\w+", re.sub(rb"https?://www.w3.org/2000/svg", b"", body))
        assert not outside, (path, outside)
    assert server.get("/web/../../app.py")[0] == 401
    assert server.get("/web/nothing.js")[0] == 401
    line = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=240)
    line.request("GET", "/")
    answer = line.getresponse()
    page = answer.read().decode()
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", page)
    line.request("GET", "/", headers={"If-None-Match": answer.headers["etag"]})
    again = line.getresponse()
    assert (again.status, again.read()) == (304, b"")
    line.request("HEAD", "/web/main.js")
    head = line.getresponse()
    assert (head.status, head.read(), head.headers["content-type"]) == (200, b"", "text/javascript; charset=utf-8")
    line.close()


def test_the_page_can_be_left_out(tmp_path):
    with Scripted(model(tmp_path), ["--api-key", KEY, "--disable-web-ui"]) as bare:
        for path in ("/", "/web/main.js"):
            assert bare.get(path)[0] == 401
            assert bare.get(path, Authorization=f"Bearer {KEY}")[0] == 404
