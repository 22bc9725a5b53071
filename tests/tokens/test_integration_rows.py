"""Attention rows, scenes for the oracle, and plans on disk."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hosts import ENCODES_FIRST, FAMILIES, IMAGE, STYLES, TinyHost, shared
from test_integration import generate, rows_of
from tiny_models import IMAGE_ID
from token_truth import ByContent
from torch import Tensor

from eligo import tokens
from eligo.errors import InputError
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.methods import METHODS, build
from eligo.tokens.model.layer_pruners import LayerPruners, PrunersShape
from eligo.tokens.model.token_merger import MergerShape, TokenMerger
from eligo.tokens.plan import Cut, Plan, Stage1


def weights_of(host: TinyHost, module: Any, inputs: dict[str, Any]) -> list[Tensor]:
    """Attention weights of eager attention."""
    caught: list[Tensor] = []
    handle = module.register_forward_hook(lambda _m, _a, out: caught.append(out[1]))
    with torch.no_grad():
        host.model(**inputs, use_cache=False)
    handle.remove()
    return caught


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_row_of_the_last_word(family: str) -> None:
    """Attention of the last question word in layer 1, averaged over heads, at the vision tokens."""
    rows = [[3, IMAGE, 5], [2, IMAGE, 6]]
    inputs = shared(family).batch(rows)
    weights = weights_of(
        shared(family, "eager"), shared(family, "eager").text.layers[1].self_attn, inputs
    )[0]
    question_mask = inputs["attention_mask"].bool()
    question_mask[1, -2:] = False
    for attention in ("sdpa", "eager"):
        host, reducer = shared(family, attention), ByContent(needs=("attention_row",))
        plan = Plan(None, [Cut(2, reducer, 4)])
        with pruning(host.model, plan, question_mask), torch.no_grad():
            host.model(**inputs, use_cache=False)
        found = reducer.seen[0].attention_row
        assert found is not None
        sizes = [math.prod(grid) for grid in host.grids(IMAGE)]
        for number, start, last in ((0, 3, -1), (1, 2, -3)):
            expected = weights[number, :, last].mean(0)[start : start + sum(sizes)].split(sizes)
            rows_found = found.unflatten(0, (2, -1))[number]
            for row, image in zip(rows_found, expected, strict=True):
                assert torch.allclose(row[: len(image)], image, atol=1e-5)
        reducer.seen.clear()
        with pruning(host.model, Plan(Stage1(ByContent(folds=True), 8), plan.cuts)):
            _, logits = generate(host, host.batch(rows_of("ragged", family)))
            _, again = generate(host, host.batch(rows_of("ragged", family)), use_cache=False)
        if ENCODES_FIRST or not family.startswith("paligemma"):
            assert torch.allclose(logits, again, atol=5e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_rows_of_all_words(family: str, attention: str) -> None:
    """After a merge and a cut, in a padded ragged batch: equal to eager attention."""
    rows = rows_of("ragged", family)
    found = {}
    for name in ("eager", attention):
        host, reducer = shared(family, name), ByContent(needs=("question_rows",))
        cuts = [Cut(1, ByContent(seed=1), ratio=0.4), Cut(3, reducer, ratio=0.2)]
        inputs = host.batch(rows)
        caught: list[Tensor] = []
        handle = host.text.layers[2].self_attn.register_forward_hook(
            lambda _m, _a, out, caught=caught: caught.append(out[1])
        )
        plan = Plan(Stage1(ByContent(folds=True, seed=2), ratio=0.6), cuts)
        with pruning(host.model, plan) as trace, torch.no_grad():
            host.model(**inputs, use_cache=False)
        handle.remove()
        found[name] = (reducer.seen[0], caught[0], trace)
    context, _, _ = found[attention]
    _, weights, trace = found["eager"]
    ids, mask = host.batch(rows)["input_ids"], host.batch(rows)["attention_mask"]
    visible = trace.columns[2]
    assert trace.rows is not None
    assert context.question_rows is not None
    assert context.question_mask is not None
    compared = 0
    for image, number in enumerate(trace.rows.tolist()):
        words = (ids[number] != IMAGE_ID).nonzero()[:, 0].tolist()
        vision = trace.stages[1].positions[image]  # in raster order, like the context's tokens
        first = trace.rows[:image].tolist().count(number)
        offset = sum(map(math.prod, host.row_grids(rows[number])[:first]))
        places = (ids[number] == IMAGE_ID).nonzero()[:, 0][offset:]
        columns = [_where(visible[number], places[p]) for p in vision[vision >= 0].tolist()]
        for word, column in enumerate(words):
            assert context.question_mask[image, word] == bool(mask[number, column])
            if not mask[number, column]:
                continue
            row = weights[number, :, _where(visible[number], column)].mean(0)
            given = context.question_rows[image, word, : len(columns)]
            assert torch.allclose(given, row[columns], atol=1e-5)
            compared += 1
    assert compared > 20


def _where(columns: Tensor, column: int | Tensor) -> int:
    return int((columns == column).nonzero()[0, 0])


@pytest.mark.parametrize("need", ["cls_row", "object_row"])
@pytest.mark.parametrize(
    "family", ["llava", "internvl", "paligemma", "smolvlm", "idefics3", "gemma3"]
)
def test_attention_row_of_the_tower(family: str, need: str) -> None:
    """The row of [CLS], or the mean attention received; tokens average their patches.

    The middle layer of these towers of two layers is the first one.
    """
    number = 0 if family == "llava" or need == "object_row" else -1
    eager = shared(family, "eager")
    inputs = eager.batch([[3, IMAGE, 5], [2, IMAGE, 6]])
    core = eager.model.model
    tower = core.vision_model if eager.style == "nested" else core.vision_tower
    try:
        if family == "internvl":
            module = tower.encoder.layer[number].attention
        else:
            module = tower.encoder.layers[number].self_attn
    except AttributeError:  # older transformers
        module = tower.vision_model.encoder.layers[number].self_attn
    weights = weights_of(eager, module, inputs)[0].mean(1)  # (images, queries, keys)
    if family in ("llava", "internvl"):
        rows = weights[:, 0, 1:]
    else:
        rows = weights.mean(1)
    if rows.shape[1] == 64:
        squares = rows.reshape(2, 4, 2, 4, 2)
        rows = squares.mean((2, 4)).flatten(1)
    for attention_name in ("sdpa", "eager"):
        host, reducer = shared(family, attention_name), ByContent(needs=("cls_row", need))
        with pruning(host.model, Plan(Stage1(reducer, 4))), torch.no_grad():
            host.model(**inputs, use_cache=False)
        found = getattr(reducer.seen[0], need)
        assert found is not None
        assert torch.allclose(found, rows, atol=1e-5)


@pytest.mark.parametrize("family", STYLES["grid"])
def test_attention_row_of_a_tower_with_windows(family: str) -> None:
    """Against attention recomputed from the last block's input, patch by patch."""
    host, reducer = shared(family), ByContent(needs=("cls_row",))
    inputs = host.batch([[3, (4, 6), 5], [2, (2, 4), 6]])
    tower = host.model.model.visual
    block, recorded = tower.blocks[-1].attn, {}

    def look(_module: Any, args: Any, kwargs: Any) -> None:
        recorded.update(hidden=args[0], **kwargs)

    handle = block.register_forward_pre_hook(look, with_kwargs=True)
    with pruning(host.model, Plan(Stage1(reducer, 4))), torch.no_grad():
        host.model(**inputs, use_cache=False)
    handle.remove()
    order: list[float] = list(range(32))
    if family == "qwen":  # windows: where a marked token of the tower's input ends up
        order.clear()
        handle = tower.blocks[0].register_forward_pre_hook(
            lambda _m, a: order.extend(a[0][::4, 0].tolist())
        )
        marks = torch.arange(32.0).repeat_interleave(4)[:, None].expand(-1, 16)
        embed = tower.patch_embed.register_forward_hook(lambda _m, _a, _out: marks)
        with torch.no_grad():
            tower(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
        handle.remove()
        embed.remove()
    with torch.no_grad():
        qkv = block.qkv(recorded["hidden"]).reshape(128, 3, 2, 8).permute(1, 2, 0, 3)
    cos, sin = (table[None] for table in recorded["position_embeddings"])

    def rotate(x: Tensor) -> Tensor:
        return x * cos + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin

    expected = torch.zeros(32)
    for start, stop in ((0, 96), (96, 128)):
        q, k = rotate(qkv[0])[:, start:stop], rotate(qkv[1])[:, start:stop]
        received = (q @ k.transpose(1, 2) * 8**-0.5).softmax(-1).mean((0, 1))
        for token, value in enumerate(received.reshape(-1, 4).mean(1)):
            expected[int(order[start // 4 + token])] = value
    found = reducer.seen[0].cls_row
    assert found is not None
    assert torch.allclose(torch.cat([found[0, :24], found[1, :8]]), expected, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_runs_in_every_host(family: str) -> None:
    """Before the language model and inside it, where it can; a prompt alone keeps the same."""
    host = shared(family)
    batch = host.batch([[3, IMAGE, 5], [2, IMAGE, 6]])
    for name in METHODS.keys() - {"none", "oracle"}:
        method = build(name)
        options = [method, method.replace(dict(method.before))] if method.before else [method]
        for reducer, where in itertools.product(options, ("before", "inside")):
            if where not in reducer.where:
                continue
            plan = (
                Plan(Stage1(reducer, 4)) if where == "before" else Plan(cuts=[Cut(1, reducer, 4)])
            )
            kept = []
            for inputs in (batch, host.batch([[3, IMAGE, 5]])):
                with pruning(host.model, plan) as trace, torch.no_grad():
                    host.model(**inputs, use_cache=False)
                kept.append(trace.stages[0].selection.indices.tolist())
            assert {len(row) for row in kept[0]} == {4}, (name, where)
            assert kept[0][: len(kept[1])] == kept[1], (name, where)


@pytest.mark.parametrize("family", FAMILIES)
def test_projected_tokens_are_those_that_enter_the_language_model(family: str) -> None:
    """Stage 1 gets them with the question, in its space; one that keeps all shows them again."""
    host, reducer = shared(family), ByContent()
    inputs = host.batch([[3, IMAGE, 5], [2, IMAGE, 6]])
    entered: list[Tensor] = []
    handle = host.text.layers[0].register_forward_pre_hook(
        lambda _m, args, kwargs: entered.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    with pruning(host.model, Plan(Stage1(reducer, ratio=1.0))), torch.no_grad():
        host.model(**inputs, use_cache=False)
    handle.remove()
    (context,) = reducer.seen
    assert context.projected is not None
    assert context.question is not None
    assert context.projected.shape[-1] == context.question.shape[-1]
    is_image = inputs["input_ids"] == IMAGE_ID
    assert torch.allclose(entered[0][is_image], context.projected[context.mask], atol=1e-5)


@pytest.mark.parametrize("family", STYLES["tiles"])
def test_attention_row_of_tiles(family: str) -> None:
    """Tiles are stitched, and newlines get nothing."""
    eager = shared(family, "eager")
    inputs = eager.batch([[3, IMAGE, 5], [2, IMAGE, 6]])
    tower = eager.model.model.vision_tower
    tower = getattr(tower, "vision_model", tower)
    layer = tower.encoder.layers[0 if family == "llava_next" else -1]
    weights = weights_of(eager, layer.self_attn, inputs)[0].mean(1)  # (tiles, queries, keys)
    rows = weights[:, 0, 1:] if family == "llava_next" else weights.mean(1)
    host, reducer = shared(family), ByContent(needs=("cls_row",))
    with pruning(host.model, Plan(Stage1(reducer, 4))), torch.no_grad():
        host.model(**inputs, use_cache=False)
    found = reducer.seen[0].cls_row
    assert found is not None
    for image in (0, 1):
        overview, above, below = rows[3 * image : 3 * image + 3]
        assert torch.allclose(found[2 * image, :16], overview, atol=1e-5)
        stitched = torch.cat([above.view(4, 4), below.view(4, 4)])
        expected = torch.nn.functional.pad(stitched, (0, 1)).flatten()
        assert torch.allclose(found[2 * image + 1], expected, atol=1e-5)


@pytest.mark.parametrize("family", STYLES["sizes"])
def test_attention_row_of_images_in_one_sequence(family: str) -> None:
    """Each image by itself, also if others are in the same sequence."""
    eager = shared(family, "eager")
    inputs = eager.batch([[3, (4, 6), 5], [2, (2, 4), 6]])
    attention = eager.model.model.vision_tower.transformer.layers[-1].attention
    weights = weights_of(eager, attention, inputs)[0][0].mean(0)  # (queries, keys)
    host, reducer = shared(family), ByContent(needs=("cls_row",))
    with pruning(host.model, Plan(Stage1(reducer, 4))), torch.no_grad():
        host.model(**inputs, use_cache=False)
    found, start = reducer.seen[0].cls_row, 0
    assert found is not None
    side = 1 if family == "pixtral" else 2
    for image, (rows, columns) in enumerate([(4, 6), (2, 4)]):
        stop = start + rows * columns * side**2
        own = weights[start:stop, start:stop].mean(0)
        expected = own.view(rows, side, columns, side).mean((1, 3)).flatten()
        assert torch.allclose(found[image, : rows * columns], expected, atol=1e-5)
        start = stop


def test_scene_is_passed_with_its_tokens() -> None:
    class Shown(ByContent):
        def select(self, context: Any, budget: Tensor) -> Any:
            assert context.scene is not None
            self.seen.append(context)
            return super().select(context, budget)

    host, inside = shared("llava"), Shown()
    scene = torch.zeros(3, 16, dtype=torch.bool)
    scene[0, 5], scene[1, 9], scene[2, 2] = True, True, True
    plan = Plan(Stage1(Shown(), 8), [Cut(1, inside, 4)])
    inputs = host.batch([[2, IMAGE, 1, IMAGE, 3], [4, IMAGE, 2]])
    with pruning(host.model, plan, scene=scene), torch.no_grad():
        host.model(**inputs)
    context = inside.seen[0]
    for image in range(3):
        for place, position in enumerate(context.positions[image].tolist()):
            assert context.scene[image, place] == scene[image, position]


def test_plans_are_saved_with_their_modules(tmp_path: Path) -> None:
    host = shared("llava")
    heads = LayerPruners(PrunersShape(layers=(1, 3), width=32, dim=16))
    merger = TokenMerger(MergerShape(width=16, dim=16))
    plan = Plan(
        Stage1(merger, ratio=0.5), [Cut(1, heads[1], 6), Cut(3, heads[3], 2)], size_bias=False
    )
    plan.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    inputs = host.batch(rows_of("ragged", "llava"))
    found = []
    for one in (plan, loaded):
        with pruning(host.model, one):
            found.append(generate(host, inputs)[1])
    assert torch.equal(*found)
    assert loaded.counts((4, 4)) == (8, 6, 2)
    assert loaded.size_bias is False
    simple = Plan(Stage1(tokens.METHODS["tome"](rounds=2), 8), positions="reindex")  # pyright: ignore
    simple.save(tmp_path / "simple")
    assert Plan.load(tmp_path / "simple") == simple
    own = Plan(None, [Cut(0.5, ByContent(), 3)])
    own.save(tmp_path / "own")
    with pytest.raises(InputError, match="content"):
        Plan.load(tmp_path / "own")
    assert Plan.load(tmp_path / "own", {"content": ByContent}).cuts[0].layer == 0.5


def test_invalid_plan_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no plan\.json"):
        Plan.load(tmp_path)
    path = tmp_path / "plan.json"
    path.write_text("{")
    with pytest.raises(InputError, match=r"plan\.json:1:2: not valid JSON"):
        Plan.load(tmp_path)
    path.write_text(json.dumps({"format": "other"}))
    with pytest.raises(InputError, match="got format 'other'"):
        Plan.load(tmp_path)
    path.write_text(json.dumps({"format": "eligo.plan.v1"}))
    with pytest.raises(InputError, match="'stage1'"):
        Plan.load(tmp_path)


def test_features_from_outside_are_refused() -> None:
    if not ENCODES_FIRST:
        pytest.skip("these transformers take no features")
    host = shared("llava")
    inputs = host.batch([[3, IMAGE, 5]])
    features = host.model.get_image_features(inputs.pop("pixel_values"), return_dict=True)
    plan = Plan(Stage1(ByContent(), 8))
    with pruning(host.model, plan), torch.no_grad():
        with pytest.raises(InputError, match="outside of this context"):
            host.model(**inputs, mm_encoder_outputs={"image": features})
        host.model(**host.batch([[3, IMAGE, 5]]))
        with pytest.raises(InputError, match="outside of this context"):
            host.model(**inputs, mm_encoder_outputs={"image": features})
        generate(host, host.batch([[3, IMAGE, 5]]))
        with pytest.raises(InputError, match="outside of this context"):
            host.model(**inputs, mm_encoder_outputs={"image": features})


def test_public_names() -> None:
    for name in tokens.__all__:
        assert getattr(tokens, name) is not None
    assert tokens.pruning is pruning
    with pytest.raises(AttributeError, match="no attribute 'prune'"):
        tokens.prune  # noqa: B018


def test_shipped_model_can_be_pruned() -> None:
    """576 tokens through the weights shipped with the package."""
    from eligo.scenes import load_vlm

    model, processor = load_vlm()
    del processor
    ids = torch.randint(10, 60, (1, 600))
    ids[:, 3:579] = 4
    inputs = {"input_ids": ids, "pixel_values": torch.randn(1, 3, 336, 336)}
    plan = Plan(Stage1(ByContent(), 288), [Cut(1 / 4, ByContent(), 150)])
    with pruning(model, plan) as trace, torch.no_grad():
        output = model(**inputs)
    assert trace.lengths == [24 + 288] * 3 + [24 + 150] * 9
    assert output.logits.shape[1] == 24 + 150
