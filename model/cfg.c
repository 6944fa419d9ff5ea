#include "model/cfg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const arch_names[] = {[ARCH_QWEN2] = "qwen2", [ARCH_QWEN3] = "qwen3", [ARCH_LLAMA] = "llama",
                                         [ARCH_GATED_DELTANET] = "gated_deltanet"};
static const char *const mixer_names[] = {[MIX_FULL] = "full", [MIX_WINDOW] = "window", [MIX_GDN] = "gdn"};

const char *mcfg_arch_name(enum mcfg_arch a)
{
    return arch_names[a];
}

const char *mixer_name(enum mixer_kind k)
{
    return mixer_names[k];
}

bool mixer_parse(const char *s, enum mixer_kind *out)
{
    for (int i = 0; i < MIX_N_KINDS; i++)
        if (strcmp(s, mixer_names[i]) == 0) {
            *out = (enum mixer_kind)i;
            return true;
        }
    if (strcmp(s, "linear") == 0) {
        *out = MIX_GDN;
        return true;
    }
    return false;
}

int64_t mcfg_count(const struct mcfg *c, enum mixer_kind k)
{
    int64_t n = 0;
    for (int64_t l = 0; l < c->L; l++)
        n += c->mixer[l] == k;
    return n;
}

bool mcfg_has(const struct mcfg *c, enum mixer_kind k)
{
    return mcfg_count(c, k) > 0;
}

void mcfg_free(struct mcfg *c)
{
    free(c->chat_template);
    memset(c, 0, sizeof *c);
}

int mcfg_copy(struct mcfg *dst, const struct mcfg *src, struct err *e)
{
    *dst = *src;
    if (!src->chat_template)
        return 0;
    size_t n = strlen(src->chat_template) + 1;
    dst->chat_template = malloc(n);
    if (!dst->chat_template)
        return err_nomem(e, n, "chat template");
    memcpy(dst->chat_template, src->chat_template, n);
    return 0;
}

static bool rope_equal(const struct mcfg_rope *a, const struct mcfg_rope *b)
{
    return a->kind == b->kind && a->theta == b->theta && a->factor == b->factor && a->low == b->low && a->high == b->high &&
        a->original == b->original && a->attention_factor == b->attention_factor && a->beta_fast == b->beta_fast &&
        a->beta_slow == b->beta_slow && a->truncate == b->truncate && memcmp(a->factors, b->factors, sizeof a->factors) == 0;
}

static bool gdn_equal(const struct mcfg_gdn *a, const struct mcfg_gdn *b)
{
    return a->heads == b->heads && a->v_heads == b->v_heads && a->head_k_dim == b->head_k_dim && a->head_v_dim == b->head_v_dim &&
        a->conv_size == b->conv_size && a->use_gate == b->use_gate && a->allow_neg_eigval == b->allow_neg_eigval &&
        a->norm_eps == b->norm_eps;
}

static bool dashlab_equal(const struct mcfg_dashlab *a, const struct mcfg_dashlab *b)
{
    return a->present == b->present && a->version == b->version && strcmp(a->teacher, b->teacher) == 0 &&
           strcmp(a->teacher_sha256, b->teacher_sha256) == 0 && a->kv_expand == b->kv_expand && strcmp(a->run, b->run) == 0;
}

bool mcfg_equal(const struct mcfg *a, const struct mcfg *b)
{
    bool same = a->arch == b->arch && a->layout == b->layout && a->L == b->L && a->d == b->d && a->H == b->H && a->G == b->G &&
        a->head_dim == b->head_dim && a->F == b->F && a->N == b->N && a->max_pos == b->max_pos && a->eps == b->eps &&
        a->tie_embeddings == b->tie_embeddings && a->qkv_bias == b->qkv_bias && a->o_bias == b->o_bias && a->mlp_bias == b->mlp_bias &&
        a->qk_norm == b->qk_norm && a->bos == b->bos && a->pad == b->pad && a->n_eos == b->n_eos;
    for (int i = 0; same && i < a->n_eos; i++)
        same = a->eos[i] == b->eos[i];
    for (int64_t l = 0; same && l < a->L; l++)
        same = a->mixer[l] == b->mixer[l] && a->window[l] == b->window[l];
    if (!same || !rope_equal(&a->rope, &b->rope) || !gdn_equal(&a->gdn, &b->gdn) || !dashlab_equal(&a->dashlab, &b->dashlab))
        return false;
    if (!a->chat_template || !b->chat_template)
        return a->chat_template == b->chat_template;
    return strcmp(a->chat_template, b->chat_template) == 0;
}

/* ---- checks ---- */

static int range(const char *name, const char *what, int64_t v, int64_t lo, int64_t hi, struct err *e)
{
    if (v >= lo && v <= hi)
        return 0;
    return ERR(e, E_INPUT, "%s: %s is %" PRId64 " (limits %" PRId64 " to %" PRId64 ")", name, what, v, lo, hi);
}

static int check_attention(const struct mcfg *c, const char *name, struct err *e)
{
    TRY(range(name, "number of attention heads", c->H, 1, 4096, e));
    TRY(range(name, "number of key-value heads", c->G, 1, c->H, e));
    if (c->H % c->G)
        return ERR(e, E_INPUT, "%s: %" PRId64 " attention heads are not a multiple of %" PRId64 " key-value heads", name, c->H, c->G);
    TRY(range(name, "head_dim", c->head_dim, 2, MCFG_MAX_HEAD_DIM, e));
    if (c->head_dim % 2)
        return ERR(e, E_INPUT, "%s: head_dim %" PRId64 " is odd; rotary positions need an even one", name, c->head_dim);
    const struct mcfg_rope *r = &c->rope;
    if (!(r->theta > 1 && r->theta <= 1e15))
        return ERR(e, E_INPUT, "%s: rope_theta is %g (above 1, at most 1e15)", name, r->theta);
    if (!(r->factor > 0 && r->factor <= 1e9 && r->attention_factor > 0 && r->attention_factor <= 1e9))
        return ERR(e, E_INPUT, "%s: rope factor %g, attention factor %g (above 0, at most 1e9)", name, r->factor, r->attention_factor);
    if ((r->kind == ROPE_LLAMA3 || r->kind == ROPE_YARN) && !(r->original >= 1 && r->original <= 1e12))
        return ERR(e, E_INPUT, "%s: rope's original_max_position_embeddings is %g (limits 1 to 1e12)", name, r->original);
    if (r->kind == ROPE_LLAMA3 && !(r->low > 0 && r->high > r->low && r->high <= 1e9))
        return ERR(e, E_INPUT, "%s: llama3 rope with low_freq_factor %g, high_freq_factor %g (0 < low < high)", name, r->low, r->high);
    if (r->kind == ROPE_YARN && !(r->beta_slow > 0 && r->beta_fast >= r->beta_slow && r->beta_fast <= 1e9))
        return ERR(e, E_INPUT, "%s: yarn rope with beta_fast %g, beta_slow %g (0 < slow <= fast)", name, r->beta_fast, r->beta_slow);
    for (int64_t i = 0; r->kind == ROPE_FACTORS && i < c->head_dim / 2; i++)
        if (!(r->factors[i] > 0) || !finite_f32(r->factors[i]))
            return ERR(e, E_INPUT, "%s: rope factor %" PRId64 " is %g (must be above 0)", name, i, (double)r->factors[i]);
    return 0;
}

static int check_gdn(const struct mcfg *c, const char *name, struct err *e)
{
    const struct mcfg_gdn *g = &c->gdn;
    TRY(range(name, "number of GDN heads", g->heads, 1, 4096, e));
    TRY(range(name, "number of GDN value heads", g->v_heads, g->heads, 4096, e));
    if (g->v_heads % g->heads)
        return ERR(e, E_INPUT, "%s: %" PRId64 " GDN value heads are not a multiple of %" PRId64 " heads", name, g->v_heads, g->heads);
    TRY(range(name, "GDN key head_dim", g->head_k_dim, 1, MCFG_MAX_HEAD_DIM, e));
    TRY(range(name, "GDN value head_dim", g->head_v_dim, 1, MCFG_MAX_HEAD_DIM, e));
    TRY(range(name, "GDN conv_size", g->conv_size, 0, 16, e));
    if (!(g->norm_eps > 0 && g->norm_eps < 1))
        return ERR(e, E_INPUT, "%s: GDN norm_eps is %g (must lie between 0 and 1)", name, g->norm_eps);
    return 0;
}

int mcfg_check(const struct mcfg *c, const char *name, struct err *e)
{
    TRY(range(name, "number of layers", c->L, 1, MCFG_MAX_LAYERS, e));
    TRY(range(name, "hidden size", c->d, 1, 1 << 17, e));
    TRY(range(name, "intermediate size", c->F, 1, 1 << 20, e));
    TRY(range(name, "vocabulary size", c->N, 1, 1 << 24, e));
    TRY(range(name, "max_position_embeddings", c->max_pos, 1, INT32_MAX, e));
    if (!(c->eps > 0 && c->eps < 1))
        return ERR(e, E_INPUT, "%s: norm epsilon is %g (must lie between 0 and 1)", name, c->eps);
    bool gdn = false, attn = false;
    for (int64_t l = 0; l < c->L; l++) {
        gdn |= c->mixer[l] == MIX_GDN;
        attn |= c->mixer[l] != MIX_GDN;
        if (c->mixer[l] == MIX_WINDOW)
            TRY(range(name, "attention window", c->window[l], 1, INT32_MAX, e));
        else if (c->window[l])
            return ERR(e, E_INPUT, "%s: layer %" PRId64 " has a window but is '%s'", name, l, mixer_name(c->mixer[l]));
    }
    if (attn || c->H)
        TRY(check_attention(c, name, e));
    if (gdn || c->gdn.heads)
        TRY(check_gdn(c, name, e));
    return 0;
}

/* ---- rotary frequencies ---- */

static double yarn_dim(const struct mcfg *c, double rotations)
{
    return (double)c->head_dim * log(c->rope.original / (rotations * 2 * 3.14159265358979323846)) / (2 * log(c->rope.theta));
}

static void yarn_range(const struct mcfg *c, double *lo, double *hi)
{
    *lo = yarn_dim(c, c->rope.beta_fast);
    *hi = yarn_dim(c, c->rope.beta_slow);
    if (c->rope.truncate) {
        *lo = floor(*lo);
        *hi = ceil(*hi);
    }
    *lo = MAX(*lo, 0);
    *hi = MIN(*hi, (double)(c->head_dim - 1));
    if (*lo == *hi)
        *hi += 0.001; /* as the reference keeps the slope finite */
}

void cfg_inv_freq(const struct mcfg *c, float *inv_freq, float *attention_factor)
{
    const struct mcfg_rope *r = &c->rope;
    float factor = (float)r->factor, pi2 = (float)(2 * 3.14159265358979323846);
    double ylo = 0, yhi = 0;
    if (r->kind == ROPE_YARN)
        yarn_range(c, &ylo, &yhi);
    float lo = (float)ylo, slope = (float)(yhi - ylo);
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        float x = (float)(2 * i) / (float)c->head_dim;
        /* The power in double, rounded once: the float32 power of every libm is this one or its neighbour. */
        float p = (float)pow((double)(float)r->theta, (double)x), f = 1.0f / p;
        switch (r->kind) {
        case ROPE_NONE: break;
        case ROPE_LINEAR: f /= factor; break;
        case ROPE_FACTORS: f /= r->factors[i]; break;
        case ROPE_LLAMA3: {
            float w = pi2 / f, plain = f;
            if (w > (float)(r->original / r->low)) {
                f = plain / factor;
            } else if (!(w < (float)(r->original / r->high))) {
                float t = ((float)r->original / w - (float)r->low) / (float)(r->high - r->low), a = (1.0f - t) * plain / factor,
                    b = t * plain;
                f = a + b;
            }
            break;
        }
        case ROPE_YARN: {
            float ramp = ((float)i - lo) / slope;
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            float keep = 1.0f - ramp, a = 1.0f / (factor * p) * (1.0f - keep), b = f * keep;
            f = a + b;
            break;
        }
        }
        inv_freq[i] = f;
    }
    *attention_factor = (float)r->attention_factor;
}

void cfg_inv_freq_f64(const struct mcfg *c, double *inv_freq, double *attention_factor)
{
    const struct mcfg_rope *r = &c->rope;
    double lo = 0, hi = 1;
    if (r->kind == ROPE_YARN)
        yarn_range(c, &lo, &hi);
    for (int64_t i = 0; i < c->head_dim / 2; i++) {
        double f = 1 / pow(r->theta, (double)(2 * i) / (double)c->head_dim);
        switch (r->kind) {
        case ROPE_NONE: break;
        case ROPE_LINEAR: f /= r->factor; break;
        case ROPE_FACTORS: f /= (double)r->factors[i]; break;
        case ROPE_LLAMA3: {
            double w = 2 * 3.14159265358979323846 / f;
            if (w > r->original / r->low) {
                f /= r->factor;
            } else if (!(w < r->original / r->high)) {
                double t = (r->original / w - r->low) / (r->high - r->low);
                f = (1 - t) * f / r->factor + t * f;
            }
            break;
        }
        case ROPE_YARN: {
            double ramp = ((double)i - lo) / (hi - lo);
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            f = f / r->factor * ramp + f * (1 - ramp);
            break;
        }
        }
        inv_freq[i] = f;
    }
    *attention_factor = r->attention_factor;
}

/* ---- tensors ---- */

struct each {
    int (*fn)(void *ctx, const char *name, int ndim, const int64_t *shape);
    void *ctx;
    int64_t layer;
    int rc;
};

/* One tensor of `it->layer` (or of the model: layer -1). b 0 = a vector. */
static void put(struct each *it, const char *suffix, int64_t a, int64_t b)
{
    char name[256];
    int64_t shape[2] = {a, b};
    if (it->rc)
        return;
    if (it->layer < 0)
        snprintf(name, sizeof name, "%s", suffix);
    else
        snprintf(name, sizeof name, "model.layers.%" PRId64 ".%s", it->layer, suffix);
    it->rc = it->fn(it->ctx, name, b ? 2 : 1, shape);
}

static void put_conv(struct each *it, const char *suffix, int64_t rows, int64_t taps)
{
    char name[256];
    int64_t shape[3] = {rows, 1, taps};
    if (it->rc)
        return;
    snprintf(name, sizeof name, "model.layers.%" PRId64 ".%s", it->layer, suffix);
    it->rc = it->fn(it->ctx, name, 3, shape);
}

static void put_attention(struct each *it, const struct mcfg *c)
{
    int64_t q = c->H * c->head_dim, kv = c->G * c->head_dim;
    put(it, "self_attn.q_proj.weight", q, c->d);
    if (c->qkv_bias)
        put(it, "self_attn.q_proj.bias", q, 0);
    put(it, "self_attn.k_proj.weight", kv, c->d);
    if (c->qkv_bias)
        put(it, "self_attn.k_proj.bias", kv, 0);
    put(it, "self_attn.v_proj.weight", kv, c->d);
    if (c->qkv_bias)
        put(it, "self_attn.v_proj.bias", kv, 0);
    if (c->qk_norm) {
        put(it, "self_attn.q_norm.weight", c->head_dim, 0);
        put(it, "self_attn.k_norm.weight", c->head_dim, 0);
    }
    put(it, "self_attn.o_proj.weight", c->d, q);
    if (c->o_bias)
        put(it, "self_attn.o_proj.bias", c->d, 0);
}

static void put_gdn(struct each *it, const struct mcfg *c)
{
    const struct mcfg_gdn *g = &c->gdn;
    int64_t qk = g->heads * g->head_k_dim, v = g->v_heads * g->head_v_dim;
    put(it, "self_attn.q_proj.weight", qk, c->d);
    put(it, "self_attn.k_proj.weight", qk, c->d);
    put(it, "self_attn.v_proj.weight", v, c->d);
    put(it, "self_attn.a_proj.weight", g->v_heads, c->d);
    put(it, "self_attn.b_proj.weight", g->v_heads, c->d);
    put(it, "self_attn.A_log", g->v_heads, 0);
    put(it, "self_attn.dt_bias", g->v_heads, 0);
    if (g->conv_size) {
        put_conv(it, "self_attn.q_conv1d.weight", qk, g->conv_size);
        put_conv(it, "self_attn.k_conv1d.weight", qk, g->conv_size);
        put_conv(it, "self_attn.v_conv1d.weight", v, g->conv_size);
    }
    if (g->use_gate)
        put(it, "self_attn.g_proj.weight", v, c->d);
    put(it, "self_attn.o_norm.weight", g->head_v_dim, 0);
    put(it, "self_attn.o_proj.weight", c->d, v);
}

int mcfg_each_tensor(const struct mcfg *c, int (*fn)(void *ctx, const char *name, int ndim, const int64_t *shape), void *ctx)
{
    static const char *const mlp[3] = {"gate_proj", "up_proj", "down_proj"};
    struct each it = {fn, ctx, -1, 0};
    put(&it, "model.embed_tokens.weight", c->N, c->d);
    for (it.layer = 0; it.layer < c->L && !it.rc; it.layer++) {
        put(&it, "input_layernorm.weight", c->d, 0);
        if (c->mixer[it.layer] == MIX_GDN)
            put_gdn(&it, c);
        else
            put_attention(&it, c);
        put(&it, "post_attention_layernorm.weight", c->d, 0);
        for (int i = 0; i < 3; i++) {
            char name[64];
            snprintf(name, sizeof name, "mlp.%s.weight", mlp[i]);
            put(&it, name, i < 2 ? c->F : c->d, i < 2 ? c->d : c->F);
            snprintf(name, sizeof name, "mlp.%s.bias", mlp[i]);
            if (c->mlp_bias)
                put(&it, name, i < 2 ? c->F : c->d, 0);
        }
    }
    it.layer = -1;
    put(&it, "model.norm.weight", c->d, 0);
    if (!c->tie_embeddings)
        put(&it, "lm_head.weight", c->N, c->d);
    return it.rc;
}

static int add_size_of(void *ctx, const char *name, int ndim, const int64_t *shape)
{
    int64_t n = 1;
    UNUSED(name);
    for (int i = 0; i < ndim; i++)
        n *= shape[i]; /* mcfg_check's limits keep the total below 2^63 */
    *(int64_t *)ctx += n;
    return 0;
}

int64_t mcfg_params(const struct mcfg *c)
{
    int64_t n = 0;
    mcfg_each_tensor(c, add_size_of, &n);
    return n;
}

static const char *const fla_parts[][2] = { /* canonical, fla: after "model.layers.N." */
    {"input_layernorm.", "attn_norm."},
    {"post_attention_layernorm.", "mlp_norm."},
    {"self_attn.", "attn."},
};

static char *rename_part(const char *name, char dst[256], int from)
{
    static const char *const embed[2] = {"model.embed_tokens.weight", "model.embeddings.weight"};
    int to = 1 - from;
    snprintf(dst, 256, "%s", strcmp(name, embed[from]) == 0 ? embed[to] : name);
    if (strncmp(name, "model.layers.", 13) != 0)
        return dst;
    const char *rest = strchr(name + 13, '.');
    for (size_t i = 0; rest && i < ARRAY_LEN(fla_parts); i++) {
        size_t n = strlen(fla_parts[i][from]);
        if (strncmp(rest + 1, fla_parts[i][from], n) == 0)
            snprintf(dst, 256, "%.*s%s%s", (int)MIN(rest + 1 - name, 200), name, fla_parts[i][to], rest + 1 + n);
    }
    return dst;
}

char *mcfg_disk_name(enum mcfg_layout layout, const char *canonical, char dst[256])
{
    if (layout == LAYOUT_FLA)
        return rename_part(canonical, dst, 0);
    snprintf(dst, 256, "%s", canonical);
    return dst;
}

char *mcfg_canonical_name(enum mcfg_layout layout, const char *disk, char dst[256])
{
    if (layout == LAYOUT_FLA)
        return rename_part(disk, dst, 1);
    snprintf(dst, 256, "%s", disk);
    return dst;
}
