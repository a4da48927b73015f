"""A loaded model as the rest of the package sees it: what it can be fed, how text becomes ids, what it is made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from emssd.attention import share_weights
from emssd.embedded import weights_checksum
from emssd.errors import PromptError
from emssd.self_check import SelfCheckReport, context_length, layer_windows

EXPERT = re.compile(r"\bexperts\.(\d+)\b")
"""An expert that is a module of its own, in a module's name."""


@dataclass
class LanguageModel:
    """A causal language model, ready to decode.

    Args:
        model: the plain transformers model, whose own `generate` works.
        hooked: a copy that shares its weights and runs our attention.
        tokenizer: None means that prompts are token ids.
        name: what it was loaded as.
        path: a folder in transformers' own format, or None.
        report: what the self-check measured; None if it was skipped.
    """

    model: PreTrainedModel
    hooked: PreTrainedModel
    tokenizer: Any = None
    name: str = "model"
    path: Path | None = None
    report: SelfCheckReport | None = None

    @cached_property
    def oracle(self) -> PreTrainedModel:
        """A weight-sharing copy for plain decoding: in evaluation mode, whatever mode the user's model is in, and
        without its generation settings (penalties, suppressed tokens, sampling)."""
        plain = cast(PreTrainedModel, share_weights(self.model)).eval()
        plain.generation_config = GenerationConfig()
        return plain

    @property
    def device(self) -> torch.device:
        """Where the first parameter lives."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return next(self.model.parameters()).dtype

    @property
    def context_length(self) -> int | None:
        """Positions that can be fed, so one more token can be emitted; None if the configuration has no limit."""
        return context_length(self.model)

    @property
    def vocab_size(self) -> int:
        """Rows of the output embedding: ids 0..vocab_size-1 exist, padding included."""
        return _vocabulary(self.model)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a row: the generation configuration's, else the configuration's, else none."""
        found = self._special_id("eos_token_id")
        if found is None:
            return ()
        return tuple(found) if isinstance(found, (list, tuple)) else (int(found),)

    @property
    def bos_token_id(self) -> int | None:
        """The id that starts a text, which an empty prompt is fed as; None if the model has none."""
        found = self._special_id("bos_token_id")
        return found if isinstance(found, int) and 0 <= found < self.vocab_size else None

    @property
    def pad_token_id(self) -> int:
        """The id that padded inputs show; 0 if the model has none. Never inspected."""
        found = self._special_id("pad_token_id")
        return found if isinstance(found, int) and 0 <= found < self.vocab_size else 0

    def _special_id(self, entry: str) -> Any:
        own = getattr(getattr(self.model, "generation_config", None), entry, None)
        return own if own is not None else getattr(self.model.config.get_text_config(), entry, None)

    def encode(self, text: str, chat: bool = False) -> list[int]:
        """Token ids of a text with the tokenizer's special tokens; `chat` wraps it as one user turn.

        Raises:
            PromptError: there is no tokenizer, no chat template where one is asked for, or the tokenizer is not
                this model's.
        """
        if self.tokenizer is None:
            raise PromptError(f"{self.name} has no tokenizer: give token ids instead of text.")
        if chat and not getattr(self.tokenizer, "chat_template", None):
            raise PromptError(f"The tokenizer of {self.name} has no chat template: leave out the chat option.")
        if chat:
            turns = [{"role": "user", "content": text}]
            text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = list(self.tokenizer(text, add_special_tokens=not chat)["input_ids"])
        if ids and max(ids) >= self.vocab_size:
            raise PromptError(
                f"The tokenizer of {self.name} gives the id {max(ids)}, but the model knows 0..{self.vocab_size - 1}: "
                "give it its own tokenizer."
            )
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids without special tokens; the ids themselves where there is no tokenizer."""
        if self.tokenizer is None:
            return " ".join(map(str, token_ids))
        ids = list(token_ids)
        return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def token_text(self, token_id: int) -> str:
        """One token as it is shown alone, special ones included; a piece of a character as its vocabulary entry."""
        if self.tokenizer is None:
            return str(token_id)
        piece = self.tokenizer.convert_ids_to_tokens(token_id)
        if piece is None:
            return f"<{token_id}>"
        if "\u2581" in piece:  # how sentencepiece writes a space
            return str(piece).replace("\u2581", " ")
        text = str(self.tokenizer.decode([token_id], clean_up_tokenization_spaces=False))
        return str(piece) if "\ufffd" in text or not text else text

    def description(self) -> dict[str, Any]:
        """The model as plain data: what a trace stores and what FLOPs and bytes are computed from."""
        checksum = weights_checksum(self.path) if self.path else None
        return {"name": self.name, **describe(self.model), "checksum": checksum}


def describe(model: PreTrainedModel) -> dict[str, Any]:
    """Architecture, sizes, layer types and versions of a transformers model, JSON-ready."""
    config = model.config.get_text_config()

    def first(*entries: str) -> Any:
        return next((value for entry in entries if (value := getattr(config, entry, None)) is not None), None)

    hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
    latent = hasattr(config, "qk_nope_head_dim")  # compressed keys: their width is a sum, values have their own
    head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim if latent else first("head_dim") or hidden // heads
    windows = layer_windows(config)
    head = model.get_output_embeddings()
    return {
        "architecture": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "layers": int(config.num_hidden_layers),
        "heads": heads,
        "kv_heads": 1 if getattr(config, "multi_query", False) else int(first("num_key_value_heads") or heads),
        "head_dim": int(head_dim),
        "value_head_dim": int(config.v_head_dim if latent else head_dim),
        "hidden": hidden,
        "intermediate": int(first("intermediate_size", "ffn_dim", "n_inner") or 4 * hidden),
        "expert_intermediate": first("moe_intermediate_size"),
        "experts_per_token": first("num_experts_per_tok"),
        "vocab": _vocabulary(model),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "device": str(next(model.parameters()).device),
        "tied_embeddings": head is not None and model.get_input_embeddings().weight is head.weight,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "sliding_window": next((window for window in windows if window is not None), None),
        **count_weights(model),
        "context_length": context_length(model),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
    }


def count_weights(model: PreTrainedModel) -> dict[str, int | None]:
    """Weights of the modules that multiply every fed row, as `ModelShape` needs them.

    Returns:
        experts: of a mixture, else None; expert_weights: of one expert, in all layers together;
        linear_weights_per_row: of linear layers, GPT-2's `Conv1D` and routers, the LM head left out, and of as many
            experts as a token is sent to;
        head_weights: of the LM head.
    """
    head = model.get_output_embeddings()
    experts = in_experts = shared = 0
    for name, module in dense_modules(model).items():
        weights = [weight for weight in module.parameters(recurse=False) if weight.ndim == 3]  # [experts, ., .]
        alone = EXPERT.search(name)
        if weights or alone:
            here = int(alone.group(1)) + 1 if alone else weights[0].shape[0]
            experts = max(experts, here)
            in_experts += sum(weight.numel() for weight in weights) or cast(Tensor, module.weight).numel()
        elif module is not head:
            shared += cast(Tensor, module.weight).numel()
    each = in_experts // experts if experts else 0
    per_token = int(getattr(model.config.get_text_config(), "num_experts_per_tok", None) or 1)
    return {
        "experts": experts or None,
        "linear_weights_per_row": shared + per_token * each,
        "head_weights": 0 if head is None else head.weight.numel(),
        "expert_weights": each,
    }


def dense_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Modules by name that multiply rows with a matrix of their own: `nn.Linear`, `Conv1D`, routers, fused experts.

    A module counts if it has a "weight" of two dimensions, embeddings left out, or, as experts that are stacked, a
    parameter of three.
    """
    found = {}
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        matrix = "weight" in own and own["weight"].ndim == 2 and not isinstance(module, nn.Embedding)
        stacked = "expert" in type(module).__name__.lower() and any(weight.ndim == 3 for weight in own.values())
        if matrix or stacked:
            found[name] = module
    return found


def _vocabulary(model: PreTrainedModel) -> int:
    head = model.get_output_embeddings()
    return int(model.config.get_text_config().vocab_size if head is None else head.weight.shape[0])
