"""The KV store: a flat pool of slots per layer. Spans and masks decide what is visible; nothing is ever zeroed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


class KVStore:
    """Keys and values of a batch: per layer two pools of shape [slots, kv_heads, head_dim].

    Row r owns slots `offsets[r] .. offsets[r] + capacities[r] - 1` of the pool. Head counts, widths, dtype and device
    are taken from the first keys and values that arrive, so sharded and mixed-device models need nothing special.

    Args:
        capacities: [rows] slots of each row.
        fill: value of untouched slots; NaN shows any read beyond a row's length.
    """

    def __init__(self, capacities: Sequence[int], fill: float = 0.0) -> None:
        self.capacities = list(capacities)
        self.offsets = [0, *accumulate(self.capacities)][:-1]
        self.num_slots = sum(self.capacities)
        self.fill = fill
        self._pools: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def layers(self) -> list[int]:
        """Layers that have been written."""
        return sorted(self._pools)

    def pools(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's pools, made on first use for key [tokens, kv_heads, head_dim] and its value."""
        if layer not in self._pools:
            self._pools[layer] = (self._make(key), self._make(value))
        return self._pools[layer]

    def write(self, layer: int, flat_slots: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Put key and value [tokens, kv_heads, head_dim] into flat slots [tokens]; returns the layer's pools."""
        keys, values = self.pools(layer, key, value)
        keys.index_copy_(0, flat_slots, key)
        values.index_copy_(0, flat_slots, value)
        return keys, values

    @torch.inference_mode()
    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy slots within rows: (row, from slot, to slot). All reads happen before the first write."""
        if not moves:
            return
        source = [self.offsets[row] + first for row, first, _ in moves]
        target = [self.offsets[row] + second for row, _, second in moves]
        for pools in self._pools.values():
            for pool in pools:
                pool[target] = pool[source].clone()

    def read(self, layer: int, row: int, slots: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Copies of a row's keys and values at `slots`: [len(slots), kv_heads, head_dim] each."""
        keys, values = self._pools[layer]
        index = torch.as_tensor([self.offsets[row] + slot for slot in slots], dtype=torch.long, device=keys.device)
        return keys[index], values[index]

    @torch.inference_mode()
    def snapshot(self, lengths: Sequence[int]) -> dict[int, tuple[Tensor, Tensor]]:
        """Copies of slots 0..lengths[r] - 1 of every row r, one after another, by layer.

        Returns:
            Layer -> keys and values, [sum(lengths), kv_heads, head_dim] each. `restore` takes them.
        """
        index = self._leading_slots(lengths)
        copies = {}
        for layer, (keys, values) in self._pools.items():
            copies[layer] = (keys[index.to(keys.device)], values[index.to(values.device)])
        return copies

    @torch.inference_mode()
    def restore(self, lengths: Sequence[int], copies: dict[int, tuple[Tensor, Tensor]]) -> None:
        """Put what `snapshot` copied into slots 0..lengths[r] - 1 of every row; rows may have other capacities here."""
        index = self._leading_slots(lengths)
        for layer, (keys, values) in copies.items():
            self.write(layer, index.to(keys.device), keys, values)

    def _leading_slots(self, lengths: Sequence[int]) -> Tensor:
        rows = zip(self.offsets, lengths, strict=True)
        return torch.tensor([offset + slot for offset, length in rows for slot in range(length)], dtype=torch.long)

    @torch.inference_mode()
    def poison(self, row: int, slots: Sequence[int], value: float) -> None:
        """Overwrite slots of a row in every layer, to show that nothing reads them."""
        flat = [self.offsets[row] + slot for slot in slots]
        for pools in self._pools.values():
            for pool in pools:
                pool[flat] = value

    def _make(self, like: Tensor) -> Tensor:
        shape = (self.num_slots, *like.shape[1:])  # [slots, kv_heads, head_dim]
        if self.fill == 0.0:
            return torch.zeros(shape, dtype=like.dtype, device=like.device)  # pages are touched when written
        return torch.full(shape, self.fill, dtype=like.dtype, device=like.device)
