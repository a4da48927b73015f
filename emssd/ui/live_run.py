"""A run that goes on while the page only looks at it: one thread, no streamlit call in it, plain data out of it.

Greedy decoding and the chosen methods take one step each in turn, never at once, so that their decode times can be
compared. Runs of several visitors share the machine the same way. The page polls; a run that nobody watches stops by
itself, also in the middle of reading the prompts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emssd.config import BASELINE, SpeculativeConfig
from emssd.errors import EmssdError
from emssd.trace import GenerationTrace
from emssd.ui.turns import TURNS

if TYPE_CHECKING:
    from emssd.decoding import GenerationRun
    from emssd.drafting import Drafter
    from emssd.loading import LanguageModel

HEARTBEAT_SECONDS = 10.0
"""A run without a poll for this long stops, where nothing is known about the visitor's connection."""
GONE_SECONDS = 3.0
"""A run stops this long after the visitor's connection was lost: a tab that was closed does not come back."""
HIDDEN_SECONDS = 90.0
"""A tab in the background that is still connected may poll as rarely as once a minute."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LiveRequest:
    """What to decode: `methods` are names from `METHODS`; the baseline is added.

    `source` says where drafts come from: "prompt", "context", "draft-model" or "none". `num_top_tokens` are kept of the
    target at each judged position.
    """

    prompts: tuple[tuple[int, ...], ...]
    titles: tuple[str, ...]
    methods: tuple[str, ...]
    num_draft_tokens: int
    max_new_tokens: int
    source: str = "prompt"
    num_top_tokens: int = 0

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
        drafts = 0 if self.source == "none" else self.num_draft_tokens
        return SpeculativeConfig.for_method(
            method,
            num_draft_tokens=drafts,
            max_new_tokens=self.max_new_tokens,
            num_top_tokens=self.num_top_tokens,
        )


class LiveRun:
    """Decodes a request in a thread of its own.

    `state` is "waiting" (for its first turn), "decoding", "finished", "cancelled", "abandoned" or "failed";
    `traces[name].steps[:steps[name]]` may be read at any time. `shared` says whether another run took turns with it.

    Args:
        lm: the model; other runs may use it at the same time.
        request: what to decode.
        heartbeat: seconds without a poll after which it stops, where `connected` is not given.
        connected: whether the visitor's tab is still there; it then counts, and polls may be rare.
        draft_lm: the draft model, where the request asks for one.

    Raises:
        ConfigError: a method's cache would not fit into memory.
    """

    def __init__(
        self,
        lm: LanguageModel,
        request: LiveRequest,
        heartbeat: float = HEARTBEAT_SECONDS,
        connected: Callable[[], bool] | None = None,
        draft_lm: LanguageModel | None = None,
    ) -> None:
        self.request = request
        self.heartbeat = heartbeat if connected is None else HIDDEN_SECONDS
        self.state = "waiting"
        self.error: str | None = None
        self.shared = False
        self.began = self.ended = time.perf_counter()
        self.steps: dict[str, int] = dict.fromkeys(request.names, 0)
        self._connected = connected or (lambda: True)
        self._polled = self._seen = time.monotonic()
        self._stop_reason: str | None = None
        self._runs = _prepare(lm, request, draft_lm)
        for run in self._runs.values():
            run.should_stop = lambda: self._must_stop() is not None
        self.traces: dict[str, GenerationTrace] = {name: run.trace for name, run in self._runs.items()}
        self.hardware = hardware_words(lm)
        self.model_name = lm.name
        self.draft_name = "" if draft_lm is None else draft_lm.name
        self._thread = threading.Thread(target=self._work, name="emssd-live-run", daemon=True)

    def start(self) -> LiveRun:
        """Begin; returns itself."""
        self._thread.start()
        return self

    def poll(self) -> None:
        """Say that somebody is still watching."""
        self._polled = time.monotonic()

    def cancel(self) -> None:
        """Stop within one step, or within one chunk of the prompts; what was decoded is kept."""
        self._stop_reason = self._stop_reason or "cancelled"

    def leave(self) -> None:
        """Stop like `cancel`, because the page was left."""
        self._stop_reason = self._stop_reason or "abandoned"

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end."""
        self._thread.join(timeout)

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.state not in ("waiting", "decoding")

    @property
    def stopping(self) -> bool:
        """Whether it has been told to stop, and has not yet."""
        return not self.done and self._stop_reason is not None

    @property
    def sharing(self) -> bool:
        """Whether another run takes turns with this one now."""
        return not self.done and TURNS.members > 1

    @property
    def seconds(self) -> float:
        """Wall time since decoding began."""
        return (self.ended if self.done else time.perf_counter()) - self.began

    def _must_stop(self) -> str | None:
        """Why the run has to stop, None if it may go on. Once given, a reason stays."""
        now = time.monotonic()
        if self._connected():
            self._seen = now
        if now - self._polled > self.heartbeat or now - self._seen > GONE_SECONDS:
            self.leave()
        return self._stop_reason

    def _work(self) -> None:
        state = "failed"
        try:
            with TURNS.member():
                state = self._decode()
        except EmssdError as error:
            self.error = str(error)
        except Exception as error:
            log.exception("The live run stopped with an unexpected error")
            reason = str(error).strip().split("\n")[0][:200]
            self.error = f"The run stopped: {type(error).__name__} {reason}"
        finally:
            try:
                for run in self._runs.values():
                    run.close()
            finally:  # a page that polls must hear of the end, whatever breaks
                self._runs = {}
                self.ended = time.perf_counter()
                self.state = state

    def _decode(self) -> str:
        # what the page shows goes first, so that its first tokens do not wait for the baseline's prefill
        active = {name: self._runs[name] for name in dict.fromkeys((*self.request.methods, BASELINE))}
        while active:
            for name, run in list(active.items()):
                with TURNS.turn(self._must_stop) as given:
                    reason = self._must_stop()
                    if reason or not given:
                        return reason or "abandoned"
                    self._begin()
                    step = self._next(run)
                if step is None:
                    del active[name]
                else:
                    self.steps[name] = step + 1
        complete = all(trace.finished for trace in self.traces.values())
        return "finished" if complete else self._must_stop() or "cancelled"

    def _begin(self) -> None:
        self.shared = self.shared or TURNS.members > 1
        if self.state == "waiting":
            self.began = time.perf_counter()
            self.state = "decoding"

    def _next(self, run: GenerationRun) -> int | None:
        """Index of the next step; None at the end."""
        step = next(run, None)
        return None if step is None else step.index


def _prepare(lm: LanguageModel, request: LiveRequest, draft_lm: LanguageModel | None) -> dict[str, GenerationRun]:
    """One run per method. Raises ConfigError where a run would not fit into memory, or a draft model is another's."""
    from emssd.decoding import GenerationRun

    drafter = make_drafter(request.source, lm, draft_lm)
    prompts = [list(prompt) for prompt in request.prompts]
    return {name: GenerationRun(lm, prompts, request.config(name), drafter) for name in request.names}


def make_drafter(source: str, lm: LanguageModel, draft_lm: LanguageModel | None) -> Drafter | None:
    """Prompt lookup ("prompt", "context"), a draft model, or None for "none".

    Raises:
        ConfigError: the draft model's tokenizer is not the model's.
    """
    from emssd.drafting import DraftModelDrafter, PromptLookupDrafter, check_same_tokenizer

    if source == "none":
        return None
    if draft_lm is not None:
        check_same_tokenizer(lm, draft_lm)
        return DraftModelDrafter(draft_lm)
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
