"""Frames of videos: which tokens are in which."""

import torch
from jaxtyping import Int
from torch import Tensor

from eligo.tokens.reducer import ReducerContext, TokenIndex


def frame_sizes(context: ReducerContext) -> Int[Tensor, "images 1"]:
    """Return the tokens in the full grid of a frame; an image is one frame."""
    cells = context.grid.prod(-1, keepdim=True)
    return cells if context.frames is None else cells // context.frames.unsqueeze(-1).clamp_min(1)


def frame_ids(context: ReducerContext) -> TokenIndex:
    """Return the frame of each token, counted from 0 without frames that lost all tokens."""
    if context.mask.shape[-1] == 0:
        return context.positions
    frame = context.positions // frame_sizes(context).clamp_min(1)
    frame = frame.masked_fill(~context.mask, -1)
    before = torch.nn.functional.pad(frame.cummax(-1).values[:, :-1], (1, 0), value=-1)
    return ((frame > before).long().cumsum(-1) - 1).clamp_min(0)
