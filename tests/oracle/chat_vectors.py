#!/usr/bin/env python3
"""Renderings of chat templates by Jinja, set up as transformers sets it up.

    chat_vectors.py FOLDER OUT.json    FOLDER holds NAME.jinja, the chat_template of a model's tokenizer_config.json; NAME as chat_name() says, with -2, -3 for variants

Needs: pip install jinja2. The templates of Llama are left out of OUT (their renderings are in). A date is given as "26 Jul 2024".
"""
import glob
import json
import os
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATS = [
    [["user", "What is 12 + 30?"]],
    [["system", "Be brief."], ["user", "hi"]],
    [["system", "  spaced\n"], ["user", "\n hi there \u00a0\u3000\n"], ["assistant", " hello \x1f"], ["user", "more"]],
    [["user", "a"], ["assistant", "b"]],
    [["user", "a"], ["assistant", "<think>\nsome thought\n</think>\n\nb"], ["user", "c"], ["assistant", "<think>last</think>d"]],
    [["user", "a"], ["assistant", "<think>one</think>x<think>two</think>\n\ny"]],
    [["user", "a"], ["assistant", "<think>\n\n\nt\n\n</think>\n\n\nb"], ["assistant", "plain"], ["assistant", "no</think>open"]],
    [["user", "a"], ["assistant", "x</think></think>\ny</think>z"]],
    [["user", "a"], ["assistant", "x<think>y<think>z\n</think>"]],
    [["user", "<tool_response>\nr\n</tool_response>"], ["assistant", "<think>t</think>b"]],
    [["user", "q"], ["assistant", "<think>t</think>b"], ["user", "<tool_response>\nr\n</tool_response>"], ["assistant", "<think>u</think>c"]],
    [["user", "a"], ["system", "late"], ["user", "b"]],
    [["assistant", "first"], ["user", ""]],
    [["assistant", "<think>alone</think>x"]],
    [["user", "'quotes' \"double\" \\n {{ braces }} {% tag %} <|im_end|>"]],
]


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    out = []
    for path in sorted(glob.glob(sys.argv[1] + "/*.jinja")):
        text = open(path, encoding="utf-8").read()
        name = os.path.basename(path)[:-len(".jinja")]
        t = env.from_string(text)
        cases = []
        for chat in CHATS:
            messages = [{"role": r, "content": c} for r, c in chat]
            cases.append([t.render(messages=messages, add_generation_prompt=g, bos_token="<|begin_of_text|>", date_string="26 Jul 2024") for g in (False, True)])
        out.append({"kind": name, "template": "" if "llama" in name else text, "text": cases})
    with open(sys.argv[2], "w") as f:
        json.dump({"chats": CHATS, "kinds": out}, f, indent=0)
        f.write("\n")


main()
