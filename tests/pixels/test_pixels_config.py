"""Configs: the four sizes, the seven presets, invalid settings, parameters and FLOPs."""

import subprocess
import sys

import pytest
import torch
from pixel_cases import sized, tiny_config

from benchmarks.pixels.speed import Case, giga_macs
from eligo.errors import ConfigError
from eligo.pixels import PRESETS, Encoder, PixelsConfig, PixelsModel

PARAMETERS = {"S": 25_416_730, "B": 52_604_610, "L": 93_784_146, "small": 745_372}
GIGA_MACS = {"S": 31.5, "B": 67.9, "L": 125.3}
COSINE, DOT = 14.285714, 1.0


@pytest.mark.parametrize("size", PARAMETERS)
def test_number_of_encoder_parameters(size: str):
    with torch.device("meta"):
        encoder = Encoder(sized(size).encoder)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == PARAMETERS[size]


@pytest.mark.parametrize("size", GIGA_MACS)
def test_flops_of_the_encoder(size: str):
    found = giga_macs(Case(size=size))
    assert found == pytest.approx(GIGA_MACS[size], abs=0.05)


@pytest.mark.parametrize(("size", "modules"), [("S", [2, 5, 2]), ("L", [4, 4, 2])])
def test_alignment_modules_per_stage(size: str, modules: list[int]):
    with torch.device("meta"):
        model = PixelsModel(sized(size))
    assert [len(model.encoder.align[stage]) for stage in "123"] == modules
    assert list(model.head.align) == ["1", "2", "3"]


def test_defaults_are_preset_1():
    sam = PixelsConfig().sam
    decoder, encoder = sam.decoder, sam.encoder
    assert (decoder.use_cosine, decoder.learnable_temp, decoder.logit_init) == (True, True, COSINE)
    assert (encoder.use_cosine, encoder.learnable_temp, encoder.logit_init) == (False, False, DOT)
    assert sam.form == "gated"
    assert PixelsConfig().replace(PRESETS[1]) == PixelsConfig()


CL, CF = (True, True, COSINE), (True, False, COSINE)
DL, DF = (False, True, DOT), (False, False, DOT)


@pytest.mark.parametrize(
    ("number", "decoder", "encoder"),
    [(1, CL, DF), (2, CL, CL), (3, DF, DF), (4, DF, CL), (5, CF, CF), (6, DL, DL)],
)
def test_presets_set_encoder_and_decoder(number: int, decoder: tuple, encoder: tuple):
    sam = tiny_config(**PRESETS[number]).sam
    for side, modes in ((sam.decoder, decoder), (sam.encoder, encoder)):
        assert (side.use_cosine, side.learnable_temp, side.logit_init) == modes


def test_preset_0_uses_no_words():
    model = PixelsModel(tiny_config(**PRESETS[0]))
    assert not any("align" in name or "text" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sam.decoder.logit_init": 0.0}, "greater than 0"),
        ({"sam.decoder.logit_init": 101.0}, "0.01 to 100"),
        ({"sam.decoder.stages": (0, 1)}, "from 1 to 3"),
        ({"sam.encoder.stages": (4,)}, "from 0 to 3"),
        ({"sam.encoder.stages": (2, 1)}, "rising"),
        ({"sam.encoder.groups": (0, 1, 1, 1)}, "at least one block"),
        ({"sam.legacy_text_mask": True}, "form: legacy"),
        ({"sam.decoder.use_cosin": True}, "use_cosine"),
        ({"encoder.heads": (3, 4, 8, 16)}, "even width"),
        ({"encoder.depths": (0, 4, 8, 16)}, "at least one block"),
        ({"encoder.dims": (65, 128, 256, 512)}, "even number"),
    ],
)
def test_invalid_configs_are_refused(changes: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        PixelsConfig().replace(changes)


def test_bounds_apply_only_to_learnable_multipliers():
    tiny_config(**{"sam.decoder.logit_init": 500.0, "sam.decoder.learnable_temp": False})
    tiny_config(**{"sam.decoder.logit_init": 500.0, "sam.form": "legacy"})


def test_large_scale_of_dot_products_is_logged(caplog: pytest.LogCaptureFixture):
    with caplog.at_level("INFO", logger="eligo.pixels"), torch.device("meta"):
        PixelsModel(tiny_config())
        assert not caplog.records
        PixelsModel(tiny_config(**{"sam.encoder.logit_init": 14.0}))
    assert "sam.encoder.logit_init is 14" in caplog.text
    assert "1.0" in caplog.text


def test_configs_import_no_torch():
    code = "import sys; from eligo.pixels import SIZES, PRESETS, PixelsConfig; PixelsConfig()"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True)
