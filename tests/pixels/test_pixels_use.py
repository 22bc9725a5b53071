"""A trained model in use: loading, prediction, conversion, and the commands."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pixel_cases import official_encoder, official_model
from pixel_files import exported
from safetensors.torch import load_file, save_file

from eligo.cli import main
from eligo.cli.pixels.evaluate import _training_config
from eligo.config import load_config
from eligo.errors import InputError
from eligo.explorer.folder import find_records, load_record
from eligo.pixels import (
    PRESETS,
    SIZES,
    PixelsConfig,
    PixelsModel,
    PixelsTrainConfig,
    Segmenter,
    predict,
    to_official,
    train_model,
)
from eligo.pixels.inference.convert import convert_official, read_official
from eligo.pixels.inference.segmenter import (
    check_sam_settings,
    model_folder,
    plain_config,
    text_encoder,
)
from eligo.pixels.training.task import PixelsTask

TINY = load_config(PixelsTrainConfig, "pixels/scenes").smoke()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    return train_model(TINY.replace({"train.out": out, "train.total_steps": 2})).folder


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(tmp_path_factory.mktemp("rooms") / "nyu", "nyu")


@pytest.fixture
def pair(rooms: Path) -> tuple[Path, Path]:
    return rooms / "RGB" / "test_000001.png", rooms / "Depth" / "test_000001.png"


# ------------------------------------------------------------------ folders


def test_segmenter_round_trip(run: Path, tmp_path: Path):
    one = Segmenter.from_pretrained(run)
    one.save_pretrained(tmp_path / "copy")
    other = Segmenter.from_pretrained(tmp_path / "copy")
    assert other.config == one.config
    assert "data" not in (tmp_path / "copy" / "config.yaml").read_text()
    rgb = torch.randn(1, 3, 48, 64)
    with torch.no_grad():
        text = [segmenter.text(["ball", "ring"]) for segmenter in (one, other)]
        logits = [s.model(rgb, text=t).logits for s, t in zip((one, other), text, strict=True)]
    assert torch.equal(*logits)
    one.save_pretrained(tmp_path / "half", dtype=torch.float16)
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("copy", "half")]
    assert sizes[1] < 0.6 * sizes[0]
    with torch.no_grad():
        near = Segmenter.from_pretrained(tmp_path / "half").model(rgb, text=text[0]).logits
    torch.testing.assert_close(near, logits[0], atol=0.05, rtol=0.05)


def test_word_table_is_saved_with_the_weights(tmp_path: Path):
    table = tmp_path / "table.safetensors"
    save_file({name: torch.randn(16) for name in ("desk", "lamp")}, table)
    words = {"source": "tags", "encoder": {"kind": "table", "file": table}}
    config = plain_config(TINY).replace({"text": words})
    one = Segmenter(config, PixelsModel(config).eval(), text_encoder(config))
    one.save_pretrained(tmp_path / "model")
    table.unlink()
    (tmp_path / "model").rename(tmp_path / "moved")
    other = Segmenter.from_pretrained(tmp_path / "moved")
    texts = [segmenter.text(["lamp", "desk"]) for segmenter in (one, other)]
    assert torch.equal(*(text.embeddings for text in texts if text is not None))
    other.save_pretrained(tmp_path / "moved")  # overwrites itself
    Segmenter.from_pretrained(tmp_path / "moved")


def test_every_kind_of_folder_is_found(run: Path):
    assert model_folder(run) == run / "model"
    assert model_folder(run / "best") == run / "best"
    assert Segmenter.from_pretrained(run / "last").config == Segmenter.from_pretrained(run).config


def test_loading_is_strict_and_other_folders_are_refused(run: Path, tmp_path: Path):
    segmenter = Segmenter.from_pretrained(run)
    segmenter.save_pretrained(tmp_path / "m")
    state = load_file(tmp_path / "m" / "model.safetensors")
    del state["head.classifier.bias"]
    save_file(state | {"strange": torch.zeros(1)}, tmp_path / "m" / "model.safetensors")
    with pytest.raises(InputError, match=r"missing: model.head.classifier.bias[\s\S]*strange"):
        Segmenter.from_pretrained(tmp_path / "m")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"something else .*choose another"):
        segmenter.save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match="no segmentation model"):
        Segmenter.from_pretrained(tmp_path / "other")


def test_missing_shipped_model_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("eligo.pretrained.load.SHIPPED", tmp_path)
    with pytest.raises(InputError, match="eligo pixels train"):
        model_folder("pixels")


# ------------------------------------------------------------------ predict


@pytest.mark.parametrize("with_depth", [True, False])
@pytest.mark.parametrize("tags", [("wall", "red ball", "ring"), ()])
def test_predict_and_save(run: Path, pair, tmp_path: Path, with_depth: bool, tags: tuple[str, ...]):
    prediction = predict(
        pair[0], pair[1] if with_depth else None, tags=tags, model=run, device="cpu"
    )
    assert prediction.labels.shape == (48, 64)
    result = json.loads((prediction.save(tmp_path / "out") / "result.json").read_text("utf-8"))
    names = [path.relative_to(tmp_path / "out").as_posix() for path in map(Path, result["files"])]
    shown = ["tags/00_wall.png", "tags/01_red_ball.png", "tags/02_ring.png"]
    pictures = ["label.png", "confidence.png", "overlay.png", *(shown if tags else [])]
    assert names == [*pictures, "result.json"]
    stored = torch.from_numpy(np.array(Image.open(tmp_path / "out" / "confidence.png")))
    torch.testing.assert_close(stored / 255, prediction.confidence, atol=0.5 / 255 + 1e-6, rtol=0)
    stored = Image.open(tmp_path / "out" / "label.png")
    assert stored.mode == "P"
    assert np.array_equal(np.asarray(stored), prediction.labels.numpy())
    assert json.loads(json.dumps(prediction.summary())).items() <= result.items()
    assert result["provenance"] == ("predicted" if tags else "none")
    assert result["depth"] is with_depth
    assert sum(row["share"] for row in result["classes"]) == pytest.approx(1)
    values = {row["label"]: row["class"] for row in result["classes"]}
    assert values == {n: prediction.classes[n] for n in np.unique(np.asarray(stored)).tolist()}
    assert {row["word"] for row in result["words"]} == set(tags)
    if tags:
        assert sum(row["attention"] for row in result["words"]) == pytest.approx(1, abs=1e-4)
        assert prediction.tag_maps is not None
        torch.testing.assert_close(prediction.tag_maps.sum(0), torch.ones(6, 8))


def test_channel_order_of_the_model_is_used(run: Path, pair, tmp_path: Path):
    """A BGR model gives the same output for an image with red and blue swapped."""
    pixels = np.asarray(Image.open(pair[0]).convert("RGB"))
    Image.fromarray(pixels[..., ::-1].copy()).save(tmp_path / "turned.png")
    segmenter = Segmenter.from_pretrained(run)
    plain = predict(pair[0], model=segmenter)
    turned = {
        order: predict(
            tmp_path / "turned.png",
            model=segmenter,
            inputs=segmenter.config.inputs.replace({"channel_order": order}),
        )
        for order in ("rgb", "bgr")
    }
    assert torch.equal(turned["bgr"].confidence, plain.confidence)
    assert not torch.equal(turned["rgb"].confidence, plain.confidence)


def test_pictures_of_earlier_words_are_removed(run: Path, pair, tmp_path: Path):
    segmenter = Segmenter.from_pretrained(run)
    predict(pair[0], tags=["wall", "ring"], model=segmenter).save(tmp_path)
    predict(pair[0], tags=["ball"], model=segmenter).save(tmp_path)
    assert [path.name for path in (tmp_path / "tags").iterdir()] == ["00_ball.png"]


def test_unknown_depth_equals_no_depth(run: Path, pair, tmp_path: Path):
    Image.fromarray(np.zeros((48, 64), dtype=np.uint16)).save(tmp_path / "d.png")
    segmenter = Segmenter.from_pretrained(run)
    one = predict(pair[0], tmp_path / "d.png", model=segmenter)
    other = predict(pair[0], model=segmenter)
    torch.testing.assert_close(one.confidence, other.confidence)


def test_invalid_words_are_refused(run: Path, pair, tmp_path: Path):
    with pytest.raises(InputError, match=r"'bal'.*ball"):
        predict(pair[0], tags=["bal"], model=run, device="cpu")
    without = train_model(
        TINY.replace({"train.out": tmp_path, "preset": 0, "train.total_steps": 1})
    )
    with pytest.raises(InputError, match="without words"):
        predict(pair[0], tags=["ball"], model=without.folder, device="cpu")
    with pytest.raises(InputError, match="one kind of words"):
        predict(pair[0], tags=["ball"], captions=["a ball"], model=run)


# ------------------------------------------------------------------ convert


@pytest.mark.parametrize(("classes", "order"), [(7, "rgb"), (40, "bgr")])
def test_convert_a_whole_official_model(tmp_path: Path, classes: int, order: str):
    config = PixelsConfig(num_classes=classes, text_dim=24).replace(
        {"encoder.depths": (1, 1, 1, 1), "head.channels": 32, "head.ham_channels": 16,
         "sam.form": "legacy", "sam.decoder.stages": (1, 3), "sam.encoder.stages": (2,)}
    )  # fmt: skip
    state = official_model(config)
    state["backbone.encoder_sam_blocks.2.0.encoder_logit_scale"] = torch.zeros(
        ()
    )  # log of 1, fixed
    fewer = {"encoder.depths": (1, 1, 1, 1), "encoder.drop_path": 0.0}
    base = load_config(PixelsTrainConfig, "pixels/nyu_s", fewer)
    changes = {"encoder.depths": (1, 1, 1, 1)}
    torch.save({"model": state}, tmp_path / "w.pth")
    converted = convert_official(tmp_path / "w.pth", base, changes=changes)
    for key in ("num_classes", "text_dim", "encoder", "head"):
        assert getattr(converted.config, key) == getattr(config, key), key
    assert converted.config.sam == config.sam
    assert converted.config.inputs.channel_order == order
    there = to_official(converted.model)
    assert all(
        torch.equal(there[name], value.view_as(there[name])) for name, value in state.items()
    )


def test_converted_encoder_starts_a_training(tmp_path: Path):
    config = PixelsConfig().replace(SIZES["small"]).encoder
    save_file(
        official_encoder(config) | {"head.weight": torch.zeros(3)}, tmp_path / "w.safetensors"
    )
    base = load_config(PixelsTrainConfig, "pixels/scenes", {"encoder.drop_path": 0.0})
    with pytest.raises(InputError, match=r"unexpected: backbone\.head\.weight"):
        convert_official(tmp_path / "w.safetensors", base)
    converted = convert_official(tmp_path / "w.safetensors", base, drop=["head."])
    stem = load_file(tmp_path / "w.safetensors")["patch_embed.proj.0.weight"]
    assert torch.equal(converted.model.encoder.stem[0].conv.weight, stem)  # pyright: ignore[reportAttributeAccessIssue]
    converted.save_pretrained(tmp_path / "start")
    Segmenter.from_pretrained(tmp_path / "start")


def test_invalid_weights_are_refused(tmp_path: Path):
    (tmp_path / "torn.pth").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"torn\.pth: no checkpoint") as caught:
        read_official(tmp_path / "torn.pth")
    torch.save({"a": Path("x")}, tmp_path / "more.pth")
    with pytest.raises(
        InputError, match=r"more\.pth: no checkpoint, or one that holds more"
    ) as more:
        read_official(tmp_path / "more.pth")
    for text in map(str, (caught.value, more.value)):
        assert "\x1b" not in text
        assert "weights_only" not in text.lower()
    (tmp_path / "torn.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"torn\.safetensors: cannot be read"):
        read_official(tmp_path / "torn.safetensors")
    with pytest.raises(InputError, match=r"none\.pth: cannot be read"):
        read_official(tmp_path / "none.pth")
    torch.save({"a": torch.zeros(2)}, tmp_path / "other.pth")
    base = load_config(PixelsTrainConfig, "pixels/nyu_s")
    with pytest.raises(InputError, match="no DFormerv2 encoder"):
        convert_official(tmp_path / "other.pth", base)
    torch.save({"patch_embed.proj.9.weight": torch.zeros(63, 2)}, tmp_path / "wide.pth")
    with pytest.raises(InputError, match=r"63 wide.*64 \(S\)"):
        convert_official(tmp_path / "wide.pth", base)
    foreign = {"backbone.patch_embed.proj.9.weight": torch.zeros(64, 2)}
    torch.save(foreign | {"decode_head.mlp.weight": torch.zeros(2)}, tmp_path / "foreign.pth")
    with pytest.raises(InputError, match=r"head is not that of DFormerv2 .*--drop decode_head\."):
        convert_official(tmp_path / "foreign.pth", base)


# ------------------------------------------------------------------ commands


def result_of(capsys: pytest.CaptureFixture[str], *args: str | Path) -> dict:
    assert main(["pixels", *map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    assert main(["pixels", *map(str, args)]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_flags_of_the_train_command(capsys, tmp_path: Path):
    base = ("train", "scenes", "--smoke", "--train.total_steps", "1", "--train.out", tmp_path)
    flags = ("--no-sam-decoder-use-cosine", "--sam-encoder-learnable-temp",
             "--sam-decoder-logit-init", "1.5", "--preset", "5")  # fmt: skip
    found = result_of(capsys, *base, *flags)
    sam = Segmenter.from_pretrained(found["folder"]).config.sam
    decoder, encoder = sam.decoder, sam.encoder
    assert (decoder.use_cosine, decoder.learnable_temp, decoder.logit_init) == (False, False, 1.5)
    assert (encoder.use_cosine, encoder.learnable_temp) == (True, True)
    both = ("--sam-decoder-use-cosine", "--no-sam-decoder-use-cosine")
    assert "expected one of them" in refused(capsys, *base, *both)
    assert "expected a finite number above 0" in refused(
        capsys, *base, "--sam-decoder-logit-init", "0"
    )


def test_flag_defaults_are_the_documented_ones(capsys):
    assert main(["pixels", "train", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for flag in ("--sam_decoder_use_cosine", "--sam_decoder_learnable_temp",
                 "--no_sam_encoder_use_cosine", "--no_sam_encoder_learnable_temp"):  # fmt: skip
        about = shown.split(f" {flag} ", 1)[1].split(" --")[0]
        assert about.endswith("(default)"), flag
    assert "(default: 14.285714)" in shown.split("--sam_decoder_logit_init", 1)[1].split(" --")[0]
    assert "(default: 1.0)" in shown.split("--sam_encoder_logit_init", 1)[1].split(" --")[0]


def test_repeated_words_count_once(run: Path, pair):
    prediction = predict(pair[0], tags="wall, ring,wall", model=run, device="cpu")
    assert prediction.words == ("wall", "ring")


def test_smoke_names_unused_flags(capsys):
    flags = ["--smoke", "--data.scenes.height", "168"]
    assert main(["patches", "train", "scenes_open", *flags]) == 2
    assert "--smoke sets its own scenes and sizes" in capsys.readouterr().err


def test_predict_command_of_a_folder(capsys, run: Path, pair, tmp_path: Path):
    """Every image gets a folder of its own, with the same result as alone."""
    images, depths = pair[0].parent, pair[1].parent
    flags = ["--tags", "wall, ring", "--model", run, "--device", "cpu"]
    found = result_of(capsys, "predict", "--image", images, "--depth", depths, *flags,
                      "--out", tmp_path / "all")  # fmt: skip
    names = sorted(path.stem for path in images.iterdir())
    assert [Path(row["out"]).name for row in found] == names
    alone = result_of(capsys, "predict", "--image", pair[0], "--depth", pair[1], *flags,
                      "--out", tmp_path / "one")  # fmt: skip
    assert found[names.index(pair[0].stem)]["classes"] == alone["classes"]
    for name in ("label.png", "confidence.png"):
        there = tmp_path / "all" / pair[0].stem / name
        assert there.read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_a_broken_image_of_a_folder_is_skipped(capsys, run: Path, pair, tmp_path: Path):
    images = tmp_path / "images"
    images.mkdir()
    (images / "a.png").write_text("no image")
    flags = ["--image", images, "--model", run, "--out", tmp_path / "out"]
    command = ["pixels", "predict", *map(str, flags)]
    assert main(command) == 2  # all are broken
    assert "a.png: " in capsys.readouterr().err
    (images / "b.png").write_bytes(pair[0].read_bytes())
    assert main([*command, "--json"]) == 0
    printed = capsys.readouterr()
    assert [row["image"] for row in json.loads(printed.out)] == ["b.png"]
    assert "skipped: " in printed.err
    assert main([*command, "--tags", "no such word"]) == 2  # wrong for all images


def test_predict_command(capsys, run: Path, pair, tmp_path: Path):
    found = result_of(capsys, "predict", "--image", pair[0], "--depth", pair[1], "--tags",
                 "wall, ring", "--model", run, "--out", tmp_path, "--device", "cpu")  # fmt: skip
    assert len(found["files"]) == 6
    assert all(Path(file).is_file() for file in found["files"])
    (shown,) = map(load_record, find_records(tmp_path))
    assert shown.stages[0].rows == ("wall", "ring")
    agreeing = ("--sam-decoder-use-cosine", "--preset", "1")
    result_of(capsys, "predict", "--image", pair[0], "--model", run, "--out", tmp_path, *agreeing)


def test_invalid_arguments_exit_with_2(capsys, run: Path, pair, tmp_path: Path):
    base = ("predict", "--image", pair[0], "--model", run, "--out", tmp_path, "--device", "cpu")
    err = refused(capsys, *base, "--no-sam-decoder-use-cosine")
    assert "trained with sam.decoder.use_cosine True, got False" in err
    assert "sam.encoder.use_cosine" in refused(capsys, *base, "--preset", "2")
    assert "expected one of 0 to 6" in refused(capsys, *base, "--preset", "8")
    with pytest.raises(InputError, match=r"trained without words \(preset 0\), got sam\.decoder"):
        check_sam_settings(tmp_path, PixelsConfig().replace(PRESETS[0]), PRESETS[1])
    check_sam_settings(tmp_path, PixelsConfig().replace(PRESETS[0]), PRESETS[0])
    evaluate = ("evaluate", run, "--device", "cpu")
    assert "logit_init" in refused(capsys, *evaluate, "--sam-encoder-logit-init", "2.0")
    assert "there is no such image" in refused(capsys, *base, "--depth", tmp_path / "no.png")
    Image.fromarray(np.zeros((48, 60), dtype=np.uint16)).save(tmp_path / "d.png")
    assert "expected the same size" in refused(capsys, *base, "--depth", tmp_path / "d.png")
    assert "is not in its vocabulary" in refused(capsys, *base, "--tags", "desk")
    assert "no segmentation model" in refused(capsys, "evaluate", tmp_path)
    assert "give the run" in refused(capsys, "evaluate", run / "model")


def test_evaluate_command(capsys, run: Path, tmp_path: Path):
    out = tmp_path / "result.json"
    flags = ("--device", "cpu", "--flip", "--scales", "1.0", "1.5", "--classes", "--out", out)
    found = result_of(capsys, "evaluate", run, *flags)
    rows = found["metrics"]
    assert {row["words"] for row in rows} == {"predicted", "none", "oracle", "shuffled"}
    assert rows[0]["words"] == "predicted"
    assert all(row["images"] == 4 for row in rows)
    assert [row["class"] for row in found["iou"]][-3:] == ["hoop", "tile", "horn"]
    assert {"predicted", "none", "oracle", "shuffled"} < set(found["iou"][0])
    written = json.loads(out.read_text())
    assert written["views"]["flip"] is True
    assert written["command"]


def test_evaluate_uses_the_data_of_a_config(capsys, run: Path):
    """Data from the config, settings from the model."""
    own = result_of(capsys, "evaluate", run / "best", "--device", "cpu")["metrics"]
    given = ("--data", run / "config.yaml", "--device", "cpu")
    lent = result_of(capsys, "evaluate", run / "model", *given)["metrics"]
    for one, other in zip(own, lent, strict=True):
        assert one | {"checkpoint": ""} == other | {"checkpoint": ""}


def test_depth_format_of_the_data_config_is_used(run: Path, tmp_path: Path):
    """The depth format belongs to the data; all other settings come from the model."""
    path = tmp_path / "sun.yaml"
    path.write_text("task: pixels.train\ndata: {kind: sun, root: sun}\n")
    stored = _training_config(run / "model", str(path), None, None)
    assert (stored.inputs.depth, stored.num_classes) == ("metric", 14)
    path.write_text(path.read_text() + "inputs: {depth: sun16, channel_order: bgr}\n")
    stored = _training_config(run / "model", str(path), None, None)
    assert (stored.inputs.depth, stored.inputs.channel_order) == ("sun16", "rgb")
    assert _training_config(run / "model", "nyu_s", None, None).inputs.depth == "png8"


def test_convert_command(capsys, run: Path, tmp_path: Path):
    found = result_of(capsys, "convert", run, "--out", tmp_path / "half", "--half")
    assert found["classes"] == 14
    Segmenter.from_pretrained(tmp_path / "half")
    config = PixelsConfig().replace(SIZES["small"]).encoder
    torch.save(official_encoder(config), tmp_path / "w.pth")
    found = result_of(capsys, "convert", tmp_path / "w.pth", "--out", tmp_path / "s", "--config",
                 "scenes", "--channel_order", "bgr")  # fmt: skip
    assert found["channel order"] == "bgr"
    assert found["words"] == "gated"
    for preset in (0, 2):  # a pretrained encoder can start any preset
        start = tmp_path / str(preset)
        result_of(capsys, "convert", tmp_path / "w.pth", "--out", start, "--config", "scenes",
             "--preset", str(preset))  # fmt: skip
        changes = {"preset": preset, "train.init_from": start}
        PixelsTask(load_config(PixelsTrainConfig, "pixels/scenes", changes))
