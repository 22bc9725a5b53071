"""Stages on an exported page in a real browser, compared with the selections."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from explorer_samples import SIDE, all_records, bare, fate_of, guided, matched, tiled, untouched

from eligo.explorer.export import explorer_page
from eligo.explorer.inline import inline
from eligo.selection import Selection

pytestmark = pytest.mark.browser
LINKED = "nodes => nodes.map(node => node.hasAttribute('data-linked'))"
PRUNED, MATCHED, _, PROMPTED = all_records()[:4]


# ------------------------------------------------------------ stages over an image


def test_first_view_shows_answers_cost_and_stage(page, visit):
    tab = visit()
    tab.open(page)
    tab.painted()
    assert tab.text("h1") == PRUNED.title
    expected = ["whole model red ✓right", "pruned red ✓right", "at random blue ✗wrong"]
    assert tab.texts(".answer") == expected
    assert tab.texts(".cost dt") == list(PRUNED.cost)
    assert tab.texts(".cost dd") == list(PRUNED.cost.values())
    assert tab.text(".note p") == PRUNED.note
    assert tab.text(".now strong") == "before layer 0: 64 of 144 cells kept"
    assert tab.texts(".legend .key") == ["64 kept", "80 folded into those"]
    assert tab.texts(".ticks button") == ["before layer 0", "layer 2", "layer 8"]
    assert tab.look.title() == f"{PRUNED.title} · sample"


def test_slider_steps_through_the_stages(page, visit):
    tab = visit()
    look = tab.open(page)
    tab.painted()
    look.focus(".player input")
    for step, (label, kept) in enumerate([("layer 2", 24), ("layer 8", 9)], 1):
        tab.after(lambda: look.keyboard.press("ArrowRight"))
        assert tab.text(".now strong").startswith(f"{label}: {kept} of 144 cells kept")
        slider = look.locator(".player input")
        assert slider.get_attribute("aria-valuetext") == f"{label}: {kept} of 144 cells kept"
        assert look.evaluate("location.hash") == f"#what-colour-is-the-ball/{step + 1}"
    assert tab.texts(".legend .key")[0] == "9 kept"
    tab.after(lambda: look.click(".ticks button:first-child span"))
    assert tab.text(".now strong").startswith("before layer 0")


@pytest.mark.parametrize("step", [0, 1, 2])
def test_tooltip_shows_the_state_of_a_cell(page, visit, step):
    tab = visit()
    tab.open(page, f"#what-colour-is-the-ball/{step + 1}")
    tab.painted()
    stages = PRUNED.stages
    states = set()
    for cell in (0, 5, 40, 62, 74, 87, 100, 143, int(stages[0].selection.indices[0])):
        tab.point(cell, SIDE, SIDE)
        state = tab.text(".tip .state b")
        assert state == fate_of(PRUNED, cell, step), cell
        states.add(state)
        facts = dict(line.split("\n") for line in tab.look.locator(".fact").all_inner_texts())
        if state == "folded" and step == 0:
            weights = stages[0].selection.assignment[:, cell]
            home = int(stages[0].selection.indices[weights.argmax()])
            assert facts["into"] == f"row {home // SIDE + 1}, column {home % SIDE + 1} (75 %)"
            assert facts["folded at"] == "before layer 0"
        if state == "kept":
            where = list(stages[step].candidates or range(SIDE**2)).index(cell)
            choice = stages[step].selection
            place = choice.indices.tolist().index(where) + 1
            assert facts["chosen"].split(" of ")[0].rstrip("stndrh") == str(place)
            higher = int((choice.scores > choice.scores[where]).sum())
            assert facts["rank"] == f"{higher + 1} of {len(choice.scores)}"
            assert float(facts["score"]) == pytest.approx(float(choice.scores[where]), rel=1e-3)
    assert len(states) > 1


def test_cell_colours_in_every_mode(page, visit):
    """Kept cells keep their colour, others fade; in score mode, bright means a high score."""
    tab = visit(color_scheme="light")
    look = tab.open(page, "#what-colour-is-the-ball/3")
    tab.painted()
    kept, dropped = 6 * SIDE + 3, 6 * SIDE + 8  # the middle of the ball, and of the box
    assert fate_of(PRUNED, kept, 2) == "kept"
    assert tab.colour(kept, SIDE, SIDE) == (214, 69, 65)
    faded = tab.colour(dropped, SIDE, SIDE)
    assert max(faded) - min(faded) <= 1
    assert min(faded) > 180
    tab.after(lambda: look.click(".ticks button:first-child span"))
    folded = 3 * SIDE + 8  # the top of the box
    assert fate_of(PRUNED, folded, 0) == "folded"
    red, _, blue = tab.colour(folded, SIDE, SIDE)
    assert 20 < blue - red < 100  # less colour than what is kept, more than what is dropped
    tab.after(lambda: look.click(".ticks button:last-child span"))
    tab.after(lambda: look.click("[data-name=image]"))
    assert tab.colour(dropped, SIDE, SIDE) == (58, 110, 201)
    tab.after(lambda: look.click("[data-name=scores]"))
    stage = PRUNED.stages[2]
    order = torch.tensor(stage.candidates)[stage.selection.scores.argsort()].tolist()
    assert sum(tab.colour(order[-1], SIDE, SIDE)) > sum(tab.colour(order[0], SIDE, SIDE)) + 150
    middle = order[len(order) // 2]
    by_value = tab.colour(middle, SIDE, SIDE)
    tab.after(lambda: look.check(".check:has-text('by rank') input"))
    assert tab.colour(order[-1], SIDE, SIDE) != tab.colour(middle, SIDE, SIDE) != by_value
    assert tab.texts(".legend .key")[0] == "last first"
    tab.after(lambda: look.click(".ticks button:first-child span"))
    tab.after(lambda: look.click("[data-name=clusters]"))
    weights = PRUNED.stages[0].selection.assignment
    home = max(range(64), key=lambda at: int((weights.argmax(0) == at).sum()))
    members = (weights.argmax(0) == home).nonzero().flatten().tolist()
    wall = [cell for cell in members if cell < 3 * SIDE]  # where the picture has one colour
    assert len({tab.colour(cell, SIDE, SIDE) for cell in wall}) == 1
    other = next(cell for cell in range(3 * SIDE) if cell not in members)
    assert tab.colour(other, SIDE, SIDE) != tab.colour(wall[0], SIDE, SIDE)


def test_click_pins_the_tooltip_and_escape_closes_it(page, visit):
    tab = visit()
    look = tab.open(page)
    tab.painted()
    look.click(".board", position={"x": 30, "y": 30})
    look.mouse.move(5, 5)
    assert look.locator(".tip").is_visible()
    assert look.locator(".board[data-pinned]").count() == 1
    look.keyboard.press("Escape")
    assert look.locator(".tip").is_hidden()


def test_cluster_mode_needs_merged_tokens(page, visit):
    tab = visit()
    look = tab.open(page, "#a-red-ball-beside-a-blue-box")
    tab.painted()
    assert look.locator("[data-name=clusters]").is_disabled()
    assert look.locator("[data-name=clusters]").get_attribute("title") == "nothing was folded"
    assert look.locator(".player").count() == 0
    assert tab.texts(".tabs button") == [stage.name for stage in MATCHED.stages]


def test_consecutive_stages_share_one_tab(page, visit):
    tab = visit()
    look = tab.open(page, "#two-tiles/4")
    tab.painted()
    tabs = ["side by side", "tile 1: 2 stages", "tile 2: 2 stages", "at random"]
    assert tab.texts(".tabs button") == tabs
    assert look.get_by_role("tab", selected=True).inner_text() == "tile 2: 2 stages"
    assert tab.text(".now strong").startswith("layer 4: 8 of 144 cells kept, 8 of 32")
    tab.after(lambda: look.click(".ticks button:first-child span"))
    assert look.evaluate("location.hash") == "#two-tiles/2"
    look.get_by_role("tab", name="at random").click()
    tab.painted()
    assert tab.text(".now strong") == "at random: 8 of 144 cells kept"
    assert tab.texts(".legend .key") == ["8 kept", "136 dropped"]


def test_independent_stages_have_their_own_tabs(tmp_path, visit):
    path = tmp_path / "page.html"
    path.write_text(explorer_page([inline(untouched())]))
    tab = visit()
    tab.open(path)
    tab.painted()
    names = ["2 stages", "all", "baseline", "baseline inside"]
    assert tab.texts(".tabs button") == ["side by side", *names]
    tab.look.get_by_role("tab", name="2 stages").click()
    tab.painted()
    assert tab.texts(".ticks button") == ["before layer 0", "layer 4"]


def test_frames_have_their_own_tabs_and_pictures(tmp_path, visit):
    """One stage over every frame: its tabs name the frame, and show no other frame under it."""
    record = tiled()
    path = tmp_path / "page.html"
    path.write_text(explorer_page([inline(replace(record, stages=record.stages[:2]))]))
    tab = visit()
    look = tab.open(path)
    tab.painted()
    assert tab.texts(".tabs button") == ["tile 1: merger", "tile 2: merger"]
    assert look.locator(".toolbar .pictures").count() == 0


def test_any_two_selections_are_shown_side_by_side(tmp_path, visit):
    path = tmp_path / "page.html"
    path.write_text(explorer_page([inline(untouched())]))
    tab = visit()
    look = tab.open(path)
    tab.painted()
    options = look.locator(".side:first-child select option").all_inner_texts()
    assert len(options) == 4
    assert options[2:] == ["baseline", "baseline inside"]
    look.locator(".side select").nth(0).select_option("2")
    look.locator(".side select").nth(1).select_option("3")
    tab.painted()
    said = look.locator(".side .now strong").all_inner_texts()
    assert [text.split(":")[0] for text in said] == ["baseline", "before layer 0"]
    boxes = [look.locator(".side .board").nth(at).bounding_box() for at in (0, 1)]
    assert boxes[0]["y"] == pytest.approx(boxes[1]["y"], abs=1)
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    look.keyboard.press("m")  # the mode of both
    modes = look.locator(".side .board").evaluate_all("all => all.map((one) => one.dataset.mode)")
    assert modes[0] == modes[1] != "kept"
    assert tab.problems == []


def test_play_button_steps_to_the_last_stage(page, visit):
    tab = visit(reduced_motion="no-preference")
    look = tab.open(page)
    tab.painted()
    look.click(".play")
    assert look.locator(".play").get_attribute("data-state") == "playing"
    look.wait_for_function("() => document.querySelector('.player input').value === '2'")
    look.wait_for_selector(".play[data-state=paused]")
    assert tab.text(".now strong").startswith("layer 8")


# ------------------------------------------------------------ words and tags


def test_words_are_linked_to_their_patches(page, visit):
    tab = visit()
    look = tab.open(page, "#a-red-ball-beside-a-blue-box/2")
    tab.painted()
    selection = matched().stages[1].selection
    assert look.get_by_role("radiogroup", name="picture").count() == 0  # the results differ in size
    assert tab.texts(".chip") == ["a", "red", "ball", "beside", "a", "blue", "box"]
    tab.after(lambda: look.click(".chip:nth-child(3)"))
    assert look.evaluate("location.hash") == "#a-red-ball-beside-a-blue-box/2/3"
    assert look.locator(".chip[aria-checked=true]").inner_text() == "ball"
    for cell in (6 * SIDE + 3, 5 * SIDE + 8, 0):
        tab.point(cell, SIDE, SIDE)
        keeps = [at for at in range(7) if cell in selection.indices[at].tolist()]
        marks = look.locator(".chip").evaluate_all(LINKED)
        assert [at for at, linked in enumerate(marks) if linked] == keeps
        best = int(selection.scores[keeps or slice(None), cell].argmax())
        first = matched().stages[1].rows[keeps[best] if keeps else best]
        assert tab.text(".bars .bar:first-child").startswith(first)


def test_hovering_over_a_word_previews_it(page, visit):
    tab = visit()
    look = tab.open(page, "#a-red-ball-beside-a-blue-box/2/2")
    tab.painted()
    box = 6 * SIDE + 8
    before = sum(tab.colour(box, SIDE, SIDE))
    tab.after(lambda: look.hover(".chip:nth-child(7)"))
    assert sum(tab.colour(box, SIDE, SIDE)) > before + 100
    assert look.locator(".chip[aria-checked=true]").inner_text() == "red"
    tab.after(lambda: look.hover("h1"))
    assert sum(tab.colour(box, SIDE, SIDE)) == before


def test_map_over_image_and_depth(page, visit):
    tab = visit()
    look = tab.open(page, "#ball-box-floor")
    tab.painted()
    switch = look.get_by_role("radiogroup", name="picture")
    assert switch.locator("button").all_inner_texts() == ["image", "depth"]
    tab.after(lambda: look.click("[data-name=image] >> nth=0"))
    red, *_ = tab.colour(6 * 15 + 3, 15, 15)
    tab.after(lambda: switch.get_by_text("depth").click())
    assert len(set(tab.colour(6 * 15 + 3, 15, 15))) == 1
    assert tab.colour(6 * 15 + 3, 15, 15)[0] != red
    tab.after(lambda: look.click("[data-name=strongest]"))
    maps = guided().stages[0].selection.scores
    groups = [maps[:, cell].argmax().item() for cell in (6 * 15 + 3, 6 * 15 + 9, 13 * 15 + 7)]
    assert groups == [0, 1, 2]
    assert look.locator(".gallery figcaption").all_inner_texts() == ["labels"]
    look.click(".chip:nth-child(2)")
    look.wait_for_selector(".board[data-mode=scores]")
    assert look.locator(".chip[aria-checked=true]").inner_text() == "box"
    own = "document.querySelector('.ramp').nextSibling.textContent"
    shared = look.evaluate(own)
    tab.after(lambda: look.uncheck(".check:has-text('one scale') input"))
    assert float(look.evaluate(own)) == pytest.approx(float(maps[1].max()), rel=1e-3)
    assert float(shared) == pytest.approx(float(maps.max()), rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"viewport": {"width": 360, "height": 740}}])
def test_label_colours_have_a_legend(page, visit, options):
    tab = visit(**options)
    look = tab.open(page, "#ball-box-floor")
    look.wait_for_selector(".gallery:not([hidden])")
    words = [" ".join(key.text.split()) for key in guided().legends["labels"]]
    patches = """nodes => nodes.map((node) => getComputedStyle(node).backgroundColor)"""
    for place in (".gallery figure", "dialog.zoom"):
        assert tab.texts(f"{place} .colours li") == words
        drawn = look.locator(f"{place} .colours .swatch").evaluate_all(patches)
        assert drawn == ["rgb(240, 180, 41)", "rgb(61, 153, 102)"]
        size = look.locator(f"{place} .colours").evaluate(
            "node => parseFloat(getComputedStyle(node).fontSize)"
        )
        assert size >= 12
        look.locator(".gallery .thumb").first.evaluate("node => node.click()")
        look.wait_for_selector("dialog.zoom[open]")
    assert look.evaluate("document.documentElement.scrollWidth") <= look.viewport_size["width"]


# ------------------------------------------------------------ items


def bars(tab) -> list[tuple[float, float]]:
    """Start and end of each item's bar, as fractions of the available width."""
    script = """nodes => nodes.map((node) => {
      const [bar, room] = [getComputedStyle(node, '::before'), node.clientWidth];
      const start = parseFloat(bar.left) / room;
      return [start, start + parseFloat(bar.width) / room];
    })"""
    return [tuple(pair) for pair in tab.look.locator(".meter").evaluate_all(script)]


def test_bars_begin_at_zero(tmp_path, visit):
    scores = torch.tensor([2.0, 2.5, 4.0])
    stage = bare().stages[0]
    above, below, around = (
        inline(replace(bare(), stages=(replace(stage, selection=Selection.top_k(one, 3)),)))
        for one in (scores, scores - 5, scores - 2.5)
    )
    path = tmp_path / "page.html"
    path.write_text(explorer_page([above, below, around]))
    tab = visit()
    look = tab.open(path)
    assert bars(tab) == [pytest.approx(pair, abs=0.02) for pair in ((0, 1), (0, 0.625), (0, 0.5))]
    assert tab.text(".bars-key") == "bars: 0 to 4"
    look.keyboard.press("j")  # -1, -2.5, -3: the lowest score has the longest bar
    expected = ((2 / 3, 1), (1 / 6, 1), (0, 1))
    assert bars(tab) == [pytest.approx(pair, abs=0.02) for pair in expected]
    assert tab.text(".bars-key") == "bars: −3 to 0"
    look.keyboard.press("j")  # 1.5, 0, -0.5
    expected = ((0.25, 1), (0.25, 0.25), (0, 0.25))
    assert bars(tab) == [pytest.approx(pair, abs=0.02) for pair in expected]
    assert tab.text(".bars-key") == "bars: −0.5 to 1.5, the line is 0"


def test_selected_and_rejected_items(page, visit):
    tab = visit()
    look = tab.open(page, "#which-dax-is-nearer")
    choice = PROMPTED.stages[0].selection
    places = "nodes => nodes.map(node => Number(node.dataset.place))"
    chosen = look.locator(".list.chosen .item").evaluate_all(places)
    assert len(chosen) == 4
    assert tab.texts(".list.chosen .badge") == ["1", "2", "3", "4"]
    assert look.locator(".list.rejected .item").count() == 12
    look.click(".more")
    rejected = look.locator(".list.rejected .item").evaluate_all(places)
    assert len(rejected) == len(choice.scores) - 4 == 36
    labels = tab.texts(".list.rejected .score b")
    scores = [float(one.removeprefix("score ").replace("−", "-")) for one in labels]
    assert all(one >= other for one, other in pairwise(scores))
    ranks = tab.texts(".list.chosen .score .soft")
    assert ranks == ["rank 1", "rank 3", "rank 6", "rank 2"]  # in the order of selection
    look.click("[data-name=score]")
    assert tab.texts(".list.chosen .score .soft") == ["rank 1", "rank 2", "rank 3", "rank 6"]
    look.click("[data-name=given]")
    given = look.locator(".list.chosen .item").evaluate_all(places)
    assert given == sorted(chosen)
    look.click(".list.chosen .thumb >> nth=0")
    assert look.locator("dialog.zoom img").is_visible()
    look.keyboard.press("Escape")
    look.wait_for_selector("dialog.zoom", state="detached")  # the dialog closes asynchronously
    look.get_by_role("tab", name="nearest").click()
    assert tab.texts(".list.chosen .score .soft") == ["rank 1", "rank 2", "rank 3", "rank 4"]
    assert look.locator(".heading .thumb").count() == 1  # the image of the question
