"""The exported page in a real browser: list, links, keys, themes, layout, edge cases."""

import pytest
from explorer_samples import HOSTILE, SIDE, all_records, fate_of, large, prompted, pruned

from eligo.explorer.export import explorer_page
from eligo.explorer.inline import inline

pytestmark = pytest.mark.browser
RECORDS = all_records()
PRUNED, MATCHED, GUIDED, PROMPTED = RECORDS[:4]
NAMELESS = """() => [...document.querySelectorAll('button, input, textarea, a')]
  .filter((node) => node.checkVisibility() && !node.closest('[aria-hidden]'))
  .filter((node) => !node.ariaLabel && !node.title && !node.labels?.length)
  .filter((node) => !node.innerText.trim()).map((node) => node.outerHTML)"""


# ------------------------------------------------------------ list, links, keys


def test_search_filters_the_list(page, visit):
    tab = visit()
    look = tab.open(page)
    tab.painted()
    assert look.locator(".groups li:visible").count() == len(RECORDS)
    look.keyboard.press("/")
    look.keyboard.type("ball blue")
    names = look.locator(".groups li:visible .name").all_inner_texts()
    assert names == [PRUNED.title, MATCHED.title]  # the first has the answer "blue"
    assert tab.text(".found") == "2 records found"
    look.keyboard.press("ArrowDown")
    look.keyboard.press("ArrowDown")
    look.keyboard.press("Enter")
    assert tab.text("h1") == MATCHED.title
    look.fill("input[type=search]", "no such thing")
    assert look.locator(".groups details:visible").count() == 0
    look.press("input[type=search]", "Escape")
    assert look.locator(".groups li:visible").count() == len(RECORDS)


def test_links_open_record_stage_and_row(page, visit):
    tab = visit()
    look = tab.open(page, "#a-red-ball-beside-a-blue-box/2/4")
    tab.painted()
    assert look.locator(".chip[aria-checked=true]").inner_text() == "beside"
    look.click(".groups li >> nth=3")
    assert tab.text("h1") == PROMPTED.title
    look.go_back()
    look.wait_for_selector(".chips")
    assert look.locator(".chip[aria-checked=true]").inner_text() == "beside"
    for mangled in ("#nothing/9/9", "#%E0%A4%A", "#what-colour-is-the-ball/99/-3", "#//"):
        look.goto("about:blank")
        tab.open(page, mangled)
        assert tab.text("h1") == PRUNED.title


def test_keyboard_shortcuts(page, visit):
    tab = visit(color_scheme="light")
    look = tab.open(page)
    tab.painted()
    press = look.keyboard.press
    tab.after(lambda: press("]"))
    assert tab.text(".now strong").startswith("layer 2")
    tab.after(lambda: press("["))
    tab.after(lambda: press("m"))
    assert look.locator(".board").get_attribute("data-mode") == "scores"
    press("p")
    assert look.locator(".play").get_attribute("data-state") == "playing"
    press("p")
    press("j")
    assert tab.text("h1") == MATCHED.title
    press("j")
    tab.painted()
    assert tab.text("h1") == GUIDED.title
    tab.after(lambda: press("r"))
    tab.after(lambda: press("r"))
    tab.after(lambda: press("R"))
    assert look.locator(".chip[aria-checked=true]").inner_text() == "box"
    press("k")
    assert tab.text("h1") == MATCHED.title
    press("?")
    assert look.locator("dialog.help").is_visible()
    press("j")  # ignored while the help dialog is open
    press("Escape")
    assert tab.text("h1") == MATCHED.title
    press("t")
    assert look.evaluate("document.documentElement.dataset.theme") == "dark"


def test_arrow_keys_move_between_cells(page, visit):
    tab = visit()
    look = tab.open(page)
    tab.painted()
    look.focus(".board")
    look.keyboard.press("ArrowRight")  # starts at the token selected first
    best = int(PRUNED.stages[0].selection.indices[0])
    assert look.locator(".board").get_attribute("data-cell") == str(best)
    look.keyboard.press("ArrowDown")
    look.keyboard.press("Home")
    below = (best // SIDE + 1) * SIDE
    assert look.locator(".board").get_attribute("data-cell") == str(below)
    assert f"row {below // SIDE + 1}, column 1" in tab.text(".tip")
    look.keyboard.press("Enter")
    look.focus(".play")
    assert look.locator(".tip").is_visible()
    look.focus(".board")
    look.keyboard.press("Escape")
    assert look.locator(".tip").is_hidden()


# Visible controls that Tab skips, except unselected members of a group (arrow keys reach those)
# and the labels below the slider.
SKIPPED = """() => [...document.querySelectorAll('button, input, textarea, a, summary, .board')]
  .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled)
  .filter((node) => !node.closest('.ticks') && !window.stops.has(node))
  .filter((node) => !node.closest('[role=radiogroup], [role=tablist]')
    ?.querySelector('[aria-checked=true], [aria-selected=true]')
    || node.matches('[aria-checked=true], [aria-selected=true]'))
  .map((node) => node.outerHTML)"""
STOP = """() => {
  const node = document.activeElement;
  const isNew = node !== document.body && !(window.stops ??= new Set()).has(node);
  if (isNew) window.stops.add(node);
  return isNew;
}"""


@pytest.mark.parametrize("place", ["", "#a-red-ball-beside-a-blue-box/2", "#which-dax-is-nearer"])
def test_tab_visits_every_control_in_document_order(page, visit, place):
    tab = visit()
    look = tab.open(page, place)
    look.wait_for_selector(".panel .toolbar")
    look.keyboard.press("Tab")
    assert look.evaluate("document.activeElement.id") == "skip"
    while look.evaluate(STOP):
        look.keyboard.press("Tab")
    assert look.evaluate("window.stops.size") > 15
    assert look.evaluate(SKIPPED) == []
    follows = """() => [...window.stops].every((node, at, all) => !at
      || all[at - 1].compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING)"""
    assert look.evaluate(follows)


def test_focus_moves_to_the_new_record(page, visit):
    tab = visit()
    look = tab.open(page)
    tab.painted()
    look.focus(".board")
    look.keyboard.press("j")
    assert look.evaluate("document.activeElement.id") == "stage"
    look.click(".groups li >> nth=3")
    look.focus(".more")
    look.keyboard.press("Enter")
    look.wait_for_selector(".more", state="detached")
    assert look.evaluate("document.activeElement.closest('.item') !== null")


def test_drawer_traps_and_restores_focus_on_a_phone(page, visit):
    tab = visit(viewport={"width": 360, "height": 740})
    look = tab.open(page)
    tab.painted()
    focused = "document.activeElement.id || document.activeElement.type"
    look.focus("#menu")
    look.keyboard.press("Enter")
    assert look.evaluate(focused) == "search"
    inside = "document.activeElement.matches('body, #menu, #list *')"
    for key in ["Tab"] * 30 + ["Shift+Tab"] * 35:
        look.keyboard.press(key)
        assert look.evaluate(inside)
    look.focus("input[type=search]")
    look.keyboard.type("ball")
    look.keyboard.press("Escape")  # clears the search first, then closes the drawer
    assert look.locator("input[type=search]").input_value() == ""
    assert look.locator("#list").is_visible()
    look.keyboard.press("Escape")
    assert look.locator("#list").is_hidden()
    assert look.evaluate(focused) == "menu"
    look.keyboard.press("/")
    assert look.evaluate(focused) == "search"
    look.keyboard.press("ArrowDown")
    look.keyboard.press("Enter")
    assert look.locator("#list").is_hidden()
    assert look.evaluate(focused) == "stage"
    look.click("#menu")
    look.set_viewport_size({"width": 1280, "height": 740})  # rotated to landscape
    look.wait_for_function("() => !document.querySelector('main').inert")


# ------------------------------------------------------------ themes and layout


def test_dark_and_light_theme(page, visit):
    tab = visit(color_scheme="dark")
    look = tab.open(page, "#what-colour-is-the-ball/3")
    tab.painted()
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = look.evaluate(paper)
    assert max(tab.colour(0, SIDE, SIDE)) < 90
    tab.after(lambda: look.click("#theme"))
    assert look.evaluate(paper) != dark
    assert min(tab.colour(0, SIDE, SIDE)) > 180
    look.reload()
    assert look.evaluate(paper) != dark  # the choice survives a reload


def test_print_layout(page, visit):
    tab = visit(color_scheme="dark")
    look = tab.open(page)
    tab.painted()
    look.emulate_media(media="print")
    for hidden in ("#list", ".toolbar", ".player", ".top"):
        assert look.locator(hidden).first.is_hidden()
    assert look.locator(".board").is_visible()
    assert look.pdf()[:4] == b"%PDF"


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_every_record_fits_the_screen(page, visit, width):
    """Every record, tab and mode fits the screen, and every control has an accessible name."""
    tab = visit(viewport={"width": width, "height": 740}, has_touch=width == 360)
    look = tab.open(page)
    for number, record in enumerate(RECORDS):
        if number:
            look.keyboard.press("j")
        assert tab.text("h1").split() == record.title.split()
        tabs = look.locator(".tabs button").count()
        for at in range(max(1, tabs)):
            if tabs:
                look.locator(".tabs button").nth(at).click()
            for _ in range(4):
                look.keyboard.press("m")
                assert look.evaluate("document.documentElement.scrollWidth") <= width
            assert look.evaluate(NAMELESS) == []


def test_drawer_and_tooltip_on_a_phone(page, visit):
    tab = visit(viewport={"width": 360, "height": 740}, has_touch=True)
    look = tab.open(page)
    tab.painted()
    assert look.locator("#list").is_hidden()
    look.tap("#menu")
    assert look.locator("#menu").get_attribute("aria-expanded") == "true"
    look.get_by_text(MATCHED.title).first.tap()
    assert tab.text("h1") == MATCHED.title
    assert look.locator("#list").is_hidden()
    look.tap("#menu")
    look.touchscreen.tap(350, 400)  # beside the list
    assert look.locator("#list").is_hidden()
    tab.painted()
    look.tap(".board", position={"x": 20, "y": 20})
    box = look.locator(".tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360


# ------------------------------------------------------------ edge cases


def test_texts_are_never_markup(page, visit):
    tab = visit()
    look = tab.open(page)
    for _ in range(4):
        look.keyboard.press("j")
    assert look.locator("h1").inner_text() == HOSTILE
    assert look.title().startswith(HOSTILE)
    assert look.locator("#stage img[src=x], #stage script").count() == 0
    rtl = look.locator(".item p", has_text="مرحبا").evaluate(
        "node => getComputedStyle(node).direction"
    )
    assert rtl == "rtl"
    assert "score none" in tab.texts(".list.rejected .score")[0]
    look.get_by_role("tab", name="one cell").click()
    tab.painted()
    tab.point(0, 1, 1)
    assert tab.text(".tip .state b") == "kept"
    look.get_by_role("tab", name="nothing kept").click()
    tab.painted()
    tab.point(3, 2, 2)
    assert tab.text(".tip .state b") == "not kept"


def test_grid_of_ten_thousand_cells(page, visit):
    tab = visit()
    look = tab.open(page, "#ten-thousand-cells")
    tab.painted()
    assert tab.text(".now strong") == "a great many: 500 of 10,000 cells kept"
    tab.after(lambda: look.click("[data-name=clusters]"))
    tab.point(2345, 100, 100)
    assert tab.text(".tip .state b") == fate_of(large(), 2345, 0)


def test_page_without_records(tmp_path, visit):
    path = tmp_path / "empty.html"
    path.write_text(explorer_page([]))
    tab = visit()
    look = tab.open(path)
    assert tab.text("#stage") == "This run holds nothing to show."
    for key in ("j", "k", "]", "p", "m", "r", "t", "Escape"):
        look.keyboard.press(key)


def test_undecodable_image_and_record_without_stages(tmp_path, visit):
    """An image that cannot be decoded, and a record without stages."""
    broken = inline(pruned()) | {"pictures": {"image": "data:image/png;base64,AAAA"}}
    empty = inline(prompted()) | {"stages": [], "title": "no stage"}
    path = tmp_path / "page.html"
    path.write_text(explorer_page([broken, empty]))
    tab = visit()
    look = tab.open(path)
    tab.painted()
    tab.point(5, SIDE, SIDE)
    assert tab.text(".tip .state b") == fate_of(PRUNED, 5, 0)
    look.keyboard.press("j")
    assert tab.text("h1") == "no stage"
    assert len(tab.texts(".answer")) == 2
