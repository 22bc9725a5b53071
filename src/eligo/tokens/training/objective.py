"""What the pruned model is taught by: the answer, the whole model, and a critic.

Two-stage pruning guide, "losses". Departure: besides the guide's task and adversarial losses there
are two that imitate the whole model, whose answer and states are known (`kl`, `hidden`). All see
the whole and the pruned model through one function, `observe`: same positions, dtype and mode.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from eligo import losses, ops
from eligo.nn import record_outputs
from eligo.tokens.inference.load import floats_of
from eligo.tokens.model.discriminator import Discriminator
from eligo.tokens.training.batch import HostBatch, Packed

# Not cuDNN's attention, which gives a mask no gradient.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class Observed:
    """What a host said at the answer, and what it thought at the text behind the image."""

    logits: Float[Tensor, "batch answer vocabulary"]
    """Column i predicts the i-th last token of the row."""
    states: Float[Tensor, "layers batch tail width"]
    """Outputs of some layers of the language model, at the last columns."""


def observe(
    model: nn.Module,
    layers: Sequence[nn.Module],
    batch: HostBatch,
    context: AbstractContextManager,
) -> Observed:
    """One pass over prompt and answer inside a context (`masking`, `pruning`, or none)."""
    with context, record_outputs(layers, batch.tail) as found, sdpa_kernel(_BACKENDS):
        outputs = model(
            **floats_of(model, batch.inputs),
            use_cache=False,
            logits_to_keep=batch.num_answer + 1,
        )
    return Observed(outputs.logits[:, -batch.num_answer - 1 : -1], torch.stack(found))


def observe_packed(
    model: nn.Module, layers: Sequence[nn.Module], batch: HostBatch, packed: Packed
) -> Observed:
    """What `observe` sees of the whole model, from rows that share their image."""

    def apart(values: Tensor) -> Tensor:
        return values.unflatten(1, (packed.num_rows, -1)).flatten(0, 1)

    last = packed.num_rows * batch.tail
    with record_outputs(layers, last) as found, sdpa_kernel(_BACKENDS):
        outputs = model(
            **floats_of(model, packed.inputs), use_cache=False, logits_to_keep=packed.columns
        )
    return Observed(apart(outputs.logits), torch.stack([apart(states) for states in found]))


def answers(batch: HostBatch) -> Int64[Tensor, "batch answer"]:
    """The tokens to be predicted, -100 where there is none."""
    return batch.labels[:, -batch.num_answer :]


def text_mask(batch: HostBatch) -> Bool[Tensor, "batch tail"]:
    """Text behind the image."""
    return batch.after_image[:, -batch.tail :]


def answer_mask(batch: HostBatch) -> Bool[Tensor, "batch tail"]:
    """Where an answer token is predicted: one column before it stands."""
    labelled = F.pad(batch.labels[:, -batch.tail :] != -100, (0, 1), value=False)
    return labelled[:, 1:]


def task_loss(student: Observed, batch: HostBatch) -> Float[Tensor, ""]:
    """Cross-entropy of the answer's tokens."""
    wanted = answers(batch)
    total = F.cross_entropy(
        student.logits.float().flatten(0, 1), wanted.flatten(), ignore_index=-100, reduction="sum"
    )
    return total / (wanted != -100).sum().clamp_min(1)


def kl_loss(student: Observed, teacher: Observed, batch: HostBatch) -> Float[Tensor, ""]:
    """KL(whole || pruned) at the same tokens."""
    target = teacher.logits.float().softmax(-1).detach()
    each = losses.listwise_kl(student.logits, target)
    return ops.masked_mean(each.flatten(), (answers(batch) != -100).flatten())


def hidden_loss(student: Observed, teacher: Observed, batch: HostBatch) -> Float[Tensor, ""]:
    """Per layer, the squared distance at text positions over the whole model's mean square."""
    mask = text_mask(batch).flatten()
    real = teacher.states.float().detach()
    distance = (student.states.float() - real).square().mean(-1).flatten(1)
    scale = real.square().mean(-1).flatten(1)
    per_layer = [
        ops.masked_mean(far, mask) / ops.masked_mean(size, mask).clamp_min(1e-12)
        for far, size in zip(distance, scale, strict=True)
    ]
    return torch.stack(per_layer).mean()


def adversarial_losses(
    discriminator: Discriminator, student: Observed, teacher: Observed, batch: HostBatch
) -> tuple[dict[str, Float[Tensor, ""]], dict[str, Float[Tensor, ""]]]:
    """(losses, metrics): to look whole, with the critic frozen; to see through it, detached."""
    mask = answer_mask(batch)
    convincing = discriminator.frozen(student.states, mask)
    real = discriminator(teacher.states.detach(), mask)
    fake = discriminator(student.states.detach(), mask)
    of_real, of_fake = losses.adversarial_discriminator_losses(real, fake)
    found = {
        "adversarial": losses.adversarial_generator_loss(convincing),
        "real": of_real,
        "fake": of_fake,
    }
    return found, {
        "disc_prob_real": real.detach().sigmoid().mean(),
        "disc_prob_fake": fake.detach().sigmoid().mean(),
    }


def right_answers(observed: Observed, batch: HostBatch) -> Bool[Tensor, " batch"]:
    """Rows whose every answer token is the likeliest: what greedy decoding would say."""
    wanted = answers(batch)
    return ((observed.logits.argmax(-1) == wanted) | (wanted == -100)).all(-1)
