"""How long a step of decoding takes, beside the plain loop, the authors' and the machine's floor.

sizes, costs, machine, original -> [decode] -> command line
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, cast

import torch

from ssdlm.api import SSDLM
from ssdlm.bench import original
from ssdlm.bench.costs import Floor, Pass, autoregressive_passes, diffusion_passes, network_of
from ssdlm.bench.machine import (
    Measured,
    bandwidth,
    forget_peak,
    machine_name,
    matmul_peak,
    peak_memory,
    seconds_of,
)
from ssdlm.bench.sizes import DENOISERS, SIZES, original_network, prompts_for, random_model
from ssdlm.denoiser import DenoiserModule
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.diffusion.denoiser import reads_rows
from ssdlm.engine import plain
from ssdlm.engine.requests import Generation
from ssdlm.evaluate.autoregressive import AutoregressiveLM, as_causal_lm
from ssdlm.options import GenerateOptions, known_options
from ssdlm.storage.builtin import DEFAULT_MODEL
from ssdlm.storage.checkpoint import DTYPES, resolve_device
from ssdlm.values import choose, quote, require, show

ORIGINAL_STEPS = 5
"""Steps per block of the authors' loop; they are all alike, and slow."""
ORIGINAL_TOP_P = 0.95
DIFFUSION_PATH = ("grid", "width", "B", "T", "rule", "rho", "projection", "nucleus")
"""Options that say which way a block was denoised."""
PATH = (*DIFFUSION_PATH, "top_p", "temperature")

Prompts = Sequence[Sequence[int]]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class DecodeBench:
    """What to measure; None is the model's own."""

    size: str = "mini"
    model: str | None = None
    drafter: str | None = None
    batch: int = 1
    context: int = 50
    length: int = 50
    block: int | None = None
    steps: int | None = None
    grid: str | None = None
    width: float | None = None
    mode: str | None = None
    denoiser: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    deterministic: bool = False
    control: tuple[str, ...] = ()
    original: bool = False
    twin: bool = False
    repeats: int = 5

    def __post_init__(self) -> None:
        choose("size", self.size, tuple(SIZES))
        choose("dtype", self.dtype, ("auto", *DTYPES))
        if self.denoiser is not None:
            choose("denoiser", self.denoiser, DENOISERS)
        for name in ("mode", "grid"):
            if getattr(self, name) is not None:
                choose(name, getattr(self, name), known_options()[name].choices)
        for name in ("batch", "context", "length", "repeats"):
            count = getattr(self, name)
            require(count >= 1, name, count, "use 1 or more")
        if self.model is not None:
            for name in ("denoiser", "original"):
                if getattr(self, name):
                    raise ValueError(f"{name} goes with --size; leave it out, or --model")
            return
        if self.drafter is not None and not self.is_whole:
            raise ValueError(
                f"drafter={quote(self.drafter)}: a drafter belongs to a trained model; give --model"
            )
        if self.control and not self.is_whole:
            raise ValueError(
                f"control={self.control[0]}: a guide needs a model whose tokens it knows, and only "
                "size mini as it is has them; the others are random weights"
            )
        if self.twin and self.family != "block":
            raise ValueError(
                "twin: an encoder has no context stream to write with; use --denoiser block"
            )

    @property
    def is_whole(self) -> bool:
        """Whether the model is a trained one, with its own tokens."""
        return self.model is not None or (self.size, self.family) == ("mini", "block")

    @property
    def family(self) -> str:
        """The denoiser's family: as asked for, else the size's own."""
        return self.denoiser or SIZES[self.size].denoiser

    def changes(self) -> dict[str, Any]:
        """Return the generation options that differ from the model's own."""
        asked = {"length": self.length, "B": self.block, "T": self.steps, "mode": self.mode}
        asked |= {"grid": self.grid, "width": self.width, "control": self.control or None}
        # All texts go together, whatever the usual number is.
        return {k: v for k, v in asked.items() if v is not None} | {"batch_size": self.batch}


def run_engine(model: SSDLM, prompts: Prompts, changes: dict[str, Any]) -> list[Generation]:
    """Write texts as users do."""
    return model.generate(prompts, **changes)


def run_plain(engine: plain.Engine, prompts: Prompts, options: GenerateOptions) -> int:
    """Write texts by the plain loops of diffusion/, all rows together; return their passes."""
    requests = list(engine.prepare(prompts, [options] * len(prompts)))
    return sum(step.num_passes for step in engine.steps(requests))


def run_original(
    network: original.OriginalNetwork, context: torch.Tensor, blocks: list[int]
) -> None:
    """Write texts by the authors' loop, in as many blocks; theirs are equally long."""
    project = partial(original.sampling, K=5.0, top_p=ORIGINAL_TOP_P)
    steps = original.decode(
        network, context, project, T=ORIGINAL_STEPS, B=blocks[0], num_blocks=len(blocks)
    )
    for _ in steps:
        pass


def run_twin(causal_lm: Any, context: torch.Tensor, **asked: Any) -> None:
    """Write texts by the context stream, under `transformers`' own generation."""
    with torch.no_grad():
        causal_lm.generate(context, attention_mask=torch.ones_like(context), **asked)


def count_tokens(texts: Sequence[Generation]) -> int:
    """Return the tokens of all texts; one may end before its length."""
    return sum(len(text.tokens) for text in texts)


def num_passes(text: Generation) -> float:
    """Return the network passes that a text took, the prompt's included."""
    return text.passes_per_token * len(text.tokens)


def path_of(options: GenerateOptions) -> dict[str, Any]:
    """Return which way a text was written; what means nothing in its mode is None."""
    mode, values = options.mode, options.to_json()
    unused = () if mode == "diffusion" else DIFFUSION_PATH
    return {"mode": mode} | {n: None if n in unused else values[n] for n in PATH}


def passes_of(model: SSDLM, options: GenerateOptions, context: int) -> list[Pass]:
    """Return what the passes of a text are about; nothing where it is not known beforehand."""
    if options.mode == "diffusion":
        return diffusion_passes(model.denoiser, options, context=context)
    if options.mode == "autoregressive":
        return autoregressive_passes(context=context, length=options.length)
    return []


@dataclass
class Bench:
    """A model that is set up, and what was measured of it so far."""

    asked: DecodeBench
    device: torch.device
    dtype: torch.dtype
    model: SSDLM
    prompts: Prompts
    options: GenerateOptions
    found: dict[str, Measured]
    tell: Tell

    @classmethod
    def set_up(cls, asked: DecodeBench, tell: Tell) -> Bench:
        """Open the model and write its prompts."""
        device = resolve_device(asked.device)
        auto = "bfloat16" if device.type == "cuda" else "float32"
        dtype = getattr(torch, auto if asked.dtype == "auto" else asked.dtype)
        tell(f"opening {asked.model or asked.size} on {machine_name(device)}")
        how: Any = {"device": device, "dtype": dtype, "deterministic": asked.deterministic}
        if asked.is_whole:
            name = asked.model or DEFAULT_MODEL
            model = SSDLM.from_pretrained(name, drafter=asked.drafter, **how)
        else:
            max_len = asked.context + asked.length + (asked.block or 25)
            model = random_model(asked.size, asked.family, max_len=max_len, **how)
        if asked.twin and not reads_rows(model.denoiser):
            raise ValueError(f"twin: {asked.model} has no context stream to write with")
        options = model.options.change(**asked.changes())
        prompts = prompts_for(model, batch=asked.batch, context=asked.context)
        return cls(asked, device, dtype, model, prompts, options, {}, tell)

    @property
    def context(self) -> torch.Tensor:
        return torch.tensor(self.prompts, device=self.device)

    @property
    def network(self) -> DenoiserModule:
        return cast(DenoiserModule, self.model.denoiser)

    def times(self, what: str, work: Callable[[int], Any]) -> list[float]:
        """Return the seconds of each repetition, after one that warms up; work gets its number."""
        self.tell(f"timing {what}")
        warm_up = seconds_of(partial(work, 0), self.device)
        self.found.setdefault("warm_up_s", Measured((warm_up,)))  # the engine's, which is first
        numbers = range(1, self.asked.repeats + 1)
        return [seconds_of(partial(work, number), self.device) for number in numbers]

    def keep(self, name: str, values: Sequence[float]) -> None:
        self.found[name] = Measured(tuple(values))

    def keep_speed(self, name: str, counts: Sequence[int], seconds: Sequence[float]) -> None:
        """Keep the tokens per second of some runs."""
        pairs = zip(counts, seconds, strict=True)
        self.keep(name, [count / second for count, second in pairs])

    def measure_engine(self) -> None:
        """Time the engine, and count its passes and its memory."""
        written: list[list[Generation]] = []

        def work(number: int) -> None:
            changes = self.asked.changes() | {"seed": number}
            written.append(run_engine(self.model, self.prompts, changes))

        forget_peak(self.device)
        seconds = self.times("this engine", work)
        passes = [[num_passes(text) for text in texts] for texts in written[1:]]
        # Rows go together, so the one that takes most passes decides how many there are.
        pairs = list(zip(seconds, passes, strict=True))
        self.keep("ms_per_step", [1000 * second / max(rows) for second, rows in pairs])
        counts = [count_tokens(texts) for texts in written[1:]]
        self.keep_speed("tokens_per_s", counts, seconds)
        pairs = list(zip(passes, counts, strict=True))
        self.keep("passes_per_token", [sum(rows) / count for rows, count in pairs])

    def measure_plain(self) -> None:
        """Time the plain loop."""
        counts: list[int] = []
        engine = plain.Engine(self.model.denoiser, self.model.tokenizer)  # it keeps its guides

        def work(number: int) -> None:
            options = self.options.change(seed=number)
            counts.append(run_plain(engine, self.prompts, options))

        pairs = zip(self.times("the plain loop", work), counts[1:], strict=True)
        self.keep("ms_per_step_plain", [1000 * second / count for second, count in pairs])

    def measure_original(self) -> None:
        """Time the authors' loop."""
        max_len = self.asked.context + self.asked.length + self.options.B[0]
        network = original_network(self.asked.size, self.device, max_len=max_len)
        blocks = self.options.blocks()
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            seconds = self.times(
                "the authors' loop", lambda number: run_original(network, self.context, blocks)
            )
        count = ORIGINAL_STEPS * len(blocks)
        self.keep("ms_per_step_original", [1000 * second / count for second in seconds])

    def measure_twins(self) -> None:
        """Time the context stream under `transformers`, and under this engine."""
        length, tokenizer = self.asked.length, self.model.tokenizer
        asked: dict[str, Any] = {"max_new_tokens": length, "pad_token_id": 0}
        asked |= {"do_sample": True, "top_p": self.options.top_p, "top_k": 0}
        asked["temperature"] = self.options.temperature
        if tokenizer is not None:
            end = tokenizer.end_of_text
            asked |= {"min_new_tokens": length, "pad_token_id": end, "eos_token_id": end}
        causal_lm = self.under_transformers()
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            seconds = self.times(
                "the context stream under transformers",
                lambda number: run_twin(causal_lm, self.context, **asked),
            )
        counts = [self.asked.batch * length] * len(seconds)  # no text ends before its length
        self.keep_speed("tokens_per_s_twin", counts, seconds)
        written: list[int] = []
        changes = {"mode": "autoregressive", "length": length, "batch_size": self.asked.batch}

        def work(number: int) -> None:
            texts = run_engine(self.model, self.prompts, changes | {"seed": number})
            written.append(count_tokens(texts))

        seconds = self.times("the context stream under this engine", work)
        self.keep_speed("tokens_per_s_twin_engine", written[1:], seconds)

    def under_transformers(self) -> Any:
        """Return the context stream as `transformers` runs it, by its own code if it has any."""
        denoiser = self.model.denoiser
        if isinstance(denoiser, BlockDenoiser):
            return as_causal_lm(denoiser).eval()
        kind = str(self.dtype).removeprefix("torch.")
        named, where = str(self.asked.model), str(self.device)
        return AutoregressiveLM.from_pretrained(named, device=where, dtype=kind).model

    def floor(self) -> dict[str, Any]:
        """Return the least time of a pass on this machine, and what it was counted from."""
        self.tell("measuring the machine")
        speed, peak = bandwidth(self.device, self.dtype), matmul_peak(self.device, self.dtype)
        machine = {"bandwidth_bytes_per_s": speed, "matmul_flops_per_s": peak}
        passes = passes_of(self.model, self.options, self.asked.context)
        nothing = {"floor_ms": None, "bytes_per_pass": None, "flops_per_pass": None}
        if not passes:
            return machine | nothing
        network = network_of(self.network)
        floor = Floor.under(network, passes, self.asked.batch, bandwidth=speed, peak=peak)
        counted = {"bytes_per_pass": floor.bytes_per_pass, "flops_per_pass": floor.flops_per_pass}
        return machine | counted | {"floor_ms": floor.ms}

    def about(self) -> dict[str, Any]:
        """Return what was measured, and where."""
        asked = {item.name: getattr(self.asked, item.name) for item in fields(self.asked)}
        for name in ("block", "steps", "grid", "width", "mode", "original", "twin"):
            del asked[name]  # the path tells all but two, with the model's own values
        asked["size"] = self.asked.size if self.asked.model is None else None
        return asked | {
            "denoiser": self.asked.family
            if self.asked.model is None
            else type(self.network).__name__,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
            "machine": machine_name(self.device),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "parameters": sum(weight.numel() for weight in self.network.parameters()),
            "path": path_of(self.options),
        }


FIGURES = (
    "ms_per_step_original",
    "ms_per_step_plain",
    "ms_per_step",
    "passes_per_token",
    "tokens_per_s",
    "tokens_per_s_twin",
    "tokens_per_s_twin_engine",
)
"""What is measured several times; in the result, the medians."""


def silent(line: str) -> None:
    """Tell nobody."""


def bench_decode(asked: DecodeBench, tell: Tell = silent) -> dict[str, Any]:
    """Return what was measured: all keys are there, None where something was not asked for."""
    try:
        bench = Bench.set_up(asked, tell)
        bench.measure_engine()
        memory = peak_memory(bench.device)  # before the others need more
        bench.measure_plain()
        if asked.twin:
            bench.measure_twins()
        if asked.original:
            bench.measure_original()
        floor = bench.floor()
    except torch.OutOfMemoryError as error:
        reason = str(error).partition(". ")[0]
        raise ValueError(f"batch={asked.batch}: {reason}; use a smaller --batch") from error
    return bench.about() | summary(bench.found, floor) | {"peak_memory": memory}


def summary(found: dict[str, Measured], floor: dict[str, Any]) -> dict[str, Any]:
    """Return medians, ratios between them, and how far the single runs lie apart."""
    figures = {name: found[name].median if name in found else None for name in FIGURES}
    own, theirs, least = (
        figures["ms_per_step"],
        figures["ms_per_step_original"],
        floor["floor_ms"],
    )
    return (
        figures
        | floor
        | {
            "ratio_to_original": theirs / own if own and theirs else None,
            "fraction_of_floor": least / own if own and least else None,
            "warm_up_s": found["warm_up_s"].median,
            "spread": {name: found[name].spread for name in FIGURES if name in found},
        }
    )


ROWS = (
    ("this engine", "ms_per_step", "tokens_per_s"),
    ("plain loop", "ms_per_step_plain", ""),
    ("authors' loop", "ms_per_step_original", ""),
    ("context stream, transformers", "", "tokens_per_s_twin"),
    ("context stream, this engine", "", "tokens_per_s_twin_engine"),
    ("floor", "floor_ms", ""),
)
"""Of the table: a name, and which figures are its time and its speed."""


def table(found: dict[str, Any]) -> str:
    """Return the result as lines for people."""
    name = found["model"] or found["size"]
    what = f"{name} ({found['denoiser']}), batch {found['batch']}, {found['length']} "
    what += f"tokens after {found['context']}, {found['dtype']}, {found['machine']}"
    path = ", ".join(
        f"{name} {show(value)}" for name, value in found["path"].items() if value is not None
    )
    lines = [what, path, "", f"{'':30}{'ms/step':>12}{'min':>10}{'max':>10}{'tokens/s':>12}"]
    for name, step, speed in ROWS:
        spread = found["spread"].get(step, [None, None])
        cells = [cell(value, ".3f") for value in (found.get(step), *spread)]
        cells.append(cell(found.get(speed), ",.0f"))
        if any(cells):
            columns = zip(cells, (12, 10, 10, 12), strict=True)
            lines.append(f"{name:30}" + "".join(f"{text:>{width}}" for text, width in columns))
    ratio, fraction, memory = (
        found[name] for name in ("ratio_to_original", "fraction_of_floor", "peak_memory")
    )
    parts = [f"{found['passes_per_token']:.3f} passes per token"]
    parts += [f"{ratio:.1f} times as fast as the authors' loop"] if ratio else []
    parts += [f"{fraction:.1%} of the speed at the floor"] if fraction else []
    parts += [f"{memory / 2**20:,.0f} MiB"] if memory else []
    return "\n".join([*lines, "", ", ".join(parts)])


def cell(value: float | None, form: str) -> str:
    """Return a figure of the table; nothing where it was not measured."""
    return "" if value is None else format(value, form)
