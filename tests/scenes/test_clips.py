"""Clips: what questions say is what the frames show."""

import pytest
import torch

from eligo.errors import InputError
from eligo.scenes import SceneConfig
from eligo.scenes.clips import KINDS, SceneClip, draw_clips

SMALL = SceneConfig(height=64, width=64)


def frames_of(clip: SceneClip, slot: int) -> list[int]:
    """Frames that show an object."""
    return [n for n, frame in enumerate(clip.instances) if (frame == slot + 1).any()]


def middle(clip: SceneClip, slot: int, frame: int) -> torch.Tensor:
    """Mean row and column of an object."""
    return (clip.instances[frame] == slot + 1).nonzero().float().mean(0)


def test_questions_are_answered_by_the_frames() -> None:
    seen = set()
    for clip in draw_clips(SMALL, "train", range(40)):
        for question in clip.questions:
            shown = [frames_of(clip, slot) for slot in question.objects]
            if not all(shown):
                continue  # hidden behind others
            seen.add(question.kind)
            if question.kind == "first":
                assert shown[0][0] <= shown[1][0]
                assert question.answer in question.question
            if question.kind == "count":
                assert question.answer == str(len(question.objects))
            if question.kind == "direction" and len(shown[0]) > 2:
                slot = question.objects[0]
                areas = {int((clip.instances[n] == slot + 1).sum()) for n in shown[0]}
                if max(areas) - min(areas) > 0.2 * max(areas):
                    continue  # partly hidden: its middle moves by that too
                down, right = middle(clip, slot, shown[0][-1]) - middle(clip, slot, shown[0][0])
                moved = {"right": right, "left": -right, "down": down, "up": -down}
                assert moved[question.answer] == max(moved.values())
    assert seen == set(KINDS)


def test_a_clip_depends_on_its_index_only() -> None:
    alone, together = draw_clips(SMALL, "test", range(3, 4)), draw_clips(SMALL, "test", range(5))
    assert torch.equal(alone[0].rgb, together[3].rgb)
    assert alone[0].questions == together[3].questions
    assert not torch.equal(together[3].rgb[0], together[3].rgb[-1])
    assert draw_clips(SMALL, "test", range(1), num_frames=2)[0].rgb.shape[0] == 2
    with pytest.raises(InputError):
        draw_clips(SMALL, "test", range(1), num_frames=0)
