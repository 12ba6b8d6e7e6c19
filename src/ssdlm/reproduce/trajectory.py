"""What a block looks like on its way from noise to text: the paper's table of intermediate states.

api.stream -> [trajectory] -> OUT/trajectory.json -> figures
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ssdlm.diffusion.simplex import to_ids
from ssdlm.engine.prompt_files import read_prompts
from ssdlm.reproduce.experiment import Experiment, read_if_there
from ssdlm.reproduce.generation import fingerprint
from ssdlm.reproduce.setting import Options
from ssdlm.reproduce.table import code, markdown
from ssdlm.storage.files import write_json

SHOWN = (1.0, 0.6, 0.52, 0.44, 0.36, 0.32, 0.28, 0.24, 0.2, 0.0)
"""The levels t/T that the paper shows, from noise to the last step."""
FILE = "trajectory.json"
HEADING = ("t", "argmax of the logits at t", "argmax of the state at t - 1")


def record(experiment: Experiment, prompts: str, options: Mapping[str, Options]) -> None:
    """Write the states of one block for each role, after the first prompt of a file.

    `options` maps `ROLE, NAME` to options of `SSDLM.stream`; what is there already is left.
    """
    known = read_if_there(experiment.out / FILE)
    prompt = read_prompts(Path(prompts))[0]["prompt"]
    for name, one in options.items():
        model = experiment.models[name.partition(",")[0]]
        asked = {"model": fingerprint(model), "prompt": prompt, "options": one}
        if known.get(name, {}).get("asked") != asked:
            known[name] = {"asked": asked, "rows": states(experiment, model, prompt, one)}
    experiment.out.mkdir(parents=True, exist_ok=True)
    write_json(experiment.out / FILE, known)


def states(experiment: Experiment, model: str, prompt: str, options: Options) -> list[Options]:
    """Return what the network says, and the state after it, at each shown step of a block."""
    from ssdlm.api import SSDLM

    writer = SSDLM.from_pretrained(model, device=experiment.device, dtype=experiment.dtype)
    T = writer.options.change(**options).T
    shown = {max(1, round(level * T)) for level in SHOWN}
    rows: list[Options] = []
    for draft in writer.stream(prompt, **options):
        step = draft.step
        if step.t + 1 in shown:
            guess = step.tokens[0].clone()
            guess[step.window] = to_ids(step.logits)[0]
            state = to_ids(step.w_t)[0].tolist()
            texts = {"logits": writer.text(guess.tolist()), "w": writer.text(state)}
            rows.append({"t": step.t + 1, **texts})
        if step.is_last:
            break
    return rows


def parts(experiment: Experiment) -> list[str]:
    """Return the recorded trajectories as Markdown; none where none were recorded."""
    found = []
    for name, known in read_if_there(experiment.out / FILE).items():
        prompt, options = code(known["asked"]["prompt"]), json.dumps(known["asked"]["options"])
        found.append(f"### Trajectory of {name}\n\nAfter {prompt}, with {code(options)}:")
        rows = [[str(row["t"]), code(row["logits"]), code(row["w"])] for row in known["rows"]]
        found.append(markdown(HEADING, rows, words=3))
    return found
