"""CLIP and SigLIP models without training: their own scores, in an index and in commands."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoTokenizer,
    CLIPImageProcessorPil,
    CLIPModel,
    SiglipImageProcessorPil,
    SiglipModel,
)

from eligo.cli import main
from eligo.errors import InputError
from eligo.explorer.folder import find_records, load_record
from eligo.patches.index import ImageFiles, ScenePictures, Searcher, TextLines, build_index
from eligo.patches.inference.predict import predict
from eligo.patches.model.retrieval_model import RetrievalModel
from pretrained_models import whole_model

TEXTS = ["a red ball", "two boxes on the floor", "a dog runs", "there is a gem"]
STOCK = {"clip": CLIPModel, "siglip": SiglipModel}
PROCESSOR = {"clip": CLIPImageProcessorPil, "siglip": SiglipImageProcessorPil}
KINDS = pytest.mark.parametrize("kind", ["clip", "siglip"])


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Two models, seven images of several shapes, and a file of texts."""
    folder = tmp_path_factory.mktemp("world")
    for kind in STOCK:
        whole_model(folder, kind)
    (folder / "images").mkdir()
    generator = np.random.default_rng(0)
    for n in range(7):
        coarse = generator.integers(0, 256, (3 + n, 9 - n, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((41 + 5 * n, 70 - 4 * n))
        picture.save(folder / "images" / f"{n}.png")
    (folder / "texts.txt").write_text("\n".join(TEXTS))
    return folder


def pictures(world: Path) -> list[Image.Image]:
    return [Image.open(path) for path in sorted((world / "images").iterdir())]


@torch.no_grad()
def stock_scores(world: Path, kind: str) -> torch.Tensor:
    """Cosines of the vectors that transformers returns for its own inputs: (images, texts)."""
    model = STOCK[kind].from_pretrained(world / kind).eval()
    processor = PROCESSOR[kind].from_pretrained(world / kind)
    tokenizer = AutoTokenizer.from_pretrained(world / kind)
    pixels = processor(pictures(world), return_tensors="pt")["pixel_values"]
    padding = {"padding": "max_length", "max_length": 24} if kind == "siglip" else {"padding": True}
    ids = tokenizer(TEXTS, return_tensors="pt", **padding)["input_ids"]
    vectors = [
        getattr(output, "pooler_output", output)
        for output in (model.get_image_features(pixels), model.get_text_features(ids))
    ]
    images, texts = (torch.nn.functional.normalize(part, dim=1) for part in vectors)
    logits = model(pixel_values=pixels, input_ids=ids).logits_per_image
    scale, bias = model.logit_scale.exp(), getattr(model, "logit_bias", torch.zeros(()))
    assert torch.allclose(logits, scale * (images @ texts.T) + bias, atol=1e-4)
    return images @ texts.T


@KINDS
def test_scores_are_those_of_the_model(world, kind):
    model = RetrievalModel.from_pretrained(world / kind)
    found = model.match(model.image_side(pictures(world)), model.text_side(TEXTS))
    expected = stock_scores(world, kind)
    assert expected.std() > 0.01
    assert torch.allclose(found, expected, atol=1e-5)
    # One text at a time, and images as bytes, give the same.
    pixels = [torch.from_numpy(np.array(p)).permute(2, 0, 1) for p in pictures(world)]
    one = model.match(model.image_side(pixels), model.text_side(TEXTS[1:2]))
    assert torch.allclose(one, expected[:, 1:2], atol=1e-5)


@KINDS
def test_index_holds_one_vector_each_and_ranks_by_the_score(world, tmp_path, kind):
    model, expected = RetrievalModel.from_pretrained(world / kind), stock_scores(world, kind)
    options = {"shard_size": 3, "dtype": "float32"}
    images = ImageFiles.under(world / "images")
    built = build_index(lambda: model, images, tmp_path / "images", **options)
    assert built.entries == 7
    by_text = Searcher(model, tmp_path / "images")
    assert list(by_text.index.shards[0].tensors) == ["direction"]
    for column, text in zip(expected.T, TEXTS, strict=True):
        hits = by_text.search(model.text_side([text]), k=7)
        assert hits.rows.tolist() == column.argsort(descending=True).tolist()
        assert torch.allclose(hits.scores, column[hits.rows], atol=1e-5)
        assert torch.equal(hits.scores, hits.guesses)  # stage 1 is exact
    build_index(lambda: model, TextLines.of(world / "texts.txt"), tmp_path / "texts", **options)
    by_image = Searcher(model, tmp_path / "texts")
    for row, picture in zip(expected, pictures(world), strict=True):
        hits = by_image.search(model.image_side([picture]), k=2)
        assert hits.rows.tolist() == row.argsort(descending=True)[:2].tolist()
        assert torch.allclose(hits.scores, row[hits.rows], atol=1e-5)
    everything = by_text.scores(model.text_side(TEXTS), torch.arange(7))
    assert torch.allclose(everything, expected, atol=1e-5)


def test_trained_global_models_can_be_indexed(tmp_path):
    model = RetrievalModel.tiny(kind="global").eval()
    scenes = ScenePictures.first(9, 56)
    build_index(lambda: model, scenes, tmp_path / "index", shard_size=4, dtype="float32")
    query = model.text_side(["a red ball."])
    hits = Searcher(model, tmp_path / "index").search(query, k=9)
    images = model.image_side([item.value for item in scenes.load(range(9))])
    expected = model.match(images, query)[:, 0]
    assert torch.allclose(hits.scores, expected[hits.rows], atol=1e-5)
    assert "--model.match.kind late" in model.note


def test_index_of_another_image_processing_is_refused(world, tmp_path):
    model = RetrievalModel.from_pretrained(world / "clip")
    build_index(lambda: model, ImageFiles.under(world / "images"), tmp_path / "index")
    model.image_encoder.processor.do_center_crop = False
    with pytest.raises(InputError, match="was made with another model"):
        Searcher(model, tmp_path / "index")


@KINDS
def test_commands(world, tmp_path, capsys, kind):
    model = ["--model", str(world / kind), "--device", "cpu"]
    images, index = str(world / "images"), str(tmp_path / "index")
    assert main(["patches", "index", images, "--out", index, *model]) == 0
    capsys.readouterr()
    assert main(["patches", "search", index, TEXTS[0], "--k", "3", *model]) == 0
    printed = capsys.readouterr().out
    note = RetrievalModel.from_pretrained(world / kind).note
    assert printed.splitlines()[-1] == note
    assert "7 of 7 scored exactly" in printed
    assert "stage 1" not in printed
    command = f"--model.encoders.vision {world / kind} --model.encoders.text {world / kind}"
    assert command in note
    assert main(["patches", "search", index, TEXTS[0], "--k", "9", "--json", *model]) == 0
    found = json.loads(capsys.readouterr().out)
    column = stock_scores(world, kind)[:, 0]
    order = column.argsort(descending=True).tolist()
    assert [row["id"] for row in found["found"]] == [f"{n}.png" for n in order]
    assert found["found"][0] == {
        "rank": 1, "id": f"{order[0]}.png",
        "score": pytest.approx(float(column.max()), abs=2e-3),  # of half precision
    }  # fmt: skip
    assert found["note"] == note
    image = str(world / "images" / "2.png")
    flags = ["--image", image, "--text", TEXTS[0], "--out", str(tmp_path / "why"), *model]
    assert main(["patches", "predict", *flags]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[:2] == [f"score {column[2]:.4f}", note]
    assert "patches 1" not in printed


def test_prediction_of_the_whole_image(world, tmp_path):
    found = predict(world / "images" / "3.png", TEXTS[1], model=world / "clip", device="cpu")
    expected = float(stock_scores(world, "clip")[3, 1])
    assert found.score == pytest.approx(expected, abs=1e-5)
    row = {"word": TEXTS[1], "best token": "whole image", "cosine": pytest.approx(expected)}
    assert found.words == [row]
    assert found.selection.num_kept == found.cost.patches == 1
    assert found.cost.index_bytes == 24  # a vector of 12 numbers
    saved = found.save(tmp_path / "why")
    assert json.loads((saved / "result.json").read_text("utf-8"))["note"] == found.note
    (record,) = find_records(saved)
    assert load_record(record).note == found.note


def test_invalid_use_is_one_line(world, tmp_path, capsys):
    model = ["--model", str(world / "clip"), "--device", "cpu"]
    index = str(tmp_path / "index")
    assert main(["patches", "index", str(world / "images"), "--out", index, *model]) == 0
    for flags in (["--dev", str(world / "texts.txt")], ["--rerank", "auto"]):
        capsys.readouterr()
        assert main(["patches", "search", index, "a dog", *flags, *model]) == 2
        printed = capsys.readouterr().err
        assert f"{flags[0]}" in printed
        assert "every entry is scored exactly" in printed
    assert main(["patches", "convert", str(world / "clip"), "--out", str(tmp_path / "copy")]) == 2
    assert "is used as it is and has nothing trained to save" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()
    path = world / "clip" / "preprocessor_config.json"
    stored = path.read_text()
    for change, message in (
        ({"crop_size": 16}, r"32 x 32 normalised pixels"),
        ({"rescale_factor": 0.5}, r"changes pixels in another way"),
    ):
        path.write_text(json.dumps(json.loads(stored) | change))
        with pytest.raises(InputError, match=message):
            RetrievalModel.from_pretrained(world / "clip")
    path.write_text(stored)


def test_processor_saved_by_this_version_of_transformers(world, tmp_path):
    """One file for the whole processor, with the image processor in it."""
    from transformers import CLIPProcessor

    shutil.copytree(world / "clip", tmp_path / "clip")
    (tmp_path / "clip" / "preprocessor_config.json").unlink()
    images = PROCESSOR["clip"].from_pretrained(world / "clip")
    tokenizer = AutoTokenizer.from_pretrained(world / "clip")
    CLIPProcessor(images, tokenizer).save_pretrained(tmp_path / "clip")
    assert (tmp_path / "clip" / "processor_config.json").is_file()
    model = RetrievalModel.from_pretrained(tmp_path / "clip")
    found = model.match(model.image_side(pictures(world)), model.text_side(TEXTS))
    assert torch.allclose(found, stock_scores(world, "clip"), atol=1e-5)
