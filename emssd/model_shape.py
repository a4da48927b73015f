"""The sizes of a model that FLOPs, bytes and modelled times follow from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WindowShares = tuple[tuple[int | None, float], ...]
"""(window, share of the layers that have it), None for layers without one; empty where no layer has a window."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes that FLOPs and bytes follow from, in a trace's words (`trace.model`).

    Args:
        experts, experts_per_token: of a mixture; 0 of a dense model.
        positions: longest context; 0 where it is not known.
        bytes_per_value: size of one cached number.
        windows: [layers] tokens that a query of the layer sees, itself included, None: all of them; empty where no
            layer has a window.
        measured_linear_weights, measured_head_weights: counted on the model's modules, for one fed row: linear layers
            without the LM head, and the LM head; 0 where only sizes are known.
        measured_expert_weights: of one expert, in all layers together; 0 where it is not known.
        latent_width: values that a slot of a layer holds where keys and values are cached as one compressed vector;
            0: keys and values of every head.
    """

    parameters: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int
    hidden: int
    intermediate: int
    expert_intermediate: int
    experts: int
    experts_per_token: int
    vocab: int
    positions: int
    tied_embeddings: bool
    bytes_per_value: int
    windows: tuple[int | None, ...] = ()
    measured_linear_weights: int = 0
    measured_head_weights: int = 0
    measured_expert_weights: int = 0
    latent_width: int = 0

    @classmethod
    def from_trace(cls, model: Mapping[str, Any]) -> ModelShape:
        """Read `trace.model`. Optional fields that are missing get what most models have."""

        def count(name: str, default: int) -> int:
            value = model.get(name)
            return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default

        experts = count("experts", 0)
        inner = count("intermediate", 4 * model["hidden"])
        bits = re.search(r"\d+", str(model.get("dtype", "")))
        return cls(
            parameters=model["parameters"],
            layers=model["layers"],
            heads=model["heads"],
            kv_heads=model["kv_heads"],
            head_dim=model["head_dim"],
            value_head_dim=count("value_head_dim", model["head_dim"]),
            hidden=model["hidden"],
            intermediate=inner,
            expert_intermediate=count("expert_intermediate", inner),
            experts=experts,
            experts_per_token=count("experts_per_token", 1) if experts else 0,
            vocab=model["vocab"],
            positions=count("context_length", 0),
            tied_embeddings=model.get("tied_embeddings") is True,
            bytes_per_value=max(int(bits.group()) // 8, 1) if bits and len(bits.group()) < 4 else 4,
            windows=_windows(model),
            measured_linear_weights=count("linear_weights_per_row", 0),
            measured_head_weights=count("head_weights", 0),
            measured_expert_weights=count("expert_weights", 0),
            latent_width=count("latent_width", 0),
        )

    @property
    def window_shares(self) -> WindowShares:
        """Windows with the share of layers that have each, as expectations and drawn batches take them."""
        return tuple((window, count / self.layers) for window, count in Counter(self.windows).items())

    @property
    def slot_values(self) -> int:
        """Values that one slot of one layer holds: keys and values of its heads, or one compressed vector."""
        return self.latent_width or self.kv_heads * (self.head_dim + self.value_head_dim)

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's query, key, value and output projections."""
        queries_and_outputs = self.heads * (self.head_dim + self.value_head_dim)
        keys_and_values = self.kv_heads * (self.head_dim + self.value_head_dim)
        return self.hidden * (queries_and_outputs + keys_and_values)

    def feed_forward_weights(self, networks: int, matrices: int, inner: int) -> int:
        """Weights of one layer's feed-forward networks, a mixture's router included."""
        return matrices * networks * self.hidden * inner + self.hidden * self.experts

    @property
    def feed_forward(self) -> tuple[int, int]:
        """Matrices and inner width of a feed-forward network: 3 with a gate, else 2; an expert may be narrower.

        A trace does not say it outright, but its number of parameters does: the form whose weights come nearest to
        it, with or without a learned table of positions.
        """
        embeddings = self.hidden * self.vocab * (1 if self.tied_embeddings else 2)

        def distance(form: tuple[int, int]) -> int:
            layer = self.attention_weights + self.feed_forward_weights(max(self.experts, 1), *form)
            rest = self.parameters - embeddings - self.layers * layer
            return min(abs(rest), abs(rest - self.hidden * self.positions))

        widths = [self.expert_intermediate, self.intermediate] if self.experts else [self.intermediate]
        return min(((matrices, inner) for matrices in (3, 2) for inner in widths), key=distance)

    @property
    def head_weights(self) -> int:
        """Weights of the LM head."""
        return self.measured_head_weights or self.hidden * self.vocab

    @property
    def linear_weights_per_row(self) -> int:
        """Weights of the linear layers, LM head left out, that one fed row is multiplied with."""
        if self.measured_linear_weights:
            return self.measured_linear_weights
        layer = self.attention_weights + self.feed_forward_weights(self.experts_per_token or 1, *self.feed_forward)
        lookup = 0 if self.tied_embeddings else self.hidden * self.vocab
        return max(min(self.layers * layer, self.parameters - lookup - self.head_weights), 0)

    @property
    def weights_per_row(self) -> int:
        """Weights that one fed row is multiplied with, LM head included; never more than the model has."""
        return min(self.linear_weights_per_row + self.head_weights, self.parameters)

    @property
    def expert_weights(self) -> int:
        """Weights of one expert of a mixture, in all layers together; 0 of a dense model."""
        matrices, inner = self.feed_forward
        return (self.measured_expert_weights or self.layers * matrices * self.hidden * inner) if self.experts else 0

    def weights_read(self, rows: int) -> int:
        """Weights that a forward over `rows` rows reads: linear layers and LM head, each once.

        Of a mixture's experts as many as the rows can touch, `experts_per_token` each, and at most all. The lookup in
        the embedding tables, norms and biases are left out.
        """
        touched = min(rows * self.experts_per_token, self.experts)
        return self.weights_per_row + (touched - self.experts_per_token) * self.expert_weights if rows else 0


def _windows(model: Mapping[str, Any]) -> tuple[int | None, ...]:
    window, kinds = model.get("sliding_window"), model.get("layer_types")
    if isinstance(window, bool) or not isinstance(window, int) or window < 1:
        return ()
    if not isinstance(kinds, list) or len(kinds) != model["layers"] or "sliding_attention" not in kinds:
        return ()
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
