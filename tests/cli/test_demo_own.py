"""`eligo demo --questions FILE`: the user's own questions in every supported format."""

import json
from pathlib import Path

import pytest
from PIL import Image

from eligo.cli import main
from eligo.cli.demo.own import choose_plan, read_questions
from eligo.errors import InputError
from eligo.explorer.folder import find_records, load_record
from eligo.pretrained import load as pretrained
from eligo.tokens.config import HostConfig
from eligo.tokens.cost.shapes import HostShape
from eligo.tokens.inference.load import load_host
from eligo.tokens.methods import build
from eligo.tokens.plan import Plan, Stage1
from shipped_models import make_models


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "my photos"
    folder.mkdir()
    for number in (1, 2):
        Image.effect_noise((90, 60 + number), 60).convert("RGB").save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_models(tmp_path_factory.mktemp("models"), "vlm", "tokens_small")


def question_file(folder: Path, kind: str) -> Path:
    path = folder / {"lines": "q.txt", "jsonl": "q.jsonl", "vqa": "q.json"}[kind]
    rows = [("1.png", "is there a ball?", "yes"), ("2.png", "what colour is it?", "red")]
    if kind == "lines":
        path.write_text("".join("\t".join(row) + "\n" for row in rows))
    elif kind == "jsonl":
        entries = [{"image": i, "question": q, "answers": [a]} for i, q, a in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in entries))
    else:
        entries = [
            {"question_id": number, "image_id": number, "question": question}
            for number, (_, question, _) in enumerate(rows, 1)
        ]
        path.write_text(json.dumps({"questions": entries}))
    return path


@pytest.mark.parametrize("kind", ["lines", "jsonl", "vqa"])
def test_every_format_is_read(photos: Path, kind: str):
    found = read_questions(question_file(photos, kind), photos)
    assert [one.question for one in found] == ["is there a ball?", "what colour is it?"]
    assert [one.image.name for one in found] == ["1.png", "2.png"]
    assert [one.answers for one in found] == ([(), ()] if kind == "vqa" else [("yes",), ("red",)])


def test_answers_are_optional(photos: Path):
    path = photos / "q.txt"
    path.write_text("1.png\tis there a ball?\r\n\n2.png\twhat is it?\t\n", encoding="utf-8-sig")
    assert [one.answers for one in read_questions(path, None)] == [(), ()]
    lines = photos / "q.jsonl"
    lines.write_text('{"image": "1.png", "question": "what?"}\n')
    assert read_questions(lines, None)[0].answers == ()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.txt", "1.png is there a ball?\n", "q.txt:1: got '1.png is there"),
        ("q.txt", "1.png\twhat?\n9.png\twhat?\n", "q.txt:2: there is no image"),
        ("q.txt", "\n", "holds no questions"),
        ("q.jsonl", '{"image": "1.png"}\n', "q.jsonl:1: question: missing"),
        ("q.jsonl", '{"image": "1.png", "question": "a?", "answers": []}\n', "answers: got []"),
        ("q.json", '{"questions": []}', "need --images"),
    ],
)
def test_invalid_question_files_are_refused(photos: Path, name: str, text: str, message: str):
    (photos / name).write_text(text)
    with pytest.raises(InputError) as error:
        read_questions(photos / name, None)
    assert message in str(error.value)


def test_missing_files_are_refused(photos: Path):
    with pytest.raises(InputError, match="there is no such file"):
        read_questions(photos / "nothing.txt", None)
    with pytest.raises(InputError, match="there is no folder"):
        read_questions(photos / "q.txt", photos / "nowhere")


def test_whole_and_pruned_model_answer_the_questions(
    photos: Path, shipped: Path, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.setattr(pretrained, "SHIPPED", shipped)
    out = tmp_path / "out"
    flags = ["--questions", str(question_file(photos, "lines")), "--out", str(out), "--json"]
    assert main(["demo", *flags]) == 0
    (part,) = json.loads(capsys.readouterr().out)["parts"]
    whole, pruned, same = part["rows"]
    assert [row["method"] for row in part["rows"]] == ["all tokens", "tokens_small", "same answer"]
    assert (whole["kept"], pruned["kept"]) == ("36", "20>12>6")
    assert whole["flops"] == 1 > pruned["flops"]
    assert whole["seconds"] > 0 < pruned["seconds"]
    assert same["score"] in (0, 0.5, 1)
    assert pruned["is_ours"]
    first, second = (load_record(folder) for folder in find_records(out))
    assert (first.query, second.query) == ("is there a ball?", "what colour is it?")
    assert [answer.who for answer in first.answers] == ["all tokens", "tokens_small"]
    assert first.note == "1.png; the answer is: yes"


def test_main_demo_is_not_replaced(photos, shipped, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "SHIPPED", shipped)
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--questions", str(question_file(photos, "lines"))]) == 0
    assert "runs/demo_questions/results.json" in capsys.readouterr().out
    assert [path.name for path in Path("runs").iterdir()] == ["demo_questions"]


def test_docs_name_the_plan_of_the_tiny_llava():
    host, _ = load_host(HostConfig())
    name, _ = choose_plan(HostShape.of(host), None, None)
    page = Path(__file__).parents[2] / "docs" / "demo.md"
    assert f"the tiny LLaVA uses the cheapest shipped plan (`{name}`)" in " ".join(
        page.read_text(encoding="utf-8").split()
    )


def test_unknown_words_are_reported_once(photos, shipped, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "SHIPPED", shipped)
    path = photos / "q.txt"
    path.write_text("1.png\twhat breed is the dog?\n2.png\tis there a dog?\n")
    assert main(["demo", "--questions", str(path), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.count("does not know these words: breed, dog\n") == 1


def test_plan_that_keeps_all_tokens_changes_no_answer(
    photos, shipped, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(pretrained, "SHIPPED", shipped)
    Plan(Stage1(build("none"), 36)).save(tmp_path / "all")
    flags = ["--questions", str(question_file(photos, "vqa")), "--images", str(photos), "--json"]
    flags += ["--plan", str(tmp_path / "all"), "--out", str(tmp_path / "out")]
    assert main(["demo", *flags]) == 0
    whole, pruned, same = json.loads(capsys.readouterr().out)["parts"][0]["rows"]
    assert (whole["score"], pruned["score"], same["score"]) == (None, None, 1)


def test_other_hosts_use_a_training_free_method(photos, shipped, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pretrained, "SHIPPED", shipped)
    flags = ["--questions", str(question_file(photos, "jsonl")), "--model", str(shipped / "vlm")]
    assert main(["demo", *flags, "--out", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert "tome" in out
    assert "put to vlm" in " ".join(out.split())
