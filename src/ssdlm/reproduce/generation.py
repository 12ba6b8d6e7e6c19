"""The stage `generate`: a setting's texts, written by the library's own batch generation.

setting -> [generation] -> OUT/cells/NAME/generations.jsonl, made.json
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ssdlm.engine.chat import chat_text, said
from ssdlm.engine.prompt_files import generate_file, read_prompts
from ssdlm.needs import decides_one
from ssdlm.progress import bar
from ssdlm.reproduce.experiment import Experiment
from ssdlm.reproduce.setting import (
    Autoregressive,
    Diffusion,
    Given,
    Gold,
    Instructed,
    Options,
    Setting,
    read_if_there,
)
from ssdlm.storage.builtin import builtin_folder, is_builtin
from ssdlm.storage.checkpoint import CONFIG, DECODING, WEIGHTS
from ssdlm.storage.files import read_checked, sha256, write_file, write_json
from ssdlm.storage.jsonl import read_jsonl, write_jsonl
from ssdlm.train.log import RUN, RunFile, read_log

if TYPE_CHECKING:
    from ssdlm.api import SSDLM
    from ssdlm.evaluate.autoregressive import AutoregressiveLM
    from ssdlm.tokenizer import Tokenizer

FINGERPRINT = (CONFIG, WEIGHTS, DECODING, "pytorch_model.bin", "tokenizer.json")
"""Files that make a model's folder what it is."""

Observe = Callable[[int, str], None]


class ModelCache:
    """Opens the models that write, and keeps the last one open."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.source: Diffusion | Autoregressive | None = None
        self.writer: SSDLM | AutoregressiveLM | None = None
        self.fingerprint = cache(fingerprint)

    def open(self, source: Diffusion | Autoregressive) -> SSDLM | AutoregressiveLM:
        """Return a model ready to write."""
        if self.writer is not None and source == self.source:
            return self.writer
        self.writer = None  # frees the memory of the one before
        if isinstance(source, Autoregressive):
            from ssdlm.evaluate.autoregressive import AutoregressiveLM as Model
        else:
            from ssdlm.api import SSDLM as Model
        device, dtype = self.experiment.device, self.experiment.dtype
        self.source = source
        self.writer = Model.from_pretrained(source.model, device=device, dtype=dtype)
        return self.writer


def fingerprint(model: str) -> dict[str, str] | str:
    """Return the digests of a folder's files; a Hub id is its own."""
    folder = builtin_folder(model) if is_builtin(model) else Path(model)
    files = [folder / name for name in FINGERPRINT if (folder / name).exists()]
    return {path.name: sha256(path) for path in files} or model


def generate(experiment: Experiment, settings: Sequence[Setting]) -> None:
    """Write the texts of all settings, one model after the other."""
    models, done = ModelCache(experiment), 0
    total = sum(setting.num_prompts for setting in settings)
    with bar("generate", total, is_shown=experiment.is_shown) as show:
        for setting in sorted(settings, key=lambda setting: str(setting.source)):
            begun = done
            generate_setting(models, setting, lambda n, _: show(begun + n, setting.name))  # noqa: B023
            done += setting.num_prompts
            show(done, setting.name)


def generate_setting(models: ModelCache, setting: Setting, observe: Observe) -> None:
    """Write one setting's texts, or the rest of them."""
    files, source = models.experiment.files(setting), setting.source
    files.folder.mkdir(parents=True, exist_ok=True)
    if isinstance(source, Gold):
        write_jsonl(files.generations, gold_texts(setting))
        write_json(files.made, {"author": "gold", "prompts": setting.prompts})
    elif isinstance(source, Given):
        path = Path(source.path)
        write_file(files.generations, lambda copy: copy.write_bytes(path.read_bytes()))
        beside = read_if_there(path.with_suffix(".about.json"))
        costs = {key: beside[key] for key in ("training", "seconds") if key in beside}
        write_json(files.made, {"author": "given", "file": path.name} | costs)
    else:
        generate_by_model(models, source, setting, observe)


def generate_by_model(
    models: ModelCache, source: Diffusion | Autoregressive, setting: Setting, observe: Observe
) -> None:
    """Let a model write; a file that is there whole is left, and one of other settings refused."""
    experiment, files = models.experiment, models.experiment.files(setting)
    # These names are on disk, and texts that were written under others would be refused.
    identity = {"author": type(source).__name__, "model": models.fingerprint(source.model)}
    identity |= {"options": setting.options, "dtype": experiment.dtype}
    if isinstance(source, Instructed):
        identity["instruction"] = source.instruction
    digest = sha256(Path(setting.prompts))
    asked = {"settings": identity, "prompts": f"{digest}:{setting.num_prompts}"}
    asked["samples"] = setting.num_samples
    known = read_if_there(files.made)
    if files.generations.exists() and known | asked == known:
        return
    model = models.open(source)
    part = files.generations.with_name(f"{files.generations.name}.part")
    is_resumed = part.exists() or files.generations.exists()
    if setting.needs_gradient and not can_climb(model, setting):
        return
    samples = {"num_samples": setting.num_samples}
    write = model.writer(**samples, batch_size=experiment.batch_size, **setting.options)
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        kept = ("prompt", "source")
        lines = read_prompts(Path(setting.prompts))[: setting.num_prompts]
        lines = [{key: line[key] for key in kept if key in line} for line in lines]
        target = files.generations
        if isinstance(source, Instructed):
            lines = [told(source, model.tokenizer, line) for line in lines]
            target = files.folder / "told.jsonl"
        write_jsonl(path, lines)
        report = generate_file(write, path, target, identity=identity | samples, observe=observe)
        if target != files.generations:  # judges read what follows the opening
            own = ({**line, "prompt": line["opening"]} for line in read_jsonl(target))
            write_jsonl(files.generations, own)
    costs = {
        "texts": report.texts,
        "calls": read_jsonl(files.generations)[0]["calls"],
        # How long the part took that was there before is not known.
        "seconds": None if is_resumed else time.monotonic() - began,
        "device": device_name(model),
        "training": training_costs(source.model),
        "python": platform.python_version(),
    }
    write_json(files.made, asked | costs)


def can_climb(model: SSDLM | AutoregressiveLM, setting: Setting) -> bool:
    """Tell whether a guide of a setting has a gradient for a model's tokens, and may follow it."""
    from ssdlm.api import SSDLM

    assert isinstance(model, SSDLM)
    options = model.options.change(**setting.options)
    if options.gradient == "fudge" and not decides_one(options):
        return False
    return model.engine.controls.steering(options).has_gradient


def told(source: Instructed, tokenizer: Tokenizer | None, line: Options) -> Options:
    """Return a line whose prompt is an instruction, and an answer that begins with its prompt."""
    asked = chat_text(tokenizer, said(source.instruction + line["prompt"]))
    return line | {"prompt": str(asked) + line["prompt"], "opening": line["prompt"]}


def gold_texts(setting: Setting) -> list[Options]:
    """Return the gold continuations of a setting's prompts, as generations."""
    lines, texts, counts = read_prompts(Path(setting.prompts))[: setting.num_prompts], [], []
    if isinstance(setting.source, Gold):  # whose texts are read as those of a model are
        from ssdlm.evaluate.run import NEED_TOKENS

        counts = [name for name in setting.measures.get("metrics", ()) if name in NEED_TOKENS]
    for number, line in enumerate(lines, start=1):
        lacks = "" if "gold" in line else "gold continuation"
        if counts and not lacks and "gold_tokens" not in line:
            lacks = f"gold_tokens, which {', '.join(counts)} count"
        if lacks:
            raise ValueError(
                f"{setting.prompts}: prompt {number} of {len(lines)} has no {lacks}; "
                "make prompts with `ssdlm prompts STORE`"
            )
        tokens = {"tokens": line["gold_tokens"]} if "gold_tokens" in line else {}
        texts.append({"prompt": line["prompt"], "text": line["gold"]} | tokens)
    return texts


def device_name(writer: SSDLM | AutoregressiveLM) -> str:
    """Return the machine that a model runs on, in words."""
    import torch

    if writer.device.type == "cuda":
        return torch.cuda.get_device_name(writer.device)
    return f"{writer.device.type}, {os.cpu_count()} cores"


def training_costs(model: str) -> Options:
    """Return what a training run left beside its weights: tokens, seconds of steps, its data."""
    log = Path(model) / "log.jsonl"
    records = read_log(log) if log.exists() else []
    timed = [record for record in records if record.get("tokens_per_s") and "tokens" in record]
    if not timed:
        return {}
    seconds, before = 0.0, 0
    for record in timed:
        if record["step"] > 1:  # the first one compiles
            seconds += (record["tokens"] - before) / record["tokens_per_s"]
        before = record["tokens"]
    settings = Path(model) / RUN
    data = list(read_checked(settings, RunFile).asked.data) if settings.exists() else []
    return {"tokens": before, "seconds": seconds, "data": data}
