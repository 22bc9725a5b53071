"""Each method against plain loops, written from the papers alone.

A slow method sees one image as lists of its real tokens, in float64, and returns the picks and,
where it folds, the members of each: `{kept: [tokens]}`.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eligo.tokens.methods import METHODS, build
from eligo.tokens.reducer import ReducerContext
from strategies import quick
from token_cases import full_context, make_context

Groups = dict[int, list[int]]
Answer = tuple[list[int], Groups | None]


class Row(NamedTuple):
    x: np.ndarray
    places: list[tuple[int, int]]
    positions: list[int]
    grid: tuple[int, int]
    sizes: list[float]
    words: np.ndarray
    attention: list[float]
    rows: np.ndarray
    cls: list[float]
    scene: list[bool]
    projected: np.ndarray | None
    objects: list[float]
    frames: int


def row_of(context: ReducerContext, row: int) -> Row:
    real = context.mask[row]
    rows, columns = context.grid[row].tolist()
    positions = context.positions[row][real].tolist()
    sizes = torch.ones(len(real)) if context.sizes is None else context.sizes[row]
    question, words = context.question, context.question_mask
    assert question is not None
    assert words is not None
    assert context.attention_row is not None
    assert context.question_rows is not None
    assert context.cls_row is not None
    assert context.object_row is not None
    assert context.scene is not None
    return Row(
        context.features[row][real].double().numpy(),
        [(p // columns, p % columns) for p in positions],
        positions,
        (rows, columns),
        sizes[real].tolist(),
        question[row][words[row]].double().numpy(),
        context.attention_row[row][real].tolist(),
        context.question_rows[row][words[row]][:, real].double().numpy(),
        context.cls_row[row][real].tolist(),
        context.scene[row][real].tolist(),
        None if context.projected is None else context.projected[row][real].double().numpy(),
        context.object_row[row][real].tolist(),
        1 if context.frames is None else int(context.frames[row]),
    )


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def best(scores: list[float], k: int, among: list[int] | None = None) -> list[int]:
    among = list(range(len(scores))) if among is None else among
    return sorted(among, key=lambda i: (-scores[i], i))[:k]


def spaced(items: list[int], k: int) -> list[int]:
    """The first item at or after each of k evenly spaced points."""
    return [items[math.ceil(Fraction(j * len(items), k))] for j in range(k)]


def slow_random(row: Row, k: int, seed: int = 0) -> Answer:
    low = (1 << 64) - 1

    def scramble(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & low
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & low
        return z ^ (z >> 31)

    priority = []
    for x, position in zip(row.x, row.positions, strict=True):
        signs = sum(1 << d for d, value in enumerate(x[:62]) if value > 0)
        key = scramble((signs + scramble(position + 1)) & low)
        priority.append(float((scramble((key + seed) & low) >> 8) % 2**24))
    return best(priority, k), None


def window_of(place: int, pieces: int, length: int, phase: str) -> tuple[int, Fraction]:
    """The piece a place falls in, and its distance to the piece's middle, first or last place."""
    members: dict[int, list[int]] = {}
    for other in range(length):
        members.setdefault(int(Fraction(other * pieces, length)), []).append(other)
    piece = int(Fraction(place * pieces, length))
    first, last = members[piece][0], members[piece][-1]
    expected = {"middle": Fraction(first + last, 2), "first": first, "last": last}[phase]
    return piece, Fraction(abs(place - expected))


def slow_windows(
    row: Row, k: int, tokens: list[int], phase: str = "middle"
) -> dict[tuple[int, int], list[int]]:
    """Tokens of each window, its representative first."""
    height, width = row.grid
    bands = round(math.sqrt(k * height / width))
    bands = min(max(bands, math.ceil(k / width)), height, k)
    found: dict[tuple[int, int], list[tuple[Fraction, int]]] = {}
    for i in tokens:
        band, dy = window_of(row.places[i][0], bands, height, phase)
        share = (band + 1) * k // bands - band * k // bands
        column, dx = window_of(row.places[i][1], share, width, phase)
        found.setdefault((band, column), []).append((dy * dy + dx * dx, i))
    return {key: [i for _, i in sorted(members)] for key, members in found.items()}


def slow_spread(row: Row, k: int, tokens: list[int], phase: str = "middle") -> list[int]:
    if k == 0:
        return []
    middles = [members[0] for members in slow_windows(row, k, tokens, phase).values()]
    rest = [i for i in tokens if i not in middles]
    return sorted(middles + spaced(rest, k - len(middles)))


def slow_uniform(row: Row, k: int, phase: str = "middle") -> Answer:
    return slow_spread(row, k, list(range(len(row.x))), phase), None


def slow_pool(row: Row, k: int) -> Answer:
    kept = slow_spread(row, k, list(range(len(row.x))))
    groups: Groups = {i: [i] for i in kept}
    if k:
        for members in slow_windows(row, k, list(range(len(row.x)))).values():
            groups[members[0]] += [i for i in members if i not in kept]
    return kept, groups


def slow_tome(row: Row, k: int, rounds: int) -> Answer:
    if k == 0:
        return [], {}
    start = len(row.x)
    groups: Groups = {i: [i] for i in range(start)}
    total = max(rounds, math.ceil(math.log2(start / k)))
    for step in range(1, total + 1):
        left = total - step
        target = min(k + (start - k) * left // total, k * 2**left)
        num_merged = len(groups) - max(target, math.ceil(len(groups) / 2))
        tokens = list(groups)
        means = {
            i: np.average(row.x[members], axis=0, weights=[row.sizes[m] for m in members])
            for i, members in groups.items()
        }
        side_a, side_b = tokens[::2], tokens[1::2]
        pairs = []
        for a in side_a if num_merged else []:
            partner = max(side_b, key=lambda b: (cosine(means[a], means[b]), -b))
            pairs.append((-cosine(means[a], means[partner]), a, partner))
        for _, a, partner in sorted(pairs)[:num_merged]:
            groups[partner] += groups.pop(a)
    return list(groups), groups


def slow_fastv(row: Row, k: int) -> Answer:
    return best(row.attention, k), None


def slow_visionzip(row: Row, k: int, contextual_ratio: float) -> Answer:
    tokens = list(range(len(row.x)))
    contextual = 0 if k == len(tokens) else math.floor(k * contextual_ratio + 0.5)
    dominant = best(row.cls, k - contextual)
    rest = [i for i in tokens if i not in dominant]
    targets = spaced(rest, contextual)
    groups: Groups = {i: [i] for i in [*dominant, *targets]}
    for i in rest:
        if i not in targets and targets:
            groups[max(targets, key=lambda t: (cosine(row.x[i], row.x[t]), -t))].append(i)
    return dominant + targets, groups


def slow_divprune(row: Row, k: int) -> Answer:
    picked: list[int] = []
    tokens = list(range(len(row.x)))
    while len(picked) < k:
        scores = []
        for i in tokens:
            others = picked or [j for j in tokens if j != i]
            gaps = [1 - cosine(row.x[i], row.x[j]) for j in others]
            scores.append(min(gaps, default=0.0))
        picked += best(scores, 1, [i for i in tokens if i not in picked])
    return picked, None


def slow_cdpruner(row: Row, k: int, relevance: str, relevance_weight: float) -> Answer:
    values = {
        "question": [float(np.mean([cosine(x, w) for w in row.words])) for x in row.x],
        "attention_row": row.attention,
        "cls_row": row.cls,
    }[relevance]
    tokens = list(range(len(row.x)))
    low, high = min(values, default=0.0), max(values, default=0.0)
    quality = [
        ((v - low) / (high - low) if high > low else 1.0) ** relevance_weight for v in values
    ]
    kernel = np.array(
        [[quality[i] * cosine(row.x[i], row.x[j]) * quality[j] for j in tokens] for i in tokens]
    ).reshape(len(tokens), len(tokens))
    picked: list[int] = []
    while len(picked) < k:
        left = [i for i in tokens if i not in picked]
        volumes = {
            i: float(np.linalg.det(kernel[np.ix_([*picked, i], [*picked, i])])) for i in left
        }
        picked.append(max(left, key=lambda i: (volumes[i], -i)))
    return picked, None


def slow_sparsevlm(row: Row, k: int, scale: float) -> Answer:
    cosines = np.array([[cosine(w, x) for x in row.x] for w in row.words])
    weights = np.exp(scale * cosines)
    affinity = (weights / weights.sum(0)).mean(1)
    raters = [m for m in range(len(row.words)) if affinity[m] >= affinity.mean() - 1e-12]
    return best(row.rows[raters].mean(0).tolist(), k), None


def slow_dart(row: Row, k: int, pivots: int, word_pivots: int) -> Answer:
    norms = [float(np.abs(x).sum()) for x in row.x]
    picked = best(norms, min(k, pivots))
    words = best([float(np.abs(w).sum()) for w in row.words], word_pivots)
    centres = [row.x[i] for i in picked] + [row.words[i] for i in words]
    left = k - len(picked)
    for number, centre in enumerate(centres, start=1):
        share = number * left // len(centres) - (number - 1) * left // len(centres)
        unlike = [-cosine(x, centre) for x in row.x]
        picked += best(unlike, share, [i for i in range(len(row.x)) if i not in picked])
    return picked, None


def slow_hiprune(row: Row, k: int, object_ratio: float) -> Answer:
    anchors = best(row.objects, math.floor(k * object_ratio / 5 + 0.5))
    near = [
        i
        for i, place in enumerate(row.places)
        if i not in anchors and any(math.dist(place, row.places[a]) == 1 for a in anchors)
    ]
    picked = anchors + best(row.objects, k - len(anchors), near)
    rest = [i for i in range(len(row.x)) if i not in picked]
    return picked + best(row.cls, k - len(picked), rest), None


def slow_vispruner(row: Row, k: int, important_ratio: float) -> Answer:
    important = best(row.cls, math.floor(k * important_ratio))
    rest = best(row.cls, len(row.x), [i for i in range(len(row.x)) if i not in important])
    target = k - len(important)
    while len(rest) > target:
        side_a, side_b = rest[::2], rest[1::2]
        nearest = {a: max((cosine(row.x[a], row.x[b]) for b in side_b), default=0) for a in side_a}
        dropped = sorted(side_a, key=lambda a: (-nearest[a], side_a.index(a)))
        dropped = dropped[: min(8, len(rest) - target)]
        rest = [i for i in rest if i not in dropped]
    return important + rest, None


def slow_holov(row: Row, k: int, crops: int, variance_weight: float) -> Answer:
    count, queue = len(row.x), []
    for crop in range(crops):
        tokens = [i for i in range(count) if i * crops // count == crop]
        variance = []
        for i in tokens:
            cosines = [0.0 if j == i else cosine(row.x[i], row.x[j]) for j in tokens]
            others = max(len(tokens) - 1, 1)
            mean = sum(cosines) / others
            variance.append(sum((c - mean) ** 2 for c in cosines) / others)
        attention = [row.cls[i] for i in tokens]
        scale = sum(attention) / sum(variance) if sum(variance) > 0 else 0.0
        scores = [a + variance_weight * scale * v for a, v in zip(attention, variance, strict=True)]
        share = sum(scores) / max(len(scores), 1)
        for place, at in enumerate(best(scores, len(tokens)), start=1):
            queue.append((-share / place, tokens[at]))
    return [token for _, token in sorted(queue)[:k]], None


def slow_evs(row: Row, k: int) -> Answer:
    size = math.prod(row.grid) // row.frames
    at = {position: i for i, position in enumerate(row.positions)}
    first = [i for i, position in enumerate(row.positions) if position - size not in at]
    changed = {
        i: 1 - cosine(row.x[i], row.x[at[position - size]])
        for i, position in enumerate(row.positions)
        if i not in first
    }
    kept = spaced(first, min(k, len(first)))
    rest = sorted(changed, key=lambda i: (-changed[i], i))
    return (kept + rest)[:k], None


def slow_vidcom2(row: Row, k: int, temperature: float) -> Answer:
    size = math.prod(row.grid) // row.frames
    variance = [np.float32(np.var(channel)) for channel in row.x.T]
    steady = sorted(range(len(variance)), key=lambda c: (variance[c], c))[: len(variance) // 2]
    units = [x[steady] / math.sqrt(x[steady] @ x[steady]) for x in row.x]

    def likeness(x: np.ndarray, centre: np.ndarray) -> float:
        square = sum((a - b) ** 2 for a, b in zip(x, centre, strict=True))
        return sum(math.exp(-square / (2 * 2**power)) for power in range(-3, 2))

    frames: dict[int, list[int]] = {}
    for i, position in enumerate(row.positions):
        frames.setdefault(position // size, []).append(i)
    clip = np.mean(units, axis=0)
    unusual = {
        frame: -np.mean([likeness(units[i], clip) for i in tokens])
        for frame, tokens in frames.items()
    }
    highest = max(unusual.values())
    powers = {frame: math.exp((u - highest) / temperature) for frame, u in unusual.items()}
    queue = []
    for frame, tokens in frames.items():
        weight = 1 + powers[frame] / sum(powers.values()) - 1 / len(frames)
        centre = np.mean([units[i] for i in tokens], axis=0)
        usual = {i: likeness(units[i], clip) + likeness(units[i], centre) for i in tokens}
        ordered = sorted(tokens, key=lambda i: (np.float32(usual[i]), i))
        for place, token in enumerate(ordered, start=1):
            queue.append((-np.float32(weight * len(tokens) / place), token))
    return [token for _, token in sorted(queue)[:k]], None


def slow_mmtok(
    row: Row, k: int, vision_weight: float, text_temperature: float, vision_temperature: float
) -> Answer:
    def shares(centre: np.ndarray, temperature: float, tokens: np.ndarray) -> np.ndarray:
        weights = np.exp([cosine(centre, x) / temperature for x in tokens])
        return weights / weights.sum()

    same_space = row.x if row.projected is None else row.projected
    text = [shares(w, text_temperature, same_space) / len(row.words) for w in row.words]
    vision = [shares(x, vision_temperature, row.x) / len(row.x) for x in row.x]

    def coverage(picked: list[int]) -> float:
        covered = sum(max(p[j] for j in picked) for p in text)
        return covered + vision_weight * sum(max(q[j] for j in picked) for q in vision)

    picked: list[int] = []
    while len(picked) < k:
        left = [i for i in range(len(row.x)) if i not in picked]
        picked.append(max(left, key=lambda i: (coverage([*picked, i]), -i)))
    return picked, None


def slow_mmr(row: Row, k: int, balance: float, words: str) -> Answer:
    same_space = row.x if row.projected is None else row.projected
    cosines = [[cosine(x, w) for w in row.words] for x in same_space]
    values = [float(np.mean(c)) if words == "mean" else max(c) for c in cosines]
    low, high = min(values), max(values)
    relevance = [(v - low) / (high - low) if high > low else 1.0 for v in values]
    picked = best(relevance, min(k, 1))
    while len(picked) < k:
        left = [i for i in range(len(row.x)) if i not in picked]
        scores = [
            balance * r - (1 - balance) * max(cosine(x, row.x[j]) for j in picked)
            for r, x in zip(relevance, row.x, strict=True)
        ]
        picked += best(scores, 1, left)
    return picked, None


def slow_oracle(row: Row, k: int, fill: str) -> Answer:
    tokens = list(range(len(row.x)))
    deciding = [i for i in tokens if row.scene[i]]
    if len(deciding) >= k:
        return spaced(deciding, k), None
    rest = [i for i in tokens if i not in deciding]
    if fill == "near" and deciding:
        nearness = [-min(math.dist(row.places[i], row.places[j]) for j in deciding) for i in tokens]
        return deciding + best(nearness, k - len(deciding), rest), None
    return deciding + slow_spread(row, k - len(deciding), rest), None


MMTOK = {"text_temperature": 0.2, "vision_temperature": 0.2}  # sharper: gains that are all 0
CASES: list[tuple[str, Callable[..., Answer], dict]] = [
    ("random", slow_random, {"seed": 0}),
    ("random", slow_random, {"seed": 12345678901}),
    ("uniform", slow_uniform, {}),
    ("uniform", slow_uniform, {"phase": "first"}),
    ("uniform", slow_uniform, {"phase": "last"}),
    ("pool", slow_pool, {}),
    ("tome", slow_tome, {"rounds": 1}),
    ("tome", slow_tome, {"rounds": 4}),
    ("fastv", slow_fastv, {}),
    ("pyramiddrop", slow_fastv, {}),
    ("visionzip", slow_visionzip, {"contextual_ratio": 0.15625}),
    ("visionzip", slow_visionzip, {"contextual_ratio": 0.5}),
    ("divprune", slow_divprune, {}),
    ("cdpruner", slow_cdpruner, {"relevance": "question", "relevance_weight": 1.0}),
    ("cdpruner", slow_cdpruner, {"relevance": "attention_row", "relevance_weight": 0.5}),
    ("cdpruner", slow_cdpruner, {"relevance": "cls_row", "relevance_weight": 2.0}),
    ("sparsevlm", slow_sparsevlm, {"scale": 10.0}),
    ("sparsevlm", slow_sparsevlm, {"scale": 1.0}),
    ("sparsevlm", slow_sparsevlm, {"scale": 0.0}),
    ("dart", slow_dart, {"pivots": 4, "word_pivots": 4}),
    ("dart", slow_dart, {"pivots": 2, "word_pivots": 1}),
    ("dart", slow_dart, {"pivots": 3, "word_pivots": 0}),
    ("hiprune", slow_hiprune, {"object_ratio": 0.1}),
    ("hiprune", slow_hiprune, {"object_ratio": 1.0}),
    ("vispruner", slow_vispruner, {"important_ratio": 0.5}),
    ("vispruner", slow_vispruner, {"important_ratio": 0.1}),
    ("holov", slow_holov, {"crops": 16, "variance_weight": 0.09}),
    ("holov", slow_holov, {"crops": 3, "variance_weight": 3.0}),
    ("evs", slow_evs, {}),
    ("vidcom2", slow_vidcom2, {"temperature": 0.01}),
    ("vidcom2", slow_vidcom2, {"temperature": 1.0}),
    ("mmtok", slow_mmtok, {"vision_weight": 0.5, **MMTOK}),
    ("mmtok", slow_mmtok, {"vision_weight": 2.0, **MMTOK}),
    ("mmr", slow_mmr, {"balance": 0.5, "words": "mean"}),
    ("mmr", slow_mmr, {"balance": 0.2, "words": "best"}),
    ("oracle", slow_oracle, {"fill": "near"}),
    ("oracle", slow_oracle, {"fill": "uniform"}),
]


def test_every_method_has_a_slow_form():
    elsewhere = {"none", "prumerge"}  # keeps all; weights are compared as means, below
    assert {name for name, *_ in CASES} | elsewhere == set(METHODS)


@pytest.mark.parametrize(("name", "slow", "options"), CASES)
@settings(quick, max_examples=25)
@given(
    seed=st.integers(0, 2**20),
    num_tokens=st.integers(1, 14),
    share=st.sampled_from([0.3, 0.8, 1.0]),
    sizes=st.booleans(),
    frames=st.sampled_from([0, 3]),
    budgets=st.lists(st.integers(0, 15), min_size=2, max_size=2),
)
def test_every_method_equals_its_loops(
    name: str,
    slow: Callable[..., Answer],
    options: dict,
    seed: int,
    num_tokens: int,
    share: float,
    sizes: bool,
    frames: int,
    budgets: list[int],
):
    context = make_context(seed, 2, num_tokens, share=share, sizes=sizes, frames=frames)
    selection = build(name, **options).select(context, torch.tensor(budgets))
    for i, budget in enumerate(budgets):
        row, slots = row_of(context, i), context.mask[i].nonzero().squeeze(-1).tolist()
        picked, groups = slow(row, min(budget, len(slots)), **options) if slots else ([], {})
        found = [j for j in selection.indices[i].tolist() if j >= 0]
        assert found == [slots[j] for j in picked]
        assert (groups is None or not slots) == (selection.assignment is None or not slots)
        for column, token in enumerate(picked):
            if groups is None or selection.assignment is None:
                break
            weights = selection.assignment[i, column]
            members = sorted(slots[j] for j in groups[token])
            assert weights.nonzero().squeeze(-1).tolist() == members
            expected = sum(row.sizes[j] for j in groups[token])
            assert float(selection.sizes[i, column]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "slow", "options"), [case for case in CASES if case[0] in ("mmtok", "mmr")]
)
def test_before_the_language_model_words_are_compared_with_projected_tokens(
    name: str, slow: Callable[..., Answer], options: dict
):
    context = make_context(3, 2, 14)
    shape = (*context.mask.shape, 5)
    context = ReducerContext(
        **{
            **vars(context),
            "projected": torch.randn(shape).masked_fill(~context.mask[..., None], torch.nan),
            "question": torch.randn(2, 4, 5),
        }
    )
    selection = build(name, **options).select(context, torch.tensor([5, 3]))
    for i, budget in enumerate((5, 3)):
        slots = context.mask[i].nonzero().squeeze(-1).tolist()
        picked, _ = slow(row_of(context, i), budget, **options)
        assert selection.indices[i, :budget].tolist() == [slots[j] for j in picked]


@pytest.mark.parametrize("budget", [1, 9, 20, 39])
def test_vispruner_in_many_rounds(budget: int):
    context = make_context(5, 1, 40, share=1.0)
    picked, _ = slow_vispruner(row_of(context, 0), budget, 0.5)
    found = build("vispruner").select(context, torch.tensor([budget])).indices
    assert found.tolist() == [picked]


@pytest.mark.parametrize("repeated", [False, True])
def test_mmtok_with_more_tokens_than_it_compares_at_once(repeated: bool):
    context = make_context(7, 1, 60, share=1.0)
    if repeated:  # equal gains
        context.features[:, 20:40] = context.features[:, :20]
    picked, _ = slow_mmtok(row_of(context, 0), 25, **MMTOK, vision_weight=0.5)
    found = build("mmtok", **MMTOK).select(context, torch.tensor([25])).indices
    assert found.tolist() == [picked]


@pytest.mark.parametrize(("uniform_ratio", "neighbours"), [(0.0, 3), (0.5, 1), (0.25, 32)])
@pytest.mark.parametrize("sizes", [False, True])
def test_prumerge_equals_its_loops(uniform_ratio: float, neighbours: int, sizes: bool):
    context = make_context(11, 3, 14, sizes=sizes)
    budgets = [4, 7, 14]
    method = build("prumerge", uniform_ratio=uniform_ratio, neighbours=neighbours)
    selection = method.select(context, torch.tensor(budgets))
    folded = selection.fold(context.features).numpy()
    for i, budget in enumerate(budgets):
        row, slots = row_of(context, i), context.mask[i].nonzero().squeeze(-1).tolist()
        k = min(budget, len(slots))
        even = math.floor(k * uniform_ratio + 0.5)
        kept = best(row.cls, k - even)
        kept += spaced([j for j in range(len(slots)) if j not in kept], even)
        assert [j for j in selection.indices[i].tolist() if j >= 0] == [slots[j] for j in kept]
        for column, token in enumerate(kept):
            others = [j for j in range(len(slots)) if j != token]
            near = best([cosine(x, row.x[token]) for x in row.x], neighbours, others)
            near = near if k < len(slots) else []
            weights = [row.sizes[token]] + [row.sizes[j] * row.cls[j] for j in near]
            mean = np.average(row.x[[token, *near]], axis=0, weights=weights)
            np.testing.assert_allclose(folded[i, column], mean, rtol=1e-4, atol=1e-5)
            assert float(selection.sizes[i, column]) == pytest.approx(sum(weights), rel=1e-5)


@pytest.mark.parametrize(("side", "budget"), [(2, 144), (3, 64), (4, 36), (1, 576)])
def test_pooling_of_equal_windows_is_average_pooling(side: int, budget: int):
    context = full_context(24, 24, num_images=2)
    selection = build("pool").select(context, torch.tensor([budget, budget]))
    image = context.features.view(2, 24, 24, 16).permute(0, 3, 1, 2)
    expected = torch.nn.functional.avg_pool2d(image, side).flatten(2).transpose(1, 2)
    torch.testing.assert_close(selection.fold(context.features), expected)
    assert selection.sizes.eq(side * side).all()


@pytest.mark.parametrize("budget", [1, 2, 5, 63, 100, 192, 288, 575])
def test_every_budget_of_a_grid_is_reached_and_spread(budget: int):
    context = full_context(24, 24)
    kept = build("uniform").select(context, torch.tensor([budget]))
    assert kept.num_kept.tolist() == [budget]
    pooled = build("pool").select(context, torch.tensor([budget]))
    assert pooled.indices.equal(kept.indices)
    # No window is more than about twice as large as the smallest in each direction.
    largest = math.ceil(math.sqrt(576 / budget) + 1) ** 2
    assert pooled.sizes.max() <= largest
    assert pooled.sizes.sum() == 576


def test_phase_of_the_grid():
    """3 x 3 windows of 24 x 24: the corner, the middle, the opposite corner of each."""
    context = full_context(24, 24)
    for phase, offset in (("first", 0), ("middle", 1), ("last", 2)):
        kept = build("uniform", phase=phase).select(context, torch.tensor([64])).indices[0]
        line = range(offset, 24, 3)
        assert kept.tolist() == [24 * row + column for row in line for column in line]


def test_oracle_thins_over_all_deciding_objects():
    context = full_context(4, 6)
    scene = torch.zeros(1, 24, dtype=torch.bool)
    scene[0, :4] = scene[0, 16:20] = True  # two objects
    known = ReducerContext(**{**vars(context), "scene": scene})
    assert build("oracle").select(known, torch.tensor([4])).indices.tolist() == [[0, 2, 16, 18]]
    near = build("oracle").select(known, torch.tensor([9])).indices[0].tolist()
    assert near[:8] == [0, 1, 2, 3, 16, 17, 18, 19]
    assert near[8] == 4  # the first of those one step away
