"""Expected rows, slots and launches of each step, without drawing anything: for sliders.

Rows are independent and alike but for a number z from N(0, 1), which a nine-point Gauss-Hermite rule sums over. A row's
tokens so far are a first-passage process: `p[t, z, s]` is the chance that the row is live at step t with s tokens, by
exact recursion. Widest input and largest gain of a batch follow from P(max >= j) = 1 - P(one row < j) ** rows, and a
row that is still live after t steps has had gains that are exchangeable, so the shared column's expectation is exact
too. Approximate are: the rule over z, the column where a row is filled up by pads, and the prompts' quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from emssd.acceptance import MAX_BATCH, Acceptance, Floats, check_whole
from emssd.accounting import ATTENTION_MODES
from emssd.model_shape import WindowShares
from emssd.row_law import NEGLIGIBLE, NO_PROMPTS, RowLaw, row_law
from emssd.run_counts import RunCounts, check_method
from emssd.window_expectation import BatchTerms, Kinds, RecentHoles, WindowLayer, greedy_window, mean_layer

ExpectedRun = RunCounts


def expected_steps(
    acceptance: Acceptance, batch_size: int, methods: Sequence[str], windows: WindowShares = ()
) -> dict[str, ExpectedRun]:
    """Expected counts of every decode step of a batch.

    Args:
        acceptance: how rows behave.
        batch_size: rows decoded together, 1 to 256.
        methods: command-line names.
        windows: of the model's layers (`ModelShape.window_shares`); slots are then those of a mean layer.

    Returns:
        For each method its counts, arrays [steps], each given that the step exists (`happens` is that chance).

    Raises:
        ConfigError: the batch size is out of range, or a method is unknown.
    """
    return expected_runs(acceptance, [batch_size], methods, windows)[batch_size]


def expected_runs(
    acceptance: Acceptance, batch_sizes: Sequence[int], methods: Sequence[str], windows: WindowShares = ()
) -> dict[int, dict[str, ExpectedRun]]:
    """The same for several batch sizes, which share most of the work: batch size -> method -> counts.

    Raises:
        ConfigError: a batch size is out of range, or a method is unknown.
    """
    for size in batch_sizes:
        check_whole("batch_size", size, 1, MAX_BATCH)
    for method in methods:
        check_method(method)
    sizes = list(dict.fromkeys(batch_sizes))
    runs: dict[int, dict[str, ExpectedRun]] = {size: {} for size in sizes}
    plain = [method for method in methods if method.startswith("greedy")]
    found = [run for method in plain for run in _greedy(acceptance, sizes, method, windows)]
    if len(plain) < len(methods):
        batches = _Batches(acceptance, row_law(acceptance.with_settings(**NO_PROMPTS)), sizes, windows)
        found += [run for method in methods if method not in plain for run in batches.expected(method)]
    for run in found:
        runs[run.batch_size][run.method] = run
    return {size: {method: runs[size][method] for method in methods} for size in sizes}


@lru_cache(maxsize=64)
def _window_layer(acceptance: Acceptance, window: int) -> WindowLayer:
    return WindowLayer(acceptance, row_law(acceptance.with_settings(**NO_PROMPTS)).states, window)


class _Batches:
    """Expectations of whole batches: arrays [sizes, steps]."""

    def __init__(self, acceptance: Acceptance, law: RowLaw, sizes: Sequence[int], windows: WindowShares = ()) -> None:
        self.law, self.sizes = law, sizes
        self.rows = rows = np.array(sizes)[:, None]
        self.decoded = acceptance.output_tokens - 1
        self.prompt, self.longest = _prompts(acceptance, sizes)
        self.happens = 1 - (1 - law.live) ** rows
        self.others = others = law.fed_less ** (rows - 1)[:, :, None]
        self.width = (1 - law.fed_less * others).sum(2)
        wide = law.live[:, None] - (law.fed_less - (1 - law.live)[:, None]) * others  # P(live and width >= j)
        self.live_width = wide.sum(2)
        self.width_run = wide @ np.arange(1.0, wide.shape[2] + 1)
        self.own_width = (law.own[:, None] - law.own_fed_less * others).sum(2)
        self.all_single = others[:, :, 1] if others.shape[2] > 1 else np.ones(others.shape[:2])
        self.column, self.real_column = self._columns()
        self.mean_column = self.column / np.maximum(law.live, NEGLIGIBLE**2)
        self.layers = [
            (share, None if window is None else _window_layer(acceptance, window))
            for window, share in windows or ((None, 1.0),)
        ]

    def _columns(self) -> tuple[Floats, Floats]:
        """E[moves of the shared column so far; a row is live], weighted with 1 and with the rows it feeds."""
        law, steps = self.law, np.arange(len(self.law.live))
        other_less = law.gain_less ** (self.rows - 1)[:, :, None]
        self.before = before = np.cumsum(other_less, axis=1) - other_less
        most = law.gain_less.shape[1]
        column = most * steps * law.live - np.einsum("tj,ntj->nt", law.past_less, before)
        return column, most * steps * law.real - np.einsum("tj,ntj->nt", law.past_less_real, before)

    def expected(self, method: str) -> list[ExpectedRun]:
        """[sizes] counts of one method, given that the step exists."""
        law, (cache, inputs) = self.law, check_method(method)
        padded, filled = cache == "padded", inputs == "padded"
        none = np.zeros_like(self.happens)
        pads = self.live_width - law.real if filled else none
        per_token, varlen, single = self._slots(padded, filled, pads)
        finished = self.width - self.live_width if filled else none
        launches = 2 - self._single_share(single, sum(per_token.values(), none))
        tables = [{"useful": law.real + none, "pad": pads, "finished": finished}, per_token, varlen]
        scale = self.rows / self.happens
        inputs_of, *scans_of = [{kind: scale * np.maximum(v, 0.0) for kind, v in each.items()} for each in tables]
        live = scale * law.live
        return [
            RunCounts(
                method=method,
                batch_size=size,
                tokens=float(size * self.decoded),
                happens=self.happens[place],
                input_rows={kind: values[place] for kind, values in inputs_of.items()},
                kv_slots_scanned={
                    mode: {kind: values[place] for kind, values in each.items()}
                    for mode, each in zip(ATTENTION_MODES, scans_of, strict=True)
                },
                launches=launches[place],
                live=live[place],
            )
            for place, size in enumerate(self.sizes)
        ]

    def _slots(self, padded: bool, filled: bool, pads: Floats) -> tuple[Kinds, Kinds, Floats]:
        """[sizes, steps] slots of a row of the mean layer: for each query, once per row, and where all are fed one."""
        found = [(share, self._full_layer(padded, filled, pads)) for share, layer in self.layers if layer is None]
        terms = self._terms(padded)
        found += [(share, layer.scans(terms, pads)) for share, layer in self.layers if layer is not None]
        if len(found) == 1:
            return found[0][1]
        per_token = mean_layer([(share, each) for share, (each, _, _) in found])
        varlen = mean_layer([(share, once) for share, (_, once, _) in found])
        return per_token, varlen, sum((share * single for share, (_, _, single) in found), np.zeros_like(pads))

    def _terms(self, padded: bool) -> BatchTerms:
        law = self.law
        return BatchTerms(
            prompt_pads=self.longest - self.prompt if padded else 0 * self.longest,
            holes=RecentHoles(law.live, law.own, law.past_less, self.before) if padded else None,
            real_holes=RecentHoles(law.real, law.real_own, law.past_less_real, self.before) if padded else None,
            column=self.mean_column,
            others_less=self.others,
        )

    def _full_layer(self, padded: bool, filled: bool, pads: Floats) -> tuple[Kinds, Kinds, Floats]:
        law, none = self.law, np.zeros_like(self.happens)
        prompt_pads = self.longest - self.prompt if padded else 0 * self.longest
        per_token = {
            "useful": law.real * self.prompt + law.real_own + law.real_run + none,
            "prompt_pad": law.real * prompt_pads,
            "hole": self.real_column - law.real_own if padded else none,
        }
        needed = sum(per_token.values(), none)
        per_token["pad_query"] = np.where(pads > NEGLIGIBLE, self._filled_up(padded) - needed, 0.0) if filled else none
        varlen = {
            "useful": law.live * self.prompt + law.own + law.real + none,
            "prompt_pad": law.live * prompt_pads,
            "hole": self.column - law.own if padded else none,
            "pad_query": pads,
        }
        return per_token, varlen, self._single(padded)

    def _filled_up(self, padded: bool) -> Floats:
        """Slots that a live row scans when it is fed as many tokens as the widest row."""
        start = self.longest if padded else self.prompt
        moved = self.live_width * self.mean_column if padded else self.own_width
        return self.live_width * start + moved + self.width_run

    def _single(self, padded: bool) -> Floats:
        """Slots that a row scans where it is fed one token."""
        law = self.law
        ragged = law.single * (self.prompt + 1) + law.single_own
        return law.single * (self.longest + self.mean_column + 1) if padded else ragged

    def _single_share(self, single: Floats, slots: Floats) -> Floats:
        """Share of the slots that is scanned in steps where every row is fed one token: one launch."""
        return np.clip(single * self.all_single / np.maximum(slots, NEGLIGIBLE**2), 0.0, 1.0)


def _prompts(acceptance: Acceptance, sizes: Sequence[int]) -> tuple[float, Floats]:
    """Mean prompt length, and [sizes, 1] mean of the longest prompt of each batch."""
    longest = np.array([[acceptance.mean_longest_prompt(size)] for size in sizes])
    return acceptance.mean_longest_prompt(1), longest


def _greedy(acceptance: Acceptance, sizes: Sequence[int], method: str, windows: WindowShares = ()) -> list[ExpectedRun]:
    """[sizes] plain decoding: all rows feed one token and live to the end."""
    steps = np.arange(acceptance.output_tokens - 1, dtype=float)
    none, one = np.zeros_like(steps), np.ones_like(steps)
    padded = check_method(method)[0] == "padded"
    prompt, longest = _prompts(acceptance, sizes)
    runs = []
    for size, most in zip(sizes, longest[:, 0], strict=True):
        pads = size * (most - prompt) * one if padded else none
        full = {"useful": size * (prompt + steps + 1), "prompt_pad": pads, "hole": none, "pad_query": none}
        apart = float(most - prompt) if padded else 0.0
        tables = [
            (share, full if window is None else greedy_window(acceptance, window, len(steps), apart, size))
            for window, share in windows
        ]
        scanned = mean_layer(tables) if tables else full
        runs.append(
            RunCounts(
                method=method,
                batch_size=size,
                tokens=float(size * len(steps)),
                happens=one,
                input_rows={"useful": size * one, "pad": none, "finished": none},
                kv_slots_scanned=dict.fromkeys(ATTENTION_MODES, scanned),
                launches=one,
                live=size * one,
            )
        )
    return runs
