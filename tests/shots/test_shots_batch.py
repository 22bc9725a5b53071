"""`predict_batch` and `eligo shots predict --data`: all queries of a folder, resumable."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from shot_cases import save_clip
from shot_hosts import picture, template, text_model, tokenizer
from teach_cases import text_items

from eligo.errors import InputError
from eligo.io.interrupts import Interrupted
from eligo.io.locks import FileLock
from eligo.shots import PointerSelectorV2Config, build_model, predict, predict_batch
from eligo.shots.data.items import Item
from eligo.shots.hosts.generator import HostGenerator
from eligo.shots.inference import batch, embed, load
from eligo.shots.inference.encoders import WordsEncoder, open_encoder
from eligo.shots.inference.evaluate import answering
from eligo.shots.inference.load import load_pipeline
from eligo.vqa import vqa_accuracy

QUERIES = text_items(9, start=40)


def save_host(folder: Path, seed: int = 0) -> str:
    host = text_model()
    if seed:
        torch.manual_seed(seed)
        torch.nn.init.normal_(host.lm_head.weight, std=0.3)
    host.save_pretrained(folder)
    tokenizer("text", chat_template=template("text")).save_pretrained(folder)
    return str(folder)


def save_model(folder: Path, seed: int = 1) -> Path:
    torch.manual_seed(seed)
    model = build_model(PointerSelectorV2Config(hidden_dim=8, num_heads=2, state="gru", shot_num=3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return folder


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class World:
    """Examples, queries that are none of them, a model and a host, on disk."""

    def __init__(self, folder: Path) -> None:
        self.data, self.out = folder / "data", folder / "results" / "out.jsonl"
        embed.embed(self.data, text_items(18), QUERIES, WordsEncoder(), name="words")
        self.model, self.host = save_model(folder / "model"), save_host(folder / "host")

    def predict(self, **changes):
        options = {"selector": self.model, "host": self.host, "device": "cpu", "batch_size": 4}
        return predict_batch(self.data, self.out, **{**options, **changes})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Ids of the queries that a host was given."""
    answers, names = HostGenerator.answers, []

    def counted(self, queries, picks):
        names.extend(queries)
        return answers(self, queries, picks)

    monkeypatch.setattr(HostGenerator, "answers", counted)
    return names


@pytest.mark.parametrize("name", ["model", "mmr"])
def test_lines_equal_single_predictions(world: World, name: str):
    selector = world.model if name == "model" else name
    summary = world.predict(selector=selector, num_shots=3)
    lines = lines_of(world.out)
    assert [line["id"] for line in lines] == [item.id for item in QUERIES]
    for line, item in zip(lines, QUERIES, strict=True):
        alone = predict(
            item.question, selector=selector, shots=world.data, num_shots=3,
            host=world.host, device="cpu", group=item.group,
        )  # fmt: skip
        assert line["picks"] == [row["id"] for row in alone.chosen]
        assert line["scores"] == [row["score"] for row in alone.chosen]
        assert line["answer"] == alone.answer
        assert line["accuracy"] == vqa_accuracy(line["answer"], item.answers)
    mean = sum(line["accuracy"] for line in lines) / len(lines)
    assert summary["accuracy"] == pytest.approx(mean)
    low, high = summary["95 % interval"]
    assert low <= mean <= high
    assert summary["queries"] == summary["with answers"] == 9
    assert summary["written"] == world.out


def test_result_does_not_depend_on_the_batch_size(world: World, tmp_path: Path):
    found = []
    for size in (1, 4, 100):
        world.out = tmp_path / f"{size}.jsonl"
        world.predict(batch_size=size, num_candidates=6)  # drawn at random for each query
        found.append(world.out.read_bytes())
    assert found[0] == found[1] == found[2]
    assert len({line["answer"] for line in lines_of(world.out)}) > 1


def test_accuracy_equals_that_of_evaluate(world: World):
    # Answers that the host gives, so that accuracies are not all 0.
    world.predict()
    said = {line["id"]: line["answer"] for line in lines_of(world.out)}
    items = [
        Item(item.id, item.question, ("red", said[item.id])[: 1 + n % 2], None, item.group)
        for n, item in enumerate(QUERIES)  # `evaluate` skips queries that it cannot score
    ]
    embed.embed(world.data, text_items(18), items, WordsEncoder(), name="words")
    world.out.unlink()
    summary = world.predict()
    assert 0 < summary["accuracy"] < 1
    pipeline = load_pipeline(world.model, world.data)
    queries = embed.open_embedded(world.data)[1]
    answered = answering(pipeline, queries, [3], {"model": world.host, "device": "cpu"})
    rows = answered.tables()["accuracy"]
    (row,) = [row for row in rows if row["examples"] == "selector" and row["shots"] == 3]
    assert len(answered.queries) == 9
    assert row["mean"] == pytest.approx(summary["accuracy"])


def test_picks_alone_without_a_host(world: World):
    assert world.predict(host=None) == {"queries": 9, "written": world.out}
    lines = lines_of(world.out)
    assert all(line.keys() == {"id", "picks", "scores"} for line in lines)
    assert all(len(line["picks"]) == len(line["scores"]) == 3 for line in lines)


def test_queries_without_answers_have_no_accuracy(world: World):
    items = [*QUERIES[:3], Item("q", "what is it?", ("",))]
    embed.embed(world.data, text_items(18), items, WordsEncoder(), name="words")
    summary = world.predict()
    assert lines_of(world.out)[-1]["accuracy"] is None
    assert (summary["queries"], summary["with answers"]) == (4, 3)


def test_continues_after_the_last_whole_line(world: World, asked: list[str]):
    world.predict()
    whole = world.out.read_bytes()
    lines = whole.splitlines(keepends=True)
    names = [item.id for item in QUERIES]
    assert asked == names
    for kept, left in (
        (b"".join(lines[:5]) + lines[5][:-7], names[5:]),
        (b"".join(lines[:5]) + lines[5][:-1], names[5:]),  # even its newline is missing
        (b"".join(lines[:4]), names[4:]),
        (lines[0][:9], names),
        (b"", names),
        (whole, []),
    ):
        asked.clear()
        world.out.write_bytes(kept)
        world.predict(batch_size=2)
        assert asked == left
        assert world.out.read_bytes() == whole


def test_interrupted_run_says_what_is_kept(world: World, monkeypatch):
    answers, calls = HostGenerator.answers, []

    def interrupted(self, queries, picks):
        calls.append(queries)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return answers(self, queries, picks)

    monkeypatch.setattr(HostGenerator, "answers", interrupted)
    with pytest.raises(Interrupted, match=r"out\.jsonl keeps what was finished"):
        world.predict()
    assert [line["id"] for line in lines_of(world.out)] == [item.id for item in QUERIES[:4]]
    assert world.predict()["queries"] == 9


def test_link_is_followed(world: World, tmp_path: Path):
    world.predict(host=None)
    link = world.out = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "there.jsonl")
    world.predict(host=None)
    assert link.is_symlink()
    assert (tmp_path / "there.jsonl").read_bytes().count(b"\n") == 9
    world.out = Path(os.devnull)
    with pytest.raises(InputError, match="expected a file"):
        world.predict(host=None)


KILLED = """
import os, signal, sys
from pathlib import Path
from eligo.io.files import GrowingFile
from eligo.shots import predict_batch

write, batches = GrowingFile.write, []

def killed(self, content):
    batches.append(content)
    if len(batches) == 3:
        write(self, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, content)

GrowingFile.write = killed
data, out, model, host = sys.argv[1:]
predict_batch(data, out, selector=model, host=host, device="cpu", batch_size=2)
"""


def test_killed_run_continues(world: World, tmp_path: Path):
    world.predict()
    whole = world.out.read_bytes()
    world.out = tmp_path / "killed.jsonl"
    places = [str(path) for path in (world.data, world.out, world.model, world.host)]
    ended = subprocess.run([sys.executable, "-c", KILLED, *places], env=os.environ, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert whole.startswith(world.out.read_bytes())
    assert 4 <= world.out.read_bytes().count(b"\n") < 6
    assert not world.out.read_bytes().endswith(b"\n")
    world.predict()
    assert world.out.read_bytes() == whole


def test_other_settings_are_refused(world: World, tmp_path: Path):
    world.predict()
    whole = world.out.read_bytes()
    model = save_model(tmp_path / "other", seed=2)
    cases = [
        ({"selector": model}, "started with selector 'v2 "),
        ({"selector": "knn"}, "started with selector 'v2 .* got 'knn "),
        ({"num_shots": 2}, "started with shots 3, got 2"),
        ({"num_candidates": 5}, "started with sampler "),
        ({"host": None}, "started with host .* got None"),
    ]
    for changes, message in cases:
        with pytest.raises(InputError, match=message):
            world.predict(**changes)
    save_host(Path(world.host), seed=5)
    world.predict()  # all lines are there, so no host is needed
    world.out.write_bytes(whole[:-1])
    with pytest.raises(InputError, match="a host of this name with other weights"):
        world.predict()
    embed.embed(world.data, text_items(18), QUERIES[:8], WordsEncoder(), name="words")
    with pytest.raises(InputError, match="started with queries "):
        world.predict()
    assert whole.startswith(world.out.read_bytes())
    assert world.out.read_bytes().count(b"\n") == 8


def test_other_files_are_never_changed(world: World):
    world.out.parent.mkdir()
    world.out.write_text("my notes\n")
    with pytest.raises(InputError, match=r"not of `eligo shots predict --data`.*choose another"):
        world.predict()
    assert world.out.read_text() == "my notes\n"
    world.out.unlink()
    world.predict()
    for damage, message in (
        ('{"id": "t40"}\n', "out.jsonl:1: picks: missing"),
        ("{]\n", "out.jsonl:1:2: not valid JSON"),
        ('{"id": "t99", "picks": [], "scores": []}\n', "'t99', which is none of the queries"),
    ):
        world.out.write_text(damage)
        with pytest.raises(InputError, match=message):
            world.predict()
        assert world.out.read_text() == damage


def test_one_writer_at_a_time(world: World):
    lock = FileLock.acquire(world.out)
    assert lock is not None
    with pytest.raises(InputError, match="another process is writing it"):
        world.predict()
    lock.release()
    world.predict()


def test_everything_is_checked_before_the_host_is_loaded(world: World, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr(load, "load_reader", loaded.append)
    embed.embed(tmp_path / "others", text_items(20), QUERIES, WordsEncoder(), name="words")
    wide = build_model(PointerSelectorV2Config(d_model=5, hidden_dim=8))
    for changes, message in (
        ({"shots": tmp_path / "others"}, "its examples have hash"),
        ({"selector": wide}, "width 5, but those of the examples have width 768"),
        ({"selector": tmp_path / "none"}, "none: is not a folder"),
        ({"model_version": "v3"}, "model_version: got v3, but .* is v2"),
        ({"model_version": "v9"}, "model_version: got 'v9', expected v0"),
        ({"num_shots": 0}, "num_shots: got 0"),
        ({"batch_size": 0}, "batch_size: got 0"),
        ({"images": tmp_path}, "neither examples nor queries have any"),
    ):
        with pytest.raises(InputError, match=message):
            world.predict(**changes)
    pool, queries, about = embed.open_embedded(world.data)
    queries = type(queries)(queries.ids, {"image": queries.views["text"]}, payload=queries.payload)
    embed.save_embedded(world.data, pool, queries, about)
    with pytest.raises(InputError, match="its queries have vectors"):
        world.predict()
    assert not loaded
    assert not world.out.exists()


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("embed.json", '"words"', "3", r"embed\.json: encoder: got 3, expected the name"),
        ("embed.json", '"question_answer"', '"all"', "candidate_text: got 'all', expected quest"),
        ("queries/items.jsonl", '"what is number 40?"', "4", r"items\.jsonl: 't40': got payload"),
        ("pool/items.jsonl", '"answer"', '"output"', r"pool/items\.jsonl: 't0': got payload"),
    ],
)
def test_damaged_data_are_refused(world: World, file: str, old: str, new: str, message: str):
    path = world.data / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        world.predict(host=None)
    assert not world.out.exists()


def test_failure_of_the_host_leaves_no_file(world: World, tmp_path: Path):
    with pytest.raises(InputError, match="there is no such folder"):
        world.predict(host=str(tmp_path / "none"))
    assert not any(world.out.parent.iterdir())


# ------------------------------------------------------------------ images


def image_world(folder: Path) -> tuple[Path, list[Item]]:
    """Twelve questions on six images, embedded by a tiny CLIP."""
    save_clip(str(folder / "clip"))
    (folder / "photos" / "a").mkdir(parents=True)
    items = []
    for n in range(12):
        path = picture(folder / "photos" / "a" / f"{n // 2}.png", n // 2)
        items.append(Item(f"q{n}", f"what is it {n}?", ("red", "red", "blue"), path, path))
    clip = str(folder / "clip")
    embed.embed(folder / "data", items[:8], items[8:], open_encoder(clip, "cpu"), name=clip)
    return folder / "data", items[8:]


def test_images_and_their_new_folder(tmp_path: Path):
    data, items = image_world(tmp_path)
    options = {"selector": "knn", "host": "shots_learner", "device": "cpu", "num_shots": 2}
    predict_batch(data, tmp_path / "a.jsonl", **options, batch_size=3)
    for line, item in zip(lines_of(tmp_path / "a.jsonl"), items, strict=True):
        alone = predict(item.question, item.image, shots=data, **options)
        assert line["picks"] == [row["id"] for row in alone.chosen]
        assert line["answer"] == alone.answer
    (tmp_path / "photos").rename(tmp_path / "moved")
    with pytest.raises(InputError, match=r"0\.png"):
        predict_batch(data, tmp_path / "b.jsonl", **options)
    for folder in ("moved", "moved/a"):
        out = tmp_path / f"{Path(folder).name}.jsonl"
        predict_batch(data, out, **options, images=tmp_path / folder)
        assert out.read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "moved" / "a" / "5.png").unlink()
    with pytest.raises(InputError, match=r"moved has no 5\.png, which was embedded as"):
        predict_batch(data, tmp_path / "c.jsonl", **options, images=tmp_path / "moved")


def test_longest_end_of_a_path_wins(tmp_path: Path):
    for place in ("x.png", "train/x.png", "old/train/x.png"):
        (tmp_path / place).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / place).touch()
    for stored, expected in (
        ("x.png", "x.png"),
        ("/data/train/x.png", "train/x.png"),
        ("../old/train/x.png", "old/train/x.png"),
        ("val/x.png", "x.png"),
    ):
        found = batch._with_image({"image": stored}, tmp_path)
        assert found["image"] == str(tmp_path / expected)


def test_questions_of_a_test_set_have_no_answers(tmp_path: Path, call):
    image_world(tmp_path)
    row = {"image": "photos/a/5.png", "question": "what?"}
    Path("test.jsonl").write_text(json.dumps(row) + "\n")
    shots = [{**row, "id": n, "image": f"photos/a/{n}.png", "answers": ["red"]} for n in range(4)]
    Path("shots.jsonl").write_text("".join(json.dumps(shot) + "\n" for shot in shots))
    embedding = "embed --encoder clip --device cpu --out tested --json"
    message = call(f"{embedding} --data test.jsonl", code=2)
    assert "test.jsonl:1: answers: got none" in message
    call(f"{embedding} --data shots.jsonl --queries test.jsonl")
    summary = call(
        "predict --data tested --selector knn --model shots_learner --shots 1 --device cpu "
        "--out found.jsonl --json"
    )
    assert summary == {"queries": 1, "written": "found.jsonl"}
    (line,) = lines_of(Path("found.jsonl"))
    assert line["accuracy"] is None
    assert isinstance(line["answer"], str)


def test_queries_without_answers_are_not_taught(tmp_path: Path, call):
    lines = [{"id": n, "input": f"what is {n}?", "output": str(n) if n else ""} for n in range(6)]
    Path("x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    call("embed --data x.jsonl --json")
    summary = call("teach --shots 1 --beam 1 --json")
    assert (summary["taught"], summary["skipped"]) == (5, 1)
    assert "query '0' has no answer" in (tmp_path / "taught" / "skipped.jsonl").read_text()


# ------------------------------------------------------------------ on the command line


@pytest.mark.usefixtures("world")
def test_command_of_the_published_design(call):
    ours = call(
        "predict --data data --selector model --model host --out ours.jsonl --batch_size 4 "
        "--device cpu --json"
    )
    assert ours["queries"] == 9
    assert ours["written"] == "ours.jsonl"
    published = (
        "predict --model_version v2 data --checkpoint_path model --output_path theirs.json "
        "--vlm_model_path host --batch_size 16 --device cpu --json"
    )
    theirs = call(published)
    assert {**theirs, "written": ours["written"]} == ours
    assert Path("theirs.json").read_bytes() == Path("ours.jsonl").read_bytes()
    assert call(published) == theirs  # was finished
    message = call(published.replace("v2", "v3"), code=2)
    assert "model_version: got v3, but model is v2" in message


@pytest.mark.usefixtures("world")
def test_question_or_folder(call):
    data = "predict --data data --selector knn --out x"
    for words, message in (
        ("predict", "got neither; expected either --question, or --data"),
        (f"{data} --question what?", "got both; expected either"),
        ("predict --data data --selector knn", "--data needs --out"),
        (f"{data} --image x.png", "--image goes with --question"),
        (f"{data} --group g", "--group goes with --question"),
        ("predict --question what? --batch_size 2", "--batch_size goes with --data"),
        ("predict --question what? --images data", "--images goes with --data"),
        ("predict what?", "got 'what?', an unexpected word; give a question as --question"),
        ("predict data --data data --out x", "got 'data', an unexpected word"),
        ("predict --data data --selector knn --out data", "--out names a file"),
        ("predict --data model --selector knn --out x", "holds no embedded examples"),
        ("predict --data data --selector best.pth --out x", "`eligo shots convert best.pth"),
        (f"{data} --batch_size 0", "expected at least 1"),
    ):
        error = call(words, code=2)
        assert message in error
        assert error.startswith("error: ")
        assert error.count("\n") == 1
    assert not Path("x").exists()
