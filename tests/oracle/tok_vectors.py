#!/usr/bin/env python3
"""Ids of Hugging Face's `tokenizers` for the tokenizers in the test data, over hard texts.

    tok_vectors.py DATA OUT.json            the vectors kept in tests/data/tok_vectors.json
    tok_vectors.py DATA --fuzz N SEED DIR   N random texts a tokenizer, as DIR/NAME.txt (texts, NUL-separated) and DIR/NAME.ids (a line each)

DATA is the test data folder. Needs: pip install tokenizers (made with 0.23.3). gpt2, qwen2 and smollm2 are put together from vocab.json and merges.txt as their
tokenizer.json files do it; special tokens are parsed, none is added. Characters that Python's Unicode (14 in Python 3.11) does not know are left out: whether
they are letters depends on the Unicode version of the expression engine (PCRE2 10.42 has 14, the Oniguruma in tokenizers 0.23 a newer one).
"""
import json
import random
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN25_ADDED = ("<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> <|quad_end|> "
                "<|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> "
                "<|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|>").split()


def pair(folder, pre, nfc=False):
    t = Tokenizer(models.BPE.from_file(folder + "/vocab.json", folder + "/merges.txt"))
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    if nfc:
        t.normalizer = normalizers.NFC()
    return t


def load(data):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    out = {}
    out["gpt2"] = pair(data + "/tokenizers/gpt2", byte_level)
    out["gpt2"].add_special_tokens(["<|endoftext|>"])
    out["qwen2"] = pair(data + "/tokenizers/qwen2", pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), nfc=True)
    out["qwen2"].add_special_tokens(QWEN25_ADDED[:14])
    out["qwen2"].add_tokens([AddedToken(s, normalized=False) for s in QWEN25_ADDED[14:]])
    out["smollm2"] = pair(data + "/tokenizers/smollm2", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]))
    vocab = json.load(open(data + "/tokenizers/smollm2/vocab.json"))
    out["smollm2"].add_special_tokens(sorted((s for s in vocab if vocab[s] < 17), key=vocab.get))
    out["dolma2"] = Tokenizer.from_file(data + "/tokenizers/dolma2/tokenizer.json")
    out["tiny"] = Tokenizer.from_file(data + "/models/tiny-teacher/tokenizer.json")
    return out


HARD = [
    "", " ", "  ", "\n", "\r\n", "\t\t x", "a\n\n\n b", "   leading and trailing   ", "x\r\ny\rz", "I'll they'RE we'Ve I'm he'D it'S don't",
    "'\u017f \u2019s 'S", "e\u0301\u0301 \u00e9 \u212b \u1e9b\u0323 \uac00\u1100\u1161\u11a8 \u0344", "\u0f73\u0f75 \ufb01 \u2126 \u00c5\u0327",
    "1234567 12 3.14159 1,000,000 \u00bd\u00b2\u2167\u0663\u0664\u4e94\uff11", "x  12\u2003\u200334 \u00a0 5",
    "\u180e a\u180e b \u200b c \u2028 d \u0085e\u3000f \u1680g", "hello_world fooBar HTTPServer\u2122 caf\u00e9 na\u00efve",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f!!! ???...", "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u3053\u3093\u306b\u3061\u306f",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0928\u092e\u0938\u094d\u0924\u0947",
    "<|endoftext|><|im_start|>user\nhi<|im_end|>\n<|im_start", "<<|im_end|>> <|im_end|>x <tool_call> </tool_call><|fim_prefix|>",
    "def f(x):\n\treturn x**2  # comment\n\n\nclass A:\n    pass\n", "a" * 300, "ab" * 200 + " " + "\u00e9" * 100, " " * 130 + "x", "=" * 90 + "\n" + "-" * 77,
    "https://example.org/a?b=c&d=%20e#f", "{\"k\": [1, 2.5e-3, null]}", "\x00\x01\x7f\x1c\x1d", "\u0130\u0131 stra\u00dfe \u01c5", "\ufeffBOM \ufffe \U0010ffff",
    "The quick brown fox jumps over the lazy dog. " * 3, "\u094d\u0301\u0300a\u0301", "|||PHONE_NUMBER|||<|extra_id_0|>",
]


def rand_text(r):
    pools = ["abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJ", "0123456789", " \t\n\r", "  ", ".,;:!?'\"()[]{}<>|-_=+*/\\@#$%^&~`", "\u00e9\u00e8\u00fc\u00f1\u00df\u0130\u017f\u212a",
             "\u0300\u0301\u0302\u0327\u0323\u05b0\u0345", "\u4e00\u4e8c\u4e09\u3042\u30a2\uac00\u1100\u1161\u11a8", "\u0661\u0967\u00b2\u00bd\u2160\uff11\u3007",
             "\u00a0\u2003\u3000\u1680\u0085\u2028\u180e\u200b", "\U0001f600\u2764\ufe0f\u200d"]
    words = ["the", " and", "'s", "'LL", " 12", "\n\n", "<|im_end|>", "<|endoftext|>", "<tool_call>", "<|", "  ", " world", "<reponame>", "|||IP_ADDRESS|||"]
    s = ""
    for _ in range(r.randrange(1, 30)):
        if r.random() < 0.4:
            s += r.choice(words)
        elif r.random() < 0.06:
            c = r.randrange(1, 0x110000)
            s += chr(c) if unicodedata.category(chr(c)) not in ("Cn", "Cs") else "?"
        else:
            s += "".join(r.choice(r.choice(pools)) if r.random() < 0.1 else r.choice(pools[0] if r.random() < 0.5 else r.choice(pools)) for _ in range(r.randrange(1, 8)))
    return s


def main():
    toks = load(sys.argv[1])
    if sys.argv[2] == "--fuzz":
        n, seed, folder = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
        for name, t in toks.items():
            r = random.Random(seed)
            with open(f"{folder}/{name}.txt", "wb") as f, open(f"{folder}/{name}.ids", "w") as g:
                for _ in range(n):
                    s = rand_text(r)
                    f.write(s.encode() + b"\0")
                    g.write(" ".join(map(str, t.encode(s, add_special_tokens=False).ids)) + "\n")
        return
    r = random.Random(7)
    texts = HARD + [rand_text(r) for _ in range(40)]
    out = {"made_with": "tokenizers 0.23.3", "texts": texts,
           "ids": {name: [t.encode(s, add_special_tokens=False).ids for s in texts] for name, t in toks.items()}}
    with open(sys.argv[2], "w") as f:
        f.write("{\"made_with\": %s,\n\"texts\": [\n" % json.dumps(out["made_with"]))
        f.write(",\n".join(json.dumps(s) for s in texts) + "],\n\"ids\": {\n")
        f.write(",\n".join("%s: [\n%s]" % (json.dumps(k), ",\n".join(json.dumps(v, separators=(",", ":")) for v in vs)) for k, vs in out["ids"].items()) + "}}\n")


if __name__ == "__main__":
    main()
