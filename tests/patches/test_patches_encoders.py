"""Real encoder classes: prefix tokens and grids from their configs, saving, invalid input."""

import pytest
import torch
from patch_models import text_folder, vision_folder
from PIL import Image

from eligo.errors import InputError
from eligo.images import open_image
from eligo.patches.config import RetrievalConfig
from eligo.patches.model.retrieval_model import RetrievalModel

CASES = [
    ("vit", None, 1, (4, 4)),
    ("vit", 48, 1, (6, 6)),  # interpolated position embeddings
    ("dinov2", 42, 1, (6, 6)),
    ("registers", None, 5, (4, 4)),
    ("swin", None, 0, (8, 8)),
]


def model_of(tmp_path, kind, image_size=None, **match) -> RetrievalModel:
    encoders = {
        "vision": vision_folder(tmp_path, kind, image_mean=[0.1, 0.2, 0.3], image_std=[1, 1, 2]),
        "text": text_folder(tmp_path),
        "image_size": image_size,
        "embed_dim": 16,
    }
    config = RetrievalConfig.model_validate({"encoders": encoders, "match": match})
    return RetrievalModel.build(config).eval()


@pytest.mark.parametrize(("kind", "size", "prefix", "grid"), CASES)
def test_token_layout_is_read_from_the_config(tmp_path, kind, size, prefix, grid):
    model = model_of(tmp_path, kind, size)
    layout = model.image_encoder.layout
    assert (layout.num_prefix, layout.grid_hw) == (prefix, grid)
    tokens = model.encode_images(torch.randint(256, (2, 3, 50, 60), dtype=torch.uint8))
    assert tokens.shape == (2, prefix + grid[0] * grid[1], 16)
    images = model.image_side(tokens)
    assert images.patches.shape[1] == grid[0] * grid[1]
    assert torch.equal(images.patches, tokens[:, prefix:])
    assert (images.cls is None) == (prefix == 0)
    assert model.config.encoders.image_mean == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("kind", ["vit", "dinov2", "registers", "swin"])
def test_tokens_equal_those_of_the_backbone(tmp_path, kind):
    """The tokens that stock `transformers` returns for normalised pixels, projected."""
    model = model_of(tmp_path, kind)
    side = model.image_encoder.image_size
    image = torch.randint(256, (1, 3, side, side), dtype=torch.uint8)
    pixels = image / 255 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)
    pixels = pixels / torch.tensor([1.0, 1.0, 2.0]).view(3, 1, 1)
    states = model.image_encoder.backbone(pixel_values=pixels).last_hidden_state
    expected = model.image_encoder.head(states)
    assert torch.allclose(model.encode_images(image), expected, atol=1e-5)


def test_pretrained_backbones_have_a_lower_learning_rate(tmp_path):
    from eligo.train.config import OptimizerConfig
    from eligo.train.optimization import parameter_groups

    model = model_of(tmp_path, "vit")
    groups = parameter_groups({"retriever": model}, OptimizerConfig(lr=2e-4))
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert all(
        rates[id(p)] == pytest.approx(2e-5) for p in model.text_encoder.backbone.parameters()
    )
    assert all(rates[id(p)] == pytest.approx(2e-4) for p in model.net.parameters())
    assert rates[id(model.image_encoder.head.weight)] == pytest.approx(2e-4)


@pytest.mark.parametrize("kind", ["global", "filip", "open", "paper"])
def test_model_round_trip(tmp_path, kind):
    model = RetrievalModel.tiny(kind=kind).eval()
    images = torch.randint(256, (2, 3, 56, 56), dtype=torch.uint8)
    texts = ["there is a red ball.", "a star is left of a box."]

    def scores(model):
        with torch.no_grad():
            return model.match(model.image_side(images), model.text_side(texts))

    model.save_pretrained(tmp_path / "model")
    assert torch.equal(scores(RetrievalModel.from_pretrained(tmp_path / "model")), scores(model))
    model.save_pretrained(tmp_path / "model", dtype=torch.float16)  # overwrites the first
    half = RetrievalModel.from_pretrained(tmp_path / "model")
    assert torch.allclose(scores(half), scores(model), atol=2e-3)
    assert next(model.parameters()).dtype == torch.float32


def test_saved_model_is_self_contained(tmp_path):
    model = model_of(tmp_path, "registers")
    model.save_pretrained(tmp_path / "model")
    for folder in ("registers", "bert"):
        (tmp_path / folder).rename(tmp_path / f"gone_{folder}")
    assert str(tmp_path) not in (tmp_path / "model" / "config.yaml").read_text()
    image = torch.randint(256, (1, 3, 28, 28), dtype=torch.uint8)
    loaded = RetrievalModel.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded.encode_images(image), model.encode_images(image))


def test_other_folders_are_not_overwritten(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="already holds"):
        RetrievalModel.tiny().save_pretrained(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_encoded_texts_and_their_limits():
    model = RetrievalModel.tiny()
    assert model.text_encoder.pieces("a red zebra.") == [
        "[CLS]", "a", "red", "[UNK]", ".", "[SEP]"
    ]  # fmt: skip
    alone = model.encode_texts(["a red ball."])
    beside = model.encode_texts(["a red ball.", "a ring is left of a large blue striped box."])
    assert beside.mask.sum(1).tolist() == [6, 13]
    assert torch.allclose(beside.words[0, :6], alone.words[0], atol=1e-5)  # padding is not read
    long = ["ball " * 200]
    assert model.encode_texts(long).mask.shape[1] == 64
    assert model.encode_texts(long, dense=True).mask.shape[1] == 160


def test_images_of_any_size():
    model = RetrievalModel.tiny()
    pixels = torch.randint(256, (30, 20, 3), dtype=torch.uint8)
    picture = Image.fromarray(pixels.numpy())
    assert model.encode_images([picture, picture.convert("L")]).shape == (2, 50, 16)
    same = model.encode_images([picture])
    assert torch.equal(model.encode_images([pixels.permute(2, 0, 1)]), same)


def test_baselines_match_plain_loops():
    for kind in ("global", "filip"):
        model = RetrievalModel.tiny(kind=kind)
        images = model.image_side(torch.randint(256, (2, 3, 56, 56), dtype=torch.uint8))
        texts = model.text_side(["a ball.", "a star is left of a box.", "a gem."])
        found = model.match(images, texts)
        for i in range(2):
            tokens = torch.cat([images.cls[i : i + 1], images.patches[i]])
            for j in range(3):
                words = texts.words.of(j)
                if kind == "global":
                    mean = images.cls[i] + images.patches[i].mean(0)
                    expected = torch.cosine_similarity(mean, words.mean(0), dim=0)
                else:
                    cosines = torch.cosine_similarity(tokens[:, None], words[None], dim=2)
                    expected = cosines.amax(0).mean() + cosines.amax(1).mean()
                assert torch.allclose(found[i, j], expected, atol=1e-5)


def test_invalid_input_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"expected one of vit, dinov2"):
        RetrievalModel.build(
            RetrievalConfig.model_validate({"encoders": {"vision": text_folder(tmp_path)}})
        )
    with pytest.raises(InputError, match=r"encoders\.vision: .*expected a folder"):
        RetrievalModel.build(
            RetrievalConfig.model_validate({"encoders": {"vision": str(tmp_path / "none")}})
        )
    with pytest.raises(InputError, match="no retrieval model"):
        RetrievalModel.from_pretrained(tmp_path)
    model = RetrievalModel.tiny()
    with pytest.raises(InputError, match="text 1 is empty"):
        model.encode_texts(["a ball.", " "])
    with pytest.raises(InputError, match="got 1 dense captions for 2 images"):
        model.image_side(torch.zeros(2, 3, 56, 56, dtype=torch.uint8), ["a ball."])
    with pytest.raises(InputError, match="expected PIL images or bytes"):
        model.encode_images([torch.rand(3, 8, 8)])


def test_default_model_is_small_enough_to_ship():
    config = RetrievalConfig.model_validate({"encoders": {"embed_dim": 128}})
    model = RetrievalModel.build(config)
    assert 2 * sum(part.numel() for part in model.parameters()) <= 4e6
    assert model.grid_hw == (14, 14)


def test_large_image_in_memory_equals_its_file(tmp_path):
    encoder = RetrievalModel.tiny().image_encoder
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.new("RGB", (1600, 1200), "blue")
    picture.paste("red", (0, 0, 400, 1200))
    picture.save(tmp_path / "a.png", exif=exif)
    file = open_image(tmp_path / "a.png", encoder.image_size)
    with Image.open(tmp_path / "a.png") as opened:
        assert torch.equal(encoder.prepare([opened]), encoder.prepare([file]))
