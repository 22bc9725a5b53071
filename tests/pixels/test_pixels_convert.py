"""Conversion of official files: settings found in the file override everything else."""

from pathlib import Path

import pytest
import torch
from pixel_cases import official_encoder, official_model

from eligo.config import load_config
from eligo.errors import InputError
from eligo.pixels import SIZES, PixelsConfig, PixelsTrainConfig, Segmenter
from eligo.pixels.inference.convert import convert_official

FEW = {"encoder.depths": (1, 1, 1, 1)}
WORDS = {"sam.form": "legacy", "sam.decoder.stages": (1, 3), "sam.encoder.stages": (2,)}


def config_of(size: str, **changes) -> PixelsConfig:
    return PixelsConfig().replace({**SIZES[size], **changes})


@pytest.mark.parametrize("base", ["nyu_l", "scenes"])
@pytest.mark.parametrize("size", ["S", "small"])
def test_size_is_read_from_the_file(tmp_path: Path, base: str, size: str):
    """For any given base config."""
    torch.save(official_encoder(config_of(size).encoder), tmp_path / "w.pth")
    given = load_config(PixelsTrainConfig, f"pixels/{base}")
    converted = convert_official(tmp_path / "w.pth", given).config
    kept = {"depth_stem": given.encoder.depth_stem, "drop_path": given.encoder.drop_path}
    assert converted.encoder == config_of(size).encoder.replace(kept)
    assert converted.sam.encoder.groups == config_of(size).sam.encoder.groups


def test_fixed_multiplier_is_read_from_the_file(tmp_path: Path):
    """The multiplier of the logits is stored in the weights; flags cannot change it."""
    config = config_of("S", num_classes=7, text_dim=24, **FEW, **WORDS)
    state = official_model(config)
    for key in state:
        if key.endswith("decoder_logit_scale"):
            state[key] = torch.tensor(14.285714).log()
        if key.endswith("encoder_logit_scale"):
            state[key] = torch.tensor(2.5).log()
    torch.save(state, tmp_path / "w.pth")
    base = load_config(PixelsTrainConfig, "pixels/nyu_s")

    def converted(**sam):
        changes = FEW | {f"sam.{key.replace('__', '.')}": value for key, value in sam.items()}
        return convert_official(tmp_path / "w.pth", base, changes=changes).config.sam

    sam = converted(decoder__use_cosine=False, decoder__learnable_temp=False)
    assert (sam.decoder.logit_init, sam.encoder.logit_init) == (14.285714, 2.5)
    with pytest.raises(InputError, match=r"decoder\.logit_init: got 1\.0, but .* 14\.2857"):
        converted(decoder__learnable_temp=False, decoder__logit_init=1.0)
    converted(decoder__learnable_temp=False, decoder__logit_init=14.2857)
    # The initial value of a learned multiplier is not in the file.
    assert converted(decoder__logit_init=9.0).decoder.logit_init == 9.0
    state["decode_head.dec_sam_layers.0.decoder_logit_scale"] = torch.tensor(1.0)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"decoder.* learned; give --sam-decoder-learnable-temp"):
        converted(decoder__learnable_temp=False)


def test_words_are_read_only_if_used(tmp_path: Path):
    """Without words no CLIP is loaded."""
    config = config_of("S", num_classes=7, text_dim=24, **FEW, **WORDS)
    state = official_model(config)
    for key in [key for key in state if key.endswith("encoder_logit_scale")]:
        state[key] = torch.tensor(0.0)
    torch.save(state, tmp_path / "w.pth")
    base = load_config(PixelsTrainConfig, "pixels/nyu_s")
    base = base.replace({"text.encoder.model": str(tmp_path / "no clip")})
    converted = convert_official(tmp_path / "w.pth", base, changes=FEW)
    converted.save_pretrained(tmp_path / "model")
    again = Segmenter.from_pretrained(tmp_path / "model")
    assert again.text(()) is None
    with torch.no_grad():
        assert again.model(torch.randn(1, 3, 32, 32), text=again.text(())).logits.isfinite().all()
    for segmenter in (converted, again):
        with pytest.raises(InputError, match=r"text\.encoder\.model: .*no clip: there is no such"):
            segmenter.text(["desk"])
