"""Time of a step from its account: what the same work would take on hardware that is not at hand.

Modelled time is not measured time, and the two are never shown together.
"""

from __future__ import annotations

from dataclasses import dataclass

from emssd.accounting import StepAccount


@dataclass(frozen=True)
class CostModel:
    """Time = a fixed cost per step + a cost per fed row + a cost per slot that the attention kernel reads.

    Args:
        name: model and hardware that the costs are for.
        step_ms: milliseconds of every step: reading the weights, starting kernels, the loop itself.
        row_us: microseconds of each row fed to the dense layers, pads included.
        slot_us: microseconds of each slot read, in all layers together. Slots are counted per token and launch, as
            the paper's kernel reads them.
    """

    name: str
    step_ms: float
    row_us: float
    slot_us: float

    def step_seconds(self, account: StepAccount) -> float:
        """Seconds of one decode step."""
        rows = sum(account.input_rows.values())
        slots = sum(account.kv_slots_scanned["per_token"].values()) * account.attention_launches
        return 1e-3 * self.step_ms + 1e-6 * (self.row_us * rows + self.slot_us * slots)

    def explanation(self) -> str:
        """The formula in one sentence, with its numbers."""
        row = f", {self.row_us:g} µs for each row fed" if self.row_us else ""
        return (
            f"Modelled, not measured: each step costs {self.step_ms:g} ms{row} and {self.slot_us:g} µs for each KV "
            "slot that is read, counted per token and launch (two launches where any row feeds more than one token)."
        )


PAPER_FIT = CostModel("OPT-6.7B on A100 80 GB", 13.7, 0.0, 0.248)
"""Four parameters (these two costs and two of the draft's acceptance) fitted to the 31 numbers of the paper's Table 2,
to about 3 % (root mean square), with prompts of lognormal length and the two ablation rows of the table exchanged: as
printed they fit only costs that no single GPU has. A fed row is free up to about 150 rows, where reading the weights
hides it. One slot is 0.5 MiB, so 0.248 µs are 2.1 TB/s. The GPU is a guess from that: see `PAPER_FIT_SOURCE`."""

PAPER_FIT_SOURCE = (
    "The costs are fitted to the speeds in the paper’s Table 2 (OPT-6.7B, two attention launches). The paper’s code "
    "does not name the GPU: an A100 80 GB is a guess that fits them."
)
