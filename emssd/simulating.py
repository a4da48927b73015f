"""`simulate`: methods and batch sizes from invented acceptance and a hardware description; no model is loaded."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path

from emssd.acceptance import MAX_BATCH, MAX_OUTPUT, Acceptance, check_whole
from emssd.config import BASELINE
from emssd.cost_model import KERNELS, CostModel
from emssd.errors import ConfigError, shown
from emssd.hardware import Hardware, dtype_bytes
from emssd.machines import machine_named
from emssd.model_config import shape_from_config
from emssd.model_presets import MODELS
from emssd.model_shape import ModelShape
from emssd.paper import check_labels
from emssd.paper_report import paper_command
from emssd.result_files import STDOUT, check_target, note, write_text
from emssd.run_counts import check_method
from emssd.simulation import Setting, run_simulation
from emssd.simulation_report import simulation_lines
from emssd.simulator import simulate
from emssd.streaming import progress_bar

DONE = 0
BATCH_SIZES = "1,2,4,8,16,24"
METHODS = "vanilla,packed-input,ragged-cache,ems-sd"
BATCHES = 40
DTYPES = ("float16", "bfloat16", "float32")
"""The first of them that the machine has a rate for is the default."""
SHORTER_NAMES = {"float8": "float8_e4m3fn"}
FROM_ACCEPTANCE = tuple(item.name for item in fields(Acceptance))
GENERAL_ONLY = (
    *FROM_ACCEPTANCE,
    *("batch_sizes", "methods", "hardware", "model_shape", "kernel", "dtype", "batches", "record"),
)
"""Settings that the reproduction of the paper fixes itself."""


def simulate_command(args: argparse.Namespace) -> int:
    """Simulate and print the table, or reproduce the paper's numbers with `--paper`.

    Raises:
        ConfigError: a setting is out of range, unknown, or does not go with `--paper`.
    """
    check_target(args.json)
    if args.labels is not None:
        check_labels(args.labels)
    if args.paper:
        for name in GENERAL_ONLY:
            if getattr(args, name) is not None:
                option = "--" + name.replace("output_tokens", "max_new_tokens").replace("_", "-")
                raise ConfigError(f"{option} does not go with --paper, which brings its own settings: leave it out.")
        return paper_command(args)
    if args.labels is not None:
        raise ConfigError("--labels goes with --paper only: give both, or leave it out.")
    setting = read_setting(args)
    folder = _record_folder(args.record)
    runs = len(setting.batch_sizes) * (len(setting.methods) + 1)
    bar = progress_bar(runs * setting.batches, args.quiet, unit="batch")
    try:
        simulation = run_simulation(setting, bar.update)
    finally:
        bar.close()
    if args.json:
        write_text(args.json, json.dumps(simulation.to_dict(), allow_nan=False))
    if args.json != STDOUT:
        print("\n".join(simulation_lines(simulation)))
    if folder is not None:
        _record(setting, folder, args.quiet)
    return DONE


def read_setting(args: argparse.Namespace) -> Setting:
    """Check the arguments.

    Raises:
        ConfigError: a setting is out of range or unknown.
    """
    given = {name: getattr(args, name) for name in FROM_ACCEPTANCE if getattr(args, name) is not None}
    if args.output_tokens is not None:
        check_whole("--max-new-tokens", args.output_tokens, 1, MAX_OUTPUT)
    acceptance = Acceptance(**given)
    if acceptance.prompt_law == "equal" and args.prompt_sd:
        raise ConfigError(
            "--prompt-sd does not go with --prompt-law equal, whose prompts have --prompt-mean tokens: leave out one."
        )
    methods = [name for name in _items(args.methods or METHODS) if name != BASELINE]
    for method in methods:
        check_method(method)
    kernel = args.kernel or KERNELS[0]
    if kernel not in KERNELS:
        raise ConfigError(f"kernel must be one of {', '.join(KERNELS)}, not {shown(kernel)}.")
    name = args.hardware or "a100-80gb"
    hardware, model = machine_named(name), read_model(args.model_shape or "opt-6.7b")
    check_positions(acceptance, *model)
    dtype = read_dtype(args.dtype, hardware)
    batches = BATCHES if args.batches is None else args.batches
    check_whole("batches", batches, 1, 10_000)
    seed = 0 if args.seed is None else args.seed
    check_whole("seed", seed, 0, 2**63 - 1)
    return Setting(
        acceptance,
        _sizes(args.batch_sizes or BATCH_SIZES),
        methods,
        (name, hardware),
        model,
        CostModel.for_hardware(hardware, model[1], dtype, kernel),
        dtype,
        batches,
        seed,
    )


def read_model(name: str) -> tuple[str, ModelShape]:
    """A preset, or the sizes in a `config.json` or a folder with one.

    Raises:
        ConfigError: it is neither.
    """
    if name in MODELS:
        return name, MODELS[name]
    if not Path(name).exists():
        raise ConfigError(
            f"The model shape {shown(name)} is neither a file nor known: give a config.json, or one of "
            f"{', '.join(MODELS)}."
        )
    return Path(name).stem, shape_from_config(Path(name))


def check_positions(acceptance: Acceptance, name: str, shape: ModelShape) -> None:
    """Refuse prompts and outputs that the model has no positions for; nothing is checked where these are not known.

    Raises:
        ConfigError: says what to lower.
    """
    longest, decoded = acceptance.longest_prompt, acceptance.output_tokens - 1
    if not shape.positions or longest + decoded <= shape.positions:
        return
    room = shape.positions - decoded
    mean = "--prompt-mean" if acceptance.prompt_law == "equal" or not acceptance.prompt_sd else "--prompt-max"
    lower = f"set {mean} to at most {room}" if room > 0 else "lower --max-new-tokens"
    raise ConfigError(
        f"Prompts of up to {longest} tokens and {acceptance.output_tokens} output tokens do not fit the "
        f"{shape.positions} positions of {name}: {lower}."
    )


def read_dtype(name: str | None, hardware: Hardware) -> str:
    """The type of weights, cache and products.

    Raises:
        ConfigError: the type is unknown, or the machine has no rate for it.
    """
    if name is None:
        return next((each for each in DTYPES if each in hardware.peak_flops), "float32")
    dtype = SHORTER_NAMES.get(name, name)
    dtype_bytes(dtype)
    hardware.flops(dtype)
    return dtype


def _items(text: str) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _sizes(text: str) -> list[int]:
    sizes = []
    for part in _items(text):
        size = int(part) if part.isdecimal() and len(part) < 10 else part
        check_whole("batch_sizes", size, 1, MAX_BATCH)
        sizes.append(int(size))
    if not sizes:
        raise ConfigError(f"batch_sizes must be whole numbers from 1 to {MAX_BATCH}, for example 1,4,16.")
    return sorted(set(sizes))


def _record_folder(name: str | None) -> Path | None:
    """The folder for traces, made if it is missing.

    Raises:
        ConfigError: it is a file, or cannot be made.
    """
    if name is None:
        return None
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Cannot write traces to {folder}: {error.strerror or error}. Name a folder.") from None
    return folder


def _record(setting: Setting, folder: Path, quiet: bool) -> None:
    """Write a trace of one invented batch for each batch size and method."""
    bar = progress_bar(len(setting.batch_sizes), quiet, unit="batch")
    try:
        for size in setting.batch_sizes:
            name, shape = setting.model
            methods = [BASELINE, *setting.methods]
            traces = simulate(setting.acceptance, size, methods, setting.seed, shape, name, setting.dtype)
            for method, trace in traces.items():
                trace.to_json(folder / f"batch-{size}-{method}.json")
            bar.update(1)
    finally:
        bar.close()
    if not quiet:
        number = len(setting.batch_sizes) * (len(setting.methods) + 1)
        note(f"{number} traces written to {folder}: open them with `emssd view`.")
