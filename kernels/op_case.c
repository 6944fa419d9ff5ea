#include "kernels/op_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/str.h"
#include "kernels/half.h"

const char *const op_names[OP_COUNT + 1] = {
#define X(op) #op,
    BACKEND_OPS(X)
#undef X
        NULL};

void op_views_any(enum op_id id, const union op_any *d, struct op_views *out)
{
    switch (id) {
#define X(op)                                                                                                                              \
    case OP_##op:                                                                                                                          \
        views_##op(&d->op, out);                                                                                                           \
        return;
        BACKEND_OPS(X)
#undef X
    case OP_COUNT:
        break;
    }
    BUG("op id %d", (int)id);
}

struct cost op_cost_any(enum op_id id, const union op_any *d)
{
    switch (id) {
#define X(op)                                                                                                                              \
    case OP_##op:                                                                                                                          \
        return cost_##op(&d->op);
        BACKEND_OPS(X)
#undef X
    case OP_COUNT:
        break;
    }
    BUG("op id %d", (int)id);
}

void op_run_any(struct backend *be, enum op_id id, const union op_any *d)
{
    switch (id) {
#define X(op)                                                                                                                              \
    case OP_##op:                                                                                                                          \
        be_##op(be, &d->op);                                                                                                               \
        return;
        BACKEND_OPS(X)
#undef X
    case OP_COUNT:
        break;
    }
    BUG("op id %d", (int)id);
}

int op_case_by_name(const char *op, enum op_id *id, struct err *e)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (!strcmp(op, op_names[i])) {
            *id = (enum op_id)i;
            return 0;
        }
    const char *near = nearest_word(op, op_names, OP_COUNT);
    return ERR(e, E_USAGE, "unknown op '%s'%s%s%s", op, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* ---- keys ---- */

static const char *key_text(struct op_case *c, const char *key)
{
    size_t n = strlen(key), used = strlen(c->known);
    char word[32];
    snprintf(word, sizeof word, " %s ", key);
    if (!strstr(c->known, word) && used + n + 2 < sizeof c->known)
        snprintf(c->known + used, sizeof c->known - used, "%s%s ", used ? "" : " ", key);
    for (const char *p = c->shape; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (!strncmp(p, key, n) && p[n] == '=')
            return p + n + 1;
    return NULL;
}
static double key_f(struct op_case *c, const char *key, double def)
{
    const char *p = key_text(c, key);
    return p ? strtod(p, NULL) : def;
}
static int64_t key_i(struct op_case *c, const char *key, int64_t def)
{
    const char *p = key_text(c, key);
    return p ? (int64_t)strtoll(p, NULL, 10) : def;
}
static int key_list(struct op_case *c, const char *key, int64_t *out, int max)
{
    const char *p = key_text(c, key);
    int n = 0;
    while (p && n < max) {
        char *end;
        out[n++] = strtoll(p, &end, 10);
        p = *end == '+' ? end + 1 : NULL;
    }
    return n;
}
static bool key_word(struct op_case *c, const char *key, const char *def, char dst[16])
{
    const char *p = key_text(c, key);
    size_t n = p ? strcspn(p, ",") : 0;
    snprintf(dst, 16, "%.*s", p ? (int)n : 15, p ? p : def);
    return p != NULL;
}

static int keys_known(const struct op_case *c, struct err *e)
{
    for (const char *p = c->shape; *p;) {
        size_t n = strcspn(p, "=,");
        char word[40];
        snprintf(word, sizeof word, " %.*s ", (int)MIN(n, 30), p);
        if (p[n] != '=' || !strstr(c->known, word))
            return ERR(e, E_USAGE, "shape '%s': '%.*s' is no key of op '%s'; it takes%s", c->shape, (int)strcspn(p, ","), p,
                       op_names[c->op], c->known);
        p += strcspn(p, ",");
        p += *p == ',';
    }
    return 0;
}

static int make_seqs(struct op_case *c, bool cache, int64_t ring, struct err *e)
{
    int64_t lens[CASE_MAX_SEQS] = {5, 64, 1}, past[CASE_MAX_SEQS] = {0}, row = 0, kv = 0;
    int n = key_list(c, "lens", lens, CASE_MAX_SEQS), np = cache ? key_list(c, "past", past, CASE_MAX_SEQS) : 0;
    if (!n)
        n = 3;
    if (np && np != n)
        return ERR(e, E_USAGE, "shape '%s': %d lens but %d past", c->shape, n, np);
    for (int i = 0; i < n; i++) {
        if (lens[i] < 0 || past[i] < 0 || lens[i] + past[i] > INT32_MAX / 128)
            return ERR(e, E_USAGE, "shape '%s': sequence %d has length %" PRId64 ", past %" PRId64, c->shape, i, lens[i], past[i]);
        c->q_off[i] = (int32_t)row;
        c->kv_off[i] = (int32_t)kv;
        c->kv_len[i] = (int32_t)(lens[i] + past[i]);
        row += lens[i];
        kv += (ring ? ring : lens[i] + past[i]) + 1; /* a row between caches that nobody owns */
    }
    c->q_off[n] = (int32_t)row;
    c->has_seqs = true;
    c->seqs = (struct seqs){.n = n, .rows = row, .q_off = c->q_off, .kv_off = np ? c->kv_off : NULL, .kv_len = np ? c->kv_len : NULL};
    return 0;
}

/* ---- one builder a family: scalars, and the names of the optional views that are present ---- */

static void opt(char *list, const char *names, bool on)
{
    if (on)
        strcat(strcat(list, names), " ");
}

static void build_dense(struct op_case *c, union op_any *d, char *have)
{
    int64_t pad = key_i(c, "pad", 0);
    if (c->op == OP_gemm) {
        struct op_gemm *g = &d->gemm;
        g->m = key_i(c, "m", 64), g->n = key_i(c, "n", 64), g->k = key_i(c, "k", 64);
        g->ta = key_i(c, "ta", 0), g->tb = key_i(c, "tb", 1), g->accumulate = key_i(c, "acc", 0);
        if (pad) {
            g->lda = (g->ta ? g->m : g->k) + pad;
            g->ldb = (g->tb ? g->k : g->n) + pad;
            g->ldc = g->n + pad;
        }
        opt(have, "bias", key_i(c, "bias", 0));
        c->chain = g->k + 2;
    } else if (c->op == OP_embed || c->op == OP_embed_bwd) {
        struct op_embed x = {.rows = key_i(c, "rows", 17), .vocab = key_i(c, "vocab", 40), .dim = key_i(c, "dim", 33)};
        if (c->op == OP_embed)
            d->embed = x;
        else
            d->embed_bwd = (struct op_embed_bwd){.rows = x.rows, .vocab = x.vocab, .dim = x.dim};
        c->chain = x.rows;
    } else if (c->op == OP_colsum) {
        d->colsum = (struct op_colsum){.rows = key_i(c, "rows", 50), .n = key_i(c, "n", 33)};
        d->colsum.ldx = d->colsum.n + pad;
        c->chain = d->colsum.rows;
    } else if (c->op == OP_gather) {
        struct op_gather *g = &d->gather;
        g->rows = key_i(c, "rows", 9), g->dim = key_i(c, "dim", 33);
        g->ldd = g->lds = g->dim + pad;
        int64_t spare = key_i(c, "index", 1) ? 3 : 0, n = (g->rows + spare - 1) * g->ldd + g->dim;
        g->dst = g->src = (struct view){NULL, DT_F32, n};
        opt(have, "di si", spare > 0);
    } else {
        static const char *const words[] = {"f32", "f64", "bf16", "f16", "i32"};
        char from[16], to[16];
        key_word(c, "from", "f32", from);
        key_word(c, "to", "bf16", to);
        d->cast.n = key_i(c, "n", 1000);
        for (int i = 0; i < 5; i++) {
            if (!strcmp(from, words[i]))
                d->cast.src.dt = (enum dtype)i;
            if (!strcmp(to, words[i]))
                d->cast.dst.dt = (enum dtype)i;
        }
    }
}

static void build_maps(struct op_case *c, union op_any *d, char *have)
{
    int64_t n = key_i(c, "n", 1000), rows = 0, dim = 0;
    if (c->op == OP_rmsnorm || c->op == OP_rmsnorm_bwd || c->op == OP_align_loss) {
        rows = key_i(c, "rows", 17);
        dim = c->chain = key_i(c, "dim", 65);
    }
    switch (c->op) {
    case OP_rmsnorm:
    case OP_rmsnorm_bwd:
        d[0].rmsnorm = (struct op_rmsnorm){.rows = rows, .dim = dim, .eps = key_f(c, "eps", 1e-6)};
        opt(have, "rstd", c->op == OP_rmsnorm_bwd || key_i(c, "rstd", 1));
        if (c->op == OP_rmsnorm_bwd) {
            d[1].rmsnorm_bwd = (struct op_rmsnorm_bwd){.rows = rows, .dim = dim, .dx_add = key_i(c, "add", 0)};
            opt(have, "dw", key_i(c, "dw", 1));
            c->chain = dim + rows;
        }
        break;
    case OP_rope:
        d->rope = (struct op_rope){
            .rows = key_i(c, "rows", 17), .heads = key_i(c, "heads", 3), .dim = key_i(c, "dim", 32), .max_pos = key_i(c, "max", 40)};
        d->rope.inverse = key_i(c, "inverse", 0);
        d->rope.ld = d->rope.heads * d->rope.dim + key_i(c, "pad", 0);
        break;
    case OP_swiglu:
        d->swiglu.n = n;
        break;
    case OP_swiglu_bwd:
        d->swiglu_bwd.n = n;
        break;
    case OP_mix:
        d->mix = (struct op_mix){
            .p = {key_f(c, "p1", 0.6), key_f(c, "p2", 0.3), key_f(c, "p3", 0.1)}, .count = (int)key_i(c, "count", 3), .n = n};
        break;
    case OP_mix_bwd:
        d->mix_bwd = (struct op_mix_bwd){
            .p = {key_f(c, "p1", 0.6), key_f(c, "p2", 0.3), key_f(c, "p3", 0.1)}, .count = (int)key_i(c, "count", 3), .n = n};
        opt(have, "dp", key_i(c, "dp", 1));
        opt(have, "dx[0] dx[1] dx[2]", key_i(c, "dx", 1));
        c->chain = n;
        break;
    case OP_axpby:
        d->axpby = (struct op_axpby){.a = key_f(c, "a", 0.7), .b = key_f(c, "b", -1.3), .n = n};
        opt(have, "x", key_i(c, "x", 1));
        break;
    case OP_align_loss:
        d->align_loss = (struct op_align_loss){.rows = rows, .dim = dim, .squared = key_i(c, "squared", 0)};
        opt(have, "ds", key_i(c, "ds", 1));
        opt(have, "w", key_i(c, "w", 1));
        break;
    case OP_adamw:
        d->adamw = (struct op_adamw){.n = n,
                                     .lr = 1e-2,
                                     .b1 = 0.9,
                                     .b2 = 0.95,
                                     .eps = key_f(c, "eps", 1e-8),
                                     .wd = key_f(c, "wd", 0.1),
                                     .gscale = key_f(c, "gscale", 0.5)};
        d->adamw.bc1 = 1 - pow(0.9, (double)key_i(c, "step", 3));
        d->adamw.bc2 = 1 - pow(0.95, (double)key_i(c, "step", 3));
        opt(have, "w_act", key_i(c, "act", 1));
        break;
    case OP_sumsq:
        d->sumsq = (struct op_sumsq){.n = n, .accumulate = key_i(c, "acc", 0)};
        c->chain = n;
        break;
    default:
        BUG("op '%s' has no builder", op_names[c->op]);
    }
}

static int build_attn(struct op_case *c, union op_any *d, char *have, struct err *e)
{
    bool bwd = c->op == OP_attn_bwd, two = key_i(c, "two", 0);
    int32_t ring = bwd ? 0 : (int32_t)key_i(c, "ring", 0);
    TRY(make_seqs(c, !bwd, ring, e));
    struct op_attn *a = &d[0].attn;
    *a = (struct op_attn){
        .seqs = &c->seqs, .h = key_i(c, "h", 4), .g = key_i(c, "g", 2), .kdim = key_i(c, "k", 16), .vdim = key_i(c, "v", 16)};
    int64_t pad = key_i(c, "pad", 0), nq = a->h * a->kdim, nk = a->g * a->kdim, nv = a->g * a->vdim;
    bool packed = key_i(c, "packed", 0);
    a->ldq = packed ? nq + nk + nv + pad : pad ? nq + pad : 0;
    a->ldk = packed ? a->ldq : pad ? nk + pad : 0;
    a->ldv = packed ? a->ldq : pad ? nv + pad : 0;
    a->window = (int32_t)key_i(c, "window", 0);
    a->window2 = (int32_t)key_i(c, "window2", 0);
    a->ring = ring;
    a->scale = key_f(c, "scale", 1 / sqrt((double)a->kdim));
    opt(have, "lse", bwd || key_i(c, "lse", 1));
    opt(have, "o2 lse2", two);
    int64_t longest = 0;
    for (int32_t i = 0; i < c->seqs.n; i++)
        longest = MAX(longest, (int64_t)seqs_kvlen(&c->seqs, i));
    c->chain = longest + a->kdim;
    if (!bwd)
        return 0;
    struct op_attn_bwd *b = &d[1].attn_bwd;
    *b = (struct op_attn_bwd){
        .seqs = &c->seqs, .h = a->h, .g = a->g, .kdim = a->kdim, .vdim = a->vdim, .ldq = a->ldq, .ldk = a->ldk, .ldv = a->ldv};
    b->window = a->window, b->window2 = a->window2, b->scale = a->scale;
    b->p1 = key_f(c, "p1", two ? 0.7 : 1);
    b->p2 = two ? key_f(c, "p2", 0.2) : 0;
    opt(have, "dp", key_i(c, "dp", 1));
    c->chain = longest * (a->h / MAX(a->g, 1)) + a->kdim;
    return 0;
}

static int build_gdn(struct op_case *c, union op_any *d, char *have, struct err *e)
{
    int64_t h = key_i(c, "h", 2), hv = key_i(c, "hv", h), k = key_i(c, "k", 16), v = key_i(c, "v", 16);
    if (c->op == OP_gdn || c->op == OP_gdn_bwd) {
        TRY(make_seqs(c, false, 0, e));
        double scale = key_f(c, "scale", 1 / sqrt((double)k));
        d[0].gdn = (struct op_gdn){.seqs = &c->seqs, .h = h, .hv = hv, .kdim = k, .vdim = v, .scale = scale};
        d[1].gdn_bwd = (struct op_gdn_bwd){.seqs = &c->seqs, .h = h, .hv = hv, .kdim = k, .vdim = v, .scale = scale};
        opt(have, "ainv hs", key_i(c, "save", 1));
        opt(have, "s_in", c->op == OP_gdn && key_i(c, "s_in", 1));
        opt(have, "s_out", c->op == OP_gdn && key_i(c, "s_out", 1));
        c->chain = 2 * GDN_CHUNK + k + v;
        return 0;
    }
    int64_t rows = key_i(c, "rows", 17);
    if (c->op == OP_gdn_prep || c->op == OP_gdn_prep_bwd) {
        bool silu = key_i(c, "silu", 1), neg = key_i(c, "neg", 0);
        d[0].gdn_prep = (struct op_gdn_prep){.rows = rows, .h = h, .hv = hv, .kdim = k, .vdim = v, .silu = silu, .neg_eigval = neg};
        d[1].gdn_prep_bwd = (struct op_gdn_prep_bwd){.rows = rows, .h = h, .hv = hv, .kdim = k, .vdim = v, .silu = silu, .neg_eigval = neg};
        opt(have, "rq rk", c->op == OP_gdn_prep_bwd || key_i(c, "save", 1));
        opt(have, "da_log ddt_bias", key_i(c, "dpar", 1));
        c->chain = k + (c->op == OP_gdn_prep_bwd ? rows : 0);
        return 0;
    }
    d[0].gdn_out = (struct op_gdn_out){.rows = rows, .hv = hv, .vdim = v, .eps = key_f(c, "eps", 1e-6)};
    d[1].gdn_out_bwd = (struct op_gdn_out_bwd){.rows = rows, .hv = hv, .vdim = v};
    opt(have, "rstd", c->op == OP_gdn_out_bwd || key_i(c, "save", 1));
    opt(have, "gate dgate", key_i(c, "gate", 1));
    opt(have, "dw", key_i(c, "dw", 1));
    c->chain = v + (c->op == OP_gdn_out_bwd ? rows * hv : 0);
    return 0;
}

static int build_conv(struct op_case *c, union op_any *d, char *have, struct err *e)
{
    TRY(make_seqs(c, false, 0, e));
    int64_t dim = key_i(c, "dim", 33), width = key_i(c, "width", 4);
    d[0].conv = (struct op_conv){.seqs = &c->seqs, .dim = dim, .width = width};
    d[1].conv_bwd = (struct op_conv_bwd){.seqs = &c->seqs, .dim = dim, .width = width};
    opt(have, "pre", c->op == OP_conv_bwd || key_i(c, "pre", 1));
    opt(have, "state", c->op == OP_conv && key_i(c, "state", 1));
    opt(have, "dw", key_i(c, "dw", 1));
    c->chain = width + (c->op == OP_conv_bwd ? c->seqs.rows : 0);
    return 0;
}

static void build_head(struct op_case *c, union op_any *d, char *have)
{
    int64_t rows = key_i(c, "rows", 7), n = 0, dim = 0;
    if (c->op == OP_topk) {
        d->topk = (struct op_topk){.rows = rows, .n = key_i(c, "n", 300), .k = key_i(c, "k", 8)};
        opt(have, "vals", key_i(c, "vals", 1));
        return;
    }
    dim = key_i(c, "dim", 32), n = key_i(c, "vocab", 301);
    bool grad = key_i(c, "grad", 1), wgrad = key_i(c, "wgrad", 1);
    if (c->op == OP_head_ce) {
        d->head_ce = (struct op_head_ce){.rows = rows, .dim = dim, .vocab = n};
        opt(have, "dh", grad);
        opt(have, "dw", wgrad);
        opt(have, "best", key_i(c, "best", 1));
    } else {
        d->head_kl =
            (struct op_head_kl){.rows = rows, .dim = dim, .vocab = n, .tau = key_f(c, "tau", 1), .skip_masked = key_i(c, "skip", 0)};
        opt(have, "dhs", grad);
        opt(have, "dws", wgrad);
    }
    opt(have, "wt", key_i(c, "wt", 1));
    c->chain = MAX(dim, n) + rows;
}

static int build(struct op_case *c, char *have, struct err *e)
{
    static const enum op_id fwd[OP_COUNT] = {/* what runs before a backward; 0 = nothing (gemm is no forward of anything) */
                                             [OP_rmsnorm_bwd] = OP_rmsnorm,   [OP_attn_bwd] = OP_attn, [OP_conv_bwd] = OP_conv,
                                             [OP_gdn_prep_bwd] = OP_gdn_prep, [OP_gdn_bwd] = OP_gdn,   [OP_gdn_out_bwd] = OP_gdn_out};
    c->n_ops = fwd[c->op] ? 2 : 1;
    c->ops[0] = fwd[c->op] ? fwd[c->op] : c->op;
    c->ops[1] = c->op;
    switch (c->op) {
    case OP_gemm:
    case OP_embed:
    case OP_embed_bwd:
    case OP_colsum:
    case OP_gather:
    case OP_cast:
        build_dense(c, c->d, have);
        return 0;
    case OP_attn:
    case OP_attn_bwd:
        return build_attn(c, c->d, have, e);
    case OP_conv:
    case OP_conv_bwd:
        return build_conv(c, c->d, have, e);
    case OP_gdn_prep:
    case OP_gdn_prep_bwd:
    case OP_gdn:
    case OP_gdn_bwd:
    case OP_gdn_out:
    case OP_gdn_out_bwd:
        return build_gdn(c, c->d, have, e);
    case OP_head_ce:
    case OP_head_kl:
    case OP_topk:
        build_head(c, c->d, have);
        return 0;
    default:
        build_maps(c, c->d, have);
        return 0;
    }
}

/* ---- tensors from the view lists ---- */

int op_case_find(const struct op_case *c, const char *name)
{
    for (int i = 0; i < c->n_t; i++)
        if (!strcmp(c->t[i].name, name))
            return i;
    return -1;
}

static bool listed(const char *list, const char *name)
{
    char word[32];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(list, word) != NULL;
}

/* Marks required and wished views present (p = 1): twice, because presence of one may demand another. */
static void mark_present(struct op_case *c, const char *have)
{
    for (int k = 0; k < c->n_ops; k++)
        for (int pass = 0; pass < 2; pass++) {
            struct op_views o;
            op_views_any(c->ops[k], &c->d[k], &o);
            for (int i = 0; i < o.n; i++)
                if (o.v[i].required || listed(have, o.v[i].name)) {
                    struct view *v = (struct view *)((char *)&c->d[k] + ((const char *)o.v[i].v - (const char *)&c->d[k]));
                    v->p = &c->d[k]; /* any non-NULL address */
                }
        }
}

static int collect(struct op_case *c, struct err *e)
{
    for (int k = 0; k < c->n_ops; k++) {
        struct op_views o;
        op_views_any(c->ops[k], &c->d[k], &o);
        if (o.bad[0])
            return ERR(e, E_USAGE, "shape '%s' of op '%s': %s", c->shape, op_names[c->op], o.bad);
        for (int i = 0; i < o.n; i++) {
            if (!o.v[i].v->p || op_case_find(c, o.v[i].name) >= 0)
                continue;
            if (c->n_t == CASE_MAX_TENSORS)
                BUG("op '%s' needs too many tensors", op_names[c->op]);
            struct case_tensor *t = &c->t[c->n_t];
            *t = (struct case_tensor){.cls = o.v[i].cls,
                                      .role = o.v[i].role,
                                      .any_dt = o.v[i].v->dt,
                                      .rows = o.v[i].rows,
                                      .width = o.v[i].width,
                                      .ld = o.v[i].ld};
            snprintf(t->name, sizeof t->name, "%s", o.v[i].name);
            t->home = c->n_t++;
            t->opaque = !strcmp(t->name, "ainv");
            size_t n = (size_t)(t->rows * t->width);
            t->x = calloc(n + 1, sizeof *t->x);
            if (!t->x)
                return err_nomem(e, n * sizeof *t->x, "the values of a case");
        }
    }
    return 0;
}

static void share(struct op_case *c, const char *name, const char *home, int64_t off)
{
    int a = op_case_find(c, name), b = op_case_find(c, home);
    if (a < 0 || b < 0)
        return;
    c->t[a].home = b;
    c->t[a].off = off;
}

/* Tensors that live in each other's buffer: permitted aliases and q | k | v side by side. */
static void place(struct op_case *c)
{
    static const enum op_id may[] = {OP_rmsnorm, OP_gdn_out, OP_swiglu, OP_swiglu_bwd, OP_mix_bwd, OP_gdn};
    int64_t alias = 0;
    for (size_t i = 0; i < ARRAY_LEN(may); i++)
        alias = c->op == may[i] ? key_i(c, "alias", 0) : alias;
    if (alias) {
        share(c, "y", c->op == OP_rmsnorm ? "x" : "o", 0);
        share(c, "h", "g", 0);
        share(c, "dg", alias == 1 ? "dh" : "g", 0);
        if (alias == 2)
            share(c, "du", "u", 0);
        share(c, "dx[0]", "x[0]", 0);
        share(c, "dx[1]", "x[1]", 0);
        share(c, "s_out", "s_in", 0);
    }
    bool attn = c->op == OP_attn || c->op == OP_attn_bwd;
    if (!attn || !key_i(c, "packed", 0) || c->seqs.kv_off)
        return;
    const struct op_attn *a = &c->d[0].attn;
    share(c, "k", "q", a->h * a->kdim);
    share(c, "v", "q", (a->h + a->g) * a->kdim);
    share(c, "dk", "dq", a->h * a->kdim);
    share(c, "dv", "dq", (a->h + a->g) * a->kdim);
}

/* ---- values ---- */

enum { VALUES_PERIOD = (1 << 22) + 15 }; /* larger tensors repeat themselves: making values must not take longer than the benchmark */

static double *values(struct op_case *c, const char *name, int64_t *n)
{
    int i = op_case_find(c, name);
    *n = i < 0 ? 0 : c->t[i].rows * c->t[i].width;
    return i < 0 ? NULL : c->t[i].x;
}
static void map_normal(struct op_case *c, const char *name, double mean, double sd)
{
    int64_t n;
    double *x = values(c, name, &n);
    for (int64_t i = 0; i < n; i++)
        x[i] = mean + sd * x[i]; /* x holds unit normals */
}
static void map_uniform(struct op_case *c, const char *name, double lo, double hi)
{
    int64_t n;
    double *x = values(c, name, &n);
    for (int64_t i = 0; i < n; i++)
        x[i] = i < VALUES_PERIOD ? lo + (hi - lo) * ctr_uniform(c->seed, 1000 + (uint64_t)name[0], (uint64_t)i) : x[i - VALUES_PERIOD];
}
static void map_ids(struct op_case *c, const char *name, int64_t limit, bool neg)
{
    int64_t n;
    double *x = values(c, name, &n);
    for (int64_t i = 0; i < n; i++)
        x[i] = neg && i % 4 == 1 ? -1 : (double)ctr_below(c->seed, 2000 + (uint64_t)name[0], (uint64_t)i, (uint64_t)MAX(limit, 1));
}
static void unit_rows(double *x, int64_t rows, int64_t n)
{
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += x[r * n + i] * x[r * n + i];
        sum = sum > 0 ? 1 / sqrt(sum) : 1;
        for (int64_t i = 0; i < n; i++)
            x[r * n + i] *= sum;
    }
}
/* to = from + near * to */
static void map_near(struct op_case *c, const char *to, const char *from, double near)
{
    int64_t n, m;
    double *x = values(c, to, &n), *y = values(c, from, &m);
    for (int64_t i = 0; i < n && i < m; i++)
        x[i] = y[i] + near * x[i];
}

static void values_gdn(struct op_case *c)
{
    bool parallel = key_i(c, "parallel", 0), spike = key_i(c, "spike", 0);
    int64_t h = c->d[0].gdn.h, hv = c->d[0].gdn.hv, kd = c->d[0].gdn.kdim, n;
    double *q = values(c, "q", &n), *k = values(c, "k", &n), *g;
    if (parallel) /* cosine near 0.999 to one direction, as trained keys can be */
        for (int64_t i = 0; i < n; i++)
            k[i] = 1 + 0.04 * k[i];
    unit_rows(k, n / MAX(kd, 1), kd);
    unit_rows(q, n / MAX(kd, 1), kd);
    map_uniform(c, "beta", parallel ? 0.95 : 0, key_i(c, "neg", 0) ? 2 : 1);
    map_uniform(c, "g", parallel ? -0.01 : -0.3, 0);
    g = values(c, "g", &n);
    for (int64_t i = 0; spike && i < n; i++)
        if (i / hv % 7 == i % hv % 7) /* another token for each head */
            g[i] = -30;
    map_normal(c, "s_in", 0, 0.3);
    UNUSED(h);
}

static void values_prep(struct op_case *c)
{
    int64_t n;
    map_normal(c, "a_lin", 0, 2);
    map_normal(c, "b_lin", 0, 2);
    map_uniform(c, "a_log", -2, 2.7);
    map_uniform(c, "dt_bias", -6, -1);
    double *a = values(c, "a_lin", &n);
    for (int64_t i = 0; key_i(c, "big", 0) && i < n; i++)
        if (i % 5 == 0)
            a[i] += 30; /* softplus beyond 20 */
}

static void values_head(struct op_case *c)
{
    int64_t dim = c->op == OP_head_ce ? c->d->head_ce.dim : c->d->head_kl.dim, n;
    double sharp = key_f(c, "sharp", 1) / sqrt((double)MAX(dim, 1)), near = c->op == OP_head_kl ? key_f(c, "near", 0.3) : 0;
    map_normal(c, c->op == OP_head_ce ? "w" : "ws", 0, sharp);
    map_near(c, "ht", "hs", near);
    map_normal(c, "wt_head", 0, sharp);
    map_near(c, "wt_head", "ws", near);
    map_uniform(c, "wt", 0, 1);
    double *wt = values(c, "wt", &n);
    for (int64_t i = 2; i < n; i += 3)
        wt[i] = 0;
    if (c->op != OP_head_ce)
        return;
    map_ids(c, "target", c->d->head_ce.vocab, key_i(c, "ignore", 1));
    double *w = values(c, "w", &n); /* every id twice, so that each maximum is a tie */
    for (int64_t i = 0; key_i(c, "ties", 0) && i < n; i++)
        if (i / dim % 2)
            w[i] = w[i - dim];
}

static void values_rope(struct op_case *c)
{
    int64_t n, half = c->d->rope.dim / 2;
    double *cs = values(c, "cos", &n), *sn = values(c, "sin", &n);
    for (int64_t i = 0; i < n; i++) {
        double angle = (double)(i / half) * pow(10000, -(double)(i % half) / (double)half);
        cs[i] = cos(angle);
        sn[i] = sin(angle);
    }
    map_ids(c, "pos", c->d->rope.max_pos, false);
}

/* Rows of a gather: distinct targets, any sources. */
static void values_gather(struct op_case *c)
{
    int64_t n, rows = c->d->gather.rows;
    double *di = values(c, "di", &n);
    for (int64_t i = 0; i < n; i++)
        di[i] = (double)((i * 2 + 1) % (rows + 3 - (rows + 3) % 2 + 1)); /* step 2 in an odd ring: all different */
    map_ids(c, "si", rows + 3, false);
}

static void fill_values(struct op_case *c)
{
    for (int t = 0; t < c->n_t; t++)
        for (int64_t i = 0; c->t[t].role != VIEW_OUT && i < c->t[t].rows * c->t[t].width; i++)
            c->t[t].x[i] = i < VALUES_PERIOD ? ctr_normal(c->seed, (uint64_t)t, (uint64_t)i) : c->t[t].x[i - VALUES_PERIOD];
    int64_t n;
    double *x;
    switch (c->op) {
    case OP_embed:
    case OP_embed_bwd:
        map_ids(c, "ids", c->op == OP_embed ? c->d->embed.vocab : c->d->embed_bwd.vocab, false);
        break;
    case OP_rmsnorm:
    case OP_rmsnorm_bwd:
    case OP_gdn_out:
    case OP_gdn_out_bwd:
        map_normal(c, "w", 1, 0.3);
        break;
    case OP_rope:
        values_rope(c);
        break;
    case OP_attn:
    case OP_attn_bwd:
        map_normal(c, "q", 0, key_f(c, "qscale", 1));
        break;
    case OP_gdn_prep:
    case OP_gdn_prep_bwd:
        values_prep(c);
        break;
    case OP_gdn:
    case OP_gdn_bwd:
        values_gdn(c);
        break;
    case OP_gather:
        values_gather(c);
        break;
    case OP_head_ce:
    case OP_head_kl:
        values_head(c);
        break;
    case OP_align_loss:
        map_near(c, "t", "s", key_f(c, "near", 1));
        map_uniform(c, "w", 0, 1);
        if (key_i(c, "equal", 0)) { /* first row: student equals teacher; its weight stays */
            x = values(c, "t", &n);
            if (c->d->align_loss.rows)
                memcpy(x, values(c, "s", &n), (size_t)c->d->align_loss.dim * sizeof *x);
        }
        break;
    case OP_topk:
        x = values(c, "z", &n);
        for (int64_t i = 0; i < n; i++)
            x[i] = rint(x[i] * 4) / 4; /* ties */
        break;
    case OP_adamw:
        map_uniform(c, "v", 0, 1);
        break;
    case OP_cast:
        x = values(c, "src", &n);
        for (int64_t i = 0; i < n; i++)
            x[i] = c->d->cast.src.dt == DT_I32 ? rint(1000 * x[i]) : ldexp(x[i], (int)(i % 40) - 30); /* down to subnormal halves */
        break;
    default:
        break;
    }
}

int op_case_make(struct op_case *c, const char *op, const char *shape, uint64_t seed, struct err *e)
{
    char have[200] = " ";
    memset(c, 0, sizeof *c);
    TRY(op_case_by_name(op, &c->op, e));
    if (strlen(shape ? shape : "") >= sizeof c->shape)
        return ERR(e, E_USAGE, "shape of op '%s' is longer than %zu bytes", op, sizeof c->shape - 1);
    snprintf(c->shape, sizeof c->shape, "%s", shape ? shape : "");
    c->seed = seed;
    c->chain = 1;
    TRY(build(c, have, e));
    mark_present(c, have);
    if (collect(c, e) != 0) {
        op_case_free(c);
        return -1;
    }
    place(c);
    fill_values(c);
    if (keys_known(c, e) != 0) {
        op_case_free(c);
        return -1;
    }
    return 0;
}

void op_case_free(struct op_case *c)
{
    for (int i = 0; i < c->n_t; i++)
        free(c->t[i].x);
    c->n_t = 0;
}

struct cost op_case_cost(const struct op_case *c)
{
    return op_cost_any(c->op, &c->d[c->n_ops - 1]);
}
