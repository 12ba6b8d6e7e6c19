"""Tokens out of logits, each row by its own counters, and their evidence at a new level.

nucleus, counters -> [draws] -> engine;  the Triton bodies are in `ops.kernels.draws`

Settings are one for each text: `suppressed` is a token that is not written (-1 for none), `steps`
and `streams` are counters of the text's noise.
"""

from __future__ import annotations

import torch

from ssdlm.ops.counters import WORD, box_muller, gumbel, philox, to_unit
from ssdlm.ops.nucleus import draw_from, perturbed, suppress, truncated
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
) -> Tensor:
    """Draw tokens (N, W) from logits (N, W, V), the prior and, if there is any, the evidence.

    What the network and the prior say is cut to its nucleus; where top_p is negative, or 0, the
    likeliest token of it is taken. `trust` (N, W) gets the probabilities of the tokens.
    """
    if on_gpu(logits):
        from ssdlm.ops.kernels import draws as kernels

        settings = suppressed, temperatures, top_ps, seeds, steps, streams
        return kernels.draw(logits, prior, evidence, *settings, trust)
    drawn = []
    for row, own in enumerate(logits.float() + prior):
        ell = torch.zeros_like(own) if evidence is None else evidence[row]
        u = few_uniforms(seeds[row], len(own), steps[row], streams[row])
        whole = suppress(own + ell, tokens_of(suppressed[row])).unsqueeze(0)
        top_p, temperature = float(top_ps[row]), float(temperatures[row])
        cut = truncated(whole, ell.unsqueeze(0), top_p=abs(top_p), temperature=temperature)
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
) -> Tensor:
    """Choose tokens (N, R) by logits (N, R, V) and the noise of places (N, R) in each text."""
    if on_gpu(logits):
        from ssdlm.ops.kernels import draws as kernels

        settings = suppressed, temperatures, top_ps, seeds, places
        return kernels.draw_perturbed(logits, prior, *settings, stream)
    V, chosen = logits.shape[-1], torch.empty(logits.shape[:2], dtype=torch.int64)
    for row, own in enumerate(logits.float() + prior):
        top_p, heat = float(top_ps[row]), float(temperatures[row])
        never, seed = tokens_of(suppressed[row]), seeds[row : row + 1]
        for number, place in enumerate(places[row].tolist()):
            g = gumbel(seed, position=place, V=V)[0] if top_p > 0 else None
            scores = perturbed(
                own[number : number + 1], g, top_p=top_p, temperature=heat, suppressed=never
            )
            chosen[row, number] = scores.argmax()
    return chosen


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
        first = int(firsts[row])
        a, b, c, d = words(seeds[row], first, W, -(-V // 4), steps[row], streams[row])
        z = torch.stack((*box_muller(a, b), *box_muller(c, d)), -1).flatten(-2)[..., :V]
        own_z, own_w = (gain if gain.dim() == 1 else gain[row] for gain in (gain_z, gain_w))
        ell.copy_(own_z.unsqueeze(1) * z)
        ell.scatter_add_(1, tokens[row].unsqueeze(1), own_w.unsqueeze(1))


def few_uniforms(seed: Tensor, B: int, step: Tensor, stream: Tensor) -> Tensor:
    """Return a number in (0, 1) for each position of one text.

    By whole numbers of Python: for so few, a hundred operations on tensors would take longer.
    """
    key, at = (int(seed) & WORD, int(seed) >> 32 & WORD), (int(step), int(stream))
    return to_unit(torch.tensor([philox((0, place, *at), key)[0] for place in range(B)]))


def words(
    seed: Tensor, first: int, B: int, count: int, step: Tensor, stream: Tensor
) -> tuple[Tensor, ...]:
    """Return the four words (B, count) of counters at positions of one text."""
    column = torch.arange(count, device=seed.device)
    position = torch.arange(first, first + B, device=seed.device).unsqueeze(1)
    return philox((column, position, step, stream), (seed & WORD, (seed >> 32) & WORD))


def tokens_of(suppressed: Tensor) -> tuple[int, ...]:
    """Return a text's suppressed tokens."""
    token = int(suppressed)
    return (token,) if token >= 0 else ()
