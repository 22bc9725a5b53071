"""Whole models against a plain implementation with the same official weights."""

import doctest
import importlib

import pytest
import torch
from pixel_cases import official_model, pictures, some_text, tiny_config
from pixel_plain import PlainModel

from benchmarks.pixels import speed
from eligo.pixels import from_official


@pytest.mark.parametrize("cosine", [True, False])
@pytest.mark.parametrize("learnable", [True, False])
@pytest.mark.parametrize("counts", [(3, 5), (2, 0), (0, 0)])
def test_whole_model_matches_the_plain_implementation(
    cosine: bool, learnable: bool, counts: tuple[int, int]
):
    """With LayerScale, groups of blocks, some samples without words; encoder and decoder differ."""
    config = tiny_config(
        **{
            "sam.form": "legacy",
            "sam.encoder.use_cosine": not cosine,
            "sam.decoder.use_cosine": cosine,
            "sam.encoder.learnable_temp": learnable,
            "sam.decoder.learnable_temp": not learnable,
            "sam.encoder.groups": (1, 1, 2, 2),
            "encoder.layer_scale": (None, None, 1e-6, 1e-6),
        }
    )
    state = official_model(config)
    model, plain = from_official(state, config), PlainModel(state, config)
    rgb, depth = pictures(2, *((45, 67) if cosine else (64, 96)))  # any size
    text, bases = some_text(*counts), torch.rand(1, 24, 8)
    words = [text.embeddings[i, : counts[i]] for i in range(2)]
    with torch.no_grad():
        found = model(rgb, depth, None, text, bases=bases).logits
        expected = plain.model(rgb, depth, words, bases)
    assert expected.std() > 1e-2
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_plain_encoder_of_the_benchmark_matches():
    case = speed.Case(size="small", height=64, width=96, batch=2)
    model, rgb, depth = case.build()
    with torch.no_grad():
        for what in ("encoder", "model"):
            runs = speed.sides(model, what, rgb, depth)
            plain, ours = (runs[name]() for name in ("plain", "eligo"))
            for a, b in zip(plain, ours, strict=True):
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["model.encoder", "model.model", "text.batch"])
def test_docstring_examples(name: str):
    module = importlib.import_module(f"eligo.pixels.{name}")
    found = doctest.DocTestFinder().find(module, extraglobs={"torch": torch})
    found = [test for test in found if test.examples]
    assert found
    for test in found:
        assert doctest.DocTestRunner().run(test).failed == 0, test.name
