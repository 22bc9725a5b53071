"""Docstring examples and public names of the family."""

import doctest
import importlib

import pytest
import torch

MODULES = [
    "baselines.mmr",
    "compat",
    "data.query",
    "data.text",
    "hosts.client",
    "hosts.prompt",
    "hosts.tokens",
    "metrics",
    "model.bi_encoder",
    "model.decoder",
    "model.losses",
    "pool.index",
    "pool.pool",
    "pool.sampler",
    "teacher.beam_search",
    "teacher.overlap",
    "teacher.teacher",
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str):
    module = importlib.import_module(f"eligo.shots.{name}")
    found = doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={"torch": torch})
    with_examples = [test for test in found if test.examples]
    assert with_examples
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in with_examples:
        assert runner.run(test).failed == 0, test.name


def test_import_needs_no_torch():
    import subprocess
    import sys

    code = (
        "import sys, eligo.shots; from eligo.shots import FitConfig, PointerSelectorV3Config; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names():
    from eligo import shots

    for name in shots.__all__:
        assert getattr(shots, name) is not None
    assert dir(shots) == sorted(shots.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = shots.nothing
