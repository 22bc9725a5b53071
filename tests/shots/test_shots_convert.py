"""Models as folders, and conversion of weights of other programs."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from teach_cases import embedded
from torch import nn

from eligo.cli import main
from eligo.errors import EligoError, InputError
from eligo.scenes.vlm import VlmConfig, build_processor, build_vlm, load_vlm, save_vlm
from eligo.shots import (
    KNN,
    LearnedSelector,
    PointerSelector,
    PointerSelectorV1,
    PointerSelectorV2,
    PointerSelectorV2Config,
    Pool,
    load_selector,
)
from eligo.shots.inference.embed import open_embedded
from eligo.shots.inference.learned_selector import NAMED
from eligo.shots.model.pretrained import build_model, import_pointer

SMALL = {"d_model": 16, "hidden_dim": 8, "dropout": 0.0}


def prediction(model, width: int = 16):
    generator = torch.Generator().manual_seed(3)
    query, pool = (torch.randn(*s, width, generator=generator) for s in ((2,), (2, 5)))
    return model.predict(query, pool, shots=3)


@pytest.mark.parametrize("name", NAMED)
def test_model_round_trip(name: str, tmp_path: Path):
    model = build_model(NAMED[name].replace(SMALL)).eval()
    model.save_pretrained(tmp_path)
    back = type(model).from_pretrained(tmp_path)
    assert back.config == model.config
    assert torch.equal(prediction(back).scores, prediction(model).scores)
    assert type(PointerSelector.from_pretrained(str(tmp_path))) is type(model)


def test_half_precision_is_loaded_as_float32(tmp_path: Path):
    model = build_model(NAMED["v1"].replace(SMALL)).eval()
    model.save_pretrained(tmp_path, dtype=torch.float16)
    assert load_file(tmp_path / "pointer.safetensors")["input_proj.weight"].dtype == torch.float16
    back = PointerSelectorV1.from_pretrained(tmp_path)
    assert back.input_proj.weight.dtype == torch.float32
    assert torch.allclose(prediction(back).scores, prediction(model).scores, atol=0.05)


def test_loading_is_strict(tmp_path: Path):
    model = build_model(NAMED["v2"].replace(SMALL))
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="holds a PointerSelectorV2, not a PointerSelectorV1"):
        PointerSelectorV1.from_pretrained(tmp_path)
    weights = load_file(tmp_path / "pointer.safetensors")
    left = weights.pop("cand_proj.weight")
    save_file(weights | {"other.weight": left}, tmp_path / "pointer.safetensors")
    with pytest.raises(EligoError, match=r"missing: pointer\.cand_proj\.weight"):
        PointerSelectorV2.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="expected a folder"):
        PointerSelector.from_pretrained("no_such_model")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no pointer\.safetensors"):
        PointerSelector.from_pretrained(tmp_path / "empty")


def test_find_selectors_and_their_models(tmp_path: Path):
    pool = Pool(["a", "b", "c"], torch.eye(3, 16))
    model = build_model(NAMED["v1"].replace(SMALL)).eval()
    LearnedSelector.of(model, pool).save(tmp_path / "selector")
    assert torch.equal(
        prediction(PointerSelector.from_pretrained(tmp_path)).scores, prediction(model).scores
    )
    assert isinstance(load_selector(tmp_path / "selector"), LearnedSelector)
    KNN().fit([], pool).save(tmp_path / "knn")
    assert isinstance(KNN.load(str(tmp_path / "knn")), KNN)
    with pytest.raises(InputError, match="expected a folder"):
        load_selector(tmp_path / "nothing")


# ------------------------------------------------------------------ on the command line


def test_convert_run_to_half_precision(tmp_path: Path, capsys):
    build_model(NAMED["v3"].replace(SMALL)).save_pretrained(tmp_path / "run")
    args = [str(tmp_path / "run"), "--out", str(tmp_path / "half"), "--half", "--json"]
    assert main(["shots", "convert", *args]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["kind"] == "v3"
    stored = load_file(tmp_path / "half" / "pointer.safetensors")
    assert all(value.dtype == torch.float16 for value in stored.values())
    assert main(["shots", "convert", str(tmp_path / "run"), "--out", str(tmp_path / "run")]) == 2


def test_convert_learner_to_half_precision(tmp_path: Path, capsys):
    config = VlmConfig(
        image_size=28, vision_width=8, vision_layers=2, layers=2, width=8, hidden=8, heads=2
    )
    save_vlm(build_vlm(config), build_processor(config), tmp_path / "run" / "model")
    out = tmp_path / "learner"
    assert main(["shots", "convert", str(tmp_path / "run"), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "learner"
    assert load_vlm(out)[0].config.vision_config.image_size == 28


class Foreign(nn.Module):
    """V2 of the published design."""

    def __init__(self) -> None:
        super().__init__()
        self.input_proj = nn.Linear(16, 8, bias=False)
        self.query_proj = nn.Linear(8, 8, bias=False)
        self.cand_proj = nn.Linear(8, 8, bias=False)
        self.cross_attn = nn.MultiheadAttention(8, 4, batch_first=True)
        self.attn_norm = nn.LayerNorm(8)
        self.register_buffer("temperature", torch.tensor(0.1))

    def forward(self, query, candidates):
        query, candidates = self.input_proj(query), self.input_proj(candidates)
        attended = self.cross_attn(query[:, None], candidates, candidates)[0].squeeze(1)
        query = self.query_proj(self.attn_norm(query + attended))
        cosines = nn.functional.cosine_similarity(query[:, None], self.cand_proj(candidates), -1)
        return cosines / 0.1


@pytest.mark.parametrize("wrapped", [False, True])
def test_published_weights_are_imported(tmp_path: Path, wrapped: bool):
    foreign, path = Foreign().eval(), tmp_path / "best_checkpoint.pth"
    state = {f"module.{k}": v for k, v in foreign.state_dict().items()}
    torch.save({"epoch": 3, "model_state_dict": state} if wrapped else state, path)
    args = [str(path), "--version", "v2", "--out", str(tmp_path / "made")]
    assert main(["shots", "convert", *args]) == 0
    model = PointerSelectorV2.from_pretrained(tmp_path / "made")
    assert model.config == PointerSelectorV2Config(d_model=16, hidden_dim=8, residual=False)
    query, candidates = torch.randn(3, 16), torch.randn(3, 5, 16)
    found = model.predict(query, candidates, shots=1).selection.scores
    assert torch.allclose(found, foreign(query, candidates), atol=1e-5)


class Projections(nn.Module):
    """V1 and V3 of the published design; their programs may give each projection a bias."""

    def __init__(self, biases: str, width: int = 768) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.input_proj = nn.Linear(width, 8, bias="input_proj" in biases)
        self.query_proj = nn.Linear(8, 8, bias="query_proj" in biases)
        self.cand_proj = nn.Linear(8, 8, bias="cand_proj" in biases)

    def forward(self, query, candidates):
        query = self.query_proj(self.input_proj(query))
        keys = self.cand_proj(self.input_proj(candidates))
        cosines = nn.functional.cosine_similarity(query[:, None], keys, -1)
        return cosines / 0.1


BIASES = ["", "input_proj query_proj cand_proj", "query_proj cand_proj"]


@pytest.mark.parametrize("biases", BIASES)
@pytest.mark.parametrize("version", ["v1", "v3"])
def test_published_weights_choose_examples(
    tmp_path: Path, capsys, monkeypatch, version: str, biases: str
):
    """A .pth file, converted or as it is, in `predict` and `evaluate`."""
    monkeypatch.chdir(tmp_path)
    embedded(Path("embedded"))
    pool, queries, _ = open_embedded(Path("embedded"))
    foreign = Projections(biases)
    state = foreign.state_dict()
    torch.save({"epoch": 1, "model_state_dict": state} if biases else state, "best.pth")

    def call(words: str, code: int = 0):
        result = main(["shots", *words.split()])
        out, err = capsys.readouterr()
        assert result == code, err
        return json.loads(out) if code == 0 else err

    summary = call(f"convert best.pth --version {version} --out made --half --json")
    assert summary["parameters"] == sum(part.numel() for part in foreign.parameters()) + (
        8 if biases == BIASES[2] else 0  # a bias of zero
    )
    call(f"convert best.pth --version {version} --out made --json")
    with torch.no_grad():
        logits = foreign(queries.vectors, pool.vectors.expand(len(queries), -1, -1))
    for row in range(len(queries)):
        logits[row, ~pool.allowed(queries.query(row))] = -torch.inf
    expected = logits.topk(6)
    for selector in ("made", f"best.pth --model_version {version}"):
        out = Path(f"{selector[:4]}.jsonl")
        call(f"predict --data embedded --selector {selector} --out {out} --json")
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        for line, scores, places in zip(lines, *expected, strict=True):
            assert line["picks"] == [pool.ids[place] for place in places.tolist()]
            assert line["scores"] == pytest.approx(scores.tolist(), abs=1e-5)
        asked = f"predict --question number? --selector {selector} --json"
        found = call(f"{asked} --embedded embedded")
        assert len(found["chosen"]) == 6
        assert "made: comes without examples" in call(asked.replace(selector, "made"), code=2)
        report = call(
            f"evaluate --selector {selector} --embedded embedded --data embedded --shots 1 --json"
        )
        rows = {row["examples"] for row in report["log-probability"]}
        assert rows >= {"none", "nearest", "selector"}
        same = call(f"evaluate --selector {selector} --data embedded --shots 1 --json")
        assert same == report
    embedded(Path("others"), 12)
    message = call("evaluate --selector made --embedded others --data embedded", code=2)
    assert "embedded: its examples have hash" in message
    assert "convert best.pth" in call("evaluate --selector best.pth --data embedded", code=2)
    wrong = "predict --data embedded --selector made --out x.jsonl --model_version v2"
    assert f"model_version: got v2, but made is {version}" in call(wrong, code=2)


def test_biases_are_saved_with_a_selector(tmp_path: Path):
    torch.save(Projections(BIASES[1], 16).state_dict(), tmp_path / "x.pth")
    model = import_pointer(tmp_path / "x.pth", NAMED["v1"])
    pool = Pool(["a", "b", "c"], torch.eye(3, 16))
    LearnedSelector.of(model, pool).save(tmp_path / "selector")
    for back in (
        LearnedSelector.load(tmp_path / "selector").model,
        PointerSelector.from_pretrained(tmp_path / "selector"),
    ):
        assert torch.equal(back.query_proj.bias, model.query_proj.bias)
        assert torch.equal(prediction(back).scores, prediction(model).scores)
        back.save_pretrained(tmp_path / "again")
        again = PointerSelectorV1.from_pretrained(tmp_path / "again")
        assert torch.equal(prediction(again).scores, prediction(model).scores)


class Trap:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran code')",))


def test_invalid_files_are_refused(tmp_path: Path, capsys):
    path, out = tmp_path / "x.pth", str(tmp_path / "made")
    torch.save({"model": Trap()}, path)
    assert main(["shots", "convert", str(path), "--version", "v1", "--out", out]) == 2
    assert "more than tensors" in capsys.readouterr().err
    torch.save(Foreign().state_dict(), path)
    assert main(["shots", "convert", str(path), "--out", out]) == 2
    assert "--version" in capsys.readouterr().err
    assert main(["shots", "convert", str(path), "--version", "v1", "--out", out]) == 2
    assert "unexpected: look.attention" in capsys.readouterr().err
    assert main(["shots", "convert", str(tmp_path / "no.pth"), "--out", out]) == 2
    torch.save({"a": 1}, path)
    assert main(["shots", "convert", str(path), "--version", "v1", "--out", out]) == 2
    good = Projections(BIASES[1]).state_dict()
    damaged: list[tuple[dict, str]] = [
        ({"input_proj.weight": torch.zeros(3)}, "expected input_proj.weight (hidden, width)"),
        ({"query_proj.bias": torch.zeros(9)}, "shape of query_proj.bias: (9,) stored"),
        ({"cand_proj.bias": torch.full((8,), torch.nan)}, "not finite: cand_proj.bias"),
        ({3: torch.zeros(1)}, "expected weights by name"),
    ]
    for damage, message in damaged:
        capsys.readouterr()
        torch.save({**good, **damage}, path)
        assert main(["shots", "convert", str(path), "--version", "v1", "--out", out]) == 2
        assert message in capsys.readouterr().err
