#!/usr/bin/env python3
"""Files of lm-evaluation-harness' own RULER generators for settings of ours: the oracle behind tests/data/ruler_harness.tsv.

    ruler_harness.py DATA OUT [--only NAME]    OUT/NAME/TASK.jsonl, and on stdout: setting, task, sha256

DATA is the test data folder. Needs: pip install numpy scipy nltk wonderwords==2.2.0 tokenizers, and lm_eval==0.4.13 --no-deps. The generators run as they
are; what they ask of `transformers`, `datasets` and the network is stood in for here, and the number of samples is cut from 500.
One line a document, as json.dumps writes it with the keys in the order made.
"""
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import types

data, out = sys.argv[1:3]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

# name: tokenizer, lengths, python seed, numpy seed, order of the tasks, samples, essay and question files
FIX = "ruler/oracle/fixtures"
REAL = ("ruler/oracle/fixtures/essay.json", "ruler/squad/dev-v2.0.cs224n.json", "ruler/hotpotqa/hotpotqa_first100.original_layout.derived.json")
TOY = (FIX + "/essay.json", FIX + "/squad.json", FIX + "/hotpotqa.json")
SETTINGS = {
    "qwen2_default_seeds": ("qwen2", [4096], 0, 1234, "forward", 25, REAL),
    "qwen2_seed0_reversed": ("qwen2", [4096], 0, 0, "reversed", 25, REAL),
    "gpt2_two_lengths": ("gpt2", [4096, 8192], 7, 7, "forward", 10, REAL),
    "bytes4_reversed_lengths": ("bytes4", [8192, 4096], 0, 1234, "reversed", 12, TOY),
    "bos_default_seeds": ("bos", [4096], 0, 1234, "forward", 10, REAL),
}
# Tasks with parameters of ours: tests/data/ruler_tasks.yaml
CUSTOM = ("bytes4", [4096], 3, 4, 15, TOY)
NAMES = ["niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multiquery", "niah_multivalue",
         "ruler_vt", "ruler_cwe", "ruler_fwe", "ruler_qa_squad", "ruler_qa_hotpot"]


class Counter:
    """What the generators use of a Hugging Face tokenizer."""

    def __init__(self, name):
        import tok_vectors
        self.t = None
        if name != "bytes4":
            self.t = tok_vectors.load(data)["gpt2" if name == "bos" else name]
        if name == "bos":
            from tokenizers import processors
            self.t.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 50256)])

    def __call__(self, text):
        n = self.t.encode(text, add_special_tokens=True).ids if self.t else range((len(text.encode()) + 3) // 4)
        return types.SimpleNamespace(input_ids=n)


def stand_ins(essay):
    class Dataset:
        @staticmethod
        def from_list(rows, split=None):
            return rows

    datasets = types.ModuleType("datasets")
    datasets.Dataset = Dataset
    datasets.Split = types.SimpleNamespace(TEST="test")
    datasets.load_dataset = lambda *a, **k: {"text": [json.load(open(os.path.join(data, essay)))["text"]]}
    transformers = types.ModuleType("transformers")
    transformers.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda name, **k: Counter(name))
    requests = types.ModuleType("requests")
    sys.modules.update(datasets=datasets, transformers=transformers, requests=requests)
    nltk_data = tempfile.mkdtemp()
    shutil.copytree(os.path.join(data, "ruler/nltk_punkt/punkt_tab"), nltk_data + "/tokenizers/punkt_tab") # links out of the folder are refused
    os.environ["NLTK_DATA"] = nltk_data
    # the package's own __init__ wants all of transformers: only its folder is taken
    for name in ("lm_eval", "lm_eval.tasks", "lm_eval.tasks.ruler"):
        for base in sys.path:
            folder = os.path.join(base, *name.split("."))
            if os.path.isdir(folder):
                m = types.ModuleType(name)
                m.__path__ = [folder]
                sys.modules[name] = m
                break


def build(name):
    if name == "custom":
        _, lengths, _, _, samples, (essay, squad, hotpot) = CUSTOM
        order = "forward"
    else:
        _, lengths, _, _, order, samples, (essay, squad, hotpot) = SETTINGS[name]
    stand_ins(essay)
    from lm_eval.tasks.ruler import cwe_utils, fwe_utils, niah_utils, qa_utils, vt_utils
    files = {"rajpurkar": squad, "huggingface": hotpot}
    qa_utils.download_json = lambda url: json.load(open(os.path.join(data, next(v for k, v in files.items() if k in url))))

    def cut(module, fn):
        whole = getattr(module, fn)

        def fewer(*a, **k):
            if k.get("num_samples", 500) == 500:
                k["num_samples"] = samples
            return whole(*a, **k)
        setattr(module, fn, fewer)
    for module, fn in ((niah_utils, "generate_samples"), (vt_utils, "sys_vartrack_w_noise_random"), (cwe_utils, "sys_word_pair_random"),
                       (fwe_utils, "sys_kwext"), (qa_utils, "generate_samples")):
        cut(module, fn)
    if name == "custom":
        return custom_tasks(niah_utils, vt_utils, cwe_utils, fwe_utils, lengths, samples)
    makers = [getattr(niah_utils, n) for n in NAMES[:8]] + [vt_utils.get_vt_dataset, cwe_utils.get_cw_dataset, fwe_utils.fwe_download, qa_utils.get_squad,
                                                            qa_utils.get_hotpotqa]
    tasks = list(zip(NAMES, makers))
    return reversed(tasks) if order == "reversed" else tasks


def custom_tasks(niah, vt, cwe, fwe, lengths, samples):
    count = Counter("bytes4")

    def needles(haystack, k, v, keys, values, queries):
        return lambda length: niah.generate_samples(
            niah.get_haystack(type_haystack=haystack), max_seq_length=length, template=niah.TEMPLATE, type_haystack=haystack, type_needle_k=keys,
            type_needle_v=values, num_needle_k=k, num_needle_v=v, num_needle_q=queries, num_samples=samples, TOKENIZER=count)

    def chains(length):
        example = vt.sys_vartrack_w_noise_random(tokenizer=count, num_samples=1, max_seq_length=500, incremental=5, num_chains=2, num_hops=5)[0]
        return vt.sys_vartrack_w_noise_random(tokenizer=count, num_samples=samples, max_seq_length=length, num_chains=2, num_hops=5, icl_example=example)

    def words(length):
        cwe.generate_input_output.__defaults__ = (20, 4, 5)
        return cwe.sys_word_pair_random(num_samples=samples, max_seq_length=length, tokenizer=count)

    def codes(length):
        return fwe.sys_kwext(tokenizer=count, max_seq_length=length, num_samples=samples, vocab_size=50, coded_wordlen=4, alpha=1.5)
    tasks = [("many_keys", needles("repeat", 8, 2, "words", "uuids", 3)), ("numbers_in_essay", needles("essay", 2, 3, "numbers", "words", 5)),
             ("among_needles", needles("needle", 4, 1, "uuids", "numbers", 2)), ("two_chains", chains), ("few_words", words), ("flat_codes", codes)]

    def all_lengths(make):
        return lambda pretrained, max_seq_lengths: {"test": [r for n in lengths for r in make(n)]}
    return [(name, all_lengths(make)) for name, make in tasks]


def write(name):
    tokenizer, lengths, py_seed, np_seed = (CUSTOM if name == "custom" else SETTINGS[name])[:4]
    tasks = build(name)
    import numpy as np
    random.seed(py_seed)
    np.random.seed(np_seed)
    os.makedirs(f"{out}/{name}", exist_ok=True)
    for task, make in tasks:
        rows = make(pretrained=tokenizer, max_seq_lengths=lengths)["test"]
        text = "".join(json.dumps(r) + "\n" for r in rows)
        with open(f"{out}/{name}/{task}.jsonl", "w") as f:
            f.write(text)
        print(name, task, hashlib.sha256(text.encode()).hexdigest(), sep="\t", flush=True, file=real_stdout)


real_stdout = sys.stdout
if __name__ == "__main__":
    sys.stdout = open(os.devnull, "w")
    if "--only" in sys.argv:
        write(sys.argv[sys.argv.index("--only") + 1])
    else:
        for setting in [*SETTINGS, "custom"]:
            if os.fork() == 0: # the modules keep state: a process each
                write(setting)
                os._exit(0)
            if os.wait()[1]:
                raise SystemExit(f"{setting} failed")
