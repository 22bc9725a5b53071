"""`eligo patches predict`: the score equals that of the model, the picture shows kept patches."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.cli import main
from eligo.errors import InputError
from eligo.explorer.folder import find_records, load_record
from eligo.patches import CrossSparseAggrNet
from eligo.patches.index import ScenePictures, Searcher, build_index
from eligo.patches.inference.predict import count_cost, predict
from eligo.patches.model.inputs import Images
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.report.patches_picture import WordMatch, _word_picture, match_picture
from eligo.report.pictures import rgb_picture

TEXT = "there is a red ball left of a blue box."


@pytest.fixture(scope="module")
def scene() -> Image.Image:
    return rgb_picture(ScenePictures.first(1, 112).load([0])[0].value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, scene):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    RetrievalModel.tiny(kind="open").save_pretrained(folder)
    scene.save(folder / "scene.png")
    return folder


@pytest.mark.parametrize("settings", [{"kind": "open"}, {"kind": "paper", "dense": True}])
def test_prediction_has_the_score_of_the_model(settings, scene, tmp_path):
    model = RetrievalModel.tiny(**settings).eval()
    dense = "a red ball. a blue box." if model.uses_dense else None
    prediction = predict(scene, TEXT, model=model, dense=dense)
    with torch.no_grad():
        images = model.image_side([scene], None if dense is None else [dense])
        expected = model.match(images, model.text_side([TEXT]))
    assert prediction.score == pytest.approx(float(expected), abs=2e-6)
    assert [row["word"] for row in prediction.words] == model.text_encoder.pieces(TEXT)
    assert prediction.explanation.sparse.num_kept == prediction.cost.kept == 25
    assert prediction.cost.patches == 49
    assert prediction.cost.tokens == len(prediction.explanation.token_names)


@pytest.mark.parametrize(("budget", "kept"), [(None, 25), (7, 7), (49, 49), (0.25, 13), (1.0, 49)])
def test_budget_is_exact(budget, kept, scene, folder, tmp_path):
    model = RetrievalModel.from_pretrained(folder)
    prediction = predict(scene, TEXT, model=model, budget=budget)
    assert prediction.selection.num_kept == prediction.cost.kept == kept
    assert model.selecting_net().sparse_ratio == 0.5  # as before


@pytest.mark.parametrize("budget", [0, 50, -1, 0.0, 1.5])
def test_budget_out_of_range(budget, scene, folder):
    with pytest.raises(InputError, match=rf"budget: got {budget}, expected 1 to 49 patches"):
        predict(scene, TEXT, model=str(folder), budget=budget)


@pytest.mark.parametrize(("budget", "kept"), [("9", 9), ("0.25", 13), ("1", 1), ("1.0", 49)])
def test_budget_on_the_command_line(budget, kept, folder, tmp_path, capsys):
    image = str(folder / "scene.png")
    flags = ["--image", image, "--text", TEXT, "--model", str(folder), "--out", str(tmp_path)]
    assert main(["patches", "predict", *flags, "--budget", budget, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["kept"] == kept


def test_image_and_model_in_any_form(folder, scene):
    expected = predict(scene, TEXT, model=RetrievalModel.from_pretrained(folder))
    pixels = np.asarray(scene)
    forms = (folder / "scene.png", pixels, torch.from_numpy(pixels.copy()).permute(2, 0, 1))
    for image in forms:
        prediction = predict(image, TEXT, model=str(folder), device="cpu")
        assert prediction.score == expected.score
        assert torch.equal(prediction.selection.indices, expected.selection.indices)
    with pytest.raises(InputError, match=r"nowhere\.png: there is no such image"):
        predict("nowhere.png", TEXT, model="nowhere")
    with pytest.raises(InputError, match="empty text"):
        predict(scene, " ", model=folder)


def test_saved_prediction(folder, scene, tmp_path):
    prediction = predict(scene, TEXT, model=folder, device="cpu")
    prediction.save(tmp_path)
    saved = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert saved == prediction.summary() | {"text": TEXT}
    assert saved["kept"] == sorted(prediction.selection.indices.tolist())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "explore", "patches.png", "result.json"
    ]  # fmt: skip


def test_index_cost_equals_the_size_of_an_index(scene, tmp_path):
    model = RetrievalModel.tiny(kind="open").eval()
    prediction = predict(scene, TEXT, model=model)
    build_index(lambda: model, ScenePictures.first(3, 56), tmp_path)
    shard = Searcher(model, tmp_path).index.shards[0].tensors
    stored = sum(part[0].numel() * part.element_size() for part in shard.values())
    assert prediction.cost.index_bytes == stored


def test_association_and_index_size_of_vit_224():
    net, images = CrossSparseAggrNet(), Images(torch.randn(1, 196, 512), torch.randn(1, 512))
    few, many = (count_cost(net, images, words, 41, (0.0, 0.0, 0.0)) for words in (28, 29))
    assert (few.association, many.association) == ("gram", "direct")
    # patches and slot logits; the slots of stage 1; the rest
    assert few.index_bytes == 215_992 + 39_936 + 3_616


def test_dropped_patches_are_grey(scene):
    kept = torch.zeros(7, 7, dtype=torch.bool)
    kept[2:4, 2:4] = True
    weights = torch.zeros(7, 7)
    weights[6, 0] = 0.5
    words = [WordMatch("ball", "slot 1", 0.5, weights), WordMatch("a", "[CLS]", 0.1, weights * 0)]
    red = Image.new("RGB", (70, 70), (200, 10, 10))
    sheet = np.asarray(match_picture(red, kept, torch.rand(7, 7), words, title="a ball"))
    middle = sheet[sheet.shape[0] // 4 : -200, 364:700]  # the panel of kept patches
    is_red = (middle[..., 0] > 150) & (middle[..., 1] < 50)
    assert is_red.sum() == pytest.approx(4 * 48 * 48, rel=0.1)
    below = sheet[-240:-40, 14:175]  # the first word
    is_red = (below[..., 0] > 150) & (below[..., 1] < 50)
    assert is_red.sum() == pytest.approx(161 * 161 / 49, rel=0.15)
    small = np.asarray(_word_picture(red, words[0]))[:161]
    assert (small < 40).all(-1).sum() == 2 * 23  # an outline around its patch, which is in a corner
    whole = sheet[-240:-40, 189:350]  # [CLS]: the whole image
    assert ((whole[..., 0] > 150) & (whole[..., 1] < 50)).sum() == pytest.approx(161 * 161, rel=0.1)


def test_predict_command(folder, tmp_path, capsys):
    command = ["patches", "predict", "--image", str(folder / "scene.png"), "--model", str(folder)]
    command += ["--out", str(tmp_path), "--device", "cpu"]
    assert main([*command, "--text", TEXT]) == 0
    printed = capsys.readouterr().out
    assert "patches 49 > 25 kept > 11 tokens, for 13 words" in printed
    assert "multiply-adds" in printed
    assert Image.open(tmp_path / "patches.png").width > 1000
    (shown,) = map(load_record, find_records(tmp_path))
    assert shown.query == TEXT
    assert shown.stages[0].selection.num_kept == 25
    assert main([*command, "--text", TEXT, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["words"]) == 13
    assert found["cost"]["kept"] == 25
    assert main([*command, "--text", "a red Zebra, zebra [x]", "--json"]) == 0
    printed = capsys.readouterr()
    assert "does not know these words: Zebra, zebra, [, x, ]" in printed.err
    assert len(json.loads(printed.out)["words"]) == 10
    assert "cut" not in printed.err
    assert main([*command, "--text", "a red ball. " * 20, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err.count("the text is cut: it has 82 word pieces, and the model reads 64") == 1
    assert len(json.loads(printed.out)["words"]) == 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--text": " "}, "--text: is empty"),
        ({"--image": "nowhere.png"}, "nowhere.png: there is no such image"),
        ({"--dense": "a ball."}, "trained without dense captions"),
        ({"--model": "nowhere"}, "nowhere: there is no such folder"),
    ],
)
def test_invalid_arguments_are_refused(folder, tmp_path, capsys, change, message):
    flags = {"--image": str(folder / "scene.png"), "--text": TEXT, "--model": str(folder)}
    flags |= {"--out": str(tmp_path)} | change
    assert main(["patches", "predict", *(part for pair in flags.items() for part in pair)]) == 2
    assert message in capsys.readouterr().err
