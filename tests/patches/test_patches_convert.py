"""Conversion of LAPS and SEPS checkpoints, without running code from the file."""

import argparse
import json
from pathlib import Path

import pytest
import torch
from patch_models import text_folder, vision_folder
from safetensors.torch import load_file
from torch import nn

from eligo.cli import main
from eligo.errors import InputError
from eligo.patches import CrossSparseAggrNet
from eligo.patches.inference.convert import convert_checkpoint
from eligo.patches.model.retrieval_model import RetrievalModel


class Given:
    """The parts of a synthetic checkpoint, and the file."""

    def __init__(self, folder: Path, **net) -> None:
        self.vision, self.text = vision_folder(folder, "vit"), text_folder(folder)
        self.net = CrossSparseAggrNet(8, 16, compat=True, **net)
        self.heads = {"img_enc.vision_proj": nn.Linear(16, 8), "txt_enc.fc": nn.Linear(16, 8)}
        # Names as in the files of the hub, which all checkpoints use.
        self.state = {
            f"{prefix}.{key}": value
            for prefix, where in (
                ("img_enc.visual_encoder", self.vision), ("txt_enc.bert", self.text)
            )
            for key, value in load_file(f"{where}/model.safetensors").items()
        }  # fmt: skip
        for prefix, module in {**self.heads, "cross_net": self.net}.items():
            self.state |= {f"{prefix}.{key}": value for key, value in module.state_dict().items()}
        self.state["img_enc.visual_encoder.pooler.dense.weight"] = torch.zeros(16, 16)
        self.path = folder / "model_best.pth.tar"

    def save(self, prefix: str = "module.", **options) -> Path:
        state = {prefix + key: value for key, value in self.state.items()}
        content = {
            "epoch": 7,
            "model": state,
            "opt": argparse.Namespace(**options),
            "best_rsum": 507.3,
        }
        torch.save(content, self.path)
        return self.path


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize(
    "net", [{}, {"use_paper_version": True}, {"use_paper_version": True, "use_dual_aggr": False}]
)
def test_converted_model_has_the_scores_of_the_checkpoint(tmp_path, prefix, net):
    """Compared with the modules combined by hand as documented."""
    given = Given(tmp_path, **net)
    model, left = convert_checkpoint(
        given.save(prefix, sparse_ratio=0.5, aggr_ratio=0.4), given.vision, given.text
    )
    assert left == ["img_enc.visual_encoder.pooler.dense.weight"]
    assert model.config.match.kind == ("paper" if net else "open")
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    texts = ["a red ball.", "a star is left of a box."]
    with torch.no_grad():
        found = model.match(model.image_side(images), model.text_side(texts))
        pixels = (images / 255 - 0.5) / 0.5
        tokens = given.heads["img_enc.vision_proj"](model.image_encoder.backbone(pixels)[0])
        ids, mask = model.text_encoder.tokenize(texts)
        states = model.text_encoder.backbone(ids, mask.long())[0]
        words = given.heads["txt_enc.fc"](states)
        expected = given.net.eval()(tokens, words, mask)
    assert torch.allclose(found, expected, atol=2e-6)


def test_encoder_weights_come_from_the_checkpoint(tmp_path):
    """The encoder folders provide only their configs."""
    given = Given(tmp_path)
    given.state = {key: value + 0.125 if key.startswith("img_enc.visual") else value
                   for key, value in given.state.items()}  # fmt: skip
    model, _ = convert_checkpoint(given.save(), given.vision, given.text)
    from transformers import ViTModel

    original = ViTModel.from_pretrained(given.vision, add_pooling_layer=False)
    for key, value in original.state_dict().items():
        assert torch.allclose(model.image_encoder.backbone.state_dict()[key], value + 0.125)


def test_registers_of_errors(tmp_path):
    given = Given(tmp_path)
    with pytest.raises(InputError, match=r"do not fit.*sparse_ratio and aggr_ratio"):
        convert_checkpoint(given.save(sparse_ratio=1.0), given.vision, given.text)
    with pytest.raises(InputError, match="expected bert"):
        convert_checkpoint(given.save(), given.vision, given.vision)
    del given.state["txt_enc.fc.weight"], given.state["txt_enc.fc.bias"]
    with pytest.raises(InputError, match=r"no weights under txt_enc\.fc"):
        convert_checkpoint(given.save(), given.vision, given.text)
    (tmp_path / "broken.pth").write_bytes(b"nothing")
    with pytest.raises(InputError, match="no checkpoint"):
        convert_checkpoint(tmp_path / "broken.pth", given.vision, given.text)
    with pytest.raises(InputError, match="cannot be read"):
        convert_checkpoint(tmp_path / "none.pth", given.vision, given.text)


def test_encoder_of_another_size_is_refused(tmp_path):
    given = Given(tmp_path)
    key = next(key for key in given.state if key.endswith("position_embeddings"))
    given.state[key] = torch.zeros(1, 99, 16)
    with pytest.raises(InputError, match="vision encoder is not the one of"):
        convert_checkpoint(given.save(), given.vision, given.text)


class Malicious:
    def __reduce__(self):
        return (Path.touch, (Path("owned"),))


def test_checkpoint_code_is_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = Given(tmp_path)
    torch.save({"model": given.state, "opt": Malicious()}, given.path)
    with pytest.raises(InputError, match="more than tensors and options"):
        convert_checkpoint(given.path, given.vision, given.text)
    assert not Path("owned").exists()


def test_convert_command(tmp_path, capsys):
    given = Given(tmp_path)
    path, out = given.save(sparse_ratio=0.5, aggr_ratio=0.4), tmp_path / "model"
    assert main(["patches", "convert", str(path), "--out", str(out)]) == 2
    assert "--vision" in capsys.readouterr().err
    flags = ["--vision", given.vision, "--text", given.text, "--image_mean", "0.1", "0.2", "0.3"]
    assert main(["patches", "convert", str(path), "--out", str(out), *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "open"
    assert RetrievalModel.from_pretrained(out).config.encoders.image_mean == (0.1, 0.2, 0.3)
    assert main(["patches", "convert", str(out), "--out", str(tmp_path / "half"), "--half"]) == 0
    assert load_file(tmp_path / "half" / "heads.safetensors")["text.weight"].dtype == torch.float16
