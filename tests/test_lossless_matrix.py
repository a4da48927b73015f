"""Every architecture, method, drafter, batch, draft length and way to stop, in a pairwise cover: always plain decoding.

Mixtures of experts run in float64, so that no near-tie of a router can flip an expert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import pytest
import torch

from emssd.config import METHODS, SpeculativeConfig
from emssd.drafting import Drafter, DraftModelDrafter, PromptLookupDrafter
from emssd.loading import LanguageModel
from emssd.random_models import RANDOM_MODELS
from emssd.trace import GenerationTrace
from tests.helpers import (
    ALL_METHODS,
    PROMPT_LENGTHS,
    SPECULATIVE,
    accepted_counts,
    assert_lossless,
    batch,
    cut,
    empty,
    greedy,
    language_model,
    never,
    plain_generate,
    recompute,
    same,
    script,
)
from tests.pairwise import Case, pairs_of, pairwise

MIXTURES = ("random-mixtral", "random-qwen3-moe", "random-olmoe", "random-gpt-oss")
REQUIRED = frozenset(
    {"opt", "gpt2", "llama", "mistral", "gemma2", "gemma3", "qwen2", "qwen3", "glm4", "phi3", "gpt-neox", "gptj"}
    | {"olmo2", "granite", "starcoder2", "mixtral", "qwen3-moe", "gpt-oss"}
)
NEAR_NOISE = 0.05
HORIZON = 26  # greedy tokens known per prompt: 20 of the longest run and a full draft more
LARGEST_DRAFT = {"1": 1, "3": 3, "rows 0,1,3,5": 5, "schedule 3,0,0,3": 3, "none": 3}
FACTORS: dict[str, list[object]] = {
    "architecture": list(RANDOM_MODELS),
    "method": list(ALL_METHODS),
    "drafter": ["prompt-lookup", "same", "other", "near", "never", "empty", "scripted", "none"],
    "batch": list(PROMPT_LENGTHS),
    "draft_length": list(LARGEST_DRAFT),
    "max_new": ["1", "2", "K", "K+1", "20"],
    "eos": ["none", "one", "two", "pad"],
    "attention": ["auto", "reference"],
    "check_invariants": [False, True],
}


def allowed(case: Case) -> bool:
    """Greedy methods have neither drafter nor draft length; all others have both."""
    plain = {str(case["method"]).startswith("greedy")} if "method" in case else set()
    return len(plain | {case[name] == "none" for name in ("drafter", "draft_length") if name in case}) < 2


CASES = pairwise(FACTORS, allowed)


def target(architecture: str, device: str = "cpu", **changes: Any) -> LanguageModel:
    """The model of a case."""
    dtype = torch.float64 if architecture in MIXTURES else torch.float32
    return language_model(architecture, dtype, device=device, **changes)


def draft_lengths(name: str, rows: int) -> int | tuple[int, ...] | Callable[[int, int], int]:
    """The setting `num_draft_tokens` of a case."""
    if name.startswith("rows"):
        return tuple(islice(cycle((0, 1, 3, 5)), rows))
    if name.startswith("schedule"):
        return lambda row, step: (3, 0, 0, 3)[(step - 1) % 4]
    return LARGEST_DRAFT[name]


def make_drafter(name: str, number: int, lm: LanguageModel, outputs: list[list[int]], device: str) -> Drafter | None:
    """The drafter of a case; prompt lookup alternates between the paper's settings and ones that hit more often."""
    if name == "none":
        return None
    if name == "prompt-lookup":
        return PromptLookupDrafter() if number % 2 else PromptLookupDrafter(ngram_size=1, source="context")
    if name == "scripted":
        pattern = [[(row + 2 * turn + number) % 6 for turn in range(5)] for row in range(len(outputs))]
        return script(outputs, pattern, lm.vocab_size, 5)
    makers: dict[str, Callable[[], Drafter]] = {
        "same": lambda: same(lm),
        "other": lambda: DraftModelDrafter(target(lm.name, device, seed=1)),
        "near": lambda: DraftModelDrafter(target(lm.name, device, noise=NEAR_NOISE)),
        "never": lambda: never(lm),
        "empty": empty,
    }
    return makers[name]()


def declare_eos(kind: str, number: int, outputs: list[list[int]], max_new: int) -> tuple[int, ...]:
    """Tokens of the greedy outputs, declared to end a row: at any place of a block, the first token included."""
    if kind == "none":
        return ()
    place, row = number % min(max_new, 7), number % len(outputs)
    ends = [outputs[row][place]]
    if kind == "two":
        ends.append(outputs[-1][(place + 3) % max_new])
    return tuple(dict.fromkeys(ends))


@dataclass(frozen=True)
class Prepared:
    """All that a run needs."""

    lm: LanguageModel
    prompts: list[list[int]]
    config: SpeculativeConfig
    drafter: Drafter | None
    eos: tuple[int, ...]


def prepare(case: Case, number: int, device: str = "cpu") -> Prepared:
    """Model, prompts, settings and drafter of a case."""
    lm = target(str(case["architecture"]), device)
    prompts = batch(lm, str(case["batch"]), HORIZON)
    outputs = [greedy(lm, prompt, HORIZON) for prompt in prompts]
    k = LARGEST_DRAFT[str(case["draft_length"])]
    max_new = {"K": k, "K+1": k + 1}.get(str(case["max_new"])) or int(str(case["max_new"]))
    cache, inputs = METHODS[str(case["method"])]
    config = SpeculativeConfig(
        cache_layout=cache,
        input_layout=inputs,
        num_draft_tokens=0 if case["drafter"] == "none" else draft_lengths(str(case["draft_length"]), len(prompts)),
        max_new_tokens=max_new,
        attention=str(case["attention"]),
        check_invariants=bool(case["check_invariants"]),
    )
    drafter = make_drafter(str(case["drafter"]), number, lm, outputs, device)
    return Prepared(lm, prompts, config, drafter, declare_eos(str(case["eos"]), number, outputs, max_new))


def run_case(case: Case, number: int, device: str = "cpu") -> GenerationTrace:
    """Run, compare with plain decoding, check what the drafter must have achieved, read the trace back."""
    ready = prepare(case, number, device)
    generation = ready.lm.model.generation_config
    pad = generation.pad_token_id
    try:
        if case["eos"] == "pad":
            generation.pad_token_id = ready.eos[0]
        trace = assert_lossless(ready.lm, ready.prompts, ready.config, ready.drafter, eos=ready.eos)
    finally:
        generation.pad_token_id = pad
    if case["eos"] != "none":
        assert "eos" in [row.finish_reason for row in trace.rows]
    for row in trace.live_rows():
        if case["drafter"] == "same" and row.num_emitted > row.num_accepted:
            assert row.num_accepted == row.num_drafted, f"{case}: the target itself drafted, but was not believed"
        if case["drafter"] in ("never", "empty"):
            assert row.num_accepted == 0, case
    assert GenerationTrace.from_json(trace.to_json()) == trace
    return trace


def _name(number: int) -> str:
    case = CASES[number]
    return "-".join(str(case[name]).replace(" ", "_") for name in FACTORS)


@pytest.mark.parametrize("number", range(len(CASES)), ids=_name)
def test_output_is_that_of_plain_decoding(number: int) -> None:
    run_case(CASES[number], number)


def test_the_cover_is_complete_and_small() -> None:
    assert len(CASES) <= 300
    assert all(allowed(case) for case in CASES)
    missing = [pair for pair in pairs_of(FACTORS, allowed) if not any(dict(pair).items() <= c.items() for c in CASES)]
    assert missing == []
    assert len(RANDOM_MODELS) >= 22
    assert {f"random-{name}" for name in REQUIRED} <= set(RANDOM_MODELS)


def check_against_recomputation(lm: LanguageModel, near: LanguageModel) -> None:
    """The stronger oracle on eight ragged rows, all methods; the draft model is often, but not always, right."""
    prompts = batch(lm, "mixed-8", HORIZON)
    outputs = [recompute(lm, prompt, 20) for prompt in prompts]
    assert outputs == [greedy(lm, prompt, 20) for prompt in prompts]
    for method in SPECULATIVE:
        config = SpeculativeConfig.for_method(
            method, num_draft_tokens=(0, 1, 3, 5, 2, 4, 3, 1), max_new_tokens=20, check_invariants=method == "vanilla"
        )
        trace = assert_lossless(lm, prompts, config, DraftModelDrafter(near), outputs)
        accepted = accepted_counts(trace)
        assert any(len(set(counts)) > 1 for counts in accepted), "the draft model shall be right at times, and wrong"
        assert len({sum(counts[:4]) for counts in accepted}) > 1, "the rows shall become ragged"


@pytest.mark.parametrize("architecture", list(RANDOM_MODELS))
def test_full_recomputation_agrees(architecture: str) -> None:
    check_against_recomputation(target(architecture), target(architecture, noise=NEAR_NOISE))


@pytest.mark.parametrize("architecture", MIXTURES)
def test_mixtures_of_experts_in_float32(architecture: str) -> None:
    """With the kernels that they are normally run with, on prompts without a near-tie of a router."""
    check_against_recomputation(language_model(architecture), language_model(architecture, noise=NEAR_NOISE))


@pytest.mark.parametrize("place", [0, 3, 8])
def test_cutting_at_eos_is_what_generate_does(place: int) -> None:
    """The oracle decodes without an end and is cut; transformers stopping by itself gives the same."""
    lm = language_model("random-llama")
    for prompt in batch(lm, "1-2-9"):
        free = greedy(lm, prompt, 12)
        assert plain_generate(lm, prompt, 12, eos=[free[place]]) == cut(free, 12, [free[place]])
