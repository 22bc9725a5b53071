"""Prompts of examples and a question, by the host's own chat template.

An example is a user turn (its image, its question) and an assistant turn (its answer). A host
without a chat template gets a plain one: LLaVA-1.5's for images, question and answer for text.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eligo.errors import InputError
from eligo.pretrained.chat import place_image, plain_text, render_chat, spoken_ids
from eligo.shots.pool.pool import Pool

Placement = Literal["prepend", "append"]
_TEXT_SHOT, _TEXT_GAP = "Question: {question}\nAnswer:", "\n\n"
_IMAGE_SHOT, _IMAGE_GAP = "USER: {image}{question} ASSISTANT:", " "


class UnscorableError(InputError):
    """An answer that the host's tokens cannot express; its query is skipped and listed."""


@dataclass(frozen=True)
class Turn:
    """A question, its answer, and optionally an image."""

    question: str
    answer: str
    image: str | None = None
    """Path of the image file."""

    @classmethod
    def of(cls, payload: Any, where: str) -> "Turn":
        """Build from a pool's payload, a mapping with `question`, `answer` and optional `image`."""
        if not isinstance(payload, Mapping) or not {"question", "answer"} <= set(payload):
            raise InputError(
                f"{where}: got payload {payload!r:.60}, expected a mapping with question and "
                "answer (and image); `eligo shots embed` writes such pools"
            )
        return cls(payload["question"], payload["answer"], payload.get("image"))


def turn_of(pool: Pool, name: str) -> Turn:
    """Return the example (or query) of a pool with this id."""
    row = int(pool.rows([name])[0])
    return Turn.of(None if pool.payload is None else pool.payload[row], f"example {name!r}")


def in_prompt_order(picks: Sequence[Any], placement: Placement) -> list[Any]:
    """Convert order of choice to order in the prompt.

    >>> in_prompt_order(["first", "second"], "prepend")  # the first pick is next to the question
    ['second', 'first']
    """
    return list(picks) if placement == "append" else list(reversed(picks))


def reads_images(processor: Any) -> bool:
    """Whether it is the processor of a vision-language model, not just a tokenizer."""
    return getattr(processor, "image_processor", None) is not None


def tokenizer_of(processor: Any) -> Any:
    """Return the tokenizer of a processor, or the tokenizer itself."""
    return getattr(processor, "tokenizer", processor)


def write_prompt(processor: Any, shots: Sequence[Turn], query: Turn, instruction: str = "") -> str:
    """Write the examples in order, then the question, up to where the answer begins."""
    suffix = f" {instruction}" if instruction else ""
    if getattr(processor, "chat_template", None):
        messages = [*_messages(processor, shots, suffix), _user(processor, query, suffix)]
        return render_chat(processor, messages, add_generation_prompt=True)
    template, gap = (
        (_IMAGE_SHOT, _IMAGE_GAP) if reads_images(processor) else (_TEXT_SHOT, _TEXT_GAP)
    )
    parts = [
        f"{_plain(template, processor, shot, suffix)} {plain_text(processor, shot.answer)}{gap}"
        for shot in shots
    ]
    return "".join(parts) + _plain(template, processor, query, suffix)


def write_opening(processor: Any, shots: Sequence[Turn], instruction: str = "") -> str:
    """Write the beginning of a prompt: the examples without a question."""
    if getattr(processor, "chat_template", None):
        suffix = f" {instruction}" if instruction else ""
        return render_chat(processor, _messages(processor, shots, suffix))
    query = Turn("", "")
    whole, last = (write_prompt(processor, turns, query, instruction) for turns in (shots, []))
    return whole.removesuffix(last)


def answer_span(processor: Any, prompt: str, answer: str) -> list[int]:
    """Return the tokens of the answer.

    Refuses an answer without tokens, and one whose tokens decode to another text: its probability
    would be that of the other text.
    """
    tokenizer = tokenizer_of(processor)
    token = getattr(processor, "image_token", None) if reads_images(processor) else None
    tail = prompt.rpartition(str(token))[2].lstrip() if token else prompt
    ids = spoken_ids(tokenizer, tail, answer) if answer.strip() else []
    if not ids:
        raise UnscorableError(f"the answer {answer!r} has no token")
    decoded = tokenizer.decode(ids)
    if _bare(decoded) != _bare(answer):
        raise UnscorableError(
            f"the answer {answer!r} reads {decoded!r} in the host's tokens; expected a host whose "
            "vocabulary has it"
        )
    return ids


def template_hash(processor: Any, instruction: str) -> str:
    """Return a hash of everything that determines how a prompt is written."""
    probe = [Turn("q", "a"), Turn("r", "b")]
    text = write_prompt(processor, probe, Turn("s", ""), instruction)
    template = str(getattr(processor, "chat_template", None))
    return hashlib.sha256(f"{template}\0{text}".encode()).hexdigest()[:32]


def _messages(processor: Any, shots: Sequence[Turn], suffix: str) -> list[dict[str, Any]]:
    """User and assistant messages of the examples."""
    messages: list[dict[str, Any]] = []
    for shot in shots:
        answer = plain_text(processor, shot.answer)
        content = [{"type": "text", "text": answer}] if reads_images(processor) else answer
        messages += [_user(processor, shot, suffix), {"role": "assistant", "content": content}]
    return messages


def _user(processor: Any, turn: Turn, suffix: str) -> dict[str, Any]:
    text = _question(processor, turn) + suffix
    if not reads_images(processor):
        return {"role": "user", "content": text}
    parts = [{"type": "image"}] if turn.image is not None else []
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def _plain(template: str, processor: Any, turn: Turn, suffix: str) -> str:
    image = "" if turn.image is None else f"{getattr(processor, 'image_token', '')}\n"
    return template.format(image=image, question=_question(processor, turn) + suffix)


def _question(processor: Any, turn: Turn) -> str:
    """The question without an image marker: the template places the image."""
    has_image = turn.image is not None
    question = place_image(turn.question, "question") if has_image else turn.question
    return plain_text(processor, question)


def _bare(text: str) -> str:
    """Drop spaces and case: tokenizers differ in both."""
    return "".join(text.split()).casefold()
