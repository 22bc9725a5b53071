"""A prediction as an explorer record: its stages agree with the trace."""

import json

import pytest
import torch
from PIL import Image

from eligo.explorer.folder import find_records, load_record, save_record
from eligo.explorer.record import Answer
from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm
from eligo.selection import Selection
from eligo.tokens.inference.predict import predict
from eligo.tokens.inference.record import record, trace_stages
from eligo.tokens.methods import build
from eligo.tokens.plan import Cut, Plan, Stage1
from eligo.tokens.trace import StageTrace, Stopwatch, Trace

PLAN = Plan(Stage1(build("tome"), 20), [Cut(1, build("fastv"), 12), Cut(2, build("random"), 5)])


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(0)
    sizes = VlmConfig(
        image_size=84, vision_layers=2, vision_width=16, layers=4, width=16, hidden=32, heads=2
    )
    image = Image.effect_noise((120, 90), 80).convert("RGB")
    model = build_vlm(sizes).eval()
    processor = build_processor(sizes)
    return predict(
        image, "is there a ball?", model=model, processor=processor, plan=PLAN, timed=True
    )


def test_selection_is_what_survives_all_stages(found):
    selection = found.selection
    assert selection.indices.tolist() == found.trace.stages[-1].positions.tolist()
    assert selection.scores.shape == (1, 36)
    assert selection.mask.all()
    # ToMe merged all 36 tokens into 20; the cuts kept 5 of those.
    merged = found.trace.stages[0]
    rows = [merged.positions[0].tolist().index(place) for place in selection.indices[0].tolist()]
    assert torch.allclose(selection.assignment[0], merged.selection.assignment[0, rows].float())
    last = found.trace.stages[-1].selection.scores[0]
    assert selection.scores[0, found.trace.stages[1].positions[0].long()].tolist() == last.tolist()


def test_summary_and_saved_files(found, tmp_path):
    summary = found.summary()
    assert summary["answer"] == found.answer
    assert (summary["vision_tokens"], summary["kept"], summary["layers"]) == (
        36, [20, 12, 5], [0, 1, 2]
    )  # fmt: skip
    assert found.save(tmp_path) == tmp_path
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(json.dumps(summary))
    assert Image.open(tmp_path / "tokens.png").width > 2 * 336
    assert len(find_records(tmp_path)) == 1


def test_stages_refer_to_the_image(found):
    shown = record(found)
    assert [stage.layer for stage in shown.stages] == [0, 1, 2]
    assert [int(stage.selection.num_kept) for stage in shown.stages] == [20, 12, 5]
    assert shown.pictures["image"].size == (84, 84)
    for stage, traced in zip(shown.stages, found.trace.stages, strict=True):
        assert (stage.over.rows, stage.over.columns) == (6, 6)
        reached = stage.candidates or range(36)
        cells = [reached[place] for place in stage.selection.indices.tolist()]
        assert cells == traced.positions[0].tolist()
    assert shown.stages[0].candidates is None
    assert shown.stages[0].selection.assignment is not None  # ToMe folds
    assert [answer.text for answer in shown.answers] == [found.answer]
    assert shown.cost["vision tokens"] == "36 > 20 > 12 > 5"
    assert shown.cost["fewer from layer"] == "0, 1, 2"
    assert "ms" in shown.cost["time to the first token"]
    saved = 1 - (found.cost.llm + found.cost.selector) / found.cost.llm_full
    assert shown.cost["FLOPs saved, selector counted"] == f"{saved:.1%}"


def test_record_round_trip(found, tmp_path):
    answers = (Answer("whole", "yes", True), Answer("pruned", found.answer, False))
    original = record(found, answers=answers, title="first", note="why")
    save_record(original, tmp_path)
    again = load_record(tmp_path)
    assert (again.title, again.answers, again.note) == ("first", answers, "why")
    for mine, theirs in zip(original.stages, again.stages, strict=True):
        assert (mine.name, mine.candidates, mine.over) == (
            theirs.name, theirs.candidates, theirs.over
        )  # fmt: skip
        assert torch.equal(mine.selection.indices, theirs.selection.indices)


def test_padding_of_unequal_tiles_is_removed():
    """Two tiles, 2 x 2 and 1 x 2; kept 2 and 1, then 1 and 1."""
    mask = torch.tensor([[True] * 4, [True, True, False, False]])
    first = Selection(
        torch.tensor([[1, 3], [0, -1]]), torch.arange(8.0).view(2, 4), mask,
        torch.tensor([[[1.0, 1, 0, 0], [0, 0, 1, 1]], [[1, 1, 0, 0], [0, 0, 0, 0]]]),
    )  # fmt: skip
    later = Selection(
        torch.tensor([[1], [0]]),
        torch.rand(2, 2),
        torch.tensor([[True, True], [True, False]]),
    )
    watch = Stopwatch(torch.device("cpu"))
    trace = Trace(
        stages=[
            StageTrace(0, "merger", first, torch.tensor([[1, 3], [0, -1]]), watch),
            StageTrace(2, "pruner", later, torch.tensor([[3], [0]]), watch),
        ],
        grid=torch.tensor([[2, 2], [1, 2]]),
    )
    stages = trace_stages(trace, ["tile 1", "tile 2"])
    assert [(stage.over.picture, stage.layer) for stage in stages] == [
        ("tile 1", 0), ("tile 2", 0), ("tile 1", 2), ("tile 2", 2)
    ]  # fmt: skip
    assert [stage.selection.scores.shape[-1] for stage in stages] == [4, 2, 2, 1]
    assert stages[1].selection.assignment.tolist() == [[1.0, 1.0]]
    assert [stage.candidates for stage in stages] == [None, None, (1, 3), (0,)]
