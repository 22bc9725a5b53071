"""Official weights load strictly and round-trip unchanged."""

import pytest
import torch
from pixel_cases import official_encoder, official_model, pictures, sized, some_text, tiny_config
from torch import Tensor

from eligo.errors import InputError
from eligo.pixels import Encoder, PixelsModel, from_official, to_official

LEGACY = {"sam.form": "legacy"}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype, name
        assert torch.equal(found[name], value), name  # including the shape


@pytest.mark.parametrize("size", ["S", "B", "L", "small"])
def test_encoder_round_trip(size: str):
    config = sized(size).encoder
    state = official_encoder(config)
    encoder = from_official(state, config)
    assert isinstance(encoder, Encoder)
    assert_same(to_official(encoder), state)


@pytest.mark.parametrize("learnable", [True, False])
@pytest.mark.parametrize("wrapped", [None, "model", "state_dict"])
def test_whole_model_round_trip(learnable: bool, wrapped: str | None):
    config = tiny_config(**LEGACY, **{"sam.decoder.learnable_temp": learnable})
    state = official_model(config)
    model = from_official(state if wrapped is None else {wrapped: state, "epoch": 3}, config)
    assert isinstance(model, PixelsModel)
    assert not model.training
    assert_same(to_official(model), state)


def test_size_s_with_words_round_trip():
    config = sized("S", **LEGACY)
    state = official_model(config)
    assert_same(to_official(from_official(state, config)), state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_load(dtype: torch.dtype):
    """Derived values stored with the weights are rounded as well."""
    config = tiny_config(**LEGACY)
    state = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in official_model(config).items()
    }
    model = from_official(state, config)
    again = to_official(model)
    assert all(torch.equal(again[name].to(value.dtype), value) for name, value in state.items())


def test_stacking_keeps_each_projection():
    config = tiny_config().encoder
    state = official_encoder(config)
    weight = from_official(state, config).stages[1].blocks[0].attention.qkv.weight
    for part, found in zip("qkv", weight.chunk(3), strict=True):
        assert torch.equal(found, state[f"layers.1.blocks.0.Attention.{part}_proj.weight"])


def test_effective_gate_of_the_encoder():
    """gamma * gamma_scale: moving a factor between them changes nothing."""
    config = tiny_config(**LEGACY)
    state = official_model(config)
    rgb, depth = pictures()
    text = some_text(3, 2)
    before = from_official(state, config)(rgb, depth, None, text).logits
    for name in list(state):
        if name.startswith("backbone.") and name.endswith(".gamma_scale"):
            state[name] = state[name] / 4
            state[name.replace("gamma_scale", "gamma")] = 4 * state[name.replace("_scale", "")]
    after = from_official(state, config)(rgb, depth, None, text).logits
    torch.testing.assert_close(after, before)


def test_batch_counts_may_be_absent():
    config = tiny_config().encoder
    state = official_encoder(config)
    short = {name: v for name, v in state.items() if not name.endswith("num_batches_tracked")}
    back = to_official(from_official(short, config))
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], value) for name, value in short.items())


@pytest.mark.parametrize("wrapper", [None, "model", "state_dict"])
def test_prefixes_of_parallel_training_are_removed(wrapper: str | None):
    config = tiny_config(**LEGACY)
    state = official_model(config)
    named = {f"module.{name}": value for name, value in state.items()}
    model = from_official(named if wrapper is None else {wrapper: named, "epoch": 3}, config)
    assert all(torch.equal(value, state[name]) for name, value in to_official(model).items())


def test_scalars_may_have_one_dimension():
    config = tiny_config(**LEGACY)
    state = official_model(config)
    rows = {name: value[None] if value.ndim == 0 else value for name, value in state.items()}
    back = to_official(from_official(rows, config))
    assert all(torch.equal(value, state[name]) for name, value in back.items())


def test_encoder_of_a_whole_model():
    config = tiny_config(**LEGACY)
    state = official_model(config)
    drop = ("decode_head.", "backbone.encoder_sam_blocks.")
    encoder = from_official(state, config.encoder, drop=drop)
    assert all(torch.equal(v, state[f"backbone.{k}"]) for k, v in to_official(encoder).items())


def test_pretrained_encoder_into_a_new_model():
    config = tiny_config()
    state = official_encoder(config.encoder) | {"head.weight": torch.zeros(2, 2)}
    fresh = ("head.", "encoder.align.", "text_norm.")
    model = from_official(state, config, drop=["head."], fresh=fresh)
    expected = from_official(state, config.encoder, drop=["head."])
    rgb, depth = pictures()
    for found, original in zip(model.encoder(rgb, depth), expected(rgb, depth), strict=True):
        assert torch.equal(found, original)
    with pytest.raises(InputError, match=r"unexpected: backbone\.head\.weight"):
        from_official(state, config, fresh=fresh)
    with pytest.raises(InputError, match=r"sam\.form: legacy"):
        from_official(state, config, drop=["head."])


def _without(state: dict[str, Tensor]) -> None:
    del state["layers.2.blocks.1.Attention.k_proj.bias"]


def _with_more(state: dict[str, Tensor]) -> None:
    state["layers.9.blocks.1.x"] = torch.zeros(1)


def _other_shape(state: dict[str, Tensor]) -> None:
    state["extra_norms.0.weight"] = torch.zeros(7)


def _turned(state: dict[str, Tensor]) -> None:
    name = "layers.0.blocks.0.ffn.fc1.weight"
    state[name] = state[name].T


def _other_decay(state: dict[str, Tensor]) -> None:
    state["layers.0.blocks.0.Geo.decay"] = state["layers.0.blocks.0.Geo.decay"] * 1.01


def _other_angle(state: dict[str, Tensor]) -> None:
    state["layers.0.blocks.0.Geo.angle"] = torch.zeros(6)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without, r"missing: layers\.2\.blocks\.1\.Attention\.k_proj\.bias"),
        (_with_more, r"unexpected: layers\.9"),
        (_other_shape, r"shape: extra_norms\.0\.weight \(7,\)"),
        (_turned, r"shape: layers\.0\.blocks\.0\.ffn\.fc1\.weight"),
        (_other_decay, r"value: layers\.0\.blocks\.0\.Geo\.decay"),
        (_other_angle, r"value: layers\.0\.blocks\.0\.Geo\.angle"),
    ],
)
def test_loading_is_strict(spoil, message: str):
    config = tiny_config().encoder
    state = official_encoder(config)
    spoil(state)
    with pytest.raises(InputError, match=message):
        from_official(state, config)


def test_another_size_is_refused_in_few_lines():
    state = official_encoder(tiny_config().encoder)
    with pytest.raises(InputError, match=r"and \d+ more like it") as caught:
        from_official(state, sized("small").encoder)
    assert len(str(caught.value).splitlines()) < 40


def test_invalid_state_dicts_are_refused():
    with pytest.raises(InputError, match="not a tensor"):
        from_official({"weights": [1, 2]}, tiny_config().encoder)


@pytest.mark.parametrize("changes", [{}, {"encoder.depth_stem": True, "sam.form": "legacy"}])
def test_models_without_official_form_are_refused(changes: dict):
    with pytest.raises(InputError, match="official weights have no such tensor"):
        to_official(PixelsModel(tiny_config(**changes)))
