"""The study of clips runs, and its measure tells good from bad."""

import json
from pathlib import Path

import torch

from benchmarks.tokens import video
from eligo.scenes import SceneConfig
from eligo.scenes.clips import draw_clips
from eligo.tokens.methods import build


def test_the_study_runs(tmp_path: Path) -> None:
    video.main(["--clips", "3", "--frames", "4", "--out", str(tmp_path / "video.json")])
    rows = json.loads((tmp_path / "video.json").read_text())
    assert len(rows) == len(video.METHODS) * len(video.BUDGETS)
    assert all(0 <= row["kept"] <= 1 for row in rows)


def test_tokens_are_patches_in_raster_order() -> None:
    config = SceneConfig(height=video.SIDE, width=video.SIDE)
    clip = draw_clips(config, "test", range(1), num_frames=3)[0]
    context = video.clip_context(clip)
    side = video.SIDE // video.PATCH
    assert context.grid.tolist() == [[3 * side, side]]
    token = context.features[0, side * side + side + 2].view(3, video.PATCH, video.PATCH)
    patch = clip.rgb[1, :, video.PATCH : 2 * video.PATCH, 2 * video.PATCH : 3 * video.PATCH]
    assert torch.equal(token, patch.float() / 255)
    everything = build("evs").select(context, torch.tensor([context.mask.shape[1]]))
    assert everything.kept_mask.all()
