#!/usr/bin/env python3
"""Makes tests/data/teacher_greedy.safetensors: 33 prompts of the bundled tiny teacher's kind and the ids that transformers continues them with (greedy, float32).

usage: teacher_greedy.py TEACHER RULER_DIR OUT
RULER_DIR: `dashlab ruler gen --tokenizer experiments/tiny/teacher --length 1024 --samples 3 --flavour compact --out RULER_DIR`
Needs torch, transformers, safetensors (made with 2.15.0, 5.24.0 and 0.8.0 or later). Tensors: prompts U16 (all prompts one after another), offsets I32 [34],
greedy U16 [33, 48] (an end token does not stop), margin F32 [33] (smallest difference of the two best logits).
"""
import glob, json, sys
import numpy as np, torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM
from tokenizers import Tokenizer

NEW = 48
teacher, ruler, out = sys.argv[1:4]
torch.set_num_threads(2)
tok = Tokenizer.from_file(teacher + "/tokenizer.json")
model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32, attn_implementation="eager").eval()
prompts, greedy, margin = [], [], []
for path in sorted(glob.glob(ruler + "/*/validation.jsonl")):
    for line in open(path, encoding="utf-8"):
        s = json.loads(line)
        ids = tok.encode(s["input"] + s.get("answer_prefix", ""), add_special_tokens=False).ids
        prompts.append(ids)
        x, past, new, least = torch.tensor([ids]), None, [], float("inf")
        with torch.no_grad():
            for _ in range(NEW):
                r = model(x, past_key_values=past, use_cache=True)
                past = r.past_key_values
                top = torch.topk(r.logits[0, -1].double(), 2)
                least = min(least, float(top.values[0] - top.values[1]))
                new.append(int(top.indices[0]))
                x = torch.tensor([[new[-1]]])
        greedy.append(new)
        margin.append(least)
        print(path.split("/")[-2], len(ids), f"{least:.4f}", repr(tok.decode(new)[:60]))
assert len(prompts) == 33
save_file({"prompts": np.concatenate([np.array(p, np.uint16) for p in prompts]), "offsets": np.cumsum([0] + [len(p) for p in prompts]).astype(np.int32),
           "greedy": np.array(greedy, np.uint16), "margin": np.array(margin, np.float32)}, out)
