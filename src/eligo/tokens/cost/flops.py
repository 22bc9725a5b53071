"""Cost of a pruned model: FLOPs of the prefill by part, key-value cache, tokens kept.

Numbers are for one example. Tower, projector and selector are counted apart from the language
model. Times and memory are shown if they were measured, never estimated.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from eligo.errors import InputError
from eligo.tokens.cost.shapes import HostShape

SMALL_CUT = 0.01
"""A cut should save at least this share of the language model's FLOPs."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MIB = 2**20


@runtime_checkable
class SelectorCost(Protocol):
    """A reducer that counts its own FLOPs."""

    def flops(
        self, num_tokens: int, num_words: int, width: int, question_width: int, budget: int
    ) -> float:
        """Return the FLOPs to keep `budget` of `num_tokens` tokens, given `num_words` words."""
        ...


@dataclass(frozen=True)
class Schedule:
    """How many vision tokens each layer works on.

    >>> Schedule(vision=576, merged=288, cuts=((2, 200),), text=100, num_layers=4).lengths
    (388, 388, 300, 300)
    """

    vision: int
    """Vision tokens of an example before any reduction."""
    merged: int
    """Those that enter the language model."""
    cuts: tuple[tuple[int, int], ...]
    """Layer and budget: tokens that are left from the input of that layer on."""
    text: int
    """All other tokens of the prompt."""
    num_layers: int

    def __post_init__(self) -> None:
        budgets = (self.vision, self.merged, *(budget for _, budget in self.cuts))
        layers = (0, *(layer for layer, _ in self.cuts), self.num_layers)
        if self.text < 0 or min(budgets) < 1:
            raise InputError(f"got budgets {budgets} and {self.text} of text, expected 1 or more")
        if any(after > before for before, after in pairwise(budgets)):
            raise InputError(f"got budgets {budgets}, expected each to be at most the one before")
        if any(after <= before for before, after in pairwise(layers)):
            raise InputError(
                f"got cuts at layers {layers[1:-1]}, expected rising layers from 1 to "
                f"{self.num_layers - 1}: layer 0 is never cut"
            )

    @property
    def vision_by_layer(self) -> tuple[int, ...]:
        """Vision tokens of each layer."""
        left, counts = self.merged, []
        budgets = dict(self.cuts)
        for layer in range(self.num_layers):
            left = budgets.get(layer, left)
            counts.append(left)
        return tuple(counts)

    @property
    def lengths(self) -> tuple[int, ...]:
        """All tokens of each layer."""
        return tuple(count + self.text for count in self.vision_by_layer)

    def without_cut(self, number: int) -> "Schedule":
        """Return the schedule without one cut."""
        return replace(self, cuts=self.cuts[:number] + self.cuts[number + 1 :])


@dataclass(frozen=True)
class Measured:
    """Measured times and memory; None: not measured."""

    selector_ms: float | None = None
    ttft_p50_ms: float | None = None
    """Time to the first token."""
    ttft_p90_ms: float | None = None
    decode_ms: float | None = None
    """Per token after the first."""
    peak_mib: float | None = None
    batch: int | None = None
    dtype: str | None = None
    backend: str | None = None
    """Attention implementation."""
    device: str | None = None


@dataclass(frozen=True)
class Cost:
    """FLOPs and bytes of one example, unpruned and pruned."""

    host: str
    schedule: Schedule
    tower: float
    projector_full: float
    projector: float
    selector: float | None
    """None: unknown."""
    llm_full: float
    llm: float
    kv_bytes_full: int
    kv_bytes: int
    cut_savings: tuple[float, ...]
    """Share of the FLOPs of the language model that each cut saves, given all others."""
    uncounted: tuple[str, ...] = ()
    """Selectors of unknown cost."""
    dtype: str = "bfloat16"
    measured: Measured = field(default_factory=Measured)

    @property
    def reduction_llm(self) -> float:
        """`1 - sum_l F(n_l) / (L F(n_full))`."""
        return 1 - self.llm / self.llm_full

    @property
    def reduction_with_selector(self) -> float:
        """Reduction of the language model, minus the cost of the selector."""
        return 1 - (self.llm + (self.selector or 0.0)) / self.llm_full

    @property
    def reduction_total(self) -> float:
        """Reduction of tower, projector, selector and language model together."""
        full = self.tower + self.projector_full + self.llm_full
        pruned = self.tower + self.projector + (self.selector or 0.0) + self.llm
        return 1 - pruned / full

    @property
    def mean_length(self) -> float:
        """Tokens per layer, mean over layers."""
        return sum(self.schedule.lengths) / self.schedule.num_layers

    @property
    def vision_keep_mean(self) -> float:
        """Share of the vision tokens that a layer keeps, mean over layers."""
        counts = self.schedule.vision_by_layer
        return sum(counts) / len(counts) / self.schedule.vision

    def metrics(self) -> dict[str, float]:
        """Return the numbers by the names that training logs."""
        schedule = self.schedule
        kept = {f"vision_keep_layer_{at}": left / schedule.vision for at, left in schedule.cuts}
        return {
            "vision_keep_merge": schedule.merged / schedule.vision,
            **kept,
            "vision_keep_mean": self.vision_keep_mean,
            "mean_length": self.mean_length,
            "flops_reduction_llm": self.reduction_llm,
            "flops_reduction_with_selector": self.reduction_with_selector,
            "flops_reduction_total": self.reduction_total,
            "kv_bytes": float(self.kv_bytes),
            "avg_original_tokens": float(schedule.vision),
            "avg_merged_tokens": float(schedule.merged),
        }

    def warnings(self, target: float | None = None) -> list[str]:
        """Return warnings: target not reached, cuts that save little, a costly selector."""
        notes = []
        if target is not None and self.reduction_llm < target:
            notes.append(
                f"saves {self.reduction_llm:.1%} of the language model, not the target of "
                f"{target:.1%}: {self.schedule.text} text tokens are always kept; keep fewer "
                "vision tokens, or drop them earlier"
            )
        for (layer, budget), saved in zip(self.schedule.cuts, self.cut_savings, strict=True):
            if saved < SMALL_CUT:
                notes.append(
                    f"the cut to {budget} at layer {layer} saves only {saved:.1%}; leave it out, "
                    "or cut earlier"
                )
        if (self.selector or 0.0) > self.llm_full - self.llm:
            notes.append("the selector costs more than it saves; make it narrower")
        return notes

    def parts(self) -> list[str]:
        """Return the parts of the printed cost; see `line` and `block`."""
        schedule = self.schedule
        counts = [schedule.vision, schedule.merged, *(budget for _, budget in schedule.cuts)]
        layers = [0, *(layer for layer, _ in schedule.cuts)]
        scale, unit = (1e12, "TFLOPs") if self.llm_full >= 1e11 else (1e9, "GFLOPs")

        def scaled(flops: float) -> str:
            return f"{flops / scale:.3g}"

        selector = reduction = ""
        if self.selector is not None:
            selector = f"selector {scaled(self.selector)}, "
            reduction = f"with selector {self.reduction_with_selector:.1%}, "
        if self.uncounted:
            counted = selector.removesuffix(", ") or "selector not counted"
            without = "" if self.selector is None else "without "
            selector = f"{counted} ({without}{', '.join(self.uncounted)}), "
        parts = [
            f"vision {'>'.join(map(str, counts))} @ {','.join(map(str, layers))}",
            f"text {schedule.text}",
            f"mean length {self.mean_length:.0f} of {schedule.vision + schedule.text}",
            f"{unit} ViT {scaled(self.tower)}, projector {scaled(self.projector_full)} > "
            f"{scaled(self.projector)}, {selector}LLM {scaled(self.llm_full)} > {scaled(self.llm)}",
            f"reduction LLM {self.reduction_llm:.1%}, {reduction}total {self.reduction_total:.1%}",
            f"KV {self.kv_bytes_full / _MIB:.3g} > {self.kv_bytes / _MIB:.3g} MiB in {self.dtype}",
        ]
        return [*parts, *_measured_parts(self.measured)]

    def line(self) -> str:
        """Return all parts on one line."""
        return " | ".join(self.parts())

    def block(self) -> str:
        """Return one line for each part."""
        return "\n".join(self.parts())

    def as_plain(self) -> dict[str, Any]:
        """Return plain values, without those that were not measured."""
        plain = {name: value for name, value in asdict(self).items() if name != "measured"}
        measured = {name: v for name, v in asdict(self.measured).items() if v is not None}
        return {**plain, **self.metrics(), **({"measured": measured} if measured else {})}


def _measured_parts(measured: Measured) -> list[str]:
    def short(value: float) -> str:
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"

    times = []
    if measured.selector_ms is not None:
        times.append(f"selector {short(measured.selector_ms)} ms")
    if measured.ttft_p50_ms is not None:
        p90 = "" if measured.ttft_p90_ms is None else f"/{short(measured.ttft_p90_ms)}"
        times.append(f"TTFT p50{'/p90' if p90 else ''} {short(measured.ttft_p50_ms)}{p90} ms")
    if measured.decode_ms is not None:
        times.append(f"decode {short(measured.decode_ms)} ms/token")
    if measured.peak_mib is not None:
        times.append(f"peak {measured.peak_mib:.0f} MiB")
    setting = [f"batch {measured.batch}"] if measured.batch is not None else []
    setting += [name for name in (measured.dtype, measured.backend, measured.device) if name]
    return [", ".join(parts) for parts in (times, setting) if parts]


def count_cost(
    host: HostShape,
    schedule: Schedule,
    *,
    selectors: Sequence[Any] = (),
    dtype: str = "bfloat16",
    measured: Measured | None = None,
) -> Cost:
    """Return the cost of a schedule on a host.

    `selectors`: the reducers of stage 1 and of every cut (None for a stage without one); those
    that are no `SelectorCost` are listed as not counted.
    """
    if schedule.num_layers != host.num_layers:
        raise InputError(
            f"got a schedule for {schedule.num_layers} layers, but {host.name} has "
            f"{host.num_layers}"
        )
    if dtype not in _BYTES:
        raise InputError(f"got dtype {dtype!r}, expected one of {', '.join(_BYTES)}")
    selector, uncounted = _selector_flops(host, schedule, selectors)
    length = schedule.vision + schedule.text
    full = host.num_layers * host.layer.flops(length, causal=host.causal)
    pruned = _llm_flops(host, schedule)
    projector_full = host.projector_flops(schedule.vision)
    repeated = schedule.merged if host.projects_again and schedule.merged < schedule.vision else 0
    without = [_llm_flops(host, schedule.without_cut(n)) for n in range(len(schedule.cuts))]
    per_token = host.layer.cached_values * _BYTES[dtype]
    return Cost(
        host=host.name, schedule=schedule, tower=host.tower_flops(schedule.vision),
        projector_full=projector_full, projector=projector_full + host.projector_flops(repeated),
        selector=selector, llm_full=full, llm=pruned,
        kv_bytes_full=per_token * host.num_layers * length,
        kv_bytes=per_token * sum(schedule.lengths),
        cut_savings=tuple((more - pruned) / full for more in without),
        uncounted=uncounted, dtype=dtype, measured=measured or Measured(),
    )  # fmt: skip


def _llm_flops(host: HostShape, schedule: Schedule) -> float:
    return sum(host.layer.flops(length, causal=host.causal) for length in schedule.lengths)


def _selector_flops(
    host: HostShape, schedule: Schedule, selectors: Sequence[Any]
) -> tuple[float | None, tuple[str, ...]]:
    stages = [(schedule.vision, schedule.merged, host.feature_width)]
    for _, budget in schedule.cuts:
        stages.append((stages[-1][1], budget, host.layer.width))
    if selectors and len(selectors) != len(stages):
        raise InputError(
            f"got {len(selectors)} selectors, expected {len(stages)}: one for the merge and one "
            "for each cut (None where a stage has none)"
        )
    counted, uncounted = [], []
    for selector, (tokens, budget, width) in zip(selectors, stages, strict=False):
        if isinstance(selector, SelectorCost):
            counted.append(selector.flops(tokens, schedule.text, width, host.layer.width, budget))
        elif selector is not None:
            uncounted.append(str(getattr(selector, "name", type(selector).__name__)))
    return sum(counted) if counted else None, tuple(dict.fromkeys(uncounted))
