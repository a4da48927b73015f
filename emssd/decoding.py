"""The loop: draft, plan, forward, verify, commit. Greedy decoding is the same loop without a drafter."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate

import torch

from emssd.config import SpeculativeConfig
from emssd.drafting import Batch, Drafter, DrafterSession, DraftRow, PromptLookupDrafter, check_ids
from emssd.errors import ConfigError, shown
from emssd.invariants import InvariantChecker
from emssd.kv_cache import KVStore
from emssd.layouts import Commit, Layout, StepPlan, make_layout, output_limits, prefill_plan
from emssd.loading import LanguageModel
from emssd.memory import check_memory
from emssd.model_runner import ModelRunner
from emssd.profiling import phase
from emssd.request import Prompt, Request, encode_prompts
from emssd.trace import GenerationTrace, StepTrace
from emssd.trace_building import TraceBuilder, Verified
from emssd.verification import TopTokens, top_tokens, verify_greedy


def generate(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    config: SpeculativeConfig | None = None,
    drafter: Drafter | None = None,
    *,
    chat: bool = False,
) -> GenerationTrace:
    """Decode a batch and return the whole trace. Arguments and errors as in `generate_steps`."""
    run = generate_steps(lm, prompts, config, drafter, chat=chat)
    for _ in run:
        pass
    return run.trace


def generate_steps(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    config: SpeculativeConfig | None = None,
    drafter: Drafter | None = None,
    *,
    chat: bool = False,
) -> GenerationRun:
    """Decode a batch step by step.

    Args:
        lm: what `load_model` returned.
        prompts: texts or lists of token ids, one per row.
        config: settings; None means EMS-SD with its defaults.
        drafter: None means prompt lookup where the settings ask for drafts.
        chat: put texts into the model's chat template.

    Returns:
        An iterator of `StepTrace`; its `.trace` is the valid trace so far and `.close()` stops the run.

    Raises:
        PromptError: names every bad row, before any forward.
        ConfigError: settings that do not fit the batch or the machine's memory.
    """
    config = SpeculativeConfig() if config is None else config
    _check_arguments(lm, config, drafter)
    token_ids = encode_prompts(lm, prompts, chat).require_all()
    config.check_batch(len(token_ids))
    return GenerationRun(lm, token_ids, config, drafter)


class GenerationRun(Iterator[StepTrace]):
    """A run in progress: iterate it for steps. `trace` is valid at any time."""

    def __init__(
        self,
        lm: LanguageModel,
        prompts: list[list[int]],
        config: SpeculativeConfig,
        drafter: Drafter | None = None,
    ) -> None:
        self.lm = lm
        self.config = config
        self.drafter = (drafter or PromptLookupDrafter()) if config.drafts else None
        self.eos_token_ids = lm.eos_token_ids if config.eos_token_ids is None else _as_tuple(config.eos_token_ids)
        lengths = [len(prompt) for prompt in prompts]
        limits = output_limits(lengths, config.max_new_tokens, lm.context_length)
        self.layout: Layout = make_layout(config, lm.pad_token_id)
        most = config.max_draft_tokens
        self.capacities = self.layout.capacities(lengths, limits, max(limits) if most is None else most)
        check_memory(lm, self.capacities)
        self.requests = [
            Request(place, prompt, limit)
            for place, prompt, limit in zip(self.layout.start(lengths), prompts, limits, strict=True)
        ]
        self.runner = ModelRunner(lm.hooked, config.attention)
        self.builder = TraceBuilder(
            lm, config, self.drafter, self.requests, self.eos_token_ids, self.runner, sum(self.capacities)
        )
        self.should_stop: Callable[[], bool] = lambda: False
        """Asked before every step and between the chunks of prefill, so that a run can end while it is inside one."""
        self._closed = False
        self._steps = self._run()

    @property
    def _stopped(self) -> bool:
        return self._closed or self.should_stop()

    @property
    def trace(self) -> GenerationTrace:
        """What has happened so far, valid at any time."""
        return self.builder.trace

    def __next__(self) -> StepTrace:
        return next(self._steps)

    def close(self) -> None:
        """Stop: at once between steps, and before the next forward if another thread is inside a step."""
        self._closed = True
        try:
            self._steps.close()
        except ValueError:
            return  # another thread is inside a step and will see the flag

    def _run(self) -> Generator[StepTrace, None, None]:
        if self.config.max_new_tokens == 0:
            return
        checker = InvariantChecker(self) if self.config.check_invariants else None
        store = KVStore(self.capacities)
        began = time.perf_counter()
        first = self._prefill(store, began)
        if first is None:
            return
        drafting = time.perf_counter()
        with phase("draft"):
            session = self._start_session()
            self.runner.synchronize()
        first.seconds["draft"] = time.perf_counter() - drafting
        first.seconds["total"] = time.perf_counter() - began
        if checker:
            checker.check(store, first)
        yield first
        while not self._stopped and any(not request.place.finished for request in self.requests):
            step = self._decode_step(len(self.trace.steps), session, store)
            if checker:
                checker.check(store, step)
            yield step

    def _prefill(self, store: KVStore, began: float) -> StepTrace | None:
        prompts = [request.prompt_token_ids for request in self.requests]
        with phase("target"):
            logits = self.runner.prefill(prompts, store, lambda: self._stopped)
            if logits is None:
                return None
            target = logits.argmax(dim=-1)
            tokens = target.tolist()
        target_done = time.perf_counter()
        plan = prefill_plan([(row, 0, prompt) for row, prompt in enumerate(prompts)])
        top = self._top_tokens(logits, target, list(range(len(tokens))), [1] * len(tokens))
        verified = Verified([[token] for token in tokens], [0] * len(tokens), [1] * len(tokens), top)
        for request, token in zip(self.requests, tokens, strict=True):
            request.output_token_ids.append(token)
            request.place.finished = self._reason(request) is not None
        commit = Commit((1,) * len(tokens), (), ((),) * len(tokens), ())
        seconds = {"draft": 0.0, "target": target_done - began, "verify": 0.0}
        seconds["commit"] = time.perf_counter() - target_done
        return self.builder.record(0, plan, verified, commit, None, seconds, began)

    def _start_session(self) -> DrafterSession | None:
        if self.drafter is None:
            return None
        batch = Batch(self.config, self.capacities, lambda: self._stopped)
        rows = [DraftRow(request.place, request.token_ids) for request in self.requests]
        return self.drafter.start(self.lm, rows, batch)

    def _draft_row(self, request: Request, step: int) -> DraftRow:
        wanted = self.config.draft_length(request.place.index, step)
        return DraftRow(request.place, request.token_ids, wanted)

    def _decode_step(self, index: int, session: DrafterSession | None, store: KVStore) -> StepTrace:
        began = time.perf_counter()
        with phase("draft"):
            drafts = self._draft(index, session)
            self.runner.synchronize()
        drafted = time.perf_counter()

        with phase("plan"):
            pending = [request.output_token_ids[-1] for request in self.requests]
            plan = self.layout.plan([request.place for request in self.requests], pending, drafts)
        with phase("target"):
            logits = self.runner.forward(plan, store)
            self.runner.synchronize()
        answered = time.perf_counter()

        with phase("verify"):
            verified = self._verify(plan, logits)
        judged = time.perf_counter()

        with phase("commit"):
            commit = self._commit(plan, verified, store)
            if session is not None:
                session.observe({row.row: verified.emitted(row.row)[: commit.kept[row.row]] for row in plan.live})
        seconds = {
            "draft": drafted - began,
            "target": answered - drafted,
            "verify": judged - answered,
            "commit": time.perf_counter() - judged,
        }
        return self.builder.record(index, plan, verified, commit, session, seconds, began)

    def _draft(self, step: int, session: DrafterSession | None) -> list[list[int]]:
        """[rows] drafts, capped so that only an end-of-sequence token can cut what a row emits."""
        drafts: list[list[int]] = [[] for _ in self.requests]
        if session is None:
            return drafts
        live = [request for request in self.requests if not request.place.finished]
        rows = [self._draft_row(request, step) for request in live]
        limits = [self._cap(request, row.num_draft_tokens) for request, row in zip(live, rows, strict=True)]
        for row, limit, proposal in zip(rows, limits, session.propose(rows, limits), strict=True):
            drafts[row.index] = check_ids(proposal, row.index, self.lm.vocab_size)[:limit]
        return drafts

    def _cap(self, request: Request, wanted: int) -> int:
        context = self.lm.context_length
        room = wanted if context is None else context - 1 - request.place.cache_len
        return max(min(wanted, request.remaining - 1, room), 0)

    def _verify(self, plan: StepPlan, logits: torch.Tensor) -> Verified:
        """Judge all rows on the device, and bring the answer over in one transfer, the best few tokens in another."""
        live, device = plan.live, logits.device
        width = max(row.num_drafted for row in live)
        starts = [0, *accumulate(row.num_fed for row in plan.rows)]
        index = [
            [starts[row.row] + min(place, row.num_drafted) for place in range(width + 1)] for row in live
        ]  # (live, width + 1) packed indices; pads are never looked at
        drafts = [[*row.input_token_ids[1 : 1 + row.num_drafted], *[0] * (width - row.num_drafted)] for row in live]
        choices = logits.argmax(dim=-1)  # (packed,)
        target = choices[torch.tensor(index, device=device)]  # (live, width + 1)
        accepted, emitted = verify_greedy(
            target,
            torch.tensor(drafts, dtype=torch.long, device=device).view(len(live), width),
            torch.tensor([row.num_drafted for row in live], device=device),
            torch.tensor(self.eos_token_ids, dtype=torch.long, device=device),
        )
        answers = torch.cat([target, accepted[:, None], emitted[:, None]], dim=1).tolist()
        rows = len(plan.rows)
        counts = [0] * rows
        for row, answer in zip(live, answers, strict=True):
            counts[row.row] = answer[-1]
        judged = [place for row in live for place in range(starts[row.row], starts[row.row] + counts[row.row])]
        top = self._top_tokens(logits, choices, judged, counts)
        verified = Verified([[] for _ in range(rows)], [0] * rows, counts, top)
        for row, (*tokens, num_accepted, _) in zip(live, answers, strict=True):
            verified.target_token_ids[row.row].extend(tokens[: 1 + row.num_drafted])
            verified.num_accepted[row.row] = num_accepted
        return verified

    def _top_tokens(
        self, logits: torch.Tensor, choices: torch.Tensor, judged: list[int], counts: list[int]
    ) -> TopTokens | None:
        """The best few tokens at the `judged` rows of the logits, `counts` of them for each request."""
        if not self.config.num_top_tokens:
            return None
        places = torch.tensor(judged, device=logits.device)
        return top_tokens(logits[places], choices[places], counts, self.config.num_top_tokens)

    def _commit(self, plan: StepPlan, verified: Verified, store: KVStore) -> Commit:
        ended = [False] * len(self.requests)
        for row in plan.live:
            request = self.requests[row.row]
            request.output_token_ids.extend(verified.emitted(row.row))
            ended[row.row] = self._reason(request) is not None
        places = [request.place for request in self.requests]
        commit = self.layout.commit(places, plan, verified.num_emitted, ended)
        for row in plan.live:
            surplus = verified.num_emitted[row.row] - commit.kept[row.row]
            if surplus:
                del self.requests[row.row].output_token_ids[-surplus:]
        store.move(commit.moves)
        return commit

    def _reason(self, request: Request) -> str | None:
        return request.finish_reason(self.config.max_new_tokens, self.eos_token_ids)


def _check_arguments(lm: LanguageModel, config: SpeculativeConfig, drafter: Drafter | None) -> None:
    given: object = lm
    if not isinstance(given, LanguageModel):
        raise ConfigError(f"The model must come from load_model, not {shown(given)}.")
    given = config
    if not isinstance(given, SpeculativeConfig):
        raise ConfigError(f"The settings must be a SpeculativeConfig, not {shown(given)}.")
    if drafter is not None and (isinstance(drafter, type) or not hasattr(drafter, "start")):
        raise ConfigError(f"The drafter must be a drafter object such as PromptLookupDrafter(), not {shown(drafter)}.")


def _as_tuple(token_ids: int | tuple[int, ...]) -> tuple[int, ...]:
    return (token_ids,) if isinstance(token_ids, int) else token_ids
