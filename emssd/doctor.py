"""What works on this machine, and what to do about what does not."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from emssd.calibrating import calibrate_with_bar
from emssd.embedded import EMBEDDED_NAME, cache_root, damage, embedded_source
from emssd.errors import EmssdError
from emssd.machines import this_machine
from emssd.measured_machine import MeasuredMachine, save_calibration
from emssd.memory import available_bytes
from emssd.session import load

OLDEST_PYTHON = (3, 11)
MODEL_MEMORY = 2 * 2**30
CONVERSION_DISK = 600 * 2**20
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Finding:
    """One line of the report. `state` is "ok", "warn" (works, but) or "fail" (something needed is missing)."""

    state: str
    subject: str
    words: str
    advice: str = ""


def doctor_command(args: argparse.Namespace) -> int:
    """Print the report line by line: 0 if all that is needed works, else 1."""
    failed = warned = 0
    for finding in examine(args):
        print(f"{finding.state:<5} {finding.subject:<14} {finding.words}", flush=True)
        if finding.advice:
            print(f"{'':<20} -> {finding.advice}", flush=True)
        failed += finding.state == "fail"
        warned += finding.state == "warn"
    if failed:
        print(f"{failed} needed {'thing fails' if failed == 1 else 'things fail'}: see the arrows above.")
    else:
        print("Everything needed works." + (f" Warnings: {warned}." if warned else ""))
    return 1 if failed else 0


def examine(args: argparse.Namespace) -> Iterator[Finding]:
    """All findings, quick ones first."""
    yield _python()
    yield from _packages()
    yield from _devices()
    yield _threads(bool(getattr(args, "wait_policy_set", False)))
    yield _number_formats()
    yield _memory()
    if args.model == EMBEDDED_NAME:
        yield _wheel()
        yield _conversion()
    yield _self_check(args)
    yield _calibration(args)
    yield _browser()


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info < OLDEST_PYTHON:
        return Finding("fail", "python", version, "install Python 3.11 or newer")
    return Finding("ok", "python", f"{version} on {platform.system()} {platform.machine()}")


def _packages() -> Iterator[Finding]:
    for name, needed in (("torch", True), ("transformers", True), ("streamlit", False), ("plotly", False)):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            advice = f"pip install {name}" + ("" if needed else " (only the app needs it)")
            yield Finding("fail" if needed else "warn", name, "not installed", advice)
            continue
        if name == "transformers" and version.split(".")[0] != "5":
            yield Finding("fail", name, version, "pip install 'transformers>=5.0,<6'")
        else:
            yield Finding("ok", name, version)


def _devices() -> Iterator[Finding]:
    found = [f"cuda:{index} {torch.cuda.get_device_name(index)}" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    yield Finding("ok", "device", ", ".join([*found, "cpu"]) + ("" if found else " (no GPU found: runs on the CPU)"))


def _threads(set_here: bool) -> Finding:
    cores, threads = os.cpu_count() or 1, torch.get_num_threads()
    policy = os.environ.get("OMP_WAIT_POLICY", "")
    words = f"{cores} cores, {threads} torch threads, OMP_WAIT_POLICY={policy or 'not set'}"
    advice = (
        "export OMP_WAIT_POLICY=PASSIVE before Python starts: OpenMP workers that spin while they wait made the same "
        "work up to 30 times slower beside another busy process"
    )
    if policy.upper() != "PASSIVE":
        return Finding("warn", "threads", words, advice)
    if threads > cores:
        return Finding("warn", "threads", words, f"export OMP_NUM_THREADS={cores}")
    return Finding(
        "ok", "threads", words + (" (set by this command; for your own scripts, export it)" if set_here else "")
    )


def _number_formats() -> Finding:
    able = torch.cpu.get_capabilities()
    amx, bf16 = able.get("amx_tile") or able.get("amx_bf16"), able.get("avx512_bf16")
    if amx:
        return Finding("ok", "cpu formats", "float32; bfloat16 is fast here (AMX) for 8 rows and more")
    if bf16:
        return Finding("ok", "cpu formats", "float32; bfloat16 in hardware (AVX-512)")
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return Finding("ok", "cpu formats", "float32")
    return Finding("ok", "cpu formats", "float32; no bfloat16 in hardware, so it is slow on this CPU")


def _memory() -> Finding:
    free = available_bytes(torch.device("cpu"))
    if free is None:
        return Finding("warn", "memory", "free memory is not known here", "runs that do not fit cannot be refused")
    words = f"{free / 2**30:.1f} GiB free"
    if free < MODEL_MEMORY:
        return Finding(
            "warn", "memory", words, "the default model wants about 2 GiB: close something, or use random-llama"
        )
    return Finding("ok", "memory", words)


def _wheel() -> Finding:
    try:
        source = embedded_source()
    except EmssdError as error:
        return Finding("fail", "model wheel", "not installed", str(error))
    return Finding("ok", "model wheel", f"{source.name}, {source.stat().st_size / 2**20:.0f} MiB")


def _conversion() -> Finding:
    """The converted files, by their checksums; loading converts again what is missing or damaged."""
    folders = sorted(folder for folder in cache_root().glob(f"{EMBEDDED_NAME}-*") if folder.is_dir())
    if folders:
        reason = damage(folders[-1])
        if reason is None:
            return Finding("ok", "model files", f"{folders[-1]}, checksums right")
        return Finding("warn", "model files", f"{folders[-1]}: {reason}", "they are converted again now (about 30 s)")
    place = cache_root()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not os.access(place, os.W_OK):
        return Finding(
            "fail", "model files", f"{cache_root()} cannot be written", "set EMSSD_CACHE to a folder that can"
        )
    if shutil.disk_usage(place).free < CONVERSION_DISK:
        return Finding("fail", "model files", f"less than 600 MB free in {place}", "set EMSSD_CACHE to a larger disk")
    return Finding(
        "warn", "model files", f"not converted yet, go to {cache_root()}", "converted once, now (about 30 s)"
    )


def _self_check(args: argparse.Namespace) -> Finding:
    began = time.perf_counter()
    try:
        lm = load(args.model, args)
    except EmssdError as error:
        return Finding("fail", "self-check", f"{args.model}: {error}", "try --model random-llama, which needs no files")
    report = getattr(lm, "report", None)
    where = f"{args.model} on {lm.device}, {time.perf_counter() - began:.1f} s with loading"
    return Finding("ok", "self-check", f"{where}; {report}" if report else where)


def _calibration(args: argparse.Namespace) -> Finding:
    """What is kept about this machine's speed; measured now where `--calibrate` asks for it."""
    if not args.calibrate:
        kept = this_machine()
        words = "not measured" if kept is None else f"{_rates(kept)} (kept from {kept.created})"
        return Finding("ok", "speed", words + ("" if kept else " (optional: --calibrate, about 20 s)"))
    try:
        lm = load(args.model, args)
        measured = calibrate_with_bar(lm, args.quiet)
        path = save_calibration(measured)
    except EmssdError as error:
        return Finding("fail", "speed", f"not measured: {error}")
    return Finding("ok", "speed", f"{_rates(measured)}, measured in {measured.seconds:.0f} s, kept in {path}")


def _rates(measured: MeasuredMachine) -> str:
    one, many = measured.dense_ms[0], measured.dense_ms[-1]
    return (
        f"{measured.environment.get('model')} in {measured.dtype}: reads {measured.bandwidth / 1e9:.3g} GB/s, "
        f"multiplies at {measured.flops / 1e12:.3g} TFLOP/s, layers {one[1]:.3g} ms for 1 row, "
        f"{many[1]:.3g} ms for {many[0]:.0f}"
    )


def _browser() -> Finding:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    cache = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache" / "ms-playwright"))
    if found is None and cache.is_dir() and any(cache.glob("chromium*")):
        found = str(cache)
    if found is None:
        return Finding("ok", "browser", "no Chromium: the browser tests skip themselves (optional: make browser)")
    return Finding("ok", "browser", f"{found} (for the browser tests)")
