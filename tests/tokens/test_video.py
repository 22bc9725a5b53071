"""Videos: pruned `generate` equals a full recompute, frame by frame, without a cache."""

import math
from typing import Any

import pytest
import torch
from hosts import ENCODES_FIRST, TinyHost, build, shared
from test_integration import NEW, assert_same, generate, make_plan
from tiny_models import PAD, VIDEO_ID, VISION_START
from token_truth import ByContent, truth

from eligo.errors import InputError
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.methods import build as build_method
from eligo.tokens.plan import Plan, Stage1

FAMILIES = ("qwen2_vl", "qwen", *(("qwen3_vl",) if ENCODES_FIRST else ()))
Clip = tuple[int, int, int]
ROWS = {
    "one": [[3, (3, 2, 4), 5]],
    "padded": [[3, (3, 2, 4), 8], [2, (3, 2, 4), 3]],
    "ragged": [[3, (2, 2, 4), 2, (4, 2, 2), 3], [2, (3, 4, 2), 9], [4, (1, 4, 4), 2]],
}
"""Rows of words (a number) and videos (frames, rows and columns of tokens)."""


def videos(host: TinyHost, rows: list[list[Any]], first: int = 0) -> dict[str, Any]:
    """Prompts as the processors write them, padded on the left; a row depends on its number."""
    ids, pixels, grids = [], [], []
    for number, row in enumerate(rows, first):
        generator = torch.Generator().manual_seed(number)
        parts = []
        for segment in row:
            if isinstance(segment, int):
                parts.append(torch.randint(5, 55, (segment,), generator=generator))
                continue
            frames, height, width = segment
            grids.append((frames, 2 * height, 2 * width))
            size = (4 * math.prod(segment), 3 * 2 * 4 * 4)
            pixels.append(torch.randn(size, generator=generator))
            if host.family != "qwen3_vl":
                parts[-1][-1] = VISION_START
                parts.append(torch.full((math.prod(segment),), VIDEO_ID))
                continue
            for _ in range(frames):  # a timestamp of three tokens before each
                stamp = torch.randint(5, 55, (3,), generator=generator)
                frame = torch.full((height * width,), VIDEO_ID)
                parts += [stamp, torch.tensor([VISION_START]), frame, torch.tensor([63])]
        ids.append(torch.cat(parts))
    length = max(map(len, ids))
    padded = [torch.nn.functional.pad(row, (length - len(row), 0), value=PAD) for row in ids]
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in ids])
    input_ids = torch.stack(padded)
    inputs = {
        "input_ids": input_ids,
        "attention_mask": mask,
        "mm_token_type_ids": 2 * (input_ids == VIDEO_ID).long(),
        "pixel_values_videos": torch.cat(pixels),
        "video_grid_thw": torch.tensor(grids),
    }
    if host.family == "qwen":
        inputs["second_per_grid_ts"] = torch.full((len(grids),), 1.5)
    return inputs


@pytest.mark.parametrize("stages", ["1", "2", "both"])
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("family", FAMILIES)
def test_generate_equals_recompute(family: str, kind: str, stages: str) -> None:
    host, rows, plan = shared(family), ROWS[kind], make_plan(stages)
    with pruning(host.model, plan) as trace:
        tokens, logits = generate(host, videos(host, rows))
    for number in range(len(rows)):
        alone = videos(host, rows[number : number + 1], number)
        expected = truth(host, plan, alone, tokens[number, :-1])
        assert_same(logits[number], expected.logits[-NEW:])
        left = trace.num_columns - alone["input_ids"].shape[1]
        for layer, kept in enumerate(expected.kept):
            found = [column for column in trace.columns[layer][number].tolist() if column >= left]
            assert [column - left for column in found] == kept


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{"folds": True}, {"folds": True, "size_bias": False}])
def test_other_plans_equal_recompute(family: str, options: dict[str, Any]) -> None:
    host, plan = shared(family), make_plan("both", **options)
    inputs = videos(host, ROWS["one"])
    with pruning(host.model, plan):
        tokens, logits = generate(host, inputs)
    assert_same(logits[0], truth(host, plan, inputs, tokens[0, :-1]).logits[-NEW:])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_that_keeps_all_changes_nothing(family: str) -> None:
    """Against the stock model, which computes its own positions, also without `generate`."""
    host, inputs = shared(family), videos(shared(family), ROWS["ragged"])
    keep_all = Plan(Stage1(build_method("uniform"), ratio=1.0))
    with torch.no_grad():
        plain = host.model(**inputs).logits
        with pruning(host.model, keep_all):
            pruned = host.model(**inputs).logits
    real = inputs["attention_mask"].bool()
    assert (plain - pruned)[real].abs().max() < 1e-4
    _, stock = generate(host, inputs)
    with pruning(host.model, keep_all):
        assert_same(generate(host, inputs)[1], stock)


@pytest.mark.parametrize("family", FAMILIES)
def test_budgets_are_of_the_whole_clip_and_frames_are_known(family: str) -> None:
    host, reducer = shared(family), ByContent(seed=1, needs=("cls_row",))
    plan = Plan(Stage1(reducer, budget=9))
    with pruning(host.model, plan) as trace:
        generate(host, videos(host, [[3, (3, 2, 4), 2, (2, 2, 4), 4]]))
    context = reducer.seen[0]
    assert context.frames is not None
    assert context.frames.tolist() == [3, 2]
    assert context.grid.tolist() == [[6, 4], [4, 4]]
    assert context.mask.sum(-1).tolist() == [24, 16]
    assert trace.frames is not None
    assert trace.frames.tolist() == [3, 2]
    assert trace.stages[0].selection.num_kept.tolist() == [9, 9]
    # Attention rows of the tower are in the order of the tokens: each frame's alone gives the same.
    assert context.cls_row is not None
    for frame in range(3):
        pixels = videos(host, [[3, (3, 2, 4), 4]])["pixel_values_videos"]
        alone = ByContent(seed=1, needs=("cls_row",))
        inputs = host.batch([[3, (2, 4), 4]])
        inputs["pixel_values"] = pixels[frame * 32 : frame * 32 + 32]
        with pruning(host.model, Plan(Stage1(alone, budget=4))):
            generate(host, inputs)
        expected = alone.seen[0].cls_row
        assert expected is not None
        assert torch.allclose(context.cls_row[0, frame * 8 : frame * 8 + 8], expected[0], atol=1e-6)


def test_videos_that_are_refused() -> None:
    host, plan = build("qwen"), make_plan("1")
    inputs = videos(host, ROWS["one"])
    images = host.batch([[3, "image", 5]])
    both = {**inputs, "pixel_values": images["pixel_values"]}
    with pruning(host.model, plan), pytest.raises(InputError, match="images and videos"):
        host.model(**both, image_grid_thw=images["image_grid_thw"])
    glm = shared("glm4v")
    with pruning(glm.model, plan), pytest.raises(InputError, match="a video for a GLM-4V"):
        glm.model(**inputs)
    with pruning(host.model, plan):
        cache = host.model(**inputs, use_cache=True).past_key_values
        with pytest.raises(InputError, match="filled cache"):
            host.model(**inputs, past_key_values=cache)
