/* Configuration from GGUF metadata. What the metadata does not say (biases, norms, tied embeddings) is read off the tensors that are there. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/cfg_int.h"

struct keys {
    const struct gguf *g;
    char prefix[32]; /* "llama" */
    char buf[160];
};

static const char *key(struct keys *k, const char *suffix)
{
    snprintf(k->buf, sizeof k->buf, "%s.%s", k->prefix, suffix);
    return k->buf;
}

static bool has(const struct gguf *g, const char *tensor)
{
    return gguf_find(g, tensor) != NULL;
}

static int read_sizes(struct mcfg *c, struct keys *k, struct err *e)
{
    const struct gguf *g = k->g;
    TRY(gguf_i64(g, key(k, "block_count"), 1, MCFG_MAX_LAYERS, &c->L, e));
    TRY(gguf_i64(g, key(k, "embedding_length"), 1, 1 << 17, &c->d, e));
    TRY(gguf_i64(g, key(k, "feed_forward_length"), 1, 1 << 20, &c->F, e));
    TRY(gguf_i64(g, key(k, "attention.head_count"), 1, 4096, &c->H, e));
    c->G = c->H;
    TRY(gguf_i64_opt(g, key(k, "attention.head_count_kv"), 1, 4096, &c->G, e));
    c->max_pos = 2048;
    TRY(gguf_i64_opt(g, key(k, "context_length"), 1, INT32_MAX, &c->max_pos, e));
    TRY(gguf_f64(g, key(k, "attention.layer_norm_rms_epsilon"), &c->eps, e));
    if (gguf_key(g, key(k, "attention.key_length"))) {
        int64_t v = 0;
        TRY(gguf_i64(g, key(k, "attention.key_length"), 1, MCFG_MAX_HEAD_DIM, &c->head_dim, e));
        v = c->head_dim;
        TRY(gguf_i64_opt(g, key(k, "attention.value_length"), 1, MCFG_MAX_HEAD_DIM, &v, e));
        if (v != c->head_dim)
            return ERR(e, E_INPUT, "%s: attention.key_length %" PRId64 " and value_length %" PRId64 " differ, which is not supported",
                       g->path, c->head_dim, v);
    } else if (c->d % c->H) {
        return ERR(e, E_INPUT,
                   "%s: embedding_length %" PRId64 " is not a multiple of %" PRId64 " heads, and there is no attention.key_length", g->path,
                   c->d, c->H);
    } else {
        c->head_dim = c->d / c->H;
    }
    int64_t rot = c->head_dim;
    TRY(gguf_i64_opt(g, key(k, "rope.dimension_count"), 0, MCFG_MAX_HEAD_DIM, &rot, e));
    if (rot != c->head_dim)
        return ERR(e, E_INPUT, "%s: rope.dimension_count is %" PRId64 ", head_dim %" PRId64 "; only full rotary positions are supported",
                   g->path, rot, c->head_dim);
    return 0;
}

/* The divisors that a converter stores for Llama 3.1 and 3.2, from the four numbers; is it these? */
static bool is_llama3(const struct mcfg *c, const float *f, double factor)
{
    const double low = 1, high = 4, original = 8192, two_pi = 2 * 3.14159265358979323846;
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        double w = two_pi * pow(c->rope.theta, (double)(2 * i) / (double)c->head_dim), want = 1;
        if (w > original / low)
            want = factor;
        else if (!(w < original / high)) {
            double t = (original / w - low) / (high - low);
            want = 1 / ((1 - t) / factor + t);
        }
        if (fabs((double)f[i] - want) > 1e-5 * want)
            return false;
    }
    return true;
}

static int read_rope_freqs(struct mcfg *c, const struct gguf *g, struct err *e)
{
    static const double known[] = {8, 32};
    const struct gguf_tensor *t = gguf_find(g, "rope_freqs.weight");
    struct mcfg_rope *r = &c->rope;
    if (!t)
        return 0;
    if (t->type != GGML_F32 || t->n != c->head_dim / 2)
        return ERR(e, E_INPUT,
                   "%s: tensor 'rope_freqs.weight' has %" PRId64 " values of type %" PRIu32 " (expected head_dim/2 = %" PRId64 " of F32)",
                   g->path, t->n, t->type, c->head_dim / 2);
    if (r->kind != ROPE_NONE)
        return ERR(e, E_INPUT, "%s: both rope.scaling.type and the tensor 'rope_freqs.weight' change the rotary frequencies", g->path);
    TRY(ggml_to_f32(GGML_F32, t->data, 0, t->n, r->factors, e));
    r->kind = ROPE_FACTORS;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (is_llama3(c, r->factors, known[i])) {
            double theta = r->theta;
            cfg_rope_plain(r, theta);
            r->kind = ROPE_LLAMA3;
            r->factor = known[i];
            r->low = 1;
            r->high = 4;
            r->original = 8192;
            return 0;
        }
    return 0;
}

static int read_rope(struct mcfg *c, struct keys *k, struct err *e)
{
    const struct gguf *g = k->g;
    struct gguf_str type = {"none", 4};
    struct mcfg_rope *r = &c->rope;
    cfg_rope_plain(r, 10000);
    TRY(gguf_f64_opt(g, key(k, "rope.freq_base"), &r->theta, e));
    TRY(gguf_string_opt(g, key(k, "rope.scaling.type"), &type, e));
    if (gguf_str_eq(type, "linear")) {
        r->kind = ROPE_LINEAR;
        TRY(gguf_f64(g, key(k, "rope.scaling.factor"), &r->factor, e));
    } else if (gguf_str_eq(type, "yarn")) {
        double attn = 1;
        r->kind = ROPE_YARN;
        r->beta_fast = 32;
        r->beta_slow = 1;
        r->original = (double)c->max_pos;
        TRY(gguf_f64(g, key(k, "rope.scaling.factor"), &r->factor, e));
        TRY(gguf_f64_opt(g, key(k, "rope.scaling.original_context_length"), &r->original, e));
        TRY(gguf_f64_opt(g, key(k, "rope.scaling.attn_factor"), &attn, e));
        TRY(gguf_f64_opt(g, key(k, "rope.scaling.yarn_beta_fast"), &r->beta_fast, e));
        TRY(gguf_f64_opt(g, key(k, "rope.scaling.yarn_beta_slow"), &r->beta_slow, e));
        r->attention_factor = attn * cfg_yarn_attention_factor(r->factor);
    } else if (!gguf_str_eq(type, "none")) {
        return ERR(e, E_INPUT, "%s: rope.scaling.type '%.*s' is not supported (none, linear, yarn)", g->path, (int)MIN(type.n, 60), type.p);
    }
    return read_rope_freqs(c, g, e);
}

static int read_vocab(struct mcfg *c, const struct gguf *g, struct err *e)
{
    const struct gguf_tensor *t = gguf_find(g, "token_embd.weight");
    struct gguf_str text = {0};
    int64_t id = -1;
    if (!t)
        return ERR(e, E_INPUT, "%s: tensor 'token_embd.weight' is missing", g->path);
    if (t->ndim != 2 || t->ne[0] != c->d || t->ne[1] > 1 << 24)
        return ERR(e, E_INPUT, "%s: tensor 'token_embd.weight' is %" PRId64 " x %" PRId64 ", but embedding_length is %" PRId64, g->path,
                   t->ne[1], t->ne[0], c->d);
    c->N = t->ne[1];
    c->bos = c->pad = -1;
    TRY(gguf_i64_opt(g, "tokenizer.ggml.bos_token_id", 0, INT32_MAX, &c->bos, e));
    TRY(gguf_i64_opt(g, "tokenizer.ggml.padding_token_id", 0, INT32_MAX, &c->pad, e));
    TRY(gguf_i64_opt(g, "tokenizer.ggml.eos_token_id", 0, INT32_MAX, &id, e));
    cfg_add_eos(c, id);
    TRY(gguf_i64_opt(g, "tokenizer.ggml.eot_token_id", 0, INT32_MAX, &id, e));
    cfg_add_eos(c, id);
    TRY(gguf_string_opt(g, "tokenizer.chat_template", &text, e));
    if (!text.p)
        return 0;
    c->chat_template = malloc(text.n + 1);
    if (!c->chat_template)
        return err_nomem(e, text.n + 1, "chat template");
    memcpy(c->chat_template, text.p, text.n);
    c->chat_template[text.n] = '\0';
    return 0;
}

static int read_gguf(struct mcfg *c, const struct gguf *g, struct err *e)
{
    static const enum mcfg_arch archs[] = {ARCH_QWEN2, ARCH_QWEN3, ARCH_LLAMA};
    struct gguf_str arch;
    struct keys k = {.g = g};
    int64_t experts = 0;
    TRY(gguf_string(g, "general.architecture", &arch, e));
    for (size_t i = 0; i < ARRAY_LEN(archs); i++)
        if (gguf_str_eq(arch, mcfg_arch_name(archs[i]))) {
            c->arch = archs[i];
            snprintf(k.prefix, sizeof k.prefix, "%s", mcfg_arch_name(archs[i]));
        }
    if (!k.prefix[0])
        return ERR(e, E_INPUT, "%s: general.architecture '%.*s' is not supported (llama, qwen2, qwen3)", g->path, (int)MIN(arch.n, 60),
                   arch.p);
    TRY(gguf_i64_opt(g, key(&k, "expert_count"), 0, INT32_MAX, &experts, e));
    if (experts)
        return ERR(e, E_INPUT, "%s: a mixture of %" PRId64 " experts; only dense feed-forward layers are supported", g->path, experts);
    TRY(read_sizes(c, &k, e));
    TRY(read_rope(c, &k, e));
    TRY(read_vocab(c, g, e));
    c->tie_embeddings = !has(g, "output.weight");
    c->qkv_bias = has(g, "blk.0.attn_q.bias");
    c->o_bias = has(g, "blk.0.attn_output.bias");
    c->mlp_bias = has(g, "blk.0.ffn_gate.bias");
    c->qk_norm = has(g, "blk.0.attn_q_norm.weight");
    return mcfg_check(c, g->path, e);
}

int mcfg_from_gguf(struct mcfg *c, const struct gguf *g, struct err *e)
{
    memset(c, 0, sizeof *c);
    if (read_gguf(c, g, e) != 0) {
        mcfg_free(c);
        return -1;
    }
    return 0;
}
