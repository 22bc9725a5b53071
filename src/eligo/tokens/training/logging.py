"""What a training says while it runs: the lines that readers of the two-stage pruning guide expect.

Losses as they are, before their weights (`loss/...` in the metrics are weighted). Departure: the
guide gives the task to the pruners and sparsity to the merger; here one backward pass teaches both
with all of them, so they stand under both names.
"""

from collections.abc import Mapping, Sequence

from jaxtyping import Float, Int
from torch import Tensor

Scalar = Float[Tensor, ""]
_OF_DISCRIMINATOR = ("real", "fake")


def step_metrics(
    losses: Mapping[str, Scalar], kept: Mapping[int, Int[Tensor, " images"]]
) -> dict[str, Scalar]:
    """For the log: every loss before its weight, and vision tokens left after each stage."""
    raw = {f"raw/{name}": loss.detach() for name, loss in losses.items()}
    names = {layer: f"layer_{layer}" if layer else "merge" for layer in kept}
    return raw | {f"kept/{names[layer]}": count.float().mean() for layer, count in kept.items()}


def step_line(step: int, groups: Sequence[str], metrics: Mapping[str, float | Scalar]) -> str:
    """One line for people: losses of each optimiser's parts, temperature, tokens, discriminator."""
    values = {name: float(value) for name, value in metrics.items()}
    losses = {name[4:]: value for name, value in values.items() if name.startswith("raw/")}
    critic = {name: losses.pop(name) for name in _OF_DISCRIMINATOR if name in losses}
    taught = " and ".join(name for name in groups if name != "discriminator")
    parts = [f"step {step}: {taught}: {_listed(losses)}"]
    if critic:
        parts.append(f"discriminator: {_listed(critic)}")
    parts.append(_listed({"temperature": values["temperature"]}))
    kept = [f"{value:g}" for name, value in values.items() if name.startswith("kept/")]
    parts.append(f"kept {' > '.join(kept)}")
    judged = {name: value for name, value in values.items() if name.startswith("disc_prob_")}
    return " | ".join([*parts, *([_listed(judged)] if judged else [])])


def evaluation_line(metrics: Mapping[str, float]) -> str:
    """One line for people: all that an evaluation found."""
    return f"evaluation: {_listed(metrics)}"


def _listed(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
