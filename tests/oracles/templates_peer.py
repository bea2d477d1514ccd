"""Chats as transformers renders and tokenizes them: a line of JSON for each template and chat.

python templates_peer.py TEMPLATES TOKENIZER CHATS

TEMPLATES: a folder of *.jinja. TOKENIZER: a tokenizer.json. CHATS: JSON, name -> {"messages", "tools"}. A line has the
template, the chat, and either the error or: ids, mask (None without marks), and turns: for each of the assistant's
turns the number of tokens before its generation prompt, and with it.
"""

import json
import re
import sys
from pathlib import Path

import jinja2
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

MARK = re.compile(r"\{%[-+]?\s*generation\b")
compile_template = chat_template_utils._compile_jinja_template


def compile_without_clock(source):
    """Return the library's template, without a clock: that gives other tokens on another day."""
    template = compile_template(source)
    template.environment.globals.pop("strftime_now", None)  # the library compiles a text once
    return template


chat_template_utils._compile_jinja_template = compile_without_clock


def render_chat(tokenizer, source, chat):
    """Return ids, mask and turns of a chat."""

    def chat_ids(messages, **options):
        return list(
            tokenizer.apply_chat_template(
                messages,
                tools=chat.get("tools"),
                chat_template=source,
                return_dict=True,
                **options,
            )["input_ids"]
        )

    messages = chat["messages"]
    has_marks = MARK.search(source) is not None
    whole = tokenizer.apply_chat_template(
        messages,
        tools=chat.get("tools"),
        chat_template=source,
        return_dict=True,
        return_assistant_tokens_mask=has_marks,
    )
    mask = None
    if has_marks:
        mask = list(whole["assistant_masks"])
    turns = []
    for number, message in enumerate(messages):
        if message["role"] == "assistant":
            before = len(chat_ids(messages[:number]))
            with_prompt = len(chat_ids(messages[:number], add_generation_prompt=True))
            turns.append([before, with_prompt])
    return {"ids": list(whole["input_ids"]), "mask": mask, "turns": turns}


def main(templates, tokenizer_file, chats):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=tokenizer_file, bos_token="<s>", eos_token="</s>")
    for path in sorted(Path(templates).glob("*.jinja")):
        for name, chat in json.loads(Path(chats).read_text()).items():
            try:
                line = render_chat(tokenizer, path.read_text(), chat)
            except (jinja2.TemplateError, TypeError) as error:
                line = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps({"template": path.stem, "chat": name, **line}))


if __name__ == "__main__":
    main(*sys.argv[1:])
