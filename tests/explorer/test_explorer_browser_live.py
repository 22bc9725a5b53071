"""The live page in a real browser: the requests it sends, and how it shows the replies."""

import io
import json
import time
from base64 import b64decode, b64encode
from contextlib import suppress
from threading import Thread

import pytest
from browsing import Visit
from explorer_live_cases import tools
from explorer_samples import SIDE, fate_of, picture, pruned
from PIL import Image

from eligo.explorer.export import explorer_page
from eligo.explorer.inline import inline
from eligo.explorer.server import LiveServer
from eligo.explorer.tools import describe
from limits import REPLY_SECONDS

pytestmark = pytest.mark.browser
HERE = "http://127.0.0.1:9/"  # no server listens here; the test answers requests
LIVE = describe(tools())
FOUND = inline(pruned())


class Recorder:
    """Stands in for the server: requests wait in `routes` until `answer` or `refuse`."""

    def __init__(self, tab: Visit, records: tuple = (), place: str = "") -> None:
        self.look, self.routes = tab.look, []
        html = explorer_page(records, title="live", live=LIVE)
        self.look.route(HERE, lambda route: route.fulfill(body=html, content_type="text/html"))
        self.look.route(f"{HERE}api/run", lambda route: self.routes.append(route))
        self.look.goto(f"{HERE}{place}")

    def wait(self, count: int) -> None:
        until = time.monotonic() + REPLY_SECONDS
        while len(self.routes) < count and time.monotonic() < until:
            self.look.wait_for_timeout(20)
        assert len(self.routes) == count

    def body(self, at: int = -1) -> dict:
        return json.loads(self.routes[at].request.post_data)

    def answer(self, at: int = -1, **changes) -> None:
        found = {"record": {**FOUND, **changes}, "milliseconds": 41.7}
        self.routes[at].fulfill(json=found)

    def refuse(self, status: int, error: str) -> None:
        self.routes[-1].fulfill(status=status, json={"error": error})


@pytest.fixture
def tab(visit):
    return visit()


@pytest.fixture
def recorder(tab):
    return Recorder(tab)


def test_first_request_is_sent_on_load(tab, recorder):
    recorder.wait(1)
    assert recorder.body() == {
        "tool": "echo", "text": "what colour?", "image": {"example": "red"}, "budget": 3,
    }  # fmt: skip
    assert tab.text(".status").startswith("working")
    recorder.answer()
    tab.painted()
    assert tab.text(".status") == "42 ms"
    assert tab.text("h1") == pruned().title
    assert tab.texts(".groups summary") == ["MADE HERE 1"]
    tab.point(5, SIDE, SIDE)
    assert tab.text(".tip .state b") == fate_of(pruned(), 5, 0)


def test_menu_sends_its_option_and_replaces_the_record(tab, recorder):
    look = tab.look
    recorder.wait(1)
    recorder.answer()
    tab.painted()
    look.get_by_role("radio", name="Deep").click()
    recorder.wait(2)
    assert recorder.body()["choices"] == {"colour": "red"}
    recorder.answer()
    look.select_option("#live-colour", "blue")
    recorder.wait(3)
    assert recorder.body()["choices"] == {"colour": "blue"}
    recorder.answer(note="in blue")
    look.wait_for_selector(".note")
    assert look.locator(".groups li").count() == 2


def test_link_to_a_record_is_opened_without_a_request(tab):
    recorder = Recorder(tab, (FOUND,), "#what-colour-is-the-ball/2")
    tab.painted()
    assert tab.text(".now strong").startswith("layer 2")
    tab.look.wait_for_timeout(300)
    assert recorder.routes == []
    tab.look.click(".run")
    recorder.wait(1)


def test_budget_changes_are_merged_and_replace_the_record(tab, recorder):
    look = tab.look
    recorder.wait(1)
    recorder.answer()
    tab.painted()
    tab.after(lambda: look.keyboard.press("]"))
    look.clock.install(time=0)  # the page's time stands still: a slow machine adds no pause
    look.clock.pause_at(1000)
    look.focus("#live-budget")
    for _ in range(3):
        look.keyboard.press("ArrowRight")
    look.keyboard.press("ArrowLeft")
    assert len(recorder.routes) == 1
    look.clock.run_for(1000)
    recorder.wait(2)  # four moves, one request
    look.clock.resume()
    assert recorder.body()["budget"] == 3
    assert tab.text(".field output") == "3 cells"
    recorder.answer(note="another budget")
    look.wait_for_selector(".note")
    assert look.locator(".groups li").count() == 1
    assert tab.text(".now strong").startswith("layer 2")  # the stage that was shown before


def test_another_question_adds_a_record(tab, recorder):
    look = tab.look
    recorder.wait(1)
    recorder.answer()
    tab.painted()
    look.fill("#live-text", "and the box?")
    recorder.wait(2)
    assert recorder.body()["text"] == "and the box?"
    recorder.answer(title="The box")
    look.wait_for_selector("h1:text('The box')")
    assert look.locator(".groups .name").all_inner_texts() == ["The box", pruned().title]
    look.keyboard.press("Enter")  # sends at once
    recorder.wait(3)
    look.keyboard.type("j?")  # typed into the text field, not shortcuts
    assert tab.text("h1") == "The box"


def test_stale_replies_are_dropped(tab, recorder):
    look = tab.look
    recorder.wait(1)
    look.fill("#live-text", "second")
    recorder.wait(2)
    recorder.answer(1, title="second answer")
    look.wait_for_selector("h1:text('second answer')")
    with suppress(Exception):  # the browser has aborted the request
        recorder.answer(0, title="first answer")
    look.wait_for_timeout(200)
    assert tab.text("h1") == "second answer"
    assert look.locator(".error").is_hidden()


def test_errors_are_shown_until_the_next_answer(tab, recorder):
    look = tab.look
    recorder.wait(1)
    recorder.refuse(400, "text: got <b>nothing</b>, expected a question")
    look.wait_for_selector(".error:visible")
    assert tab.text(".error").endswith("text: got <b>nothing</b>, expected a question")
    look.click(".run")
    recorder.wait(2)
    recorder.refuse(503, "busy: 40 requests are waiting; try again soon")
    look.wait_for_selector(".error:has-text('busy')")
    look.click(".run")
    recorder.wait(3)
    recorder.routes[-1].fulfill(status=500, body="no JSON")
    look.wait_for_selector(".error:has-text('status 500')")
    look.click(".run")
    recorder.wait(4)
    recorder.routes[-1].abort()
    look.wait_for_selector(".error:has-text('does not answer')")
    assert not look.locator("#live[data-busy]").count()
    look.click(".run")
    recorder.wait(5)
    recorder.answer()
    tab.painted()
    assert look.locator(".error").is_hidden()
    tab.problems = [message for message in tab.problems if "Failed to load resource" not in message]


TEXT = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"}


def test_late_reply_does_not_clear_an_error(tab, recorder):
    look = tab.look
    recorder.wait(1)
    look.fill("#live-text", "typed, and not sent yet")
    look.set_input_files("#live-image", TEXT)
    look.wait_for_selector(".error:has-text('a.txt is not a picture')")
    with suppress(Exception):  # the browser has aborted the request
        recorder.answer(0, title="late")
    look.wait_for_timeout(700)  # longer than the delay after typing
    assert len(recorder.routes) == 1
    assert look.locator(".error").is_visible()
    assert look.locator("h1").count() == 0
    assert tab.text(".status") == ""
    look.click(".run")
    recorder.wait(2)
    recorder.answer()
    tab.painted()
    assert look.locator(".error").is_hidden()


@pytest.mark.parametrize("ending", ["reject(new Error('late'))", "resolve(late)"])
def test_late_file_does_not_replace_an_answer(tab, recorder, ending):
    look = tab.look
    recorder.wait(1)
    look.evaluate("""async () => {
      window.late = await createImageBitmap(new ImageData(8, 8));
      window.createImageBitmap = () => new Promise((resolve, reject) => {
        window.end = (how) => how(resolve, reject);
      });
    }""")
    look.set_input_files("#live-image", {**TEXT, "mimeType": "image/png"})
    look.get_by_role("radio", name="with depth").click()
    recorder.wait(2)
    recorder.answer(title="chosen later")
    look.wait_for_selector("h1:text('chosen later')")
    look.evaluate(f"() => end((resolve, reject) => {ending})")
    look.wait_for_timeout(200)
    assert len(recorder.routes) == 2
    assert look.locator(".error").is_hidden()
    assert look.locator(".example[aria-checked=true]").get_attribute("title") == "with depth"


def test_focus_stays_on_the_used_control(tab, recorder):
    look = tab.look
    focused = "document.activeElement.title || document.activeElement.id"
    recorder.wait(1)
    look.focus(".example >> nth=0")
    look.keyboard.press("Enter")
    recorder.wait(2)
    assert look.evaluate(focused) == "a red one"
    look.keyboard.press("ArrowRight")
    recorder.wait(3)
    assert look.evaluate(focused) == "with depth"
    look.focus("#live-image")
    own = {"name": "room.png", "mimeType": "image/png", "buffer": file_of((64, 32))}
    look.set_input_files("#live-image", own)
    recorder.wait(4)
    assert look.evaluate(focused) == "live-image"


def test_each_tool_has_its_own_controls(tab, recorder):
    look = tab.look
    recorder.wait(1)
    look.get_by_role("radio", name="Deep").click()
    recorder.wait(2)
    assert recorder.body() == {
        "tool": "deep", "text": "what colour?", "image": {"example": "red"},
        "choices": {"colour": "red"},
    }  # fmt: skip
    assert look.locator("#live-budget").count() == 0
    assert not look.locator(".remark").is_visible()
    look.get_by_role("radio", name="with depth").click()
    recorder.wait(3)
    assert recorder.body()["image"] == {"example": "deep"}
    assert recorder.body()["text"] == "how far?"
    look.get_by_role("radio", name="Blind").click()
    recorder.wait(4)
    assert recorder.body() == {"tool": "blind", "text": "what?"}
    assert tab.text(".remark") == "Sees nothing: blind."
    assert tab.text(".remark code") == "blind"
    look.get_by_role("radio", name="Echo").click()
    recorder.wait(5)
    assert recorder.body()["budget"] == 3


def file_of(size: tuple[int, int], kind: str = "PNG", mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    shown = picture(size=size) if mode == "RGB" else Image.new(mode, size, 1500)
    shown.save(buffer, kind)
    return buffer.getvalue()


def sent(body: dict, key: str) -> Image.Image:
    head, _, data = body[key]["data"].partition(";base64,")
    assert head in ("data:image/jpeg", "data:image/png")
    return Image.open(io.BytesIO(b64decode(data)))


def test_uploads_are_scaled_down(tab, recorder):
    look = tab.look
    recorder.wait(1)
    own = {"name": "room.png", "mimeType": "image/png", "buffer": file_of((1600, 800))}
    look.set_input_files("input[type=file]", own)
    recorder.wait(2)
    assert sent(recorder.body(), "image").size == (1024, 512)
    near_ball = sent(recorder.body(), "image").convert("RGB").getpixel((266, 300))
    assert all(abs(a - b) < 12 for a, b in zip(near_ball, (214, 69, 65), strict=True))
    assert look.locator(".example[aria-checked=true]").count() == 0
    assert look.locator(".upload img").is_visible()
    look.set_input_files("input[type=file]", {**own, "buffer": b"no picture at all"})
    look.wait_for_selector(".error:has-text('room.png cannot be read')")
    look.set_input_files("input[type=file]", TEXT)
    look.wait_for_selector(".error:has-text('a.txt is not a picture')")
    assert len(recorder.routes) == 2


def test_image_by_drag_and_drop_with_depth(tab, recorder):
    look = tab.look
    look.get_by_role("radio", name="Deep").click()
    recorder.wait(2)
    assert look.locator("input[type=file]").count() == 1
    drop = """(data) => {
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      const carried = new DataTransfer();
      carried.items.add(new File([bytes], 'room.jpg', { type: 'image/jpeg' }));
      const options = { dataTransfer: carried, bubbles: true, cancelable: true };
      for (const kind of ['dragover', 'drop'])
        document.body.dispatchEvent(new DragEvent(kind, options));
    }"""
    look.evaluate(drop, b64encode(file_of((320, 200), "JPEG")).decode())
    recorder.wait(3)
    assert sent(recorder.body(), "image").size == (320, 200)
    depth = {
        "name": "depth.png",
        "mimeType": "image/png",
        "buffer": file_of((320, 200), mode="I;16"),
    }
    look.set_input_files("input[type=file] >> nth=1", depth)
    recorder.wait(4)
    assert sent(recorder.body(), "depth").getpixel((3, 3)) == 1500  # all sixteen bits


def test_page_fits_a_phone_screen(visit):
    tab = visit(viewport={"width": 360, "height": 740}, has_touch=True)
    recorder = Recorder(tab)
    recorder.wait(1)
    recorder.answer()
    tab.painted()
    assert tab.look.evaluate("document.documentElement.scrollWidth") <= 360


def test_page_works_with_a_real_server(visit):
    """With a real server: a page, an answer, an upload and a refused request."""
    offered = tools()
    page = explorer_page([], title="live", live=describe(offered))
    server = LiveServer(page, offered, port=0)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        tab = visit()
        look = tab.look
        look.goto(server.url)
        tab.painted()
        assert tab.text(".now strong") == "kept: 3 of 6 cells kept"
        tab.after(lambda: look.press("#live-budget", "End"))
        assert tab.text(".now strong") == "kept: 5 of 6 cells kept"
        own = {"name": "room.png", "mimeType": "image/png", "buffer": file_of((64, 32))}
        look.set_input_files("input[type=file]", own)
        look.wait_for_selector(".answer:has-text('RGB 64 32')")
        look.fill("#live-text", "wrong")
        look.wait_for_selector(".error:has-text('text: got wrong, expected right')")
        tab.problems = [message for message in tab.problems if "400" not in message]
    finally:
        server.shutdown()
        server.close()
        thread.join()
