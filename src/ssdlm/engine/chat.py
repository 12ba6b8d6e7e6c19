"""Messages to a prompt, by a tokenizer's own template.  tokenizer, template -> [chat] -> plain"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from ssdlm.options import GenerateOptions
from ssdlm.tokenizer import Tokenizer, is_utf8, special_tokens
from ssdlm.values import first_line, quote

DRAWN = {"projection", "top_p", "temperature", "top_k", "min_p"}
"""Options that say how tokens are drawn."""
Messages = Sequence[Mapping[str, Any]]
"""Objects with a role, such as user or system, and a content."""


class ChatText(str):
    """A prompt that a template made of messages; what follows it is an answer, of one turn."""

    messages: Messages = ()


ANSWER = "Fine, thank you."
"""What stands for an answer, to see what a template writes after it."""


def said(messages: Any, system: str | None = None) -> Any:
    """Return messages; a text is one of a user, and `system` is what the model is told first."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if system is None or not isinstance(messages, list | tuple):
        return messages
    return [{"role": "system", "content": system}, *messages]


def is_messages(value: Any) -> TypeGuard[Messages]:
    """Tell whether a value is a list of objects, at least one."""
    is_list = isinstance(value, list | tuple) and len(value) > 0
    return is_list and all(isinstance(one, Mapping) for one in value)


def chat_text(tokenizer: Tokenizer | None, messages: object, *, is_open: bool = True) -> ChatText:
    """Return messages as the model was trained to read them; open, with the start of an answer."""
    template = "" if tokenizer is None else tokenizer.settings.get("chat_template", "")
    if tokenizer is None or not template:
        raise ValueError("this model has no chat template; give a prompt, or a model made for chat")
    if not is_messages(messages):
        raise ValueError(
            f"messages={quote(messages)} is not a list of messages; give "
            '[{"role": "user", "content": "..."}]'
        )
    for one in messages:
        texts = [text for text in map(one.get, ("role", "content")) if isinstance(text, str)]
        if len(texts) < 2 or not all(map(is_utf8, texts)):
            raise ValueError(f"message {quote(one)} has no text as role and content; give it both")
        for text in texts:
            refuse_special(tokenizer, text, f"message {quote(one)}")
    names: dict[str, Any] = {
        name: tokenizer.settings.get(name, "") for name in ("bos_token", "eos_token")
    }
    names |= {"messages": [dict(one) for one in messages], "add_generation_prompt": is_open}
    from jinja2 import TemplateSyntaxError

    from ssdlm.engine.template import render

    try:
        text = render(template, **names)
    except TemplateSyntaxError as error:
        raise ValueError(
            f"the model's chat template is broken (line {error.lineno}: {first_line(error)}); mend "
            "chat_template.jinja, or chat_template in tokenizer_config.json, in its folder"
        ) from error
    except Exception as error:  # a template fails in ways of its own
        raise ValueError(
            f"the model's chat template does not take these messages ({first_line(error)}); "
            "give others"
        ) from error
    made = ChatText(text)
    made.messages = tuple(messages)
    return made


def refuse_special(tokenizer: Tokenizer, text: str, called: str) -> None:
    """Raise on a text of somebody else's with a special token, which a template would obey."""
    for name in special_tokens(tokenizer.backend):
        if name in text:
            raise ValueError(
                f"{called} has the special token {name}, with which it could end its turn and "
                "begin another's; leave that out"
            )


def as_answer(options: GenerateOptions, tokenizer: Tokenizer) -> GenerateOptions:
    """Return options as an answer has them: over with its turn, and greedy where the model is so.

    It is drawn at random where a caller says how, wants several texts, or steers.
    """
    options = until_end_of_turn(options, tokenizer)
    draws = bool(DRAWN & options.began.keys() or options.control or options.control_by)
    draws = draws or max(options.num_samples, options.best_of, options.particles) > 1
    if draws or not tokenizer.answers_greedily:
        return options
    return options.replaced({"projection": "greedy"}).as_own("projection")


def until_end_of_turn(options: GenerateOptions, tokenizer: Tokenizer) -> GenerateOptions:
    """Return options with which an answer ends where its turn does, unless they say otherwise.

    The end of a turn is the first special token that the template writes after an answer. Where
    that is not the model's end-of-text token, its name is a stop string.
    """
    if options.has_grammar or {"stop_at_end", "never_end"} & options.began.keys():
        return options
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": ANSWER}]
    after = chat_text(tokenizer, turns, is_open=False).rpartition(ANSWER)[2]
    names = special_tokens(tokenizer.backend)
    ends = sorted((after.index(name), name) for name in names if name in after)
    stop = [name for _, name in ends[:1] if names[name] not in tokenizer.ends]
    changed = options.replaced({"stop_at_end": True, "stop": (*options.stop, *stop)})
    return changed.as_own("stop_at_end")
