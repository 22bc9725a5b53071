"""Columns, rows and masks of layouts, against loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from eligo.tokens.hooks.layout import Layout, arrange, later_mask, prompt_mask
from eligo.tokens.hooks.prompt import RowIndex

ROWS = [[0, 1, 2], [0, 0, 1, 1], [0, 0, 2], [1]]
"""Rows of images; in some batches a row has none."""


@st.composite
def prompts(draw: st.DrawFn) -> list[tuple[list[int], list[int]]]:
    """Per row: columns of words and of kept vision tokens."""
    kinds = st.lists(st.sampled_from("wv-"), min_size=1, max_size=9)
    rows = draw(st.lists(kinds, min_size=1, max_size=4))

    def of_kind(row: list[str], expected: str) -> list[int]:
        return [column for column, kind in enumerate(row) if kind == expected]

    return [(of_kind(row, "w"), of_kind(row, "v")) for row in rows]


def padded(rows: list[list[int]]) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows], dtype=torch.long)


@settings(deadline=None, max_examples=60)
@given(prompts())
def test_arrange_equals_loops(rows: list[tuple[list[int], list[int]]]) -> None:
    lengths = [len(words) + len(images) for words, images in rows]
    if not any(lengths):
        return
    words, images = padded([row[0] for row in rows]), padded([row[1] for row in rows])
    columns, order, places = arrange(words, images, lengths)
    both = torch.cat([words, images], dim=1)
    for row, (own_words, own_images) in enumerate(rows):
        expected = sorted(own_words + own_images)
        expected = [-1] * (max(lengths) - len(expected)) + expected
        assert columns[row].tolist() == expected
        assert both[row, order[row]].tolist() == expected
        for place, column in zip(places[row].tolist(), both[row].tolist(), strict=True):
            assert place == (-1 if column < 0 else expected.index(column))


@pytest.mark.parametrize("rows", ROWS)
def test_by_row_and_by_image_are_inverse(rows: list[int]) -> None:
    index = RowIndex(rows, max(rows) + 1)
    values = torch.arange(len(rows) * 2 * 3).reshape(len(rows), 2, 3)
    by_row = index.by_row(values, -1)
    for row in range(index.batch):
        own = [values[image] for image in range(len(rows)) if rows[image] == row]
        found = by_row[row].tolist()
        expected = torch.cat([*own, values[:0].flatten(0, 1)]).tolist()
        assert found == expected + [[-1] * 3] * (len(found) - len(expected))
    assert index.by_image(by_row).equal(values)


def biased(width: int) -> Layout:
    nothing = torch.full((2, 1), -1)
    bias = torch.rand(2, width)
    return Layout(None, nothing, nothing, nothing, None, [1, 1], [width, width], bias)


def test_masks_with_a_bias_are_aligned() -> None:
    """SDPA would copy others in every layer."""
    layout, like = biased(5), torch.zeros(2, 5, 4, dtype=torch.bfloat16)
    found = prompt_mask(None, layout, like, flat=False)
    assert found is not None
    assert found.stride(-1) == 1
    assert all(stride % 16 == 0 for stride in found.stride()[:-1])
    assert layout.bias is not None
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    lowest = torch.finfo(torch.bfloat16).min
    expected = torch.where(causal, layout.bias.bfloat16()[:, None, None], lowest)
    assert found.equal(expected)


def test_decoding_masks_grow_by_one_key() -> None:
    layout = biased(5)
    assert layout.bias is not None
    masks_made = set()
    for later in [*range(1, 300), 4]:
        found = later_mask(None, layout, 5, later, torch.zeros(2, 1, 4), flat=False)
        assert found is not None
        assert found[:, 0, 0].equal(F.pad(layout.bias, (0, later)))
        assert all(stride % 16 == 0 for stride in found.stride()[:-1])
        masks_made.add(found.data_ptr())
    assert len(masks_made) == 2, "made anew at every step"
