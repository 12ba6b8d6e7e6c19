"""Arguments of `SSDLM.generate` and `.stream`: generated from options.py.

`make generate` writes this page anew. An argument that is left at None keeps the model's own
setting.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

from ssdlm.engine.controls import Control
from ssdlm.engine.plain import Prompt
from ssdlm.engine.requests import Draft, Generation
from ssdlm.options import GenerateOptions, P, R, explained


class Changes(TypedDict, total=False):
    """The options that a call may set, by any of their names."""

    length: int | None
    max_new_tokens: int | None
    B: int | Sequence[int] | None
    stop: str | Sequence[str] | None
    stop_at_end: bool | None
    never_end: bool | None
    mode: Literal["diffusion", "autoregressive", "speculative"] | None
    T: int | None
    grid: Literal["uniform", "warped", "tilted", "staggered", "sliding"] | None
    width: float | None
    rule: Literal["renoise", "adaptive", "ddpm", "ddpm_simplified"] | None
    rho: float | None
    returns: Literal["logits", "w_0"] | None
    early_exit: bool | None
    seed: int | Sequence[int] | None
    num_samples: int | None
    num_return_sequences: int | None
    best_of: int | None
    projection: Literal["greedy", "sampling", "multi_hot", "mean"] | None
    do_sample: bool | None
    top_p: float | None
    nucleus: Literal["logits", "network"] | None
    temperature: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    control: Control | Sequence[Control] | None
    lam: float | Sequence[float] | None
    target: float | Sequence[float] | None
    gradient: Literal["logits", "simplex", "words", "fudge"] | None
    threshold: float | None
    plausible: float | None
    band: Sequence[float] | None
    reduction: Literal["sum", "mean"] | None
    sees: Literal["context", "block"] | None
    special_tokens: bool | None
    control_by: str | Sequence[str] | None
    control_by_weight: float | None
    particles: int | None
    particle_step: int | None
    particle_weight: float | Sequence[float] | None
    particle_potential: Literal["difference", "maximum"] | None
    must: str | Sequence[str] | Sequence[str | Sequence[str]] | None
    must_not: str | Sequence[str] | Sequence[str | Sequence[str]] | None
    suffix: str | Sequence[str] | None
    gap: str | Sequence[int] | Sequence[str | Sequence[int]] | None
    pin: Mapping[int, str] | Sequence[Mapping[int, str]] | None
    end_at_sentence: bool | Sequence[bool] | None
    regex: str | Sequence[str] | None
    json_schema: (
        Mapping[str, Any]
        | str
        | os.PathLike[str]
        | Sequence[Mapping[str, Any] | str | os.PathLike[str]]
        | None
    )
    grammar: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    batch_size: int | None
    streamer: Any


def by_option(method: Callable[P, R]) -> Callable[P, R]:
    """Return a method that shows an argument for each option, and answers an unknown one."""
    kinds = {name: one.__forward_arg__ for name, one in Changes.__annotations__.items()}
    return explained(method, listed=kinds)


class Signature:
    """What `SSDLM` offers, argument by argument."""

    def run(
        self,
        prompts: str | Sequence[Prompt],
        changes: Mapping[str, Any],
        options: GenerateOptions | None,
        keep_steps: bool = False,
    ) -> Generation | list[Generation]:
        """Continue prompts with some options changed."""
        raise NotImplementedError

    def run_stream(
        self,
        prompt: Prompt,
        changes: Mapping[str, Any],
        options: GenerateOptions | None,
        candidates: int = 0,
        guides: str | Sequence[str] = (),
        states: bool = False,
    ) -> Iterator[Draft]:
        """Continue one prompt, step by step, with some options changed."""
        raise NotImplementedError

    @overload
    def generate(  # pyright: ignore[reportOverlappingOverload]
        self,
        prompts: str,
        *,
        keep_steps: bool = False,
        options: GenerateOptions | None = None,
        **changes: Unpack[Changes],
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        keep_steps: bool = False,
        options: GenerateOptions | None = None,
        **changes: Unpack[Changes],
    ) -> list[Generation]: ...

    @by_option
    def generate(
        self,
        prompts: str | Sequence[Prompt],
        *,
        keep_steps: bool = False,
        options: GenerateOptions | None = None,
        **changes: Unpack[Changes],
    ) -> Generation | list[Generation]:
        """Continue one prompt, or several; `num_samples` texts of each, prompt by prompt.

        One prompt and one sample give a Generation, else a list. A text depends on its own prompt,
        seed, sample number and options alone, not on the texts beside it. What is left out keeps
        the model's own setting; in brackets is that of builtin:mini.

        Length and blocks:
            length: tokens to write [50]
            max_new_tokens: another name of length
            B: tokens per block; several, as 5,10,25, are used in turn and the last is repeated [25]
            stop: end the text before the first occurrence of this string
            stop_at_end: end the text at its end-of-text token [False]
            never_end: write no end-of-text token, so that the text is as long as asked for;
                stop_at_end overrules it [True; False where a model says nothing]

        Mode:
            mode: how tokens are decided: out of noise, one by one by the context stream
                (autoregressive), or so with a drafter's guesses checked several at a time
                (speculative: the same text in fewer passes, on a GPU with --deterministic); one of
                diffusion, autoregressive, speculative [diffusion]

        Diffusion path:
            T: diffusion steps per block [25; 1000 where a model says nothing]
            grid: where the steps lie: evenly for all positions (uniform, the paper), mostly where
                tokens are decided (warped), so too with the left ahead of the right (tilted), in a
                window that moves through a block from left to right (staggered), or in one that
                slides through the text and leaves decided tokens behind as context (sliding); one
                of uniform, warped, tilted, staggered, sliding [sliding; uniform where a model says
                nothing]
            width: tilted, staggered, sliding: positions in the window [1; 4 where a model says
                nothing]
            rule: from one noise level to the next; the paper's is renoise with rho 0; one of
                renoise, adaptive, ddpm, ddpm_simplified [renoise]
            rho: renoise: the share of the evidence that a step keeps [0]
            returns: what a block ends as: the argmax of the last logits (the authors' code) or of
                w_0 (the paper); one of logits, w_0 [w_0; logits where a model says nothing]
            early_exit: leave a block whose tokens have not changed for four steps, each of them
                nearly certain [False]

        Sampling:
            seed: same seed, same text [0]
            num_samples: texts per prompt [1]
            num_return_sequences: another name of num_samples
            best_of: write this many candidates per text and keep the likeliest [1]
            projection: from logits to the next estimate of the tokens; one of greedy, sampling,
                multi_hot, mean [sampling]
            do_sample: another name: true is projection=sampling, false is projection=greedy without
                top_p and temperature
            top_p: probability mass of the nucleus [0.9; 0.95 where a model says nothing]
            nucleus: what top_p cuts: the logits (the paper), or what the network adds to the
                evidence; one of logits, network [network; logits where a model says nothing]
            temperature: divides what the network adds to the evidence; below 1 texts are safer and
                more alike [1]
            top_k: draw among so many of the likeliest tokens; 0 for all [0]
            min_p: draw no token less likely than this share of the likeliest one's probability [0]
            presence_penalty: taken from the logits of tokens that the text already has; below 0
                they are likelier [0]
            frequency_penalty: taken from a token's logit for each time that the text has it [0]
            logit_bias: added to a token's logit: -100 bans the token, 100 demands it, where
                constraints allow it

        Control:
            control: steer towards a label of a classifier (built in, folder or Hub id), or away
                from it with !=: by its gradient where it knows the model's tokens, else by
                particles
            lam: weight of control, one for all or one per control; without it, each guide's own,
                and beside particles 0.8 of that
            target: the share of texts that seek the label, while the others avoid it, one for all
                or one per control; without it all texts do
            gradient: where a classifier's gradient is taken: in the logits (the paper), in the
                simplex, or of the latter the few words that stand out; fudge asks instead what each
                of the 200 likeliest tokens would make of the text; one of logits, simplex, words,
                fudge [words; logits where a model says nothing]
            threshold: words: standard deviations over the vocabulary from which a word stands out;
                a higher one moves fewer words [0.5]
            plausible: words: help no word that the model gives less than this share of the
                likeliest one's probability; without it a smaller weight will do, such as 2.5 [0.02]
            band: the noise levels t/T between which a classifier is asked [0,1]
            reduction: add control over the rows of a batch, or average it (the authors' code); one
                of sum, mean [sum]
            sees: what a classifier named in control reads: context and block (the paper), or the
                block alone (the authors' code); one of context, block [context]
            special_tokens: frame what a classifier named in control reads by its special tokens
                (the authors' code does not) [True]
            control_by: steer a language model with a chat template towards a description, such as
                'a formal letter': by what its logits gain when it is told so before the text [None]
            control_by_weight: what that gain is multiplied by: 1 is the text of a model that is
                told, more goes further, less than 0 leads away [1.5]
            particles: versions of each text that are weighed by what steers it while they are
                written, of which one stays; 0 is 8 where a control has no gradient, else none [0]
            particle_step: tokens between two weighings of the particles of a sliding window; on
                other grids it is a block, and a text with words to place is weighed at its end [5]
            particle_weight: what scores are multiplied by to weigh particles, one for all or one
                per control; without it, 8 for classifiers and a scorer's own
            particle_potential: what a weighing multiplies a particle's weight by: exp of how far
                its score has risen, or of the highest that it has been (Feynman-Kac steering); one
                of difference, maximum [difference]

        Constraints:
            must: a word that the text contains
            must_not: a word that the text does not contain, in any case
            suffix: infilling: what follows a gap of `length` tokens
            gap: with suffix, instead of length: the fewest and the most tokens of the gap; each
                length is tried, and the one whose gap and suffix are likeliest per token is kept
                [None]
            pin: a text at a position, counted in tokens from 0
            end_at_sentence: cut the text at its last end of a sentence; there will be one [False]
            regex: a regular expression that the whole text matches; length is then the most tokens
                it may have [None]
            json_schema: the file of a JSON schema that the text follows; length is then the most
                tokens it may have [None]
            grammar: a context-free grammar that the text follows, in Lark's notation or GBNF, or
                the file of one; length is then the most tokens it may have [None]

        Output:
            batch_size: texts at a time on a GPU; on a CPU they go one by one [32]
            streamer: gets the tokens of one text as they are decided, by put(), then end(), as the
                streamers of transformers do

        keep_steps: whether a text keeps how it settled, in `steps`; a notebook shows them move
            [False]
        options: a whole set of options in place of the model's own; arguments beside it win
        """
        return self.run(prompts, changes, options, keep_steps)

    @by_option
    def stream(
        self,
        prompt: Prompt,
        *,
        candidates: int = 0,
        guides: str | Sequence[str] = (),
        states: bool = False,
        options: GenerateOptions | None = None,
        **changes: Unpack[Changes],
    ) -> Iterator[Draft]:
        """Yield every step of one text as a Draft, so that one can watch it settle.

        The last draft's text is what `generate` returns for the same prompt and options. What is
        left out keeps the model's own setting; in brackets is that of builtin:mini.

        Length and blocks:
            length: tokens to write [50]
            max_new_tokens: another name of length
            B: tokens per block; several, as 5,10,25, are used in turn and the last is repeated [25]
            stop: end the text before the first occurrence of this string
            stop_at_end: end the text at its end-of-text token [False]
            never_end: write no end-of-text token, so that the text is as long as asked for;
                stop_at_end overrules it [True; False where a model says nothing]

        Mode:
            mode: how tokens are decided: out of noise, one by one by the context stream
                (autoregressive), or so with a drafter's guesses checked several at a time
                (speculative: the same text in fewer passes, on a GPU with --deterministic); one of
                diffusion, autoregressive, speculative [diffusion]

        Diffusion path:
            T: diffusion steps per block [25; 1000 where a model says nothing]
            grid: where the steps lie: evenly for all positions (uniform, the paper), mostly where
                tokens are decided (warped), so too with the left ahead of the right (tilted), in a
                window that moves through a block from left to right (staggered), or in one that
                slides through the text and leaves decided tokens behind as context (sliding); one
                of uniform, warped, tilted, staggered, sliding [sliding; uniform where a model says
                nothing]
            width: tilted, staggered, sliding: positions in the window [1; 4 where a model says
                nothing]
            rule: from one noise level to the next; the paper's is renoise with rho 0; one of
                renoise, adaptive, ddpm, ddpm_simplified [renoise]
            rho: renoise: the share of the evidence that a step keeps [0]
            returns: what a block ends as: the argmax of the last logits (the authors' code) or of
                w_0 (the paper); one of logits, w_0 [w_0; logits where a model says nothing]
            early_exit: leave a block whose tokens have not changed for four steps, each of them
                nearly certain [False]

        Sampling:
            seed: same seed, same text [0]
            num_samples: texts per prompt [1]
            num_return_sequences: another name of num_samples
            best_of: write this many candidates per text and keep the likeliest [1]
            projection: from logits to the next estimate of the tokens; one of greedy, sampling,
                multi_hot, mean [sampling]
            do_sample: another name: true is projection=sampling, false is projection=greedy without
                top_p and temperature
            top_p: probability mass of the nucleus [0.9; 0.95 where a model says nothing]
            nucleus: what top_p cuts: the logits (the paper), or what the network adds to the
                evidence; one of logits, network [network; logits where a model says nothing]
            temperature: divides what the network adds to the evidence; below 1 texts are safer and
                more alike [1]
            top_k: draw among so many of the likeliest tokens; 0 for all [0]
            min_p: draw no token less likely than this share of the likeliest one's probability [0]
            presence_penalty: taken from the logits of tokens that the text already has; below 0
                they are likelier [0]
            frequency_penalty: taken from a token's logit for each time that the text has it [0]
            logit_bias: added to a token's logit: -100 bans the token, 100 demands it, where
                constraints allow it

        Control:
            control: steer towards a label of a classifier (built in, folder or Hub id), or away
                from it with !=: by its gradient where it knows the model's tokens, else by
                particles
            lam: weight of control, one for all or one per control; without it, each guide's own,
                and beside particles 0.8 of that
            target: the share of texts that seek the label, while the others avoid it, one for all
                or one per control; without it all texts do
            gradient: where a classifier's gradient is taken: in the logits (the paper), in the
                simplex, or of the latter the few words that stand out; fudge asks instead what each
                of the 200 likeliest tokens would make of the text; one of logits, simplex, words,
                fudge [words; logits where a model says nothing]
            threshold: words: standard deviations over the vocabulary from which a word stands out;
                a higher one moves fewer words [0.5]
            plausible: words: help no word that the model gives less than this share of the
                likeliest one's probability; without it a smaller weight will do, such as 2.5 [0.02]
            band: the noise levels t/T between which a classifier is asked [0,1]
            reduction: add control over the rows of a batch, or average it (the authors' code); one
                of sum, mean [sum]
            sees: what a classifier named in control reads: context and block (the paper), or the
                block alone (the authors' code); one of context, block [context]
            special_tokens: frame what a classifier named in control reads by its special tokens
                (the authors' code does not) [True]
            control_by: steer a language model with a chat template towards a description, such as
                'a formal letter': by what its logits gain when it is told so before the text [None]
            control_by_weight: what that gain is multiplied by: 1 is the text of a model that is
                told, more goes further, less than 0 leads away [1.5]
            particles: versions of each text that are weighed by what steers it while they are
                written, of which one stays; 0 is 8 where a control has no gradient, else none [0]
            particle_step: tokens between two weighings of the particles of a sliding window; on
                other grids it is a block, and a text with words to place is weighed at its end [5]
            particle_weight: what scores are multiplied by to weigh particles, one for all or one
                per control; without it, 8 for classifiers and a scorer's own
            particle_potential: what a weighing multiplies a particle's weight by: exp of how far
                its score has risen, or of the highest that it has been (Feynman-Kac steering); one
                of difference, maximum [difference]

        Constraints:
            must: a word that the text contains
            must_not: a word that the text does not contain, in any case
            suffix: infilling: what follows a gap of `length` tokens
            gap: with suffix, instead of length: the fewest and the most tokens of the gap; each
                length is tried, and the one whose gap and suffix are likeliest per token is kept
                [None]
            pin: a text at a position, counted in tokens from 0
            end_at_sentence: cut the text at its last end of a sentence; there will be one [False]
            regex: a regular expression that the whole text matches; length is then the most tokens
                it may have [None]
            json_schema: the file of a JSON schema that the text follows; length is then the most
                tokens it may have [None]
            grammar: a context-free grammar that the text follows, in Lark's notation or GBNF, or
                the file of one; length is then the most tokens it may have [None]

        Output:
            batch_size: texts at a time on a GPU; on a CPU they go one by one [32]
            streamer: gets the tokens of one text as they are decided, by put(), then end(), as the
                streamers of transformers do

        candidates: how many of the likeliest tokens `draft.candidates` has for each open position
            [0]
        guides: classifiers (built in, folder, Hub id, or NAME=FOLDER) whose label probabilities on
            each draft `draft.guides` has, by name
        states: whether `draft.step` has logits, estimate and noisy state too, which takes longer
            [False]
        options: a whole set of options in place of the model's own; arguments beside it win
        """
        seen = candidates, guides, states
        return self.run_stream(prompt, changes, options, *seen)
