"""The chat page in headless Chromium: a question, a thought, a call and its result, the stop button, what goes wrong, a
narrow window, light and dark.

Usage: page.py URL CHROMIUM [FOLDER_FOR_SCREENSHOTS]   (see openai_python.py)
"""

import base64
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from websockets.sync.client import connect

url, chromium = sys.argv[1:3]
folder = sys.argv[3] if len(sys.argv) > 3 else None
profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
browser = subprocess.Popen(
    [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server",
     "--remote-debugging-port=0", f"--user-data-dir={profile.name}", "--window-size=1000,760", "about:blank"],
    stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
)


# Seconds in which anything must have come about, on any machine.
PATIENCE = 120


class Page:
    """One tab, spoken to by Chromium's own protocol."""

    def __init__(self):
        for line in browser.stderr:
            if found := re.search(r"DevTools listening on (ws://\S+)", line):
                break
        else:
            raise SystemExit("Chromium did not start")
        self.socket = contextlib.ExitStack().enter_context(connect(
            found[1], max_size=None, proxy=None, open_timeout=PATIENCE, ping_timeout=PATIENCE))
        self.numbers = itertools.count(1)
        self.session = None
        self.requests = []
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        self.failures = []
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.socket.send(json.dumps(message))
        while True:
            reply = json.loads(self.socket.recv(timeout=PATIENCE))
            if reply.get("method") == "Network.requestWillBeSent":
                self.requests.append(reply["params"]["request"]["url"])
            if reply.get("method") == "Runtime.exceptionThrown":
                self.failures.append(reply["params"]["exceptionDetails"])
            if reply.get("id") == number:
                assert "error" not in reply, reply
                return reply["result"]

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, script):
        end = time.time() + PATIENCE
        while not self.run(f"Promise.resolve({script}).then(value => !!value)"):
            assert time.time() < end, (script, self.run("document.body.innerText"))
            time.sleep(0.02)

    def open(self, address):
        # A script that runs before the new document is whole sees the blank one, or half the page.
        self.call("Page.navigate", url=address)
        end = time.time() + PATIENCE
        while self.run("location.href + ' ' + document.readyState") != f"{address} complete":
            assert time.time() < end, f"{address} was not loaded"
            time.sleep(0.02)

    def say(self, text):
        self.run(f"at('input').value = {json.dumps(text)}; at('form').requestSubmit()")

    def idle(self):
        self.wait("!running")

    def shoot(self, name):
        if folder:
            image = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
            with open(os.path.join(folder, name + ".png"), "wb") as file:
                file.write(image)


def force(*tokens):
    return "force: " + json.dumps(tokens)


# An answer of minutes, on any machine: whoever looks finds it on its way, however late.
LONG = [{"pause": 20}, ["word ", 10_000]]
LAST = "document.querySelector('#chat .turn:last-child')"
WEATHER = [{"type": "function", "function": {"name": "get_weather", "description": "Current weather for a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def question(page):
    page.wait("at('model').textContent.startsWith('small')")
    page.say("What's 17+25?")
    page.wait(f"{LAST}.querySelector('.speed')")
    assert page.run(f"{LAST}.querySelector('.text').textContent") == "42"
    assert re.search(r"\d+ tokens · [\d.]+ tok/s", page.run(f"{LAST}.querySelector('.speed').textContent"))


def thought(page):
    page.run("at('think').checked = true")
    page.say("What's 17+25?")
    page.wait(f"{LAST}.querySelector('.speed')")
    # Folded: there, and not open.
    assert page.run(f"{LAST}.querySelector('details').open") is False
    assert page.run(f"{LAST}.querySelector('details .text').textContent").strip()
    page.run("at('think').checked = false")


def call(page):
    page.run(f"at('declared').value = {json.dumps(json.dumps(WEATHER))}")
    page.say("What is the weather in Paris right now?")
    page.wait(f"{LAST}.querySelector('.call input')")
    assert page.run(f"{LAST}.querySelector('.call strong').textContent") == "get_weather"
    assert json.loads(page.run(f"{LAST}.querySelector('.call pre').textContent")) == {"city": "Paris"}
    turns = page.run("document.querySelectorAll('.turn').length")
    page.run(f"{LAST}.querySelector('.call input').value = '21 C, sunny'; {LAST}.querySelector('.call button').click()")
    page.wait(f"document.querySelectorAll('.turn').length > {turns} && {LAST}.querySelector('.speed')")
    assert "21" in page.run(f"{LAST}.querySelector('.text').textContent")
    page.run("at('declared').value = ''")


def markup(page):
    page.say(force("<b>bold</b> <img src=x onerror=alert(1)> & <|channel>"))
    page.wait(f"{LAST}.querySelector('.speed')")
    assert page.run(f"{LAST}.querySelector('.text').textContent").startswith("<b>bold</b> <img")
    assert page.run("document.querySelectorAll('#chat b, #chat img').length") == 0


def stop(page):
    page.say(force(*LONG))
    page.wait(f"({LAST}.querySelector('.text') || {{textContent: ''}}).textContent.length > 20")
    assert page.run("!at('stop').hidden && at('send').hidden")
    page.run("at('stop').click()")
    page.wait(f"{LAST}.querySelector('.speed')?.textContent === 'stopped'")
    page.idle()
    page.shoot("light")
    page.wait("fetch('metrics').then(reply => reply.text()).then(text => /w4pack_cancelled_total [1-9]/.test(text))")
    assert page.run("at('stop').hidden && !at('send').hidden")


def refusal(page):
    page.run("at('temperature').value = '9'")
    page.say("x")
    page.wait(f"{LAST}.querySelector('.error')")
    assert "temperature" in page.run(f"{LAST}.querySelector('.error').textContent")
    page.run("at('temperature').value = ''; at('new').click()")
    assert page.run("document.querySelectorAll('.turn').length") == 0


def unreachable(page):
    conditions = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.call("Network.emulateNetworkConditions", offline=True, **conditions)
    page.say("Is anybody there?")
    page.wait(f"{LAST}.querySelector('.error')")
    assert "cannot be reached" in page.run(f"{LAST}.querySelector('.error').textContent")
    # The question is there to be sent again, and not a part of the conversation.
    assert page.run("at('input').value") == "Is anybody there?" and page.run("messages.length") == 0
    assert page.run("!!chat.querySelector('.user.unsent')")
    page.call("Network.emulateNetworkConditions", offline=False, **conditions)
    page.run("at('input').value = ''; at('new').click()")


def broken_off(page):
    """A proxy may end a stream in good order, and in the middle."""
    half = 'data: {"choices": [{"index": 0, "delta": {"content": "half"}, "finish_reason": null}]}\n\n'
    page.run(f"window.fetched = fetch; window.fetch = async () => new Response({json.dumps(half)})")
    page.say("x")
    page.wait(f"{LAST}.querySelector('.error')")
    assert page.run(f"{LAST}.querySelector('.text').textContent") == "half"
    assert "broke off" in page.run(f"{LAST}.querySelector('.error').textContent")
    page.run("window.fetch = fetched; at('new').click()")


def tools_that_are_none(page):
    for declared, complaint in [("[{", "no JSON"), ('{"type": "function"}', "`tools`"), ('[{"type": "web"}]', "tools[0].type")]:
        page.run(f"at('declared').value = {json.dumps(declared)}; at('input').value = ''")
        page.say("x")
        page.wait(f"{LAST}.querySelector('.error')")
        assert complaint in page.run(f"{LAST}.querySelector('.error').textContent"), complaint
    page.run("at('declared').value = at('input').value = ''; at('new').click()")


def writing_elsewhere(page):
    """The end of an answer takes the cursor from nobody."""
    page.run("at('show-tools').click()")
    page.say(force(["word ", 30]))
    page.run("at('declared').focus()")
    page.idle()
    assert page.run("document.activeElement.id") == "declared"
    page.run("at('show-tools').click(); at('new').click()")


NARROW = 400
STICKING_OUT = f"""[...document.querySelectorAll('body *')].filter(element => element.getBoundingClientRect().right > {NARROW} + 1)
    .map(element => element.tagName + ' ' + element.textContent.slice(0, 40))"""


def narrow(page):
    page.call("Emulation.setDeviceMetricsOverride", width=NARROW, height=760, deviceScaleFactor=1, mobile=False)
    name = "a_tool_whose_name_" + "goes_on_" * 8
    tool = [{"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object", "properties": {}}}}]
    page.run(f"at('declared').value = {json.dumps(json.dumps(tool))}")
    page.say(force("word" * 100 + f'<|tool_call>call:{name}{{a:<|"|>{"value" * 30}<|"|>}}<tool_call|>'))
    page.wait(f"{LAST}.querySelector('.call input')")
    page.run("at('show-tools').click()")
    assert page.run(STICKING_OUT) == [], page.run(STICKING_OUT)
    assert page.run("at('chat').scrollWidth <= at('chat').clientWidth")
    page.shoot("narrow")
    page.run("at('show-tools').click(); at('declared').value = ''; at('new').click()")
    page.call("Emulation.clearDeviceMetricsOverride")


def dark(page):
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.run(back)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.run(back) != light
    for part in (question, thought, call):
        part(page)
    page.say(force(*LONG))
    page.wait(f"({LAST}.querySelector('.text') || {{textContent: ''}}).textContent.length > 20")
    page.run("at('stop').click()")
    page.idle()
    page.shoot("dark")
    page.run("at('show-tools').click()")
    page.run("document.querySelector('details').open = true")
    page.shoot("dark-open")


try:
    page = Page()
    page.open(url + "/")
    for part in (question, thought, call, markup, stop, refusal, unreachable, broken_off, tools_that_are_none, writing_elsewhere, narrow, dark):
        part(page)
        print(f"{part.__name__}: passed")
    assert not page.failures, page.failures
    elsewhere = [asked for asked in page.requests if not asked.startswith((url, "data:"))]
    assert not elsewhere, elsewhere
    print("nothing from elsewhere: passed")
finally:
    browser.kill()
    browser.wait()
