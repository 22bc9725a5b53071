"""Every example runs on real file formats, with tiny random models of the real classes."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hosts import build as build_host
from PIL import Image
from pixel_files import exported
from shot_hosts import picture, processor, tokenizer
from transformers import (
    AutoProcessor,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPProcessor,
)

from eligo.config import load_config
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.pixels import PixelsModel, PixelsTrainConfig, Segmenter
from eligo.pixels.inference.segmenter import plain_config, text_encoder
from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm, save_vlm
from eligo.tokens import Plan, Stage1
from eligo.tokens.methods import build
from limits import PROCESS_SECONDS

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`example("prune", ...)` runs an example as a script and returns its output."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str | Path) -> str:
        path = ROOT / "examples" / f"{name}.py"
        monkeypatch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(path), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_examples_are_short_and_documented():
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert [path.stem for path in EXAMPLES] == [
        "prune", "search_photos", "segment_rgbd", "select_shots",
    ]  # fmt: skip
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 40
        assert f"(../examples/{path.name})" in page
        for line in re.findall(r"^    (python examples/.*)$", text, re.MULTILINE):
            assert line in page


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_missing_arguments_print_the_usage(path: Path, example):
    with pytest.raises(SystemExit, match=f"python examples/{path.name}"):
        example(path.stem)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("prune", ("vlm", "none.png", "?"), "none.png: there is no such image"),
        ("prune", ("nowhere/at/all", "here.png", "?"), "nowhere/at/all: there is no such folder"),
        ("prune", (".", "here.png", "?"), "holds no model of transformers"),
        ("search_photos", ("none", "a ball"), "none: "),
        ("search_photos", (".", "a ball", "nowhere"), "nowhere: there is no such folder"),
        ("search_photos", (".", "a ball", "."), "no retrieval model in"),
        ("segment_rgbd", ("here.png", "-", "", "nowhere"), "nowhere: there is no such folder"),
        ("segment_rgbd", ("here.png", "-", "", "."), "no segmentation model in"),
        ("select_shots", ("none.jsonl", "?"), "none.jsonl: "),
        ("select_shots", ("qa.jsonl", "?", "here.png", "nowhere", "vlm"), "nowhere"),
    ],
)
def test_invalid_arguments_give_one_line(name, arguments, message, example, tmp_path: Path):
    picture(tmp_path / "here.png", 0)
    lines(tmp_path / "qa.jsonl", [{"id": "a", "input": "?", "output": "!"}])
    with pytest.raises(SystemExit) as caught:
        example(name, *arguments)
    assert str(caught.value).startswith("error: ")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# ------------------------------------------------------------------ prune


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llava")
    sizes = VlmConfig(
        image_size=84, vision_layers=2, vision_width=16, layers=4, width=16, hidden=32, heads=2
    )
    save_vlm(build_vlm(sizes), build_processor(sizes), folder)
    picture(folder / "photo.png", 0)
    return folder


def lengths(output: str) -> tuple[int, list[int]]:
    found = re.search(r"(\d+) tokens in the prompt; in the layers: (\[.*\])", output)
    assert found is not None, output
    return int(found[1]), json.loads(found[2])


def test_prune_a_llava(llava: Path, example):
    whole, layers = lengths(example("prune", llava, llava / "photo.png", "what is red?"))
    text = whole - 36
    assert layers == [18 + text] + [5 + text] * 3  # 36 / 2, then 36 / 8 to the nearest


def test_prune_with_a_saved_plan(llava: Path, example, tmp_path: Path):
    Plan(Stage1(build("uniform"), 4)).save_pretrained(tmp_path / "plan")
    output = example("prune", llava, llava / "photo.png", "what is red?", tmp_path / "plan")
    whole, layers = lengths(output)
    assert layers == [4 + whole - 36] * 4


def test_prune_a_qwen(llava: Path, example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    build_host("qwen").model.save_pretrained(tmp_path / "qwen")
    stock = processor("qwen")  # only its loader needs torchvision
    monkeypatch.setattr(AutoProcessor, "from_pretrained", lambda name, **_: stock)
    output = example("prune", tmp_path / "qwen", llava / "photo.png", "what is red?")
    whole, layers = lengths(output)
    assert whole > layers[0] > layers[1] == layers[-1]


# ------------------------------------------------------------------ select_shots


def lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps instead of three hundred."""
    from eligo.shots import FitConfig

    monkeypatch.setattr(
        "eligo.shots.inference.learned_selector.FitConfig",
        lambda **given: FitConfig(**{"min_steps": 10, "num_epochs": 1, **given}),
    )


def test_select_shots_from_text(example, tmp_path: Path, quick: None):
    things = ["red ball", "blue cube", "green cone"]
    rows = [
        {"id": f"n{n}", "input": f"where is the {things[n % 3]}?", "output": f"in box {n % 3}"}
        for n in range(24)
    ]
    output = example("select_shots", lines(tmp_path / "qa.jsonl", rows), "where is the key?")
    assert len(output.splitlines()) == 2
    assert all(
        re.fullmatch(r"n\d+: where is the .*\? in box \d", line) for line in output.split("\n")[:2]
    )
    assert (tmp_path / "runs" / "select_shots" / "qa" / "selector" / "selector.json").is_file()


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """A CLIP with letters as tokens and images of 16 pixels."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
             "num_attention_heads": 2}  # fmt: skip
    words = {**sizes, "vocab_size": 64, "max_position_embeddings": 40, "eos_token_id": 1}
    config = CLIPConfig(
        text_config=words, vision_config={**sizes, "image_size": 16, "patch_size": 8},
        projection_dim=8,
    )  # fmt: skip
    CLIPModel(config).save_pretrained(tmp_path / "clip")
    looks = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    CLIPProcessor(looks, tokenizer("text")).save_pretrained(tmp_path / "clip")
    return tmp_path / "clip"


def vqa_files(folder: Path) -> str:
    """The two files of VQAv2 and a folder of images."""
    (folder / "images").mkdir()
    for n in range(6):
        picture(folder / "images" / f"COCO_train2014_{n:012d}.png", n)
    questions = [{"question_id": n, "image_id": n, "question": f"what is {n}?"} for n in range(6)]
    annotations = [
        {"question_id": n, "image_id": n, "answers": [{"answer": ("red", "a ball")[n % 2]}] * 3}
        for n in range(6)
    ]
    (folder / "q.json").write_text(
        json.dumps({"data_subtype": "train2014", "questions": questions})
    )
    (folder / "a.json").write_text(json.dumps({"annotations": annotations}))
    return f"{folder / 'q.json'},{folder / 'a.json'},{folder / 'images'}"


def test_select_shots_from_vqav2(
    example, clip: Path, tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
):
    data = vqa_files(tmp_path)
    host = tmp_path / "host"
    build_host("llava").model.save_pretrained(host)
    processor("llava").save_pretrained(host)
    photo = picture(tmp_path / "photo.png", 9)
    output = example("select_shots", data, "what is it?", photo, clip, host)
    assert len(output.splitlines()) == 2
    assert all(re.fullmatch(r"\d: what is \d\? (red|ball)", line) for line in output.splitlines())


# ------------------------------------------------------------------ search_photos, segment_rgbd


def test_search_photos(example, tmp_path: Path):
    RetrievalModel.tiny().save_pretrained(tmp_path / "model")
    (tmp_path / "fotos").mkdir()
    for n in range(7):
        picture(tmp_path / "fotos" / f"bild {n}.png", n)
    (tmp_path / "fotos" / "broken.jpg").write_bytes(b"no image")
    output = example("search_photos", "fotos", "a red ball", "model")
    assert output.startswith("7 photos, ")
    assert "not read: broken.jpg" in output
    found = re.findall(r"^(-?\d\.\d{3})  (bild \d\.png)$", output, re.MULTILINE)
    assert len(found) == 5
    assert sorted(found, key=lambda hit: -float(hit[0])) == found
    page = (tmp_path / "runs" / "search_photos" / "fotos.html").read_text("utf-8")
    assert page.count("data:image/jpeg") == 5
    assert all(name in page for _, name in found)
    assert example("search_photos", "fotos", "a red ball", "model") == output  # reuses the index


def test_segment_rgbd(example, tmp_path: Path):
    config = plain_config(load_config(PixelsTrainConfig, "pixels/scenes").smoke())
    Segmenter(config, PixelsModel(config), text_encoder(config)).save_pretrained(tmp_path / "model")
    rooms = exported(tmp_path / "rooms", "nyu", train=0, test=1)
    pair = [next((rooms / kind).iterdir()) for kind in ("RGB", "Depth")]
    output = example("segment_rgbd", *pair, "ball, ring", "model")
    assert re.search(r"^ *\d+\.\d%  \w+  \(sure: \d+%\)$", output, re.MULTILINE)
    assert "ball: attention" in output
    assert Image.open(tmp_path / "runs" / "segment_rgbd" / "label.png").size == (64, 48)
    folders = [str(Path(path).parent) for path in pair]
    frames = example("segment_rgbd", *folders, "ball, ring", "model")
    assert frames.startswith("frame 0: mostly class ")
    assert len(frames.splitlines()) == len(list((tmp_path / folders[0]).iterdir()))
    assert "attention" not in example("segment_rgbd", pair[0], "-", "", "model")


def test_missing_shipped_models_are_refused(
    example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("eligo.pretrained.load.SHIPPED", tmp_path)
    picture(tmp_path / "photo.png", 0)
    with pytest.raises(SystemExit, match="there is no such folder"):
        example("search_photos", tmp_path, "a red ball")
    with pytest.raises(SystemExit, match="eligo pixels train"):
        example("segment_rgbd", "rgb.png", "depth.png", "")


def test_example_in_a_new_process(llava: Path, tmp_path: Path):
    """In a new process and another working directory."""
    command = [sys.executable, str(ROOT / "examples" / "prune.py")]
    arguments = [str(llava), str(llava / "photo.png"), "what is red?"]
    done = subprocess.run(
        [*command, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert lengths(done.stdout)[0] > 36
