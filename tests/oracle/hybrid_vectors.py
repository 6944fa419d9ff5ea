#!/usr/bin/env python3
"""Makes tests/data/hybrid/{plain,conv}: random hybrids in fla's gated_deltanet layout (no `dashlab` key) with expected hidden states and logits.

usage: hybrid_vectors.py OUT_DIR
The layers are written here in PyTorch float64 from the equations of fla's layer; the recurrence is transformers' torch_recurrent_gated_delta_rule (qwen3_next), which computes
in float32, and beside it the same loop in float64; the two are compared and the float64 one is stored. Needs torch, transformers, safetensors.
"""
import json, os, sys
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

D, L, N, FF, T, EPS, W, THETA = 32, 4, 80, 48, 150, 1e-6, 20, 10000.0
HEADS, KV, HD = 4, 2, 8
ATTN = {1: None, 2: W}  # layer -> window
torch.manual_seed(3)
out_dir = sys.argv[1]


def rms(x, w, eps=EPS):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w


def make(conv, gate, gk, gv, kd, vd):
    p = {}

    def add(name, *shape, scale=None):
        p[name] = (torch.randn(*shape) * (scale if scale is not None else shape[-1] ** -0.5)).float()

    add("model.embeddings.weight", N, D, scale=1.0)
    for l in range(L):
        a = f"model.layers.{l}."
        for n in ("attn_norm", "mlp_norm"):
            p[a + n + ".weight"] = (1 + 0.1 * torch.randn(D)).float()
        if l in ATTN:
            for n, w in (("q", HEADS), ("k", KV), ("v", KV)):
                add(a + f"attn.{n}_proj.weight", w * HD, D)
                add(a + f"attn.{n}_proj.bias", w * HD, scale=0.1)
            add(a + "attn.o_proj.weight", D, HEADS * HD)
        else:
            for n, w in (("q", gk * kd), ("k", gk * kd), ("v", gv * vd)):
                add(a + f"attn.{n}_proj.weight", w, D)
                if conv:
                    add(a + f"attn.{n}_conv1d.weight", w, 1, 4, scale=0.5)
            for n in "ab":
                add(a + f"attn.{n}_proj.weight", gv, D)
            p[a + "attn.A_log"] = torch.log(torch.rand(gv) * 2 + 0.05).float()
            p[a + "attn.dt_bias"] = torch.randn(gv).float() - 2
            if gate:
                add(a + "attn.g_proj.weight", gv * vd, D)
            p[a + "attn.o_norm.weight"] = (1 + 0.1 * torch.randn(vd)).float()
            add(a + "attn.o_proj.weight", D, gv * vd)
        for n in ("gate", "up"):
            add(a + f"mlp.{n}_proj.weight", FF, D)
        add(a + "mlp.down_proj.weight", D, FF)
    p["model.norm.weight"] = (1 + 0.1 * torch.randn(D)).float()
    return p


def attention(p, a, h, window):
    q, k, v = (F.linear(h, p[a + f"attn.{n}_proj.weight"], p[a + f"attn.{n}_proj.bias"]) for n in "qkv")
    inv = 1.0 / (torch.tensor(THETA) ** (torch.arange(0, HD, 2).float() / HD))
    ang = torch.arange(T).float()[:, None] * inv
    c, s = ang.cos().double(), ang.sin().double()

    def rot(x, heads):
        x = x.view(T, heads, HD)
        x1, x2 = x[..., : HD // 2], x[..., HD // 2:]
        return torch.cat([x1 * c[:, None] - x2 * s[:, None], x2 * c[:, None] + x1 * s[:, None]], -1)

    q, k, v = rot(q, HEADS), rot(k, KV).repeat_interleave(HEADS // KV, 1), v.view(T, KV, HD).repeat_interleave(HEADS // KV, 1)
    z = torch.einsum("ihd,jhd->hij", q, k) * HD ** -0.5
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    mask = (j > i) | ((i - j >= window) if window else torch.zeros(T, T, dtype=torch.bool))
    o = torch.einsum("hij,jhd->ihd", z.masked_fill(mask, float("-inf")).softmax(-1), v)
    return F.linear(o.reshape(T, -1), p[a + "attn.o_proj.weight"])


def recurrence(q, k, v, g, beta):  # [T, HV, .] float64, q and k normalised
    S, o = torch.zeros(v.shape[1], q.shape[2], v.shape[2], dtype=torch.float64), []
    for t in range(T):
        S = S * g[t].exp()[:, None, None]
        u = beta[t][:, None] * (v[t] - torch.einsum("hkv,hk->hv", S, k[t]))
        S = S + k[t][:, :, None] * u[:, None, :]
        o.append(torch.einsum("hkv,hk->hv", S, q[t]) * q.shape[2] ** -0.5)
    return torch.stack(o)


def gdn(p, a, h, conv, gate, gk, gv, kd, vd):
    def act(n):
        x = F.linear(h, p[a + f"attn.{n}_proj.weight"])
        if conv:
            w = p[a + f"attn.{n}_conv1d.weight"]
            x = F.conv1d(F.pad(x.T[None], (3, 0)), w, groups=w.shape[0])[0].T
        return F.silu(x)

    q, k, v = act("q").view(T, gk, kd), act("k").view(T, gk, kd), act("v").view(T, gv, vd)
    q, k = (x.repeat_interleave(gv // gk, 1) for x in (q, k))
    beta = torch.sigmoid(F.linear(h, p[a + "attn.b_proj.weight"]))
    g = -p[a + "attn.A_log"].exp() * F.softplus(F.linear(h, p[a + "attn.a_proj.weight"]) + p[a + "attn.dt_bias"])
    hf, _ = torch_recurrent_gated_delta_rule(*(x[None] for x in (q, k, v, g, beta)), initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=True)
    q, k = (x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    o = recurrence(q, k, v, g, beta)
    diff = (hf[0].double() - o).abs().max().item() / o.abs().max().item()
    print(a, "transformers' recurrence against the float64 loop:", diff)
    assert diff < 1e-5
    y = rms(o, p[a + "attn.o_norm.weight"])
    if gate:
        y = y * F.silu(F.linear(h, p[a + "attn.g_proj.weight"]).view(T, gv, vd))
    return F.linear(y.reshape(T, -1), p[a + "attn.o_proj.weight"])


def run(p32, ids, *shape):
    p = {k: v.double() for k, v in p32.items()}
    x = p["model.embeddings.weight"][ids]
    hidden, mixed = [x], []
    for l in range(L):
        a = f"model.layers.{l}."
        h = rms(x, p[a + "attn_norm.weight"])
        y = attention(p, a, h, ATTN[l]) if l in ATTN else gdn(p, a, h, *shape)
        mixed.append(y)
        x = x + y
        h = rms(x, p[a + "mlp_norm.weight"])
        x = x + F.linear(F.silu(F.linear(h, p[a + "mlp.gate_proj.weight"])) * F.linear(h, p[a + "mlp.up_proj.weight"]), p[a + "mlp.down_proj.weight"])
        hidden.append(x)
    return torch.stack(hidden), torch.stack(mixed), rms(x, p["model.norm.weight"]) @ p["model.embeddings.weight"].T


for name, conv, gate, gk, gv, kd, vd in (("plain", False, True, 4, 4, 8, 8), ("conv", True, False, 2, 4, 8, 12)):
    dst = os.path.join(out_dir, name)
    os.makedirs(dst, exist_ok=True)
    p = make(conv, gate, gk, gv, kd, vd)
    ids = torch.randint(0, N, (T,))
    hidden, mixed, logits = run(p, ids, conv, gate, gk, gv, kd, vd)
    cfg = {"architectures": ["GatedDeltaNetForCausalLM"], "model_type": "gated_deltanet", "attn_mode": "chunk", "hidden_size": D, "expand_v": vd / kd, "use_gate": gate,
           "use_short_conv": conv, "conv_size": 4, "head_dim": kd, "num_heads": gk, "num_v_heads": gv, "allow_neg_eigval": False, "hidden_ratio": None, "intermediate_size": FF,
           "hidden_act": "swish", "num_hidden_layers": L, "norm_eps": EPS, "max_position_embeddings": 2048, "tie_word_embeddings": True, "vocab_size": N, "bos_token_id": None,
           "eos_token_id": None, "pad_token_id": None,
           "attn": [{"layers": [l], "num_heads": HEADS, "num_kv_heads": KV, "qkv_bias": True, "window_size": w, "rope_theta": THETA} for l, w in ATTN.items()]}
    json.dump(cfg, open(dst + "/config.json", "w"), indent=2)
    save_file(p, dst + "/model.safetensors", metadata={"format": "pt"})
    save_file({"input_ids": ids.int(), "hidden": hidden.float(), "attn_out": mixed.float(), "logits": logits.float()}, dst + "/expected.safetensors")
