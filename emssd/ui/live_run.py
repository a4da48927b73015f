"""A run that goes on while the page only looks at it: one thread, no streamlit call in it, plain data out of it.

Greedy decoding and the chosen methods take one step each in turn, never at once, so that their decode times can be
compared. The page polls; a run that nobody has polled for a while stops by itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emssd.config import SpeculativeConfig
from emssd.errors import EmssdError
from emssd.trace import GenerationTrace

if TYPE_CHECKING:
    from emssd.decoding import GenerationRun
    from emssd.drafting import Drafter
    from emssd.loading import LanguageModel

HEARTBEAT_SECONDS = 10.0
BASELINE = "greedy"
_TURN = threading.Lock()  # two runs at once would spoil each other's times
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LiveRequest:
    """What to decode: `methods` are names from `METHODS`; the baseline is added."""

    prompts: tuple[tuple[int, ...], ...]
    titles: tuple[str, ...]
    methods: tuple[str, ...]
    num_draft_tokens: int
    max_new_tokens: int
    source: str = "prompt"

    @property
    def names(self) -> tuple[str, ...]:
        """Every run, the baseline first."""
        return tuple(dict.fromkeys((BASELINE, *self.methods)))

    @property
    def most_tokens(self) -> int:
        """New tokens that one method can emit at most."""
        return len(self.prompts) * self.max_new_tokens

    def config(self, method: str) -> SpeculativeConfig:
        """Settings of one method."""
        return SpeculativeConfig.for_method(
            method, num_draft_tokens=self.num_draft_tokens, max_new_tokens=self.max_new_tokens
        )


class LiveRun:
    """Decodes a request in a thread of its own.

    `state` is "waiting" (for another run's end), "decoding", "finished", "cancelled", "abandoned" or "failed";
    `traces[name].steps[:steps[name]]` may be read at any time.
    """

    def __init__(self, lm: LanguageModel, request: LiveRequest, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        self.request = request
        self.heartbeat = heartbeat
        self.state = "waiting"
        self.error: str | None = None
        self.began = self.ended = time.perf_counter()
        self.steps: dict[str, int] = dict.fromkeys(request.names, 0)
        self._polled = time.monotonic()
        self._cancelled = threading.Event()
        self._runs = _prepare(lm, request)
        self.traces: dict[str, GenerationTrace] = {name: run.trace for name, run in self._runs.items()}
        self.hardware = hardware_words(lm)
        self.model_name = lm.name
        self._thread = threading.Thread(target=self._work, name="emssd-live-run", daemon=True)

    def start(self) -> LiveRun:
        """Begin; returns itself."""
        self._thread.start()
        return self

    def poll(self) -> None:
        """Say that somebody is still watching."""
        self._polled = time.monotonic()

    def cancel(self) -> None:
        """Stop within one step; what was decoded is kept."""
        self._cancelled.set()
        for run in list(self._runs.values()):
            run.close()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""
        self._thread.join(timeout)

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.state not in ("waiting", "decoding")

    @property
    def seconds(self) -> float:
        """Wall time since decoding began."""
        return (self.ended if self.done else time.perf_counter()) - self.began

    def _must_stop(self) -> str | None:
        if self._cancelled.is_set():
            return "cancelled"
        return "abandoned" if time.monotonic() - self._polled > self.heartbeat else None

    def _work(self) -> None:
        state = "failed"
        try:
            state = self._wait_and_decode()
        except EmssdError as error:
            self.error = str(error)
        except Exception as error:
            log.exception("The live run stopped with an unexpected error")
            reason = str(error).strip().split("\n")[0][:200]
            self.error = f"The run stopped: {type(error).__name__} {reason}"
        finally:
            for run in self._runs.values():
                run.close()
            self._runs = {}
            self.ended = time.perf_counter()
            self.state = state

    def _wait_and_decode(self) -> str:
        while not _TURN.acquire(timeout=0.1):
            if reason := self._must_stop():
                return reason
        try:
            self.began = time.perf_counter()
            self.state = "decoding"
            return self._decode()
        finally:
            _TURN.release()

    def _decode(self) -> str:
        active = dict(self._runs)
        while active:
            for name, run in list(active.items()):
                if reason := self._must_stop():
                    return reason
                step = self._next(run)
                if step is None:
                    del active[name]
                else:
                    self.steps[name] = step + 1
        complete = all(trace.finished for trace in self.traces.values())
        return "finished" if complete else self._must_stop() or "cancelled"

    def _next(self, run: GenerationRun) -> int | None:
        """Index of the next step; None at the end."""
        try:
            step = next(run, None)
        except ValueError:
            if self._cancelled.is_set():
                return None  # `cancel` was closing the run at this very moment
            raise
        return None if step is None else step.index


def _prepare(lm: LanguageModel, request: LiveRequest) -> dict[str, GenerationRun]:
    """One run per method. Raises ConfigError where a run would not fit into memory."""
    from emssd.decoding import GenerationRun

    drafter = make_drafter(request.source)
    prompts = [list(prompt) for prompt in request.prompts]
    return {name: GenerationRun(lm, prompts, request.config(name), drafter) for name in request.names}


def make_drafter(source: str) -> Drafter:
    """Prompt lookup in the row's prompt, or in the prompt and what the row has generated ("context")."""
    from emssd.drafting import PromptLookupDrafter

    return PromptLookupDrafter(source="context" if source == "context" else "prompt")


def hardware_words(lm: LanguageModel) -> str:
    """ "this CPU: 2 threads, float32"."""
    import torch

    dtype = str(lm.dtype).removeprefix("torch.")
    if lm.device.type == "cpu":
        threads = torch.get_num_threads()
        return f"this CPU: {threads} thread{'' if threads == 1 else 's'}, {dtype}"
    return f"this device: {lm.device}, {dtype}"


def encode(lm: LanguageModel, texts: Sequence[str]) -> tuple[list[list[int] | None], dict[int, str]]:
    """Token ids of the good prompts, and one sentence for each bad one."""
    from emssd.request import encode_prompts

    encoded = encode_prompts(lm, list(texts))
    return encoded.token_ids, encoded.problems
