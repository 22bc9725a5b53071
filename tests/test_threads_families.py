"""Threads that share a model get the same results as alone (tokens: test_threads.py)."""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from eligo.errors import InputError
from eligo.images import open_image
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pixels import predict
from eligo.pixels.inference.segmenter import Segmenter
from eligo.pretrained.load import quiet_transformers
from eligo.shots import LearnedSelector, PointerSelectorV1Config, Pool, Query, build_model

THREADS = 4


@pytest.fixture(autouse=True)
def _contention() -> Iterator[None]:
    """Switch threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def in_threads(work: Callable[[int], Any], calls: int) -> list[Any]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(calls)))


def test_retrieval_model_in_threads() -> None:
    """Texts that are truncated, padded and counted concurrently."""
    model = RetrievalModel.tiny().eval()
    logging.getLogger("eligo").setLevel(logging.ERROR)  # hides messages about truncated texts

    def work(number: int) -> torch.Tensor:
        texts = [f"red box {number * 7 + i} " * (1 + number * i % 40) for i in range(8)]
        found = model.encode_texts(texts, dense=number % 3 == 0)
        return found.words * found.mask.unsqueeze(-1)

    try:
        alone = [work(number) for number in range(120)]
        model.text_encoder._counted.clear()
        found = in_threads(work, len(alone))
    finally:
        logging.getLogger("eligo").setLevel(logging.NOTSET)
    for number, (got, expected) in enumerate(zip(found, alone, strict=True)):
        assert got.shape == expected.shape, number
        assert torch.equal(got, expected), number


def test_segmenter_in_threads() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (4, 48, 64, 3), dtype=np.uint8)
    pictures = [Image.fromarray(one) for one in pixels]
    tags = ["wall, floor", "ball", "wall, floor, ball, box", ""]
    segmenter = Segmenter.from_pretrained()

    def work(number: int) -> torch.Tensor:
        place = number % len(tags)
        return predict(pictures[place], tags=tags[place], model=segmenter).confidence

    found = in_threads(work, 16)  # first, so that threads load the text encoder
    alone = [work(number) for number in range(len(tags))]
    for number, one in enumerate(found):
        assert torch.equal(one, alone[number % len(tags)]), number


def selector_of(size: int) -> tuple[LearnedSelector, list[Query]]:
    generator = torch.Generator().manual_seed(0)
    pool = Pool([f"d{i}" for i in range(size)], torch.randn(size, 16, generator=generator))
    torch.manual_seed(0)
    model = build_model(PointerSelectorV1Config(d_model=16, hidden_dim=8, dropout=0.0))
    queries = [Query(f"q{i}", torch.randn(16, generator=generator)) for i in range(6)]
    return LearnedSelector.of(model, pool, rerank=16), queries


@pytest.mark.parametrize("_trial", range(5))
def test_pool_index_is_built_by_one_thread(_trial: int) -> None:
    selector, queries = selector_of(2000)
    start = Barrier(THREADS)

    def work(number: int) -> list[str]:
        start.wait()
        return selector.pool.picked(selector.select(queries[number], 3))

    found = in_threads(work, THREADS)
    assert found == [selector.pool.picked(selector.select(q, 3)) for q in queries[:THREADS]]


def test_pool_can_grow_while_others_select() -> None:
    selector, queries = selector_of(200)

    def work(number: int) -> None:
        query = queries[number % len(queries)]
        if number % 4 == 3:
            selector.add([f"new{number}"], query.vector[None])
            selector.remove([f"new{number}"])
        assert selector.select(query, 3).indices.numel() == 3

    in_threads(work, 80)
    again, _ = selector_of(200)
    for query in queries:
        expected = again.pool.picked(again.select(query, 3))
        assert selector.pool.picked(selector.select(query, 3)) == expected


def test_failed_fit_leaves_the_selector_unchanged() -> None:
    selector, queries = selector_of(40)
    expected = selector.pool.picked(selector.select(queries[0], 3))
    other = Pool([f"other{i}" for i in range(9)], torch.randn(9, 16))
    with pytest.raises(InputError):
        selector.fit([], other)
    assert selector.pool.picked(selector.select(queries[0], 3)) == expected


def test_loading_in_threads_keeps_warnings_and_logging_settings(tmp_path) -> None:
    from transformers.utils import logging as of_transformers

    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    state = (
        of_transformers.get_verbosity(),
        of_transformers.is_progress_bar_enabled(),
        list(warnings.filters),
    )
    opened, left = Barrier(2), Event()

    def first() -> None:
        with quiet_transformers():
            opened.wait()
        left.set()

    def second() -> None:
        with quiet_transformers():
            opened.wait()
            open_image(tmp_path / "a.png")
            left.wait()

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(first), pool.submit(second)]:
            done.result()
    assert state == (
        of_transformers.get_verbosity(),
        of_transformers.is_progress_bar_enabled(),
        list(warnings.filters),
    )
