"""VQA answers: normalisation and accuracy as in the challenge; its files, valid and invalid."""

import json
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from eligo.errors import InputError
from eligo.scenes.config import SceneConfig
from eligo.scenes.export import ExportConfig, export_scenes
from eligo.scenes.question_kinds import ANSWERS, KIND_ID
from eligo.vqa import normalise_answer, read_vqa, read_vqa_lines, usual_answer, vqa_accuracy


@pytest.mark.parametrize(
    ("answer", "compared"),
    [
        ("Yes", "yes"),
        ("  yes.\n", "yes"),
        ("The Dog", "dog"),
        ("a an the", ""),
        ("theater", "theater"),
        ("two", "2"),
        ("Ten dogs", "10 dogs"),
        ("none", "0"),
        ("twenty", "twenty"),
        ("someone", "someone"),
        ("100,978", "100978"),
        ("1,2,3", "123"),
        ("red, white,blue", "red white blue"),
        ("3.5", "3.5"),
        (".5", ".5"),
        ("3.", "3"),
        ("U.S.A.", "usa"),
        ("p.m.", "pm"),
        ("2:50 P.M.", "2:50 pm"),
        ("girl's", "girl's"),
        ("girl\u2019s", "girl's"),
        ("t-shirt", "t shirt"),
        ("yes/no", "yes no"),
        ("(left)", "left"),
        ("what?!", "what"),
        ("50%", "50%"),
        ("$5", "$5"),
        ("dont", "don't"),
        ("Wont", "won't"),
        ("isnt it", "isn't it"),
        ("couldntve", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("youre", "you're"),
        ("thats", "that's"),
        ("its", "its"),
        ("is here", "is here"),
        ("well", "well"),
        ("were", "were"),
        ("shell", "shell"),
        ("oclock", "o'clock"),
        ("", ""),
    ],
)
def test_answers_are_normalised(answer, compared):
    assert normalise_answer(answer) == compared


@given(st.text())
def test_words_are_separated_by_single_spaces(answer):
    compared = normalise_answer(answer)
    assert compared.split() == (compared.split(" ") if compared else [])


def test_scene_answers_are_already_normalised():
    assert [normalise_answer(answer) for answer in ANSWERS] == list(ANSWERS)


@pytest.mark.parametrize(
    ("same", "accuracy"), [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)]
)
def test_accuracy_of_ten_annotators(same, accuracy):
    answers = ["blue"] * same + ["red"] * (10 - same)
    assert vqa_accuracy("Blue.", answers) == pytest.approx(accuracy)


@given(st.lists(st.sampled_from("abc"), min_size=4, max_size=10), st.sampled_from("abcd"))
def test_accuracy_is_the_leave_one_out_mean(answers, letter):
    answers = [f"x{answer}" for answer in answers]  # "a" alone is an article
    left = list(combinations(answers, len(answers) - 1))
    expected = sum(min(1, Counter(some)[f"x{letter}"] / 3) for some in left) / len(left)
    assert vqa_accuracy(f"x{letter}", answers) == pytest.approx(expected)


def test_accuracy_of_few_annotators():
    assert vqa_accuracy("yes", ["Yes!"]) == 1.0
    assert vqa_accuracy("yes", ["no"]) == 0.0
    assert vqa_accuracy("yes", ["yes", "yes"]) == 1.0
    assert vqa_accuracy("yes", ["yes", "no"]) == 0.5
    assert vqa_accuracy("yes", ["yes", "yes", "no"]) == pytest.approx((0.5 + 0.5 + 1) / 3)
    with pytest.raises(InputError, match="no annotated answers"):
        vqa_accuracy("yes", [])


def test_substring_is_not_a_match():
    assert vqa_accuracy("yes it is", ["yes"]) == 0.0
    assert vqa_accuracy("1", ["10"]) == 0.0


def test_most_frequent_answer():
    assert usual_answer(["Red", "blue", "red."]) == "red"
    assert usual_answer(["two", "one"]) == "2"
    with pytest.raises(InputError, match="no annotated answers"):
        usual_answer([])


# ------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Scenes in both formats."""
    folders = {}
    for form in ("vqa", "jsonl"):
        folders[form] = tmp_path_factory.mktemp(form)
        scenes = SceneConfig(height=32, width=32)
        config = ExportConfig(
            format=form, scenes=scenes, train=3, validation=2, test=0, captions=1, questions=4
        )
        export_scenes(config, folders[form])
    return folders


def test_vqa_and_jsonl_exports_agree(exported):
    folder = exported["vqa"]
    for split, subtype in (("train", "train2014"), ("validation", "val2014")):
        stem = folder / f"v2_OpenEnded_mscoco_{subtype}_questions.json"
        notes = folder / f"v2_mscoco_{subtype}_annotations.json"
        rows = read_vqa(stem, notes, folder / subtype)
        assert rows == read_vqa(stem, notes, folder)  # parent of the image folder
        lines = read_vqa_lines(exported["jsonl"] / f"{split}_questions.jsonl")
        assert [row.question for row in rows] == [line.question for line in lines]
        for row, line in zip(rows, lines, strict=True):
            assert len(row.answers) == 10
            assert vqa_accuracy(line.answers[0], row.answers) == 1.0
            assert Image.open(row.image).size == Image.open(line.image).size == (32, 32)
            assert line.kind in KIND_ID
            assert row.kind in ("yes/no", "number", "other")


def test_test_set_has_no_answers(exported):
    folder = exported["vqa"]
    stem = folder / "v2_OpenEnded_mscoco_train2014_questions.json"
    rows = read_vqa(stem, None, folder)
    assert all(row.answers == () for row in rows)


@pytest.fixture
def files(tmp_path):
    """A valid pair of files with one image, to be damaged."""
    Image.new("RGB", (8, 8)).save(tmp_path / "000000000007.png")
    questions = {
        "data_subtype": "val2014",
        "questions": [{"image_id": 7, "question_id": 70, "question": "Is it red?"}],
    }
    annotations = {"annotations": [{"question_id": 70, "answers": [{"answer": "yes"}]}]}

    def write(change=None):
        if change is not None:
            change(questions, annotations)
        (tmp_path / "q.json").write_text(json.dumps(questions, indent=1))
        (tmp_path / "a.json").write_text(json.dumps(annotations))
        return tmp_path / "q.json", tmp_path / "a.json", tmp_path

    return write


def test_ok_vqa_files_are_read(files):
    (row,) = read_vqa(*files())
    assert (row.id, row.question, row.answers) == ("70", "Is it red?", ("yes",))
    assert row.image.name == "000000000007.png"


SPOILT = [
    (lambda q, a: q["questions"][0].pop("image_id"), r"q\.json: questions\[0\]\.image_id: missing"),
    (lambda q, a: q["questions"][0].update(image_id="7"), r"image_id: got '7', expected a whole"),
    (lambda q, a: q["questions"][0].update(image_id=8), r"image_id: 8 has no file COCO_val2014_0"),
    (
        lambda q, a: q["questions"][0].update(question=" "),
        r"questions\[0\]\.question: got ' ', exp",
    ),
    (lambda q, a: q["questions"].append(q["questions"][0]), r"question_id: got 70 twice"),
    (lambda q, a: q.pop("questions"), r"q\.json: questions: missing; got only data"),
    (lambda q, a: q.update(questions=[]), r"questions: got \[\], expected at least one"),
    (lambda q, a: q.update(questions=[3]), r"questions\[0\]: got 3, expected a JSON object"),
    (lambda q, a: a["annotations"][0].update(question_id=1), r"70 has no annotation in .*a\.json"),
    (lambda q, a: a["annotations"][0].update(answers=[]), r"annotations\[0\]\.answers: got \[\]"),
    (lambda q, a: a["annotations"][0]["answers"].append({}), r"answers\[1\]\.answer: missing"),
    (lambda q, a: a["annotations"][0].update(answers="yes"), r"answers: got 'yes', expected a li"),
]


@pytest.mark.parametrize(("change", "message"), SPOILT)
def test_invalid_vqa_files_are_refused(files, change, message):
    with pytest.raises(InputError, match=message):
        read_vqa(*files(change))


def test_files_that_are_not_json_are_refused(files, tmp_path):
    questions, annotations, images = files()
    text = questions.read_text()
    questions.write_text(text.replace('"question_id"', "question_id"))
    with pytest.raises(InputError, match=r"q\.json:6:\d+: not valid JSON"):
        read_vqa(questions, annotations, images)
    questions.write_text("[1]")
    with pytest.raises(InputError, match=r"got \[1\], expected a JSON object"):
        read_vqa(questions, annotations, images)
    questions.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        read_vqa(questions, annotations, images)
    with pytest.raises(InputError, match="there is no such file"):
        read_vqa(tmp_path / "none.json", annotations, images)
    files()
    with pytest.raises(InputError, match="no such folder of images"):
        read_vqa(questions, annotations, tmp_path / "none")


GOOD = {"image": "a.png", "question": "Is it red?", "answers": ["yes"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"own\.jsonl:3:2: not valid JSON"),
        ("[]", r"own\.jsonl:3: got '\[\]', expected a JSON object"),
        (json.dumps({**GOOD, "image": "b.png"}), r"own\.jsonl:3: image: there is no file .*b\.png"),
        (json.dumps({**GOOD, "question": ""}), r"own\.jsonl:3: question: got '', expected"),
        (json.dumps({**GOOD, "answers": []}), r"own\.jsonl:3: answers: got \[\]"),
        (json.dumps({**GOOD, "answers": [1]}), r"own\.jsonl:3: answers\[0\]: got 1, expected text"),
        (json.dumps({**GOOD, "answers": "yes"}), r"own\.jsonl:3: answers: got 'yes', expected a l"),
        (
            json.dumps({"image": "a.png", "answers": ["x"]}),
            r":3: question: missing.*answers",
        ),
        (json.dumps({**GOOD, "id": 1}), r"own\.jsonl:3: id: got '1', which line 1 has too"),
    ],
)
def test_invalid_lines_are_refused(tmp_path, line, message):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    good = json.dumps(GOOD)
    (tmp_path / "own.jsonl").write_text(f"{good}\n\n{line}\n")
    with pytest.raises(InputError, match=message):
        read_vqa_lines(tmp_path / "own.jsonl")


def test_valid_lines_are_read(tmp_path):
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / "a.png")
    (tmp_path / "own.jsonl").write_text(json.dumps(GOOD) + "\n\n")
    (row,) = read_vqa_lines(tmp_path / "own.jsonl", tmp_path / "pictures")
    assert (row.id, row.kind, row.image.name) == ("1", "", "a.png")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match="holds no questions"):
        read_vqa_lines(tmp_path / "empty.jsonl")


def test_lines_of_other_splits_are_told(tmp_path):
    rows = [{**GOOD, "id": str(n), "split": ("val", "val", "train")[n]} for n in range(3)]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="no questions of split 'test', only 2 of 'val', 1 of"):
        read_vqa_lines(path, need_images=False, split="test")
