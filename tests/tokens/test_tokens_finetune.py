"""A vision-language model from parts: `tokens build` and `tokens finetune`."""

import json
from pathlib import Path

import pytest
import torch
from photo_parts import make_language, make_photos, make_tower
from PIL import Image

from eligo.cli import main
from eligo.errors import InputError
from eligo.images import open_image
from eligo.pretrained.hosts import load_host
from eligo.tokens import METHODS
from eligo.tokens.config import FinetuneConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.data.conversations import Conversations, Photo, Turn, read_photos
from eligo.tokens.data.prompts import build_prompt, encode
from eligo.tokens.hosts import host_of
from eligo.tokens.inference.load import floats_of
from eligo.tokens.model.assemble import assemble, resize_positions
from eligo.tokens.training.finetune import FinetuneTask


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    for kind in ("dinov2", "clip", "siglip"):
        make_tower(kind, folder / kind)
    make_language(folder / "language")
    make_photos(folder / "photos")
    return folder


@pytest.fixture(scope="module")
def base(parts: Path) -> Path:
    words = [parts / "dinov2", "--language", parts / "language", "--out", parts / "base"]
    assert main(["tokens", "build", "--tower", *map(str, words), "--json"]) == 0
    return parts / "base"


def config_of(parts: Path, base: Path, out: Path, **changes) -> FinetuneConfig:
    photos = parts / "photos"
    config = FinetuneConfig(
        host={"model": str(base)},
        data={
            "images": photos / "images",
            "questions": photos / "questions.jsonl",
            "captions": photos / "captions.json",
        },
        lora={"rank": 4, "alpha": 8, "dropout": 0.1},
        epochs=2,
    )
    sizes = {
        "train.out": out, "train.batch_size": 6, "train.evaluate_every": 3,
        "train.checkpoint_every": 3, "train.log_every": 1,
    }  # fmt: skip
    return config.replace(sizes | changes)


@pytest.mark.parametrize("kind", ["dinov2", "clip", "siglip"])
def test_towers_give_their_own_features(parts: Path, kind: str):
    """The vision tokens are the projected hidden state of the tower, without [CLS]."""
    model, processor = assemble(str(parts / kind), str(parts / "language"))
    image = open_image(parts / "photos" / "images" / "0.png")
    pixels = processor.image_processor(image, return_tensors="pt")["pixel_values"]
    tower = model.model.vision_tower
    hidden = tower(pixels, output_hidden_states=True).hidden_states[-2]
    expected = model.model.multi_modal_projector(hidden[:, -16:])
    found = model.model.get_image_features(pixel_values=pixels).pooler_output[0]
    torch.testing.assert_close(found, expected[0])
    prompt = build_prompt(processor, "what colour is the ball?")
    inputs = encode(processor, [image], [prompt])
    assert (inputs["input_ids"] == model.config.image_token_id).sum() == 16
    assert model.generate(**inputs, max_new_tokens=3).shape[1] == inputs["input_ids"].shape[1] + 3


def test_another_image_size_interpolates_the_positions(parts: Path):
    model, processor = assemble(str(parts / "dinov2"), str(parts / "language"), image_size=28)
    assert model.config.image_seq_length == 4
    table = torch.arange(17.0).reshape(1, 17, 1)
    assert resize_positions(table, 4, num_prefix=1).equal(table)
    smaller = resize_positions(table, 2, num_prefix=1).flatten()
    assert smaller[0] == 0
    assert smaller[1:].diff().gt(0).all()
    image = open_image(parts / "photos" / "images" / "0.png")
    inputs = encode(processor, [image], [build_prompt(processor, "?")])
    assert inputs["pixel_values"].shape == (1, 3, 28, 28)
    model(**inputs)


def test_several_feature_layers_are_concatenated(parts: Path):
    names = str(parts / "dinov2"), str(parts / "language")
    model, processor = assemble(*names, feature_layer=(1, 3))
    pixels = encode(processor, [open_image(parts / "photos" / "images" / "0.png")], ["<image>"])
    with torch.no_grad():
        states = model.model.vision_tower(
            pixels["pixel_values"], output_hidden_states=True
        ).hidden_states
        expected = torch.cat([states[1][:, 1:], states[3][:, 1:]], -1)
        host = host_of(model)
        torch.testing.assert_close(host.features(pixels["pixel_values"]), expected)
        assert host.feature_width == HostShape.of(model).feature_width == 2 * 16
        tokens = model.get_image_features(pixels["pixel_values"]).pooler_output[0]
        torch.testing.assert_close(tokens, host.project(expected)[0])


def test_a_packed_turn_is_its_prompt_alone(parts: Path, base: Path, tmp_path):
    """Hidden states of a turn equal those of the single prompt, answer included."""
    task = FinetuneTask(config_of(parts, base, tmp_path))
    task.to(torch.device("cpu"))
    for module in task.modules.values():
        module.eval()
    with torch.no_grad():
        for layer in task.adapter.values():
            layer["b"].weight.normal_()  # LoRA starts as the identity
        batch = task.validation.collate([task.validation[row] for row in range(3)])
        hidden = task._hidden(batch, "validation")
        for row in range(3):
            photo = task.held_out[row]
            for number, turn in enumerate(photo.turns, start=1):
                text = build_prompt(task.processor, turn.question) + f" {turn.answer}"
                inputs = encode(task.processor, [open_image(photo.image)], [text])
                alone = task.model.model(**floats_of(task.model, inputs)).last_hidden_state[0]
                at = (batch.turn[row] == number).nonzero().flatten()
                count = len(at) - 1  # without the end of text
                torch.testing.assert_close(
                    hidden[row, at[:count]], alone[-count:], atol=1e-5, rtol=1e-4
                )


def test_training_rows_are_one_conversation(parts: Path, base: Path, tmp_path):
    """Hidden states equal those of the chat that the processor renders."""
    task = FinetuneTask(config_of(parts, base, tmp_path, **{"data.flip": False}))
    task.to(torch.device("cpu"))
    torch.manual_seed(3)
    row = task.training[5]
    torch.manual_seed(3)
    turns = task.training.turns(5)
    batch = task.training.collate([task.training[0], row])
    assert batch.attention_mask is None
    messages = []
    for number, turn in enumerate(turns):
        content = [{"type": "text", "text": turn.question}]
        content = [{"type": "image"}, *content] if number == 0 else content
        messages.append({"role": "user", "content": content})
        answer = [{"type": "text", "text": turn.answer}]
        messages.append({"role": "assistant", "content": answer})
    text = task.processor.apply_chat_template(messages)
    inputs = encode(task.processor, [open_image(task.photos[5].image)], [text])
    ids = inputs["input_ids"][0]
    assert torch.equal(batch.input_ids[1, : len(ids)], ids)
    with torch.no_grad():
        for module in task.modules.values():
            module.eval()
        hidden = task._hidden(batch, "training")[1, : len(ids)]
        alone = task.model.model(**floats_of(task.model, inputs)).last_hidden_state[0]
    torch.testing.assert_close(hidden, alone, atol=1e-5, rtol=1e-4)


def test_turns_come_in_another_order_and_photos_mirrored(parts: Path, base: Path, tmp_path):
    task = FinetuneTask(config_of(parts, base, tmp_path))
    count = len(task.photos)
    orders, rows = set(), set()
    for seed in range(20):
        torch.manual_seed(seed)
        orders.add(tuple(turn.kind for turn in task.training.turns(0)))
        rows.add(task.training[0][0])
    assert len(orders) > 3
    assert rows == {0, count}
    image = open_image(task.photos[0].image).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = task.processor.image_processor(image, return_tensors="pt")["pixel_values"][0]
    assert torch.equal(task.training.pixels(count), pixels)
    assert not torch.equal(task.training.pixels(0), pixels)
    task.to(torch.device("cpu"))
    assert len(task.features["training"]) == 2 * count
    assert len(task.features["validation"]) == len(task.held_out)


@pytest.mark.parametrize(("text", "same"), [("a ball left of a box", True), ("bright", False)])
def test_photos_with_sides_are_not_mirrored(base: Path, text: str, same: bool):
    _, processor = load_host(str(base))
    photo = Photo(Path("1.jpg"), (Turn("is there a ball?", "yes"),), (text,))
    rows = Conversations([photo], processor, caption_prompt="?", with_pixels=False, flip=True)
    drawn = set()
    for seed in range(20):
        torch.manual_seed(seed)
        drawn.add(rows[0][0])
    assert drawn == ({0} if same else {0, 1})


def test_labels_are_the_answer_and_the_end(parts: Path, base: Path, tmp_path):
    config = config_of(parts, base, tmp_path)
    _, processor = load_host(str(base))
    photos = read_photos(config.data, "train")
    rows = Conversations(
        photos, processor, caption_prompt="describe the picture.", with_pixels=False
    )
    batch = rows.collate([rows[0]])
    labels = batch.labels[0][batch.labels[0] != -100]
    texts = processor.tokenizer.decode(labels).split("</s>")
    assert [text.strip() for text in texts[:2]] == ["yes", "red"]
    assert texts[2].strip() in ("a red ball", "there is a red ball")


def test_finetune_writes_a_host_and_its_parts(parts: Path, base: Path, tmp_path, capsys):
    file = tmp_path / "run.yaml"
    config = config_of(parts, base, tmp_path)
    file.write_text(json.dumps(config.model_dump(mode="json")))
    assert main(["tokens", "finetune", str(file), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"accuracy", "accuracy/exist", "accuracy/colour", "loss"} <= set(result["best"])
    model, _ = load_host(result["host"], dtype="float32")
    words = ["--language", parts / "language", "--parts", result["parts"], "--out", tmp_path / "x"]
    words = ["tokens", "build", "--tower", str(parts / "dinov2"), *map(str, words), "--json"]
    assert main(words) == 0
    again, _ = load_host(str(tmp_path / "x"), dtype="float32")
    untrained, _ = load_host(str(base), dtype="float32")
    weights = model.state_dict()
    for name, value in again.state_dict().items():
        torch.testing.assert_close(value, weights[name], atol=1e-2, rtol=2e-2)
    trained = [n for n, value in untrained.state_dict().items() if not value.equal(weights[n])]
    assert len(trained) == 4 + 7 * 3  # projector, and seven linear layers of each layer


def test_features_kept_in_memory_give_the_same_training(parts: Path, base: Path, tmp_path):
    from eligo.train import fit

    losses = []
    for name, size in (("kept", 16), ("fresh", 0)):
        changes = {
            "train.name": name,
            "data.cache_gb": size,
            "train.total_steps": 3,
            "epochs": None,
        }
        config = config_of(parts, base, tmp_path, **changes)
        result = fit(FinetuneTask(config), config.train)
        lines = (result.folder / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        losses.append([row["loss"] for row in rows if "loss" in row])
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_photo_that_cannot_be_read_is_one_line(parts: Path, base: Path, tmp_path, workers: int):
    """Features are computed before the images are checked, by workers."""
    make_photos(tmp_path / "photos")
    (tmp_path / "photos" / "images" / "2.png").write_bytes(b"no image")
    changes = {"data.num_workers": workers, "data.images": tmp_path / "photos" / "images"}
    task = FinetuneTask(config_of(parts, base, tmp_path, **changes))
    with pytest.raises(InputError, match=r"2\.png: cannot be read as an image"):
        task.to(torch.device("cpu"))


def test_bad_parts_are_one_line(parts: Path, tmp_path):
    language = str(parts / "language")
    with pytest.raises(InputError, match=r"tower: .* holds a llama, expected CLIP"):
        assemble(language, language)
    with pytest.raises(InputError, match="multiple of 14"):
        assemble(str(parts / "clip"), language, image_size=30)
    with pytest.raises(InputError, match="feature_layer: got 9"):
        assemble(str(parts / "clip"), language, feature_layer=9)
    make_tower("clip", tmp_path / "bare")
    (tmp_path / "bare" / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"has no preprocessor_config.json"):
        assemble(str(tmp_path / "bare"), language)


def test_cls_attention_of_dinov2_reaches_the_methods(parts: Path):
    """VisionZip on a DINOv2 tower keeps the tokens to which [CLS] attends most."""
    from eligo.tokens import Plan, Stage1, build, pruning

    model, processor = assemble(str(parts / "dinov2"), str(parts / "language"))
    image = open_image(parts / "photos" / "images" / "0.png")
    inputs = encode(processor, [image], [build_prompt(processor, "what colour is the ball?")])
    tower = model.model.vision_tower
    tower.set_attn_implementation("eager")
    output = tower(inputs["pixel_values"], output_attentions=True)
    row = output.attentions[-2].mean(1)[0, 0, 1:]  # the layer that gives the features
    tower.set_attn_implementation("sdpa")
    with pruning(model, Plan(Stage1(build("visionzip", contextual_ratio=0.0), 4))) as trace:
        model(**inputs)
    kept = trace.stages[0].selection.indices[0].sort().values
    assert kept.tolist() == row.topk(4).indices.sort().values.tolist()


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"oracle"}))
def test_every_method_runs_on_a_dinov2_tower(parts: Path, base: Path, name: str):
    from eligo.tokens import predict

    image = parts / "photos" / "images" / "0.png"
    found = predict(image, "what colour is the ball?", model=base, method=name, budget=4)
    assert found.summary()


def test_missing_peft_is_one_line(parts: Path, base: Path, tmp_path, monkeypatch):
    from eligo.errors import MissingExtraError

    monkeypatch.setattr("eligo.tokens.training.finetune.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"tokens finetune: needs peft.*eligo\[finetune\]"):
        FinetuneTask(config_of(parts, base, tmp_path))
