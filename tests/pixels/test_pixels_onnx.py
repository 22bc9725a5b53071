"""ONNX: the exported model agrees with torch for any batch, also without words and depth."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from eligo.cli import main
from eligo.config import load_config
from eligo.errors import InputError
from eligo.pixels import PixelsModel, PixelsTrainConfig, Segmenter, TextBatch
from eligo.pixels.inference import export
from eligo.pixels.inference.export import example_inputs, export_onnx
from eligo.pixels.inference.segmenter import plain_config, text_encoder
from limits import PROCESS_SECONDS

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

EXPORT = """
import sys
from eligo.cli import main
model, out = f"{sys.argv[1]}/model", f"{sys.argv[1]}/onnx"
flags = ["--height", "48", "--width", "64", "--num_words", "5", "--json"]
sys.exit(main(["pixels", "export", "--model", model, "--out", out, *flags]))
"""

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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model exported in a new process: annotation checks cannot be traced."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("models")
    lively().save_pretrained(root / "model")
    command = [sys.executable, "-c", EXPORT, str(root)]
    done = subprocess.run(
        command, check=True, timeout=PROCESS_SECONDS, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["outputs"] == ["logits", "tag_maps"]
    return root


def opened(folder: Path) -> tuple[Segmenter, Any, dict[str, Any]]:
    about = json.loads((folder / "onnx" / "onnx.json").read_text())
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    assert [given.name for given in session.get_inputs()] == list(about["inputs"])
    return Segmenter.from_pretrained(folder / "model"), session, about


def outputs_of(session: Any, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    names = [given.name for given in session.get_inputs()]
    found = session.run(None, {n: v.numpy() for n, v in zip(names, inputs, strict=True)})
    return [torch.from_numpy(value) for value in found]


def test_onnx_agrees_with_torch(folder: Path):
    """One test, so that parallel workers export once."""
    segmenter, session, about = opened(folder)
    for batch in (1, 3):
        inputs = example_inputs(16, 48, 64, 5, batch)
        with torch.no_grad():
            expected = segmenter.model(*inputs[:3], TextBatch(*inputs[3:]))
            wordless = segmenter.model(*inputs[:3])
        logits, maps = outputs_of(session, inputs)
        torch.testing.assert_close(logits, expected.logits, atol=1e-3, rtol=0)
        torch.testing.assert_close(maps, expected.tag_maps, atol=1e-3, rtol=0)
        assert (expected.logits - wordless.logits).abs().max() > 0.01  # the words have an effect
    rgb, depth, mask, words, word_mask = example_inputs(16, 48, 64, 5, 1)
    found = outputs_of(session, (rgb, depth, mask & False, words, word_mask & False))[0]
    with torch.no_grad():
        expected = segmenter.model(rgb).logits
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)  # masked words have no effect
    assert about["inputs"]["rgb"] == {"shape": ["batch", 3, 48, 64], "dtype": "float32"}
    assert about["outputs"] == ["logits", "tag_maps"]


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
    with pytest.raises(InputError, match=r"sam\.decoder\.top_m: got 2"):
        export_onnx(lively(**{"sam.decoder.top_m": 2}), tmp_path, height=48, width=64)
