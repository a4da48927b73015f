"""What the page "Numbers" is set to: hardware, model, kernel, costs of a step, drafts, prompts, the batch looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from emssd.acceptance import Acceptance
from emssd.cost_model import CostModel
from emssd.hardware import Hardware
from emssd.machines import PAPER, machines
from emssd.model_presets import MODELS
from emssd.model_shape import ModelShape
from emssd.paper import LABELS as FITTED
from emssd.paper import PaperFit, paper_machine, shipped_fits
from emssd.ui.numbers_own import is_own, own_machine, own_model

KERNELS = {"per_token": "Paper’s kernel", "varlen": "Varlen"}
LABELS = {"hidden": "Hide", "printed": "As printed", "swapped": "Swapped"}
BATCHES = (1, 2, 4, 8, 12, 16, 20, 24)
PAPER_MODEL = "opt-6.7b"
"""The only model that the costs of the paper's GPU are fitted for."""
LONGEST_PROMPT, WIDEST_SPREAD = 1900, 1000
DTYPES = ("float16", "bfloat16", "float32")
"""In this order, the first one that the hardware has a rate for."""
FREE_ROW = 0.5
"""Milliseconds that the slider of a row reaches where a row costs nothing."""


@dataclass(frozen=True)
class Costs:
    """What the three cost sliders say.

    Args:
        fixed: milliseconds of every step: weights, launches and the loop.
        row: milliseconds of each row that is fed.
        slot: microseconds of each slot that attention reads.
    """

    fixed: float
    row: float
    slot: float


@dataclass(frozen=True)
class Settings:
    """One state of the page.

    Args:
        hardware, model: names from `machines()` and `MODELS`, or texts of one's own (`numbers_own`).
        kernel: one of `KERNELS`.
        costs: of a step.
        hit: percent of steps in which a row finds a draft.
        token: percent of drafts that are accepted where those before them were.
        length: draft tokens of a step.
        mean, spread: tokens of the prompts: mean and standard deviation.
        labels: one of `LABELS`: how the paper's two ablation rows are named.
        batch: one of `BATCHES`: the batch whose step is taken apart.
    """

    hardware: str
    model: str
    kernel: str
    costs: Costs
    hit: float
    token: float
    length: int
    mean: int
    spread: int
    labels: str
    batch: int

    @property
    def is_papers(self) -> bool:
        """Whether the machine is the one that the paper's numbers are shown for."""
        return self.hardware == PAPER

    @property
    def machine(self) -> Hardware:
        """The hardware's rates."""
        return machine_of(self.hardware, self.labels)

    @property
    def acceptance(self) -> Acceptance:
        """How rows behave; what no slider sets is as in the fit. Prompts end where the model's positions do."""
        fitted = fitted_acceptance(self.labels)
        room = self.prompt_room
        return fitted.with_settings(
            prompt_max=fitted.prompt_max if room is None else min(room, fitted.prompt_max),
            hit_rate=self.hit / 100,
            token_rate=self.token / 100,
            num_draft_tokens=self.length,
            prompt_mean=float(self.mean),
            prompt_sd=float(self.spread),
        )

    @property
    def shape(self) -> ModelShape:
        """The model's sizes."""
        return shape_of(self.model)

    @property
    def prompt_room(self) -> int | None:
        """Tokens of the longest prompt that leaves the model positions for the output; None where all are known to."""
        fitted, positions = fitted_acceptance(self.labels), self.shape.positions
        room = positions - (fitted.output_tokens - 1)
        return room if positions and room < fitted.prompt_max else None

    @property
    def cost_model(self) -> CostModel:
        """The hardware's costs, moved to where the sliders are."""
        base = replace(base_model(self.hardware, self.model, self.labels), kernel=self.kernel)
        start = costs_of(base)
        share = self.costs.fixed / start.fixed if start.fixed else 1.0
        if share != 1:
            base = replace(
                base, step_ms=base.step_ms * share, weights_ms=base.weights_ms * share, launch_ms=base.launch_ms * share
            )
        if self.costs.row != start.row:
            base = replace(base, row_us=1e3 * self.costs.row)
        return base if self.costs.slot == start.slot else replace(base, slot_us=self.costs.slot)


def machine_of(hardware: str, labels: str) -> Hardware:
    """A machine by name; what is known of the paper's depends on how its ablation rows are named."""
    if is_own(hardware):
        return own_machine(hardware)
    return paper_machine(_fitted_labels(labels)) if hardware == PAPER else machines()[hardware]


def shape_of(model: str) -> ModelShape:
    """Sizes of a preset or of a model of one's own."""
    return own_model(model).shape if is_own(model) else MODELS[model]


def models_for(hardware: str) -> list[str]:
    """Models that a machine's costs are known for."""
    return [PAPER_MODEL] if hardware == PAPER else list(MODELS)


def dtype_of(hardware: Hardware) -> str:
    """The type that weights and cache have on a machine."""
    return next(dtype for dtype in DTYPES if dtype in hardware.peak_flops)


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """FLOP/s that hardware with `peak` FLOP/s and `bandwidth` bytes/s allows at an intensity."""
    return min(peak, intensity * bandwidth)


def base_model(hardware: str, model: str, labels: str) -> CostModel:
    """Costs before any slider is moved: the paper's fit, or what follows from the data sheet."""
    machine = machine_of(hardware, labels)
    return CostModel.for_hardware(machine, shape_of(model), dtype_of(machine))


def fitted_acceptance(labels: str) -> Acceptance:
    """Acceptance as fitted to the paper's numbers."""
    return _fit(labels).acceptance


def _fit(labels: str) -> PaperFit:
    return shipped_fits()[_fitted_labels(labels)]


def _fitted_labels(labels: str) -> str:
    return labels if labels in FITTED else FITTED[0]


def costs_of(model: CostModel) -> Costs:
    """What the sliders show of a cost model, to three digits."""
    fixed = model.step_ms + model.weights_ms + model.launch_ms
    return Costs(rounded(fixed), rounded(model.row_us / 1e3), rounded(model.slot_us))


def rounded(value: float) -> float:
    """The value to three significant digits."""
    return float(f"{value:.3g}")


def start_costs(hardware: str, model: str, labels: str) -> Costs:
    """Where the cost sliders begin."""
    return costs_of(base_model(hardware, model, labels))


def cost_range(start: float, free: float = FREE_ROW) -> tuple[float, float]:
    """(end, step) of a cost slider that begins at `start`: at least twice as far, in steps of its third digit."""
    if start <= 0:
        return free, free / 100
    power = 10.0 ** math.floor(math.log10(2 * start))
    end = next(factor for factor in (2, 5, 10) if factor * power >= 2 * start) * power
    return rounded(end), rounded(10.0 ** (math.floor(math.log10(start)) - 2))


def least_cost(name: str, start: float) -> float:
    """Where a cost slider begins: a step that costs nothing at all has no speed-up, so that "fixed" is never 0."""
    return cost_range(start)[1] if name == "fixed" else 0.0


def default_settings(hardware: str = PAPER, model: str = PAPER_MODEL, labels: str = "hidden") -> Settings:
    """What the page opens with, and what "Reset to fit" restores for a hardware and a model."""
    fit = fitted_acceptance(labels)
    return Settings(
        hardware=hardware,
        model=model,
        kernel="per_token",
        costs=start_costs(hardware, model, labels),
        hit=rounded(100 * fit.hit_rate),
        token=rounded(100 * fit.token_rate),
        length=fit.num_draft_tokens,
        mean=round(fit.prompt_mean),
        spread=round(fit.prompt_sd),
        labels=labels,
        batch=max(BATCHES),
    )
