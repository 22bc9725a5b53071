"""Numbers out of bounds are refused before any work; the error names their flag."""

import pytest

from eligo.cli import main
from eligo.config.bounds import Bounds, check_count
from eligo.errors import InputError

ASK = ["--image", "a.png", "--question", "what?", "--out", "out"]
OUT_OF_BOUNDS = [
    (["tokens", "predict", *ASK, "--max_new_tokens", "0"], "max_new_tokens"),
    (["tokens", "predict", *ASK, "--method", "uniform", "--budget", "0"], "budget"),
    (["tokens", "predict", *ASK, "--method", "fastv", "--budget", "9", "--layer", "0"], "layer"),
    (["tokens", "evaluate", "x", "--questions", "0"], "questions"),
    (["tokens", "evaluate", "x", "--batch_size", "-1"], "batch_size"),
    (["tokens", "plan", "--vision", "0"], "vision"),
    (["tokens", "plan", "--text", "-1"], "text"),
    (["tokens", "plan", "--target", "nan"], "target"),
    (["tokens", "plan", "--target", "1.5"], "target"),
    (["tokens", "plan", "--cuts", "2", "0", "--budgets", "3", "2"], "cuts"),
    (["tokens", "plan", "--merge", "0"], "merge"),
    (["tokens", "bench", "--rounds", "0"], "rounds"),
    (["tokens", "bench", "--threads", "0"], "threads"),
    (["tokens", "export", "--out", "o", "--method", "tome", "--grid", "0", "5"], "grid"),
    (["patches", "search", "i", "ball", "--k", "0"], "k"),
    (["patches", "search", "i", "ball", "--rerank", "0"], "rerank"),
    (["patches", "index", "--out", "o", "--scenes", "0"], "scenes"),
    (["patches", "index", "x", "--out", "o", "--gpus_per_worker", "inf"], "gpus_per_worker"),
    (["patches", "evaluate", "--folds", "0"], "folds"),
    (["patches", "convert", "x", "--out", "o", "--sparse_ratio", "2"], "sparse_ratio"),
    (["patches", "convert", "x", "--out", "o", "--image_mean", "0", "inf", "0"], "image_mean"),
    (["pixels", "predict", "--image", "a", "--out", "o", "--size", "0", "5"], "size"),
    (["pixels", "predict", "--image", "a", "--out", "o", "--depth_scale", "nan"], "depth_scale"),
    (["pixels", "evaluate", "--scales", "1", "0"], "scales"),
    (["pixels", "evaluate", "--sam-decoder-logit-init", "-inf"], "sam_decoder_logit_init"),
    (["pixels", "export", "--out", "o", "--num_words", "0"], "num_words"),
    (["shots", "predict", "--question", "q", "--shots", "0"], "shots"),
    (["shots", "evaluate", "--num_queries", "0"], "num_queries"),
    (["scenes", "show", "--scenes", "0"], "scenes"),
    (["scenes", "export", "vqa", "--out", "o", "--num_workers", "0"], "num_workers"),
    (["explore", "--live", "--port", "99999"], "port"),
    (["demo", "--seed", "-1"], "seed"),
]


@pytest.mark.parametrize(
    ("args", "flag"), OUT_OF_BOUNDS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_numbers_out_of_bounds_are_refused(args, flag, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: --{flag}: got ")
    assert ", expected " in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", ["2.5", "1e3", "", "two"])
def test_count_must_be_a_whole_number(value: str, capsys):
    assert main(["patches", "search", "index", "ball", "--k", value]) == 2
    assert "--k" in capsys.readouterr().err


@pytest.mark.parametrize("value", [2.5, "3", None, True, 0, -1, float("nan")])
def test_check_count(value):
    with pytest.raises(InputError, match=r"^shots: got "):
        check_count("shots", value)
    assert check_count("shots", 2) == 2


def test_bounds_as_text():
    shown = (Bounds(1), Bounds(0, 65535), Bounds(0, above=True), Bounds(0, 1, above=True), Bounds())
    assert [str(one) for one in shown] == [
        "at least 1",
        "0 to 65535",
        "a finite number above 0",
        "a finite number above 0, at most 1",
        "a finite number",
    ]
