"""Reference files for the reader tests and seeds for their fuzz targets, made with numpy and the `gguf` package (0.19.0).

    python3 -m venv V && V/bin/pip install gguf==0.19.0 numpy && V/bin/python tests/oracle/gen_readers.py tests

writes, always with the same bytes:
  data/readers/quants.gguf         one tensor for each decoded type: random bytes with finite scales (so every scale and nibble pattern occurs)
  data/readers/quants.safetensors  what gguf.dequantize makes of them (F32)
  data/readers/llama/              the same small random model as a Hugging Face folder (F32) and as model.gguf (F32, q and k rows permuted, rope_freqs)
  fuzz/seeds/*/                    small valid files
"""
import json
import os
import struct
import sys

import numpy as np
import gguf
from gguf import GGMLQuantizationType as T

OUT = sys.argv[1]
rng = np.random.default_rng(20)


def path(*p):
    p = os.path.join(OUT, *p)
    os.makedirs(os.path.dirname(p), exist_ok=True)
    return p


def safetensors(tensors, meta=None):
    """{name: float32 array} -> bytes"""
    head, data = ({"__metadata__": meta} if meta else {}), b""
    for name, a in tensors.items():
        b = np.ascontiguousarray(a, dtype="<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(b)]}
        data += b
    h = json.dumps(head).encode()
    h += b" " * (-len(h) % 8)
    return struct.pack("<Q", len(h)) + h + data


def put(p, data):
    with open(path(*p.split("/")), "wb") as f:
        f.write(data)


# ---- quantised blocks: where the f16 scales stand in a block
SCALES = {T.Q4_0: (0,), T.Q4_1: (0, 2), T.Q5_0: (0,), T.Q5_1: (0, 2), T.Q8_0: (0,), T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,)}


def quants():
    w = gguf.GGUFWriter(path("data", "readers", "quants.gguf"), "none")
    want = {}
    for t in (T.F16, T.BF16):
        raw = rng.normal(size=(3, 40)).astype(np.float32)
        raw[0, :8] = [0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 65504, 1e-3, -1]  # zeros, half subnormals, the largest half
        q = gguf.quantize(raw, t)
        w.add_tensor(t.name, q, raw_dtype=t)
        want[t.name] = gguf.dequantize(q, t)
    for t, at in SCALES.items():
        elems, nbytes = gguf.GGML_QUANT_SIZES[t]
        blocks = 4 if elems == 32 else 2
        raw = rng.integers(0, 256, size=(2, blocks, nbytes), dtype=np.uint8)
        for pos in at:
            s = rng.normal(scale=0.1, size=(2, blocks)).astype(np.float16)
            s[1, 0] = np.float16(3e-7)  # a subnormal scale
            raw[:, :, pos:pos + 2] = s.view(np.uint8).reshape(2, blocks, 2)
        raw = raw.reshape(2, blocks * nbytes)
        w.add_tensor(t.name, raw, raw_dtype=t)
        want[t.name] = gguf.dequantize(raw, t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    put("data/readers/quants.safetensors", safetensors(want))


# ---- a small llama in both forms
D, H, G, HD, F, L, N = 16, 4, 2, 8, 24, 2, 20
ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)


def llama3_factors(theta):
    out = []
    for i in range(HD // 2):
        wave = 2 * np.pi * theta ** (2 * i / HD)
        if wave < 8192 / 4:
            out.append(1.0)
        elif wave > 8192 / 1:
            out.append(8.0)
        else:
            t = (8192 / wave - 1) / (4 - 1)
            out.append(1 / ((1 - t) / 8 + t))
    return np.array(out, dtype=np.float32)


def permuted(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama():
    t = {"model.embed_tokens.weight": (N, D)}
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for l in range(L):
        p, q = "model.layers.%d." % l, "blk.%d." % l
        for hf, gg, shape in (("input_layernorm", "attn_norm", (D,)), ("self_attn.q_proj", "attn_q", (H * HD, D)), ("self_attn.k_proj", "attn_k", (G * HD, D)),
                              ("self_attn.v_proj", "attn_v", (G * HD, D)), ("self_attn.o_proj", "attn_output", (D, H * HD)),
                              ("post_attention_layernorm", "ffn_norm", (D,)), ("mlp.gate_proj", "ffn_gate", (F, D)), ("mlp.up_proj", "ffn_up", (F, D)),
                              ("mlp.down_proj", "ffn_down", (D, F))):
            t[p + hf + ".weight"] = shape
            names[p + hf + ".weight"] = q + gg + ".weight"
    t["model.norm.weight"] = (D,)
    t = {k: rng.normal(size=s).astype(np.float32) for k, s in t.items()}
    cfg = dict(architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=False, bos_token_id=1, eos_token_id=2, head_dim=HD, hidden_act="silu",
               hidden_size=D, intermediate_size=F, max_position_embeddings=131072, mlp_bias=False, num_attention_heads=H, num_hidden_layers=L,
               num_key_value_heads=G, rms_norm_eps=2.0 ** -17, rope_scaling=ROPE, rope_theta=500000.0, tie_word_embeddings=True, vocab_size=N, torch_dtype="float32")
    put("data/readers/llama/config.json", json.dumps(cfg, indent=1).encode() + b"\n")
    put("data/readers/llama/model.safetensors", safetensors(t, {"format": "pt"}))
    w = gguf.GGUFWriter(path("data", "readers", "llama", "model.gguf"), "llama")
    w.add_block_count(L); w.add_context_length(131072); w.add_embedding_length(D); w.add_feed_forward_length(F)
    w.add_head_count(H); w.add_head_count_kv(G); w.add_key_length(HD); w.add_value_length(HD); w.add_rope_dimension_count(HD)
    w.add_rope_freq_base(500000.0); w.add_layer_norm_rms_eps(2.0 ** -17)
    w.add_tokenizer_model("gpt2"); w.add_token_list(["t%d" % i for i in range(N)]); w.add_bos_token_id(1); w.add_eos_token_id(2)
    w.add_chat_template("{{ messages }}")
    w.add_tensor("rope_freqs.weight", llama3_factors(500000.0))
    for k, a in t.items():
        heads = H if ".q_proj." in k else G if ".k_proj." in k else 0
        w.add_tensor(names[k], np.ascontiguousarray(permuted(a, heads) if heads else a))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def seeds():
    one = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float32), "z": np.zeros((0, 4), np.float32)}
    put("fuzz/seeds/safetensors/floats", safetensors(one, {"format": "pt"}))
    put("fuzz/seeds/safetensors/none", safetensors({}))
    body = b'{"i":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"h":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},"s":{"dtype":"BF16","shape":[],"data_offsets":[12,14]},"f":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[14,16]}}'
    put("fuzz/seeds/safetensors/mixed", struct.pack("<Q", len(body)) + body + bytes(range(16)))
    w = gguf.GGUFWriter(path("fuzz", "seeds", "gguf", "quants"), "llama")
    w.add_array("x.list", [1, 2, 3]); w.add_array("x.words", ["a", "", "bc"]); w.add_bool("x.flag", True); w.add_float64("x.f", 0.5)
    for t in (T.F32, T.F16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K, T.Q6_K):
        elems, nbytes = gguf.GGML_QUANT_SIZES[t]
        w.add_tensor(t.name, rng.integers(0, 120, size=(1, nbytes), dtype=np.uint8) if elems > 1 else np.ones((2, 2), np.float32 if t == T.F32 else np.float16),
                     raw_dtype=t if elems > 1 else None)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    put("fuzz/seeds/gguf/nothing", b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    with open(path("data", "readers", "llama", "model.gguf"), "rb") as f:
        put("fuzz/seeds/gguf/llama", f.read())
    base = dict(vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                tie_word_embeddings=True, eos_token_id=[1, 2], bos_token_id=0, hidden_act="silu")
    cfg = {
        "llama3": dict(base, model_type="llama", rms_norm_eps=1e-5, rope_theta=1e4, rope_scaling=ROPE, mlp_bias=True, attention_bias=True),
        "yarn_v5": dict(base, model_type="qwen2", architectures=["Qwen2ForCausalLM"], layer_types=["full_attention", "sliding_attention"], sliding_window=8, use_sliding_window=True,
                        rope_parameters=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=1e6)),
        "qwen3": dict(base, model_type="qwen3", head_dim=8, rope_scaling={"type": "linear", "factor": 2}, use_sliding_window=True, sliding_window=4, max_window_layers=1),
        "fla": dict(model_type="gated_deltanet", vocab_size=32, hidden_size=16, hidden_ratio=4, num_hidden_layers=3, num_heads=2, head_dim=8, expand_v=1, num_v_heads=4, conv_size=4,
                    use_short_conv=True, attn=[dict(layers=[1], num_heads=2, num_kv_heads=1, qkv_bias=True, window_size=None, rope_theta=1e4)]),
    }
    for name, c in cfg.items():
        put("fuzz/seeds/config_json/" + name, json.dumps(c).encode())


quants()
llama()
seeds()
