"""`predict` on video files: decoding, pictures and records per frame, the command."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest
import shot_hosts
import torch
from hosts import build
from PIL import Image
from tiny_models import VIDEO_ID, VISION_START

from eligo import tokens
from eligo.cli import main
from eligo.errors import InputError
from eligo.tokens.inference.frames import by_frame
from eligo.tokens.inference.record import record
from eligo.video import Clip, open_clip
from shell_blocks import ROOT, lines_of, run_lines


def write_clip(path: Path, frames: int = 12, side: int = 32) -> Path:
    """A video whose frame n is grey 20 n, at 4 frames per second."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=4)
        stream.width = stream.height = side
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            picture = np.full((side, side, 3), 20 * number, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture)):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


class Processor:
    """Writes prompts as the processor of Qwen2.5-VL does; it needs no torchvision."""

    chat_template = "given"
    video_processor = SimpleNamespace()
    video_token, image_token = "<video>", "<image>"

    def __init__(self) -> None:
        self.tokenizer = shot_hosts.tokenizer("qwen")

    def apply_chat_template(self, messages: Any, **_: Any) -> str:
        kinds = [part["type"] for part in messages[0]["content"]]
        assert kinds == ["video", "text"]
        return str(messages[0]["content"][1]["text"])

    def __call__(self, text: Any, videos: Any, video_metadata: Any, **options: Any) -> Any:
        assert options["do_sample_frames"] is False
        assert video_metadata[0]["total_num_frames"] == len(videos[0])
        frames = torch.from_numpy(videos[0]).float() / 255  # (time, 32, 32, 3)
        count = len(frames) // 2
        # 8 x 8 patches of 4 pixels, four of a token behind each other
        patches = frames.reshape(count, 2, 4, 2, 4, 4, 2, 4, 3).permute(0, 2, 5, 3, 6, 8, 1, 4, 7)
        ids = torch.tensor([[5, VISION_START, *[VIDEO_ID] * (16 * count), 7, 8, 9]])
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": 2 * (ids == VIDEO_ID).long(),
            "pixel_values_videos": patches.reshape(count * 64, -1),
            "video_grid_thw": torch.tensor([[count, 8, 8]]),
        }

    def batch_decode(self, ids: Any, **_: Any) -> list[str]:
        return [" ".join(map(str, row)) for row in ids.tolist()]


def test_frames_are_evenly_spaced(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4")
    clip = open_clip(path, 4)
    assert [round(float(np.asarray(frame).mean()) / 20) for frame in clip.frames] == [0, 3, 7, 11]
    assert clip.seconds == pytest.approx([0, 0.75, 1.75, 2.75])
    assert clip.fps == pytest.approx(3 / 2.75)
    assert len(open_clip(path, 50).frames) == 12
    assert len(open_clip(path, 1).frames) == 1


def test_files_that_are_no_videos(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(InputError, match="cannot be read as a video"):
        open_clip(tmp_path / "text.mp4")
    with pytest.raises(InputError, match="no such file"):
        open_clip(tmp_path / "missing.mp4")
    with pytest.raises(InputError, match="num_frames"):
        open_clip(tmp_path / "text.mp4", 0)


@pytest.mark.parametrize("method", ["evs", "vidcom2", "divprune", "tome"])
def test_prediction_shows_every_frame(tmp_path: Path, method: str) -> None:
    host = build("qwen")
    clip = open_clip(write_clip(tmp_path / "clip.mp4"), 6)
    found = tokens.predict(
        clip, "what moves?", model=host.model, processor=Processor(), method=method, budget=20,
        max_new_tokens=2,
    )  # fmt: skip
    assert found.selection.num_kept.tolist() == [20]
    assert found.summary()["vision_tokens"] == 48
    assert len(found.images) == 3
    frames = by_frame(found.trace)
    assert frames.grid is not None
    assert frames.grid.tolist() == [[4, 4]] * 3
    kept = [
        16 * number + place
        for number, row in enumerate(frames.stages[0].positions.tolist())
        for place in row
        if place >= 0
    ]
    assert kept == [place for place in found.selection.indices[0].tolist() if place >= 0]
    if method == "evs":  # grey frames differ only in their level: the first is kept
        assert kept[:16] == list(range(16))
    shown = record(found)
    assert [stage.over.picture for stage in shown.stages] == ["frame 1", "frame 2", "frame 3"]
    assert sum(int(stage.selection.num_kept) for stage in shown.stages) == 20
    assert (found.save(tmp_path / "out") / "tokens.png").exists()


def test_the_command_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = build("qwen")
    monkeypatch.setattr(
        "eligo.tokens.inference.load.load_host", lambda *_, **__: (host.model, Processor())
    )
    write_clip(tmp_path / "clip.mp4")
    (line,) = (line for line in lines_of(ROOT / "docs" / "tokens.md") if "--video" in line)
    (printed,) = run_lines(tmp_path, [line], {"tokens predict": "--frames 6 --budget 20"})
    assert "48" in printed
    assert "20" in printed


def test_processors_without_videos_are_refused() -> None:
    clip = Clip((Image.new("RGB", (32, 32)),) * 2, (0.0, 1.0))
    host = build("llava")
    with pytest.raises(InputError, match="takes no videos"):
        tokens.predict(
            clip, "what?", model=host.model, processor=SimpleNamespace(), method="evs", budget=4
        )


def test_the_command_wants_an_image_or_a_video(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = str(write_clip(tmp_path / "clip.mp4"))
    assert main(["tokens", "predict", "--question", "what?"]) == 2
    assert "either --image FILE or --video FILE" in capsys.readouterr().err
    assert main(["tokens", "predict", "--question", "what?", "--video", video]) == 2
    assert "takes no videos" in capsys.readouterr().err
