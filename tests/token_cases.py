"""Random contexts for methods that reduce vision tokens: survivors of small grids, padded anywhere.

Padding holds NaN and invalid positions, so that a method that reads it fails.
"""

import torch
from hypothesis import strategies as st
from torch import Tensor

from eligo.tokens.reducer import ReducerContext

ROWS = ("attention_row", "cls_row", "sizes")


def make_context(
    seed: int,
    num_images: int = 3,
    num_tokens: int = 12,
    *,
    share: float = 0.8,
    ties: bool = False,
    width: int = 16,
    sizes: bool = False,
    frames: int = 0,
) -> ReducerContext:
    """Each image keeps about `share` of its slots; with `ties`, features are few and exact.

    With `frames`, all are videos of so many.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        if not ties:
            return torch.randn(*shape, generator=generator)
        axis = torch.randint(3, shape[:-1], generator=generator)
        return torch.nn.functional.one_hot(axis, shape[-1]).float()

    def weights() -> Tensor:
        values = torch.rand(num_images, num_tokens, generator=generator)
        return (4 * values).round() / 4 if ties else values

    mask = torch.rand(num_images, num_tokens, generator=generator) < share
    grid = torch.randint(1, 5, (num_images, 2), generator=generator)
    # Wide enough for all tokens.
    rows_needed = -(-mask.sum(-1) // grid[:, 1])
    grid[:, 0] = torch.maximum(grid[:, 0], rows_needed)
    if frames:
        grid[:, 0] = -(-grid[:, 0] // frames) * frames
    positions = torch.full((num_images, num_tokens), 10_000)
    for row in range(num_images):
        cells, count = int(grid[row].prod()), int(mask[row].sum())
        picked = torch.randperm(cells, generator=generator)[:count].sort().values
        positions[row, mask[row]] = picked
    words = torch.rand(num_images, 4, generator=generator) < 0.7
    words[:, 1] = True
    rows = torch.stack([weights() for _ in range(4)], 1)  # (images, words, tokens)
    return ReducerContext(
        features=draw(num_images, num_tokens, width).masked_fill(~mask[..., None], torch.nan),
        mask=mask,
        positions=positions,
        grid=grid,
        frames=torch.full((num_images,), frames) if frames else None,
        sizes=(1 + weights()).masked_fill(~mask, torch.nan) if sizes else None,
        question=draw(num_images, 4, width).masked_fill(~words[..., None], torch.nan),
        question_mask=words,
        attention_row=weights().masked_fill(~mask, torch.nan),
        question_rows=rows.masked_fill(~(words[:, :, None] & mask[:, None]), torch.nan),
        cls_row=weights().masked_fill(~mask, torch.nan),
        object_row=weights().masked_fill(~mask, torch.nan),
        scene=torch.rand(num_images, num_tokens, generator=generator) < 0.3,
    )


def full_context(num_rows: int, num_columns: int, num_images: int = 1) -> ReducerContext:
    """Whole grids, no padding, all optional fields."""
    num_tokens = num_rows * num_columns
    return ReducerContext(
        features=torch.randn(num_images, num_tokens, 16),
        mask=torch.ones(num_images, num_tokens, dtype=torch.bool),
        positions=torch.arange(num_tokens).expand(num_images, num_tokens),
        grid=torch.tensor([[num_rows, num_columns]] * num_images),
        question=torch.randn(num_images, 3, 16),
        attention_row=torch.rand(num_images, num_tokens),
        question_rows=torch.rand(num_images, 3, num_tokens),
        cls_row=torch.rand(num_images, num_tokens),
        object_row=torch.rand(num_images, num_tokens),
        scene=torch.rand(num_images, num_tokens) < 0.2,
    )


def one_row(context: ReducerContext, row: int, only_real: bool = False) -> ReducerContext:
    """The context of one image alone, optionally without padding."""
    tokens = context.mask[row] if only_real else torch.ones_like(context.mask[row])
    fields = {}
    for name, value in vars(context).items():
        per_token = name not in ("grid", "frames", "question", "question_mask")
        fields[name] = value[row : row + 1] if isinstance(value, Tensor) else value
        if per_token and isinstance(value, Tensor):
            fields[name] = (
                fields[name][:, tokens] if name != "question_rows" else (fields[name][:, :, tokens])
            )
    return ReducerContext(**fields)


contexts = st.builds(
    make_context,
    seed=st.integers(0, 2**20),
    num_tokens=st.integers(1, 12),
    share=st.sampled_from([0.3, 0.8, 1.0]),
    ties=st.booleans(),
    sizes=st.booleans(),
    frames=st.sampled_from([0, 3]),
)
