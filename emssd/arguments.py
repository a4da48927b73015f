"""What the command line takes: one parser for each command. Nothing is run here."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from emssd import __version__
from emssd.config import METHODS
from emssd.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_BATCH = 8
DEFAULT_NEW_TOKENS = 64
MAX_PORT = 65_535

DESCRIPTION = """\
EMS-SD: batched speculative decoding without padding. Decode prompts, compare methods, look inside.

Start here:
  python -m emssd doctor
  python -m emssd generate --prompt "The capital of France is"
  python -m emssd compare --batch-size 4 --max-new-tokens 32
"""
EPILOG = (
    "Exit codes: 0 done, 1 a check failed (for example outputs differ), 2 bad usage or input, 130 interrupted, "
    "143 terminated."
)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are ordinary errors of this package."""

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError instead of printing the usage and leaving."""
        raise ConfigError(f"{message}. See: {self.prog} --help")


def at_least_one(text: str) -> int:
    """A whole number from 1, for argparse."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return number


def port_number(text: str) -> int:
    """A port, for argparse."""
    number = at_least_one(text)
    if number > MAX_PORT:
        raise argparse.ArgumentTypeError(f"must be a port from 1 to {MAX_PORT}, not {number}")
    return number


def build_parser(runner: Callable[[str], Callable[[argparse.Namespace], int]]) -> Parser:
    """The whole command line.

    Args:
        runner: gives what runs the command of a name.
    """
    parser = Parser(
        "emssd", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"emssd {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, summary: str, example: str) -> Parser:
        added = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"Example:\n  python -m emssd {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        added.set_defaults(run=runner(name))
        return added

    _add_generate(command)
    _add_compare(command)
    _add_record(command)
    _add_bench(command)
    replay = command("replay", "rerun a trace and name the first step that differs", "replay run.json")
    replay.add_argument("trace", metavar="TRACE", help="trace file")
    replay.add_argument("--model", help="run on this model (default: the one named in the trace)")
    replay.add_argument("--draft-model", metavar="NAME", help="draft with this model (default: the trace's)")
    _add_machine(replay, dtype=None)
    diff = command("diff", "compare two traces (exit 1 if they differ)", "diff a.json b.json")
    diff.add_argument("left", metavar="A", help="trace file")
    diff.add_argument("right", metavar="B", help="trace file")
    _add_simulate(command)
    _add_view(command)
    _add_lesson(command)
    doctor = command("doctor", "say what works on this machine, and what to do about what does not", "doctor")
    doctor.add_argument("--model", default=DEFAULT_MODEL, help="model of the self-check (default: %(default)s)")
    doctor.add_argument(
        "--calibrate", action="store_true", help="measure this machine's speed with the model's layers (about 20 s)"
    )
    _add_machine(doctor)
    return parser


Command = Callable[[str, str, str], Parser]


def _add_generate(command: Command) -> None:
    parser = command(
        "generate",
        "decode prompts with one method",
        'generate --prompt "The capital of France is" --method ems-sd --json run.json',
    )
    _add_common(parser, batch_size=None, one_run=True)
    _add_one_run(parser)
    parser.add_argument("--json", metavar="FILE", help='save the trace; "-" prints it instead of the texts')


def _add_compare(command: Command) -> None:
    parser = command(
        "compare",
        "run all methods on the same prompts and check every output",
        "compare --batch-size 8 --max-new-tokens 64 --repeats 3",
    )
    _add_common(parser, batch_size=DEFAULT_BATCH)
    parser.add_argument(
        "--repeats", type=at_least_one, default=1, metavar="N", help="timed runs of each method (default: 1)"
    )
    parser.add_argument("--json", metavar="FILE", help='save the results; "-" prints them instead of the table')
    parser.add_argument("--with-traces", action="store_true", help="put the traces into the --json file too")
    parser.add_argument(
        "--save-outputs", metavar="FILE", help="save plain decoding's outputs, to give to --against later"
    )
    parser.add_argument(
        "--against",
        metavar="FILE",
        help="decode the prompts of this file and compare with its outputs "
        "(JSON lines: prompt_token_ids, output_token_ids)",
    )


def _add_record(command: Command) -> None:
    parser = command("record", "decode prompts and write the trace", 'record run.json --prompt "Once upon a time"')
    parser.add_argument("out", metavar="OUT", nargs="?", help='trace file; "-" prints it')
    _add_common(parser, batch_size=None, one_run=True)
    _add_one_run(parser)
    parser.add_argument("--json", metavar="FILE", help="another way to name OUT")


def _add_simulate(command: Command) -> None:
    parser = command(
        "simulate",
        "methods and batch sizes without a model, from invented acceptance and a hardware description",
        "simulate --batch-sizes 1,4,16 --hit-rate 0.7 --token-rate 0.9 --hardware h100-sxm\n"
        "  python -m emssd simulate --paper",
    )
    what = parser.add_argument_group("what is compared")
    what.add_argument("--batch-sizes", metavar="N,N,..", help="default: 1,2,4,8,16,24")
    what.add_argument("--methods", metavar="NAME,..", help="beside greedy (default: all four speculative ones)")
    rows = parser.add_argument_group("how rows behave")
    number: dict[str, Any] = {"type": float, "metavar": "X"}
    whole: dict[str, Any] = {"type": int, "metavar": "N"}
    rows.add_argument("--hit-rate", **number, help="chance that a row is given drafts in a step (default: 0.85)")
    rows.add_argument("--token-rate", **number, help="chance that the next draft is right (default: 0.916)")
    rows.add_argument(
        "--spread", **number, help="standard deviation of both rates' logits between rows (default: 0.08)"
    )
    rows.add_argument("--prompt-mean", **number, help="mean tokens of a prompt (default: 900)")
    rows.add_argument("--prompt-sd", **number, help="their standard deviation (default: 450); not with equal ones")
    rows.add_argument("--prompt-law", metavar="NAME", help="lognormal, normal or equal (default: lognormal)")
    rows.add_argument("--prompt-min", **whole, help="shortest prompt (default: 1)")
    rows.add_argument("--prompt-max", **whole, help="longest prompt (default: 1919)")
    rows.add_argument("--num-draft-tokens", type=int, metavar="K", help="drafts of a step (default: 7)")
    rows.add_argument("--max-new-tokens", dest="output_tokens", **whole, help="tokens of every row (default: 128)")
    costs = parser.add_argument_group("what it costs")
    costs.add_argument(
        "--hardware",
        metavar="NAME",
        help='a preset, such as h100-sxm, or "paper": the costs fitted to its table for OPT-6.7B, on a GPU that it '
        "does not name (default: a100-80gb)",
    )
    costs.add_argument("--model-shape", metavar="NAME", help="a preset or a config.json (default: opt-6.7b)")
    costs.add_argument("--kernel", metavar="NAME", help="attention: per_token, the paper's, or varlen")
    costs.add_argument(
        "--dtype",
        metavar="NAME",
        help="weights and cache: float32, float16, bfloat16 or float8 (default: float16, or the next one that the "
        "machine has a rate for)",
    )
    paper = parser.add_argument_group("the paper")
    paper.add_argument(
        "--paper", action="store_true", help="its 31 numbers with a fitted model's beside them; exit 1 if it got worse"
    )
    paper.add_argument("--labels", metavar="NAME", help="of its ablation rows: swapped or printed (default: swapped)")
    run = parser.add_argument_group("run")
    run.add_argument("--batches", **whole, help="invented batches of each size (default: 40)")
    run.add_argument("--seed", **whole, help="of the invented rows (default: 0, with --paper 2405)")
    run.add_argument("--json", metavar="FILE", help='save the results; "-" prints them instead of the table')
    run.add_argument("--record", metavar="DIR", help="write a trace for each batch size and method, for `view`")
    run.add_argument("--quiet", action="store_true", help="no progress bar")


def _add_bench(command: Command) -> None:
    parser = command(
        "bench",
        "measure methods, batch sizes and drafters on a model: medians with quartiles, outputs checked",
        "bench --batch-sizes 1,4,16 --prompts copy-rich --prompts copy-poor --out runs/bench\n"
        "  python -m emssd bench --random-weights opt-6.7b --drafters replay --replay paper --batch-sizes 1,8",
    )
    what = parser.add_argument_group("what is measured")
    what.add_argument("--batch-sizes", default="1,2,4,8,16", metavar="N,N,..", help="default: %(default)s")
    what.add_argument(
        "--methods", default=",".join(METHODS), metavar="NAME,..", help="beside greedy (default: %(default)s)"
    )
    what.add_argument(
        "--drafters",
        default="prompt-lookup",
        metavar="NAME,..",
        help="prompt-lookup, draft-model, replay (default: %(default)s)",
    )
    what.add_argument(
        "--repeats",
        type=at_least_one,
        default=5,
        metavar="N",
        help="timed runs of each (default: 5); from batch 4 on, where runs are shorter, two or three times as many",
    )
    what.add_argument("--max-new-tokens", type=int, metavar="N", help=f"tokens per row (default: {DEFAULT_NEW_TOKENS})")
    what.add_argument("--ignore-eos", action="store_true", help="decode on where the model would end")
    what.add_argument("--no-transformers", action="store_true", help="leave out transformers' own generate at batch 1")
    what.add_argument(
        "--compare-model",
        action="store_true",
        help="calibrate this machine and hold the cost model against what is measured (exit 1 if the mean error of its "
        "speed-ups is over 15 %%, or vanilla falls below greedy more than one tested batch size away)",
    )
    _add_bench_inputs(parser)
    out = parser.add_argument_group("results")
    out.add_argument("--out", metavar="DIR", help="keep every finished repeat there, and the results in all forms")
    out.add_argument("--resume", action="store_true", help="go on with the measurements in --out DIR")
    out.add_argument("--json", metavar="FILE", help='save the results; "-" prints them instead of the table')
    out.add_argument("--csv", metavar="FILE", help='save one line per point; "-" prints them instead of the table')
    out.add_argument("--markdown", metavar="FILE", help='save the speed-ups as Markdown; "-" prints it')
    out.add_argument("--figure", metavar="FILE", help="draw speed-up by batch size: .svg, .png or .pdf")
    _add_machine(parser)


def _add_bench_inputs(parser: argparse.ArgumentParser) -> None:
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--prompts",
        action="append",
        metavar="NAME|FILE",
        help="copy-rich, copy-poor, default, invented, or a file as for compare; may be repeated, a panel each "
        "(default: copy-rich and copy-poor)",
    )
    prompts.add_argument(
        "--num-prompts", type=int, metavar="N", help="decoded at every batch size (default: the largest batch size)"
    )
    prompts.add_argument("--chat", action="store_true", help="put prompts into the model's chat template")
    drafts = parser.add_argument_group("model and drafts")
    drafts.add_argument("--model", default=DEFAULT_MODEL, help="name, folder or hub id (default: %(default)s)")
    drafts.add_argument(
        "--random-weights", metavar="CONFIG", help="in place of --model: this shape (opt-6.7b, a config.json) at random"
    )
    drafts.add_argument("--draft-model", metavar="NAME", help="model that drafts, for --drafters draft-model")
    drafts.add_argument("--num-draft-tokens", type=int, default=7, metavar="K", help="drafts a step (default: 7)")
    drafts.add_argument("--ngram-size", type=int, default=2, metavar="N", help="prompt lookup's key (default: 2)")
    drafts.add_argument("--lookup", choices=("prompt", "context"), default="prompt", help="where to look")
    drafts.add_argument(
        "--replay",
        metavar="SOURCE",
        help="accepted lengths for --drafters replay: a trace, a JSON list [rows][steps] of [drafts, accepted], "
        '"paper", or "hit_rate=0.8,token_rate=0.9"',
    )
    drafts.add_argument("--seed", type=int, default=0, metavar="S", help="of invented lengths (default: 0)")


def _add_view(command: Command) -> None:
    parser = command("view", "open traces in the app, or write them as a page that plays offline", "view run.json")
    parser.add_argument("files", metavar="FILE", nargs="+", help="trace file; several must be of the same prompts")
    parser.add_argument(
        "--port", type=port_number, metavar="N", help="where the app listens (default: 8501 or the next)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    parser.add_argument("--html", metavar="OUT", help='write the page instead of starting the app; "-" prints it')
    parser.add_argument(
        "--chrome-trace",
        metavar="OUT",
        help='write a timeline for Perfetto or chrome://tracing instead of starting the app; "-" prints it',
    )


def _add_lesson(command: Command) -> None:
    parser = command("lesson", "ten lessons: list them, check an exercise, print them", "lesson check 05")
    actions = parser.add_subparsers(metavar="ACTION", required=True, dest="action")

    def action(name: str, summary: str, example: str) -> argparse.ArgumentParser:
        return actions.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=f"Example:\n  python -m emssd lesson {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    listing = action("list", "the lessons, and which exercises have passed", "list")
    checking = action("check", "check an exercise: exit 0 passed, 1 not yet", "check 05")
    checking.add_argument("number", metavar="NN", help="the lesson, such as 05")
    checking.add_argument("file", metavar="FILE", nargs="?", help="default: the lesson's file in lessons/exercises")
    for each in (listing, checking):
        each.add_argument("--json", action="store_true", help="print JSON")
    exporting = action("export", "write a lesson as one page to print", "export all --html lessons.html")
    exporting.add_argument("number", metavar="NN|all", help="the lesson, or all")
    exporting.add_argument("--html", metavar="OUT", help='the page; "-" prints it')


def _add_one_run(parser: argparse.ArgumentParser) -> None:
    """What only makes sense where one method runs once."""
    run = parser.add_argument_group("one run")
    run.add_argument(
        "--proposals",
        metavar="FILE",
        help="the drafts of --drafter scripted: JSON, a list per prompt of lists of token ids per decode step",
    )
    run.add_argument("--steps", type=at_least_one, metavar="N", help="stop after N decode steps (default: no limit)")
    run.add_argument(
        "--top-tokens",
        type=int,
        default=0,
        metavar="K",
        help="record the target's K best tokens at every judged position, up to 8 (default: 0)",
    )


def _add_common(parser: argparse.ArgumentParser, batch_size: int | None, one_run: bool = False) -> None:
    parser.set_defaults(proposals=None, steps=None, top_tokens=0)
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument("--prompt", action="append", metavar="TEXT", help="a prompt; may be repeated")
    prompts.add_argument(
        "--prompts",
        action="append",
        metavar="FILE",
        help='.txt (one a line) or .jsonl ("prompt" or "turns"); "-" reads lines from stdin',
    )
    prompts.add_argument("--chat", action="store_true", help="put prompts into the model's chat template")
    method = parser.add_argument_group("method")
    method.add_argument("--method", choices=tuple(METHODS), help="default: ems-sd")
    method.add_argument(
        "--drafter",
        choices=("none", "prompt-lookup", "draft-model", *(["scripted"] if one_run else [])),
        help="default: prompt-lookup; none drafts nothing",
    )
    method.add_argument("--draft-model", metavar="NAME", help="model that drafts; its tokenizer must be the target's")
    method.add_argument("--num-draft-tokens", type=int, default=7, metavar="K", help="drafts a step (default: 7)")
    method.add_argument(
        "--ngram-size", type=int, default=2, metavar="N", help="prompt lookup: tokens of the key (default: 2)"
    )
    method.add_argument(
        "--lookup",
        choices=("prompt", "context"),
        default="prompt",
        help="prompt lookup: where to look (default: prompt)",
    )
    run = parser.add_argument_group("run")
    size = "all prompts" if batch_size is None else str(batch_size)
    run.add_argument("--model", default=DEFAULT_MODEL, help="name, folder or hub id (default: %(default)s)")
    run.add_argument(
        "--batch-size",
        type=at_least_one,
        default=batch_size,
        metavar="B",
        help=f"rows decoded together (default: {size})",
    )
    run.add_argument("--max-new-tokens", type=int, metavar="N", help=f"tokens per row (default: {DEFAULT_NEW_TOKENS})")
    run.add_argument(
        "--seed", type=int, default=0, metavar="S", help="recorded with the trace; greedy decoding draws nothing"
    )
    run.add_argument("--check-invariants", action="store_true", help="assert the invariants of every step (slow)")
    _add_machine(parser)


def _add_machine(parser: argparse.ArgumentParser, dtype: str | None = "auto") -> None:
    machine = parser.add_argument_group("machine")
    machine.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    shown = "the trace's" if dtype is None else dtype
    machine.add_argument(
        "--dtype",
        default=dtype,
        choices=("auto", "float32", "float64", "bfloat16", "float16"),
        help=f"number format (default: {shown})",
    )
    machine.add_argument("--quiet", action="store_true", help="no progress bar and no summary on stderr")
