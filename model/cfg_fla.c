/* config.json of fla's gated_deltanet: GDN layers, and layers of softmax attention listed under `attn`; dashlab's own facts under
 * `dashlab`. */
#include <math.h>
#include <string.h>

#include "model/cfg_int.h"

/* fla keeps hidden_ratio when intermediate_size is null: 2/3 of ratio * width, rounded up to a multiple of 256. */
static int read_ffn(struct mcfg *c, const struct jdoc *d, struct err *e)
{
    double ratio = 4;
    TRY(jget_i64_opt(d, d->root, "", "intermediate_size", 1, 1 << 20, &c->F, e));
    if (c->F)
        return 0;
    TRY(jget_f64_opt(d, d->root, "", "hidden_ratio", &ratio, e));
    if (!(ratio > 0 && ratio <= 64))
        return ERR(e, E_INPUT, "%s: hidden_ratio is %g (limits 0 to 64)", d->file, ratio);
    int64_t f = (int64_t)((double)c->d * ratio * 2 / 3);
    c->F = CEIL_DIV(f, 256) * 256;
    return 0;
}

static int read_gdn(struct mcfg *c, const struct jdoc *d, struct err *e)
{
    const json_t *r = d->root;
    struct mcfg_gdn *g = &c->gdn;
    double expand = 2;
    bool conv = true, conv_bias = false;
    TRY(jget_i64(d, r, "", "num_heads", 1, 4096, &g->heads, e));
    TRY(jget_i64(d, r, "", "head_dim", 1, MCFG_MAX_HEAD_DIM, &g->head_k_dim, e));
    g->v_heads = g->heads;
    TRY(jget_i64_opt(d, r, "", "num_v_heads", 1, 4096, &g->v_heads, e));
    TRY(jget_f64_opt(d, r, "", "expand_v", &expand, e));
    double v = (double)g->head_k_dim * expand;
    if (!(v >= 1 && v <= MCFG_MAX_HEAD_DIM) || fabs(v - floor(v + 0.5)) > 1e-6)
        return ERR(e, E_INPUT, "%s: head_dim %" PRId64 " times expand_v %g is not a whole head size (1 to %d)", d->file, g->head_k_dim,
                   expand, MCFG_MAX_HEAD_DIM);
    g->head_v_dim = (int64_t)floor(v + 0.5);
    g->use_gate = true;
    TRY(jget_bool_opt(d, r, "", "use_gate", &g->use_gate, e));
    TRY(jget_bool_opt(d, r, "", "allow_neg_eigval", &g->allow_neg_eigval, e));
    TRY(jget_bool_opt(d, r, "", "use_short_conv", &conv, e));
    TRY(jget_bool_opt(d, r, "", "conv_bias", &conv_bias, e));
    if (conv && conv_bias)
        return ERR(e, E_INPUT, "%s: conv_bias: a short convolution with bias is not supported", d->file);
    g->conv_size = 4;
    TRY(jget_i64_opt(d, r, "", "conv_size", 1, 16, &g->conv_size, e));
    if (!conv)
        g->conv_size = 0;
    g->norm_eps = c->eps;
    return 0;
}

struct spec { /* what all attention specs must agree in */
    int64_t heads, kv_heads;
    bool qkv_bias, qk_norm;
    double theta;
};

static int read_spec_layers(struct mcfg *c, const struct jdoc *d, const json_t *s, const char *where, int64_t window,
                            bool taken[MCFG_MAX_LAYERS], struct err *e)
{
    const json_t *layers;
    TRY(jget_arr(d, s, where, "layers", &layers, e));
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *x = json_array_get(layers, i);
        int64_t l = json_is_integer(x) ? json_integer_value(x) : -1;
        if (l < 0 || l >= c->L)
            return ERR(e, E_INPUT, "%s: %s.layers[%zu] is not a layer (0 to %" PRId64 ")", d->file, where, i, c->L - 1);
        if (taken[l])
            return ERR(e, E_INPUT, "%s: %s.layers[%zu]: layer %" PRId64 " is listed twice", d->file, where, i, l);
        taken[l] = true;
        c->mixer[l] = window ? MIX_WINDOW : MIX_FULL;
        c->window[l] = window;
    }
    return 0;
}

static int read_spec(struct mcfg *c, const struct jdoc *d, const json_t *s, size_t at, bool taken[MCFG_MAX_LAYERS], struct spec *all,
                     struct err *e)
{
    char where[32];
    struct spec x = {.theta = 10000};
    int64_t window = 0;
    snprintf(where, sizeof where, "attn[%zu]", at);
    if (!json_is_object(s))
        return ERR(e, E_INPUT, "%s: %s: expected an object", d->file, where);
    TRY(jget_i64_opt(d, s, where, "window_size", 1, INT32_MAX, &window, e));
    TRY(read_spec_layers(c, d, s, where, window, taken, e));
    TRY(jget_i64(d, s, where, "num_heads", 1, 4096, &x.heads, e));
    x.kv_heads = x.heads;
    TRY(jget_i64_opt(d, s, where, "num_kv_heads", 1, 4096, &x.kv_heads, e));
    TRY(jget_bool_opt(d, s, where, "qkv_bias", &x.qkv_bias, e));
    TRY(jget_bool_opt(d, s, where, "qk_norm", &x.qk_norm, e));
    TRY(jget_f64_opt(d, s, where, "rope_theta", &x.theta, e));
    if (!at)
        *all = x;
    if (x.heads != all->heads || x.kv_heads != all->kv_heads || x.qkv_bias != all->qkv_bias || x.qk_norm != all->qk_norm ||
        x.theta != all->theta)
        return ERR(e, E_INPUT,
                   "%s: %s differs from attn[0] in heads, biases, norms or rope_theta; one attention shape a model is supported", d->file,
                   where);
    return 0;
}

static int read_attn(struct mcfg *c, const struct jdoc *d, struct err *e)
{
    const json_t *a = json_object_get(d->root, "attn");
    bool taken[MCFG_MAX_LAYERS] = {false};
    struct spec all = {0};
    for (int64_t l = 0; l < c->L; l++)
        c->mixer[l] = MIX_GDN;
    if (!a || json_is_null(a))
        return 0;
    size_t n = json_is_array(a) ? json_array_size(a) : 1; /* older form: one spec alone */
    for (size_t i = 0; i < n; i++)
        TRY(read_spec(c, d, json_is_array(a) ? json_array_get(a, i) : a, i, taken, &all, e));
    if (!n)
        return 0;
    c->H = all.heads;
    c->G = all.kv_heads;
    c->qkv_bias = all.qkv_bias;
    c->qk_norm = all.qk_norm;
    c->head_dim = c->d % c->H ? 0 : c->d / c->H; /* forced by fla; `dashlab` may say otherwise (0 fails the check) */
    cfg_rope_plain(&c->rope, all.theta);
    return 0;
}

/* ---- the dashlab object ---- */

static int read_mixers(const struct mcfg *c, const struct jdoc *d, const json_t *o, struct err *e)
{
    const json_t *m, *w;
    TRY(jget_arr(d, o, "dashlab", "mixers", &m, e));
    TRY(jget_arr(d, o, "dashlab", "windows", &w, e));
    if (json_array_size(m) != (size_t)c->L || json_array_size(w) != (size_t)c->L)
        return ERR(e, E_INPUT, "%s: dashlab.mixers has %zu entries, dashlab.windows %zu (expected num_hidden_layers = %" PRId64 ")",
                   d->file, json_array_size(m), json_array_size(w), c->L);
    for (int64_t l = 0; l < c->L; l++) {
        const char *s = json_string_value(json_array_get(m, (size_t)l));
        const json_t *x = json_array_get(w, (size_t)l);
        enum mixer_kind k;
        if (!s || !mixer_parse(s, &k))
            return ERR(e, E_INPUT, "%s: dashlab.mixers[%" PRId64 "] is '%.40s' (full, window or gdn)", d->file, l, s ? s : "no string");
        if (k != c->mixer[l] || !json_is_integer(x) || json_integer_value(x) != c->window[l])
            return ERR(e, E_INPUT, "%s: dashlab says layer %" PRId64 " is '%s', attn says '%s' with window %" PRId64, d->file, l, s,
                       mixer_name(c->mixer[l]), c->window[l]);
    }
    return 0;
}

static int read_dash_attention(struct mcfg *c, const struct jdoc *d, const json_t *a, struct err *e)
{
    static const char where[] = "dashlab.attention";
    int64_t h = 0, g = 0;
    TRY(jget_i64(d, a, where, "num_heads", 1, 4096, &h, e));
    TRY(jget_i64(d, a, where, "num_kv_heads", 1, 4096, &g, e));
    if (c->H && (h != c->H || g != c->G))
        return ERR(e, E_INPUT, "%s: dashlab.attention has %" PRId64 "/%" PRId64 " heads, attn %" PRId64 "/%" PRId64, d->file, h, g, c->H,
                   c->G);
    c->H = h;
    c->G = g;
    TRY(jget_i64(d, a, where, "head_dim", 1, MCFG_MAX_HEAD_DIM, &c->head_dim, e));
    TRY(jget_bool_opt(d, a, where, "qkv_bias", &c->qkv_bias, e));
    TRY(jget_bool_opt(d, a, where, "o_bias", &c->o_bias, e));
    TRY(jget_bool_opt(d, a, where, "qk_norm", &c->qk_norm, e));
    const json_t *rope;
    TRY(jget_obj(d, a, where, "rope", &rope, e));
    cfg_rope_plain(&c->rope, 10000);
    return cfg_read_rope(c, d, rope, "dashlab.attention.rope", e);
}

static int read_dash_gdn(struct mcfg *c, const struct jdoc *d, const json_t *g, struct err *e)
{
    const char *layout = "kv";
    TRY(jget_f64_opt(d, g, "dashlab.gdn", "norm_eps", &c->gdn.norm_eps, e));
    TRY(jget_i64_opt(d, g, "dashlab.gdn", "head_v_dim", 1, MCFG_MAX_HEAD_DIM, &c->gdn.head_v_dim, e));
    TRY(jget_str_opt(d, g, "dashlab.gdn", "state_layout", &layout, e));
    if (strcmp(layout, "kv") != 0)
        return ERR(e, E_INPUT, "%s: dashlab.gdn.state_layout is '%.40s' (kv: the state's rows are keys)", d->file, layout);
    return 0;
}

static int read_teacher(struct mcfg *c, const struct jdoc *d, const json_t *o, struct err *e)
{
    const char *name = "", *hash = "", *run = "", *expand = "none";
    const json_t *t = json_object_get(o, "teacher");
    if (json_is_object(t)) {
        TRY(jget_str_opt(d, t, "dashlab.teacher", "name", &name, e));
        TRY(jget_str_opt(d, t, "dashlab.teacher", "sha256", &hash, e));
    }
    TRY(jget_str_opt(d, o, "dashlab", "run", &run, e));
    TRY(jget_str_opt(d, o, "dashlab", "kv_expand", &expand, e));
    struct mcfg_dashlab *s = &c->dashlab;
    if (strlen(name) >= sizeof s->teacher || strlen(hash) >= sizeof s->teacher_sha256 || strlen(run) >= sizeof s->run)
        return ERR(e, E_INPUT, "%s: dashlab.teacher or dashlab.run is too long (name below %zu bytes, hash and run below 65)", d->file,
                   sizeof s->teacher);
    strcpy(s->teacher, name);
    strcpy(s->teacher_sha256, hash);
    strcpy(s->run, run);
    if (strcmp(expand, "none") == 0)
        s->kv_expand = KV_EXPAND_NONE;
    else if (strcmp(expand, "head") == 0)
        s->kv_expand = KV_EXPAND_HEAD;
    else if (strcmp(expand, "row") == 0)
        s->kv_expand = KV_EXPAND_ROW;
    else
        return ERR(e, E_INPUT, "%s: dashlab.kv_expand is '%.40s' (none, head or row)", d->file, expand);
    return 0;
}

static int read_dashlab(struct mcfg *c, const struct jdoc *d, const json_t *o, struct err *e)
{
    const char *family = "gated_deltanet";
    const json_t *a, *g = json_object_get(o, "gdn");
    if (!json_is_object(o))
        return ERR(e, E_INPUT, "%s: dashlab: expected an object", d->file);
    c->dashlab.present = true;
    TRY(jget_i64(d, o, "dashlab", "version", 1, INT32_MAX, &c->dashlab.version, e));
    if (c->dashlab.version > MCFG_DASHLAB_VERSION)
        return ERR(e, E_INPUT, "%s: dashlab.version is %" PRId64 "; this program reads up to %d, take a newer one", d->file,
                   c->dashlab.version, MCFG_DASHLAB_VERSION);
    TRY(jget_str_opt(d, o, "dashlab", "family", &family, e));
    int arch = -1;
    for (int i = ARCH_QWEN2; i <= ARCH_GATED_DELTANET; i++)
        if (strcmp(family, mcfg_arch_name((enum mcfg_arch)i)) == 0)
            arch = i;
    if (arch < 0)
        return ERR(e, E_INPUT, "%s: dashlab.family is '%.40s' (qwen2, qwen3, llama, gated_deltanet)", d->file, family);
    c->arch = (enum mcfg_arch)arch;
    TRY(read_mixers(c, d, o, e));
    TRY(jget_bool_opt(d, o, "dashlab", "mlp_bias", &c->mlp_bias, e));
    if (cfg_is_set(o, "attention")) {
        TRY(jget_obj(d, o, "dashlab", "attention", &a, e));
        TRY(read_dash_attention(c, d, a, e));
    }
    if (g && json_is_object(g))
        TRY(read_dash_gdn(c, d, g, e));
    else
        c->gdn = (struct mcfg_gdn){0}; /* no GDN in this model: the top-level keys are fla's fillers */
    return read_teacher(c, d, o, e);
}

int cfg_read_fla(struct mcfg *c, const struct jdoc *d, struct err *e)
{
    const json_t *r = d->root;
    c->layout = LAYOUT_FLA;
    TRY(jget_i64(d, r, "", "hidden_size", 1, 1 << 17, &c->d, e));
    TRY(jget_i64(d, r, "", "num_hidden_layers", 1, MCFG_MAX_LAYERS, &c->L, e));
    TRY(jget_i64(d, r, "", "vocab_size", 1, 1 << 24, &c->N, e));
    c->max_pos = 2048;
    TRY(jget_i64_opt(d, r, "", "max_position_embeddings", 1, INT32_MAX, &c->max_pos, e));
    c->eps = 1e-6;
    TRY(jget_f64_opt(d, r, "", "norm_eps", &c->eps, e));
    TRY(jget_bool_opt(d, r, "", "tie_word_embeddings", &c->tie_embeddings, e));
    TRY(cfg_read_act(d, r, e));
    TRY(cfg_read_ids(c, d, r, e));
    TRY(read_ffn(c, d, e));
    TRY(read_gdn(c, d, e));
    cfg_rope_plain(&c->rope, 10000);
    TRY(read_attn(c, d, e));
    if (cfg_is_set(r, "dashlab"))
        return read_dashlab(c, d, json_object_get(r, "dashlab"), e);
    if (!mcfg_has(c, MIX_GDN))
        c->gdn = (struct mcfg_gdn){0};
    return 0;
}
