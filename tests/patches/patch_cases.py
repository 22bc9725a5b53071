"""Inputs for the tests of `eligo.patches`: golden files, and random cases of any shape."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from patch_oracle import score_all
from safetensors import safe_open
from torch import Tensor

from eligo.patches import CrossSparseAggrNet

GOLDEN = Path(__file__).parents[1] / "golden" / "patches"
MODELS = sorted(path.name for path in GOLDEN.glob("*tiny*.safetensors"))
KERNELS = ("reference", "torch", "auto")
_ARGUMENTS = (
    *("embed_size", "num_patches", "sparse_ratio", "aggr_ratio", "use_paper_version", "top_k"),
    *("use_gumbel_softmax", "gumbel_tau", "use_dual_aggr", "beta"),
)


# Cases of the documented network (`compat`) without a golden file, name: (network, batch).
DOCUMENTED = {
    "rectangular": ({}, {"images": 2, "texts": 5, "dense": 7}),
    "no_cls": ({}, {"tokens": 16, "dense": 4}),
    "ratio_one": ({"sparse_ratio": 1.0}, {"dense": 4}),
    "one_patch": ({"num_patches": 1, "aggr_ratio": 1.0, "sparse_ratio": 1.0}, {"tokens": 1}),
    "one_word": ({}, {"words": 1, "dense": 1}),
    "many_words": ({}, {"words": 40, "dense": 9}),
    "vit": ({"num_patches": 196}, {"images": 2, "texts": 2, "tokens": 197, "dense": 9}),
    "swin": ({"num_patches": 49, "aggr_ratio": 0.4}, {"tokens": 49, "dense": 12}),
    "other_count": ({}, {"tokens": 26, "dense": 3}),
    "wide_top_k": ({"top_k": 9}, {"words": 3}),
    "gumbel": ({"use_gumbel_softmax": True, "gumbel_tau": 0.7}, {"texts": 3, "dense": 5}),
}
# Open, paper, paper with a single aggregation.
VARIANTS = [(False, True), (True, True), (True, False)]

# Cases of our defaults, name: (network, batch).
DEFAULTS = {
    "open": ({}, {"dense": 0}),
    "open_dense": ({}, {"dense": 5}),
    "paper": ({"use_paper_version": True}, {"dense": 0}),
    "paper_dense": ({"use_paper_version": True}, {"dense": 5}),
    "paper_single": ({"use_paper_version": True, "use_dual_aggr": False}, {"dense": 5}),
    "masked": ({"use_paper_version": True}, {"dense": 5, "masked": 7}),
    "masked_open": ({}, {"dense": 5, "masked": 15}),
    "ratio_one": ({"sparse_ratio": 1.0, "use_paper_version": True}, {"dense": 5}),
    "one_patch": ({"num_patches": 1, "num_prefix_tokens": 0}, {"tokens": 1, "dense": 2}),
    "grid_6x8": ({"num_patches": 48, "grid_hw": (6, 8)}, {"tokens": 49}),
    "registers": ({"num_prefix_tokens": 5}, {"tokens": 21, "dense": 3}),
    "bernoulli": ({"use_paper_version": True, "decision": "bernoulli"}, {"dense": 5}),
    "bernoulli_masked": (
        {"use_paper_version": True, "decision": "bernoulli", "sparse_ratio": 0.9},
        {"dense": 5, "masked": 9},
    ),
}


def golden(name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(GOLDEN / name, "pt") as file:
        config = json.loads((file.metadata() or {}).get("config", "{}"))
        return config, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118


def golden_net(config: dict[str, Any], tensors: dict[str, Tensor], **more) -> CrossSparseAggrNet:
    net = CrossSparseAggrNet(**{name: config[name] for name in _ARGUMENTS}, compat=True, **more)
    net.load_state_dict({key[3:]: value for key, value in tensors.items() if key.startswith("sd.")})
    return net


@dataclass
class Batch:
    """Random inputs; dense text belongs to images, or with `compat` to texts."""

    images: Tensor
    words: Tensor
    lengths: Tensor
    dense: Tensor | None = None
    dense_lengths: Tensor | None = None
    patch_mask: Tensor | None = None

    def arguments(self) -> tuple:
        return self.images, self.words, self.lengths, self.dense, self.dense_lengths

    def __call__(self, net: CrossSparseAggrNet, **more):
        return net(*self.arguments(), patch_mask=self.patch_mask, **more)

    def scores(self, net: CrossSparseAggrNet) -> Tensor:
        """Through `match`, so that float64 stays float64."""
        return net.match(*net.sides(*self.arguments(), patch_mask=self.patch_mask)).scores

    def to(self, dtype: torch.dtype) -> "Batch":
        """Vectors in another precision."""
        return self._each(lambda part: part.to(dtype) if part.is_floating_point() else part)

    def cuda(self) -> "Batch":
        return self._each(lambda part: part.cuda())

    def _each(self, change) -> "Batch":
        parts = (*self.arguments(), self.patch_mask)
        return Batch(*(None if part is None else change(part) for part in parts))


def batch(
    images: int = 3,
    texts: int = 4,
    tokens: int = 17,
    width: int = 32,
    words: int = 6,
    dense: int = 0,
    seed: int = 0,
    *,
    compat: bool = False,
    masked: int = 0,
) -> Batch:
    """`dense`: number of dense words (0: none); `masked`: patches missing from the first image."""
    draw = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    def lengths(count: int, longest: int) -> Tensor:
        lengths = torch.randint(1, longest + 1, (count,), generator=draw)
        lengths[0] = longest
        return lengths

    inputs = Batch(randn(images, tokens, width), randn(texts, words, width), lengths(texts, words))
    if dense:
        owners = texts if compat else images
        inputs.dense, inputs.dense_lengths = randn(owners, dense, width), lengths(owners, dense)
    if masked:
        inputs.patch_mask = torch.ones(images, tokens - 1, dtype=torch.bool)
        inputs.patch_mask[0, -masked:] = False
    return inputs


def perturbed(net: CrossSparseAggrNet, seed: int = 1) -> CrossSparseAggrNet:
    """Large random weights, so that aggregation is far from uniform."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw)
    return net


def tiny(seed: int = 0, **more) -> CrossSparseAggrNet:
    torch.manual_seed(seed)
    settings = {"embed_size": 32, "num_patches": 16, "aggr_ratio": 0.5, **more}
    return perturbed(CrossSparseAggrNet(**settings))


@dataclass
class Documented:
    """Scores, masks and gradients of a case by definition, in float64."""

    scores: Tensor
    masks: tuple[Tensor, ...]
    probes: list[Tensor]
    gradients: dict[str, Tensor]

    @staticmethod
    def of(net: CrossSparseAggrNet, inputs: Batch, seed: int) -> "Documented":
        """With the noise that `seed` gives; gradients of scores and masks, times probes."""
        leaves = {"images": inputs.images, "words": inputs.words, **net.state_dict()}
        leaves = {name: part.detach().double().requires_grad_() for name, part in leaves.items()}
        dense = None if inputs.dense is None else inputs.dense.double()
        paper = net.use_paper_version
        rules = {
            "paper": paper,
            "dual": paper and hasattr(net.aggr_net, "weight_dense"),
            "ratio": net.sparse_net_cap.sparse_ratio,
            "beta": net.beta,
            "top_k": net.hrpa.top_k,
            "tau": net.gumbel_tau,
        }
        noise = None
        if net.use_gumbel_softmax:
            torch.manual_seed(seed)
            num_tokens = inputs.images.shape[1]
            num_patches = num_tokens - (round(num_tokens**0.5) ** 2 != num_tokens)
            num_draws = len(inputs.words) * (1 + (dense is not None and rules["dual"] >= paper))
            shape = (len(inputs.images), num_patches)
            noise = [torch.rand(shape).double() for _ in range(num_draws)]
        arguments = (inputs.lengths, dense, inputs.dense_lengths, noise)
        scores, masks = score_all(leaves, leaves["images"], leaves["words"], *arguments, **rules)
        draw = torch.Generator().manual_seed(seed)
        probes = [torch.randn(part.shape, generator=draw).double() for part in (scores, *masks)]
        parts = zip((scores, *masks), probes, strict=True)
        total = sum((part * probe).sum() for part, probe in parts)
        found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
        known = {
            name: part
            for name, part in zip(leaves, found, strict=True)
            if part is not None and part.abs().max() > 1e-12  # otherwise it is 0 up to rounding
        }
        return Documented(scores.detach(), tuple(mask.detach() for mask in masks), probes, known)


def documented(name: str, paper: bool, dual: bool) -> tuple[dict[str, Any], Batch, Documented]:
    """Settings of a documented case, its inputs, and the result by definition."""
    settings, shape = DOCUMENTED[name]
    rules = {**settings, "use_paper_version": paper, "use_dual_aggr": dual, "compat": True}
    inputs = batch(**shape, compat=True, seed=3)
    return rules, inputs, Documented.of(tiny(**rules), inputs, seed=11)


def gradients(net: CrossSparseAggrNet, inputs: Batch, probe: Tensor) -> dict[str, Tensor]:
    """Of `sum(scores * probe)`, for inputs and parameters."""
    net.zero_grad()
    images = inputs.images.clone().requires_grad_()
    words = inputs.words.clone().requires_grad_()
    some = Batch(images, words, *inputs.arguments()[2:], inputs.patch_mask)
    (some.scores(net) * probe.to(images.dtype)).sum().backward()
    found = {"images": images.grad, "words": words.grad}
    found |= {name: part.grad for name, part in net.named_parameters()}
    return {name: part for name, part in found.items() if part is not None}


def assert_close_gradients(
    got: dict[str, Tensor], expected: dict[str, Tensor], share: float = 1e-4
) -> None:
    """Each within `share` of its tensor's largest value."""
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        largest = value.abs().max()
        worst = (got[name].double() - value.double()).abs().max()
        assert worst <= share * largest + 1e-9, f"{name}: {worst} of {largest}"
