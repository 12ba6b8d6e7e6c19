"""Texts out of windows of noise, on any path of noise levels: the fast twin of `diffusion.sampler`
and `diffusion.sliding`.

    tokens -> evidence at their level -> rows behind the slot -> logits -> tokens

What is kept of an open position is its latest token: its state is that token under fresh noise
(Eq. 18), which counters make anew in every pass. A window that slides decides a token a pass and
moves on; one that stays in its block decides all of them in T passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F

from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.llama import LlamaDenoiser
from ssdlm.engine.batch import DecodeBatch, Entry, Text
from ssdlm.engine.path import Path
from ssdlm.engine.views import Frame
from ssdlm.ops.counters import NORMAL, NUM_STREAMS, UNIFORM
from ssdlm.ops.draws import draw, new_evidence_
from ssdlm.ops.nucleus import LEAST
from ssdlm.ops.rows import Behind, Rows
from ssdlm.shapes import Tensor

MOST_PASSES = 32
"""After so many, somebody sees who comes and who leaves: blocks may take thousands."""


class Window(DecodeBatch):
    """W open rows behind a decided one; of a causal language model, that row is the open one."""

    def __init__(self, denoiser: BlockDenoiser | LlamaDenoiser, path: Path, **sizes: Any) -> None:
        is_open = (path.levels > 0) & (path.levels < 1)
        self.is_noisy = bool(is_open.any()) or path.after is None
        """Whether any position ever has evidence."""
        super().__init__(denoiser, is_padded=not self.is_noisy, **sizes)
        self.follow(path)
        self.rows = self.causal = Rows.causal(self.W, self.device)
        self.first = int(denoiser.most_open is None)
        """The first open row."""
        if self.first:
            self.rows = Rows.window(self.W, self.device)
            self.blank = cast(BlockDenoiser, denoiser).blank()
        gain, a = denoiser.gain(self.levels).cpu() * denoiser.K, path.alpha_bar
        gains = (torch.where(is_open, gain * part, 0.0) for part in ((1 - a).sqrt(), 2 * a.sqrt()))
        self.gain_z, self.gain_w = (one.float().to(self.device).contiguous() for one in gains)

    def follow(self, path: Path) -> None:
        """Take a path, and room for the tokens on it."""
        self.path, (self.T, self.W) = path, path.levels.shape
        self.slides = path.after is not None
        self.counts_context = not self.slides
        self.levels = path.levels.float().to(self.device).contiguous()
        self.tokens, self.moving = self.whole(self.W), self.whole()
        self.normals, self.uniforms = self.whole(fill=NORMAL), self.whole(fill=UNIFORM)
        """The streams of each text's numbers: every block has some of its own."""
        frames = self.num_frames, self.num_slots, self.W
        self.frame = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.seen = torch.zeros(frames, dtype=torch.int64, device=self.device)
        self.trust = torch.zeros(frames, device=self.device)
        self.pins = self.whole(self.W, fill=-1)
        """Tokens that the network is to see in the window, -1 for none."""
        self.has_pins = False
        self.text = self.whole(self.text.shape[1] + self.W)  # a last block may be short
        self.clock: dict[int, int] = {}
        """Passes of each text's block so far, as the host counts them."""
        self.ended: dict[int, int] = {}
        """Decided tokens of each text, without those of a block on its way."""
        self.prompt: dict[int, Tensor] = {}
        """Contexts, for guides between the halves of a pass."""
        self.own: Tensor | None = None
        """What such guides make of the logits, the prior included."""
        self.nothing = torch.zeros_like(self.prior)

    @torch.no_grad()
    def join(
        self, entries: Sequence[Entry], slots: Sequence[int], sources: Sequence[int | None] = ()
    ) -> None:
        super().join(entries, slots, sources)
        if not self.slides:  # blocks are read by passes of their own, and so are contexts
            for slot in list(self.unread):
                context = self.unread.pop(slot)
                self.read_ids(context, torch.tensor([slot]))
                self.lengths[slot] = context.shape[1]
        at = torch.tensor(slots, device=self.device)
        self.tokens[at], self.normals[at], self.uniforms[at] = 0, NORMAL, UNIFORM
        self.pins[at] = -1  # another text may have had some here
        self.clock |= dict.fromkeys(slots, 0)
        self.ended |= dict.fromkeys(slots, 0)
        for slot, entry in zip(slots, entries, strict=True):
            if entry.guide is not None:
                self.prompt[slot] = torch.tensor(entry.context, device=self.device)

    def leave(self, slots: Sequence[int]) -> None:
        super().leave(slots)
        for slot in slots:
            del self.clock[slot], self.ended[slot]
            self.prompt.pop(slot, None)

    def draw(self) -> None:
        self.say()
        self.pick()

    def say(self) -> None:
        """Run the rows."""
        hidden = self.read(self.inputs(), self.first)
        self.logits = self.slots.logits(hidden, self.head, is_single=not self.first)

    def pick(self) -> None:
        """Draw a token for each open position."""
        here = self.here
        logits, added = self.steered()
        settings = (*self.settings(), self.passes[here] + 1, self.uniforms[here])
        trust = torch.empty(logits.shape[:2], device=self.device) if self.is_watched else None
        if self.masks is None:
            self.drawn = draw(logits, added, self.ell, *settings, trust)
        else:
            self.hold(logits, added)
            self.drawn = self.replaced(draw(self.legal, added, self.ell, *settings, trust))
        if trust is None:
            return
        for kept, new in ((self.seen, self.drawn), (self.trust, trust)):
            if self.is_captured:
                kept.index_copy_(0, self.frame, new.unsqueeze(0))
            else:
                self.put(kept[0], new)
        self.frame.add_(1)

    def hold(self, logits: Tensor, added: Tensor) -> None:
        """Find what is legal; forbidden words leave logits alone whose best token is."""
        assert self.masks is not None
        here, V = self.here, logits.shape[-1]
        self.allowed = self.masks.allowed()[here, None, :V]
        if self.is_strict:
            self.legal = torch.where(self.allowed, logits, -torch.inf)
            return
        never = self.suppressed[here, None, None]
        words = torch.arange(V, device=self.device)
        self.shares = torch.where(words == never, LEAST, logits.float() + added)
        best = self.allowed.gather(-1, self.shares.argmax(-1, keepdim=True))
        is_free = best & (self.strict[here, None, None] == 0)
        self.legal = torch.where(self.allowed | is_free, logits, -torch.inf)

    def replaced(self, drawn: Tensor) -> Tensor:
        """Return tokens with the likeliest legal one in place of one that is not."""
        if self.is_strict:
            return drawn
        is_legal = self.allowed.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        best = self.shares.masked_fill(~self.allowed, -torch.inf).argmax(-1)
        return torch.where(is_legal, drawn, best)

    @property
    def is_watched(self) -> bool:
        """Whether frames are kept: what a graph does, it does for all."""
        is_asked = self.is_captured or any(entry.is_watched for entry in self.entries.values())
        return self.num_frames > 0 and is_asked

    def frames(self, count: int) -> dict[int, list[Frame]]:
        seen, trust = self.seen[:count].tolist(), self.trust[:count].tolist()
        return {
            slot: [Frame(seen[pass_][slot], trust[pass_][slot]) for pass_ in range(count)]
            for slot, entry in self.entries.items()
            if entry.is_watched
        }

    def gates(self) -> tuple[Tensor, ...]:
        return self.active, self.moving, self.frame

    def steered(self) -> tuple[Tensor, Tensor]:
        """Return logits as guides would have them, and what a draw is to add to them."""
        if self.own is None:
            return self.logits, self.prior
        return self.own, self.nothing

    def inputs(self) -> Tensor:
        """Return what the rows read: the last decided word, and the open positions behind it."""
        here, word = self.here, self.denoiser.embed(self.last[self.here])
        if not self.is_noisy:  # a position without evidence starts from the word before it
            self.ell = None
            return word.expand(-1, 1 + self.first, -1).contiguous()
        at, tokens = self.passes[here].clamp(max=self.T - 1), self.tokens[here]
        levels = self.levels[at]
        if self.has_pins:
            pins = self.pins[here]
            levels = levels.masked_fill(pins >= 0, 0.0)
            tokens = torch.where(pins >= 0, pins, tokens)
        self.ell = self.evidence(tokens, at)
        tables, level = self.denoiser.tables(), levels.unsqueeze(-1)
        inside = (self.prior + self.ell).softmax(-1).to(word.dtype) @ tables
        soft = torch.where(level == 0, F.embedding(tokens, tables), inside)
        soft = torch.where(level == 1, self.blank, soft)
        left = torch.cat((word, soft[:, :-1, : word.shape[-1]]), 1)
        noisy = self.denoiser.embed_noisy(soft, left, levels, self.blank)
        return torch.cat((word, noisy), 1)

    def evidence(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Return what the state of each position says by itself: its token under fresh noise."""
        here = self.here
        ell = torch.empty(*tokens.shape, self.denoiser.V, device=self.device)
        gains = self.gain_z[at], self.gain_w[at]
        counters = self.seeds[here], self.passes[here], self.normals[here]
        new_evidence_(ell, tokens, *gains, *counters, first=int(self.slides))
        return ell

    def commit(self) -> None:
        here, drawn, active = self.here, self.drawn, self.active[self.here].bool().unsqueeze(1)
        if self.slides:
            self.write(drawn[:, :1])
            drawn = F.pad(drawn[:, 1:], (0, 1)) if self.is_noisy else None
        else:
            # What is clean stays.
            active = active & (self.levels[self.passes[here].clamp(max=self.T - 1)] > 0)
        if drawn is not None:
            self.put(self.tokens, torch.where(active, drawn, self.tokens[here]))
        self.passes.add_(self.active)

    def one_pass(self) -> None:
        entries = self.entries.values()
        has_guides, has_choosers = any(e.guide for e in entries), any(e.chooser for e in entries)
        if not has_guides and not has_choosers:
            super().one_pass()
            return
        self.show_pins()
        self.do("say", self.say)
        if has_guides:
            self.steer()
        self.do("pick", self.pick)
        self.choose()
        self.do("commit", self.commit)
        if not self.is_captured:  # the next pass may be without guides
            self.own = None

    def steer(self) -> None:
        """Let guides that are in no graph say where their texts go."""
        V = self.denoiser.V
        if self.own is None:
            self.own = torch.empty(self.logits.shape, device=self.device)
        torch.add(self.logits, self.prior, out=self.own)
        for row, slot in enumerate(self.rows_of_slots()):
            if slot not in self.entries or (guide := self.entries[slot].guide) is None:
                continue
            number = min(self.clock[slot], self.T - 1)
            window = self.path.windows[min(number, len(self.path.windows) - 1)]
            if not guide.has_windows:
                window = slice(0, self.W)
            ell = 0.0 if self.ell is None else self.ell[row : row + 1, window]
            decided = self.tokens[slot, : window.start or 0]
            context = torch.cat((self.prompt[slot], self.text[slot, : self.ended[slot]], decided))
            whole = self.own[row : row + 1, window, :V] + ell
            level = self.levels[number, window].unsqueeze(0)
            said = guide.steer(context.unsqueeze(0), whole, level)
            self.own[row, window, :V] = (said - ell)[0]

    def rows_of_slots(self) -> list[int]:
        """Return the slot of each row; a GPU is not asked."""
        return list(range(self.num_slots)) if self.is_captured else sorted(self.entries)

    def show_pins(self) -> None:
        """Let the network see tokens that must stand somewhere."""
        for slot, entry in self.entries.items():
            level = self.path.levels[min(self.clock[slot], self.T - 1)]
            pins = entry.chooser.pins(level.unsqueeze(0)) if entry.chooser else None
            if pins is not None:
                self.pins[slot] = pins[0]
                if not self.has_pins:  # a graph that was recorded before looks at none
                    self.has_pins = True
                    self.graphs.pop("say", None)

    def choose(self) -> None:
        """Replace what was drawn for texts with choosers."""
        for row, slot in enumerate(self.rows_of_slots()):
            chooser = self.entries[slot].chooser if slot in self.entries else None
            if chooser is None:
                continue
            V = self.denoiser.V
            logits = self.logits[row : row + 1, :, :V].float() + self.prior[:V]
            step = chooser.choose(logits if self.ell is None else logits + self.ell[row])
            self.drawn[row] = step.tokens[0] if step.drawn is None else step.drawn[0]

    def passes_for(self, num_tokens: int) -> int:
        if self.slides:
            return num_tokens
        return min(MOST_PASSES, *(self.T - passes for passes in self.clock.values()))

    def run(self, count: int) -> None:
        self.frame.zero_()
        if self.slides and not any(one.chooser or one.guide for one in self.entries.values()):
            super().run(count)
            self.clock = {slot: passes + count for slot, passes in self.clock.items()}
            return
        for _ in range(count):
            super().run(1)
            self.clock = {slot: passes + 1 for slot, passes in self.clock.items()}
            self.ended |= self.clock if self.slides else {}
            if not self.slides:
                self.end_blocks([slot for slot, passes in self.clock.items() if passes == self.T])

    @torch.no_grad()
    def end_blocks(self, slots: list[int]) -> None:
        """Put decided blocks behind their texts, and begin the next ones."""
        if not slots:
            return
        at = torch.tensor(slots, device=self.device)
        places = self.done[at].unsqueeze(1) + torch.arange(self.W, device=self.device)
        self.text[at.unsqueeze(1), places] = self.tokens[at]
        self.read_blocks(at)
        self.done[at] += self.W
        self.passes[at] = 0
        self.normals[at] += NUM_STREAMS
        self.uniforms[at] += NUM_STREAMS
        self.clock |= dict.fromkeys(slots, 0)
        self.ended |= {slot: self.ended[slot] + self.W for slot in slots}

    def read_blocks(self, at: Tensor) -> None:
        """Let the network read decided blocks, on a GPU by a graph for all slots."""
        self.moving.zero_()
        self.moving[at] = 1
        if self.is_captured:
            self.do("read", self.read_decided)
        else:
            self.read_decided()

    def read_decided(self) -> None:
        """Read the blocks of texts that move on; behind the others it is written over."""
        at = self.at if self.is_captured else self.moving.nonzero()[:, 0]
        ids = torch.cat((self.last[at], self.tokens[at, :-1]), 1)
        behind = Behind(self.causal, at, self.lengths[at])
        self.slots.read(self.denoiser.embed(ids), behind, slice(0, 1))
        self.lengths.add_(self.W * self.moving)
        is_moving = self.moving.bool().unsqueeze(1)
        self.last.copy_(torch.where(is_moving, self.tokens[:, -1:], self.last))

    def text_of(self, tokens: list[int], count: int) -> Text:
        if self.slides:
            return super().text_of(tokens, count)
        passes = self.T + self.denoiser.num_context_passes
        return Text(tokens[:count], [passes * (1 + place // self.W) for place in range(count)])
