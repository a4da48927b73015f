"""Prompts in, committed tokens out: what one request is while it is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from emssd.errors import PromptError, shown
from emssd.layouts import Row
from emssd.loading import LanguageModel
from emssd.trace import finish_reason

Prompt = str | Sequence[int]


@dataclass
class Request:
    """One row of the batch: its tokens and its place in the cache."""

    place: Row
    prompt_token_ids: list[int]
    output_limit: int
    """Tokens it may emit: max_new_tokens, or fewer where the model's context ends."""
    output_token_ids: list[int] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        """Committed tokens: prompt + output so far. The last one is pending."""
        return self.prompt_token_ids + self.output_token_ids

    @property
    def remaining(self) -> int:
        """Tokens it may still emit."""
        return self.output_limit - len(self.output_token_ids)

    def finish_reason(self, max_new_tokens: int, eos_token_ids: Sequence[int]) -> str | None:
        """Why the row has ended, None if it lives."""
        return finish_reason(self.output_token_ids, max_new_tokens, self.output_limit, eos_token_ids)


@dataclass(frozen=True)
class EncodedPrompts:
    """Token ids of the good prompts, and one sentence for each bad one."""

    token_ids: list[list[int] | None]
    problems: dict[int, str]

    def require_all(self) -> list[list[int]]:
        """The ids of every prompt.

        Raises:
            PromptError: names all bad rows.
        """
        if self.problems:
            raise PromptError(" ".join(self.problems[row] for row in sorted(self.problems)))
        return [ids for ids in self.token_ids if ids is not None]


def encode_prompts(lm: LanguageModel, prompts: Sequence[Prompt], chat: bool = False) -> EncodedPrompts:
    """Turn prompts into token ids and check them against the model, before any forward.

    An empty prompt becomes the model's beginning-of-sequence token if it has one.

    Args:
        lm: the model that will decode them.
        prompts: texts or lists of token ids.
        chat: put texts into the model's chat template.

    Raises:
        PromptError: there are no prompts at all, or they are not given as a list.
    """
    if isinstance(prompts, (str, bytes)):
        raise PromptError("Prompts must be given as a list: put the single prompt in brackets.")
    if not hasattr(prompts, "__len__"):
        raise PromptError(f"Prompts must be given as a list, not {shown(prompts)}.")
    if not len(prompts):
        raise PromptError("There are no prompts: give at least one.")
    token_ids: list[list[int] | None] = []
    problems: dict[int, str] = {}
    for row, prompt in enumerate(prompts):
        try:
            token_ids.append(_encode(lm, row, prompt, chat))
        except PromptError as error:
            token_ids.append(None)
            problems[row] = str(error)
    return EncodedPrompts(token_ids, problems)


def _encode(lm: LanguageModel, row: int, prompt: Prompt, chat: bool) -> list[int]:
    if isinstance(prompt, str):
        try:
            prompt.encode("utf-8")  # some tokenizers raise a TypeError where this says what is wrong
            ids = lm.encode(prompt, chat=chat)
        except UnicodeEncodeError:
            raise PromptError(f"Row {row}: the prompt holds half of a surrogate pair, which is not text.") from None
        except PromptError as error:
            raise PromptError(f"Row {row}: {error}") from None
    else:
        ids = _check_ids(lm, row, prompt)
    if not ids:
        bos = lm.bos_token_id
        if bos is None:
            raise PromptError(
                f"Row {row}: the prompt is empty, and {lm.name} has no beginning-of-sequence token to start from."
            )
        ids = [bos]
    if lm.context_length is not None and len(ids) > lm.context_length:
        raise PromptError(
            f"Row {row}: the prompt has {len(ids)} tokens, but {lm.name} takes at most {lm.context_length}: shorten it."
        )
    return ids


def _check_ids(lm: LanguageModel, row: int, prompt: Sequence[int]) -> list[int]:
    ids = list(prompt) if isinstance(prompt, (list, tuple)) else None
    if ids is None or any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
        raise PromptError(f"Row {row}: a prompt is a text or a list of token ids (whole numbers).")
    for place, token in enumerate(ids):
        if not 0 <= token < lm.vocab_size:
            raise PromptError(
                f"Row {row}: token id {shown(token)} at place {place} is outside the vocabulary 0..{lm.vocab_size - 1}."
            )
    return ids
