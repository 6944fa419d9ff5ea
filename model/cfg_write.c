/* config.json writer: the transformers 4 form of plain models, fla's gated_deltanet form of all others. */
#include <string.h>

#include "core/jwrite.h"
#include "model/cfg_int.h"

static bool one_window(const struct mcfg *c)
{
    int64_t w = 0;
    for (int64_t l = 0; l < c->L; l++) {
        if (c->window[l] && w && c->window[l] != w)
            return false;
        w = c->window[l] ? c->window[l] : w;
    }
    return true;
}

bool mcfg_plain(const struct mcfg *c)
{
    if (mcfg_has(c, MIX_GDN) || c->rope.kind == ROPE_FACTORS || !one_window(c))
        return false;
    switch (c->arch) {
    case ARCH_QWEN2: return c->qkv_bias && !c->o_bias && !c->mlp_bias && !c->qk_norm;
    case ARCH_QWEN3: return c->qkv_bias == c->o_bias && !c->mlp_bias && c->qk_norm;
    case ARCH_LLAMA: return c->qkv_bias == c->o_bias && !c->qk_norm && !mcfg_has(c, MIX_WINDOW);
    case ARCH_GATED_DELTANET: return false;
    }
    return false;
}

static void knull(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_null(w);
}

static void write_ids(const struct mcfg *c, struct jw *w)
{
    if (c->bos >= 0)
        jw_ki64(w, "bos_token_id", c->bos);
    else
        knull(w, "bos_token_id");
    jw_key(w, "eos_token_id");
    if (c->n_eos > 1)
        jw_arr(w);
    for (int i = 0; i < c->n_eos; i++)
        jw_i64(w, c->eos[i]);
    if (c->n_eos > 1)
        jw_end_arr(w);
    if (!c->n_eos)
        jw_null(w);
    if (c->pad >= 0)
        jw_ki64(w, "pad_token_id", c->pad);
    else
        knull(w, "pad_token_id");
}

/* The members of rope_scaling (or of dashlab.attention.rope). What equals its default is left out. */
static void write_rope(const struct mcfg *c, struct jw *w)
{
    const struct mcfg_rope *r = &c->rope;
    static const char *const names[] = {[ROPE_NONE] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3", [ROPE_YARN] = "yarn",
                                        [ROPE_FACTORS] = "factors"};
    if (r->kind != ROPE_NONE && r->kind != ROPE_FACTORS)
        jw_kf64(w, "factor", r->factor);
    if (r->kind == ROPE_LLAMA3) {
        jw_kf64(w, "low_freq_factor", r->low);
        jw_kf64(w, "high_freq_factor", r->high);
    }
    if (r->kind == ROPE_LLAMA3 || r->kind == ROPE_YARN) {
        jw_key(w, "original_max_position_embeddings");
        if (r->original == (double)(int64_t)r->original)
            jw_i64(w, (int64_t)r->original);
        else
            jw_f64(w, r->original);
    }
    if (r->kind == ROPE_YARN) {
        if (r->attention_factor != cfg_yarn_attention_factor(r->factor))
            jw_kf64(w, "attention_factor", r->attention_factor);
        if (r->beta_fast != 32)
            jw_kf64(w, "beta_fast", r->beta_fast);
        if (r->beta_slow != 1)
            jw_kf64(w, "beta_slow", r->beta_slow);
        if (!r->truncate)
            jw_kbool(w, "truncate", false);
    }
    jw_kstr(w, "rope_type", names[r->kind]);
    if (r->kind == ROPE_FACTORS) {
        jw_key(w, "factors");
        jw_arr(w);
        for (int64_t i = 0; i < c->head_dim / 2; i++)
            jw_f64(w, (double)r->factors[i]);
        jw_end_arr(w);
    }
}

static void write_windows(const struct mcfg *c, struct jw *w)
{
    int64_t window = 0, first = c->L;
    for (int64_t l = c->L - 1; l >= 0; l--) {
        if (c->mixer[l] == MIX_WINDOW) {
            window = c->window[l];
            first = l;
        }
    }
    if (c->arch == ARCH_LLAMA)
        return;
    if (window) {
        jw_key(w, "layer_types");
        jw_arr(w);
        for (int64_t l = 0; l < c->L; l++)
            jw_str(w, c->mixer[l] == MIX_WINDOW ? "sliding_attention" : "full_attention");
        jw_end_arr(w);
    }
    jw_ki64(w, "max_window_layers", first);
    if (window)
        jw_ki64(w, "sliding_window", window);
    else
        knull(w, "sliding_window");
    jw_kbool(w, "use_sliding_window", window != 0);
}

static void write_one_name(struct jw *w, const char *key, const char *name)
{
    jw_key(w, key);
    jw_arr(w);
    jw_str(w, name);
    jw_end_arr(w);
}

static void write_hf(const struct mcfg *c, const char *dtype, struct jw *w)
{
    static const char *const cls[] = {[ARCH_QWEN2] = "Qwen2ForCausalLM", [ARCH_QWEN3] = "Qwen3ForCausalLM",
                                      [ARCH_LLAMA] = "LlamaForCausalLM"};
    write_one_name(w, "architectures", cls[c->arch]);
    if (c->arch != ARCH_QWEN2)
        jw_kbool(w, "attention_bias", c->qkv_bias);
    jw_kf64(w, "attention_dropout", 0);
    write_ids(c, w);
    if (c->arch != ARCH_QWEN2 || c->head_dim * c->H != c->d)
        jw_ki64(w, "head_dim", c->head_dim);
    jw_kstr(w, "hidden_act", "silu");
    jw_ki64(w, "hidden_size", c->d);
    jw_kf64(w, "initializer_range", 0.02);
    jw_ki64(w, "intermediate_size", c->F);
    jw_ki64(w, "max_position_embeddings", c->max_pos);
    if (c->arch == ARCH_LLAMA)
        jw_kbool(w, "mlp_bias", c->mlp_bias);
    jw_kstr(w, "model_type", mcfg_arch_name(c->arch));
    jw_ki64(w, "num_attention_heads", c->H);
    jw_ki64(w, "num_hidden_layers", c->L);
    jw_ki64(w, "num_key_value_heads", c->G);
    jw_kf64(w, "rms_norm_eps", c->eps);
    jw_key(w, "rope_scaling");
    if (c->rope.kind == ROPE_NONE) {
        jw_null(w);
    } else {
        jw_obj(w);
        write_rope(c, w);
        jw_end_obj(w);
    }
    jw_kf64(w, "rope_theta", c->rope.theta);
    write_windows(c, w);
    jw_kbool(w, "tie_word_embeddings", c->tie_embeddings);
    jw_kstr(w, "torch_dtype", dtype);
    jw_kbool(w, "use_cache", true);
    jw_ki64(w, "vocab_size", c->N);
}

/* One spec for each operator kind: full attention, then each window length in the order of its first layer. */
static void write_attn(const struct mcfg *c, struct jw *w)
{
    bool done[MCFG_MAX_LAYERS] = {false};
    jw_key(w, "attn");
    if (!c->H || mcfg_count(c, MIX_GDN) == c->L) {
        jw_null(w);
        return;
    }
    jw_arr(w);
    for (int pass = 0; pass < 2; pass++)
        for (int64_t l = 0; l < c->L; l++) {
            if (done[l] || c->mixer[l] != (pass ? MIX_WINDOW : MIX_FULL))
                continue;
            jw_obj(w);
            jw_key(w, "layers");
            jw_arr(w);
            for (int64_t k = l; k < c->L; k++)
                if (c->mixer[k] == c->mixer[l] && c->window[k] == c->window[l]) {
                    jw_i64(w, k);
                    done[k] = true;
                }
            jw_end_arr(w);
            jw_ki64(w, "num_heads", c->H);
            jw_ki64(w, "num_kv_heads", c->G);
            jw_kbool(w, "qkv_bias", c->qkv_bias);
            jw_kbool(w, "qk_norm", c->qk_norm);
            if (c->window[l])
                jw_ki64(w, "window_size", c->window[l]);
            else
                knull(w, "window_size");
            jw_kf64(w, "rope_theta", c->rope.theta);
            jw_end_obj(w);
        }
    jw_end_arr(w);
}

static void write_dash_layers(const struct mcfg *c, struct jw *w)
{
    jw_key(w, "mixers");
    jw_arr(w);
    for (int64_t l = 0; l < c->L; l++)
        jw_str(w, mixer_name(c->mixer[l]));
    jw_end_arr(w);
    jw_key(w, "windows");
    jw_arr(w);
    for (int64_t l = 0; l < c->L; l++)
        jw_i64(w, c->window[l]);
    jw_end_arr(w);
}

static void write_dash_shapes(const struct mcfg *c, struct jw *w)
{
    if (c->H) {
        jw_key(w, "attention");
        jw_obj(w);
        jw_ki64(w, "num_heads", c->H);
        jw_ki64(w, "num_kv_heads", c->G);
        jw_ki64(w, "head_dim", c->head_dim);
        jw_kbool(w, "qkv_bias", c->qkv_bias);
        jw_kbool(w, "o_bias", c->o_bias);
        jw_kbool(w, "qk_norm", c->qk_norm);
        jw_key(w, "rope");
        jw_obj(w);
        jw_kf64(w, "rope_theta", c->rope.theta);
        write_rope(c, w);
        jw_end_obj(w);
        jw_end_obj(w);
    }
    if (c->gdn.heads) {
        jw_key(w, "gdn");
        jw_obj(w);
        jw_ki64(w, "head_v_dim", c->gdn.head_v_dim);
        jw_kf64(w, "norm_eps", c->gdn.norm_eps);
        jw_kstr(w, "state_layout", "kv");
        jw_end_obj(w);
    }
}

static void write_dashlab(const struct mcfg *c, struct jw *w)
{
    static const char *const expand[] = {[KV_EXPAND_NONE] = "none", [KV_EXPAND_HEAD] = "head", [KV_EXPAND_ROW] = "row"};
    jw_key(w, "dashlab");
    jw_obj(w);
    jw_ki64(w, "version", MCFG_DASHLAB_VERSION);
    jw_kstr(w, "family", mcfg_arch_name(c->arch));
    write_dash_layers(c, w);
    jw_kbool(w, "mlp_bias", c->mlp_bias);
    write_dash_shapes(c, w);
    jw_kstr(w, "kv_expand", expand[c->dashlab.kv_expand]);
    jw_key(w, "teacher");
    jw_obj(w);
    jw_kstr(w, "name", c->dashlab.teacher);
    jw_kstr(w, "sha256", c->dashlab.teacher_sha256);
    jw_end_obj(w);
    if (c->dashlab.run[0])
        jw_kstr(w, "run", c->dashlab.run);
    jw_end_obj(w);
}

static void write_fla(const struct mcfg *c, const char *dtype, struct jw *w)
{
    const struct mcfg_gdn *g = &c->gdn;
    bool gdn = g->heads > 0; /* without GDN layers the keys below are fillers that fla's constructor accepts */
    write_one_name(w, "architectures", "GatedDeltaNetForCausalLM");
    jw_kstr(w, "model_type", "gated_deltanet");
    jw_kstr(w, "attn_mode", "chunk");
    write_attn(c, w);
    jw_kbool(w, "allow_neg_eigval", g->allow_neg_eigval);
    write_ids(c, w);
    jw_ki64(w, "conv_size", g->conv_size ? g->conv_size : 4);
    jw_kf64(w, "expand_v", gdn ? (double)g->head_v_dim / (double)g->head_k_dim : 1);
    jw_kbool(w, "fuse_cross_entropy", true);
    jw_kbool(w, "fuse_norm", true);
    jw_kbool(w, "fuse_swiglu", true);
    jw_ki64(w, "head_dim", gdn ? g->head_k_dim : c->head_dim);
    jw_kstr(w, "hidden_act", "swish");
    knull(w, "hidden_ratio");
    jw_ki64(w, "hidden_size", c->d);
    jw_kf64(w, "initializer_range", 0.02);
    jw_ki64(w, "intermediate_size", c->F);
    jw_ki64(w, "max_position_embeddings", c->max_pos);
    jw_kf64(w, "norm_eps", c->eps);
    jw_ki64(w, "num_heads", gdn ? g->heads : c->H);
    jw_ki64(w, "num_hidden_layers", c->L);
    if (gdn && g->v_heads != g->heads)
        jw_ki64(w, "num_v_heads", g->v_heads);
    else
        knull(w, "num_v_heads");
    jw_kbool(w, "tie_word_embeddings", c->tie_embeddings);
    jw_kstr(w, "torch_dtype", dtype);
    jw_kbool(w, "use_cache", true);
    jw_kbool(w, "use_gate", gdn ? g->use_gate : true);
    jw_kbool(w, "use_short_conv", g->conv_size > 0);
    jw_ki64(w, "vocab_size", c->N);
    write_dashlab(c, w);
}

int mcfg_write_json(const struct mcfg *c, const char *dtype, struct str *out, struct err *e)
{
    struct jw w;
    TRY(mcfg_check(c, "configuration to write", e));
    jw_init(&w, out, true);
    jw_obj(&w);
    if (c->layout == LAYOUT_HF && mcfg_plain(c))
        write_hf(c, dtype, &w);
    else
        write_fla(c, dtype, &w);
    jw_end_obj(&w);
    str_putc(out, '\n');
    return jw_ok(&w, "configuration to write", e);
}
