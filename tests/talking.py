"""A tokenizer with a chat template, for tiny models that answer."""

import tokenizers

from ssdlm import SSDLM, GenerateOptions
from ssdlm.tokenizer import Tokenizer
from tests import tiny

TEMPLATE = """{{ bos_token }}{% for m in messages %}
    {%- if m.role == "robot" %}{{ raise_exception("no robots") }}{% endif %}
<|turn|>{{ m.role }}
{{ m.content }}<|end|>
{% endfor %}
{% if add_generation_prompt %}<|turn|>assistant
{% endif %}"""
SPECIAL = ("<|endoftext|>", "<|turn|>", "<|end|>")


def talker(
    template: str = TEMPLATE, eos: str = "<|end|>", special: tuple[str, ...] = SPECIAL
) -> Tokenizer:
    """A tokenizer of characters that has a template; ids 64 and 65 are its own tokens."""
    backend = tokenizers.Tokenizer.from_str(tiny.tokenizer().to_json())
    backend.add_special_tokens(list(special))
    return Tokenizer(backend, {"eos_token": eos, "bos_token": "", "chat_template": template})


def talking_model() -> SSDLM:
    """A tiny model that answers messages, a letter a pass."""
    options = GenerateOptions(
        length=12, B=(6,), T=6, grid="sliding", width=1.0, nucleus="network", returns="w_0"
    )
    return SSDLM(tiny.block(V=66), talker(), options)
