"""Flags and record files of other programs."""

import json
from pathlib import Path

import pytest
from teach_cases import embedded

from eligo.errors import InputError
from eligo.shots.compat import read_legacy, translate_flags
from eligo.shots.config import RecordsConfig, SamplerConfig
from eligo.shots.data.items import Item, read_items
from eligo.shots.data.records import encode_record
from eligo.shots.inference.embed import open_embedded
from eligo.shots.pool.sampler import Sampler
from eligo.shots.teacher.read import read_legacy_records
from eligo.shots.training.train import find_records

V3_FILE = {"t0": {"icds": ["t4", "t9"], "scores": [0.5, 0.2]}}
LEVER_FILE = {"0": {"id_list": [[7, 5, 0], [8, 6, 0]], "score_list": [0.1, 0.4]}}


def written(path: Path, document) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_v3_files_are_read(tmp_path: Path):
    [[found]] = read_legacy(written(tmp_path / "a.json", V3_FILE))
    assert found.picks == ["t4", "t9"]
    assert found.scores == [0.5, 0.2]


def test_lever_lm_lists_are_reversed_without_their_query(tmp_path: Path):
    [lists] = read_legacy(written(tmp_path / "a.json", LEVER_FILE))
    assert [one.picks for one in lists] == [["6", "8"], ["5", "7"]]
    assert [one.value for one in lists] == [0.4, 0.1]


def read(tmp_path: Path, document, **options):
    pool, queries, _ = open_embedded(embedded(tmp_path / "embedded"))
    sampler = Sampler(pool, SamplerConfig(num_candidates=6))
    path = written(tmp_path / "a.json", document)
    return pool, read_legacy_records(path, sampler, queries, **options)


def test_drawn_candidates_include_the_labels(tmp_path: Path):
    pool, lessons = read(tmp_path, V3_FILE)
    [record] = lessons.records
    assert len(record.candidates) == 6
    example = encode_record(record, pool, 6)
    assert [record.candidates[place] for place in example.labels.tolist()] == ["t4", "t9"]
    assert example.scores.tolist() == pytest.approx([0.5, 0.2])


@pytest.mark.parametrize(
    ("picks", "message"),
    [
        (["t4", "t99"], "'t99' is not in the pool"),
        (["t4", "t4"], "'t4' occurs 2 times"),
        (["t4", "t1"], "its answer would leak"),  # of the query's group
        (["t0", "t4"], "its answer would leak"),
    ],
)
def test_invalid_labels_are_refused(tmp_path: Path, picks: list[str], message: str):
    document = {"t0": {"icds": picks, "scores": [0.5, 0.2]}}
    with pytest.raises(InputError, match=message):
        read(tmp_path, document)
    if "leak" in message:
        with pytest.raises(InputError, match=message):
            read(tmp_path, document, on_bad_label="ignore")
        return
    _, lessons = read(tmp_path, document, on_bad_label="ignore")
    assert lessons.bad_labels == 1
    assert list(lessons.records[0].picks) == ["t4"]
    assert list(lessons.records[0].scores) == [0.5]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "a.json:1:2: not valid JSON"),
        ('{"t0": {"icds": []}, "t0": {"icds": []}}', "'t0' comes twice"),
        ([], "expected an object of queries"),
        ({"t0": 3}, "t0: got 3, expected an object"),
        ({"t0": {"ids": []}}, "t0: got ids, expected icds and scores"),
        ({"t0": {"icds": "t1"}}, "icds: got 't1', expected a list of ids"),
        ({"t0": {"icds": ["t4"], "scores": [1, 2]}}, "scores: got .* expected 1 numbers"),
        ({"0": {"id_list": [[1, 2]], "score_list": [1]}}, r"ends in \['2'\], expected its query"),
        ({"0": {"id_list": [[1, 0]]}}, "score_list: got None, expected 1 numbers"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, document, message: str):
    with pytest.raises(InputError, match=message):
        read_legacy(written(tmp_path / "a.json", document))


def test_pickles_are_refused(tmp_path: Path):
    for read_it in (read_legacy, read_items):
        with pytest.raises(InputError, match=r"is a pickle.*eligo shots convert"):
            read_it(tmp_path / "best_checkpoint.pth")


def test_find_records_by_name(tmp_path: Path):
    for name in ("random_train_gain", "random_train_actual", "random_val_gain"):
        written(tmp_path / f"{name}.json", V3_FILE)
    found = find_records(RecordsConfig(path=tmp_path, split="train", objective="gain"))
    assert found.name == "random_train_gain.json"
    with pytest.raises(InputError, match=r"random_train_actual.json.*objective identify"):
        find_records(RecordsConfig(path=tmp_path, split="train"))
    with pytest.raises(InputError, match="there is no"):
        find_records(RecordsConfig(path=tmp_path / "nothing"))


def test_published_command_line_is_accepted(tmp_path: Path):
    given = (
        f"--model_version v3 {tmp_path} --num_epochs 20 --batch-size=64 --lr 1e-4 --weight_decay "
        "1e-2 --sample_num 4949 --icds_origin random_train --scoring_method gain --json"
    )
    translated = (
        f"v3 --data.path {tmp_path} --train.num_epochs 20 --train.batch_size 64 "
        "--train.lr 1e-4 --train.weight_decay 1e-2 --data.num_anchors 4949 --data.sampler random "
        "--data.split train --data.objective gain --json"
    )
    assert translate_flags(given.split()) == translated.split()
    assert translate_flags(["v2", "--resume", "--train.name", "x"]) == (
        ["v2", "--resume", "--train.name", "x"]
    )
    with pytest.raises(InputError, match="expected a sampler"):
        translate_flags(["--icds_origin", "nearest"])
    with pytest.raises(InputError, match="is a pickle"):
        translate_flags(["old.pth"])


def test_group_of_an_image_does_not_depend_on_its_path(tmp_path: Path, monkeypatch):
    """Otherwise a query would get answers to other questions on its image."""
    (tmp_path / "x.png").touch()
    row = '{"id": "q", "image": "x.png", "question": "a?", "answers": ["b"]}\n'
    written(tmp_path / "v.jsonl", row)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    paths = [tmp_path / "v.jsonl", Path("v.jsonl"), Path("in/../v.jsonl")]
    assert len({read_items(path)[0].group for path in paths}) == 1


def test_items_of_every_format_are_read(tmp_path: Path):
    text = written(tmp_path / "t.jsonl", '{"id": 1, "input": "a?", "output": "b"}\n')
    assert read_items(text) == [Item("1", "a?", ("b",))]
    (tmp_path / "x.png").touch()
    row = '{"id": "q", "image": "x.png", "question": "a?", "answers": ["Two", "2", "3"]}\n'
    [item] = read_items(written(tmp_path / "v.jsonl", row))
    assert item.answer == "2"
    assert item.group == item.image == str(tmp_path / "x.png")
    assert item.payload["answers"] == ["Two", "2", "3"]
    with pytest.raises(InputError, match="need --annotations"):
        read_items(written(tmp_path / "q.json", {}))
    with pytest.raises(InputError, match="holds no line"):
        read_items(written(tmp_path / "e.jsonl", ""))


def test_questions_without_images_are_told_what_lines_of_text_have(tmp_path):
    path = written(tmp_path / "q.jsonl", {"question": "a?", "answer": "b"})
    with pytest.raises(InputError, match="got question, answer; expected id, input and output"):
        read_items(path)
