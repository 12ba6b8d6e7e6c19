"""What a block looks like on its way from noise to text: the paper's table of intermediate states.

api.stream -> [trajectory] -> OUT/trajectory.json -> figures
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssdlm.diffusion.simplex import to_ids
from ssdlm.engine.prompt_files import read_prompts
from ssdlm.reproduce.experiment import Order, read
from ssdlm.reproduce.generation import fingerprint
from ssdlm.reproduce.page import code, table
from ssdlm.storage.files import write_json

SHOWN = (1.0, 0.6, 0.52, 0.44, 0.36, 0.32, 0.28, 0.24, 0.2, 0.0)
"""The levels t/T that the paper shows, from noise to the last step."""
FILE = "trajectory.json"


def record(order: Order, prompts: str, settings: dict[str, dict[str, Any]]) -> None:
    """Write the states of one block for each role, after the first prompt of a file.

    `settings` maps a role to options of `SSDLM.stream`; what is there already is left.
    """
    known = read(order.out / FILE) or {}
    prompt = read_prompts(Path(prompts))[0]["prompt"]
    for name, options in settings.items():
        model = order.models[name.partition(",")[0]]
        asked = {"model": fingerprint(model), "prompt": prompt, "options": options}
        if known.get(name, {}).get("asked") != asked:
            rows = states(order, model, prompt, options)
            known[name] = {"asked": asked, "rows": rows}
    order.out.mkdir(parents=True, exist_ok=True)
    write_json(order.out / FILE, known)


def states(order: Order, model: str, prompt: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the network says, and the state after it, at each shown step of a block."""
    from ssdlm.api import SSDLM

    writer = SSDLM.from_pretrained(model, device=order.device, dtype=order.dtype)
    T = writer.plan([prompt], **options)[1].T
    wanted = {max(1, round(level * T)) for level in SHOWN}
    rows = []
    for draft in writer.stream(prompt, **options):
        step = draft.step
        if step.t + 1 in wanted:
            said, state = step.tokens[0].clone(), to_ids(step.w_t)[0]
            said[step.at] = to_ids(step.logits)[0]
            rows.append({"t": step.t + 1, "logits": writer.text(said.tolist())})
            rows[-1]["w"] = writer.text(state.tolist())
        if step.is_last:
            return rows
    return rows


def parts(order: Order) -> list[str]:
    """Return the recorded trajectories as Markdown; none where none were recorded."""
    found = []
    for name, known in (read(order.out / FILE) or {}).items():
        asked = known["asked"]
        heading = f"### Trajectory of {name}\n\nAfter {code(asked['prompt'])}, with "
        heading += code(json.dumps(asked["options"])) + ":"
        found += [heading, rows_of(known["rows"])]
    return found


def rows_of(rows: Sequence[dict[str, Any]]) -> str:
    """Return the states of one block as a table."""
    cells = [[str(row["t"]), code(row["logits"]), code(row["w"])] for row in rows]
    return table(["t", "argmax of the logits at t", "argmax of the state at t - 1"], cells, words=3)
