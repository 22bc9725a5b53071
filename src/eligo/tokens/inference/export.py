"""Stage 1 as a module for engines that run the tower and the language model themselves.

Such an engine needs the number of placeholders before it has features: `Plan.count` returns it. The
module maps the tower features of an image to fewer features, with their positions in the grid and
the number of tokens that each one replaces. Engines add no attention bias, so plans that merge and
need one (`size_bias`) are errors; cuts between layers run in transformers only. An engine with
one-dimensional positions numbers the kept columns anew: `positions` says what the plan expects
(docs/serving.md).
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

import eligo
from eligo.config.bounds import check_count
from eligo.errors import EligoError, InputError
from eligo.io.files import write_bytes, write_text
from eligo.selection import Selection
from eligo.tokens.plan import Plan
from eligo.tokens.reducer import Reducer, ReducerContext

MODULE, ABOUT = "stage1.pt2", "stage1.json"
_MOST_WORDS = 4096


class Stage1Module(nn.Module):
    """Maps features of one image to fewer features, their positions and sizes."""

    def __init__(self, reducer: Reducer, budget: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.reducer = reducer
        self.budget, self.grid = budget, grid

    def select(
        self,
        features: Float[Tensor, "1 tokens width"],
        question: Float[Tensor, "1 words question_width"] | None = None,
        question_mask: Bool[Tensor, "1 words"] | None = None,
    ) -> Selection:
        """Return the selection of the reducer, in raster order."""
        tokens, device = features.shape[1], features.device
        context = ReducerContext(
            features=features,
            mask=torch.ones((1, tokens), dtype=torch.bool, device=device),
            positions=torch.arange(tokens, device=device)[None],
            grid=torch.tensor([self.grid], device=device),
            question=question,
            question_mask=question_mask,
        )
        return self.reducer.select(context, torch.tensor([self.budget])).in_order()

    def forward(
        self,
        features: Float[Tensor, "1 tokens width"],
        question: Float[Tensor, "1 words question_width"] | None = None,
        question_mask: Bool[Tensor, "1 words"] | None = None,
    ) -> tuple[Float[Tensor, "1 kept width"], Int64[Tensor, "1 kept"], Float[Tensor, "1 kept"]]:
        """Return features, raster indices in the grid, and tokens that each one replaces."""
        selection = self.select(features, question, question_mask)
        folded = selection.fold(features).to(features.dtype)
        return folded, selection.indices.long(), selection.sizes


@dataclass(frozen=True)
class ExportedStage1:
    """Description of the written files."""

    module: str
    about: str
    reducer: str
    inputs: list[str]
    tokens: int
    kept: int
    left_out: list[str]
    """Parts of the plan that an engine cannot run."""
    positions: str
    """`reindex`: kept tokens are numbered anew, as engines with one-dimensional positions do;
    `original`: the engine must keep their positions in the full prompt."""


def export_stage1(
    plan: Plan,
    out: str | Path,
    *,
    grid: tuple[int, int],
    width: int,
    question_width: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> ExportedStage1:
    """Write `stage1.pt2` (for `torch.export.load`) and `stage1.json`, which describes it.

    `grid`: rows and columns of the vision tokens; `width`: that of the tower features;
    `question_width`: that of the text embeddings, for a merger that reads the question.
    """
    if plan.stage1 is None:
        raise InputError("got a plan without stage 1; cuts between layers run in transformers only")
    for side in grid:
        check_count("grid", side)
    check_count("width", width)
    num_tokens, budget = grid[0] * grid[1], plan.stage1.budget
    if budget is not None and budget > num_tokens:
        raise InputError(
            f"Plan: got a budget of {budget}; expected at most {num_tokens}, the number of vision "
            f"tokens of a grid of {grid[0]} x {grid[1]}"
        )
    reducer = plan.stage1.reducer
    unavailable = sorted(set(reducer.needs) - {"question"})
    if unavailable:
        raise InputError(
            f"{reducer.name}: reads {', '.join(unavailable)}, which an engine does not provide; "
            "expected a reducer that reads features, or features and question"
        )
    module = Stage1Module(reducer, plan.count(grid), grid).eval()
    features = torch.randn(1, num_tokens, width, dtype=dtype)
    arguments: tuple[Tensor, ...] = (features,)
    if "question" in reducer.needs:
        if question_width is None:
            raise InputError(f"{reducer.name}: reads the question; give question_width")
        words = torch.randn(1, 8, question_width, dtype=dtype)
        arguments = (features, words, torch.ones(1, 8, dtype=torch.bool))
    with torch.no_grad():
        merges = module.select(*arguments).assignment is not None
    if merges and plan.size_bias:
        raise InputError(
            f"{reducer.name}: this plan adds log(size) to the attention of merged tokens "
            "(size_bias), which engines do not support; train with size_bias: false and export "
            "that (for a training-free method: --plain), or run this plan in transformers"
        )
    program = _exported(module, arguments, reducer.name)
    left_out = [f"cut at layer {cut.layer}" for cut in plan.cuts]
    names = ["features", "question", "question_mask"][: len(arguments)]
    about = {
        "eligo": eligo.__version__,
        "torch": torch.__version__,
        "reducer": reducer.name,
        "inputs": {
            name: {"shape": _shape(name, value), "dtype": str(value.dtype).removeprefix("torch.")}
            for name, value in zip(names, arguments, strict=True)
        },
        "outputs": ["features", "positions", "sizes"],
        "grid": list(grid),
        "kept": module.budget,
        "left_out": left_out,
        "positions": plan.positions,
    }
    out = Path(out)
    content = BytesIO()  # not a file: torch aborts the process if the disk is full
    torch.export.save(program, content)
    write_bytes(out / MODULE, content.getvalue())
    write_text(out / ABOUT, json.dumps(about, indent=1) + "\n")
    paths = str(out / MODULE), str(out / ABOUT)
    return ExportedStage1(
        *paths, reducer.name, names, num_tokens, module.budget, left_out, plan.positions
    )


def _exported(module: nn.Module, arguments: tuple[Tensor, ...], name: str) -> Any:
    free = {1: torch.export.Dim("words", min=2, max=_MOST_WORDS)}
    shapes = (None, free, free)[: len(arguments)] if len(arguments) > 1 else None
    try:
        with _quiet(), torch.no_grad():
            return torch.export.export(module, arguments, dynamic_shapes=shapes, strict=False)
    except Exception as error:  # torch raises many types
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise EligoError(
            f"{name}: torch.export failed ({reason}); the learned merger and methods without "
            "data-dependent steps can be exported"
        ) from error


def _shape(name: str, value: Tensor) -> list[int | str]:
    shape: list[int | str] = list(value.shape)
    if name != "features":
        shape[1] = "words"
    return shape


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's logging of the whole graph if an export fails."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
