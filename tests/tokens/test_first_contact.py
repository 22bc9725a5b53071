"""A user's own model: predict, plan and bench with the stock processors of the hosts."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shot_hosts
from hosts import IMAGE, build
from PIL import Image
from transformers import (
    Gemma3Processor,
    Glm4vProcessor,
    Idefics3Processor,
    LlavaNextProcessor,
    LlavaOnevisionProcessor,
    Qwen2VLProcessor,
    Qwen3VLProcessor,
)
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from eligo.cli import main
from eligo.tokens import predict
from eligo.tokens.inference.bench import BenchCase, run_rounds
from eligo.tokens.inference.resolve import load_plan

PINPOINTS = [[16, 32], [32, 16], [32, 32]]
PATCHES = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2}
QWEN = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
GLM = ["<|image|>", "<|video|>", "<|begin_of_image|>", "<|end_of_image|>"]
LLAVA = ["<image>", "<video>", "<v>", "</v>"]


def parts(monkeypatch: Any, tokens: list[str], image: str, **options: Any) -> tuple[Any, dict]:
    """A tokenizer with these tokens, and a chat template that writes `image`."""
    monkeypatch.setitem(shot_hosts._SPECIAL, "own", tokens)
    monkeypatch.setitem(shot_hosts._IMAGE, "own", image)
    return shot_hosts.tokenizer("own", **options), {"chat_template": shot_hosts.template("own")}


def llava_next(patch: Any) -> Any:
    images = LlavaNextImageProcessorPil(
        size={"shortest_edge": 16},
        crop_size={"height": 16, "width": 16},
        image_grid_pinpoints=PINPOINTS,
    )
    tokenizer, chat = parts(patch, LLAVA, "<image>")
    return LlavaNextProcessor(
        images, tokenizer, patch_size=4, vision_feature_select_strategy="default",
        num_additional_image_tokens=1, **chat,
    )  # fmt: skip


def llava_onevision(patch: Any) -> Any:
    images = LlavaOnevisionImageProcessorPil(
        size={"height": 16, "width": 16}, image_grid_pinpoints=PINPOINTS
    )
    tokenizer, chat = parts(patch, LLAVA, "<image>")
    return shot_hosts._lax(LlavaOnevisionProcessor)(
        images, tokenizer, None, num_image_tokens=16, vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_2", **chat,
    )  # fmt: skip


def gemma3(patch: Any) -> Any:
    names = {"image_token": "<soft>", "boi_token": "<boi>", "eoi_token": "<eoi>"}
    tokenizer, chat = parts(
        patch, [*names.values(), "<v>"], "<boi>", extra_special_tokens=dict(names)
    )
    images = Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    return Gemma3Processor(images, tokenizer, image_seq_length=16, **chat)


def idefics3(patch: Any) -> Any:
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    )
    tokens = ["<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
    tokenizer, chat = parts(patch, tokens, "<image>")
    return Idefics3Processor(images, tokenizer, image_seq_len=16, **chat)


def with_grids(kind: Any, images: Any, tokens: list[str]) -> Callable[[Any], Any]:
    def make(patch: Any) -> Any:
        tokenizer, chat = parts(patch, tokens, tokens[2] + tokens[0] + tokens[3])
        return shot_hosts._lax(kind)(images(), tokenizer, None, **chat)

    return make


def qwen_images() -> Any:
    return Qwen2VLImageProcessorPil(min_pixels=64, max_pixels=1024, **PATCHES)


def glm_images() -> Any:
    return Glm4vImageProcessorPil(size={"shortest_edge": 64, "longest_edge": 2048}, **PATCHES)


PROCESSORS: dict[str, Callable[[Any], Any]] = {
    "llava_next": llava_next,
    "llava_onevision": llava_onevision,
    "gemma3": gemma3,
    "idefics3": idefics3,
    "qwen2_vl": with_grids(Qwen2VLProcessor, qwen_images, QWEN),
    "qwen3_vl": with_grids(Qwen3VLProcessor, qwen_images, QWEN),
    "glm4v": with_grids(Glm4vProcessor, glm_images, GLM),
}
"""Those of Pixtral and Mistral 3 do not run without torchvision."""
GRIDS = {
    "llava_next": [(4, 4), (4, 9)],
    "llava_onevision": [(4, 4), (4, 9)],
    "gemma3": [(4, 4)],
    "idefics3": [(4, 4)] * 5,
    "qwen2_vl": [(3, 5)],
    "qwen3_vl": [(3, 5)],
    "glm4v": [(3, 5)],
}


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 255, (40, 70, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "photo.jpg")
    return tmp_path / "photo.jpg"


def save(family: str, processor: Any, folder: Path) -> str:
    build(family).model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("family", PROCESSORS)
def test_predict_with_the_stock_processor(family: str, photo: Path, monkeypatch: Any) -> None:
    processor, model = PROCESSORS[family](monkeypatch), build(family).model
    found = predict(
        photo, "what is it?", model=model, processor=processor, method="visionzip", budget=6
    )
    assert found.trace.grid is not None
    assert [tuple(grid) for grid in found.trace.grid.tolist()] == GRIDS[family]
    assert found.selection.num_kept.tolist() == [6] * len(GRIDS[family])
    assert len(found.images) == len(GRIDS[family])
    assert found.picture.width > 0
    vision = sum(rows * columns for rows, columns in GRIDS[family])
    assert found.summary()["vision_tokens"] == vision


def test_first_command_of_a_llava_user(photo: Path, tmp_path: Path, capsys: Any) -> None:
    folder = save("llava", shot_hosts.processor("llava"), tmp_path / "host")
    before = sorted(tmp_path.iterdir())
    command = ["tokens", "predict", "--model", folder, "--image", str(photo)]
    command += ["--question", "what is it?", "--method", "visionzip", "--budget", "8"]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.startswith("answer: ")
    assert "vision 16>8" in out
    assert "written" not in out
    assert sorted(tmp_path.iterdir()) == before
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"answer", "cost"}


def test_plan_counts_the_tokens_of_an_image(
    photo: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    def plan(family: str, processor: Any) -> Any:
        folder = save(family, processor, tmp_path / family)
        command = ["tokens", "plan", "--model", folder, "--image", str(photo), "--text", "9"]
        assert main([*command, "--target", "0.1", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        return found["proposals"][0]["schedule"]["vision"], found["warnings"]

    assert plan("llava", shot_hosts.processor("llava")) == (16, [])
    vision, notes = plan("llava_next", llava_next(monkeypatch))
    assert vision == 16 + 4 * 9
    assert notes[-1].endswith("per grid (the overview, and all tiles together)")
    vision, notes = plan("idefics3", idefics3(monkeypatch))
    assert vision == 5 * 16
    assert notes[-1].endswith("per tile, of which it has 5 with 16 tokens each: divide by 5")
    assert main(["tokens", "plan", "--image", str(photo)]) == 2
    assert "expected with --model" in capsys.readouterr().err
    command = ["tokens", "predict", "--model", str(tmp_path / "idefics3"), "--image", str(photo)]
    command += ["--question", "what is it?", "--method", "divprune", "--budget", "4"]
    assert main(command) == 0
    assert "budgets are per tile; this image has 5" in capsys.readouterr().out


def test_bench_without_a_plan(photo: Path, tmp_path: Path, capsys: Any) -> None:
    folder = save("llava", shot_hosts.processor("llava"), tmp_path / "host")
    command = ["tokens", "bench", "--model", folder, "--image", str(photo), "--rounds", "1"]
    assert main([*command, "--batch_size", "1", "--threads", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"] == "divprune"
    assert found["cost"]["schedule"]["merged"] == 4


@pytest.mark.parametrize("family", ["qwen3_vl", "llava_next", "mistral3"])
def test_hosts_without_a_projector_of_their_own_can_be_timed(family: str) -> None:
    host = build(family)
    cases = [BenchCase("unpruned"), BenchCase("pruned", load_plan(method="divprune", budgets=[4]))]
    times = run_rounds(host.model, cases, host.batch([[3, IMAGE, 5]]), rounds=1)
    assert all({"ttft", "prefill", "llm"} <= case.turns.keys() for case in times.values())


@pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is not None, reason="torchvision is installed"
)
def test_processor_that_needs_torchvision_names_the_extra(
    photo: Path, tmp_path: Path, capsys: Any
) -> None:
    folder = tmp_path / "host"
    build("qwen2_vl").model.save_pretrained(folder)
    shot_hosts.tokenizer("qwen").save_pretrained(folder)
    kinds = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(kinds))
    command = ["tokens", "predict", "--model", str(folder), "--image", str(photo)]
    command += ["--question", "what is it?", "--method", "visionzip", "--budget", "8"]
    capsys.readouterr()  # what saving wrote
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "needs torchvision, which is not installed: pip install 'eligo[hosts]'" in error
    assert len(error.splitlines()) == 1
