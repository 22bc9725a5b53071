"""embed -> teach -> train -> predict -> evaluate, from the command line."""

import json
import signal
from pathlib import Path

import pytest
import torch
from shot_cases import save_clip
from shot_hosts import picture, template, text_model, tokenizer
from teach_cases import WORDS, text_items

from eligo.cli.search import _read as read_search
from eligo.config import load_config, shipped_configs
from eligo.explorer.folder import find_records, load_record
from eligo.explorer.record import ExplorerRecord
from eligo.io import files
from eligo.io.interrupts import Interrupted
from eligo.shots import LearnedSelector, load_selector
from eligo.shots.config import (
    DEFAULT,
    NAMED,
    PointerSelectorV0Config,
    PointerSelectorV1Config,
    PointerSelectorV2Config,
    PointerSelectorV3Config,
    ShotsTrainConfig,
    TeachConfig,
)
from eligo.shots.hosts.reader import Reader
from eligo.shots.inference.embed import embed, embed_query, open_embedded
from eligo.shots.inference.encoders import WordsEncoder
from eligo.shots.inference.load import load_pipeline

MODELS = {
    "v0": PointerSelectorV0Config(),
    "v1": PointerSelectorV1Config(),
    "v2": PointerSelectorV2Config(),
    "v2_gru": PointerSelectorV2Config(state="gru"),
    "v3": PointerSelectorV3Config(),
    "v3_scores": PointerSelectorV3Config(
        ranking_loss_type="regression", ranking_loss_weight=10.0, hidden_dim=256, dropout=0.1
    ),
}
TRAIN = ["--num_epochs", "2", "--train.min_steps", "1", "--model.hidden_dim", "16"]


def write_texts(path: str, start: int = 0, count: int = 40) -> None:
    lines = [
        {"id": f"t{n}", "input": f"where is the {WORDS[n % 6]}?", "output": f"at {n % 6}"}
        for n in range(start, start + count)
    ]
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines))


def taught(call, *more: str) -> None:
    write_texts("shots.jsonl")
    call("embed --data shots.jsonl --json")
    call("teach --shots 2 --beam 2 --sampler.num_candidates 8 --sampler.kind random --json", *more)


def save_host(folder: str) -> str:
    text_model().save_pretrained(folder)
    tokenizer("text", chat_template=template("text")).save_pretrained(folder)
    return folder


def test_text_pipeline_without_a_model(call):
    taught(call)
    fitted = call("train taught --json", *TRAIN, "--icds_origin", "random_train")
    assert fitted["folder"] == "runs/shots_v3_scores"
    assert "ndcg" in fitted["best"]
    again = call("train taught --json --resume", *TRAIN, "--icds_origin", "random_train")
    assert again["best"] == fitted["best"]
    flags = ["--question", "where is the red ball?", "--shots", "2", "--json"]
    found = call("predict", *flags)["chosen"]
    assert [row["pick"] for row in found] == [1, 2]
    first = found[0]
    assert first["score"] >= found[1]["score"]
    assert first["says"].startswith("where is the")
    assert first["next best"] not in (None, first["id"])
    assert "cosine with the question" in first["why not"]
    assert "picked before" in found[1]["why not"]
    usual = call("predict", *flags[:2], "--json")  # the number used in teaching
    assert len(usual["chosen"]) == 2
    assert usual["among"] == "8 of 40 examples, drawn by the sampler random"
    shown = call("predict", *flags, "--out", "seen")
    assert shown["chosen"] == found
    check_record(load_record(find_records(Path(shown["folder"]))[0]), found)
    report = call("evaluate --data embedded --taught taught --shots 2 --out report.json --json")
    assert 0 < report["ranking"]["mrr"] <= 1
    assert 0 <= report["ranking"]["without ndcg"] < report["ranking"]["records"]
    names = {"none", "random", "nearest", "mmr", "dpp", "bm25", "selector"}
    assert {row["examples"] for row in report["log-probability"]} == names
    assert json.loads(Path("report.json").read_text())["ranking"] == report["ranking"]
    assert isinstance(load_selector("runs/shots_v3_scores/selector"), LearnedSelector)
    assert len(LearnedSelector.from_pretrained("runs/shots_v3_scores").pool) == 40


def test_selector_without_examples_is_refused(call):
    for name, why in {"shots_v1": "comes without examples", "runs/no": "is not a folder"}.items():
        message = call("predict", "--selector", name, "--question", "what?", code=2)
        assert f"{name}: {why}" in message
        assert "eligo shots train" in message


def check_record(shown: ExplorerRecord, found: list[dict]) -> None:
    """The record shows the picks in order and all other candidates, with scores and notes."""
    (stage,) = shown.stages
    chosen = stage.selection.indices.tolist()
    assert isinstance(stage.over, tuple)
    assert len(stage.over) == 8
    assert [stage.over[place].text for place in chosen] == [row["says"] for row in found]
    assert stage.selection.scores[chosen].tolist() == pytest.approx([r["score"] for r in found])
    assert stage.selection.scores.isfinite().all()
    for place, row in zip(chosen, found, strict=True):
        assert stage.over[place].note.startswith(f"pick {row['pick']}: score")
    others = [item.note for place, item in enumerate(stage.over) if place not in chosen]
    assert any("next best for pick 2: the same score" in note for note in others)


def test_pipeline_with_a_host(call, monkeypatch):
    folder = save_host("host")
    host = ["--host.model", folder, "--host.device", "cpu", "--num_queries", "20"]
    host += ["--host.instruction", "be brief!", "--host.placement", "append"]
    write_texts("shots.jsonl")
    call("embed --data shots.jsonl --json")
    dry = ["--shots", "2", "--beam", "2", "--sampler.num_candidates", "8", "--dry-run", "--json"]
    planned = call("teach", *host, *dry)
    assert planned["calls"] == 20 * planned["calls per query"]
    assert not Path("taught").exists()
    taught(call, *host)
    meta = json.loads(Path("taught/meta.json").read_text())
    assert meta["host"] == folder
    assert len(meta["template"]) == 32
    call("train v3 --train.name run --json", *TRAIN)
    # Prompts are written as in teaching.
    prompt = json.loads(Path("runs/run/selector/pipeline.json").read_text())["prompt"]
    assert prompt == {"placement": "append", "instruction": "be brief!"}
    read, prompts = Reader.prompt_ids, []

    def spied(self: Reader, shots, questions):
        ids = read(self, shots, questions)
        prompts.extend(self.tokenizer.decode(row) for row in ids)
        return ids

    monkeypatch.setattr(Reader, "prompt_ids", spied)
    flags = ["--selector", "runs/run", "--question", "where is it?", "--model", folder]
    found = call("predict --json --device cpu", *flags)
    assert isinstance(found["answer"], str)
    assert prompts[-1].count("be brief!") == len(found["chosen"]) + 1
    report = call(
        f"evaluate --selector runs/run --data embedded --model {folder} --device cpu "
        "--shots 1 --num_queries 3 --json"
    )
    assert all(0 <= row["from"] <= row["mean"] <= row["to"] <= 1 for row in report["accuracy"])
    assert all("be brief!" in prompt for prompt in prompts)


def test_all_drawn_candidates_are_scored(call):
    write_texts("shots.jsonl", count=90)
    call("embed --data shots.jsonl --json")
    call("teach --shots 1 --beam 1 --sampler.num_candidates 80 --num_queries 8 --json")
    call("train v2 --json", *TRAIN)
    pipeline = load_pipeline(Path("runs/shots_v2"))
    query = embed_query(WordsEncoder(), "new", "where is the red ball?", None)
    names = pipeline.sampler.names(query)
    assert len(names) == 80
    found = pipeline.selector.select(query, 1, candidates=names)
    assert found.scores[pipeline.selector.pool.rows(names)].isfinite().all()
    flags = ["--selector", "runs/shots_v2", "--question", "where is the red ball?", "--json"]
    for more, among in (
        ([], "80 of 90 examples, drawn by the sampler nearest_random"),
        (["--num_candidates", "5"], "5 of 90 examples, drawn by the sampler nearest_random"),
        (["--num_candidates", "1000"], "all 90 examples"),
    ):
        assert call("predict", *flags, *more)["among"] == among
    assert "expected at least 1" in call("predict", *flags, "--num_candidates", "0", code=2)


def test_ties_are_explained(call):
    write_texts("shots.jsonl")
    lines = Path("shots.jsonl").read_text().splitlines()
    twins = [{**json.loads(line), "id": f"twin {n}"} for n, line in enumerate(lines)]
    Path("shots.jsonl").write_text("\n".join([*lines, *map(json.dumps, twins)]))
    call("embed --data shots.jsonl --json")
    call("teach --shots 2 --beam 1 --sampler.num_candidates 79 --num_queries 8 --json")
    call("train --json", *TRAIN)
    found = call("predict --json --shots 2 --question", "where is the red ball?")["chosen"]
    assert found[0]["why not"].startswith("the same score, ")


def test_wrong_folders_are_refused(call):
    assert "holds no embedded examples" in call("teach", code=2)
    taught(call)
    assert "runs/shots_v3_scores: is not a folder" in call("predict --question x", code=2)
    assert "is a pickle" in call("predict --question x --selector best.pth", code=2)
    assert "is a pickle" in call("train old.pth", code=2)
    assert "was taught on candidates of the sampler random" in call(
        "train taught --icds_origin text_train", code=2
    )
    call("train taught --json", *TRAIN)
    path = Path("runs/shots_v3_scores/selector/pipeline.json")
    whole = path.read_text()
    path.write_text("{}")
    assert "holds no trained selector" in call("predict --question x", code=2)
    path.write_text(whole)
    assert "question: is empty" in call("predict --question", " ", code=2)
    assert "x.png: there is no such image" in call("predict --question x --image x.png", code=2)
    picture("x.png", 0)
    message = call("predict --question x --image x.png", code=2)
    assert "were embedded from words alone; leave out the image, or embed again with" in message
    assert "`eligo shots embed --encoder FOLDER`" in message
    assert "give --taught" in call("evaluate", code=2)
    write_texts("others.jsonl", 40)
    call("embed --data others.jsonl --out others --json")
    assert "but the selector was trained on" in call("evaluate --data others", code=2)


def test_published_records_train_v3_only_with_scores(call):
    write_texts("shots.jsonl")
    call("embed --data shots.jsonl --json")
    names = [f"t{n}" for n in range(40)]
    scored = {
        name: {"icds": [names[n - 3], names[n - 5]], "scores": [0.5, 0.1]}
        for n, name in enumerate(names)
    }
    Path("records.json").write_text(json.dumps(scored))
    assert "(--data.embedded; in evaluate, --data)" in call("train v3 records.json", code=2)
    data = ["--data.embedded", "embedded", "--json"]
    fitted = call("train v3 records.json", *TRAIN, *data, "--sample_num", "30")
    assert "mrr" in fitted["best"]
    assert "ndcg" not in fitted["best"]
    bare = {name: {"icds": row["icds"]} for name, row in scored.items()}
    Path("records.json").write_text(json.dumps(bare))
    message = call("train v3 records.json", *data, code=2)
    assert "no record has any; give them (`scores` in a JSON file" in message
    Path("records.json").write_text(json.dumps({"0": scored["t0"]}))
    message = call("train v3 records.json", *data, code=2)
    assert "records.json: query '0' is not among the 40 embedded ones; did you mean t0?" in message


def test_images_are_embedded_with_text(call):
    save_clip("clip")
    lines = []
    for n in range(12):
        picture(f"{n // 2}.png", n // 2)
        row = {"id": f"q{n}", "image": f"{n // 2}.png", "question": f"what {n}?"}
        lines.append(json.dumps({**row, "answers": ["red", "red", "blue"]}) + "\n")
    Path("vqa.jsonl").write_text("".join(lines))
    assert "cannot embed" in call("embed --data vqa.jsonl", code=2)
    found = call("embed --data vqa.jsonl --encoder clip --device cpu --json")
    assert found["views"] == ["image", "text"]
    pool, queries, about = open_embedded(Path("embedded"))
    assert about["encoder"] == "clip"
    assert torch.equal(pool.views["image"], queries.views["image"])
    assert not torch.equal(pool.views["text"], queries.views["text"])
    assert torch.equal(pool.views["image"][0], pool.views["image"][1])
    assert not torch.equal(pool.views["image"][1], pool.views["image"][2])
    assert pool.groups[0] == pool.groups[1] != pool.groups[2]
    assert pool.payload[0]["answer"] == "red"
    assert "questions about images need a host" in call("teach", code=2)


def test_changed_encoder_is_refused(call):
    save_clip("clip")
    write_texts("shots.jsonl", count=12)
    call("embed --data shots.jsonl --encoder clip --device cpu --json")
    call("teach --shots 1 --sampler.num_candidates 6 --json")
    call("train taught --json", *TRAIN)
    ask = "predict --question ball --shots 1 --device cpu --json"
    call(ask)
    save_clip("clip", seed=1)
    assert "encoder: clip gives the text of example 't0' another vector" in call(ask, code=2)
    save_clip("clip")
    call(ask)
    for file in Path("clip").glob("tokenizer*"):
        file.unlink()
    Path("clip/tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    assert "clip: holds no tokenizer" in call(ask, code=2)


def test_encoder_as_host_is_refused(call):
    from transformers import BertConfig, BertLMHeadModel

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    BertLMHeadModel(BertConfig(**sizes, num_attention_heads=2, vocab_size=64)).save_pretrained("b")
    tokenizer("text").save_pretrained("b")
    write_texts("shots.jsonl", count=12)
    call("embed --data shots.jsonl --json")
    assert "b: is an encoder (bert)" in call("teach --host.model b --host.device cpu", code=2)


@pytest.mark.parametrize("name", shipped_configs("shots"))
def test_every_config_builds(name: str):
    if name == "v3_grid":
        config, search = read_search(f"shots/{name}")
        assert config == load_config(ShotsTrainConfig, "shots/v3")
        assert search.space == {"model.ranking_loss_weight": [0.05, 0.1, 0.15, 0.2]}
        assert search.is_grid
        return
    config = load_config(TeachConfig if name == "vqa" else ShotsTrainConfig, f"shots/{name}")
    if isinstance(config, ShotsTrainConfig):
        assert config.train.lr == 5e-3  # the published one is for the documented form
        assert (config.train.num_epochs, config.train.batch_size) == (20, 64)
        assert config.model == MODELS[name]
        assert NAMED[name] == MODELS[name]
        if name != DEFAULT:  # which has sizes of its own
            other = load_config(ShotsTrainConfig, f"shots/{name}", {"model.version": "v0"})
            assert other.model == MODELS["v0"]


def test_signal_never_mixes_two_embeddings(tmp_path, monkeypatch):
    items = text_items(6)
    embed(tmp_path, items, None, WordsEncoder(), name="words")
    original, sent = files._replace_folder, iter([signal.SIGTERM])

    def put(*places) -> None:
        original(*places)
        for number in sent:  # after the first of the two folders
            signal.raise_signal(number)

    monkeypatch.setattr(files, "_replace_folder", put)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(Interrupted, match="is written"):
            embed(tmp_path, text_items(9), None, WordsEncoder(), name="words")
    finally:
        signal.signal(signal.SIGTERM, before)
    pool, queries, _ = open_embedded(tmp_path)
    assert len(pool) == len(queries) == 9
