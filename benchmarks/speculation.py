"""How many tokens a pass makes certain, by how many guesses it checks.

Texts are written by mode=autoregressive after the prompts of a file. Then one pass per text drafts
a block behind each of its tokens, and the rank of the true next tokens among the guesses is read
off, depth by depth. From these ranks, of blocks as long as its own, follows how a tree fares.

    python benchmarks/speculation.py prompts.jsonl                  tokens per pass, by nodes
    python benchmarks/speculation.py prompts.jsonl --ranks          and the table RANKS
    python benchmarks/speculation.py prompts.jsonl --timed 0,8,32   seconds, written for real

Prints a table and, as its last line, JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from ssdlm import SSDLM
from ssdlm.diffusion.autoregressive import Choice
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.speculative import Tree, WordsAlone, loosened, tree_of
from ssdlm.diffusion.tree import tree_rows
from ssdlm.engine.chains import choice_of
from ssdlm.engine.requests import Request
from ssdlm.shapes import Tensor

MOST_RANKS = 24
"""Ranks that are counted at each depth; a tree of 256 nodes uses fewer."""


@torch.no_grad()
def ranks_of(
    model: SSDLM, request: Request, tokens: list[int], alone: WordsAlone, depth: int
) -> Tensor:
    """Return the rank (n, depth) of the tokens 1, 2, ... after each of a text's as guesses.

    Row i is about the tree below the text's token i; ranks beyond the text's end are -1.
    """
    choice, denoiser = loosened(choice_of(request.options, model.tokenizer)), model.denoiser
    device, start, n = denoiser.device, len(request.context), len(tokens)
    whole = [*request.context, *tokens[:-1]]
    owners = range(start - 1, len(whole))
    rows = tree_rows(range(-1, len(whole) - 1), owners, m=depth + 1, root=start - 1, device=device)
    nothing = denoiser.prefill(torch.zeros(1, 0, dtype=torch.long, device=device))
    done = denoiser.check_and_draft(nothing, torch.tensor([whole], device=device), rows)
    blocks = done.drafts[0].unflatten(0, (-1, depth + 1))
    noise = RowNoise(torch.tensor([request.noise_seed], device=device))
    ranks = torch.full((n, depth), -1)
    text = torch.tensor(tokens, device=device)
    for k in range(1, min(depth, n - 1) + 1):
        before, true = text[k - 1 : -1], text[k:]
        scores = scores_of(model, choice, blocks[: n - k, k], alone[before], noise, k)
        own = scores.gather(1, true[:, None])
        ranks[: n - k, k - 1] = (scores > own).sum(1).cpu()
        ranks[: n - k, k - 1][own.isneginf()[:, 0].cpu()] = denoiser.V
    return ranks


def scores_of(
    model: SSDLM, choice: Choice, drafts: Tensor, alone: Tensor, noise: RowNoise, first: int
) -> Tensor:
    """Return the guesses' scores (n, V) for the text's tokens from `first` on."""
    V = model.denoiser.V
    logits = model.denoiser.guess_logits(drafts, alone)
    g = choice.draw(noise, position=first, V=V, count=len(drafts))
    return choice.perturbed(logits, None if g is None else g[0])


def shares(ranks: list[Tensor]) -> list[list[float]]:
    """Return how often each rank is right at each depth, where all above it are."""
    every = torch.cat(ranks)
    table = []
    for depth in range(every.shape[1]):
        column = every[:, depth][every[:, depth] >= 0]
        table.append([(column == rank).float().mean().item() for rank in range(MOST_RANKS)])
    return table


def count_passes(ranks: Tensor, tree: Tree) -> int:
    """Return the passes that a text takes whose tokens had these ranks as guesses."""
    child = {
        (parent, rank): node
        for node, (parent, rank) in enumerate(zip(tree.parents, tree.ranks, strict=True))
    }
    passes, position = 1, 1  # the prompt's pass gives the first token
    while position < len(ranks):
        passes, node, depth, root = passes + 1, 0, 0, position - 1
        while node is not None and position < len(ranks):
            position += 1
            rank = int(ranks[root, depth]) if depth < ranks.shape[1] else -1
            node, depth = child.get((node, rank)), depth + 1
    return passes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prompts", type=Path, help='JSON lines with "prompt"')
    parser.add_argument("--model", default="builtin:mini")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num", type=int, default=64, help="prompts to use (default 64)")
    parser.add_argument("--skip", type=int, default=0, help="prompts to leave out (default 0)")
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument(
        "--depth", type=int, default=6, help="with --ranks: rows of the table (default 6)"
    )
    parser.add_argument("--nodes", default="4,8,16,32,64", help="sizes of trees")
    parser.add_argument("--ranks", action="store_true", help="print the table of ranks")
    parser.add_argument("--timed", default="", help="sizes of trees to write with, for the time")
    arguments = parser.parse_args()
    lines = arguments.prompts.read_text(encoding="utf-8").splitlines()
    lines = lines[arguments.skip : arguments.skip + arguments.num]
    prompts = [json.loads(line)["prompt"] for line in lines]
    model = SSDLM.from_pretrained(arguments.model, device=arguments.device)
    changes: dict[str, Any] = {"mode": "autoregressive", "length": arguments.length}
    requests = model.requests(prompts, changes)
    texts = dict(model.engine.write(requests))
    alone = WordsAlone(model.denoiser)

    def measure(depth: int) -> list[Tensor]:
        """Return the ranks of every text's tokens, from blocks for a tree of this depth."""
        return [ranks_of(model, one, texts[one.number].tokens, alone, depth) for one in requests]

    result: dict[str, Any] = {"prompts": len(prompts), "length": arguments.length}
    if arguments.ranks:
        table = shares(measure(arguments.depth))
        result["ranks"] = [[round(share, 4) for share in row] for row in table]
        print("RANKS = (")
        for row in table:
            print(f"    ({', '.join(f'{share:.4f}' for share in row)}),")
        print(")")
    print("| nodes | depth | tokens per pass |\n|---|---|---|")
    result["tokens_per_pass"] = {}
    num_tokens = sum(len(text.tokens) for text in texts.values())
    for nodes in map(int, arguments.nodes.split(",")):
        tree = tree_of(nodes)
        passes = sum(count_passes(one, tree) for one in measure(tree.m - 1))
        speed = num_tokens / passes
        print(f"| {nodes} | {tree.m - 1} | {speed:.2f} |")
        result["tokens_per_pass"][nodes] = round(speed, 3)
    if arguments.timed:
        result["timed"] = time_modes(model, prompts, arguments)
    print(json.dumps(result))


def time_modes(model: SSDLM, prompts: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return seconds and tokens per pass of texts that are written for real, by nodes."""
    print("| mode | seconds per text | tokens per pass |\n|---|---|---|")
    figures: dict[str, Any] = {}
    for nodes in [None, *map(int, arguments.timed.split(","))]:
        mode = {"mode": "autoregressive"}
        if nodes is not None:
            mode = {"mode": "speculative", "draft_nodes": nodes}
        model.generate(prompts[:1], length=arguments.length, **mode)
        start = time.perf_counter()
        texts = model.generate(prompts, length=arguments.length, **mode)
        seconds = (time.perf_counter() - start) / len(prompts)
        passes = sum(text.passes_per_token * len(text.tokens) for text in texts)
        speed = sum(len(text.tokens) for text in texts) / passes
        name = "autoregressive" if nodes is None else f"speculative, {nodes}"
        print(f"| {name} | {seconds:.2f} | {speed:.2f} |")
        figures[name] = {"seconds": round(seconds, 3), "tokens_per_pass": round(speed, 3)}
    return figures


if __name__ == "__main__":
    main()
