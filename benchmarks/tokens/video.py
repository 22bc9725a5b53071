"""Do methods keep the tokens that decide a question about a clip?

`python -m benchmarks.tokens.video`, on clips of `eligo.scenes.clips`. A token is a patch of 16
pixels, its features are its pixels, so no model is needed. For each method and budget: the share of
questions for which every deciding object has a kept token in the first and in the last frame that
shows it (*found*), and the share of the tokens on deciding objects that are kept (*kept*). This is
no accuracy: that needs a trained host.
Budgets are shares of all tokens of the clip. 200 clips take half a minute on a CPU.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from eligo.io.files import write_text
from eligo.scenes import SceneConfig
from eligo.scenes.clips import KINDS, SceneClip, draw_clips
from eligo.tokens.methods import build
from eligo.tokens.reducer import ReducerContext

METHODS = ("random", "uniform", "divprune", "evs", "vidcom2")
BUDGETS = (0.5, 0.25, 0.125)
SIDE, PATCH = 128, 16


def run(num_clips: int, num_frames: int) -> list[dict[str, Any]]:
    """Return a row per method and budget."""
    config = SceneConfig(height=SIDE, width=SIDE)
    clips = draw_clips(config, "test", range(num_clips), num_frames=num_frames)
    rows = []
    for name in METHODS:
        for ratio in BUDGETS:
            results = [result for clip in clips for result in _judge(clip, name, ratio)]
            row: dict[str, Any] = {"method": name, "budget": ratio, "questions": len(results)}
            row["kept"] = fmean(share for _, _, share in results)
            for kind in KINDS:
                found = [is_found for other, is_found, _ in results if other == kind]
                row[f"found, {kind}"] = fmean(found) if found else None
            rows.append(row)
    return rows


def clip_context(clip: SceneClip) -> ReducerContext:
    """Return the patches of a clip as tokens."""
    frames, channels, height, width = clip.rgb.shape
    grid = (height // PATCH, width // PATCH)
    patches = clip.rgb.float().div(255).unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)
    features = patches.permute(0, 2, 3, 1, 4, 5).reshape(1, -1, channels * PATCH**2)
    count = features.shape[1]
    return ReducerContext(
        features=features,
        mask=torch.ones(1, count, dtype=torch.bool),
        positions=torch.arange(count)[None],
        grid=torch.tensor([[frames * grid[0], grid[1]]]),
        frames=torch.tensor([frames]),
    )


def _judge(clip: SceneClip, name: str, ratio: float) -> list[tuple[str, bool, float]]:
    """Return for each question: its kind, whether its objects were found, and the share kept."""
    context = clip_context(clip)
    budget = torch.tensor([round(ratio * context.mask.shape[1])])
    kept = build(name).select(context, budget).kept_mask[0]
    results = []
    for question in clip.questions:
        tokens = [_tokens_of(clip, slot) for slot in question.objects]
        tokens = [mask for mask in tokens if bool(mask.any())]  # others are hidden
        if not tokens:
            continue
        any_of = torch.stack(tokens).any(0).flatten()
        is_found = all(_is_found(mask, kept.view_as(mask)) for mask in tokens)
        results.append((question.kind, is_found, float(kept[any_of].float().mean())))
    return results


def _tokens_of(clip: SceneClip, slot: int) -> Bool[Tensor, "frames tokens"]:
    """Return the tokens that show an object in each frame."""
    shown = (clip.instances == slot + 1).float()
    return torch.nn.functional.max_pool2d(shown[:, None], PATCH).flatten(1) > 0


def _is_found(mask: Bool[Tensor, "frames tokens"], kept: Bool[Tensor, "frames tokens"]) -> bool:
    """Whether the first and the last frame with the object keep a token of it."""
    frames = mask.any(-1).nonzero().squeeze(-1)
    ends = torch.stack([frames[0], frames[-1]])
    return bool((mask & kept)[ends].any(-1).all())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and, with --out, write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    rows = run(options.clips, options.frames)
    for row in rows:
        print(json.dumps(row))
    if options.out is not None:
        write_text(options.out, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
