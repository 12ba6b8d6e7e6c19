"""Tokens out of logits, each row by its own counters, and their evidence at a new level.

nucleus, counters -> [draws] -> engine;  the Triton bodies are in `ops.kernels.draws`

Settings are one for each text: `suppressed` is a token that is not written (-1 for none), `steps`
and `streams` are counters of the text's noise. `cuts` are each text's top_k and min_p, where there
are any.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ssdlm.ops.counters import WORD, gumbel, normals, philox, to_unit
from ssdlm.ops.nucleus import LEAST, draw_from, perturbed, suppress, truncated
from ssdlm.ops.where import on_gpu
from ssdlm.shapes import Tensor


def draw(
    logits: Tensor,
    prior: Tensor,
    evidence: Tensor | None,
    suppressed: Tensor,
    temperatures: Tensor,
    top_ps: Tensor,
    seeds: Tensor,
    steps: Tensor,
    streams: Tensor,
    trust: Tensor | None = None,
    cuts: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Draw tokens (N, W) from logits (N, W, V), the prior and, if there is any, the evidence.

    What the network and the prior say is cut to its nucleus; where top_p is negative, or 0, the
    likeliest token of it is taken. `trust` (N, W) gets the probabilities of the tokens.
    """
    if on_gpu(logits):
        from ssdlm.ops.kernels import draws as kernels

        settings = suppressed, temperatures, top_ps
        if cuts is not None:
            logits, prior, settings = cut_rows(logits + prior, *settings, *cuts)
        return kernels.draw(logits, prior, evidence, *settings, seeds, steps, streams, trust)
    drawn = []
    for row, own in enumerate(logits.float() + prior):
        ell = torch.zeros_like(own) if evidence is None else evidence[row]
        u = few_uniforms(seeds[row], len(own), steps[row], streams[row])
        whole = suppress(own + ell, tokens_of(suppressed[row])).unsqueeze(0)
        top_p, settings = float(top_ps[row]), cut_of(cuts, row)
        settings |= {"top_p": abs(top_p), "temperature": float(temperatures[row])}
        cut = truncated(whole, ell.unsqueeze(0), **settings)
        drawn.append(draw_from(cut, u.unsqueeze(0), float(top_p > 0)))
        if trust is not None:
            trust[row] = cut.softmax(-1).gather(-1, drawn[-1].unsqueeze(-1))[0, :, 0]
    return torch.cat(drawn)


def draw_perturbed(
    logits: Tensor,
    prior: Tensor,
    suppressed: Tensor,
    temperatures: Tensor,
    top_ps: Tensor,
    seeds: Tensor,
    places: Tensor,
    stream: int,
    cuts: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Choose tokens (N, R) by logits (N, R, V) and the noise of places (N, R) in each text."""
    if on_gpu(logits):
        from ssdlm.ops.kernels import draws as kernels

        settings = suppressed, temperatures, top_ps
        if cuts is not None:
            logits, prior, settings = cut_rows(logits + prior, *settings, *cuts)
        return kernels.draw_perturbed(logits, prior, *settings, seeds, places, stream)
    V, chosen = logits.shape[-1], torch.empty(logits.shape[:2], dtype=torch.int64)
    for row, own in enumerate(logits.float() + prior):
        top_p, seed, settings = float(top_ps[row]), seeds[row : row + 1], cut_of(cuts, row)
        settings |= {"top_p": top_p, "temperature": float(temperatures[row])}
        never = tokens_of(suppressed[row])
        for number, place in enumerate(places[row].tolist()):
            g = gumbel(seed, position=place, V=V)[0] if top_p > 0 else None
            scores = perturbed(own[number : number + 1], g, suppressed=never, **settings)
            chosen[row, number] = scores.argmax()
    return chosen


def cut_of(cuts: tuple[Tensor, Tensor] | None, row: int) -> dict[str, Any]:
    """Return a text's own top_k and min_p."""
    return {} if cuts is None else {"top_k": int(cuts[0][row]), "min_p": float(cuts[1][row])}


def cut_rows(
    logits: Tensor,
    suppressed: Tensor,
    temperatures: Tensor,
    top_ps: Tensor,
    top_ks: Tensor,
    min_ps: Tensor,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Return logits (N, W, V) with -inf outside each text's nucleus, no prior, and what a draw
    from them needs to know, which cuts nothing more.

    No number is looked at, so that a graph can hold it; `nucleus` is the same for one text.
    """
    own, V = (slice(None), None, None), logits.shape[-1]
    words = torch.arange(V, device=logits.device)
    logits = torch.where(words == suppressed[own], LEAST, logits.float())
    values, ids = (logits / temperatures[own]).sort(-1, descending=True)
    count = torch.where(top_ks > 0, top_ks, V).clamp(max=V)
    least = values.gather(-1, (count - 1)[own].expand(*values.shape[:2], 1))
    probs = values.masked_fill(values < least, -torch.inf).softmax(-1)
    # Of a sum without its last: the first is inside, whatever the sum wanted is.
    before = F.pad(probs.cumsum(-1)[..., :-1], (1, 0), value=-1.0)
    inside = (before < top_ps.abs()[own]) & (values >= least)
    inside &= values >= values[..., :1] + min_ps.log()[own]
    is_inside = torch.zeros_like(inside).scatter(-1, ids, inside)
    nothing = torch.zeros(V, device=logits.device)
    settings = suppressed, temperatures, top_ps.sign()
    return logits.masked_fill(~is_inside, -torch.inf), nothing, settings


def new_evidence_(
    out: Tensor,
    tokens: Tensor,
    gain_z: Tensor,
    gain_w: Tensor,
    seeds: Tensor,
    steps: Tensor,
    streams: Tensor,
    firsts: Tensor,
) -> None:
    """Write the evidence (N, W, V) of tokens (N, W), each position at its level's gains.

    Gains are (W,), or each text's own (N, W); a text's positions are counted from its first on.
    """
    if on_gpu(out):
        from ssdlm.ops.kernels import draws as kernels

        kernels.new_evidence_(out, tokens, gain_z, gain_w, seeds, steps, streams, firsts)
        return
    _, W, V = out.shape
    for row, ell in enumerate(out):
        at = {"stream": int(streams[row]), "step": int(steps[row]), "first": int(firsts[row])}
        z = normals(seeds[row : row + 1], **at, B=W, V=V)[0]
        own_z, own_w = (gain if gain.dim() == 1 else gain[row] for gain in (gain_z, gain_w))
        ell.copy_(own_z.unsqueeze(1) * z)
        ell.scatter_add_(1, tokens[row].unsqueeze(1), own_w.unsqueeze(1))


def few_uniforms(seed: Tensor, B: int, step: Tensor, stream: Tensor) -> Tensor:
    """Return a number in (0, 1) for each position of one text.

    By whole numbers of Python: for so few, a hundred operations on tensors would take longer.
    """
    key, at = (int(seed) & WORD, int(seed) >> 32 & WORD), (int(step), int(stream))
    return to_unit(torch.tensor([philox((0, place, *at), key)[0] for place in range(B)]))


def tokens_of(suppressed: Tensor) -> tuple[int, ...]:
    """Return a text's suppressed tokens."""
    token = int(suppressed)
    return (token,) if token >= 0 else ()
