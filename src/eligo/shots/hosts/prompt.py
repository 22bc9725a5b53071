"""Examples and a question as one prompt, by the host's own chat template. Section 5.

An example is a turn of the user (its image, its question) and one of the assistant (its answer).
A host without a template gets a plain one: LLaVA-1.5's for images, question and answer for text.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eligo.errors import InputError
from eligo.pretrained.chat import place_image, plain_text, render_chat, spoken_ids

_TEXT_SHOT, _TEXT_GAP = "Question: {question}\nAnswer:", "\n\n"
_IMAGE_SHOT, _IMAGE_GAP = "USER: {image}{question} ASSISTANT:", " "


class UnscorableError(InputError):
    """An answer that a host cannot say: its query is passed over, and listed."""


@dataclass(frozen=True)
class Turn:
    """A question, maybe on an image, and its answer."""

    question: str
    answer: str
    image: str | None = None
    """Path of the image file."""

    @classmethod
    def of(cls, payload: Any, where: str) -> "Turn":
        """From what a pool keeps of an example: a mapping with `question`, `answer`, `image`."""
        if not isinstance(payload, Mapping) or not {"question", "answer"} <= set(payload):
            raise InputError(
                f"{where}: got payload {payload!r:.60}, expected a mapping with question and "
                "answer (and image); `eligo shots embed` writes such pools"
            )
        return cls(payload["question"], payload["answer"], payload.get("image"))


def reads_images(processor: Any) -> bool:
    """Whether it is the processor of a vision-language model, or a mere tokenizer."""
    return getattr(processor, "image_processor", None) is not None


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer in a processor, or itself."""
    return getattr(processor, "tokenizer", processor)


def write_prompt(processor: Any, shots: Sequence[Turn], asked: Turn, instruction: str = "") -> str:
    """Examples in order, then the question, up to where the answer begins."""
    behind = f" {instruction}" if instruction else ""
    if getattr(processor, "chat_template", None):
        messages = []
        for shot in shots:
            messages += [_user(processor, shot, behind), _said(processor, shot.answer)]
        messages.append(_user(processor, asked, behind))
        return render_chat(processor, messages, add_generation_prompt=True)
    plain, gap = (_IMAGE_SHOT, _IMAGE_GAP) if reads_images(processor) else (_TEXT_SHOT, _TEXT_GAP)
    parts = [
        f"{_plain(plain, processor, shot, behind)} {plain_text(processor, shot.answer)}{gap}"
        for shot in shots
    ]
    return "".join(parts) + _plain(plain, processor, asked, behind)


def write_opening(processor: Any, shots: Sequence[Turn], instruction: str = "") -> str:
    """The beginning of a prompt: these examples, and nothing behind them."""
    if getattr(processor, "chat_template", None):
        behind = f" {instruction}" if instruction else ""
        messages = []
        for shot in shots:
            messages += [_user(processor, shot, behind), _said(processor, shot.answer)]
        return render_chat(processor, messages)
    asked = Turn("", "")
    whole, last = (write_prompt(processor, told, asked, instruction) for told in (shots, []))
    return whole.removesuffix(last)


def answer_span(processor: Any, prompt: str, answer: str) -> list[int]:
    """The tokens to score, exactly the answer's.

    An answer without tokens is an error, and so is one that the host cannot spell (its tokens say
    something else): its probability would be that of another text.
    """
    tokenizer = tokenizer_of(processor)
    token = getattr(processor, "image_token", None) if reads_images(processor) else None
    tail = prompt.rpartition(str(token))[2].lstrip() if token else prompt
    ids = spoken_ids(tokenizer, tail, answer) if answer.strip() else []
    if not ids:
        raise UnscorableError(f"the answer {answer!r} has no token")
    said = tokenizer.decode(ids)
    if _bare(said) != _bare(answer):
        raise UnscorableError(
            f"the answer {answer!r} reads {said!r} in the host's tokens; expected a host whose "
            "vocabulary has it"
        )
    return ids


def template_hash(processor: Any, instruction: str) -> str:
    """Of all that decides how a prompt is written."""
    probe = [Turn("q", "a"), Turn("r", "b")]
    text = write_prompt(processor, probe, Turn("s", ""), instruction)
    template = str(getattr(processor, "chat_template", None))
    return hashlib.sha256(f"{template}\0{text}".encode()).hexdigest()[:32]


def _user(processor: Any, turn: Turn, behind: str) -> dict[str, Any]:
    text = _question(processor, turn) + behind
    if not reads_images(processor):
        return {"role": "user", "content": text}
    parts = [{"type": "image"}] if turn.image is not None else []
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def _said(processor: Any, answer: str) -> dict[str, Any]:
    answer = plain_text(processor, answer)
    content = [{"type": "text", "text": answer}] if reads_images(processor) else answer
    return {"role": "assistant", "content": content}


def _plain(template: str, processor: Any, turn: Turn, behind: str) -> str:
    image = "" if turn.image is None else f"{getattr(processor, 'image_token', '')}\n"
    return template.format(image=image, question=_question(processor, turn) + behind)


def _question(processor: Any, turn: Turn) -> str:
    """Its words alone: the template places the image."""
    question = turn.question
    if turn.image is not None:
        question = place_image(question, "question")
    return plain_text(processor, question)


def _bare(text: str) -> str:
    """Letters and signs alone: tokenizers differ in spaces, and some write small letters only."""
    return "".join(text.split()).casefold()
