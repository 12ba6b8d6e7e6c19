"""Texts out of windows of noise, on any path of noise levels: the fast twin of `diffusion.sampler`
and `diffusion.sliding`.

    tokens -> evidence at their level -> rows behind the slot -> logits -> tokens

What is kept of an open position is its latest token: its state is that token under fresh noise
(Eq. 18), which counters make anew in every pass. A window that slides decides a token in `pace`
passes and moves on; one that stays in its block decides all of them in T passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ssdlm.denoiser import row_by_row
from ssdlm.denoiser.slots import Network
from ssdlm.diffusion import schedule
from ssdlm.diffusion.bias import add_decided
from ssdlm.engine.batch import PLAIN, DecodeBatch, Entry, Text, Traits
from ssdlm.engine.path import Path
from ssdlm.engine.places import Places
from ssdlm.engine.views import Frame
from ssdlm.ops.counters import NORMAL, NUM_STREAMS, UNIFORM
from ssdlm.ops.draws import draw, new_evidence_, tokens_of
from ssdlm.ops.nucleus import LEAST, suppress
from ssdlm.ops.rows import Behind, Rows
from ssdlm.shapes import Tensor

MOST_PASSES = 32
"""After so many, somebody sees who comes and who leaves: blocks may take thousands."""


class Window(DecodeBatch):
    """W open rows behind a decided one; a single one of a causal language model is that row."""

    is_noisy = True
    """Whether any position ever has evidence."""
    is_split = False
    """Whether the host may act within a pass, between what the rows say and the draw."""

    def __init__(
        self,
        denoiser: Network,
        path: Path,
        traits: Traits = PLAIN,
        **sizes: Any,
    ) -> None:
        is_open = (path.levels > 0) & (path.levels < 1)
        self.is_noisy = bool(is_open.any()) or path.pace == 0
        super().__init__(denoiser, traits, **sizes)
        self.follow(path)
        self.block_sizes = self.whole(fill=self.W)
        self.rows = self.causal = Rows.causal(self.W, self.device)
        self.first = int(not denoiser.is_exact or self.W > 1)
        """The first open row."""
        self.word_speaks = denoiser.is_exact and self.W > 1
        """Whether the decided row speaks for the first open one where nothing else has evidence."""
        if self.first:
            self.rows = Rows.window(self.W, self.device, sees_word=not denoiser.is_exact)
            self.blank = self.denoiser.blank()
        if traits.has_places:
            self.places = Places(self.num_slots, denoiser.V, path.levels, self.device)
            self.pins, self.has_pins = self.places.seen, True
        gain, a = self.denoiser.gain(self.levels).cpu() * denoiser.K, schedule.cosine(path.levels)
        gain_z = torch.where(is_open, gain * (1 - a).sqrt(), 0.0)
        gain_w = torch.where(path.levels < 1, 2 * gain * a.sqrt(), 0.0)  # what is clean is certain
        both = (one.float().to(self.device).contiguous() for one in (gain_z, gain_w))
        self.gain_z, self.gain_w = both
        self.certain = 2 * denoiser.K * self.denoiser.gain(self.levels.new_zeros(())).float()

    def follow(self, path: Path) -> None:
        """Take a path, and room for the tokens on it."""
        self.path, (self.T, self.W) = path, path.levels.shape
        self.pace, self.slides = path.pace, path.pace > 0
        self.has_clean = bool((path.levels == 0).any())
        """Whether a position is ever certain before its block is."""
        self.counts_context = not self.slides
        self.levels = path.levels.float().to(self.device).contiguous()
        row = torch.arange(self.T, device=self.device)
        self.moves_on = (row + 1) % max(1, self.pace) == 0
        """Whether a window that slides moves on after a pass, by the row of its levels."""
        self.came = ((row > 0) & (row % max(1, self.pace) == 0) & self.slides).long()
        """Whether it did after the one before: noise is for positions as they stood then."""
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
        self.places: Places | None = None
        """What may stand where, for texts with words or pins."""
        self.text = self.whole(self.text.shape[1] + self.W)  # a last block may be short
        self.clock = 0
        """Passes of this batch so far, as the host counts them."""
        self.began: dict[int, int] = {}
        """What the clock said when each text joined."""
        self.prompt: dict[int, Tensor] = {}
        """Contexts, for guides between the halves of a pass."""
        self.own: Tensor | None = None
        """What such guides make of the logits, the prior included."""
        self.nothing = torch.zeros_like(self.prior)

    @torch.no_grad()
    def join(
        self, entries: Sequence[Entry], slots: Sequence[int], sources: Sequence[int | None] = ()
    ) -> Tensor:
        at = super().join(entries, slots, sources)
        if self.is_noisy:
            self.tokens.index_fill_(0, at, 0)
        if self.has_pins:
            self.pins.index_fill_(0, at, -1)
        if not self.slides:  # blocks are read by passes of their own, and so are contexts
            for slot in list(self.unread):
                context = self.unread.pop(slot)
                self.read_ids(context, torch.tensor([slot]))
                self.read_lengths[slot] = context.shape[1]
            self.normals.index_fill_(0, at, NORMAL)
            self.uniforms.index_fill_(0, at, UNIFORM)
        if self.traits.has_sizes:
            sizes = [one.length for one in entries]
            self.block_sizes[at] = torch.tensor(sizes, device=self.device)
        self.began |= dict.fromkeys(slots, self.clock)
        for slot, entry in zip(slots, entries, strict=True):
            if self.places is not None and entry.placement is not None:
                self.places.join(slot, entry.placement)
            if entry.guide is not None:
                self.prompt[slot] = torch.tensor(entry.context, device=self.device)
        return at

    def leave(self, slots: Sequence[int]) -> None:
        super().leave(slots)
        for slot in slots:
            del self.began[slot]
            self.prompt.pop(slot, None)
            if self.places is not None:
                self.places.leave(slot)

    def draw(self) -> None:
        self.say()
        self.pick()

    def row_counts(self) -> Tensor | None:
        return self.first + self.block_sizes[self.here] if self.traits.has_sizes else None

    def say(self) -> None:
        """Run the rows."""
        hidden = self.read(self.inputs(), 0 if self.word_speaks else self.first)
        if self.word_speaks:
            first = torch.where(self.is_alone, hidden[:, :1], hidden[:, 1:2])
            hidden = torch.cat((first, hidden[:, 2:]), 1)
        self.logits = self.slots.logits(hidden, self.head, is_single=not self.first)

    def pick(self) -> None:
        """Draw a token for each open position."""
        here, ell = self.here, self.ell
        logits, added = self.biased(*self.steered())
        if self.traits.cuts_evidence and ell is not None:
            logits, added, ell = logits + added + ell, self.nothing, None
        settings = (*self.settings(), self.passes[here] + 1, self.uniforms[here])
        trust = torch.empty(logits.shape[:2], device=self.device) if self.is_watched else None
        if self.masks is None and self.places is None:
            self.drawn = draw(logits, added, ell, *settings, trust=trust, cuts=self.cuts)
        else:
            self.drawn = self.draw_legally(logits, added, ell, trust, *settings)
        if trust is None:
            return
        for kept, new in ((self.seen, self.drawn), (self.trust, trust)):
            if self.is_captured:
                kept.index_copy_(0, self.frame, new.unsqueeze(0))
            else:
                kept[0, here] = new
        self.frame.add_(1)

    def settings(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        suppressed, temperatures, top_ps, seeds = super().settings()
        if self.traits.ends_likely:
            is_last = self.passes[self.here] == self.T - 1
            top_ps = torch.where(is_last, -top_ps.abs(), top_ps)
        return suppressed, temperatures, top_ps, seeds

    def draw_legally(
        self,
        logits: Tensor,
        added: Tensor,
        ell: Tensor | None,
        trust: Tensor | None,
        *settings: Any,
    ) -> Tensor:
        """Draw from what is legal.

        Unless a text is strict, logits whose best token is legal stay as they are; where what is
        drawn then is not, the likeliest token that is takes its place.
        """
        here, V = self.here, logits.shape[-1]
        if self.traits.is_strict:
            legal = self.masked(logits)
            return draw(legal, added, ell, *settings, trust=trust, cuts=self.cuts)
        words, never = torch.arange(V, device=self.device), self.suppressed[here, None, None]
        whole = logits + added if ell is None else logits + added + ell
        shares = torch.where(words == never, LEAST, whole)
        if self.places is None:
            assert self.masks is not None
            allowed = self.masks.allowed()[here, None, :V]
        else:
            allowed = self.places.allowed[here]
        is_free = allowed.gather(-1, shares.argmax(-1, keepdim=True))
        if self.places is not None:
            is_free = is_free & (self.places.given[here] < 0).unsqueeze(-1)
        legal = torch.where(allowed | is_free, logits, -torch.inf)
        drawn = draw(legal, added, ell, *settings, trust=trust, cuts=self.cuts)
        is_legal = allowed.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
        if trust is not None:
            trust.mul_(is_legal)  # what takes the place of another was not drawn
        best = shares.masked_fill(~allowed, -torch.inf).argmax(-1)
        return torch.where(is_legal, drawn, best)

    @property
    def is_watched(self) -> bool:
        """Whether frames are kept: what a graph does, it does for all."""
        is_asked = self.is_captured or any(entry.is_watched for entry in self.entries.values())
        return self.num_frames > 0 and is_asked

    def frames(self, count: int) -> dict[int, list[Frame]]:
        seen, trust = self.seen[:count].tolist(), self.trust[:count].tolist()
        return {
            slot: [
                Frame(seen[pass_][slot][:size], trust[pass_][slot][:size]) for pass_ in range(count)
            ]
            for slot, entry in self.entries.items()
            if entry.is_watched
            for size in [entry.length if self.traits.has_sizes else self.W]
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
        at, tokens = self.path.row(self.passes[here]), self.tokens[here]
        levels = self.levels[at]
        if self.has_pins:
            pins = self.pins[here]
            levels = levels.masked_fill(pins >= 0, 0.0)
            tokens = torch.where(pins >= 0, pins, tokens)
        self.shown = tokens, levels
        self.ell = self.evidence(tokens, at, levels)
        if not self.first:
            return word
        if self.word_speaks:
            self.is_alone = (levels[:, 1:] == 1).all(1).view(-1, 1, 1)
        return torch.cat((word, row_by_row(self.enter, word, self.ell, levels, tokens)), 1)

    def enter(self, word: Tensor, ell: Tensor, levels: Tensor, tokens: Tensor) -> Tensor:
        """Return what the open positions read: their soft words, behind the decided one."""
        tables, level = self.denoiser.tables(), levels.unsqueeze(-1)
        inside = (self.denoiser.log_unigram + ell).softmax(-1).to(word.dtype) @ tables
        if self.has_clean or self.has_pins:
            inside = torch.where(level == 0, F.embedding(tokens, tables), inside)
        soft = torch.where(level == 1, self.blank, inside)
        return self.denoiser.embed_block(soft, word, levels, self.blank)

    def tally(self) -> Tensor:
        counts = super().tally()
        if self.slides or not (self.has_clean or self.has_pins):
            return counts
        return add_decided(counts.squeeze(1), *self.shown).unsqueeze(1)

    def evidence(self, tokens: Tensor, at: Tensor, levels: Tensor) -> Tensor:
        """Return what the state of each position says by itself: its token under fresh noise."""
        here = self.here
        ell = torch.empty(*tokens.shape, self.denoiser.V, device=self.device)
        gains = self.gain_z[at], self.gain_w[at]
        if self.has_pins:  # which are clean before their time
            is_clean = levels == 0
            gains = gains[0].masked_fill(is_clean, 0), gains[1].where(~is_clean, self.certain)
        counters = self.seeds[here], self.passes[here], self.normals[here]
        new_evidence_(ell, tokens, *gains, *counters, self.came[at])
        return ell

    def commit(self) -> None:
        here, new = self.here, self.drawn
        if self.slides:
            gets_one, shifted = self.active, new.roll(-1, 1) if self.is_noisy else new
            if self.pace > 1:
                is_over = self.moves_on[self.path.row(self.passes)]
                gets_one = gets_one * is_over
                shifted = torch.where(is_over[here, None], shifted, new)
            self.write(new[:, :1], gets_one)
            new = shifted  # what comes in last is noise, whatever its token
        if self.is_noisy:
            is_open = self.active[here].bool().unsqueeze(1)
            if self.has_clean:  # what is clean stays
                is_open = is_open & (self.levels[self.path.row(self.passes[here])] > 0)
            self.tokens[here] = torch.where(is_open, new, self.tokens[here])
        self.passes.add_(self.active)

    def count_slots(self) -> None:
        super().count_slots()
        entries = self.entries.values()
        self.is_split = self.places is not None or any(e.guide or e.chooser for e in entries)
        self.has_pins = self.has_pins or any(e.chooser for e in entries)

    def one_pass(self) -> None:
        if not self.is_split:
            super().one_pass()
        else:
            moving = self.moving_words()
            self.show_pins()
            self.do("say", self.say)
            self.ask()
            if moving:
                self.move_words(moving)
            self.do("pick", self.pick)
            self.choose()
            self.do("commit", self.commit)
            self.own = None  # the next pass may be without guides
        self.clock += 1
        if not self.slides:
            self.end_blocks([slot for slot in self.began if self.passes_of(slot) == 0])

    def passes_of(self, slot: int) -> int:
        """Return how many passes a text has had; where its window stays, those of its block."""
        passes = self.clock - self.began[slot]
        return passes if self.slides else passes % self.T

    def num_decided(self, slot: int) -> int:
        """Return how many tokens of a text are decided, without those of a block on its way."""
        passes = self.clock - self.began[slot]
        return passes // self.pace if self.slides else passes // self.T * self.W

    def moving_words(self) -> list[int]:
        """Fill the tables of places for a pass; return the slots whose words may yet move."""
        if self.places is None:
            return []
        placed, show = self.places.placements, self.places.show
        return [slot for slot in placed if show(slot, self.num_decided(slot), self.number(slot))]

    def ask(self) -> None:
        """Let the guides of entries, if there are any, steer their texts; on a CPU alone."""
        if not any(entry.guide for entry in self.entries.values()):
            return
        V = self.denoiser.V
        self.own = own = self.logits + self.prior
        for row, slot in enumerate(self.rows_of_slots()):
            if slot not in self.entries or (guide := self.entries[slot].guide) is None:
                continue
            number, count = self.number(slot), self.num_decided(slot)
            window = self.path.windows[min(number, len(self.path.windows) - 1)]
            if not guide.has_windows or self.places is not None:
                window = slice(0, self.W)
            ell = 0.0 if self.ell is None else self.ell[row : row + 1, window]
            decided = self.tokens[slot, : window.start or 0]
            context = torch.cat((self.prompt[slot], self.text[slot, :count], decided))
            whole = own[row : row + 1, window, :V] + ell
            level = self.levels[number, window].unsqueeze(0)
            said = guide.steer(context.unsqueeze(0), whole, level)
            own[row, window, :V] = (said - ell)[0]

    def number(self, slot: int) -> int:
        """Return which levels of the path a text's next pass has."""
        return int(self.path.row(torch.tensor(self.passes_of(slot))))

    def rows_of_slots(self) -> list[int]:
        """Return the slot of each row; a GPU is not asked."""
        return list(range(self.num_slots)) if self.takes_all else sorted(self.entries)

    def show_pins(self) -> None:
        """Let the network see tokens that must stand somewhere."""
        for slot, entry in self.entries.items():
            if entry.chooser is None:
                continue
            level = self.path.levels[self.number(slot)]
            if (pins := entry.chooser.pins(level.unsqueeze(0))) is not None:
                self.pins[slot] = pins[0]

    def move_words(self, slots: Sequence[int]) -> None:
        """Put texts' words where they are likeliest, as guides would have the logits."""
        assert self.places is not None
        rows, (logits, added) = self.rows_of_slots(), self.biased(*self.steered())
        for slot in slots:
            row = rows.index(slot)
            whole = (logits[row] + added + (0.0 if self.ell is None else self.ell[row])).float()
            never = tokens_of(self.suppressed[slot])
            self.places.move(slot, self.num_decided(slot), suppress(whole, never))

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
        period = self.pace or self.T
        begun = max((self.clock - began) % period for began in self.began.values())
        if self.slides:  # some may have begun with the next one
            return num_tokens * period - begun
        return min(MOST_PASSES, period - begun)

    def run(self, count: int) -> None:
        self.frame.zero_()
        super().run(count)

    def end_blocks(self, slots: list[int]) -> None:
        """Put decided blocks behind their texts, and begin the next ones."""
        if not slots:
            return
        at = torch.tensor(slots, device=self.device)
        places = self.done[at].unsqueeze(1) + torch.arange(self.W, device=self.device)
        self.text[at.unsqueeze(1), places] = self.tokens[at]
        if not self.traits.has_sizes:  # nothing comes after a right side
            self.read_blocks(at)
        self.done[at] += self.W
        self.passes[at] = 0
        self.normals[at] += NUM_STREAMS
        self.uniforms[at] += NUM_STREAMS

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
        x = self.denoiser.embed(torch.cat((self.last[at], self.tokens[at, :-1]), 1))
        if self.traits.is_described:
            x, at = torch.cat((x, x)), torch.cat((at, at + self.num_slots))
        behind = Behind(self.causal, at, self.read_lengths[at])
        self.slots.read(x, behind, slice(0, 1))
        self.lengthen(self.W * self.moving)
        is_moving = self.moving.bool().unsqueeze(1)
        self.last.copy_(torch.where(is_moving, self.tokens[:, -1:], self.last))

    def text_of(self, tokens: list[int]) -> Text:
        if self.slides:
            return Text(tokens, range(self.pace, self.pace * len(tokens) + 1, self.pace))
        passes = self.T + self.denoiser.num_context_passes
        return Text(tokens, [passes * (1 + place // self.W) for place in range(len(tokens))])
