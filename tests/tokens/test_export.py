"""Export of stage 1 for serving engines: the saved module equals the reducer."""

import json

import pytest
import torch

from eligo.errors import EligoError, InputError
from eligo.selection import Selection
from eligo.tokens.inference.export import Stage1Module, export_stage1
from eligo.tokens.methods import build
from eligo.tokens.model.layer_pruners import LayerPruner
from eligo.tokens.model.token_merger import MergerShape, TokenMerger
from eligo.tokens.plan import Cut, Plan, Stage1

GRID = (6, 6)


def merger(**options) -> TokenMerger:
    return TokenMerger(MergerShape(width=12, dim=8, num_heads=2, **options)).eval()


@pytest.mark.parametrize("name", ["merger", "pool"])
def test_exported_module_equals_the_reducer(name, tmp_path):
    reducer = merger() if name == "merger" else build(name)
    plan = Plan(Stage1(reducer, 9), size_bias=False)
    written = export_stage1(plan, tmp_path, grid=GRID, width=12)
    assert (written.tokens, written.kept, written.inputs) == (36, 9, ["features"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stage1.json", "stage1.pt2"]
    loaded = torch.export.load(tmp_path / "stage1.pt2").module()
    for seed in range(3):
        features = torch.randn(1, 36, 12, generator=torch.Generator().manual_seed(seed))
        exported = loaded(features)
        expected = Stage1Module(reducer, 9, GRID)(features)
        for one, other in zip(exported, expected, strict=True):
            torch.testing.assert_close(one, other)
        folded, positions, sizes = exported
        assert folded.shape == (1, 9, 12)
        assert positions.tolist()[0] == sorted(positions.tolist()[0])
        assert (sizes > 0).all()


def test_exported_module_accepts_questions_of_any_length(tmp_path):
    reducer = merger(kind="question_aware", question_width=10)
    plan = Plan(Stage1(reducer, ratio=0.25), size_bias=False)
    export_stage1(plan, tmp_path, grid=GRID, width=12, question_width=10)
    about = json.loads((tmp_path / "stage1.json").read_text())
    assert about["inputs"]["question"]["shape"] == [1, "words", 10]
    assert about["kept"] == plan.count(GRID) == 9
    loaded = torch.export.load(tmp_path / "stage1.pt2").module()
    for words in (3, 20):
        given = (
            torch.randn(1, 36, 12), torch.randn(1, words, 10), torch.arange(words)[None] > 0,
        )  # fmt: skip
        expected = Stage1Module(reducer, 9, GRID)(*given)
        for one, other in zip(loaded(*given), expected, strict=True):
            torch.testing.assert_close(one, other)
    with pytest.raises(InputError, match="give question_width"):
        export_stage1(plan, tmp_path, grid=GRID, width=12)


@pytest.mark.parametrize("positions", ["original", "reindex"])
def test_positions_are_marked(tmp_path, positions):
    plan = Plan(Stage1(build("divprune"), 4), positions=positions)
    assert export_stage1(plan, tmp_path, grid=GRID, width=12).positions == positions
    assert json.loads((tmp_path / "stage1.json").read_text())["positions"] == positions


def test_cuts_are_left_out(tmp_path):
    cut = Cut(2, LayerPruner(16, 8, 2), 4)
    plan = Plan(Stage1(build("uniform"), 9), [cut])
    assert export_stage1(plan, tmp_path, grid=GRID, width=12).left_out == ["cut at layer 2"]
    with pytest.raises(InputError, match="without stage 1"):
        export_stage1(Plan(cuts=[cut]), tmp_path, grid=GRID, width=12)


def test_plans_that_cannot_be_exported_are_refused(tmp_path):
    with pytest.raises(InputError, match="train with size_bias: false"):
        export_stage1(Plan(Stage1(merger(), 9)), tmp_path, grid=GRID, width=12)
    # Without merging, no size bias is needed.
    export_stage1(Plan(Stage1(build("uniform"), 9)), tmp_path / "u", grid=GRID, width=12)
    zip_like = Plan(Stage1(build("visionzip"), 9), size_bias=False)
    with pytest.raises(InputError, match="reads cls_row"):
        export_stage1(zip_like, tmp_path, grid=GRID, width=12)
    moody = Plan(Stage1(_Moody(), 9), size_bias=False)
    with pytest.raises(EligoError, match=r"moody: torch\.export failed"):
        export_stage1(moody, tmp_path, grid=GRID, width=12)
    assert [path.name for path in tmp_path.iterdir()] == ["u"]


class _Moody:
    """Branches on the sign of the first feature, which cannot be exported."""

    name = "moody"
    where = frozenset({"before"})
    needs = frozenset()

    def select(self, context, budget):
        scores = context.features.sum(-1)
        return Selection.top_k(-scores if context.features[0, 0, 0] > 0 else scores, budget)
