"""Replayed selections equal eager ones; unsuitable modules are never recorded."""

from dataclasses import replace

import pytest
import torch

from eligo.config import load_config
from eligo.tokens.config import TokensTrainConfig
from eligo.tokens.hooks import cuda_graphs
from eligo.tokens.model.layer_pruners import LayerPruner
from eligo.tokens.model.token_merger import MergerShape, TokenMerger
from eligo.tokens.reducer import ReducerContext
from eligo.tokens.training.task import TokensTask
from eligo.train import fit

IMAGES, TOKENS, WORDS, WIDTH = 4, 36, 7, 32


def make_part(kind: str) -> TokenMerger | LayerPruner:
    torch.manual_seed(0)
    redundancy = "mmr" if kind.endswith("mmr") else "peaks"
    if kind.startswith("pruner"):
        return LayerPruner(WIDTH, 16, 2, redundancy=redundancy).eval()
    shape = MergerShape(
        kind="question_aware", width=WIDTH, question_width=WIDTH, dim=16, redundancy=redundancy
    )
    return TokenMerger(shape).eval()


def make_context(seed: int, words: int = WORDS, device: str = "cpu") -> ReducerContext:
    source = torch.Generator().manual_seed(seed)
    return ReducerContext(
        features=torch.randn(IMAGES, TOKENS, WIDTH, generator=source).to(device),
        mask=torch.ones(IMAGES, TOKENS, dtype=torch.bool, device=device),
        positions=torch.arange(TOKENS, device=device).expand(IMAGES, -1),
        grid=torch.tensor([[6, 6]], device=device).expand(IMAGES, -1),
        question=torch.randn(IMAGES, words, WIDTH, generator=source).to(device),
        padded=False,
        question_padded=False,
    )


def test_nothing_is_recorded_on_a_cpu():
    part, budget = make_part("merger"), torch.tensor([9] * IMAGES)
    with torch.no_grad():
        for seed in range(4):
            cuda_graphs.select_tokens(part, make_context(seed), budget)
    assert part not in cuda_graphs._GRAPHS


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["merger", "pruner", "merger_mmr", "pruner_mmr"])
def test_replay_equals_eager_selection(kind: str):
    part, budget = make_part(kind).cuda(), torch.tensor([9] * IMAGES)
    found = []
    with torch.no_grad():
        for seed in range(5):
            context = make_context(seed, device="cuda")
            found.append((context, cuda_graphs.select_tokens(part, context, budget)))
        assert len(cuda_graphs._GRAPHS[part].graphs) == 1
        for context, chosen in found:  # last: later replays must not change earlier selections
            expected = part.select(context, budget).in_order(padded=False)
            torch.testing.assert_close(chosen.indices, expected.indices, atol=0, rtol=0)
            torch.testing.assert_close(chosen.scores, expected.scores, atol=0, rtol=0)
            if expected.assignment is not None:
                torch.testing.assert_close(chosen.assignment, expected.assignment, atol=0, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_half_precision_and_padded_questions_are_replayed(mode: type):
    part, budget = make_part("merger").cuda(), torch.tensor([9] * IMAGES)
    for seed in range(5):
        context = make_context(seed, device="cuda")
        assert context.question is not None
        context = replace(
            context,
            features=context.features.bfloat16(),
            question_mask=torch.rand(IMAGES, WORDS, device="cuda") < 0.6,
            question_padded=True,
        )
        with mode():
            found = cuda_graphs.select_tokens(part, context, budget)
            assert found.indices.equal(part.select(context, budget).indices)
    assert len(cuda_graphs._GRAPHS[part].graphs) == 1
    assert torch.backends.cuda.matmul.fp32_precision != "tf32"


@pytest.mark.gpu
def test_number_of_graphs_is_limited_and_new_weights_reset_them():
    part, budget = make_part("pruner").cuda(), torch.tensor([9] * IMAGES)
    with torch.no_grad():
        for words in range(1, cuda_graphs._MAX_GRAPHS + 3):
            for seed in range(3):
                cuda_graphs.select_tokens(part, make_context(seed, words, "cuda"), budget)
        module_graphs = cuda_graphs._GRAPHS[part]
        assert len(module_graphs.graphs) == cuda_graphs._MAX_GRAPHS
        for parameter in part.parameters():
            parameter.data = parameter.data.clone() + 0.1
        context = make_context(0, device="cuda")
        expected = part.select(context, budget).in_order(padded=False)
        assert cuda_graphs.select_tokens(part, context, budget).scores.equal(expected.scores)
        assert not module_graphs.graphs


@pytest.mark.gpu
def test_uneven_rows_and_large_batches_are_never_recorded(monkeypatch: pytest.MonkeyPatch):
    part = make_part("pruner").cuda()
    context = make_context(0, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            cuda_graphs.select_tokens(part, context, torch.tensor([9, 8, 9, 9]))
            cuda_graphs.select_tokens(
                part, replace(context, padded=True), torch.tensor([9] * IMAGES)
            )
        monkeypatch.setattr(cuda_graphs, "_MAX_TOKENS", IMAGES * TOKENS - 1)
        for _ in range(4):
            cuda_graphs.select_tokens(part, context, torch.tensor([9] * IMAGES))
    assert part not in cuda_graphs._GRAPHS


@pytest.mark.gpu
def test_failed_recording_falls_back_to_eager(monkeypatch: pytest.MonkeyPatch, caplog):
    def refuse(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(cuda_graphs, "_Graph", refuse)
    part, budget = make_part("pruner").cuda(), torch.tensor([9] * IMAGES)
    context = make_context(0, device="cuda")
    with torch.no_grad():
        found = [cuda_graphs.select_tokens(part, context, budget) for _ in range(5)]
        assert all(one.indices.equal(part.select(context, budget).indices) for one in found)
    assert [record.message for record in caplog.records] == [
        "pruner: selections are not replayed: out of memory"
    ]


@pytest.mark.gpu
def test_pruners_alone_train_on_a_gpu(tmp_path):
    """Before the first cut, only the mask requires gradients."""
    config = load_config(TokensTrainConfig, "tokens/default").smoke()
    changes = {"merger": None, "train.out": tmp_path, "train.precision": "bf16"}
    config = config.replace(changes)
    result = fit(TokensTask(config), config.train)
    assert result.last_step == config.train.total_steps
