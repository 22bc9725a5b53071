"""Time to the first token, prefill and decoding under a plan, against the unpruned model.

Cases alternate, so that load on the machine affects all of them; speed-ups are ratios of medians.
One turn is a forward pass over pixels and prompt up to the first token, then a few steps of greedy
decoding. On a GPU, times are CUDA events, which are read at the end of the turn.

- `ttft`: tower, projector, selector, prefill, first token.
- `prefill`: from the first output of the projector to the first token, selector included.
- `llm`: the language model without its head, cuts included.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from eligo.errors import InputError
from eligo.tokens.cost.flops import Cost
from eligo.tokens.hooks.pruning import pruning
from eligo.tokens.hosts import host_of
from eligo.tokens.plan import Plan

WARM_UP = 3
"""Turns of every case that are not counted."""
_DECODE_STEPS = 8
_MIB = 2**20


@dataclass(frozen=True)
class BenchCase:
    """A configuration of the model to time."""

    name: str
    plan: Plan | None = None
    attention: str | None = None
    """Attention implementation of the language model; None: as loaded."""
    decodes: bool = False
    """Also time the tokens after the first."""


@dataclass(frozen=True)
class Spread:
    """Median and 90th percentile in milliseconds."""

    p50: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of these values."""
        tenths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else values
        return cls(median(values), tenths[-1])


@dataclass
class Timings:
    """Times of one case in milliseconds, turn by turn."""

    turns: dict[str, list[float]] = field(default_factory=dict)
    peak_mib: float | None = None
    """Peak memory of tensors, weights included; None on a CPU."""

    def add(self, turn: Mapping[str, float]) -> None:
        """Add one turn."""
        for name, value in turn.items():
            self.turns.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> Spread:
        return Spread.of(self.turns[name])

    def as_plain(self) -> dict[str, Any]:
        """Return the spreads as plain values."""
        plain: dict[str, Any] = {f"{name}_ms": asdict(self[name]) for name in self.turns}
        return plain if self.peak_mib is None else {**plain, "peak_mib": self.peak_mib}


def timing_rows(timings: Mapping[str, Timings], batch: int, time: str = "ttft") -> list[dict]:
    """Return one row per case; the speed-up is that of `time` against the first case."""
    full = next(iter(timings.values()))[time].p50
    return [
        {"variant": name, "batch": batch, "speedup": full / case[time].p50, **case.as_plain()}
        for name, case in timings.items()
    ]


def predicted_speedup(full: Timings, cost: Cost) -> float:
    """Return `t_full / (t_full - R t_llm)`: the TTFT speed-up if time followed FLOPs.

    R is the share of the language model's FLOPs that the plan saves.
    """
    t_full, t_llm = full["ttft"].p50, full["llm"].p50
    return t_full / (t_full - cost.reduction_llm * t_llm)


class Marks:
    """Time stamps of one turn; only the first of each name is kept."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stamps: dict[str, Any] = {}

    def clear(self) -> None:
        """Start a new turn."""
        self._stamps = {}

    def set(self, name: str) -> None:
        """Record a time stamp; on CUDA, in the current stream."""
        if name in self._stamps:
            return
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._stamps[name] = event
        else:
            self._stamps[name] = time.perf_counter()

    def between(self, first: str, last: str) -> float:
        """Return milliseconds; the device must have reached both time stamps."""
        start, stop = self._stamps[first], self._stamps[last]
        if self.device.type == "cuda":
            return start.elapsed_time(stop)
        return 1000 * (stop - start)


def run_rounds(
    model: Any,
    cases: Sequence[BenchCase],
    inputs: Mapping[str, Tensor],
    rounds: int,
    on_turn: Callable[[int], None] = lambda _done: None,
) -> dict[str, Timings]:
    """Time all cases alternately, `rounds` times after the warm-up.

    `on_turn` is called with the number of turns that are done.
    """
    if rounds < 1:
        raise InputError(f"--rounds: got {rounds}, expected 1 or more")
    device = inputs["input_ids"].device
    timings = {case.name: Timings() for case in cases}
    with torch.no_grad(), _marking(model, Marks(device)) as marks:
        for turn in range(WARM_UP + rounds):
            for number, case in enumerate(cases, 1):
                if device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats(device)
                times = _turn(model, case, inputs, marks)
                on_turn(turn * len(cases) + number)
                if turn < WARM_UP:
                    continue
                timed = timings[case.name]
                timed.add(times)
                if device.type == "cuda":
                    peak = torch.cuda.max_memory_allocated(device) / _MIB
                    timed.peak_mib = max(peak, timed.peak_mib or 0.0)
    return timings


@contextmanager
def _marking(model: Any, marks: Marks) -> Iterator[Marks]:
    """Register hooks that mark the end of the projector and the run of the language model."""
    host = host_of(model)
    last = host.tower if host.projector is None else host.projector
    handles = [
        last.register_forward_hook(lambda *_: marks.set("projected")),
        host.text.register_forward_pre_hook(lambda *_: marks.set("llm")),
        host.text.register_forward_hook(lambda *_: marks.set("llm_end")),
    ]
    try:
        yield marks
    finally:
        for handle in handles:
            handle.remove()


def _turn(
    model: Any, case: BenchCase, inputs: Mapping[str, Tensor], marks: Marks
) -> dict[str, float]:
    """Return the times of one prompt."""
    text = model.config.get_text_config()
    before = text._attn_implementation
    text._attn_implementation = case.attention or before
    context = nullcontext() if case.plan is None else pruning(model, case.plan)
    try:
        with context as trace:
            _wait(marks.device)
            marks.clear()
            cache = DynamicCache()
            marks.set("start")
            output = model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
            token = output.logits[:, -1:].argmax(-1)
            marks.set("first")
            if case.decodes:
                _decode(model, inputs["attention_mask"], cache, token)
                marks.set("last")
            _wait(marks.device)
            times = {
                "ttft": marks.between("start", "first"),
                "prefill": marks.between("projected", "first"),
                "llm": marks.between("llm", "llm_end"),
            }
            if case.decodes:
                times["decode"] = marks.between("first", "last") / _DECODE_STEPS
            if trace is not None:
                times["selector"] = trace.selector_ms
            return times
    finally:
        text._attn_implementation = before


def _decode(model: Any, mask: Tensor, cache: DynamicCache, token: Tensor) -> None:
    """Decode greedily after the first token, without device syncs."""
    for _ in range(_DECODE_STEPS):
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        output = model(input_ids=token, attention_mask=mask, past_key_values=cache, use_cache=True)
        token = output.logits[:, -1:].argmax(-1)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
