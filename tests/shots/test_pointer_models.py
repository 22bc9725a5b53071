"""The pointer selectors V0 to V3."""

import re
from dataclasses import replace

import pytest
import torch
from shot_cases import CONFIGS, Case, make_case, small_model

from eligo import shots
from eligo.errors import ConfigError, InputError
from eligo.shots import build_model
from eligo.shots.model.bi_encoder import Gate
from eligo.train import load_weights, save_weights
from strategies import production

COUNTS = [
    ("v0", {}, 660_480),
    ("v0", {"hidden_dim": 256}, 2_435_072),
    ("v1", {}, 131_072),
    ("v1", {"hidden_dim": 256}, 327_680),
    ("v2", {}, 197_376),
    ("v2", {"hidden_dim": 256}, 591_360),
    ("v2", {"state": "gate"}, 230_272),
    ("v2", {"state": "gru"}, 296_448),
    ("v3", {}, 131_072),
    ("v3", {"hidden_dim": 256}, 327_680),
    ("v3", {"base": "v2"}, 197_376),
]


def of_version(version: str, **changes):
    config = getattr(shots, f"PointerSelector{version.upper()}Config")
    return getattr(shots, f"build_model_{version}")(config(**changes))


@pytest.mark.parametrize(("version", "changes", "count"), COUNTS)
def test_number_of_parameters(version: str, changes: dict, count: int):
    assert sum(p.numel() for p in of_version(version, **changes).parameters()) == count


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_builds_on_the_meta_device(kind: str):
    with torch.device("meta"):
        model = build_model(CONFIGS[kind])
    assert all(p.is_meta for p in model.parameters())


def test_documented_defaults():
    shared = {"d_model": 768, "hidden_dim": 128, "K": 32, "shot_num": 6}
    shared |= {"dropout": 0.3, "temperature": 0.1, "residual": True}
    own = {
        "v0": {"label_smoothing": 0.1, "num_layers": 2, "num_heads": 4},
        "v1": {"label_smoothing": 0.2, "state": "none"},
        "v2": {"label_smoothing": 0.1, "num_heads": 4, "attn_dropout": 0.1, "state": "none"},
        "v3": {
            "label_smoothing": 0.2,
            "ranking_loss_type": "listwise",
            "ranking_loss_weight": 0.1,
            "ranking_form": "corrected",
            "margin": 1.0,
            "target_temperature": 1.0,
            "base": "v1",
            "state": "none",
        },
    }
    for version, fields in own.items():
        model = getattr(shots, f"build_model_{version}")()
        assert isinstance(model, getattr(shots, f"PointerSelector{version.upper()}"))
        assert model.config.model_dump() == {**shared, **fields, "version": version}
        assert model.scale.scale.item() == pytest.approx(10.0)
        assert "scale.log_scale" in model.state_dict()


EXAMPLE_V2 = """
from models.v2 import build_model_v2, PointerSelectorV2Config
config = PointerSelectorV2Config(
    d_model=768,
    hidden_dim=128,
    K=32,
    shot_num=6,
    num_heads=4,
    attn_dropout=0.1
)
model = build_model_v2(config)
query_emb = torch.randn(batch_size, 768)
cand_emb = torch.randn(batch_size, 32, 768)
labels = torch.randint(0, 32, (batch_size, 6))
result = model(query_emb, cand_emb, labels, return_loss=True)
loss = result['loss']
loss.backward()
predictions, scores = model.predict(query_emb, cand_emb)
"""
EXAMPLE_V1 = """
from models.v1 import PointerSelectorV1Config, build_model_v1
config = PointerSelectorV1Config(
    d_model=256,
    K=32,
    shot_num=2,
    label_smoothing=0.15,
    dropout=0.2
)
model = build_model_v1(config)
"""
EXAMPLE_V3 = """
from models.v3 import build_model_v3, PointerSelectorV3Config
import torch
config = PointerSelectorV3Config(
    shot_num=6,
    ranking_loss_type='listwise',
    ranking_loss_weight=0.1
)
model = build_model_v3(config)
query_emb = torch.randn(8, 768)
cand_emb = torch.randn(8, 32, 768)
labels = torch.randint(0, 32, (8, 6))
beam_scores = torch.randn(8, 6)
result = model(query_emb, cand_emb, labels, beam_scores=beam_scores)
loss = result['loss']
model.eval()
with torch.no_grad():
    predictions, scores = model.predict(query_emb, cand_emb, top_k=1)
"""


@pytest.mark.parametrize("code", [EXAMPLE_V1, EXAMPLE_V2, EXAMPLE_V3], ids=["v1", "v2", "v3"])
def test_published_examples_run(code: str):
    """The examples of the published designs, apart from the import path (and one batch size)."""
    names: dict = {"torch": torch, "batch_size": 4}
    exec(re.sub(r"from models\.v\d", "from eligo.shots", code), names)
    if "loss" in names:
        assert names["loss"].isfinite()
        assert names["predictions"].shape == names["scores"].shape == names["labels"].shape
        assert all(len(set(row)) == 6 for row in names["predictions"].tolist())


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_predict_picks_the_best_candidates(kind: str):
    model, case = small_model(kind).train(), make_case()
    found = model.predict(case.query, case.candidates, cand_mask=case.mask, shots=9)
    assert model.training
    predictions, scores = found
    assert predictions.shape == scores.shape == found.log_probs.shape == (5, 9)
    assert not scores.requires_grad
    for row, real in enumerate(case.mask.sum(1).tolist()):
        picks = predictions[row].tolist()
        assert sorted(picks[:real]) == case.mask[row].nonzero().flatten().tolist()
        assert picks[real:] == [-1] * (9 - real)
        assert scores[row, real:].eq(-torch.inf).all()
        if real:  # the last remaining candidate is certain
            assert found.log_probs[row, real - 1].item() == pytest.approx(0, abs=1e-6)
    assert torch.equal(found.selection.indices, predictions)
    assert torch.equal(found.selection.num_kept, case.mask.sum(1))

    several = model.predict(case.query, case.candidates, 20, cand_mask=case.mask, shots=9)
    assert several.predictions.shape == several.scores.shape == (5, 9, 20)
    assert torch.equal(several.predictions[..., 0], predictions)
    real = several.predictions >= 0
    assert real.sum(-1)[:, 0].equal(case.mask.sum(1))
    assert (several.scores[..., 1:] <= several.scores[..., :-1]).all()
    torch.testing.assert_close(
        several.log_probs.exp().sum(-1)[real.any(-1)], torch.ones(int(real.any(-1).sum()))
    )
    assert model.predict(case.query, case.candidates, cand_mask=case.mask).scores.shape == (5, 3)
    none = model.predict(case.query, case.candidates, 2, cand_mask=case.mask, shots=0)
    assert none.predictions.shape == (5, 0, 2)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_teacher_forcing_on_own_picks_equals_free_running(kind: str):
    """Teacher forcing computes all steps at once, free running one by one."""
    model, case = small_model(kind), make_case(rows=3, pool=9)
    free = model(case.query, case.candidates, cand_mask=case.mask)
    assert free["loss"] is None
    forced = model(case.query, case.candidates, free["predictions"], cand_mask=case.mask)
    assert torch.equal(forced["predictions"], free["predictions"])
    real = free["predictions"] >= 0
    torch.testing.assert_close(forced["logits"][real], free["logits"][real], atol=1e-5, rtol=1e-5)
    quiet = model(case.query, case.candidates, case.labels, cand_mask=case.mask, return_loss=False)
    assert quiet["loss"] is None
    assert quiet["ce_loss"] is None


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_independent_of_padding_order_and_batch(kind: str):
    model, case = small_model(kind), make_case(rows=4, pool=6, steps=3)
    expected = case.call(model)["logits"]
    for row in range(4):
        alone = model(
            case.query[row : row + 1],
            case.candidates[row : row + 1],
            case.labels[row : row + 1],
            cand_mask=case.mask[row : row + 1],
        )["logits"]
        torch.testing.assert_close(alone[0], expected[row], atol=1e-5, rtol=1e-5)
    order = torch.tensor([5, 2, 0, 1, 4, 3])
    wider = torch.cat([case.candidates[:, order], torch.full((4, 2, 12), torch.inf)], 1)
    mask = torch.cat([case.mask[:, order], torch.zeros(4, 2, dtype=torch.bool)], 1)
    back = order.argsort()
    labels = torch.where(case.labels < 0, -1, back[case.labels.clamp_min(0)])
    found = model(case.query, wider, labels, cand_mask=mask)["logits"]
    assert found[..., 6:].eq(-torch.inf).all()
    torch.testing.assert_close(found[..., back], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["v0", "v1", "v2", "v2_gru"])
def test_untrained_model_ranks_by_similarity(kind: str):
    """Terms added to the query do not dominate it."""
    model = build_model(CONFIGS[kind].replace({"d_model": 64, "hidden_dim": 64})).eval()
    query, candidates = torch.randn(64, 64), torch.randn(64, 16, 64)
    query, candidates = (torch.nn.functional.normalize(v, dim=-1) for v in (query, candidates))
    found = model.predict(query, candidates, shots=1).selection.scores
    likeness = model.scale(model.project(query).unsqueeze(1), model.project(candidates)).squeeze(1)
    pairs = torch.stack([found.flatten(), likeness.flatten()])
    assert torch.corrcoef(pairs)[0, 1] > 0.5


@pytest.mark.parametrize("version", ["v0", "v1", "v2", "v3"])
@pytest.mark.parametrize("state", ["none", "gate", "gru"])
def test_untrained_model_picks_the_nearest_neighbours(version: str, state: str):
    """Exactly, step by step, whatever the length of the vectors and the size of the model."""
    changes = {"d_model": 24, "hidden_dim": 8} | ({} if version == "v0" else {"state": state})
    model = of_version(version, **changes).eval()
    query, candidates = torch.randn(16, 24) * 7, torch.randn(16, 40, 24)
    candidates *= torch.rand(16, 40, 1) + 0.1
    mask = torch.rand(16, 40) < 0.8
    cosines = torch.nn.functional.cosine_similarity(query[:, None], candidates, dim=-1)
    nearest = cosines.masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    found = model.predict(query, candidates, shots=12, cand_mask=mask)
    assert torch.equal(found.predictions, nearest[:, :12])
    torch.testing.assert_close(found.scores, 10 * cosines.gather(1, nearest[:, :12]))


@pytest.mark.parametrize("kind", ["v0", "v1", "v2", "v2_gru"])
def test_independent_of_batch_size(kind: str):
    model = small_model(kind, d_model=64, hidden_dim=32)
    query, candidates = torch.randn(512, 64), torch.randn(512, 16, 64)
    whole = model.predict(query, candidates, shots=4)
    for size in (1, 7, 64):
        part = model.predict(query[:size], candidates[:size], shots=4)
        close = whole.scores[:size].diff().abs().amin(-1) < 1e-5
        assert (part.predictions == whole.predictions[:size]).all(-1)[~close].all()
        torch.testing.assert_close(part.scores, whole.scores[:size], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_candidates_projected_once(kind: str):
    model, case = small_model(kind), make_case()
    projected = model.project(case.candidates.nan_to_num())
    found = model(case.query, projected, case.labels, cand_mask=case.mask, projected=True)
    expected = model(case.query, case.candidates, case.labels, cand_mask=case.mask)
    torch.testing.assert_close(found["logits"], expected["logits"])
    width = 12 + 8 if model.config.residual else 8
    with pytest.raises(InputError, match=re.escape(f"expected (5, pool, {width})")), production():
        model.predict(case.query, case.candidates, projected=True)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_beams_share_the_encoding_of_their_query(kind: str):
    model, case = small_model(kind), make_case(rows=6)
    rows = torch.tensor([0, 0, 0, 2, 2, 3])
    case.labels = torch.where(case.mask[rows].gather(1, case.labels.clamp_min(0)), case.labels, -1)
    shared = case.call(model, rows=rows)
    case.query, case.candidates, case.mask = (
        case.query[rows],
        case.candidates[rows],
        case.mask[rows],
    )
    apart = case.call(model)
    torch.testing.assert_close(shared["logits"], apart["logits"])
    torch.testing.assert_close(shared["loss"], apart["loss"])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_gpu_equals_cpu(kind: str):
    case = make_case()
    losses, picks = [], []
    for device in ("cpu", "cuda"):
        model = small_model(kind).to(device)
        moved = Case(**{name: tensor.to(device) for name, tensor in vars(case).items()})
        loss = moved.call(model)["loss"]
        loss.backward()
        losses.append(loss.detach().cpu())
        found = model.predict(moved.query, moved.candidates, cand_mask=moved.mask)
        picks.append(found.predictions.cpu())
    torch.testing.assert_close(*losses, atol=1e-4, rtol=1e-4)
    assert torch.equal(*picks)


@pytest.mark.parametrize("kind", ["v1", "v3", "v1_residual", "v3_residual"])
def test_towers_reproduce_the_logits_of_v1(kind: str):
    model = small_model(kind)
    query, candidates = torch.randn(2, 12), torch.randn(2, 5, 12)
    products = model.query_tower(query)[:, None] @ model.candidate_tower(candidates).mT
    logits = model.predict(query, candidates).selection.scores
    torch.testing.assert_close(10 * products.squeeze(1), logits)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_every_parameter_gets_a_gradient(kind: str):
    model, case = small_model(kind).train(), make_case(rows=8, steps=4)
    case.call(model)["loss"].backward()
    largest = max(float(p.grad.abs().max()) for p in model.parameters())
    for name, parameter in model.named_parameters():
        if "key_proj.bias" in name:  # a constant for all keys: softmax cancels it
            continue
        assert float(parameter.grad.abs().max()) > 1e-5 * largest, name


def test_fresh_gate_changes_nothing():
    torch.manual_seed(0)
    plain = build_model(CONFIGS["v1"])
    gated = build_model(CONFIGS["v1_gate"])
    gated.load_state_dict(plain.state_dict(), strict=False)
    (gate,) = (module for module in gated.modules() if isinstance(module, Gate))
    query, pick = torch.randn(2, 3, gate.linear.out_features)
    assert torch.equal(gate(query, pick), query)
    # Step by step, products have other shapes, which some CPUs round differently: in float64.
    case = make_case()
    parts = {name: part.double() if part.is_floating_point() else part
             for name, part in vars(case).items()}  # fmt: skip
    case = replace(case, **parts)
    found, expected = (case.call(model.double())["logits"] for model in (gated, plain))
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_dropout_only_in_training_and_before_the_towers():
    model = small_model("v1", dropout=0.5)
    query, candidates = torch.randn(2, 12), torch.randn(2, 5, 12)
    assert torch.equal(model(query, candidates)["logits"], model(query, candidates)["logits"])
    model.train()
    one, other = model(query, candidates)["logits"], model(query, candidates)["logits"]
    assert not torch.equal(one, other)
    assert one[one.isfinite()].abs().max() <= 10.0001  # still a cosine


@pytest.mark.parametrize("kind", ["v0", "v2_gru"])
def test_weights_save_and_load(kind: str, tmp_path):
    model, case = small_model(kind), make_case()
    save_weights(tmp_path, {"pointer": model})
    again = build_model(CONFIGS[kind])
    load_weights(tmp_path, {"pointer": again})
    assert torch.equal(case.call(again.eval())["logits"], case.call(model)["logits"])


@pytest.mark.parametrize("kind", ["v2_gru", "v3"])
def test_models_compile(kind: str):
    model, case = small_model(kind), make_case(rows=2, steps=2)
    case.candidates = case.candidates.nan_to_num()
    with production():
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(case.call(compiled)["loss"], case.call(model)["loss"])


@pytest.mark.parametrize("kind", ["v0", "v1", "v2_gru", "v3"])
def test_half_precision_is_supported(kind: str):
    model, case = small_model(kind), make_case()
    exact = case.call(model)["logits"]
    with torch.autocast("cpu", torch.bfloat16):
        found = case.call(model)
    assert found["logits"].dtype == torch.float32
    real = exact.isfinite()
    torch.testing.assert_close(found["logits"][real], exact[real], atol=0.5, rtol=0.1)
    case.query, case.candidates = case.query.half(), case.candidates.half()
    torch.testing.assert_close(case.call(model)["logits"][real], exact[real], atol=0.05, rtol=0.05)


def _bad_cases():
    def change(name, index, value):
        def apply(case):
            getattr(case, name)[index] = value

        return apply

    def shape(name, value):
        return lambda case: setattr(case, name, value)

    yield change("labels", (0, 1), 7), "labels: [0, 1] is 7, expected a candidate in [0, 7)"
    yield change("labels", (1, 0), -2), "labels: [1, 0] is -2"
    yield change("labels", (4, 2), 3), "labels: [4, 2] is 3, which is padding (cand_mask)"
    yield change("query", (2, 0), torch.nan), "query_emb: row [2] has norm nan"
    yield change("query", (2, 0), torch.inf), "query_emb: row [2] has norm inf"
    yield change("query", 3, 0.0), "query_emb: row [3] has norm 0.0"
    yield change("candidates", (slice(0, 4), slice(None), 0), torch.nan), "cand_emb: row [0, "
    yield (
        shape("query", torch.randn(5, 13)),
        "query_emb: got torch.float32 (5, 13), expected (batch, 12)",
    )
    yield shape("candidates", torch.randn(4, 7, 12)), "expected (5, pool, 12)"
    yield shape("mask", torch.ones(5, 8, dtype=torch.bool)), "cand_mask: got"
    yield shape("labels", torch.zeros(4, 2, dtype=torch.int64)), "labels: got"
    yield shape("weights", torch.ones(4)), "weights: got"
    yield change("weights", 1, -1.0), "weights: [1] is -1.0"
    yield shape("beam_scores", torch.ones(5, 3)), "beam_scores: got"
    yield change("step_scores", (0, 0, 0), torch.inf), "step_scores: [0, 0, 0] is inf"


@pytest.mark.parametrize(("change", "message"), list(_bad_cases()))
def test_invalid_input_is_refused(change, message: str):
    case = make_case()
    change(case)
    with production(), pytest.raises(InputError, match=re.escape(message)):
        case.call(small_model("v3"))


def test_invalid_configs_and_calls_are_refused():
    with pytest.raises(ConfigError, match="hidden_dim"):
        CONFIGS["v2"].replace({"hidden_dim": 9})
    with pytest.raises(ConfigError, match="hidden_dim"):
        CONFIGS["v3"].replace({"hidden_dim": 9, "base": "v2"})
    with pytest.raises(ConfigError, match="did you mean hidden_dim"):
        CONFIGS["v1"].replace({"hiden_dim": 9})
    with pytest.raises(InputError, match="top_k 0"):
        small_model("v1").predict(torch.randn(1, 12), torch.randn(1, 2, 12), 0)
