"""A prompt behind a description, as a model for chat reads it.  chat -> [describing] -> plain

user: Write ... a formal letter    assistant: prompt, and the text
"""

from __future__ import annotations

from collections.abc import Sequence

from ssdlm.denoiser import Denoiser
from ssdlm.diffusion.denoiser import reads_rows
from ssdlm.engine.chat import ChatText, Messages, chat_text, refuse_special, said
from ssdlm.options import GenerateOptions
from ssdlm.tokenizer import Tokenizer, is_utf8
from ssdlm.values import quote

TOLD = "Write {}."
"""What a model is told of its text."""


def check_description(
    options: GenerateOptions, denoiser: Denoiser, tokenizer: Tokenizer | None
) -> None:
    """Raise on a description that this model cannot follow."""
    if (description := options.control_by) is None:
        return
    given = f"control_by={quote(description)}"
    if not reads_rows(denoiser):
        kind = type(denoiser).__name__
        raise ValueError(
            f"{given} needs a language model, which a {kind} is not; use control with a classifier"
        )
    if tokenizer is None or not tokenizer.settings.get("chat_template"):
        raise ValueError(
            f"{given} needs a chat template, and this model has none; use a model made for chat, "
            "or control with a classifier"
        )
    if not is_utf8(description):
        raise ValueError(f"{given} is not UTF-8; save or type it as UTF-8")
    refuse_special(tokenizer, description, given)


def behind_description(
    prompt: str | Sequence[int],
    context: Sequence[int],
    options: GenerateOptions,
    tokenizer: Tokenizer | None,
) -> tuple[int, ...]:
    """Return a prompt's ids where a description stands before it; nothing without a description.

    Messages get it as the end of what the user said last; any other prompt begins the answer to it.
    """
    if options.control_by is None or tokenizer is None:
        return ()
    told = TOLD.format(options.control_by.strip().removesuffix("."))
    is_chat = isinstance(prompt, ChatText)
    text = chat_text(tokenizer, told_last(prompt.messages, told) if is_chat else said(told))
    if told not in text:
        raise ValueError(
            f"control_by={quote(options.control_by)} is not heard: the model's chat template "
            "leaves out what a user says; use a model made for chat"
        )
    asked = tokenizer.encode_prompt(text)
    if is_chat:
        return tuple(asked)
    own = () if list(context) == tokenizer.start else context
    has_begun = list(own[: len(tokenizer.begin)]) == tokenizer.begin
    return (*asked, *own[len(tokenizer.begin) if has_begun else 0 :])


def told_last(messages: Messages, told: str) -> Messages:
    """Return messages in the last of which that are the user's something more is said."""
    own = [number for number, one in enumerate(messages) if one["role"] == "user"]
    if not own:
        return [*messages, {"role": "user", "content": told}]
    last = messages[own[-1]]
    more = {**last, "content": f"{last['content']}\n\n{told}"}
    return [*messages[: own[-1]], more, *messages[own[-1] + 1 :]]
