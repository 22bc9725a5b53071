"""A selector as LangChain's `BaseExampleSelector` (extra `langchain`): docs/shots_prompts.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eligo.errors import InputError, MissingExtraError
from eligo.shots.inference.chooser import ExampleChooser
from eligo.shots.inference.encoders import Encoder
from eligo.shots.model.pointer import PointerSelector
from eligo.shots.selector import PoolSelector

try:
    from langchain_core.example_selectors import BaseExampleSelector
except ImportError:
    raise MissingExtraError("langchain-core", "langchain") from None


class LangChainSelector(BaseExampleSelector):
    """Chooses the examples of a `FewShotPromptTemplate` for each input."""

    def __init__(
        self,
        selector: str | Path | PoolSelector | PointerSelector,
        examples: Sequence[Mapping[str, Any]] | None = None,
        *,
        num_shots: int | None = None,
        encoder: str | Encoder | None = None,
        device: str = "auto",
        question_key: str = "question",
        answer_key: str = "answer",
        image_key: str = "image",
    ) -> None:
        """Examples are dictionaries with these keys (an image is optional), returned as given.

        An image is a file, a PIL image, an array or a `data:` URL. By default the examples are
        those that the selector was saved with; the other arguments are those of `predict`.
        """
        self.keys = {"question": question_key, "answer": answer_key, "image": image_key}
        self.examples = None if examples is None else [dict(example) for example in examples]
        turns = None if examples is None else [self._turn(example) for example in examples]
        self.chooser = ExampleChooser(
            selector, turns, num_shots=num_shots, encoder=encoder, device=device
        )
        self._added: dict[str, dict[str, Any]] = {}

    def select_examples(self, input_variables: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the chosen examples, in the order of the prompt."""
        key = self.keys["question"]
        if not isinstance(input_variables.get(key), str):
            raise InputError(
                f"{key}: got inputs {', '.join(input_variables) or 'none'}; expected the question "
                "as text under this name, or give its name as question_key"
            )
        names = self.chooser.choose(input_variables[key], input_variables.get(self.keys["image"]))
        return [self._example(name) for name in names]

    def add_example(self, example: Mapping[str, Any]) -> str:
        """Add an example to choose from, and return its id."""
        name = self.chooser.add(self._turn(example))
        self._added[name] = dict(example)
        return name

    def _turn(self, example: Mapping[str, Any]) -> dict[str, Any]:
        return {name: example.get(key) for name, key in self.keys.items()}

    def _example(self, name: str) -> dict[str, Any]:
        if name in self._added:
            return self._added[name]
        if self.examples is not None:
            return self.examples[int(name)]
        stored = self.chooser.payload(name)
        return {key: stored[kind] for kind, key in self.keys.items() if kind in stored}
