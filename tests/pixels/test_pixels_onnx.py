"""ONNX: the exported model agrees with torch for any batch, also without words and depth."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.cli import main
from eligo.config import load_config
from eligo.errors import InputError
from eligo.pixels import PixelsModel, PixelsTrainConfig, Segmenter, TextBatch, predict
from eligo.pixels.data.pictures import normalise_depth, normalise_rgb
from eligo.pixels.inference import export
from eligo.pixels.inference.export import example_inputs, export_onnx
from eligo.pixels.inference.segmenter import plain_config, text_encoder
from limits import PROCESS_SECONDS
from shell_blocks import ROOT, lines_of

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

FIXED, DYNAMIC = (
    line
    for line in lines_of(ROOT / "docs" / "pixels_robot.md")
    if line.startswith("eligo pixels export")
)

# One of each module: the export of each takes seconds.
SMALL = {
    "encoder.depths": (1, 1, 1, 1),
    "sam.encoder.stages": (3,),
    "sam.decoder.stages": (1,),
    "head.eval_steps": 2,
}


def lively(**changes) -> Segmenter:
    """With open gates, so that words have an effect."""
    base = load_config(PixelsTrainConfig, "pixels/scenes").smoke().replace(SMALL)
    config = plain_config(base.replace(changes))
    model = PixelsModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("gate", "gate_ffn")):
                parameter.fill_(0.7)
    return Segmenter(config, model, text_encoder(config))


def exported(root: Path, line: str, *flags: str) -> Path:
    """A model exported as documented, in a new process: annotation checks cannot be traced."""
    torch.manual_seed(0)
    lively().save_pretrained(root / "model")
    words = [{"RUN": "model"}.get(word, word) for word in shlex.split(line)[1:]]
    words += ["--num_words", "5", "--words", "wall, red ball", "--json", *flags]
    done = subprocess.run(
        [sys.executable, "-m", "eligo", *words],
        check=True, timeout=PROCESS_SECONDS, capture_output=True, text=True, cwd=root,
    )  # fmt: skip
    assert json.loads(done.stdout)["outputs"] == ["labels", "confidence", "logits", "tag_maps"]
    return root


def opened(folder: Path) -> tuple[Segmenter, Any, dict[str, Any]]:
    about = json.loads((folder / "onnx" / "onnx.json").read_text())
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    assert [given.name for given in session.get_inputs()] == list(about["inputs"])
    assert [given.name for given in session.get_outputs()] == list(about["outputs"])
    return Segmenter.from_pretrained(folder / "model"), session, about


def outputs_of(session: Any, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    found = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    return [torch.from_numpy(value) for value in found]


def check_against_torch(segmenter: Segmenter, session: Any, size: tuple[int, int]) -> None:
    """Any batch; depth and words partly unknown, and without them."""
    for batch in (1, 3):
        inputs = example_inputs(*size, 5, 16, batch)
        rgb, depth, words, mask = inputs.values()
        pixels, text = rgb.permute(0, 3, 1, 2), TextBatch(words, mask)
        settings = {"inputs": segmenter.config.inputs}
        expected = segmenter.runner(pixels, depth[:, None], None, text, **settings)
        labels, confidence, logits, maps = outputs_of(session, inputs)
        assert labels.dtype == torch.uint8
        assert (labels == expected.labels).float().mean() > 0.999
        torch.testing.assert_close(confidence, expected.confidence, atol=1e-3, rtol=0)
        torch.testing.assert_close(maps, expected.tag_maps, atol=1e-3, rtol=0)
        with torch.no_grad():
            z, known = normalise_depth(depth[:, None], segmenter.config.inputs)
            full = segmenter.model(normalise_rgb(pixels), z, known, text).logits
            alone = segmenter.model(normalise_rgb(pixels)).logits
        torch.testing.assert_close(logits, full, atol=1e-3, rtol=0)
        assert (full - alone).abs().max() > 0.01  # words and depth have an effect
        for unknown in (torch.nan, 0.0):
            without = {"depth": torch.full_like(depth, unknown), "word_mask": mask & False}
            found = outputs_of(session, inputs | without)[2]
            torch.testing.assert_close(found, alone, atol=1e-3, rtol=0)


def test_onnx_agrees_with_torch(tmp_path: Path):
    """One test, so that parallel workers export once."""
    folder = exported(tmp_path, FIXED, "--height", "48", "--width", "64")
    segmenter, session, about = opened(folder)
    check_against_torch(segmenter, session, (48, 64))
    assert about["inputs"]["rgb"]["shape"] == ["batch", 48, 64, 3]
    assert about["inputs"]["rgb"]["dtype"] == "uint8"
    assert "metres times 1000" in about["inputs"]["depth"]["values"]
    assert about["outputs"]["labels"] == {"shape": ["batch", 48, 64], "dtype": "uint8"}
    check_script(folder, segmenter)


def check_script(folder: Path, segmenter: Segmenter) -> None:
    """The script of the documentation needs only the folder, and writes what `predict` does."""
    page = ROOT / "docs" / "pixels_robot.md"
    script = page.read_text("utf-8").split("```py\n")[1].split("```")[0]
    assert "eligo" not in script
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(folder / "rgb.png")
    depth = rng.integers(0, 5000, (48, 64)).astype(np.uint16)
    depth[depth < 500] = 0
    Image.fromarray(depth).save(folder / "depth.png")
    command = [sys.executable, "-c", script, "onnx", "rgb.png", "depth.png", "wall, red ball"]
    subprocess.run(command, check=True, timeout=PROCESS_SECONDS, cwd=folder)
    expected = predict(
        folder / "rgb.png", folder / "depth.png", "wall, red ball", model=segmenter
    ).save(folder / "predicted")
    for name, tolerance in (("label.png", 0), ("confidence.png", 1)):
        ours, theirs = (
            np.array(Image.open(each / name)).astype(int) for each in (folder, expected)
        )
        assert (abs(ours - theirs) <= tolerance).mean() > 0.999, name


def test_onnx_of_any_size(tmp_path: Path):
    segmenter, session, about = opened(exported(tmp_path, DYNAMIC))
    for size in ((64, 64), (32, 96)):
        check_against_torch(segmenter, session, size)
    assert about["inputs"]["depth"]["shape"] == ["batch", "height", "width"]
    assert about["inputs"]["rgb"]["height and width"] == "multiples of 32"
    assert about["outputs"]["tag_maps"]["shape"] == ["batch", 5, "height / 8", "width / 8"]


@pytest.mark.parametrize(
    ("flags", "size"), [([], (96, 128)), (["--width", "160"], (96, 160)), (["--height", "0"], None)]
)
def test_export_size_is_the_training_size(
    flags: list[str], size: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The shipped model is exported in the size of its training images."""
    sizes: list[tuple[int, int]] = []
    real = export.export_onnx

    def written(segmenter: Segmenter, out: Path, *, height: int, width: int, **rest: Any) -> Any:
        if size is None:
            return real(segmenter, out, height=height, width=width, **rest)
        sizes.append((height, width))
        return export.Exported("", "", [], [], 0.0)

    monkeypatch.setattr(export, "export_onnx", written)
    code = main(["pixels", "export", "--out", str(tmp_path / "onnx"), *flags])
    assert (code, sizes) == ((2, []) if size is None else (0, [size]))


def test_invalid_exports_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="at least 32 x 32"):
        export_onnx(lively(), tmp_path, height=16, width=64)
    with pytest.raises(InputError, match="num_words"):
        export_onnx(lively(), tmp_path, height=48, width=64, num_words=0)
    with pytest.raises(InputError, match="'sofa' is not in its vocabulary"):
        export_onnx(lively(), tmp_path, height=48, width=64, words=["sofa"])
    with pytest.raises(InputError, match=r"sam\.decoder\.top_m: got 2"):
        export_onnx(lively(**{"sam.decoder.top_m": 2}), tmp_path, height=48, width=64)
