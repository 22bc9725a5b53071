"""Training of the in-context learner: packed lessons, auxiliary losses, smoke run."""

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.shots import train_learner
from benchmarks.shots.config import LearnerConfig
from benchmarks.shots.packing import pack
from benchmarks.shots.readouts import (
    aim_loss,
    object_patches,
    read_out,
    word_losses,
    word_metrics,
)
from benchmarks.shots.train_learner import LearnerTask
from eligo.cli import run_script
from eligo.config import load_config
from eligo.scenes.phrases import VOCABULARY, to_text
from eligo.scenes.vlm import FIRST_WORD, IMAGE, build_processor, build_vlm
from eligo.scenes.vlm_heads import patch_targets
from eligo.shots.hosts.forward import span_logprobs
from eligo.shots.hosts.prompt import Turn
from eligo.shots.hosts.reader import Reader
from eligo.shots.learner.lessons import EXAMPLES, draw_lessons
from eligo.train import Progress

FULL = load_config(LearnerConfig, Path(train_learner.__file__).with_name("learner.yaml"))
TINY = FULL.smoke()
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def lessons():
    return draw_lessons(TINY.scenes, "train", torch.arange(12), CPU)


@pytest.mark.parametrize("which", [(), (0, 1), (1, 3), (2,), (0, 1, 2, 3)], ids=str)
def test_packed_lessons_match_the_prompts_of_a_host(
    lessons, tmp_path: Path, which: tuple[int, ...]
):
    """The same tokens, positions and answers as the prompt of the processor."""
    torch.manual_seed(0)
    task = LearnerTask(TINY)
    model, processor = build_vlm(TINY.model).eval(), build_processor(TINY.model)
    model.load_state_dict(task.model.state_dict())
    shown = torch.tensor([demo in which for demo in range(EXAMPLES)]).expand(len(lessons), -1)
    batch = task.make("train", torch.arange(12), CPU, 0.0)._replace(lessons=lessons, shown=shown)
    task.model.eval()
    with torch.no_grad():
        features = task.encode_images(batch).features
        packed = pack(lessons, shown, features.shape[1])
        answers = task.answer(features, packed).answer.log_softmax(-1)

    def turn(place: int, text, answer: int) -> Turn:
        path = tmp_path / f"{place}.png"
        Image.fromarray(lessons.rendered.rgb[place].permute(1, 2, 0).numpy()).save(path)
        return Turn(to_text(text.tolist()), VOCABULARY[answer], str(path))

    lesson, host = 1, Reader(model, processor)
    first = lesson * (EXAMPLES + 1)
    shots = [
        turn(first + d, lessons.example_text[lesson, d], int(lessons.example_word[lesson, d]))
        for d in which
    ]
    for number in (0, 5):
        answer = int(lessons.answer[lesson, number])
        query = turn(first + EXAMPLES, lessons.text[lesson, number], answer)
        inputs = host.encode([shots], [query])
        place = int(packed.answer_places[lesson, number])
        assert int(packed.positions[lesson, place]) == inputs["input_ids"].shape[1] - 1
        visible = packed.mask[lesson, 0, place]
        assert packed.tokens[lesson][visible].tolist() == inputs["input_ids"][0].tolist()
        token = int(packed.answers[lesson, number])
        expected = span_logprobs(model, inputs, [np.array([token])])
        assert float(answers[lesson, number, token]) == pytest.approx(float(expected), abs=1e-4)


def test_meanings_come_from_clear_examples(lessons):
    task = LearnerTask(TINY)
    batch = task.make("train", torch.arange(12), CPU, 0.0)
    clear, (meant, known) = batch.clear, batch.meanings()
    packed = pack(batch.lessons, batch.shown, 16)
    for lesson, number, place in known.nonzero().tolist():
        token = int(packed.tokens[lesson, packed.name_places[lesson, number, place]]) - 7
        demo = batch.lessons.example_word[lesson].tolist().index(token)
        assert clear[lesson, demo]
        assert int(meant[lesson, number, place]) == int(batch.lessons.example_value[lesson, demo])
    assert (batch.decided() == (known.all(-1) & batch.lessons.valid)).all()


def test_head_logits_match_the_models_attention(lessons):
    torch.manual_seed(0)
    task = LearnerTask(TINY)
    task.model.eval()
    task.model.model.language_model.set_attn_implementation("eager")
    shown = torch.ones(len(lessons), EXAMPLES, dtype=torch.bool)
    shown[1, 3] = False
    batch = task.make("train", torch.arange(12), CPU, 0.0)._replace(lessons=lessons, shown=shown)
    with torch.no_grad():
        features = task.encode_images(batch).features
        packed = pack(lessons, shown, features.shape[1])
        vision = task.model.model.multi_modal_projector(features).view(len(lessons), -1, 32)
        text = task.model.model.language_model.embed_tokens(packed.tokens)
        states = task.model.model.language_model(
            inputs_embeds=text.masked_scatter((packed.tokens == IMAGE)[..., None], vision),
            attention_mask=torch.where(packed.mask, 0.0, -torch.inf),
            position_ids=packed.positions, output_attentions=True, output_hidden_states=True,
        )  # fmt: skip
        read = read_out(task.words, task.model.model.language_model, states.hidden_states, packed)
    layer = round(3 / 8 * TINY.model.layers)
    for lesson, number, place in ((0, 0, 0), (1, 5, 1), (7, 3, 0)):
        name = packed.name_places[lesson, number, place]
        looks = states.attentions[layer][lesson, 0, name, packed.word_places[lesson]].log()
        found = read.pointed[lesson, number, place]
        visible = shown[lesson]
        assert torch.allclose((found - found[0])[visible], (looks - looks[0])[visible], atol=1e-4)
        shots = packed.tokens[lesson, packed.word_places[lesson]]
        assert read.same[lesson, number, place].tolist() == [
            int(word) == int(packed.tokens[lesson, name]) for word in shots
        ]

    aim, gather, seek = 0, *(round(n / 8 * TINY.model.layers) - 1 for n in (6, 7))
    for lesson, demo in ((0, 0), (1, 2), (7, 3)):
        noun, patches = packed.noun_places[lesson, demo], packed.example_patches[lesson, demo]
        assert (packed.tokens[lesson, patches] == IMAGE).all()
        named = lessons.example_text[lesson, demo, 4]
        assert int(packed.tokens[lesson, noun]) == int(named) + FIRST_WORD
        looks = states.attentions[aim][lesson, 0, noun, patches].log()
        found = read.aimed[lesson, demo]
        assert torch.allclose(found - found[0], looks - looks[0], atol=1e-4)
    for lesson, number in ((0, 0), (1, 5)):
        mark, patches = packed.answer_places[lesson, number] - 1, packed.question_patches[lesson]
        assert VOCABULARY[int(packed.tokens[lesson, mark]) - FIRST_WORD] == "?"
        looks = states.attentions[seek][lesson, 0, mark, patches].log()
        found = read.sought[lesson, number]
        assert torch.allclose(found - found[0], looks - looks[0], atol=1e-4)
        names = packed.name_places[lesson, number]
        looks = states.attentions[gather][lesson, 0, mark, names].log()
        assert torch.allclose(read.gathered[lesson, number], looks, atol=1e-4)


def test_object_patches_match_the_instance_map(lessons):
    targets = patch_targets(lessons.rendered, 14)
    of_example, of_question = object_patches(lessons, targets)
    instances, graph = lessons.rendered.instances, lessons.rendered.graph
    for lesson in range(len(lessons)):
        for demo in range(EXAMPLES):
            scene = lesson * (EXAMPLES + 1) + demo
            for patch in of_example[lesson, demo].nonzero().flatten().tolist():
                row, column = divmod(patch, 4)
                tile = instances[scene, row * 14 :, column * 14 :][:14, :14]
                alike = (graph.attributes[scene] == graph.attributes[scene, 0]).all(-1)
                assert any((tile == slot + 1).any() for slot in alike.nonzero().flatten())
        valid = of_question[lesson][lessons.valid[lesson]]
        meant = lessons.meant[lesson][lessons.valid[lesson]]
        for one, other in combinations(range(len(valid)), 2):
            assert torch.equal(valid[one], valid[other]) or not torch.equal(
                meant[one], meant[other]
            )
            if not torch.equal(meant[one], meant[other]):
                assert not (valid[one] & valid[other]).any()
    assert of_example.any(-1).float().mean() > 0.9  # some objects are hidden


def test_aim_loss_by_hand():
    targets = torch.tensor([[[True, True, False], [False, False, False]]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    right, even = torch.tensor([9.0, 9.0, -9.0]), torch.zeros(3)
    assert aim_loss(right.expand(1, 2, 3), targets, mask) < 1e-6
    expected = torch.tensor(
        1.5
    ).log()  # a third of the attention misses; the other row has no object
    torch.testing.assert_close(aim_loss(even.expand(1, 2, 3), targets, mask), expected)
    assert aim_loss(even.expand(1, 2, 3), targets, ~mask) == 0


def test_loss_and_metric_of_both_meanings():
    """Even attention to both words and two likely values are best; unknown words do not count."""
    task = LearnerTask(TINY)
    batch = task.make("train", torch.arange(12), CPU, 0.0, whole=True)
    meanings = batch.meanings()
    features, targets, _ = task.encode_images(batch)
    read = task.answer(features, pack(batch.lessons, batch.shown, features.shape[1])).read
    values = torch.full_like(read.held, -20.0).scatter(2, meanings.values, 0.0)
    best = read._replace(held=values, gathered=torch.full_like(read.gathered, 0.5).log())
    losses = word_losses(best, batch, targets)
    assert float(losses["gathered"]) == pytest.approx(math.log(2))
    assert float(losses["held"]) == pytest.approx(math.log(2), abs=1e-5)
    assert word_metrics(best, batch, targets)["holding"] == 1
    one = values.scatter(2, meanings.values[..., :1], -30.0)
    assert word_metrics(best._replace(held=one), batch, targets)["holding"] == 0
    known = meanings.known
    other = torch.where(known, best.gathered, -50.0)
    unmoved = word_losses(best._replace(gathered=other), batch, targets)
    assert (~known).any()
    assert torch.equal(unmoved["gathered"], losses["gathered"])


def test_every_parameter_gets_a_gradient():
    torch.manual_seed(0)
    task = LearnerTask(TINY)
    batch = next(task.batches(TINY.vision_steps, 0, 1, CPU))
    output = task.step(batch, Progress(TINY.vision_steps, 4))
    signals = {"aimed", "named", "seen", "bound", "pointed", "looked"}
    signals |= {"gathered", "held", "sought", "found"}
    assert signals | {"answer", "end"} <= set(output.losses)
    sum(output.losses.values()).backward()
    for name in ("word_heads", "vlm"):
        for path, parameter in task.modules[name].named_parameters():
            if "post_layernorm" in path or "vision_tower" in path:
                continue  # the last layer of the tower is unused, as in every LLaVA
            assert parameter.grad is not None, path
            assert parameter.grad.abs().max() > 0, path


def test_compiled_layers_give_the_same_losses(monkeypatch):
    plainly = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda f, **options: plainly(f, backend="eager", **options)
    )
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        task = LearnerTask(TINY.replace({"compile": compiled}))
        batch = next(task.batches(TINY.vision_steps, 0, 1, CPU))
        losses = task.step(batch, Progress(TINY.vision_steps, 4)).losses
        sum(losses.values()).backward()
        weight = task.model.model.language_model.layers[0].self_attn.q_proj.weight
        found.append({**losses, "gradient": weight.grad})
    torch.testing.assert_close(*found)


def test_batches_depend_only_on_the_step():
    task = LearnerTask(TINY)
    later = task.batches(1, 0, 1, CPU)
    whole = task.batches(0, 0, 1, CPU)
    next(whole)
    one, other = next(whole), next(later)
    assert torch.equal(one.lessons.rendered.rgb, other.lessons.rendered.rgb)
    assert torch.equal(one.shown, other.shown)


def test_smoke_run_writes_a_model(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run_script(train_learner.run, ["--smoke", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    steps = {"aiming", "seen", "binding", "pointing", "lookup", "holding"}
    steps |= {"seeking", "found"}
    shares = steps | {"accuracy", "zero_shot", "chance", "pair", "one", "plain"}
    assert shares <= set(found["best"])
    assert (tmp_path / "runs/shots_learner_smoke/model/config.json").is_file()


def test_metric_names_match_the_metrics():
    task = LearnerTask(TINY)
    for module in task.modules.values():
        module.eval()
    assert set(task.metric_names()) == set(task.evaluate())


def test_model_size_is_at_most_7_mb():
    model = build_vlm(FULL.model)
    size = sum(p.numel() for p in model.parameters()) * 2
    assert size <= 7e6
