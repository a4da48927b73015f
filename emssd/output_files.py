"""Outputs in a file: JSON lines with `prompt_token_ids` and `output_token_ids`, made here or by another program."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emssd.errors import PromptError
from emssd.trace import write_text_atomically

MAX_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Output:
    """One line of the file.

    Args:
        line: its number, from 1.
        prompt_token_ids: what was given.
        output_token_ids: what came out; an end-of-sequence token is included.
    """

    line: int
    prompt_token_ids: list[int]
    output_token_ids: list[int]


def read_outputs(path: str) -> list[Output]:
    """Read and check such a file. Empty lines are skipped, further fields ignored.

    Raises:
        PromptError: the file cannot be read, or a line is not what it should be; names the line and the field.
    """
    outputs = []
    for number, text in enumerate(_read_text(Path(path)).split("\n"), start=1):
        if text.strip():
            outputs.append(_output(path, number, text))
    if not outputs:
        raise PromptError(f"{path} holds no outputs: write one JSON object a line.")
    return outputs


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PromptError(f"{path} is larger than {MAX_BYTES // 2**20} MiB: split it.")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is not UTF-8 text (byte {error.start}).") from None
    except (OSError, ValueError) as error:
        raise PromptError(f"Cannot read {str(path)[:200]}: {getattr(error, 'strerror', None) or error}.") from None


def _output(path: str, number: int, text: str) -> Output:
    where = f"{path}, line {number}"
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        too_much = "nested too deeply" if isinstance(error, RecursionError) else "a number is too large"
        reason = getattr(error, "msg", too_much)
        raise PromptError(f"{where}: not JSON ({reason}); each line must be one JSON object.") from None
    if not isinstance(data, dict):
        raise PromptError(f"{where}: a line must be a JSON object with prompt_token_ids and output_token_ids.")
    prompt, output = (_ids(where, data, name) for name in ("prompt_token_ids", "output_token_ids"))
    if not prompt:
        raise PromptError(f"{where}: prompt_token_ids is empty.")
    return Output(number, prompt, output)


def _ids(where: str, data: dict[str, Any], name: str) -> list[int]:
    if name not in data:
        raise PromptError(f"{where}: {name} is missing.")
    ids = data[name]
    if not isinstance(ids, list) or any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
        raise PromptError(f"{where}: {name} must be a list of token ids (whole numbers from 0).")
    return ids


def write_outputs(path: str, prompts: Sequence[list[int]], outputs: Sequence[list[int]]) -> None:
    """Write such a file, one line per row.

    Raises:
        TraceError: the file cannot be written.
    """
    lines = [
        json.dumps({"prompt_token_ids": prompt, "output_token_ids": output})
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    write_text_atomically(Path(path), "\n".join(lines) + "\n")
