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

MARKERS = {
    "gpu": "runs the lossless tests on a CUDA device (`make gpu-test`)",
    "soak": "the long rest of the product (`make soak`)",
    "mutants": "plants faults and expects a test to find each (`make mutants`)",
}
ON_REQUEST = ("soak", "mutants")

_QUIET = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("ci", derandomize=True, print_blob=True, **_QUIET)
hypothesis.settings.register_profile("explore", print_blob=True, **_QUIET)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    """Name the markers; one torch thread per worker, so that workers do not wait for each other."""
    for name, words in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {words}")
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
