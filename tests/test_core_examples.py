"""Docstring examples of the shared core."""

import doctest
import importlib

import pytest
import torch

MODULES = {
    "eligo.losses": 9,
    "eligo.nn.contexts": 1,
    "eligo.nn.cross_attention": 1,
    "eligo.nn.similarity_scale": 1,
    "eligo.ops.assignment": 3,
    "eligo.ops.bipartite": 3,
    "eligo.ops.diverse": 7,
    "eligo.ops.masked": 6,
    "eligo.ops.maxsim": 2,
    "eligo.ops.topk": 7,
    "eligo.renamed": 1,
    "eligo.selection": 1,
}


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str):
    module = importlib.import_module(name)
    found = doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs={"torch": torch})
    with_examples = [test for test in found if test.examples]
    assert len(with_examples) == MODULES[name]
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in with_examples:
        assert runner.run(test).failed == 0, test.name
