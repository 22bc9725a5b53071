"""Losses of the pruned model.

The task and adversarial losses are those of the two-stage pruning design (docs/sources.md); `kl`,
`hidden` and `attention` imitate the unpruned model. All of them read both models through `observe`,
at the same positions, in the same dtype and mode.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from eligo import losses, ops
from eligo.nn import record_outputs
from eligo.tokens.data.examples import IGNORED
from eligo.tokens.hooks.attention import attention_of_rows, recorders, recording
from eligo.tokens.inference.load import floats_of
from eligo.tokens.model.discriminator import Discriminator
from eligo.tokens.model.relaxer import TrainingRelaxer
from eligo.tokens.training.batch import HostBatch, Packed

# Without cuDNN attention, which computes no gradient for masks.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class Observed:
    """Logits of a host at the answer, and its hidden states at the text after the image."""

    logits: Float[Tensor, "batch answer vocabulary"]
    """The last columns, each shifted to the token that it predicts."""
    states: Float[Tensor, "layers batch tail width"]
    """Outputs of some layers of the language model at the last columns."""
    attention: Float[Tensor, "batch tokens"] | None = None
    """Attention to the vision tokens when the answer begins; see `record_attention`."""


def observe(
    model: nn.Module,
    layers: Sequence[nn.Module],
    batch: HostBatch,
    context: AbstractContextManager,
) -> Observed:
    """Run the model on prompt and answer inside a context (`masking`, `pruning`, or none)."""
    with context, record_outputs(layers, batch.tail) as states, sdpa_kernel(_BACKENDS):
        outputs = model(
            **floats_of(model, batch.inputs),
            use_cache=False,
            logits_to_keep=batch.num_answer + 1,
        )
    return Observed(outputs.logits[:, -batch.num_answer - 1 : -1], torch.stack(states))


@contextmanager
def record_attention(
    host: Any, batch: HostBatch, packed: Packed | None = None
) -> Iterator[list[Tensor]]:
    """Inside, a pass of the unpruned model appends the attention to the vision tokens of each row.

    That of the last prompt token, averaged over heads and the middle third of the layers: early
    layers attend to positions, late ones to the text. The pass is one of the rows, or of their
    packed form.
    """
    inputs = batch.inputs if packed is None else packed.inputs
    is_image = inputs["input_ids"] == host.image_token_id
    order = is_image.int().argsort(dim=-1, descending=True, stable=True)
    columns = order[:, None, : host.supply]
    learned, length = batch.labels != IGNORED, batch.labels.shape[1]
    first_label = learned.int().argmax(-1, keepdim=True)
    last_prompt = torch.where(learned.any(-1, keepdim=True), first_label, length) - 1
    if packed is not None:
        in_tail = last_prompt - (length - batch.tail)
        last_prompt = packed.starts + in_tail.view(-1, packed.num_rows)
    count = len(host.layers)
    middle = host.layers[count // 3 : max(count // 3 + 1, 2 * count // 3)]
    rows: list[Tensor] = []
    found: list[Tensor] = []

    def record(
        query: Tensor, key: Tensor, mask: Tensor | None, scaling: float, cap: float | None
    ) -> None:
        rows.append(attention_of_rows(query, key, mask, scaling, last_prompt, cap))
        if len(rows) == len(middle):
            mean = torch.stack(rows).mean(0)
            mean = mean.gather(-1, columns.expand(-1, mean.shape[1], -1)).flatten(0, 1)
            found.append(mean / mean.sum(-1, keepdim=True))

    with recording(host.text.config, "the language model"):
        own = recorders()
        own.update({layer.self_attn: record for layer in middle})
        try:
            yield found
        finally:
            for layer in middle:
                del own[layer.self_attn]


def observe_packed(
    model: nn.Module, layers: Sequence[nn.Module], batch: HostBatch, packed: Packed
) -> Observed:
    """Return the result of `observe` for the unpruned model, from packed rows."""

    def unpack(values: Tensor) -> Tensor:
        return values.unflatten(1, (packed.num_rows, -1)).flatten(0, 1)

    last = packed.num_rows * batch.tail
    with record_outputs(layers, last) as recorded, sdpa_kernel(_BACKENDS):
        outputs = model(
            **floats_of(model, packed.inputs), use_cache=False, logits_to_keep=packed.columns
        )
    return Observed(unpack(outputs.logits), torch.stack([unpack(states) for states in recorded]))


def answers(batch: HostBatch) -> Int64[Tensor, "batch answer"]:
    """Return the tokens to predict; -100: none."""
    return batch.labels[:, -batch.num_answer :]


def text_mask(batch: HostBatch) -> Bool[Tensor, "batch tail"]:
    """Return which of the last columns are text after the image."""
    return batch.after_image[:, -batch.tail :]


def answer_mask(batch: HostBatch) -> Bool[Tensor, "batch tail"]:
    """Return which columns predict an answer token: those just before one."""
    labelled = F.pad(batch.labels[:, -batch.tail :] != -100, (0, 1), value=False)
    return labelled[:, 1:]


def losses_of(
    student: Observed, teacher: Observed | None, relaxer: TrainingRelaxer, batch: HostBatch
) -> dict[str, Float[Tensor, ""]]:
    """Return the losses before their weights, except those of the discriminator."""
    found = {"task": task_loss(student, batch), "sparsity": relaxer.sparsity()}
    if teacher is not None:
        found["kl"] = kl_loss(student, teacher, batch)
        found["hidden"] = hidden_loss(student, teacher, batch)
        if teacher.attention is not None:
            found["attention"] = attention_loss(teacher.attention, relaxer)
    return found


def task_loss(student: Observed, batch: HostBatch) -> Float[Tensor, ""]:
    """Return the cross-entropy of the answer tokens."""
    targets = answers(batch)
    total = F.cross_entropy(
        student.logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    return total / (targets != -100).sum().clamp_min(1)


def kl_loss(student: Observed, teacher: Observed, batch: HostBatch) -> Float[Tensor, ""]:
    """Return KL(unpruned || pruned) at the answer tokens."""
    target = teacher.logits.float().softmax(-1).detach()
    each = losses.listwise_kl(student.logits, target)
    return ops.masked_mean(each.flatten(), (answers(batch) != -100).flatten())


def hidden_loss(student: Observed, teacher: Observed, batch: HostBatch) -> Float[Tensor, ""]:
    """Return the squared distance at text positions, relative to the unpruned states."""
    mask = text_mask(batch).flatten()
    real = teacher.states.float().detach()
    distance = (student.states.float() - real).square().mean(-1).flatten(1)
    scale = real.square().mean(-1).flatten(1)
    per_layer = [
        ops.masked_mean(squares, mask) / ops.masked_mean(size, mask).clamp_min(1e-12)
        for squares, size in zip(distance, scale, strict=True)
    ]
    return torch.stack(per_layer).mean()


def attention_loss(
    attention: Float[Tensor, "batch tokens"], relaxer: TrainingRelaxer
) -> Float[Tensor, ""]:
    """Return KL(attention || softmax(scores)) among the tokens of every stage, averaged.

    A merged token is worth the attention to all tokens in it.
    """
    found = []
    for layer, stage in relaxer.decisions.items():
        target = attention
        if layer and relaxer.members is not None:
            target = (relaxer.members @ attention.unsqueeze(-1)).squeeze(-1)
        target = target.masked_fill(~stage.mask, 0.0)
        target = target / target.sum(-1, keepdim=True).clamp_min(1e-12)
        found.append(losses.listwise_kl(stage.scores, target, stage.mask).mean())
    return torch.stack(found).mean()


def adversarial_losses(
    discriminator: Discriminator, student: Observed, teacher: Observed, batch: HostBatch
) -> tuple[dict[str, Float[Tensor, ""]], dict[str, Float[Tensor, ""]]]:
    """Return losses and metrics: of the generator (frozen critic) and the critic (fixed states)."""
    mask = answer_mask(batch)
    generator = discriminator.frozen(student.states, mask)
    real = discriminator(teacher.states.detach(), mask)
    fake = discriminator(student.states.detach(), mask)
    of_real, of_fake = losses.adversarial_discriminator_losses(real, fake)
    adversarial = losses.adversarial_generator_loss(generator)
    return {"adversarial": adversarial, "real": of_real, "fake": of_fake}, {
        "disc_prob_real": real.detach().sigmoid().mean(),
        "disc_prob_fake": fake.detach().sigmoid().mean(),
    }


def right_answers(observed: Observed, batch: HostBatch) -> Bool[Tensor, " batch"]:
    """Return the rows in which every answer token is the most likely one."""
    targets = answers(batch)
    return ((observed.logits.argmax(-1) == targets) | (targets == -100)).all(-1)
