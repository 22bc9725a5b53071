"""Questions, captions and lexicons of scenes, checked with `scene_oracle`."""

from collections import Counter, defaultdict
from functools import cache

import pytest
import torch
from scene_oracle import answer, fits, objects, read_dense, read_phrase, readings

from eligo.errors import InputError
from eligo.scenes import (
    SceneConfig,
    SceneGraph,
    could_mean,
    draw_captions,
    draw_dense_captions,
    draw_lexicons,
    draw_questions,
    draw_scenes,
    is_true,
    teaches,
    words,
)
from eligo.scenes.captions import DENSE_LENGTH, DENSE_RELATIONS, SPARSE_LENGTH
from eligo.scenes.graph import Split
from eligo.scenes.phrases import VOCABULARY
from eligo.scenes.question_kinds import CHANCE, FAMILIES, FAMILY_OF, KINDS, Questions

CONFIG = SceneConfig(camouflaged=2)
SCENES = 1000  # per split: 2,000 in total


@cache
def world(split: Split) -> SceneGraph:
    return draw_scenes(CONFIG, split, range(SCENES))


@cache
def plain(split: Split) -> list:
    return [objects(world(split), scene) for scene in range(SCENES)]


def slots(mask: torch.Tensor) -> set[int]:
    return set(mask.nonzero()[:, 0].tolist())


def no_pair_is_held_out(text: str) -> bool:
    """No phrase of a sentence names a colour and a shape that only the test split has."""
    pairs = {(words.COLOURS[colour], words.SHAPES[shape]) for colour, shape in words.HELD_OUT}
    for noun in text.replace("?", "").replace(".", "").split(" the "):
        named = read_phrase(noun)
        if (named.get("colour"), named.get("shape")) in pairs:
            return False
    return True


@pytest.mark.parametrize("split", ["train", "test"])
def test_answers_match_the_oracle(split: Split) -> None:
    questions = draw_questions(world(split), 4)
    counts = Counter()
    for scene, place in questions.valid.nonzero().tolist():
        text = questions.text(scene, place)
        expected, deciding = answer(text, plain(split)[scene])
        kind = KINDS[int(questions.kind[scene, place])]
        assert questions.answer_text(scene, place) == expected, text
        assert expected in kind.answers
        assert slots(questions.deciding[scene, place]) == deciding, text
        if split == "train" and "more" not in text:
            assert no_pair_is_held_out(text), text
        counts[kind.name] += 1
    assert set(counts) == {kind.name for kind in KINDS}
    assert questions.valid.float().mean() > 0.9
    assert (questions.words[~questions.valid] == -1).all()


def family_accuracy(guess, questions: Questions) -> dict[str, tuple[float, float]]:
    """Accuracy and chance per family."""
    right, chance = defaultdict(list), defaultdict(list)
    rows = questions.words.flatten(0, 1).tolist()
    kinds, truths = questions.kind.flatten().tolist(), questions.answer.flatten().tolist()
    for row, kind, truth in zip(rows, kinds, truths, strict=True):
        if truth >= 0:
            family = FAMILIES[FAMILY_OF[kind]]
            right[family].append(guess(tuple(row), kind) == truth)
            chance[family].append(CHANCE[kind])
    return {
        family: (sum(right[family]) / len(right[family]), sum(chance[family]) / len(right[family]))
        for family in right
    }


def test_blind_accuracy_is_at_chance() -> None:
    """The most frequent training answer to the same text, else to the same kind of question."""
    config = SceneConfig()
    train = draw_questions(draw_scenes(config, "train", range(2500)), 16)
    counts: dict[object, Counter] = defaultdict(Counter)
    for row, kind, truth in zip(
        train.words.flatten(0, 1).tolist(),
        train.kind.flatten().tolist(),
        train.answer.flatten().tolist(),
        strict=True,
    ):
        if truth >= 0:
            counts[tuple(row)][truth] += 1
            counts[kind][truth] += 1

    def guess(row: tuple[int, ...], kind: int) -> int:
        return (counts.get(row) or counts[kind]).most_common(1)[0][0]

    tested = draw_questions(draw_scenes(config, "validation", range(800)), 16)
    result = family_accuracy(guess, tested)
    assert set(result) == set(FAMILIES)
    for family, (blind, chance) in result.items():
        assert abs(blind - chance) <= 0.05, f"{family}: blind {blind:.3f}, chance {chance:.3f}"


def test_form_of_a_comparison_does_not_reveal_the_answer() -> None:
    """The most frequent answer given which attributes the phrases name, and which they share."""
    questions = draw_questions(
        draw_scenes(SceneConfig(), "train", range(1500)), 16, ("comparison",)
    )
    phrases = torch.stack([questions.first, questions.second], -1)[
        questions.valid
    ]  # (questions, 4, 2)
    shared = (phrases[..., 0] == phrases[..., 1]) & (phrases >= 0).all(-1)
    form = torch.cat(
        [questions.kind[questions.valid][:, None], (phrases >= 0).flatten(1), shared], 1
    )
    rows = [tuple(row) for row in form.tolist()]
    truths = questions.answer[questions.valid].tolist()
    half = len(rows) // 2
    counts: dict[tuple, Counter] = defaultdict(Counter)
    for row, truth in zip(rows[:half], truths[:half], strict=True):
        counts[row][truth] += 1
    right: dict[int, list] = defaultdict(list)
    for row, truth in zip(rows[half:], truths[half:], strict=True):
        right[row[0]].append(counts[row].most_common(1)[0][0] == truth if row in counts else 0.5)
    assert len(right) == 6
    for kind, hits in right.items():
        blind = sum(hits) / len(hits)
        assert blind <= 0.56, f"{KINDS[kind].name}: blind {blind:.3f} of {len(hits)}"


def test_families_follow_their_weights() -> None:
    graph = world("train")[:200]
    families = ("count", "relation")
    questions = draw_questions(graph, 8, families, weights=(3, 1))
    family = torch.tensor(FAMILY_OF)[questions.kind]
    assert set(family.unique().tolist()) == {FAMILIES.index(name) for name in families}
    share = (family == FAMILIES.index("count")).float().mean()
    assert abs(share - 0.75) < 0.05
    with pytest.raises(InputError, match="question families are lookup"):
        draw_questions(graph, 1, ("riddle",))
    with pytest.raises(InputError, match="question families are lookup"):
        draw_questions(graph, 1, ())
    with pytest.raises(InputError, match="2 families need as many weights"):
        draw_questions(graph, 1, families, weights=(1,))


@pytest.mark.parametrize("split", ["train", "test"])
def test_sparse_captions_are_true(split: Split) -> None:
    captions = draw_captions(world(split), 2)
    for scene in range(SCENES):
        for place in range(2):
            text = captions.text(scene, place)
            true = readings(text, plain(split)[scene])
            assert true, text
            assert slots(captions.deciding[scene, place]) == set().union(*true), text
            assert len(text.replace(".", " .").split()) <= SPARSE_LENGTH
    share = torch.bincount(captions.relation.flatten(), minlength=6) / captions.relation.numel()
    expected = torch.tensor([1 / 8] * 4 + [1 / 4] * 2)
    assert (share - expected).abs().max() < 0.05
    assert captions.words.shape[-1] == SPARSE_LENGTH


def test_caption_truth_matches_the_oracle() -> None:
    graph = world("test")[:90]
    captions = draw_captions(world("train")[:60], 2)
    true = is_true(captions, graph)
    assert true.shape == (60, 2, 90)
    for scene in range(60):
        for place in range(2):
            text = captions.text(scene, place)
            expected = [bool(readings(text, plain("test")[image])) for image in range(90)]
            assert true[scene, place].tolist() == expected, text


def test_caption_truth_does_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = world("test")[:40]
    captions = draw_captions(graph, 3)
    whole = is_true(captions, graph)
    assert whole.diagonal(dim1=0, dim2=2).all()
    monkeypatch.setattr("eligo.scenes.captions._CHUNK", 7 * 40 * 64)
    assert torch.equal(is_true(captions, graph), whole)
    assert is_true(captions, graph[:0]).shape == (40, 3, 0)


@pytest.mark.parametrize("split", ["train", "test"])
def test_dense_captions_list_every_object(split: Split) -> None:
    captions = draw_dense_captions(world(split))
    ordinals = ("first", "second", "third", "fourth")
    for scene, things in enumerate(plain(split)):
        text = captions.text(scene)
        listed, rest = read_dense(text)
        places = sorted((thing.y // 1024, thing.x // 1024, thing.look) for thing in things)
        assert listed == [(*look, ordinals[y], ordinals[x]) for y, x, look in places], text
        assert len(rest) == min(DENSE_RELATIONS, len(things) * (len(things) - 1) // 2)
        assert all(readings(sentence, things) for sentence in rest), text
        pairs = [frozenset(pair) for pair in captions.pairs[scene].tolist() if pair[0] >= 0]
        assert len(set(pairs)) == len(pairs) == len(rest)
        assert slots(captions.deciding[scene]) == {thing.slot for thing in things}
        assert [slot for slot in captions.order[scene].tolist() if slot >= 0] == [
            thing.slot for thing in sorted(things, key=lambda t: (t.y // 1024, t.x // 1024))
        ]
    assert captions.words.shape[1] == DENSE_LENGTH


def test_lexicons_are_unique_and_their_names_distinct() -> None:
    lexicons = [draw_lexicons(3, split, range(300)) for split in ("train", "validation", "test")]
    names = torch.cat([lexicon.names for lexicon in lexicons])
    assert len(names.unique(dim=0)) == 900
    sizes = [len(values) for values in words.VALUES]
    for table in names[::9]:
        used = [table[i, :size].tolist() for i, size in enumerate(sizes)]
        flat = [index for row in used for index in row]
        assert len(set(flat)) == sum(sizes)
        assert all(VOCABULARY[index] in words.NONCE for index in flat)
        assert all((table[i, size:] == -1).all() for i, size in enumerate(sizes))
    alone = draw_lexicons(3, "train", torch.tensor([7]))
    assert torch.equal(alone.names[0], lexicons[0].names[7])
    assert lexicons[0].word(7, words.COLOUR, 2) == VOCABULARY[int(alone.names[0, 1, 2])]
    common = torch.bincount(names.flatten().clamp(min=0))[1:]
    assert len(common[common > 0]) == len(words.NONCE)


def test_questions_in_nonce_words_keep_their_meaning() -> None:
    graph = world("train")[:150]
    lexicon = draw_lexicons(0, "train", graph.indices)
    plainly = draw_questions(graph, 4)
    nonce = draw_questions(graph, 4, names=lexicon.names[:, None])
    assert torch.equal(plainly.answer, nonce.answer)
    for scene, place in plainly.valid.nonzero().tolist():
        back = {
            lexicon.word(scene, attribute, value): name
            for attribute, names in enumerate(words.VALUES)
            for value, name in enumerate(names)
        }
        text = nonce.text(scene, place)
        spoken = text.removesuffix("?").split()
        assert not {"red", "ball", "balls", "large", "plain"} & set(spoken), text
        plural = dict(zip(words.SHAPES, words.PLURALS, strict=True))
        meant = [back.get(word, word) for word in spoken]
        if spoken[:2] in (["how", "many"], ["are", "there"]):
            meant = [plural.get(word, word) for word in meant]
        assert " ".join(meant) + "?" == plainly.text(scene, place)


def test_unambiguous_examples_teach_a_word() -> None:
    graph = world("train")[:200]
    taught = teaches(graph)
    share = taught.sum((0, 1)) / graph.askable.sum()
    assert ((share > 0.2) & (share < 0.95)).all()  # some objects do, some do not
    for scene, things in enumerate(plain("train")[:200]):
        for thing in things:
            for index, attribute in enumerate(words.ATTRIBUTES):
                pointer = thing.colour if attribute == "shape" else thing.shape
                meanings = {getattr(other, attribute) for other in things if fits(other, pointer)}
                assert bool(taught[scene, thing.slot, index]) == (len(meanings) == 1)
    assert not taught[~graph.askable].any()
    phrase = torch.tensor([-1, 0, -1, -1]).expand(200, 1, -1)  # what shape is the red thing?
    meant = could_mean(graph, phrase, torch.full((200, 1), words.SHAPE))[:, 0]
    for scene, things in enumerate(plain("train")[:200]):
        shapes = {words.SHAPES.index(thing.shape) for thing in things if thing.colour == "red"}
        assert slots(meant[scene]) == shapes
