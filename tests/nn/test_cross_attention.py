"""Cross-attention: parity with torch, masks, top-m, precision."""

import pytest
import torch
from torch import nn

from eligo.errors import InputError
from eligo.nn import CrossAttention, SimilarityScale

MODES = [
    ("dot", False, 1.0),
    ("dot", True, 1.0),
    ("cosine", False, 14.285714),
    ("cosine", True, 14.285714),
]


def build(similarity: str = "dot", learnable: bool = False, init: float = 1.0, **kwargs):
    scale = SimilarityScale(similarity, learnable=learnable, init=init)
    module = CrossAttention(8, 6, 16, 4, scale=scale, **kwargs)
    for linear in (module.query_proj, module.key_proj, module.value_proj, module.out_proj):
        if linear.bias is not None:  # biases that a test can see
            nn.init.normal_(linear.bias)
    return module


def inputs(batch: int = 3, num_keys: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mask = torch.rand(batch, num_keys) < 0.6
    mask[0] = True
    mask[-1] = False
    return torch.randn(batch, 4, 8), torch.randn(batch, num_keys, 6), mask


@pytest.mark.parametrize("masked", [False, True])
def test_equals_torch_multihead_attention(masked: bool):
    ours = CrossAttention(16, 16, 16, 4)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    projections = (ours.query_proj, ours.key_proj, ours.value_proj)
    with torch.no_grad():
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
        for projection, weight, bias in zip(
            projections, theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
        ):
            projection.weight.copy_(weight)
            projection.bias.copy_(bias)
        ours.out_proj.load_state_dict(theirs.out_proj.state_dict())
    query, context = torch.randn(3, 4, 16), torch.randn(3, 5, 16)
    mask = torch.rand(3, 5) < 0.6
    mask[:, 2] = True
    key_mask = mask if masked else None
    expected, expected_map = theirs(
        query,
        context,
        context,
        key_padding_mask=~mask if masked else None,
        average_attn_weights=False,
    )
    output, attention_map = ours(query, context, key_mask, return_map=True)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(attention_map, expected_map, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(ours(query, context, key_mask), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_both_paths_agree_forward_and_backward(mode: tuple):
    module, (query, context, mask) = build(*mode), inputs()
    results = []
    for return_map in (False, True):
        module.zero_grad()
        result = module(query, context, mask, return_map=return_map)
        output = result[0] if return_map else result
        output.pow(2).sum().backward()
        results.append([output, *[p.grad.clone() for p in module.parameters()]])
    for fused, explicit in zip(*results, strict=True):
        torch.testing.assert_close(fused, explicit, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_every_parameter_gets_a_gradient(mode: tuple):
    module, (query, context, mask) = build(*mode), inputs()
    module(query, context, mask).pow(2).sum().backward()
    largest = max(p.grad.abs().max() for p in module.parameters())
    for name, parameter in module.named_parameters():
        if mode[0] == "dot" and name == "key_proj.bias":
            continue  # the same for all keys: the softmax cancels it
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 1e-5 * largest, name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("return_map", [False, True])
def test_no_valid_key_gives_exactly_zero(mode: tuple, return_map: bool):
    module, (query, context, mask) = build(*mode), inputs()
    context[-1] = torch.nan  # padding is not read
    query.requires_grad_()
    result = module(query, context, mask, return_map=return_map)
    output = result[0] if return_map else result
    assert output[-1].eq(0).all()
    assert output[0].ne(0).all()
    if return_map:
        assert result[1][-1].eq(0).all()
        torch.testing.assert_close(result[1][0].sum(-1), torch.ones(4, 4))
    output.sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("return_map", [False, True])
def test_empty_key_sequence(return_map: bool):
    module = build()
    result = module(torch.randn(2, 4, 8), torch.randn(2, 0, 6), return_map=return_map)
    output = result[0] if return_map else result
    assert output.shape == (2, 4, 8)
    assert output.eq(0).all()
    if return_map:
        assert result[1].shape == (2, 4, 4, 0)
    output.sum().backward()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("return_map", [False, True])
def test_independent_of_padding_batch_and_key_order(mode: tuple, return_map: bool):
    module, (query, context, mask) = build(*mode), inputs()

    def run(*arguments):
        result = module(*arguments, return_map=return_map)
        return result[0] if return_map else result

    output = run(query, context, mask)
    close = {"atol": 1e-6, "rtol": 1e-5}
    wide = torch.cat([torch.full((3, 2, 6), torch.nan), context, torch.full((3, 1, 6), 9.0)], 1)
    wide_mask = nn.functional.pad(mask, (2, 1), value=False)
    torch.testing.assert_close(run(query, wide, wide_mask), output, **close)
    for i in range(3):
        alone = run(query[i : i + 1], context[i : i + 1], mask[i : i + 1])
        torch.testing.assert_close(alone[0], output[i], **close)
    order = torch.randperm(5)
    torch.testing.assert_close(run(query, context[:, order], mask[:, order]), output, **close)


def test_any_leading_shape():
    module = build()
    query, context, mask = (
        torch.randn(2, 3, 4, 8),
        torch.randn(2, 3, 5, 6),
        torch.rand(2, 3, 5) < 0.5,
    )
    output = module(query, context, mask)
    torch.testing.assert_close(
        output.flatten(0, 1), module(query.flatten(0, 1), context.flatten(0, 1), mask.flatten(0, 1))
    )
    torch.testing.assert_close(module(query[0, 0], context[0, 0], mask[0, 0]), output[0, 0])


def test_top_m_keeps_the_best_keys_of_each_query_and_head():
    module, (query, context, mask) = build("cosine", init=5.0), inputs(num_keys=7)
    output, attention_map = module(query, context, mask, top_m=2, return_map=True)
    _, full = module(query, context, mask, return_map=True)
    kept = attention_map > 0
    assert kept.sum(-1).equal(mask.sum(-1).clamp_max(2)[:, None, None].expand(3, 4, 4))
    expected = torch.where(kept, full, 0.0)
    expected = expected / expected.sum(-1, keepdim=True).clamp_min(1e-9)
    torch.testing.assert_close(attention_map, expected)
    worst_kept, best_dropped = (
        full.masked_fill(~kept, 1).amin(-1),
        full.masked_fill(kept, 0).amax(-1),
    )
    assert (worst_kept >= best_dropped).all()
    torch.testing.assert_close(module(query, context, mask, top_m=2), output)
    torch.testing.assert_close(module(query, context, mask, top_m=9), module(query, context, mask))


def test_keys_and_values_can_be_precomputed():
    module, (query, context, mask) = build(), inputs()
    keys, values = module.keys_values(context, mask)
    output, attention_map = module.attend(query, keys, values, mask)
    assert attention_map is None
    assert output.equal(module(query, context, mask))


def test_legacy_scale_reproduces_the_old_attention():
    """Wo softmax(e^2 <q/|q|, k/|k|> / sqrt(d)) v: the clamp has cut ln 14.29 to 2."""
    scale = SimilarityScale("cosine", learnable=True, init=14.285714, legacy=True)
    module = CrossAttention(8, 6, 16, 4, scale=scale)
    query, context = torch.randn(4, 8), torch.randn(5, 6)
    q, k, v = (
        projection(x).reshape(-1, 4, 4).transpose(0, 1)
        for projection, x in (
            (module.query_proj, query),
            (module.key_proj, context),
            (module.value_proj, context),
        )
    )
    q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
    weights = (torch.tensor(2.0).exp() * q @ k.mT / 2.0).softmax(-1)
    expected = module.out_proj((weights @ v).transpose(0, 1).reshape(4, 16))
    torch.testing.assert_close(module(query, context), expected)


def test_widths_and_biases():
    module = CrossAttention(8, 6, 16, 4, out_dim=3, qkv_bias=False, out_bias=False)
    assert module(torch.randn(2, 4, 8), torch.randn(2, 5, 6)).shape == (2, 4, 3)
    assert sum(p.numel() for p in module.parameters()) == 16 * (8 + 6 + 6) + 3 * 16
    with_bias = CrossAttention(8, 6, 16, 4)
    assert with_bias.key_proj.bias.eq(0).all()
    assert sum(p.numel() for p in with_bias.parameters()) == 16 * (8 + 6 + 6 + 3) + 8 * 16 + 8


def test_dropout_acts_only_in_training():
    module, (query, context, mask) = build(dropout=0.5), inputs()
    torch.manual_seed(0)
    assert not module(query, context, mask).equal(module(query, context, mask))
    _, attention_map = module(query, context, mask, return_map=True)
    module.eval()
    _, expected = module(query, context, mask, return_map=True)
    assert attention_map.equal(expected)  # the map is shown before dropout
    assert module(query, context, mask).equal(module(query, context, mask))


def test_bfloat16_module_and_autocast_keep_float32_logits():
    module, (query, context, mask) = build("cosine", init=14.285714), inputs()
    exact = module(query, context, mask)
    half = build("cosine", init=14.285714)
    half.load_state_dict(module.state_dict())
    half.bfloat16()
    output, attention_map = half(query.bfloat16(), context.bfloat16(), mask, return_map=True)
    assert output.dtype == torch.bfloat16
    assert attention_map.dtype == torch.float32
    torch.testing.assert_close(output.float(), exact, atol=0.1, rtol=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = module(query, context, mask)
    torch.testing.assert_close(output.float(), exact, atol=0.1, rtol=0.1)
    assert output[-1].eq(0).all()


@pytest.mark.parametrize("return_map", [False, True])
def test_autocast_does_not_reach_the_attention(return_map: bool):
    """Only the projections run in bfloat16; between them there is one rounding, at the end."""
    module, (query, context, mask) = build("cosine", init=14.285714), inputs()
    dtypes = []
    module.out_proj.register_forward_pre_hook(lambda _, arguments: dtypes.append(arguments[0]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(query, context, mask, return_map=return_map)
        queries = module.query_proj(query).unflatten(-1, (4, 4)).transpose(1, 2)
        keys, values = module.keys_values(context, mask)
    assert queries.dtype == keys.dtype == torch.bfloat16
    logits = module.scale(queries, keys).masked_fill(~mask[:, None, None], -torch.inf)
    exact = (logits.softmax(-1) @ values.float()).transpose(1, 2).flatten(2)
    error = (dtypes[0].float() - exact)[mask.any(-1)].abs()
    assert (error <= exact[mask.any(-1)].abs() * 2**-8 + 1e-6).all()


def test_save_and_load():
    module, (query, context, mask) = build("cosine", True, 14.285714), inputs()
    other = CrossAttention(8, 6, 16, 4, scale=SimilarityScale("cosine", learnable=True))
    other.load_state_dict(module.state_dict())
    assert other(query, context, mask).equal(module(query, context, mask))


def test_width_must_be_divisible_by_heads():
    with pytest.raises(InputError, match="dim=10 and num_heads=4"):
        CrossAttention(8, 6, 10, 4)
