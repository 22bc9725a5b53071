"""A selector in place of DSPy's `KNN`, and in its `KNNFewShot` (extra `dspy`).

See docs/shots_prompts.md.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eligo.errors import InputError, MissingExtraError
from eligo.shots.inference.chooser import ExampleChooser
from eligo.shots.inference.encoders import Encoder
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.selector import PoolSelector

try:
    import dspy
    from dspy.teleprompt import KNNFewShot
except ImportError:
    raise MissingExtraError("dspy", "dspy") from None


class DspySelector:
    """Chooses training examples for an input: `DspySelector("mmr", trainset)(question="...")`."""

    def __init__(
        self,
        selector: str | Path | PoolSelector | PointerSelector,
        trainset: Sequence[Any],
        *,
        k: int | None = None,
        encoder: str | Encoder | None = None,
        device: str = "auto",
    ) -> None:
        """`trainset`: examples with inputs (`with_inputs`) and labels; `k`: how many to choose.

        The inputs that are text are the question, the labels the answer. An input that is a
        `dspy.Image` is compared as an image. The other arguments are those of `predict`.
        """
        self.trainset = list(trainset)
        turns = []
        for number, example in enumerate(self.trainset):
            if not isinstance(example, dspy.Example):
                kind = type(example).__name__
                raise InputError(f"trainset: got a {kind} at {number}, expected dspy.Example")
            try:
                inputs, labels = dict(example.inputs()), dict(example.labels())
            except ValueError:
                raise InputError(
                    f"trainset: example {number} names no inputs; add .with_inputs(...)"
                ) from None
            answer = " ".join(str(value) for value in labels.values())
            turns.append({**_read(inputs), "answer": answer})
        self.chooser = ExampleChooser(selector, turns, num_shots=k, encoder=encoder, device=device)

    def __call__(self, **inputs: Any) -> list[Any]:
        """Return the chosen examples, in the order of the prompt."""
        turn = _read(inputs)
        names = self.chooser.choose(turn["question"], turn["image"])
        return [self.trainset[int(name)] for name in names]


class DspyFewShot(KNNFewShot):
    """DSPy's `KNNFewShot` with another choice: `DspyFewShot(choose).compile(program)`."""

    def __init__(self, choose: DspySelector, **few_shot_bootstrap_args: Any) -> None:
        self.KNN = choose
        self.few_shot_bootstrap_args = few_shot_bootstrap_args


def _read(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text and the image of some inputs."""
    images = [value for value in inputs.values() if isinstance(value, dspy.Image)]
    if len(images) > 1:
        raise InputError(f"inputs: got {len(images)} images, expected at most one")
    texts = {key: value for key, value in inputs.items() if not isinstance(value, dspy.Image)}
    question = "\n".join(f"{key}: {value}" for key, value in texts.items())
    if len(texts) == 1:  # as in training: the question alone
        (question,) = map(str, texts.values())
    return {"question": question, "image": images[0] if images else None}
