"""Drafts written down in a file, for `--drafter scripted`: `proposals[row][n]` are the ids of decode step n + 1."""

from __future__ import annotations

import json
from pathlib import Path

from emssd.errors import ConfigError, shown

MAX_BYTES = 2**26
HOW = "write a list per prompt that holds a list of token ids per decode step, for example [[[11, 4]], [[], [7]]]"


def read_proposals(path: str) -> list[list[list[int]]]:
    """Read a script of drafts.

    Returns:
        [rows][steps] token ids. An empty list, and every step after the last one, means no draft.

    Raises:
        ConfigError: the file cannot be read or does not have this form; the message says where.
    """
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise ConfigError(f"The proposals {path} are larger than {MAX_BYTES // 2**20} MiB: write fewer steps.")
        data = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"Cannot read the proposals {path}: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"The proposals {path} are not UTF-8 text (byte {error.start}).") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"The proposals {path} are not JSON: {error.msg} in line {error.lineno}, column {error.colno}."
        ) from None
    except (RecursionError, ValueError):  # brackets, or digits of one number, by the thousand
        raise ConfigError(f"The proposals {path} are not JSON of this kind: {HOW}.") from None
    if not isinstance(data, list):
        raise ConfigError(f"The proposals {path} hold {shown(data)} instead of a list: {HOW}.")
    for row, steps in enumerate(data):
        if not isinstance(steps, list):
            raise ConfigError(f"The proposals {path} hold {shown(steps)} for row {row}: {HOW}.")
        for step, ids in enumerate(steps, start=1):
            where = f"The proposals {path}, row {row}, step {step}"
            if not isinstance(ids, list):
                raise ConfigError(f"{where} hold {shown(ids)}: {HOW}.")
            for token in ids:
                if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                    raise ConfigError(f"{where} hold {shown(token)}, which is no token id: {HOW}.")
    return data


def check_proposals(path: str, proposals: list[list[list[int]]], rows: int, most: int, vocab_size: int) -> None:
    """Hold a script against the run that it is for.

    Args:
        path: for messages.
        proposals: [rows][steps] token ids.
        rows: prompts of the run.
        most: draft tokens a row may have in a step.
        vocab_size: ids 0..vocab_size - 1 exist.

    Raises:
        ConfigError: another number of rows, a step longer than `most`, or an id outside the vocabulary.
    """
    if len(proposals) != rows:
        raise ConfigError(
            f"The proposals {path} are for {len(proposals)} prompt{'' if len(proposals) == 1 else 's'}, "
            f"but the run has {rows}: give as many."
        )
    for row, steps in enumerate(proposals):
        for step, ids in enumerate(steps, start=1):
            where = f"The proposals {path}, row {row}, step {step}"
            if len(ids) > most:
                raise ConfigError(f"{where} hold {len(ids)} drafts, but --num-draft-tokens is {most}: raise it.")
            if ids and max(ids) >= vocab_size:
                raise ConfigError(f"{where} hold the id {max(ids)}, outside the vocabulary 0..{vocab_size - 1}.")
