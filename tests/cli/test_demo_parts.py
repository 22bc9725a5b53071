"""Parts of the demo: equal costs, IoU with intervals, pictures and the printed table."""

from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console

from eligo.cli.demo import pixels, shots, tokens
from eligo.cli.demo.part import DemoSettings, MethodResult, Part
from eligo.cli.demo.table import table
from eligo.pretrained import load as pretrained
from eligo.scenes.vlm import VlmConfig, build_vlm
from eligo.scenes.words import LABELS, TWINS
from eligo.shots.learner.lessons import EXAMPLES, draw_lessons
from eligo.shots.learner.load import UNCLEAR, scenes_for
from eligo.shots.learner.world import FIRST_LEXICON, PER_LEXICON
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.inference.equal_cost import spending
from eligo.tokens.inference.evaluate import WHOLE
from eligo.tokens.methods import build
from eligo.tokens.plan import Cut, Plan, Stage1
from shipped_models import LEARNER, make_models

TEXT = 12


# ------------------------------------------------------------------ tokens


@pytest.mark.parametrize("kept", [None, (317, 200), (98, 50)])
def test_baselines_cost_as_much_as_the_cheapest_plan(kept):
    with torch.device("meta"):
        shape = HostShape.of(build_vlm(VlmConfig()))
    learned = {}
    if kept is not None:
        first, second = kept
        two_stage = Plan(Stage1(build("random"), first), [Cut(3, build("random"), second)])
        learned = {"dear": Plan(Stage1(build("random"), 400)), "ours": two_stage}
    found = tokens.compared_plans(shape, learned, TEXT)
    assert list(found) == [WHOLE, *learned, *tokens.BASELINES]
    allowed = spending(
        shape, learned["ours"] if learned else Plan(Stage1(build("random"), 64)), TEXT
    )
    for name in tokens.BASELINES:
        assert spending(shape, found[name], TEXT) == pytest.approx(allowed, rel=0.01)


# ------------------------------------------------------------------ pixels


def slow_iou(pixels: torch.Tensor, name: str) -> float:
    total, at = pixels.sum(0), LABELS.index(name)
    both = float(total[at, at])
    return both / float(total[at].sum() + total[:, at].sum() - both)


def test_twin_iou_and_its_interval():
    counts = torch.randint(0, 50, (30, len(LABELS), len(LABELS)))
    counts += 200 * torch.eye(len(LABELS), dtype=torch.int64)
    mean, low, high = pixels.twin_iou(counts)
    names = [name for pair in TWINS.items() for name in pair]
    assert mean == pytest.approx(sum(slow_iou(counts, name) for name in names) / len(names))
    assert low < mean < high
    one_by_one = [pixels.twin_iou(counts[[row]])[0] for row in range(30)]
    assert min(one_by_one) < low
    assert high < max(one_by_one)


@pytest.mark.parametrize(("first", "mean"), [(1.0, 1 / 4), (0.5, 1 / 3)])
def test_twin_iou_without_tags_is_at_most_a_third(first: float, mean: float):
    """Both names occur equally often; predicting from looks alone gives at most a third."""
    counts = torch.zeros(2, len(LABELS), len(LABELS), dtype=torch.int64)
    for pair in TWINS.items():
        one, two = map(LABELS.index, pair)
        for room, label in enumerate((one, two)):
            counts[room, label, one] = round(10 * first)
            counts[room, label, two] = 10 - round(10 * first)
    assert pixels.twin_iou(counts)[0] == pytest.approx(mean)


# ------------------------------------------------------------------ shots


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Part:
    root = make_models(tmp_path_factory.mktemp("models"), "shots_learner", "shots_v1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrained, "SHIPPED", root)
        return shots.run(DemoSettings(3, "cpu", quick=True))


def test_pictures_are_the_scenes_of_the_examples(chosen: Part):
    scenes = scenes_for(LEARNER.image_size, seed=3)
    first = FIRST_LEXICON * PER_LEXICON
    scenes_rgb = draw_lessons(
        scenes, "test", torch.arange(first, first + 2 * PER_LEXICON), torch.device("cpu"),
        unclear=UNCLEAR, per_lexicon=PER_LEXICON,
    ).rendered.rgb  # fmt: skip
    for shown in chosen.records:
        items = shown.stages[0].over
        assert len(items) == 32
        for item in items:
            _, lesson, _, place = item.picture.split()  # "test 268435456 example 2"
            scene = (int(lesson) - first) * (EXAMPLES + 1) + int(place)
            expected = scenes_rgb[scene].permute(1, 2, 0).flatten().tolist()
            assert list(shown.pictures[item.picture].tobytes()) == expected


def test_all_selectors_have_the_same_candidates(chosen: Part):
    for shown in chosen.records:
        assert [stage.name for stage in shown.stages] == ["pointer v1", "random", "kNN", "MMR"]
        assert len({stage.over for stage in shown.stages}) == 1
        for stage in shown.stages:
            assert len(set(stage.selection.indices.tolist())) == shots.SHOTS
        assert [answer.who for answer in shown.answers] == [row.method for row in chosen.rows]


def test_shipped_selector_beats_the_baselines(
    monkeypatch: pytest.MonkeyPatch,
):
    assert shots.shipped_selectors()[0] == shots.BEST
    monkeypatch.setattr(shots, "shipped_selectors", lambda: [shots.BEST, "shots_v1"])
    monkeypatch.setattr(shots, "_LEXICONS", 3)
    part = shots.run(DemoSettings(5, "cpu"))
    scores = {row.method: row.score for row in part.rows}
    best = shots.selector_label(shots.BEST)
    assert next(row.method for row in part.rows if row.is_ours) == best
    assert part.records[0].stages[0].name == best
    assert (scores[best] or 0) > 0.75
    for other in ("zero-shot", "random", "kNN", "pointer v1"):
        assert (scores[best] or 0) > (scores[other] or 0) + 0.05, other


# ------------------------------------------------------------------ the table


def printed(parts: list[Part], width: int) -> list[str]:
    console = Console(width=width, file=StringIO())
    console.print(table(parts, console))
    return console.file.getvalue().splitlines()


PART = Part(
    "tokens", "which?", "what it means " * 12,
    (
        MethodResult("all", 0.98, 0.9, 1.0, "576", 1.0, 0.1),
        MethodResult("ours", 0.5, 0.25, 0.75, "9>4", 0.1, 2e-4),
    ),
)  # fmt: skip


@pytest.mark.parametrize("width", [80, 110])
def test_table_fits_the_width_and_columns_align(width: int):
    lines = printed([PART, Part("shots", "who?", "nothing yet")], width)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    for cell in ("98.0", "90.0-100.0", "25.0-75.0", "576", "9>4", "100 %", "10 %", "100 ms"):
        assert cell in text
    assert "< 1 ms" in text
    assert "nothing yet" in text
    assert ("●" in text) == (width == 110)
    head = next(line for line in lines if "kept" in line)
    for row in ("576", "9>4"):
        line = next(line for line in lines if row in line)
        assert line.index(row) == head.index("kept")


def test_unknown_score_is_a_dash():
    part = replace(PART, rows=(MethodResult.of_hits("all", [], "576"),))
    line = next(line for line in printed([part], 110) if "all" in line)
    assert " - " in line
    assert "●" not in line


def test_time_saved_is_relative_to_the_first_row():
    rows = [
        MethodResult.of_hits(name, [True], seconds=s)
        for name, s in (("a", 0.2), ("b", 0.05), ("c", 1.0))
    ]
    lines = printed([replace(PART, rows=tuple(rows), note="")], 80)
    ends = [line.split()[-1] for line in lines if " ms" in line]
    assert ends == ["ms", "%", "ms"]
    assert any(line.rstrip().endswith("50 ms   75 %") for line in lines)
