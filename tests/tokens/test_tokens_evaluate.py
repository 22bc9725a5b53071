"""`eligo tokens evaluate` on files of questions, with controls."""

import json
from pathlib import Path

import pytest
from photo_parts import make_host, make_language, make_photos, make_tower

from eligo.cli import main
from eligo.tokens.inference.controls import with_other_images
from eligo.tokens.metrics import paired_drop
from eligo.vqa import VqaExample, fit_usual_answers


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    make_tower("dinov2", folder / "tower")
    make_language(folder / "language")
    make_photos(folder / "photos")
    make_host(folder)
    return folder


def evaluate(files: Path, *words: str) -> list[str]:
    photos = files / "photos"
    return ["tokens", "evaluate", *words, "--model", str(files / "host"), "--data",
            str(photos / "questions.jsonl"), "--images", str(photos / "images"),
            "--device", "cpu"]  # fmt: skip


def test_controls_stand_beside_every_family(files: Path, capsys):
    assert main([*evaluate(files, "--controls"), "--json"]) == 0
    rows = {row["family"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == ["exist", "colour", "all"]
    assert rows["all"]["asked"] == 6  # three photos of the split `test`
    assert set(rows["exist"]["controls"]) == {"no image", "other image", "question only"}
    assert rows["exist"]["controls"]["question only"] == 1.0  # always yes, in all splits


def test_methods_are_compared_with_all_tokens(files: Path, capsys):
    methods = ("--method", "uniform", "fastv", "none", "--budget", "4")
    words = [*evaluate(files, *methods), "--split", "validation"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines() if line.strip()]
    kept = {line[0]: line[1] for line in lines if len(line) > 1 and line[0] in methods}
    assert lines[0] == ["right", "answers", "(%)"]
    assert [line[0] for line in lines].count("uniform") == 2  # once of them by family
    assert "no image" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["variant"] for row in found["rows"] if row["family"] == "all"] == [
        "uniform", "fastv",
    ]  # fmt: skip
    assert found["cost"]["uniform"]["kept"] == [4]
    assert found["cost"]["fastv"]["kept"][1:] == [4]
    assert set(kept) == {"uniform", "fastv"}


def test_every_method_has_the_rows_that_it_has_alone(files: Path, capsys):
    def rows_of(*methods: str) -> list[dict]:
        words = evaluate(files, "--method", *methods, "--budget", "2", "--json")
        assert main(words) == 0
        return json.loads(capsys.readouterr().out)["rows"]

    assert rows_of("uniform", "pool") == [*rows_of("uniform"), *rows_of("pool")]


def test_a_model_that_answers_nothing_right_compares_nothing(files: Path, tmp_path, capsys):
    image = next((files / "photos" / "images").iterdir())
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"image": str(image), "question": "is it?", "answer": "qqq"}))
    words = evaluate(files, "--method", "uniform", "--budget", "4")
    words[words.index("--data") + 1] = str(lines)
    assert main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "no difference" in printed
    assert "answers nothing right with all tokens" in printed


def test_the_table_with_controls_fits_a_terminal(files: Path, capsys):
    assert main(evaluate(files, "--method", "uniform", "--budget", "4", "--controls")) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "question only" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--budget", "4"], "expected a plan or a --method"),
        (["--images", "here"], "--images: expected --data"),
        (["--controls"], "--controls: expected --data"),
    ],
)
def test_flags_that_need_another_are_refused(words, message, capsys):
    assert main(["tokens", "evaluate", *words, "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_an_answer_never_comes_from_the_questions_own_image(files: Path):
    rows = [VqaExample(str(n), Path(f"{n // 2}.jpg"), "is it red?", ("yes",)) for n in range(8)]
    moved = with_other_images(rows)
    assert all(a.image != b.image for a, b in zip(rows, moved, strict=True))
    assert all(moved[2 * n].image == moved[2 * n + 1].image for n in range(4))


def test_the_usual_answer_is_that_of_the_question_then_of_its_kind():
    usual = fit_usual_answers([("a?", "x", "yes"), ("a?", "x", "yes"), ("b?", "x", "no")])
    assert (usual("a?", "x"), usual("b?", "x"), usual("c?", "x")) == ("yes", "no", "yes")
    assert usual("c?", "y") == ""


def test_questions_on_one_image_count_once():
    """Repeating every question narrows the interval only if images are not told apart."""
    whole, pruned = [1, 1, 0, 1, 1, 1], [1, 0, 0, 1, 0, 1]
    once = paired_drop(whole, pruned)
    groups = [*range(6), *range(6)]
    assert paired_drop(whole * 2, pruned * 2, groups) == pytest.approx(once)
    assert paired_drop(whole * 2, pruned * 2)[1] > once[1]
