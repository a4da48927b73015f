"""Settings of all tests: offline, one thread per worker, hypothesis profiles, markers that skip with a reason."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hypothesis
import pytest
import torch

from tests.browser import browser, server  # noqa: F401  fixtures of every file that drives a browser

ON_REQUEST = ("soak", "mutants")

_QUIET = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("ci", derandomize=True, print_blob=True, **_QUIET)
_NO_SHRINKING = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.shrink]
hypothesis.settings.register_profile("quick-to-fail", derandomize=True, phases=_NO_SHRINKING, **_QUIET)
hypothesis.settings.register_profile("explore", print_blob=True, **_QUIET)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    """One torch thread per worker, so that workers do not wait for each other."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and what is long unless it was asked for by its marker."""
    asked_for = config.getoption("markexpr", "") or ""
    for item in items:
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
        for name in ON_REQUEST:
            if item.get_closest_marker(name) and name not in asked_for:
                item.add_marker(pytest.mark.skip(reason=f"long: run `make {name}`"))
