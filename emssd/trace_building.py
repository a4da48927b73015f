"""Building the trace of a run: one record per step, and the text of every token in it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain

from emssd import __version__
from emssd.accounting import step_account
from emssd.config import SpeculativeConfig
from emssd.drafting import Drafter, DrafterSession
from emssd.language_model import LanguageModel
from emssd.layouts import Commit, StepPlan
from emssd.model_runner import ModelRunner
from emssd.request import Request
from emssd.trace import GenerationTrace, RequestTrace, RowTrace, StepTrace, next_kind
from emssd.verification import TopTokens


@dataclass(frozen=True)
class Verified:
    """What the target said about one step, by request index; zeros and empty lists for rows that were not fed."""

    target_token_ids: list[list[int]]
    num_accepted: list[int]
    num_emitted: list[int]
    top: TopTokens | None = None
    """[rows] the target's best few at the judged positions; None where the settings do not ask for them."""

    def emitted(self, row: int) -> list[int]:
        """Tokens the row gains: accepted drafts equal the target's own choices."""
        return self.target_token_ids[row][: self.num_emitted[row]]


class TraceBuilder:
    """Writes the trace of one run. `trace` is valid after every step.

    Args:
        lm: the target model, for its description and the tokens' texts.
        config: settings of the run.
        drafter: None where nothing is drafted.
        requests: [rows] the run's requests; looked at, never changed.
        eos_token_ids: ids that end a row in this run.
        runner: names the attention that ran.
        slots: cache slots allocated for all rows.
    """

    def __init__(
        self,
        lm: LanguageModel,
        config: SpeculativeConfig,
        drafter: Drafter | None,
        requests: Sequence[Request],
        eos_token_ids: tuple[int, ...],
        runner: ModelRunner,
        slots: int,
    ) -> None:
        self.lm = lm
        self.config = config
        self.requests = requests
        self.eos_token_ids = eos_token_ids
        self.runner = runner
        self.slots = slots
        self.trace = self._empty_trace({"name": "none"} if drafter is None else drafter.describe())

    def _empty_trace(self, drafter: dict[str, object]) -> GenerationTrace:
        decode = self.lm.decode if self.lm.tokenizer is not None else lambda ids: None
        reason = "length" if self.config.max_new_tokens == 0 else None
        rows = [
            RequestTrace(
                list(request.prompt_token_ids),
                decode(request.prompt_token_ids),
                output_text=decode([]),
                finish_reason=reason,
            )
            for request in self.requests
        ]
        trace = GenerationTrace(
            config=self.config.to_dict(),
            method=self.config.method,
            drafter=drafter,
            attention=self.runner.backend,
            model={**self.lm.description(), "pad_token_id": self.lm.pad_token_id},
            rows=rows,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            emssd_version=__version__,
        )
        trace.config["eos_token_ids"] = list(self.eos_token_ids)
        self._name_tokens(trace, [token for request in self.requests for token in request.prompt_token_ids])
        return trace

    def record(
        self,
        index: int,
        plan: StepPlan,
        verified: Verified,
        commit: Commit,
        session: DrafterSession | None,
        seconds: dict[str, float],
        began: float,
    ) -> StepTrace:
        """Append a step that has been committed.

        Args:
            index: of the step; 0 is prefill.
            plan: where its tokens went.
            verified: what the target said.
            commit: what was kept.
            session: the drafter's, for where drafts came from; None in prefill and without a drafter.
            seconds: wall time by phase; "total" is added, with the time that recording takes.
            began: `time.perf_counter()` at the step's start.
        """
        sources = {} if session is None else session.draft_sources
        rows = [self._row_trace(plan, row, verified, commit, sources.get(row)) for row in range(len(self.requests))]
        holes = sum(len(request.place.holes) for request in self.requests)
        account = step_account(plan, self.slots, holes)
        forwards = [] if session is None else [dict(forward) for forward in session.draft_forwards]
        step = StepTrace(index, "decode" if index else "prefill", rows, forwards, account, seconds)
        for row, request in enumerate(self.requests):
            result = self.trace.rows[row]
            result.output_token_ids = list(request.output_token_ids)
            result.finish_reason = request.finish_reason(self.config.max_new_tokens, self.eos_token_ids)
            if self.lm.tokenizer is not None and rows[row].num_emitted:
                result.output_text = self.lm.decode(request.output_token_ids)
        self._name_tokens(self.trace, [token for row_trace in rows for token in _all_tokens(row_trace)])
        self.trace.attention = "+".join(sorted(self.runner.kernels)) or self.runner.backend
        self.trace.steps.append(step)
        seconds["total"] = time.perf_counter() - began
        return step

    def _row_trace(self, plan: StepPlan, row: int, verified: Verified, commit: Commit, source: int | None) -> RowTrace:
        planned, request = plan.rows[row], self.requests[row]
        emitted = verified.emitted(row)[: commit.kept[row]]
        accepted = min(verified.num_accepted[row], len(emitted))
        top = verified.top if emitted else None
        return RowTrace(
            row=row,
            kind=planned.kind,
            cache_start=planned.cache_start,
            next_slot=request.place.next_slot,
            slots=list(planned.slots),
            input_token_ids=list(planned.input_token_ids),
            input_kinds=list(planned.input_kinds),
            position_ids=list(planned.position_ids),
            target_token_ids=list(verified.target_token_ids[row]),
            num_drafted=planned.num_drafted,
            num_accepted=accepted,
            num_emitted=len(emitted),
            emitted_token_ids=emitted,
            next_kind=next_kind(planned.num_drafted, accepted, len(emitted)),
            cache_len=request.place.cache_len,
            holes_added=list(commit.holes[row]),
            finished=request.place.finished,
            draft_source=source if planned.num_drafted else None,
            top_token_ids=None if top is None else top.token_ids[row][: len(emitted)],
            top_logit_gaps=None if top is None else top.logit_gaps[row][: len(emitted)],
        )

    def _name_tokens(self, trace: GenerationTrace, token_ids: Sequence[int]) -> None:
        if self.lm.tokenizer is None:
            return
        for token in token_ids:
            if str(token) not in trace.tokens:
                trace.tokens[str(token)] = self.lm.token_text(token)


def _all_tokens(row: RowTrace) -> list[int]:
    """Every id that a row's record shows."""
    return [*row.input_token_ids, *row.target_token_ids, *chain.from_iterable(row.top_token_ids or [])]
