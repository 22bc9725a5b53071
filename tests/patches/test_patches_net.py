"""The default network: no leaks, gradients of decisions, explicit tokens, output, errors."""

import pytest
import torch
from patch_cases import Batch, batch, gradients, perturbed, tiny

from eligo.errors import InputError
from eligo.patches import CrossSparseAggrNet, PatchLoss, PatchScores
from strategies import production

TINY = {"embed_size": 32, "num_patches": 16, "sparse_ratio": 0.5, "aggr_ratio": 0.5}


def count(net) -> int:
    return sum(part.numel() for part in net.parameters())


@pytest.mark.parametrize(
    ("settings", "documented", "ours"),
    [
        (TINY, 291, 287),
        ({**TINY, "use_paper_version": True}, 1198, 1190),
        ({**TINY, "use_paper_version": True, "use_dual_aggr": False}, 908, 904),
        ({}, 57_368, 57_368 - 39),
        ({"use_paper_version": True}, 246_392, 246_392 - 78),
    ],
)
def test_parameter_counts(settings, documented, ours):
    assert count(CrossSparseAggrNet(**settings, compat=True)) == documented
    assert count(CrossSparseAggrNet(**settings)) == ours


def test_state_dict_keys():
    def keys(**more):
        return set(CrossSparseAggrNet(**TINY, compat=True, **more).state_dict())

    def layers(prefix, *numbers):
        return {f"{prefix}.{n}.{kind}" for n in numbers for kind in ("weight", "bias")}

    scale = {"aggr_net.scale"}
    predictors = layers("sparse_net_cap.score_predictor", 0, 2)
    predictors |= layers("sparse_net_long.score_predictor", 0, 2)
    relevance = layers("hrpa.relevance_mlp", 0, 2)
    single = layers("aggr_net.weight", 0, 1, 3)
    dual = layers("aggr_net.weight_sparse", 0, 1, 3) | layers("aggr_net.weight_dense", 0, 1, 3)
    assert keys() == single | scale
    assert keys(use_paper_version=True) == predictors | dual | scale | relevance
    mixed = keys(use_paper_version=True, use_dual_aggr=False)
    assert mixed == predictors | single | scale | relevance


@pytest.mark.parametrize("paper", [False, True])
def test_documented_weights_load_into_ours(paper):
    """The last bias is dropped on import; without dense text the scores are the documented ones."""
    old = tiny(use_paper_version=paper, compat=True).eval()
    weights = old.state_dict()
    ours = CrossSparseAggrNet(**TINY, use_paper_version=paper)
    ours.load_state_dict(weights)
    assert any(key.endswith("3.bias") for key in weights)  # the caller's dictionary is unchanged
    inputs = batch()
    assert torch.allclose(inputs(ours).scores, inputs(old), atol=2e-6)


# Leak: each image has a dense description; `pairing` assigns an image to each query.


def leaks(net, pairing) -> bool:
    """Whether scores depend on which image is assigned to a query."""
    inputs = batch(images=4, texts=4, dense=6)

    def scores(pairing):
        dense, lengths = inputs.dense, inputs.dense_lengths
        if net.compat:  # as documented: a query comes with the description of its image
            dense, lengths = dense[pairing], lengths[pairing]
        output = net(inputs.images, inputs.words, inputs.lengths, dense, lengths)
        return output if net.compat else output.scores

    return not torch.equal(scores(torch.arange(4)), scores(pairing))


@pytest.mark.parametrize("paper", [False, True])
@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_dense_text_of_the_query_does_not_leak(paper, kernel):
    shuffled = torch.tensor([2, 0, 3, 1])
    settings = {"use_paper_version": paper, "kernel": kernel}
    assert not leaks(tiny(**settings).eval(), shuffled)
    assert leaks(tiny(**settings, compat=True).eval(), shuffled)  # the test can fail


@pytest.mark.parametrize("paper", [False, True])
@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_dense_text_changes_only_its_own_image(paper, kernel):
    inputs, net = batch(images=4, texts=5, dense=6), tiny(use_paper_version=paper, kernel=kernel)
    before = inputs(net).scores
    inputs.dense[1] = torch.randn_like(inputs.dense[1])
    changed = (inputs(net).scores != before).any(1)
    assert changed.tolist() == [False, True, False, False]


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_scores_do_not_depend_on_other_pairs(kernel):
    """Permutation, padding, other items of the batch, sharding."""
    inputs = batch(images=5, texts=6, dense=4, masked=3)
    net = tiny(use_paper_version=True, kernel=kernel).eval()
    scores = inputs(net).scores
    order, rows = torch.randperm(6), torch.randperm(5)
    permuted = Batch(
        inputs.images[rows],
        inputs.words[order],
        inputs.lengths[order],
        inputs.dense[rows],
        inputs.dense_lengths[rows],
        inputs.patch_mask[rows],
    )
    assert torch.allclose(permuted(net).scores, scores[rows][:, order], atol=1e-6)
    padded = Batch(
        torch.cat([inputs.images, torch.full((5, 4, 32), torch.nan)], 1),
        torch.cat([inputs.words, torch.full((6, 3, 32), torch.nan)], 1),
        inputs.lengths,
        torch.cat([inputs.dense, torch.full((5, 2, 32), torch.nan)], 1),
        inputs.dense_lengths,
        torch.cat([inputs.patch_mask, torch.zeros(5, 4, dtype=torch.bool)], 1),
    )
    wider = tiny(use_paper_version=True, kernel=kernel, num_prefix_tokens=1).eval()
    assert torch.allclose(padded(wider).scores, scores, atol=1e-6)
    for image in range(5):
        one = slice(image, image + 1)
        alone = Batch(
            inputs.images[one],
            inputs.words[:2],
            inputs.lengths[:2],
            inputs.dense[one],
            inputs.dense_lengths[one],
            inputs.patch_mask[one],
        )
        assert torch.allclose(alone(net).scores, scores[one, :2], atol=1e-6)


def test_lengths_and_masks_are_equivalent():
    inputs, net = batch(dense=4), tiny(use_paper_version=True)
    scores = inputs(net).scores
    inputs.lengths = torch.arange(6) < inputs.lengths[:, None]
    inputs.dense_lengths = torch.arange(4) < inputs.dense_lengths[:, None]
    assert torch.equal(inputs(net).scores, scores)
    holes = torch.tensor([True, False, True, True, False, True]).expand(4, 6)
    inputs.lengths = holes
    packed = Batch(
        inputs.images, inputs.words[:, holes[0]], [4] * 4, inputs.dense, inputs.dense_lengths
    )
    assert torch.allclose(inputs(net).scores, packed(net).scores, atol=1e-6)


def test_prefix_tokens_and_registers():
    """Token 0 is [CLS]; registers are dropped; their number is always explicit."""
    inputs = batch(tokens=49)
    net = tiny(num_patches=48, grid_hw=(6, 8))
    assert net.sides(*inputs.arguments())[0].patches.shape == (3, 48, 32)
    registers = tiny(num_patches=44)
    images = registers.sides(*inputs.arguments())[0]
    assert images.patches.shape == (3, 44, 32)
    assert torch.equal(images.cls, inputs.images[:, 0])
    assert torch.equal(images.patches, inputs.images[:, 5:])
    none = tiny(num_patches=49).sides(*inputs.arguments())[0]
    assert none.cls is None


def test_budgets_are_rounded_correctly():
    inputs = batch(tokens=101)
    settings = {"num_patches": 100, "sparse_ratio": 0.07}
    assert inputs(tiny(**settings), return_selection=True).sparse.indices.shape[-1] == 7
    documented = tiny(**settings, compat=True)
    assert int(inputs(documented)[1][0, 0].sum()) == 8
    assert tiny(num_patches=4, aggr_ratio=0.1).aggr_net.weight[3].out_features == 1


def test_k_counts_unmasked_patches():
    inputs = batch(masked=11)
    selection = inputs(tiny(), return_selection=True).sparse
    assert selection.num_kept.tolist() == [[3] * 4, [8] * 4, [8] * 4]
    assert not (selection.kept_mask & ~selection.mask).any()


def test_no_extra_token_if_nothing_is_dropped():
    """If all similarities are negative, a zero token would raise every maximum to 0."""
    inputs = batch(tokens=16)
    inputs.images = inputs.images.abs()
    inputs.words = -inputs.words.abs()
    net = tiny(sparse_ratio=1.0, num_prefix_tokens=0)
    documented = tiny(sparse_ratio=1.0, compat=True).eval()
    assert (inputs(net).scores < 0).all()
    assert (inputs(documented) > inputs(net).scores + 0.02).all()


def test_output_fields():
    inputs, net = batch(dense=3), tiny(use_paper_version=True)
    plain = inputs(net)
    assert isinstance(plain, PatchScores)
    assert plain.sparse is None
    assert plain.dense is None
    assert plain.kept_ratio == 0.5
    full = inputs(net, return_selection=True)
    assert full.sparse.indices.shape == (3, 4, 8)
    assert full.dense.scores.shape == (3, 4, 16)
    assert torch.equal(full.scores, plain.scores)
    ranked = full.sparse.gather(full.sparse.scores)
    assert (ranked.diff(dim=-1) <= 0).all()  # best first
    assert isinstance(
        batch()(tiny(compat=True), return_selection=True), PatchScores
    )  # on request, with compat too


@pytest.mark.parametrize("paper", [False, True])
@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_every_parameter_gets_a_gradient(paper, kernel):
    inputs, net = batch(images=4, texts=4, dense=5), tiny(use_paper_version=paper, kernel=kernel)
    found = gradients(net, inputs, torch.randn(4, 4))
    names = {name for name, _ in net.named_parameters()}
    assert names <= found.keys()
    for child in ("sparse_net_cap", "sparse_net_long", "aggr_net", "hrpa"):
        sizes = [found[name].abs().max() for name in names if name.startswith(child)]
        assert all(size > 1e-5 * max(sizes) for size in sizes)
    kept = inputs(net, return_selection=True).sparse.kept_mask.any(1)  # (images, patches)
    assert (found["images"][:, 1:].abs().amax(-1)[kept] > 0).all()


def test_selection_decision_gets_a_gradient():
    """A dropped patch gives a gradient to the predictor, unlike with the documented mask."""
    live, dead = [], []
    for compat, found in ((False, live), (True, dead)):
        net = tiny(use_paper_version=True, compat=compat, kernel="reference")
        with (
            torch.no_grad()
        ):  # the extra token also reaches the predictor, so it is made equal to [CLS]
            for part in (net.sparse_net_cap, net.sparse_net_long):
                part.score_predictor[2].weight *= 0.01
        inputs = batch(images=4, texts=4)
        found.append(gradients(net, inputs, torch.randn(4, 4, generator=torch.manual_seed(3))))
    name = "sparse_net_cap.score_predictor.2.weight"
    assert live[0][name].abs().max() > 3 * dead[0][name].abs().max()


def test_ratio_loss_has_a_gradient_under_bernoulli():
    inputs = batch(images=4, texts=4, dense=5)
    net = tiny(use_paper_version=True, decision="bernoulli")
    output = inputs(net)
    loss = PatchLoss(ratio_weight=2.0, target_ratio=0.1)(net, output)
    net.zero_grad()
    loss["ratio"].backward()
    for name in ("sparse_net_cap", "sparse_net_long"):
        assert getattr(net, name).score_predictor[2].bias.grad.abs() > 0
    assert inputs(net.eval()).kept_ratio == 0.5  # evaluation keeps the exact top-K
    with pytest.raises(InputError, match="ratio_weight"):
        PatchLoss(ratio_weight=2.0).check(tiny(use_paper_version=True))


def test_bernoulli_follows_the_scores():
    """Each patch is kept with p = s / (1 + 2 b), or 1 + b with a single text as guide."""
    parts = tiny(use_paper_version=True, decision="bernoulli").parts()
    score = torch.linspace(0.2, 1.1, 16).expand(4000, 16)
    for guides, largest in ((2, 1.5), (1, 1.25)):
        live = parts.decide(score, 8, None, torch.rand(4000, 16), guides=guides)
        assert (live.mean(0) - score[0] / largest).abs().max() < 0.04


def test_training_lowers_the_loss():
    inputs = batch(images=6, texts=6, dense=4, width=32)
    net = perturbed(CrossSparseAggrNet(**TINY, use_paper_version=True))
    inputs.images.requires_grad_()
    optimiser = torch.optim.Adam([*net.parameters(), inputs.images], 0.02)
    losses = []
    for _ in range(15):
        optimiser.zero_grad()
        loss = PatchLoss()(net, inputs(net))["total"]
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("paper", [False, True])
@pytest.mark.parametrize("ratio", [0.5, 1.0])
def test_explanation_adds_up_to_the_score(paper, ratio):
    inputs = batch(images=1, texts=1, tokens=49, dense=4)
    net = tiny(num_patches=48, grid_hw=(6, 8), use_paper_version=paper, sparse_ratio=ratio)
    why = net.explain(inputs.images[0], inputs.words[0], inputs.dense[0])
    output = inputs(net, return_selection=True)
    assert why.score == pytest.approx(output.scores.item(), abs=1e-6)
    assert torch.equal(why.sparse.indices, output.sparse.indices[0, 0])
    assert (why.dense is None) == (output.dense is None)
    assert why.heat_map.shape == (6, 8)
    assert why.mixing.shape == (len(why.token_names), 48)
    sums = why.mixing.sum(1)
    assert sums[0] == 0  # [CLS] contains no patch
    slots = why.mixing[1:25] if ratio == 1.0 else why.mixing[1:13]
    assert torch.allclose(slots.sum(1), torch.full((len(slots),), 2.0 if paper else 1.0))
    assert (why.token_names[-1] == "extra") == (ratio < 1)
    assert why.word_tokens.shape == why.word_scores.shape == (6,)


def test_save_and_load(tmp_path):
    inputs, net = batch(dense=4), tiny(use_paper_version=True)
    torch.save(net.state_dict(), tmp_path / "net.pt")
    other = CrossSparseAggrNet(**TINY, use_paper_version=True)
    other.load_state_dict(torch.load(tmp_path / "net.pt", weights_only=True))
    assert torch.equal(inputs(net).scores, inputs(other).scores)


BAD_SETTINGS = {
    "sparse_ratio: got 0": {"sparse_ratio": 0.0},
    "sparse_ratio: got 1.5": {"sparse_ratio": 1.5},
    "aggr_ratio": {"aggr_ratio": -0.1},
    "beta: got 0.6": {"beta": 0.6},
    "top_k": {"top_k": 0},
    "num_patches": {"num_patches": 0},
    "grid_hw": {"grid_hw": (6, 8)},
    "kernel": {"kernel": "cuda"},
    "decision: got": {"decision": "gumbel"},
    "use_paper_version=True": {"decision": "bernoulli"},
    "use_gumbel_softmax": {"use_gumbel_softmax": True},
    "gumbel_tau": {"gumbel_tau": 0.0},
    "num_prefix_tokens": {"num_prefix_tokens": -1},
}


@pytest.mark.parametrize("message", BAD_SETTINGS)
def test_invalid_settings_are_refused(message):
    with production(), pytest.raises(InputError, match=message):
        CrossSparseAggrNet(**{**TINY, **BAD_SETTINGS[message]})


def _spoil(**parts):
    def spoil(inputs: Batch) -> None:
        for name, change in parts.items():
            setattr(inputs, name, change(getattr(inputs, name)))

    return spoil


BAD_INPUT = {
    "img_embs: got vectors 31": _spoil(images=lambda x: x[..., :31]),
    "cap_embs: got vectors 31": _spoil(words=lambda x: x[..., :31]),
    "text 2 is empty": _spoil(lengths=lambda x: torch.tensor([6, 1, 0, 3])),
    "dense caption 1 is empty": _spoil(dense_lengths=lambda x: torch.tensor([5, 0, 3])),
    "a length of 7": _spoil(lengths=lambda x: torch.tensor([7, 1, 2, 3])),
    "cap_embs: got no texts": _spoil(words=lambda x: x[:0], lengths=lambda x: x[:0]),
    "cap_lens: got shape": _spoil(lengths=lambda x: x[:3]),
    "2 dense texts for 3 images": _spoil(
        dense=lambda x: x[:2], dense_lengths=lambda x: torch.tensor([5, 2])
    ),
    "long_cap_lens: got None": _spoil(dense_lengths=lambda x: None),
    "too few tokens": _spoil(images=lambda x: x[:, :12]),
    "img_embs: got nan": _spoil(images=lambda x: x.where(x < 2, torch.nan)),
    "cap_embs: got inf": _spoil(words=lambda x: x.where(x < 1, torch.inf)),
    "patch_mask: got shape": _spoil(patch_mask=lambda x: torch.ones(3, 17, dtype=torch.bool)),
}


@pytest.mark.parametrize("message", BAD_INPUT)
def test_invalid_input_is_refused(message):
    inputs, net = batch(dense=5), tiny()
    BAD_INPUT[message](inputs)
    with production(), pytest.raises(InputError, match=message):
        inputs(net)


def test_compat_refuses_a_patch_mask():
    with pytest.raises(InputError, match="patch_mask"):
        batch(masked=3)(tiny(compat=True))
