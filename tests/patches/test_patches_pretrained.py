"""Encoders that people have: CLIP, SigLIP, models of sentence-transformers and others like BERT."""

import shutil
from pathlib import Path

import pytest
import torch
from patch_models import karpathy, text_folder, vision_folder
from transformers import AutoTokenizer, CLIPModel, SiglipModel

from eligo.errors import InputError
from eligo.patches.config import PatchesTrainConfig, RetrievalConfig
from eligo.patches.model.retrieval_model import RetrievalModel
from pretrained_models import (
    CLIP_COLOURS,
    LIKE_BERT,
    like_bert,
    sentence_transformer,
    whole_model,
)

TEXTS = ["a red ball", "two boxes on the floor", "dog"]
STOCK = {"clip": CLIPModel, "siglip": SiglipModel}


def build(vision: str | None = None, text: str | None = None, **encoders) -> RetrievalModel:
    named = {"vision": vision, "text": text, "embed_dim": 16, "max_words": 16, **encoders}
    return RetrievalModel.build(RetrievalConfig.model_validate({"encoders": named})).eval()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for kind in STOCK:
        whole_model(folder, kind)
    return folder


def half(whole: Path, kind: str, part: str, folder: Path) -> str:
    """The vision or text half alone, as its own class saves it."""
    model = STOCK[kind].from_pretrained(whole / kind)
    getattr(model, f"{part}_model").save_pretrained(folder)
    for file in (whole / kind).iterdir():
        if not file.name.startswith(("model", "config")):
            shutil.copy(file, folder)
    return str(folder)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("kind", "prefix"), [("clip", 1), ("siglip", 0)])
def test_patches_are_states_of_the_vision_half(whole, tmp_path, kind, prefix, alone):
    folder = half(whole, kind, "vision", tmp_path / "half") if alone else str(whole / kind)
    model = build(folder)
    assert model.image_encoder.layout.num_prefix == prefix
    assert model.grid_hw == (4, 4)
    mean, std = CLIP_COLOURS if kind == "clip" else ([0.5] * 3, [0.5] * 3)
    assert model.config.encoders.image_mean == tuple(mean)
    image = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    pixels = (image / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    stock = STOCK[kind].from_pretrained(whole / kind).eval()
    with torch.no_grad():
        states = stock.vision_model(pixel_values=pixels).last_hidden_state
        expected = model.image_encoder.head(states)
    tokens = model.encode_images(image)
    assert tokens.shape == (2, prefix + 16, 16)
    assert torch.allclose(tokens, expected, atol=1e-5)
    assert torch.equal(model.image_side(tokens).patches, tokens[:, prefix:])


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_other_image_sizes_interpolate_positions(whole, kind):
    model = build(str(whole / kind), image_size=48)
    assert model.grid_hw == (6, 6)
    assert model.encode_images(torch.zeros(1, 3, 48, 48, dtype=torch.uint8)).shape[1] in (36, 37)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_words_are_states_of_the_text_half(whole, tmp_path, kind, alone):
    folder = half(whole, kind, "text", tmp_path / "half") if alone else str(whole / kind)
    model = build(text=folder, max_words=24)
    found = model.encode_texts(TEXTS)
    tokenizer = AutoTokenizer.from_pretrained(whole / kind)
    stock = STOCK[kind].from_pretrained(whole / kind).eval()
    for text, words, mask in zip(TEXTS, found.words, found.mask, strict=True):
        padding = {"padding": "max_length", "max_length": 24} if kind == "siglip" else {}
        ids = tokenizer(text, return_tensors="pt", **padding)["input_ids"]
        with torch.no_grad():
            states = stock.text_model(input_ids=ids).last_hidden_state[0]
        ends = {tokenizer.bos_token_id, tokenizer.eos_token_id}
        is_word = torch.tensor([number not in ends for number in ids[0].tolist()])
        assert torch.allclose(words[mask], model.text_encoder.head(states[is_word]), atol=1e-5)
        assert len(model.text_encoder.pieces(text)) == int(mask.sum()) == int(is_word.sum())
    assert model.text_encoder.pieces("a dog")[0] == "a"  # without CLIP's mark of a word's end


def test_a_text_without_words_keeps_its_special_tokens(whole):
    model = build(text=str(whole / "clip"))
    found = model.encode_texts(["\u200b", "a dog"])  # CLIP's tokenizer drops the first
    assert found.mask.any(1).all()
    assert found.words.isfinite().all()


@pytest.mark.parametrize("kind", LIKE_BERT)
def test_encoders_like_bert(tmp_path, kind):
    model = build(text=like_bert(tmp_path, kind))
    alone, beside = model.encode_texts(TEXTS[:1]), model.encode_texts(TEXTS)
    assert model.text_encoder.pieces(TEXTS[0]) == TEXTS[0].split()
    assert beside.mask.sum(1).tolist() == [3, 5, 1]
    assert torch.allclose(beside.words[0][beside.mask[0]], alone.words[0][alone.mask[0]], atol=1e-5)
    long = model.encode_texts(["dog " * 40])
    assert int(long.mask.sum()) == 14  # 16 with the special tokens
    model.save_pretrained(tmp_path / "model")
    loaded = RetrievalModel.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded.encode_texts(TEXTS).words, beside.words)
    assert torch.equal(loaded.encode_texts(TEXTS).mask, beside.mask)


def test_positions_counted_from_the_padding_id(tmp_path):
    with pytest.raises(InputError, match="reads at most 16 word pieces"):
        build(text=like_bert(tmp_path, "roberta"), max_words=17)
    assert build(text=like_bert(tmp_path, "distilbert"), max_words=18)


@pytest.mark.parametrize("nested", [False, True])
def test_model_of_sentence_transformers(tmp_path, nested):
    model = build(text=sentence_transformer(tmp_path, nested=nested))
    assert model.text_encoder.pieces("a wet dog") == ["a", "wet", "dog"]
    assert model.config.encoders.special_words is False
    folder = tmp_path / "minilm" / ("0_Transformer" if nested else "")
    from transformers import BertModel

    tokenizer, stock = AutoTokenizer.from_pretrained(folder), BertModel.from_pretrained(folder)
    with torch.no_grad():
        states = stock.eval()(**tokenizer("a wet dog", return_tensors="pt")).last_hidden_state
    found = model.encode_texts(["a wet dog", "two boxes on the floor"])
    expected = model.text_encoder.head(states[0, 1:-1])  # without [CLS] and [SEP]
    assert torch.allclose(found.words[0][found.mask[0]], expected, atol=1e-5)


def test_special_words_of_a_bert_stay_and_can_be_left_out(tmp_path):
    text = text_folder(tmp_path)
    assert build(text=text).text_encoder.pieces("a gem") == ["[CLS]", "a", "gem", "[SEP]"]
    without = build(text=text, special_words=False)
    assert without.text_encoder.pieces("a gem") == ["a", "gem"]
    without.save_pretrained(tmp_path / "model")
    loaded = RetrievalModel.from_pretrained(tmp_path / "model")
    assert loaded.text_encoder.pieces("a gem") == ["a", "gem"]


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_saved_model_is_self_contained(whole, tmp_path, kind):
    shutil.copytree(whole / kind, tmp_path / "start")
    model = build(str(tmp_path / "start"), str(tmp_path / "start"))
    model.save_pretrained(tmp_path / "model")
    shutil.rmtree(tmp_path / "start")
    loaded = RetrievalModel.from_pretrained(tmp_path / "model")
    image = torch.randint(256, (2, 3, 40, 50), dtype=torch.uint8)
    assert torch.equal(
        loaded.match(loaded.image_side(image), loaded.text_side(TEXTS)),
        model.match(model.image_side(image), model.text_side(TEXTS)),
    )


def test_folders_without_tokenizer_or_image_processor_are_refused(whole, tmp_path):
    for kind in STOCK:
        folder = tmp_path / kind
        shutil.copytree(whole / kind, folder)
        (folder / "preprocessor_config.json").unlink()
        with pytest.raises(InputError, match=r"holds no image processor \(preprocessor_config"):
            build(str(folder))
        with pytest.raises(InputError, match="holds no image processor"):
            RetrievalModel.from_pretrained(folder)
        assert build(str(folder), image_mean=(0.5,) * 3, image_std=(0.5,) * 3)
        (folder / "tokenizer.json").unlink()
        (folder / "model.safetensors").unlink()  # weights are read later
        for refused in (
            lambda folder=folder: build(str(folder), str(folder)),
            lambda folder=folder: RetrievalModel.from_pretrained(folder),
        ):
            with pytest.raises(InputError, match=r"holds no tokenizer \(none of tokenizer\.json"):
                refused()


def test_other_models_are_refused(tmp_path):
    vision = vision_folder(tmp_path, "vit")
    with pytest.raises(InputError, match=r"expected bert, camembert, .*or a whole CLIP"):
        build(text=_with_tokenizer(vision, tmp_path))
    with pytest.raises(InputError, match=r"holds a vit model; expected a retrieval model"):
        RetrievalModel.from_pretrained(vision)


def _with_tokenizer(vision: str, folder: Path) -> str:
    shutil.copy(Path(text_folder(folder)) / "tokenizer.json", vision)
    return vision


def test_texts_longer_than_clip_reads(whole):
    """The limit of dense captions counts only for models that use them."""
    encoders = {"vision": str(whole / "clip"), "text": str(whole / "clip"), "max_words": 24}
    config = RetrievalConfig.model_validate({"encoders": encoders})
    assert RetrievalModel.build(config).config.encoders.max_dense_words == 24
    config = config.replace({"match.dense": True})
    with pytest.raises(InputError, match="max_dense_words 160: the text encoder reads at most 24"):
        RetrievalModel.build(config)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_training_starts_from_both_halves(whole, tmp_path, kind):
    from eligo.patches.training.task import PatchesTask, train_model
    from eligo.train.optimization import parameter_groups

    captions, images = karpathy(tmp_path, ("train",) * 6 + ("val", "val"))
    encoders = {"vision": str(whole / kind), "text": str(whole / kind)}
    encoders |= {"embed_dim": 16, "max_words": 24}
    train = {"out": str(tmp_path / "runs"), "name": "run", "total_steps": 3, "batch_size": 4}
    train |= {"evaluate_every": 3, "checkpoint_every": 3, "precision": "no"}
    config = PatchesTrainConfig.model_validate({
        "train": train, "model": {"encoders": encoders}, "epochs": None, "ramp": 0.0,
        "data": {"kind": "karpathy", "captions": str(captions), "images": str(images)},
    })  # fmt: skip
    task = PatchesTask(config)
    stock = STOCK[kind].from_pretrained(whole / kind)
    for encoder, half_ in (
        (task.model.image_encoder, stock.vision_model),
        (task.model.text_encoder, stock.text_model),
    ):
        weights = encoder.backbone.state_dict()
        assert all(torch.equal(weights[name], part) for name, part in half_.state_dict().items())
    groups = parameter_groups({"retriever": task.model}, config.optimizer)
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    backbone = task.model.text_encoder.backbone.encoder.parameters()
    assert all(rates[id(part)] == pytest.approx(2e-5) for part in backbone)
    assert rates[id(task.model.text_encoder.head.weight)] == pytest.approx(2e-4)
    result = train_model(config)
    trained = RetrievalModel.from_pretrained(result.folder)
    moved = trained.text_encoder.backbone.state_dict()["final_layer_norm.weight"]
    assert not torch.equal(moved, stock.text_model.state_dict()["final_layer_norm.weight"])
    assert trained.text_encoder.pieces("a dog")[0] == "a"
    assert trained.config.encoders.special_words is False


def test_batches_of_files_leave_out_special_tokens(whole, tmp_path):
    from eligo.patches.config import KarpathyDataConfig
    from eligo.patches.data.file_source import FileSource

    captions, images = karpathy(tmp_path, ("train",) * 4 + ("val",))
    data = KarpathyDataConfig(captions=captions, images=images, augment=False)
    model = build(str(whole / "clip"), str(whole / "clip"), max_words=24)
    batch = next(FileSource(data, model, dense=False).batches(4, 0, 0, 0, 1))
    ids, mask = batch.texts
    tokenizer = model.text_encoder.tokenizer
    assert set(ids[~mask].tolist()) == {tokenizer.bos_token_id, tokenizer.eos_token_id}
    assert not torch.isin(ids[mask], ids[~mask]).any()
