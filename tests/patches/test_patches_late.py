"""Late interaction with the patches that a text keeps: an oracle in loops, index, training."""

import pytest
import torch
from torch.nn import functional as F

from eligo.config import load_config
from eligo.errors import InputError
from eligo.patches.config import PatchesTrainConfig
from eligo.patches.index.entries import image_queries, text_queries
from eligo.patches.model.best_matches import best_matches
from eligo.patches.model.inputs import Images, Texts, Words
from eligo.patches.model.late import LateInteraction
from eligo.patches.model.retrieval_model import RetrievalModel
from eligo.patches.model.seps import CrossSparseAggrNet
from eligo.patches.training.losses import contrastive_loss
from eligo.patches.training.task import PatchesTask
from eligo.train import Progress


def sides(seed: int = 0, images: int = 3, texts: int = 4, cls: bool = True) -> tuple[Images, Texts]:
    random = torch.Generator().manual_seed(seed)
    patches = torch.randn(images, 12, 8, generator=random)
    words = torch.randn(texts, 5, 8, generator=random)
    mask = torch.arange(5) < torch.tensor([5, 3, 1, 4])[:texts, None]
    first = torch.randn(images, 8, generator=random) if cls else None
    return Images(patches, first), Texts(Words(words, mask))


def oracle(net: LateInteraction, images: Images, texts: Texts) -> torch.Tensor:
    """Return the scores, pair by pair and word by word."""
    scores = torch.zeros(len(images.patches), len(texts.words.mask))
    for v, patches in enumerate(images.patches):
        mean = patches.mean(0)
        cls = mean if images.cls is None else images.cls[v]
        image = F.normalize(net.image_proj.weight @ torch.cat([cls, mean]), dim=0)
        units = F.normalize(patches, dim=1)
        for t in range(scores.shape[1]):
            words = texts.words.of(t)
            weights = torch.full((len(words),), 1 / len(words))
            if net.word_weight is not None:
                weights = (words @ net.word_weight.weight[0]).softmax(0)
            text = F.normalize(net.text_proj.weight @ (weights @ words), dim=0)
            rank = units @ F.normalize(weights @ words, dim=0)
            rank = rank + net.typicality * (units @ F.normalize(mean, dim=0))
            if net.relevance == "words":
                of_words = []
                for word in F.normalize(words, dim=1):
                    of_word = units @ word + net.typicality * (units @ F.normalize(mean, dim=0))
                    of_words.append(of_word - of_word.max())
                rank = torch.stack(of_words).amax(0)
            count = -(-len(patches) * net.sparse_ratio // 1)
            kept = rank.argsort(descending=True)[: int(count)]
            cosines = F.normalize(words, dim=1) @ units[kept].T
            best = weights @ cosines.amax(1) + cosines.amax(0).mean()
            scores[v, t] = image @ text + best
    return scores


@pytest.mark.parametrize("relevance", ["mean", "words"])
@pytest.mark.parametrize("cls", [True, False])
@pytest.mark.parametrize("word_weights", [True, False])
@pytest.mark.parametrize(
    ("ratio", "typicality"), [(1.0, -1.0), (0.25, -1.0), (0.5, 1.0), (0.3, 0.0)]
)
def test_scores_equal_a_plain_loop(
    ratio: float, typicality: float, word_weights: bool, cls: bool, relevance, monkeypatch
):
    images, texts = sides(cls=cls)
    net = LateInteraction(8, ratio, typicality, word_weights=word_weights, relevance=relevance)
    torch.nn.init.normal_(net.image_proj.weight)
    if net.word_weight is not None:
        torch.nn.init.normal_(net.word_weight.weight)
    with torch.no_grad():
        expected = oracle(net, images, texts)
        torch.testing.assert_close(net.match(images, texts).scores, expected)
        monkeypatch.setattr("eligo.patches.model.late._LARGEST", 100)  # one image at a time
        torch.testing.assert_close(net.match(images, texts).scores, expected)
        rows, columns = torch.tensor([2, 0, 2]), torch.tensor([1, 3, 0])
        found = net.match_pairs(images, texts, rows, columns)
        torch.testing.assert_close(found, expected[rows, columns])


def test_untrained_word_weights_change_nothing():
    images, texts = sides()
    plain, weighted = (LateInteraction(8, word_weights=weights) for weights in (False, True))
    torch.testing.assert_close(
        weighted.match(images, texts).scores, plain.match(images, texts).scores
    )


@pytest.mark.parametrize("relevance", ["mean", "words"])
@pytest.mark.parametrize("word_weights", [True, False])
def test_gradients_equal_those_of_the_loop(word_weights: bool, relevance):
    images, texts = sides()
    net = LateInteraction(8, 0.5, word_weights=word_weights, relevance=relevance)
    if net.word_weight is not None:
        torch.nn.init.normal_(net.word_weight.weight)
    gradients = []
    for score in (lambda a, b: net.match(a, b).scores, lambda a, b: oracle(net, a, b)):
        patches = images.patches.clone().requires_grad_()
        words = texts.words.vectors.clone().requires_grad_()
        weights = torch.arange(12.0).view(3, 4)
        both = Images(patches, images.cls), Texts(Words(words, texts.words.mask))
        net.zero_grad()
        (score(*both) * weights).sum().backward()
        of_net = [part.grad for part in net.parameters()]
        gradients.append((patches.grad, words.grad, of_net))
    torch.testing.assert_close(*gradients)


def test_no_word_loses_its_best_patch():
    """With six patches for five words, whatever the mean word prefers."""
    images, texts = sides()
    kept = LateInteraction(8, 0.5, 0.0).match(images, texts, decisions=True).sparse.live.bool()
    units = F.normalize(images.patches, dim=-1)
    for t in range(4):
        best = (units @ F.normalize(texts.words.of(t), dim=1).T).argmax(1)
        assert kept[:, t].gather(1, best).all()


@pytest.mark.parametrize("relevance", ["mean", "words"])
def test_padding_of_patches_is_never_kept(relevance):
    images, texts = sides()
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[1, 7:] = False
    net = LateInteraction(8, 0.5, relevance=relevance)
    matches = net.match(Images(images.patches, images.cls, mask), texts, decisions=True)
    short = Images(images.patches[1:2, :7], images.cls[1:2])
    torch.testing.assert_close(matches.scores[1:2], net.match(short, texts).scores)
    assert not (matches.sparse.live[1] * ~mask[1]).any()


def test_the_subject_is_kept_not_the_background():
    """Ten equal background patches and two others; the text is about one of them."""
    background, dog, ball = F.normalize(torch.randn(3, 16), dim=1)
    patches = torch.stack([background] * 10 + [dog, ball])[None]
    word = (dog + 0.5 * background)[None, None]
    directions = Words(word, torch.ones(1, 1, dtype=torch.bool)).directions()
    units = F.normalize(patches, dim=-1)
    kept = {
        t: LateInteraction(16, 1 / 12, t).select(
            Images(patches), units, torch.einsum("vnc,tc->vnt", units, directions).unsqueeze(-1)
        )[1]
        for t in (-1.0, 1.0)
    }
    assert kept[-1.0][0, 0, 10]
    assert not kept[1.0][0, 0, 10]


def test_explanation_names_the_best_patch_of_each_word():
    images, texts = sides(images=1, texts=1)
    net = LateInteraction(8, 0.5, num_prefix_tokens=1, grid_hw=(3, 4))
    tokens = torch.cat([images.cls[:, None], images.patches], 1)[0]
    words = texts.words.of(0)
    found = net.explain(tokens, words)
    assert found.score == pytest.approx(float(net.match(images, texts).scores[0, 0].detach()))
    assert found.heat_map.shape == (3, 4)
    torch.testing.assert_close(found.word_patches.sum(1), found.word_scores)
    kept = set(found.sparse.indices.tolist())
    assert len(kept) == 6
    assert {int(name.split()[1]) for name in found.token_names} == kept


def test_an_index_scores_as_the_model(tmp_path):
    model = RetrievalModel.tiny(kind="late", sparse_ratio=0.25).eval()
    images = model.image_side(torch.randint(0, 255, (5, 3, 56, 56), dtype=torch.uint8))
    texts = model.text_side(["a red ball", "a box"])
    net = model.index_net()
    queries = text_queries(net, texts)
    assert queries[0].vectors is None
    guesses = torch.stack([net.image_vectors(images) @ query.direction for query in queries], 1)
    rest = model.match(images, texts) - guesses
    assert rest.abs().max() <= 2.0 + 1e-5
    assert len(image_queries(net, images)) == 5
    model.save_pretrained(tmp_path / "model")
    again = RetrievalModel.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(again.match(images, texts), model.match(images, texts))


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_a_step_trains_every_part(head: str):
    config = load_config(PatchesTrainConfig, {"task": "patches.train"}).tiny()
    config = config.replace(
        {"model.match.kind": "late", "loss": "contrastive", "model.encoders.head": head,
         "model.encoders.dropout": 0.1 if head == "mlp" else 0.0}
    )  # fmt: skip
    task = PatchesTask(config)
    batch = next(task.batches(0, 0, 1, torch.device("cpu")))
    output = task.step(batch, Progress(0, 4))
    torch.stack(list(output.losses.values())).sum().backward()
    unused = [
        name for name, p in task.model.named_parameters() if p.requires_grad and p.grad is None
    ]
    assert unused == []
    assert task.modules["scale"].log_scale.grad.abs() > 0
    assert "loss" in task.evaluate()


def test_contrastive_loss_is_the_cross_entropy_both_ways():
    scores = torch.randn(4, 4)
    target = torch.arange(4)
    expected = F.cross_entropy(7 * scores, target) + F.cross_entropy(7 * scores.T, target)
    torch.testing.assert_close(contrastive_loss(scores, scale=7.0), expected)
    # Two texts of image 0: the other one is neither a positive nor a negative.
    ids = torch.tensor([0, 0, 1, 2])
    hidden = scores.clone()
    hidden[0, 1] = hidden[1, 0] = -1e9
    expected = F.cross_entropy(hidden, target) + F.cross_entropy(hidden.T, target)
    torch.testing.assert_close(contrastive_loss(scores, ids), expected)
    # Several true texts of an image.
    positive = torch.tensor([[True, True, False], [False, False, True]])
    wide = torch.randn(2, 3)
    rows = wide.log_softmax(1)
    by_row = -(rows[0, :2].mean() + rows[1, 2]) / 2
    columns = wide.log_softmax(0)
    by_column = -(columns[0, 0] + columns[0, 1] + columns[1, 2]) / 3
    found = contrastive_loss(wide, None, positive)
    torch.testing.assert_close(found, by_row + by_column)


def test_models_saved_without_typicality_keep_the_documented_score(tmp_path):
    model = RetrievalModel.tiny(kind="open", typicality=1.0).eval()
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text("".join(
        line for line in path.read_text().splitlines(keepends=True) if "typicality" not in line
    ))  # fmt: skip
    again = RetrievalModel.from_pretrained(tmp_path)
    assert again.config.match.typicality == 1.0
    assert again.config.match.relevance == "words"  # the other key was there
    assert RetrievalModel.tiny(kind="open").config.match.typicality == -0.5


@pytest.mark.parametrize("kernel", ["reference", "torch"])
def test_kernels_of_the_open_variant_follow_typicality(kernel: str):
    images, texts = sides()
    settings = {"num_patches": 12, "num_prefix_tokens": 0, "typicality": -1.0}
    net = CrossSparseAggrNet(8, kernel=kernel, **settings)
    kept = net.match(images, texts, decisions=True).sparse.live
    units = F.normalize(images.patches, dim=-1)
    relevance = torch.einsum("vnc,tc->vtn", units, texts.words.directions())
    typical = torch.einsum("vnc,vc->vn", units, F.normalize(images.patches.mean(1), dim=-1))
    expected = (relevance - typical[:, None]).topk(6, -1).indices
    assert torch.equal(kept.bool().nonzero()[:, 2].view(3, 4, 6), expected.sort(-1).values)


def test_typicality_belongs_to_the_open_variant():
    with pytest.raises(InputError, match="typicality: got -1"):
        CrossSparseAggrNet(8, use_paper_version=True, typicality=-1.0)


def test_another_hidden_state_gives_the_patches(tmp_path):
    from transformers import Dinov2Config, Dinov2Model

    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    vision = Dinov2Model(Dinov2Config(**sizes, image_size=56, patch_size=14))
    vision.save_pretrained(tmp_path)
    tree = {"encoders": {"vision": str(tmp_path), "vision_layer": 1, "embed_dim": 8}}
    from eligo.patches.config import RetrievalConfig

    model = RetrievalModel.build(load_config(RetrievalConfig, tree))
    pixels = torch.randn(1, 3, 56, 56)
    states = vision(pixels, output_hidden_states=True).hidden_states[1]
    encoder = model.image_encoder
    torch.testing.assert_close(encoder(pixels), encoder.head(states))
    both = RetrievalModel.build(
        load_config(RetrievalConfig, tree, {"encoders.vision_layer": (1, -1)})
    )
    last = vision(pixels).last_hidden_state
    expected = both.image_encoder.head(torch.cat([states, last], -1))
    torch.testing.assert_close(both.image_encoder(pixels), expected)
    with pytest.raises(InputError, match="vision_layer: got 9, expected -4 to 3"):
        RetrievalModel.build(load_config(RetrievalConfig, tree, {"encoders.vision_layer": 9}))


def test_gradients_of_the_best_matches():
    patches, words = (torch.randn(*shape, 4, dtype=torch.float64) for shape in ((2, 5), (3, 4)))
    kept = torch.rand(2, 5, 3) < 0.6
    kept[:, 0] = True
    for given in (kept, kept[..., :1]):
        inputs = patches.requires_grad_(), words.requires_grad_()
        assert torch.autograd.gradcheck(lambda p, w, k=given: best_matches(p, w, k), inputs)


def test_best_matches_under_autocast_have_its_type_and_a_gradient():
    patches, words = torch.randn(2, 5, 4, requires_grad=True), torch.randn(3, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        per_word, per_patch = best_matches(patches, words, torch.ones(2, 5, 1, dtype=torch.bool))
    assert per_word.dtype is torch.bfloat16
    (per_word.sum() + per_patch.sum()).backward()
    assert patches.grad.dtype is torch.float32
