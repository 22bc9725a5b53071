"""The teacher: its results, its cost, its files, and restarts after a kill."""

import json
import signal
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from teach_cases import FakeScorer, embedded, files_of, teach_config

from eligo.errors import EligoError, InputError
from eligo.io.interrupts import Interrupted
from eligo.shots import Pool, Query, num_calls
from eligo.shots.hosts.prompt import UnscorableError
from eligo.shots.inference.embed import open_embedded
from eligo.shots.teacher.overlap import OverlapScorer, bigram_f1
from eligo.shots.teacher.read import read_records
from eligo.shots.teacher.run import check_turns, plan, teach
from eligo.shots.teacher.shards import check_host
from eligo.shots.teacher.teacher import list_value, step_score, teach_query
from limits import PROCESS_SECONDS

QUERY = Query("q", torch.ones(2))


@pytest.mark.parametrize("objective", ["gain", "actual", "logprob"])
def test_wide_beam_finds_the_best_list(objective):
    scorer, names = FakeScorer(), list("abcde")
    found = teach_query(QUERY, names, scorer, shots=3, beam=100, objective=objective)
    best = max(permutations(names, 3), key=lambda picks: FakeScorer().value("q", picks))
    assert [names[place] for place in found.beams[0].picks] == list(best)
    mean = torch.tensor(FakeScorer().value("q", best) / 2)
    assert found.beams[0].value == pytest.approx(float(list_value(mean, objective)))


def test_cost_matches_num_calls():
    scorer = FakeScorer()
    teach_query(QUERY, list("abcdefg"), scorer, shots=4, beam=3, objective="gain")
    assert len(scorer.calls) == num_calls(7, 4, 3)


def test_every_scored_pair_is_kept():
    scorer, names = FakeScorer(), list("abcdef")
    found = teach_query(QUERY, names, scorer, shots=3, beam=2, objective="logprob")
    assert found.states.tolist()[0] == [-1, -1, -1]
    for state, row in zip(found.states.tolist(), found.logprob, strict=True):
        picks = [names[place] for place in state if place >= 0]
        for place, value in enumerate(row.tolist()):
            if names[place] in picks:
                assert value != value
            else:
                assert value == pytest.approx(FakeScorer().value("q", (*picks, names[place])))
    assert int((~found.logprob.isnan()).sum()) + 1 == num_calls(6, 3, 2)


def test_objectives_by_hand():
    after, before = torch.tensor([-1.0, -2.0]), torch.tensor(-3.0)
    assert torch.equal(step_score(after, before, "logprob"), torch.tensor([2.0, 1.0]))
    assert torch.allclose(step_score(after, before, "gain"), after.exp() - before.exp())
    assert torch.equal(step_score(after, before, "actual"), after.exp())


@pytest.mark.parametrize("objective", ["gain", "actual", "logprob"])
def test_records_have_dense_scores_of_each_step(tmp_path: Path, objective):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path, objective="gain")
    assert teach(config, lambda *_: FakeScorer())["taught"] == 18
    pool, queries, _ = open_embedded(config.data)
    lessons = read_records(config.out, pool, queries, objective=objective)
    assert len(lessons.records) == 18
    for record in lessons.records:
        scorer, picks = FakeScorer(), []
        assert len(record.picks) == 2
        for pick, scores in zip(record.picks, record.step_scores, strict=True):
            before = torch.tensor(scorer.value(record.query.id, picks) / 2)
            for name, score in zip(record.candidates, scores, strict=True):
                if name in picks:
                    assert score.isnan()
                    continue
                after = torch.tensor(scorer.value(record.query.id, (*picks, name)) / 2)
                expected = step_score(after, before, objective)
                assert float(score) == pytest.approx(float(expected), abs=1e-6)
            picks.append(pick)


def test_weighted_labels_are_all_beams(tmp_path: Path):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: FakeScorer())
    pool, queries, _ = open_embedded(config.data)
    records = read_records(config.out, pool, queries, labels="weighted").records
    assert len(records) == 36
    pairs = zip(records[::2], records[1::2], strict=True)
    first = next(pair for pair in pairs if sum(record.weight for record in pair) > 0.5)  # no noise
    assert sum(record.weight for record in first) == pytest.approx(1.0)
    z = torch.tensor([1.0, -1.0])  # any two different values
    assert [record.weight for record in first] == pytest.approx(z.softmax(0).tolist())


def test_files_have_the_documented_format(tmp_path: Path):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: FakeScorer())
    assert set(files_of(config.out)) == {
        "meta.json", "records.jsonl", *(f"scores-{n:05d}.safetensors" for n in range(5)),
    }  # fmt: skip
    lines = [json.loads(line) for line in (config.out / "records.jsonl").read_text().splitlines()]
    assert [line["query_id"] for line in lines] == [f"t{n}" for n in range(18)]
    assert {"query_id", "group", "pool", "baseline", "beams", "shard", "rows"} == set(lines[0])
    for line in lines:
        assert len(line["pool"]) == 6
        assert line["query_id"] not in line["pool"]
        assert all(int(name[1:]) // 2 != int(line["query_id"][1:]) // 2 for name in line["pool"])
        assert line["beams"][0]["value"] >= line["beams"][1]["value"]
    tensors = load_file(config.out / "scores-00004.safetensors")
    assert tensors["states"].dtype == torch.int32
    assert tensors["states"].shape == (6, 2)
    assert tensors["logprob"].shape == (6, 6)
    assert tensors["num_tokens"].tolist() == [2] * 6
    assert teach(config, lambda *_: 1 / 0)["state"] == "was finished before"


@pytest.mark.parametrize("torn", [False, True])
def test_killed_run_resumes_to_the_same_files(tmp_path: Path, torn: bool):
    """Even within the first shard, a finished query is not taught again."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        embedded(folder / "embedded")
    teach(teach_config(whole), lambda *_: FakeScorer())
    script = Path(__file__).with_name("teach_cases.py")
    died = subprocess.run(
        [sys.executable, script, killed, "t9"], capture_output=True, timeout=PROCESS_SECONDS
    )
    assert died.returncode == -9, died.stderr.decode()
    config = teach_config(killed)
    assert not (config.out / "records.jsonl").exists()
    parts = sorted(path.name for path in (config.out / "parts").iterdir())
    assert parts == ["00000.jsonl", "00001.jsonl", "00002.growing"]
    if torn:  # the last line of a kill while writing
        with (config.out / "parts" / parts[-1]).open("ab") as file:
            file.write(b'{"line": {"query_id": "t')
    scorer = FakeScorer()
    assert teach(config, lambda *_: scorer)["taught"] == 18
    assert {query for query, _ in scorer.calls} == {f"t{n}" for n in range(9, 18)}
    mine, theirs = files_of(config.out), files_of(teach_config(whole).out)
    mine["meta.json"] = mine["meta.json"].replace(bytes(killed), bytes(whole))
    assert mine == theirs


def test_stopped_run_keeps_its_finished_queries(tmp_path: Path):
    class Stopped(FakeScorer):
        def baseline(self, query):
            if query.id == "t6":
                raise Interrupted(signal.SIGTERM)
            return super().baseline(query)

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        embedded(folder / "embedded")
    teach(teach_config(whole), lambda *_: FakeScorer())
    config = teach_config(stopped)
    with pytest.raises(Interrupted, match=r"finished queries are kept in .*same command") as caught:
        teach(config, lambda *_: Stopped())
    assert caught.value.code == 143
    scorer = FakeScorer()
    assert teach(config, lambda *_: scorer)["taught"] == 18
    assert {query for query, _ in scorer.calls} == {f"t{n}" for n in range(6, 18)}
    mine, theirs = files_of(config.out), files_of(teach_config(whole).out)
    mine["meta.json"] = mine["meta.json"].replace(bytes(stopped), bytes(whole))
    assert mine == theirs


def test_all_examples_and_queries_are_checked_first(tmp_path: Path):
    """A missing image, and a text with an image placeholder."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")

    def set_of(names: list[str], **payload) -> Pool:
        turn = {"question": "what is it?", "answer": "red", "image": str(tmp_path / "a.png")}
        return Pool(names, torch.ones(len(names), 2), payload=[turn, {**turn, **payload}])

    class Processor:
        image_processor, image_token, all_special_tokens = object(), "<image>", ()

        def __len__(self) -> int:
            return 1

    pool = set_of(["p", "q"], image=str(tmp_path / "b.png"))
    queries = set_of(["r", "s"], question="is <image> like <image>?")
    with pytest.raises(InputError) as caught:
        check_turns(pool, queries, [0, 1], Processor())
    lines = str(caught.value).splitlines()
    assert lines[0] == "the data have 2 problems:"
    assert "example 's': " in lines[1]
    assert "got 2 <image>" in lines[1]
    assert "b.png: cannot be read as an image" in lines[2]
    check_turns(set_of(["p", "q"]), queries, [0], Processor())  # the other one is not used


def test_failed_check_leaves_no_folder(tmp_path: Path, monkeypatch):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)

    def refuse(*_):
        raise InputError("broken")

    monkeypatch.setattr("eligo.shots.teacher.run.check_turns", refuse)
    with pytest.raises(InputError, match="broken"):
        teach(config, lambda *_: FakeScorer())
    assert not config.out.exists()
    assert teach(config.replace({"check_data": False}), lambda *_: FakeScorer())["taught"] == 18


def test_failed_queries_are_listed_and_retried(tmp_path: Path):
    class Broken(FakeScorer):
        tries = 0

        def baseline(self, query):
            if query.id == "t6":
                Broken.tries += 1
                raise RuntimeError("out of luck")
            return super().baseline(query)

    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    with pytest.raises(EligoError, match="1 of 18 queries failed three times"):
        teach(config, lambda *_: Broken())
    assert Broken.tries == 3
    failed = json.loads((config.out / "failed.jsonl").read_text())
    assert failed == {"query_id": "t6", "error": "RuntimeError: out of luck"}
    scorer = FakeScorer()
    assert teach(config, lambda *_: scorer)["taught"] == 18
    assert {query for query, _ in scorer.calls} == {"t4", "t5", "t6", "t7"}
    assert not (config.out / "failed.jsonl").exists()


@pytest.mark.parametrize("at", [0, 1, 2])  # shots
def test_nan_log_probabilities_are_an_error(tmp_path: Path, at: int):
    class Overflown(FakeScorer):
        def value(self, query, names):
            return torch.nan if len(names) == at else super().value(query, names)

    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    with pytest.raises(EligoError, match="18 of 18 queries failed"):
        teach(config, lambda *_: Overflown())
    assert "try --host.dtype float32" in (config.out / "failed.jsonl").read_text()


def test_kill_after_the_last_shard_loses_nothing(tmp_path: Path, monkeypatch):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    rename = Path.rename

    def die_after(self: Path, target: Path) -> None:
        rename(self, target)
        if self.name == "parts":
            raise ZeroDivisionError

    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", die_after)
        killed.setattr("eligo.io.files.shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(ZeroDivisionError):
            teach(config, lambda *_: FakeScorer())
    assert teach(config, lambda *_: 1 / 0)["state"] == "was finished before"
    assert not [name for name in files_of(config.out) if "parts" in name]


def test_query_without_candidates_is_left_out(tmp_path: Path):
    embedded(tmp_path / "embedded", 2)  # one group: each would leak the other's answer
    config = teach_config(tmp_path)
    assert teach(config, lambda *_: FakeScorer())["taught"] == 2
    pool, queries, _ = open_embedded(config.data)
    assert read_records(config.out, pool, queries).records == []


def test_other_settings_need_another_folder(tmp_path: Path):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: FakeScorer())
    with pytest.raises(InputError, match="was started with beam 2, got 3"):
        teach(config.replace({"beam": 3}))
    embedded(tmp_path / "embedded", 20)
    pool, queries, _ = open_embedded(config.data)
    with pytest.raises(InputError, match="was taught on pool of hash"):
        read_records(config.out, pool, queries)


def test_plan_counts_calls(tmp_path: Path):
    embedded(tmp_path / "embedded")
    found = plan(teach_config(tmp_path, num_queries=10), lambda *_: FakeScorer())
    assert found["calls per query"] == num_calls(6, 2, 2)
    assert found["calls"] == 10 * num_calls(6, 2, 2)
    assert found["hours on this machine, one worker"] > 0
    assert not (tmp_path / "taught").exists()

    class Mute(FakeScorer):
        """Cannot score the first answer."""

        def baseline(self, query):
            if query.id == "t0":
                raise UnscorableError("no token")
            return super().baseline(query)

    assert plan(teach_config(tmp_path), lambda *_: Mute())["queries"] == 18


def test_overlap_scorer_needs_no_model(tmp_path: Path):
    embedded(tmp_path / "embedded")
    pool, queries, _ = open_embedded(tmp_path / "embedded")
    scorer = OverlapScorer(pool, queries)
    query = Query("t0", torch.ones(4))
    assert float(scorer.baseline(query).logprob) == pytest.approx(-6.9078, abs=1e-3)
    found = scorer.score(query, ["t1"], ["t6", "t4"])  # "the red ball" again; "the blue ball"
    assert found.logprob.exp().tolist() == pytest.approx([1.0, 1e-3])
    assert bigram_f1("two", "two") == 1.0
    assert bigram_f1("", "two") == 0.0
    config = teach_config(tmp_path)
    assert teach(config)["taught"] == 18


@pytest.mark.parametrize(
    "text", ["{}", '{"line": 3, "scores": null}', '{"line": {}, "scores": "x"}']
)
def test_damaged_part_of_a_shard_is_refused(tmp_path: Path, text: str):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    (config.out / "parts").mkdir(parents=True)
    (config.out / "parts" / "00001.growing").write_text(f"{text}\n")
    with pytest.raises(InputError, match=r"00001\.growing:1: cannot be read.*remove it"):
        teach(config, lambda *_: FakeScorer())


@pytest.mark.parametrize(
    "damage",
    [
        {"shard": None},
        {"shard": "../../x"},
        {"pool": 3},
        {"rows": [0]},
        {"rows": [0, 10**9]},
        {"rows": [5, 2]},
        {"baseline": "low"},
        {"query_id": "nobody"},
        {"beams": [3]},
        {"beams": [{"ids": ["nobody"], "value": 0, "step_values": []}]},
        {"beams": [{"ids": ["t16", "t17", "t16"], "value": 0, "step_values": []}]},
    ],
)
def test_damaged_line_of_a_taught_folder_is_one_error(tmp_path: Path, damage: dict):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: FakeScorer())
    records = config.out / "records.jsonl"
    first, *others = records.read_text().splitlines()
    line = {name: value for name, value in {**json.loads(first), **damage}.items() if value}
    records.write_text("\n".join([json.dumps(line), *others]))
    pool, queries, _ = open_embedded(config.data)
    with pytest.raises(InputError, match=r"records\.jsonl:"):
        read_records(config.out, pool, queries)


@pytest.mark.parametrize("changes", [{"pool": None}, {"objective": "luck"}, {"objective": None}])
def test_damaged_meta_file_of_a_taught_folder_is_one_error(tmp_path: Path, changes: dict):
    embedded(tmp_path / "embedded")
    config = teach_config(tmp_path)
    teach(config, lambda *_: FakeScorer())
    meta = json.loads((config.out / "meta.json").read_text()) | changes
    kept = {name: value for name, value in meta.items() if value is not None}
    (config.out / "meta.json").write_text(json.dumps(kept))
    pool, queries, _ = open_embedded(config.data)
    with pytest.raises(InputError, match=r"meta\.json: "):
        read_records(config.out, pool, queries)


def test_other_weights_of_the_same_host_are_refused(tmp_path: Path):
    check_host(tmp_path, torch.nn.Linear(3, 2))
    written = (tmp_path / "host.json").read_text()
    same = torch.nn.Linear(3, 2)
    with torch.no_grad():
        same.weight.fill_(json.loads(written)["weight"])
    check_host(tmp_path, same.half())
    with torch.no_grad():
        same.weight.add_(1)
    with pytest.raises(InputError, match="other weights; choose another --out"):
        check_host(tmp_path, same)
    (tmp_path / "host.json").write_text("[1]")
    with pytest.raises(InputError, match=r"host\.json: cannot be read"):
        check_host(tmp_path, same)
