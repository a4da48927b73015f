"""What the tests share: cached tiny models, independent oracles, drafters that force any acceptance pattern.

Oracle G is the plain `transformers` model that our engine never touches: `greedy` decodes one prompt alone, unpadded,
with `generate`; `recompute` feeds the whole text again for every token, without a cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from random import Random

import torch
from torch import Tensor

from emssd.config import SpeculativeConfig
from emssd.decoding import generate
from emssd.drafting import Drafter, DraftModelDrafter, ScriptedDrafter
from emssd.loading import LanguageModel, load_model
from emssd.random_models import random_model
from emssd.trace import GenerationTrace

VOCAB = 97
SAFE_GAP = 1e-3
"""Prompts whose greedy path has a smaller top-2 logit gap anywhere are not used: rounding could flip a choice there."""
SAFE_ROUTER_GAP = 1e-4
"""The same for the choice of experts, in float32's rounding after a layer or two."""

METHODS5 = ("greedy", "vanilla", "packed-input", "ragged-cache", "ems-sd")
SPECULATIVE = METHODS5[1:]
ALL_METHODS = (*METHODS5, "greedy-ragged")

PROMPT_LENGTHS: dict[str, list[int]] = {
    "1": [1],
    "5": [5],
    "3-3": [3, 3],
    "1-2-9": [1, 2, 9],
    "7-8-9": [7, 8, 9],
    "2-30": [2, 30],
    "mixed-8": [4, 1, 12, 7, 2, 20, 9, 5],
}
"""The batches of prompt lengths that every method must serve."""


def prompt_ids(length: int, salt: int = 0, vocab: int = VOCAB) -> list[int]:
    """A prompt, the same on every machine. Longer ones repeat themselves, so that prompt lookup finds something."""
    draw = Random(1_000_003 * length + salt)
    ids = [draw.randrange(1, vocab) for _ in range(length)]
    if length >= 6:
        ids[-2:] = ids[:2]
    return ids


PROMPTS: dict[str, list[list[int]]] = {
    name: [prompt_ids(length, salt) for salt, length in enumerate(lengths)] for name, lengths in PROMPT_LENGTHS.items()
}
"""The batches as token ids, the same for every model. `batch` takes others where a model has a near-tie on these."""


@cache
def language_model(
    name: str,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int | None = None,
    vocab_size: int = VOCAB,
    max_positions: int | None = None,
    noise: float = 0.0,
    device: str = "cpu",
) -> LanguageModel:
    """A tiny random model, ready to decode; the same object for the same arguments.

    noise: added to every weight, relative to its own spread: a draft model that is often, but not always, right.
    """
    model = random_model(name, seed=seed, vocab_size=vocab_size, max_positions=max_positions)
    if noise:
        stream = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for _, parameter in sorted(model.named_parameters()):
                scale = noise * float(parameter.float().pow(2).mean().sqrt())
                parameter.add_(torch.randn(parameter.shape, generator=stream) * scale)
    if dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped kernel has no float64
    lm = load_model.from_pretrained_model(model.to(device=device, dtype=dtype))
    lm.name = name
    return lm


def device_of(lm: LanguageModel) -> torch.device:
    """Where the plain model is."""
    return next(lm.model.parameters()).device


# --- oracles -------------------------------------------------------------------------------------------------------

_generated: dict[tuple[int, tuple[int, ...]], list[int]] = {}
_recomputed: dict[tuple[int, tuple[int, ...]], list[int]] = {}
_safe: dict[tuple[int, int, int, int], list[int]] = {}
_kept: dict[int, LanguageModel] = {}  # keeps models alive, so that an id means one model


def room(lm: LanguageModel, prompt: Sequence[int], n: int) -> int:
    """Tokens that fit: a model with C positions is fed C tokens, so one more can be emitted."""
    return n if lm.context_length is None else max(min(n, lm.context_length - len(prompt) + 1), 0)


def cut(tokens: Sequence[int], n: int, eos: Iterable[int] = ()) -> list[int]:
    """The first n tokens, up to and including the first end-of-sequence token."""
    ends = set(eos)
    kept: list[int] = []
    for token in tokens[:n]:
        kept.append(token)
        if token in ends:
            break
    return kept


def greedy(lm: LanguageModel, prompt: Sequence[int], n: int, eos: Iterable[int] = ()) -> list[int]:
    """Oracle G: this prompt alone by transformers' own `generate`, at most n new tokens (or what the context holds)."""
    key, wanted = (id(lm), tuple(prompt)), room(lm, prompt, n)
    _kept[id(lm)] = lm
    if len(_generated.get(key, ())) < wanted:
        _generated[key] = plain_generate(lm, prompt, wanted)
    return cut(_generated[key], wanted, eos)


def plain_generate(lm: LanguageModel, prompt: Sequence[int], n: int, eos: Sequence[int] | None = None) -> list[int]:
    """One call of transformers' `generate` on the plain model, greedy, one row without padding."""
    inputs = torch.tensor([list(prompt)], device=device_of(lm))
    with torch.inference_mode():
        output = lm.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=False,
            max_new_tokens=n,
            use_cache=True,
            pad_token_id=0,
            eos_token_id=list(eos) if eos else None,
        )
    return output[0, len(prompt) :].tolist()


def recompute(lm: LanguageModel, prompt: Sequence[int], n: int, eos: Iterable[int] = ()) -> list[int]:
    """Oracle G the hard way: the plain model is fed the whole text for every token, without any cache."""
    key, wanted = (id(lm), tuple(prompt)), room(lm, prompt, n)
    _kept[id(lm)] = lm
    tokens = _recomputed.setdefault(key, [])
    while len(tokens) < wanted:
        tokens.append(int(plain_logits(lm, [*prompt, *tokens])[-1].argmax()))
    return cut(tokens, wanted, eos)


@torch.inference_mode()
def plain_logits(lm: LanguageModel, token_ids: Sequence[int]) -> Tensor:
    """[len(token_ids), vocabulary] logits of the plain model, one forward without a cache."""
    inputs = torch.tensor([list(token_ids)], device=device_of(lm))
    return lm.model(input_ids=inputs, attention_mask=torch.ones_like(inputs), use_cache=False).logits[0]


def gaps(lm: LanguageModel, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """How far each output token is below the plain model's best one, teacher-forced; 0 where it is the best."""
    if not output:
        return []
    logits = plain_logits(lm, [*prompt, *output[:-1]])[len(prompt) - 1 :].double()
    chosen = logits.gather(1, torch.tensor(list(output), device=logits.device)[:, None])[:, 0]
    return (logits.max(dim=-1).values - chosen).tolist()


def top2_gaps(lm: LanguageModel, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """Distance between the plain model's two best tokens at each output position, teacher-forced."""
    logits = plain_logits(lm, [*prompt, *output[:-1]])[len(prompt) - 1 :].double()
    best = logits.topk(2, dim=-1).values
    return (best[:, 0] - best[:, 1]).tolist()


def router_gap(lm: LanguageModel, token_ids: Sequence[int]) -> float:
    """Smallest distance, over layers and tokens, between the last expert chosen and the first one not."""
    scores: list[Tensor] = []
    routers = [module for module in lm.model.modules() if type(module).__name__.endswith("TopKRouter")]
    hooks = [
        router.register_forward_hook(lambda _module, _inputs, output: scores.append(output[0])) for router in routers
    ]
    try:
        plain_logits(lm, token_ids)
    finally:
        for hook in hooks:
            hook.remove()
    chosen = getattr(lm.model.config, "num_experts_per_tok", 0)
    ordered = [layer.double().sort(dim=-1, descending=True).values for layer in scores]
    return min((float((layer[:, chosen - 1] - layer[:, chosen]).min()) for layer in ordered), default=float("inf"))


def safe_prompt(lm: LanguageModel, length: int, salt: int = 0, n: int = 24) -> list[int]:
    """A deterministic prompt on which the model's first n greedy tokens, and its experts, are no near-ties."""
    key = (id(lm), length, salt, n)
    attempt = 0
    while key not in _safe:
        ids = prompt_ids(length, salt + 1000 * attempt, lm.vocab_size)
        output = greedy(lm, ids, n)
        if (
            min(top2_gaps(lm, ids, output), default=1.0) >= SAFE_GAP
            and router_gap(lm, ids + output[:-1]) >= SAFE_ROUTER_GAP
        ):
            _safe[key] = ids
        attempt += 1
        assert attempt < 200, f"{lm.name}: no prompt of {length} tokens without a near-tie in its first {n} tokens."
    return list(_safe[key])


def batch(lm: LanguageModel, lengths: str | Sequence[int], n: int = 24) -> list[list[int]]:
    """A batch of safe prompts: a name of `PROMPT_LENGTHS` or the lengths themselves."""
    wanted = PROMPT_LENGTHS[lengths] if isinstance(lengths, str) else lengths
    return [safe_prompt(lm, length, salt, n) for salt, length in enumerate(wanted)]


# --- drafters ------------------------------------------------------------------------------------------------------


def spoil(token: int, vocab: int) -> int:
    """Another token."""
    return (token + 1) % vocab


def script(outputs: Sequence[Sequence[int]], pattern: Sequence[Sequence[int]], vocab: int, k: int) -> ScriptedDrafter:
    """Proposes k tokens of each row's greedy continuation with one spoiled, so that an exact number is accepted.

    Args:
        outputs: [rows] greedy output of each row, longer than the run by k tokens if every round shall be full.
        pattern: [rows][rounds] drafts to be accepted, 0..k; repeated when the rounds are more.
        vocab: ids are below this.
        k: drafts per round. Those after the spoiled one are right again, so counting matches instead of the leading
            run is found out.
    """
    prompt_lengths: dict[int, int] = {}

    def propose(row: int, committed: list[int], step: int) -> list[int]:
        if step == 1:
            prompt_lengths[row] = len(committed) - 1
        done = len(committed) - prompt_lengths[row]
        draft = list(outputs[row][done : done + k])
        accepted = pattern[row][(step - 1) % len(pattern[row])]
        if accepted < len(draft):
            draft[accepted] = spoil(draft[accepted], vocab)
        return draft

    return ScriptedDrafter(propose)


def never(lm: LanguageModel) -> ScriptedDrafter:
    """Always proposes the token that the target likes least: nothing is ever accepted."""

    @cache
    def worst(committed: tuple[int, ...]) -> tuple[int, ...]:
        return (int(plain_logits(lm, committed)[-1].argmin()),) * 8

    return ScriptedDrafter(lambda row, committed, step: worst(tuple(committed)))


def empty() -> ScriptedDrafter:
    """Never proposes anything, though the settings ask for drafts."""
    return ScriptedDrafter([])


def same(lm: LanguageModel) -> DraftModelDrafter:
    """The target drafts for itself: every draft is accepted."""
    return DraftModelDrafter(lm)


# --- running and comparing -----------------------------------------------------------------------------------------


def expected_reason(lm: LanguageModel, prompt: Sequence[int], output: Sequence[int], n: int, eos: Iterable[int]) -> str:
    """Why a row with this output has ended: "eos" before "length" before "context"."""
    if output and output[-1] in set(eos):
        return "eos"
    return "length" if len(output) >= n else "context"


def assert_same_tokens(trace: GenerationTrace, row: int, wanted: Sequence[int], lm: LanguageModel, what: str) -> None:
    """Fail with architecture, method, drafter, row, position and both tokens at the first difference."""
    got = trace.rows[row].output_token_ids
    if got == list(wanted):
        return
    place = next((i for i, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
    ours = got[place] if place < len(got) else "the end"
    theirs = wanted[place] if place < len(wanted) else "the end"
    prompt = trace.rows[row].prompt_token_ids
    margin = top2_gaps(lm, prompt, wanted[: place + 1])[-1] if place < len(wanted) else float("nan")
    raise AssertionError(
        f"{lm.name} ({lm.dtype}), method {trace.method}, drafter {trace.drafter['name']}, attention {trace.attention}: "
        f"row {row} differs from {what} at position {place}: {ours} instead of {theirs} "
        f"(top-2 gap there {margin:.2e}).\nprompt {prompt}\nours {got}\n{what} {list(wanted)}"
    )


def assert_lossless(
    lm: LanguageModel,
    prompts: Sequence[Sequence[int]],
    config: SpeculativeConfig,
    drafter: Drafter | None = None,
    outputs: Sequence[Sequence[int]] | None = None,
    eos: Sequence[int] = (),
) -> GenerationTrace:
    """Decode and compare every row, with its length and finish reason, with oracle G; returns the trace.

    Args:
        config: its `eos_token_ids` is replaced by `eos`.
        outputs: [rows] what is right; None asks `greedy`.
    """
    config = config.with_settings(eos_token_ids=tuple(eos))
    trace = generate(lm, [list(prompt) for prompt in prompts], config, drafter)
    n = config.max_new_tokens
    for row, prompt in enumerate(prompts):
        wanted = greedy(lm, prompt, n, eos) if outputs is None else cut(outputs[row], room(lm, prompt, n), eos)
        assert_same_tokens(trace, row, wanted, lm, "plain decoding")
        reason = expected_reason(lm, prompt, wanted, n, eos)
        shown = trace.rows[row].finish_reason
        assert shown == reason, f"{lm.name}, method {trace.method}, row {row}: finish reason {shown}, right is {reason}"
    return trace


def accepted_counts(trace: GenerationTrace) -> list[list[int]]:
    """[rows][decode steps in which the row was live] drafts accepted."""
    return [
        [step.rows[row].num_accepted for step in trace.decode_steps if step.rows[row].kind == "decode"]
        for row in range(len(trace.rows))
    ]
