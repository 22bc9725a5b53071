"""Selectors in LangChain and DSPy, with the installed packages."""

import asyncio
import base64
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from shot_hosts import picture

from eligo.errors import InputError
from eligo.images import open_image
from eligo.shots import KNN, embed, open_encoder, predict
from eligo.shots.data.items import Item
from eligo.shots.inference.chooser import ExampleChooser

WORDS = ["red ball", "blue cube", "green cone", "red cone", "blue ball", "green cube"]
EXAMPLES = [{"question": f"where is the {word}?", "answer": f"at place {n}", "source": n}
            for n, word in enumerate(WORDS)]  # fmt: skip
QUESTION = "where is the green ball?"


def expected(selector: str, folder: Path, count: int) -> list[int]:
    """Numbers of the examples that `predict` chooses, in the order of the prompt."""
    items = [Item(str(n), e["question"], (e["answer"],)) for n, e in enumerate(EXAMPLES)]
    embed(folder, items, None, open_encoder("words"), name="words")
    found = predict(QUESTION, selector=selector, shots=folder, num_shots=count)
    return [int(row["id"]) for row in reversed(found.chosen)]


def data_url(path: str) -> str:
    return "data:image/png;base64," + base64.b64encode(Path(path).read_bytes()).decode()


def test_langchain_prompts_have_the_examples_of_predict(tmp_path: Path):
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    from langchain_core.example_selectors.base import BaseExampleSelector
    from langchain_core.prompts import FewShotPromptTemplate, PromptTemplate

    from eligo.shots import LangChainSelector

    for name in ("mmr", "knn", "bm25"):
        selector = LangChainSelector(name, EXAMPLES, num_shots=3)
        assert isinstance(selector, BaseExampleSelector)
        numbers = expected(name, tmp_path / name, 3)
        found = selector.select_examples({"question": QUESTION, "other": "x"})
        assert found == [EXAMPLES[n] for n in numbers]
        assert asyncio.run(selector.aselect_examples({"question": QUESTION})) == found
        prompt = FewShotPromptTemplate(
            example_selector=selector, suffix="Q: {question}", input_variables=["question"],
            example_prompt=PromptTemplate.from_template("{question} {answer} {source}"),
        )  # fmt: skip
        lines = [f"{EXAMPLES[n]['question']} at place {n} {n}" for n in numbers]
        assert prompt.format(question=QUESTION).split("\n\n") == [*lines, f"Q: {QUESTION}"]


def test_langchain_examples_can_be_added_and_named_otherwise():
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    from eligo.shots import LangChainSelector

    examples = [{"input": e["question"], "output": e["answer"]} for e in EXAMPLES]
    keys = {"question_key": "input", "answer_key": "output"}
    selector = LangChainSelector("knn", examples, num_shots=1, **keys)
    new = {"input": QUESTION, "output": "nowhere"}
    assert selector.select_examples({"input": QUESTION}) != [new]
    assert selector.add_example(new) == "6"
    assert selector.select_examples({"input": QUESTION}) == [new]
    assert asyncio.run(selector.aadd_example({"input": "how?", "output": "so"})) == "7"
    assert selector.select_examples({"input": "how? so"})[0]["output"] == "so"
    with pytest.raises(InputError, match="input: got inputs question; expected the question"):
        selector.select_examples({"question": QUESTION})
    with pytest.raises(InputError, match="example 0: answer: got NoneType, expected text"):
        LangChainSelector("knn", EXAMPLES, answer_key="no")
    with pytest.raises(InputError, match="examples: got none"):
        LangChainSelector("knn", [])


def test_langchain_with_the_examples_of_a_selector(tmp_path: Path):
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    from eligo.shots import LangChainSelector

    numbers = expected("knn", tmp_path / "embedded", 2)
    from eligo.shots.inference.embed import open_embedded

    pool, _, _ = open_embedded(tmp_path / "embedded")
    saved = KNN().with_pool(pool)
    selector = LangChainSelector(saved, num_shots=2, encoder="words")
    found = selector.select_examples({"question": QUESTION})
    assert [row["answer"] for row in found] == [f"at place {n}" for n in numbers]
    with pytest.raises(InputError, match=r"encoder: .* names none"):
        LangChainSelector(saved, num_shots=2)


def test_dspy_choice_and_program(tmp_path: Path):
    dspy = pytest.importorskip("dspy", reason="dspy is not installed")
    from dspy.utils import DummyLM

    from eligo.shots import DspyFewShot, DspySelector

    trainset = [
        dspy.Example(question=e["question"], answer=e["answer"]).with_inputs("question")
        for e in EXAMPLES
    ]
    numbers = expected("mmr", tmp_path / "a", 2)
    choose = DspySelector("mmr", trainset, k=2)
    assert choose(question=QUESTION) == [trainset[n] for n in numbers]
    plain = dspy.KNNFewShot(k=1, trainset=trainset, vectorizer=dspy.Embedder(
        lambda texts: np.ones((len(texts), 2), np.float32)
    ), max_bootstrapped_demos=0)  # fmt: skip
    plain.KNN = choose
    for optimizer in (DspyFewShot(choose, max_bootstrapped_demos=0), plain):
        assert isinstance(optimizer, dspy.KNNFewShot)
        program = optimizer.compile(dspy.Predict("question -> answer"))
        model = DummyLM([{"answer": "here"}])
        with dspy.context(lm=model):
            assert program(question=QUESTION).answer == "here"
        sent = str(model.history[-1]["messages"])
        places = [sent.index(EXAMPLES[n]["answer"]) for n in numbers]
        assert all(place < sent.index(QUESTION) for place in places)
        assert sum(example["answer"] in sent for example in EXAMPLES) == 2


def test_dspy_inputs_of_several_fields():
    dspy = pytest.importorskip("dspy", reason="dspy is not installed")
    from eligo.shots import DspySelector

    trainset = [
        dspy.Example(context=f"about {word}", question=f"where {n}?", answer="x", why="y")
        .with_inputs("context", "question")
        for n, word in enumerate(WORDS)
    ]  # fmt: skip
    choose = DspySelector("knn", trainset, k=1)
    assert choose(context="about green cone", question="where 9?") == [trainset[2]]
    assert choose.chooser.payload("2")["answer"] == "x y"
    with pytest.raises(InputError, match="example 0 names no inputs"):
        DspySelector("knn", [dspy.Example(question="a", answer="b")])
    with pytest.raises(InputError, match=r"got a dict at 0, expected dspy\.Example"):
        DspySelector("knn", [{"question": "a"}])


class Pixels:
    """An encoder to whom all texts are alike, and images are their pixels."""

    def texts(self, texts) -> torch.Tensor:
        return torch.ones(len(texts), 48)

    def images(self, paths) -> torch.Tensor:
        small = [np.array(open_image(path).resize((4, 4))) for path in paths]
        return torch.from_numpy(np.stack(small)).flatten(1).float() - 128


def test_images_are_compared(tmp_path: Path):
    """The same words everywhere: only the image decides."""
    paths = [picture(tmp_path / f"{n}.png", n) for n in range(4)]
    kinds = [paths[0], Image.open(paths[1]), np.asarray(Image.open(paths[2])), data_url(paths[3])]
    examples = [{"question": "what is it?", "answer": "this", "image": image} for image in kinds]
    chooser = ExampleChooser("knn", examples, num_shots=1, encoder=Pixels())
    for number, path in enumerate(paths):
        assert chooser.choose("what is it?", data_url(path)) == [str(number)]
        assert chooser.choose("what is it?", Image.open(path)) == [str(number)]
    assert chooser.choose("what is it?", paths[0]) != ["0"]  # of the same image file
    with pytest.raises(InputError, match="image: got no image, but the examples have"):
        chooser.choose("what is it?")
    for wrong, message in (
        ("https://x.org/a.png", "download it"),
        ("data:image/png;base64,AAAA", "holds no image"),
        ("data:image/png;base64,?", "holds no image"),
        (tmp_path / "no.png", "there is no such image"),
    ):
        with pytest.raises(InputError, match=message):
            chooser.choose("what is it?", wrong)
    with pytest.raises(InputError, match="have no image; give one to all or to none"):
        ExampleChooser("knn", [*examples, EXAMPLES[0]], encoder=Pixels())


def test_images_in_langchain_and_dspy(tmp_path: Path):
    dspy = pytest.importorskip("dspy", reason="dspy is not installed")
    pytest.importorskip("langchain_core", reason="langchain-core is not installed")
    from eligo.shots import DspySelector, LangChainSelector

    paths = [picture(tmp_path / f"{n}.png", n) for n in range(4)]
    options = {"encoder": Pixels()}
    examples = [{"question": "what is it?", "answer": "this", "picture": p} for p in paths]
    selector = LangChainSelector("knn", examples, num_shots=1, image_key="picture", **options)
    chosen = selector.select_examples({"question": "what is it?", "picture": data_url(paths[2])})
    assert chosen == [examples[2]]
    trainset = [
        dspy.Example(photo=dspy.Image(data_url(path)), question="what is it?", answer="this")
        .with_inputs("photo", "question")
        for path in paths
    ]  # fmt: skip
    choose = DspySelector("knn", trainset, k=1, **options)
    for number, path in enumerate(paths):
        assert choose(photo=dspy.Image(data_url(path)), question="what is it?") == [
            trainset[number]
        ]
    with pytest.raises(InputError, match="got 2 images"):
        choose(
            photo=dspy.Image(data_url(paths[0])), other=dspy.Image(data_url(paths[1])), question="x"
        )
