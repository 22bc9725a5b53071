"""The tiny LLaVA: stock modules, packed questions without leaks, training, saving."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from benchmarks.scenes import train_vlm as vlm_train
from benchmarks.scenes.train_vlm import (
    Batch,
    VlmTask,
    VlmTrainConfig,
    block_mask,
    pack,
    pixel_values,
)
from eligo.config import load_config
from eligo.errors import InputError
from eligo.scenes import SceneConfig, draw_questions, draw_scenes, load_vlm, render, words
from eligo.scenes.config import GRID
from eligo.scenes.graph import UNIT
from eligo.scenes.question_kinds import FAMILIES, KINDS
from eligo.scenes.vlm import (
    ASSISTANT,
    EOS,
    PAD,
    PROMPT,
    VlmConfig,
    build_processor,
    build_vlm,
    save_vlm,
)
from eligo.scenes.vlm_heads import PhraseHeads, VisionHeads, patch_targets
from eligo.train import Progress, TrainConfig, load_weights
from limits import PROCESS_SECONDS

CPU = torch.device("cpu")
LENGTH = vlm_train._LENGTH
ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "benchmarks" / "scenes").glob("vlm_*.yaml"))
PYTHONPATH = os.pathsep.join(map(str, (ROOT, ROOT / "src", os.environ.get("PYTHONPATH", ""))))
POLISH = ROOT / "benchmarks" / "scenes" / "vlm_polish.yaml"


def small(**changes) -> VlmTrainConfig:
    return VlmTrainConfig(train=TrainConfig()).smoke().replace(changes)


@pytest.fixture(scope="module")
def task() -> VlmTask:
    """Random weights, large enough that every token influences the answer."""
    torch.manual_seed(0)
    task = small().build()
    with torch.no_grad():
        for parameter in task.model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    return task


def record_splits(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[str]:
    """Records the splits from which a module draws scenes."""
    splits = []

    def draw(config, split, *args, **options):
        splits.append(split)
        return draw_scenes(config, split, *args, **options)

    monkeypatch.setattr(module, "draw_scenes", draw)
    return splits


def batch_of(task: VlmTask, scenes: int) -> Batch:
    return task.make("train", torch.arange(scenes), CPU, ask=True)


# Packing


@torch.no_grad()
def test_packed_questions_equal_single_questions_in_the_stock_model(task):
    processor = build_processor(task.config.model)
    batch = batch_of(task, 3)
    questions = batch.questions
    packed = pack(questions, task._constants[0])
    logits, _ = task.answer(task.encode(batch)[0], packed)
    compared = 0
    for scene, place in questions.valid.nonzero().tolist():
        answer = packed.targets[scene, place]
        answer = answer[answer >= 0]
        inputs = processor(
            images=batch.rendered.rgb[scene],
            text=PROMPT.format(question=questions.text(scene, place)),
            return_tensors="pt",
        )
        ids = torch.cat([inputs["input_ids"], answer[None, :-1]], 1)
        stock = task.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=inputs["pixel_values"],
        ).logits[0, -len(answer) :]
        torch.testing.assert_close(logits[scene, place, : len(answer)], stock, rtol=1e-5, atol=1e-5)
        compared += 1
    assert compared >= 6
    # The logits do depend on the image, the question and the answer.
    other = task.answer(task.encode(batch)[0].roll(1, 0), packed)[0]
    assert (other - logits).abs().amax((2, 3)).min() > 1e-2
    assert (logits[:, :1] - logits[:, 1:]).abs().amax((2, 3)).min() > 1e-2


def test_block_mask_matches_its_definition():
    prefix, questions = 5, 3
    mask = block_mask(prefix, questions, CPU)
    assert mask.shape == (prefix + questions * LENGTH,) * 2

    def block(place: int) -> int:
        return -1 if place < prefix else (place - prefix) // LENGTH

    for query, row in enumerate(mask.tolist()):
        for key, may_look in enumerate(row):
            is_seen = key < prefix or block(key) == block(query)
            assert may_look == (key <= query and is_seen), (query, key)


def test_packed_tokens_are_question_and_answer():
    tokenizer = build_processor(VlmConfig()).tokenizer
    graph = draw_scenes(SceneConfig(), "test", range(64))
    questions = draw_questions(graph, 12)
    packed = pack(questions, vlm_train._answer_tokens(CPU))
    assert (~questions.valid).any()
    assert packed.targets[~questions.valid].eq(-100).all()
    kinds = Counter()
    for scene, place in questions.valid.nonzero().tolist():
        row, ask = packed.tokens[scene, place].tolist(), int(packed.start[scene, place])
        answer = tokenizer(questions.answer_text(scene, place), add_special_tokens=False).input_ids
        question = tokenizer(questions.text(scene, place), add_special_tokens=False).input_ids
        end = ask + 2 + len(answer)
        assert row[:end] == [*question, ASSISTANT, *answer, EOS]
        assert row[end:] == [PAD] * (LENGTH - end)
        assert packed.targets[scene, place].tolist() == ([*answer, EOS, -100])[:3]
        assert "<unk>" not in tokenizer.decode(row)
        kinds[int(questions.kind[scene, place])] += 1
    assert len(kinds) == len(KINDS)


def test_pixels_equal_those_of_the_processor(task):
    rgb = batch_of(task, 2).rendered.rgb
    processor = build_processor(task.config.model)
    processed = processor.image_processor(images=list(rgb), return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(pixel_values(rgb), processed, rtol=0, atol=1e-5)


# Losses of the tower and of the phrases


@pytest.mark.parametrize("seed", [0, 1])
def test_patch_targets_match_a_loop_over_pixels(seed):
    side, patch = 84, 14
    config = SceneConfig(height=side, width=side, seed=seed)
    rendered = render(draw_scenes(config, "train", range(4)))
    targets, graph = patch_targets(rendered, patch), rendered.graph
    grid = side // patch
    objects = [
        [slot for slot in range(config.max_objects) if graph.askable[scene, slot]]
        for scene in range(4)
    ]
    owned = 0
    for scene in range(4):
        x, y = graph.x[scene].tolist(), graph.y[scene].tolist()
        attributes = graph.attributes[scene].tolist()
        centres = {(y[slot] * grid // UNIT, x[slot] * grid // UNIT) for slot in objects[scene]}
        for place in range(grid * grid):
            row, column = divmod(place, grid)
            pixels = Counter(
                int(rendered.instances[scene, row * patch + i, column * patch + j])
                for i in range(patch)
                for j in range(patch)
            )
            shares = {slot: pixels[slot + 1] / patch**2 for slot in objects[scene]}
            slot = max(shares, key=lambda slot: shares[slot])
            assert bool(targets.owned[scene, place]) == (shares[slot] >= 0.1)
            assert bool(targets.centre[scene, place]) == ((row, column) in centres)
            if shares[slot] >= 0.1:
                owned += 1
                cell = [x[slot] * GRID // UNIT, y[slot] * GRID // UNIT]
                assert targets.values[scene, place].tolist() == attributes[slot] + cell
                middle = [2 * x[slot] / UNIT - 1, 2 * y[slot] / UNIT - 1]
                assert targets.place[scene, place].tolist() == pytest.approx(middle)
        pairs = {(attributes[slot][1], attributes[slot][3]) for slot in objects[scene]}
        for pair, shown in enumerate(targets.pairs[scene].tolist()):
            assert shown == (divmod(pair, len(words.SHAPES)) in pairs)
    assert owned > 20


def gradients(module: torch.nn.Module, losses: dict[str, Tensor]) -> dict[str, float]:
    trained = [value for name, value in losses.items() if not name.startswith("accuracy")]
    torch.stack(trained).sum().backward()
    return {
        name: 0.0 if p.grad is None else p.grad.abs().max().item()
        for name, p in module.named_parameters()
    }


def test_every_parameter_of_the_auxiliary_heads_gets_a_gradient(task):
    batch = batch_of(task, 8)
    vision, phrase = VisionHeads(16), PhraseHeads(16)
    patches = torch.randn(*batch.targets.owned.shape, 16)
    found = gradients(vision, vision.losses(patches, torch.randn(8, 16), batch.targets))
    assert min(found.values()) > 1e-5 * max(found.values())
    assert vision.patch.weight.grad.abs().amax(1).min() > 0  # every output of the layer
    assert vision.image.weight.grad.abs().amax(1).min() > 0
    states = torch.randn(*batch.questions.kind.shape, LENGTH, 16)
    losses = phrase.losses(states, batch.questions, batch.rendered.graph)
    found = gradients(phrase, losses)
    assert min(found.values()) > 1e-5 * max(found.values())
    assert phrase.read.weight.grad.abs().amax(1).min() > 0


def test_every_loss_is_reported_and_every_parameter_of_the_model_is_trained():
    torch.manual_seed(0)
    task = small().build()
    output = task.step(batch_of(task, 4), Progress(0, 4))
    assert {"answer", "attributes", "place", "flags", "pairs"} <= set(output.losses)
    assert {"attributes_of_phrase", "place_of_phrase", "number_of_phrase"} <= set(output.losses)
    assert {"accuracy", "accuracy_shape", "accuracy_shape_of_phrase"} <= set(output.metrics)
    torch.stack(list(output.losses.values())).sum().backward()
    for name, module in task.modules.items():
        sizes = {
            key: 0.0 if p.grad is None else p.grad.abs().max().item()
            for key, p in module.named_parameters()
        }
        # Softmax cancels the bias of the keys, which is the same for all scores of a query.
        unmoved = [key for key, size in sizes.items() if size <= 1e-5 * max(sizes.values())]
        assert all(key.endswith("k_proj.bias") for key in unmoved), (name, unmoved)


def test_tower_is_trained_alone_at_first():
    torch.manual_seed(0)
    task = small(vision_steps=2).build()
    first = next(task.batches(0, 0, 1, CPU))
    output = task.step(first, Progress(0, 4))
    assert set(output.losses) == {"attributes", "place", "flags", "pairs"}


# Batches


def fingerprint(batch: Batch) -> list[Tensor]:
    questions = batch.questions
    texts = [] if questions is None else [questions.words, questions.answer, questions.deciding]
    return [batch.rendered.rgb, batch.targets.values, batch.targets.place, *texts]


def assert_same(one: Batch, other: Batch) -> None:
    for left, right in zip(fingerprint(one), fingerprint(other), strict=True):
        assert torch.equal(left, right)


def test_batch_depends_only_on_its_step(monkeypatch):
    monkeypatch.setattr(vlm_train, "_AHEAD", 4)
    task = small(vision_steps=2).build()
    stream = task.batches(0, 0, 1, CPU)
    batches = [next(stream) for _ in range(7)]
    assert [batch.questions is None for batch in batches] == [True] * 2 + [False] * 5
    for step in (0, 1, 3, 4, 6):
        assert_same(next(task.batches(step, 0, 1, CPU)), batches[step])
    for rank in range(2):  # two processes get one half each
        part = slice(2 * rank, 2 * rank + 2)
        assert_same(next(task.batches(5, rank, 2, CPU)), batches[5].part(part, True))
    scenes = torch.cat([batch.rendered.graph.indices for batch in batches])
    assert scenes.unique().numel() == scenes.numel()  # no scene occurs twice
    other = small(**{"train.seed": 1}).build()
    new = next(other.batches(4, 0, 1, CPU)).rendered.graph.indices
    assert not torch.isin(new, scenes).any()


def test_training_and_validation_use_their_own_splits(monkeypatch):
    splits = record_splits(monkeypatch, vlm_train)
    task = small().build()
    stream = task.batches(0, 0, 1, CPU)
    for _ in range(3):
        next(stream)
    assert set(splits) == {"train"}
    splits.clear()
    with torch.no_grad():
        task.evaluate()
    assert set(splits) == {"validation"}


# Training


@pytest.fixture(scope="module")
def smoke_run(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    folder = tmp_path_factory.mktemp("smoke")
    command = [str(POLISH), "--smoke", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scenes.train_vlm", *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS,
    )
    return folder, done


def test_smoke_run_writes_a_model_that_loads(smoke_run):
    folder, done = smoke_run
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["last_step"], result["folder"]) == (4, "runs/vlm_polish_smoke")
    assert set(result["best"]) == {"accuracy", "accuracy_least"} | {
        f"accuracy_{family}" for family in FAMILIES
    }
    for bar in ("Loading weights", "Writing model shards"):
        assert bar not in done.stderr
    model, processor = load_vlm(folder / "runs" / "vlm_polish_smoke" / "model")
    assert model.dtype == torch.float32
    assert not model.training
    inputs = processor(
        images=torch.zeros(3, 56, 56, dtype=torch.uint8),
        text=PROMPT.format(question="is there any red ball?"),
        return_tensors="pt",
    )
    assert model.generate(**inputs, max_new_tokens=2, do_sample=False).shape[0] == 1


def test_written_model_has_the_last_weights(tmp_path, monkeypatch):
    """The first evaluation is patched to be the best, so that best and last differ."""
    scores = iter([1.0, 0.0])
    monkeypatch.setattr(VlmTask, "evaluate", lambda _: {"accuracy_least": next(scores)})
    config = small(
        **{"train.out": tmp_path, "train.monitor": "accuracy_least", "train.mode": "max"}
    )
    result = vlm_train.train_vlm(config)
    assert (result.best_step, result.last_step) == (2, 4)
    last, best = (build_vlm(config.model) for _ in range(2))
    load_weights(result.folder / "last", {"vlm": last})
    load_weights(result.folder / "best", {"vlm": best})
    written = load_vlm(result.folder / "model")[0].state_dict()
    expected = {key: value.half().float() for key, value in last.state_dict().items()}
    torch.testing.assert_close(dict(written), expected, rtol=0, atol=0)
    old, new = best.state_dict(), last.state_dict()
    moved = [key for key, value in old.items() if not value.equal(new[key])]
    assert len(moved) > len(expected) / 2


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_builds(path):
    config = load_config(VlmTrainConfig, path)
    with torch.device("meta"):
        whole = config.replace({"compile": False}).build()
    assert sum(p.numel() for p in whole.model.parameters()) < 10e6
    tiny = config.smoke().build()
    for batch in (next(tiny.batches(step, 0, 1, CPU)) for step in (0, 3)):
        losses = tiny.step(batch, Progress(0, 4)).losses
        assert all(torch.isfinite(value) for value in losses.values())


# Files


def test_model_is_saved_in_half_precision_and_small_shards(tmp_path):
    config = VlmConfig()
    model = build_vlm(config)
    save_vlm(model, build_processor(config), tmp_path)
    assert model.dtype == torch.float32  # the model in memory is unchanged
    shards = list(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    assert max(path.stat().st_size for path in shards) <= 10_000_000
    loaded, processor = load_vlm(tmp_path)
    assert loaded.dtype == torch.float32
    expected = {key: value.half().float() for key, value in model.state_dict().items()}
    torch.testing.assert_close(dict(loaded.state_dict()), expected, rtol=0, atol=0)
    assert processor.tokenizer.get_vocab() == build_processor(config).tokenizer.get_vocab()
    assert processor.image_processor.crop_size["height"] == config.image_size
    with pytest.raises(InputError, match="train_vlm"):
        load_vlm(tmp_path / "nothing here")


def test_chat_template_gives_the_prompt():
    question = "is there any red ball?"
    content = [{"type": "image"}, {"type": "text", "text": question}]
    written = build_processor(VlmConfig()).apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True
    )
    assert written == PROMPT.format(question=question)
