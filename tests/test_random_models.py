"""The tiny models notice what a decoder can get wrong: a position, a visible pad, a token that should have differed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from emssd.errors import ConfigError
from emssd.random_models import LEARNED_LIMIT, RANDOM_MODELS, random_model, random_tokenizer

PROMPT_LENGTHS = (1, 2, 5, 9, 17, 30)
NEW_TOKENS = 24
ENOUGH_TOKENS = 8
SMALLEST_GAP = 1e-3
SMALLEST_ROUTER_MARGIN = 1e-4


def prompts() -> list[Tensor]:
    stream = torch.Generator().manual_seed(1)
    return [torch.randint(1, 97, (length,), generator=stream) for length in PROMPT_LENGTHS]


@torch.inference_mode()
def logits_of(model: PreTrainedModel, ids: Tensor, positions: Tensor | None = None) -> Tensor:
    """[tokens, vocabulary]; the mask of ones keeps transformers from reading jumps in positions as packed texts."""
    positions = torch.arange(len(ids)) if positions is None else positions
    mask = torch.ones(1, len(ids), dtype=torch.long)
    inputs = {"input_ids": ids[None], "attention_mask": mask, "position_ids": positions[None]}
    return model(**inputs, use_cache=False).logits[0]


@dataclass
class Sensitivity:
    """How a model reacts, over all prompts and their greedy continuations."""

    distinct: list[int] = field(default_factory=list)
    """Different tokens in each continuation."""
    gaps: list[float] = field(default_factory=list)
    """Top-2 logit gap at every step."""
    router_margins: list[float] = field(default_factory=list)
    """Last chosen expert's logit above the first one left out."""
    moved_by_positions: int = 0
    """Argmaxes that change when the second half of the text stands one position later."""
    moved_by_pad: int = 0
    """Argmaxes that change when a pad in front of the text is visible."""


@contextmanager
def watched_routers(model: PreTrainedModel, margins: list[float]) -> Iterator[None]:
    chosen = getattr(model.config, "num_experts_per_tok", 1)

    def note(router: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        scores = nn.functional.linear(inputs[0].flatten(0, -2), router.weight, getattr(router, "bias", None))
        best = scores.topk(chosen + 1).values
        margins.append(float((best[:, chosen - 1] - best[:, chosen]).min()))

    hooks = [m.register_forward_hook(note) for m in model.modules() if type(m).__name__.endswith("TopKRouter")]
    yield
    for hook in hooks:
        hook.remove()


def measure(model: PreTrainedModel) -> Sensitivity:
    found = Sensitivity()
    model.set_attn_implementation("eager")
    with watched_routers(model, found.router_margins):
        for prompt in prompts():
            ids = prompt
            for _ in range(NEW_TOKENS):
                last = logits_of(model, ids)[-1]
                best = last.topk(2).values
                found.gaps.append(float(best[0] - best[1]))
                ids = torch.cat([ids, last.argmax()[None]])
            found.distinct.append(len(set(ids[len(prompt) :].tolist())))
            usual = logits_of(model, ids).argmax(-1)
            later = torch.arange(len(ids)) + (torch.arange(len(ids)) >= len(ids) // 2)
            found.moved_by_positions += int((logits_of(model, ids, later).argmax(-1) != usual).sum())
            padded = torch.cat([torch.zeros(1, dtype=torch.long), ids])
            in_front = torch.cat([torch.zeros(1, dtype=torch.long), torch.arange(len(ids))])
            found.moved_by_pad += int((logits_of(model, padded, in_front).argmax(-1)[1:] != usual).sum())
    return found


@pytest.mark.parametrize("name", RANDOM_MODELS)
def test_the_model_is_sensitive(name: str) -> None:
    found = measure(random_model(name))
    assert min(found.distinct) >= ENOUGH_TOKENS, "greedy output collapses"
    assert min(found.gaps) >= SMALLEST_GAP, "a near-tie: take another seed"
    assert found.moved_by_positions > 0
    assert found.moved_by_pad > 0
    assert min(found.router_margins, default=1.0) > SMALLEST_ROUTER_MARGIN, "a near-tie of the router"


@pytest.mark.parametrize("name", ["random-opt", "random-gpt2", "random-gpt-bigcode"])
def test_shifting_every_learned_position_changes_the_output(name: str) -> None:
    model = random_model(name)
    ids = prompts()[-1]
    usual, shifted = logits_of(model, ids), logits_of(model, ids, torch.arange(len(ids)) + 1)
    assert (usual.argmax(-1) != shifted.argmax(-1)).any()


@pytest.mark.parametrize("name", ["random-opt", "random-gpt2", "random-gpt-bigcode"])
def test_a_learned_table_takes_exactly_its_limit(name: str) -> None:
    model = random_model(name)
    assert model.config.max_position_embeddings == LEARNED_LIMIT
    ids = torch.ones(LEARNED_LIMIT + 1, dtype=torch.long)
    assert logits_of(model, ids[:-1]).isfinite().all()
    with pytest.raises(IndexError):
        logits_of(model, ids)


def test_the_same_name_gives_the_same_weights_and_leaves_the_global_stream_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = random_model("random-llama").state_dict()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(4)
    second, other = random_model("llama").state_dict(), random_model("llama", seed=9).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("size", [90, 101])
def test_vocabulary_context_and_dtype_can_be_chosen(size: int) -> None:
    model = random_model("random-gpt2", vocab_size=size, max_positions=20, dtype=torch.float64)
    assert model.get_output_embeddings().weight.shape[0] == size
    assert model.config.n_positions == 20
    assert model.dtype == torch.float64


@pytest.mark.parametrize("name", RANDOM_MODELS)
def test_no_end_of_sequence_and_pad_is_zero(name: str) -> None:
    model = random_model(name)
    for settings in (model.config, model.generation_config):
        assert settings.eos_token_id is None
        assert settings.pad_token_id == 0
    assert not model.training


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"random-nothing.*random-llama"):
        random_model("random-nothing")


def test_the_tokenizer_returns_every_printable_text() -> None:
    tokenizer = random_tokenizer()
    text = "two  spaces, don't ' .\n" + "".join(chr(code) for code in range(32, 127))
    ids = tokenizer.encode(text)
    assert len(tokenizer) == 97
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("é") == [0]
