"""The clock: what a plan really saves, against the unpruned model in the same run.

Spec, "Real speed". All arms take turns (unpruned, two-stage, FastV, ..., unpruned, ...), so that a
busy machine slows all of them; a ratio is one of medians. One turn is a plain forward pass over
pixels and prompt up to the first token, then some steps of greedy decoding. Moments are marked by
CUDA events, which wait for nothing, and read when the turn is over.

- `ttft`: tower, projector, selector, prefill, first token.
- `prefill`: from the projector's first output to the first token; selector included.
- `llm`: the language model without its head; the cuts of a pruned one are inside.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import DynamicCache

from eligo.errors import InputError
from eligo.tokens.cost.count import Cost
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.hosts import host_of
from eligo.tokens.plan import Plan

WARM_UP = 3
"""Turns of every arm that are not counted."""
DECODE_STEPS = 8
SHARE_OF_PREDICTED = 0.85
SELECTOR_SHARE = 0.03
_MIB = 2**20


@dataclass(frozen=True)
class Arm:
    """One way to run the model."""

    name: str
    plan: Plan | None = None
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Of the language model."""
    decodes: bool = False
    """Whether tokens after the first are timed too."""


@dataclass(frozen=True)
class Spread:
    """The usual time and a bad one, in milliseconds."""

    p50: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of all turns."""
        tenths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else values
        return cls(median(values), tenths[-1])


@dataclass
class Timings:
    """What the turns of one arm took; milliseconds, MiB."""

    turns: dict[str, list[float]] = field(default_factory=dict)
    peak_mib: float | None = None
    """Most memory that tensors held, weights included; None on a CPU."""

    def add(self, turn: Mapping[str, float]) -> None:
        """One more turn."""
        for name, value in turn.items():
            self.turns.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> Spread:
        return Spread.of(self.turns[name])

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""
        plain: dict[str, Any] = {f"{name}_ms": asdict(self[name]) for name in self.turns}
        return plain if self.peak_mib is None else {**plain, "peak_mib": self.peak_mib}


@dataclass(frozen=True)
class Bar:
    """Something that was promised."""

    name: str
    value: float
    bound: float
    numbers: Mapping[str, float]
    """What value and bound were made from."""
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether it holds."""
        return self.value < self.bound if self.at_most else self.value >= self.bound

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "met": self.met}


class Marks:
    """Moments of one turn; the first of each name counts."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._seen: dict[str, Any] = {}

    def clear(self) -> None:
        """A new turn."""
        self._seen = {}

    def set(self, name: str) -> None:
        """This is the moment: on CUDA, of the device."""
        if name in self._seen:
            return
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._seen[name] = event
        else:
            self._seen[name] = time.perf_counter()

    def between(self, first: str, last: str) -> float:
        """Milliseconds; the device must have come so far."""
        start, stop = self._seen[first], self._seen[last]
        if self.device.type == "cuda":
            return start.elapsed_time(stop)
        return 1000 * (stop - start)


def run_rounds(
    model: Any,
    arms: Sequence[Arm],
    inputs: Mapping[str, Tensor],
    rounds: int,
    on_turn: Callable[[int], None] = lambda _done: None,
) -> dict[str, Timings]:
    """Every arm in turn, `rounds` times after the warm-up; `on_turn` hears how many are done."""
    if rounds < 1:
        raise InputError(f"--rounds: got {rounds}, expected 1 or more")
    device = inputs["input_ids"].device
    found = {arm.name: Timings() for arm in arms}
    with torch.no_grad(), _marking(model, Marks(device)) as marks:
        for turn in range(WARM_UP + rounds):
            for number, arm in enumerate(arms, 1):
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(device)
                took = _turn(model, arm, inputs, marks)
                on_turn(turn * len(arms) + number)
                if turn < WARM_UP:
                    continue
                timings = found[arm.name]
                timings.add(took)
                if device.type == "cuda":
                    peak = torch.cuda.max_memory_allocated(device) / _MIB
                    timings.peak_mib = max(peak, timings.peak_mib or 0.0)
    return found


@contextmanager
def _marking(model: Any, marks: Marks) -> Iterator[Marks]:
    """Hooks that mark where tower and projector end and the language model runs."""
    host = host_of(model)
    assert host.projector is not None
    handles = [
        host.projector.register_forward_hook(lambda *_: marks.set("seen")),
        host.text.register_forward_pre_hook(lambda *_: marks.set("llm")),
        host.text.register_forward_hook(lambda *_: marks.set("llm_end")),
    ]
    try:
        yield marks
    finally:
        for handle in handles:
            handle.remove()


def _turn(model: Any, arm: Arm, inputs: Mapping[str, Tensor], marks: Marks) -> dict[str, float]:
    """Milliseconds of one prompt."""
    text = model.config.get_text_config()
    before, text._attn_implementation = text._attn_implementation, arm.attention
    context = nullcontext() if arm.plan is None else pruning(model, arm.plan)
    try:
        with context as trace:
            _wait(marks.device)
            marks.clear()
            cache = DynamicCache()
            marks.set("start")
            output = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            token = output.logits[:, -1:].argmax(-1)
            marks.set("first")
            if arm.decodes:
                _decode(model, inputs["attention_mask"], cache, token)
                marks.set("last")
            _wait(marks.device)
            took = {
                "ttft": marks.between("start", "first"),
                "prefill": marks.between("seen", "first"),
                "llm": marks.between("llm", "llm_end"),
            }
            if arm.decodes:
                took["decode"] = marks.between("first", "last") / DECODE_STEPS
            if trace is not None:
                took["selector"] = trace.selector_ms
            return took
    finally:
        text._attn_implementation = before


def _decode(model: Any, mask: Tensor, cache: DynamicCache, token: Tensor) -> None:
    """Tokens after the first; what they are is never looked at, so nothing waits."""
    for _ in range(DECODE_STEPS):
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        output = model(input_ids=token, attention_mask=mask, past_key_values=cache, use_cache=True)
        token = output.logits[:, -1:].argmax(-1)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speed_bars(full: Timings, pruned: Timings, cost: Cost, batch: int) -> list[Bar]:
    """What the spec promises of the two-stage plan.

    `predicted = t_full / (t_full - R t_llm)`: the speed-up if the language model got faster by
    exactly the FLOPs it is spared, and nothing else changed. The selector's share is of the pruned
    prefill, the smaller one.
    """
    t_full, t_pruned, t_llm = full["ttft"].p50, pruned["ttft"].p50, full["llm"].p50
    predicted = t_full / (t_full - cost.reduction_llm * t_llm)
    selector = pruned["selector"].p50
    prefill = pruned["prefill"].p50
    return [
        Bar(
            f"TTFT speed-up, batch {batch}",
            t_full / t_pruned,
            SHARE_OF_PREDICTED * predicted,
            {
                "ttft_full_ms": t_full,
                "ttft_pruned_ms": t_pruned,
                "llm_full_ms": t_llm,
                "flops_reduction_llm": cost.reduction_llm,
                "predicted": predicted,
                "share_of_predicted": t_full / t_pruned / predicted,
            },
        ),
        Bar(
            f"selector share of prefill, batch {batch}",
            selector / prefill,
            SELECTOR_SHARE,
            {
                "selector_ms": selector,
                "prefill_pruned_ms": prefill,
                "share_of_full_prefill": selector / full["prefill"].p50,
            },
            at_most=True,
        ),
    ]
