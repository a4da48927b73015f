"""One step at a time on this machine: whoever has waited longest takes the next one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_SECONDS = 0.1
"""How often somebody in the queue looks whether there is still a reason to wait."""


class TurnQueue:
    """A queue of turns, first come, first served. Two runs in it take one step each in turn, never two at once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._members = 0

    @property
    def members(self) -> int:
        """Runs that take turns now."""
        return self._members

    @contextmanager
    def member(self) -> Iterator[None]:
        """Belong to those who share the machine."""
        with self._changed:
            self._members += 1
        try:
            yield
        finally:
            with self._changed:
                self._members -= 1

    @contextmanager
    def turn(self, must_stop: Callable[[], object]) -> Iterator[bool]:
        """Wait at the end of the queue, then hold the machine inside the `with` block.

        Args:
            must_stop: asked while waiting; anything true ends the wait.

        Yields:
            Whether the turn was given; False where `must_stop` ended the wait before. Whatever `must_stop` raises
            ends it, too.
        """
        ticket = object()
        try:
            with self._changed:
                self._queue.append(ticket)
                while self._queue[0] is not ticket and not must_stop():
                    self._changed.wait(CHECK_SECONDS)
                given = self._queue[0] is ticket
                if not given:
                    self._queue.remove(ticket)
            yield given
        finally:
            with self._changed:
                if ticket in self._queue:
                    self._queue.remove(ticket)
                    self._changed.notify_all()


TURNS = TurnQueue()
