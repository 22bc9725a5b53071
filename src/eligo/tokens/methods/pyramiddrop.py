"""PyramidDrop: rank as FastV does, at several depths (Xing et al., CVPR 2025).

Each cut of the plan drops a share of the tokens; layers and budgets belong to the plan.
"""

from typing import Literal

from eligo.tokens.methods.fastv import AttentionRowMethod


class PyramidDrop(AttentionRowMethod):
    """The tokens that the last prompt token attends to most, for each of several cuts."""

    name: Literal["pyramiddrop"] = "pyramiddrop"
