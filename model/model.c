/* Building a model: parameters, layers, weights from a checkpoint, rotary tables. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/rng.h"
#include "kernels/ops.h"
#include "model/ckfile.h"
#include "model/model_int.h"
#include "model/tok.h"
#include "model/tok_open.h"

#define ROPE_ROWS_FIRST 2048
#define LOAD_PIECE_BYTES (16u << 20)

/* ---- parameters ---- */

/* One tensor of a module: `spec` under `prefix`; src NULL, or the same tensor elsewhere. */
static int add_param(struct params *l, const struct mixer_param *spec, const char *prefix, int64_t layer, enum param_group group,
                     const struct param *src, bool copy, bool trainable, struct param **out, struct err *e)
{
    struct param like = {.ndim = spec->ndim, .layer = layer, .group = group, .decay = spec->decay, .trainable = trainable, .n = 1};
    if (snprintf(like.name, sizeof like.name, "%s%s", prefix, spec->suffix) >= (int)sizeof like.name)
        BUG("parameter name '%s%s' is too long", prefix, spec->suffix);
    for (int i = 0; i < spec->ndim; i++) {
        like.dims[i] = spec->dims[i];
        if (!mul_i64(like.n, spec->dims[i], &like.n))
            return ERR(e, E_INPUT, "parameter '%s' has too many elements", like.name);
    }
    like.w.dt = spec->stat ? l->be->stat : l->be->act;
    if (src && (src->ndim != like.ndim || memcmp(src->dims, like.dims, sizeof like.dims) != 0))
        return ERR(e, E_USAGE, "parameter '%s': shapes differ from those of '%s' in the source model", like.name, src->name);
    TRY(params_add(l, &like, copy ? NULL : src, out, e));
    if (src && copy)
        be_copy(l->be, (*out)->w, src->w);
    return 0;
}

int mixer_build(struct mixer *x, const struct mixer_type *t, const struct mcfg *c, int64_t layer, const char *prefix, struct params *l,
                const struct mixer *src, bool copy, bool trainable, struct err *e)
{
    struct mixer_param spec[MIXER_MAX_PARAMS];
    *x = (struct mixer){.type = t, .layer = layer};
    t->shape(c, layer, &x->s);
    int n = t->params(&x->s, spec);
    for (int i = 0; i < n; i++)
        if (spec[i].present) {
            if (src && !src->p[i])
                return ERR(e, E_USAGE, "layer %" PRId64 ": the source mixer has no '%s'", layer, spec[i].suffix);
            TRY(add_param(l, &spec[i], prefix, layer, PG_MIXER, src ? src->p[i] : NULL, copy, trainable, &x->p[i], e));
        }
    return 0;
}

static int build_layer(struct model *m, int64_t l, unsigned ops, const struct build_from *from, bool trainable, struct err *e)
{
    const struct mcfg *c = &m->cfg;
    struct layer *y = &m->layer[l];
    const struct layer *t = from->teacher ? &from->teacher->layer[l] : NULL;
    const struct mixer_param norm1 = {"input_layernorm.weight", 1, {c->d}, true, false, false},
                             norm2 = {"post_attention_layernorm.weight", 1, {c->d}, true, false, false};
    const unsigned attn_bits = MIX_BIT(MIX_FULL) | MIX_BIT(MIX_WINDOW);
    char at[64], prefix[96];
    y->ops = ops;
    for (int k = 0; k < MIX_N_KINDS; k++)
        y->p[k] = 1;
    snprintf(at, sizeof at, "model.layers.%" PRId64 ".", l);
    TRY(add_param(&m->params, &norm1, at, l, PG_MIXER, t ? t->norm1 : NULL, from->copy, trainable, &y->norm1, e));
    if (ops & attn_bits) {
        if (t && !t->attn)
            return ERR(e, E_USAGE, "layer %" PRId64 " of the source model has no attention; it cannot be full or window", l);
        snprintf(prefix, sizeof prefix, "%sself_attn.", at);
        TRY(mixer_build(&y->mem_attn, &mixer_attn, c, l, prefix, &m->params, t ? t->attn : NULL, from->copy, trainable, e));
        y->attn = &y->mem_attn;
    }
    if (ops & ~attn_bits) {
        const struct mixer *src = from->lin ? &from->lin->mixer[l] : t ? t->lin : NULL;
        if (t && !src)
            return ERR(e, E_USAGE, "layer %" PRId64 " is to be linear, but no linear mixers are given", l);
        snprintf(prefix, sizeof prefix, "%s%s.", at, y->attn ? "linear_attn" : "self_attn");
        TRY(mixer_build(&y->mem_lin, src ? src->type : mixer_type_of(MIX_GDN), c, l, prefix, &m->params, src, from->copy, trainable, e));
        y->lin = &y->mem_lin;
    }
    TRY(add_param(&m->params, &norm2, at, l, PG_REST, t ? t->norm2 : NULL, from->copy, trainable, &y->norm2, e));
    struct mixer_param spec[FFN_MAX_PARAMS];
    y->ffn = (struct ffn){.type = &ffn_dense, .layer = l, .d = c->d, .f = c->F, .bias = c->mlp_bias};
    int n = y->ffn.type->params(&y->ffn, spec);
    snprintf(prefix, sizeof prefix, "%smlp.", at);
    for (int i = 0; i < n; i++)
        if (spec[i].present)
            TRY(add_param(&m->params, &spec[i], prefix, l, PG_REST, t ? t->ffn.p[i] : NULL, from->copy, trainable, &y->ffn.p[i], e));
    return 0;
}

int model_build(struct model *m, const unsigned *ops, const struct build_from *from, bool trainable, struct err *e)
{
    const struct mcfg *c = &m->cfg;
    const struct model *t = from->teacher;
    const struct mixer_param embed = {"embed_tokens.weight", 2, {c->N, c->d}, true, false, true},
                             norm = {"norm.weight", 1, {c->d}, true, false, false},
                             head = {"lm_head.weight", 2, {c->N, c->d}, true, false, true};
    m->params.be = m->be;
    m->layer = calloc((size_t)c->L, sizeof *m->layer);
    if (!m->layer)
        return err_nomem(e, (size_t)c->L * sizeof *m->layer, "the layers");
    TRY(add_param(&m->params, &embed, "model.", -1, PG_REST, t ? t->embed : NULL, from->copy, trainable, &m->embed, e));
    for (int64_t l = 0; l < c->L; l++)
        TRY(build_layer(m, l, ops[l], from, trainable, e));
    TRY(add_param(&m->params, &norm, "model.", -1, PG_REST, t ? t->norm : NULL, from->copy, trainable, &m->norm, e));
    m->head = m->embed;
    if (!c->tie_embeddings)
        TRY(add_param(&m->params, &head, "", -1, PG_REST, t ? t->head : NULL, from->copy, trainable, &m->head, e));
    if (t) {
        m->rope = t->rope;
        m->rope->refs++;
        return 0;
    }
    return model_rope_make(&m->rope, m->be, c, MIN(c->max_pos, (int64_t)ROPE_ROWS_FIRST), e);
}

void model_close(struct model *m)
{
    if (!m)
        return;
    params_free(&m->params);
    rope_drop(m->be, m->rope);
    if (!m->borrows_tok)
        tok_free(m->tok);
    free(m->layer);
    mcfg_free(&m->cfg);
    free(m);
}

static int model_alloc(struct model **out, struct backend *be, const struct mcfg *cfg, struct err *e)
{
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return err_nomem(e, sizeof *m, "a model");
    m->be = be;
    m->params.be = be;
    if (mcfg_copy(&m->cfg, cfg, e) != 0) {
        free(m);
        return -1;
    }
    *out = m;
    return 0;
}

static void cfg_ops(const struct mcfg *c, unsigned *ops)
{
    for (int64_t l = 0; l < c->L; l++)
        ops[l] = MIX_BIT(c->mixer[l]);
}

/* ---- loading ---- */

static int load_param(struct backend *be, const struct ckfile *k, const struct param *p, float *buf, struct err *e)
{
    const struct ck_tensor *t = ckfile_find(k, p->name);
    if (!t)
        return ERR(e, E_INPUT, "tensor '%s' is missing", p->name);
    if (t->n != p->n)
        return ERR(e, E_INPUT, "tensor '%s' has %" PRId64 " values, the configuration asks for %" PRId64, t->name, t->n, p->n);
    int64_t rows = p->dims[0], width = p->n / rows, step = MAX((int64_t)(LOAD_PIECE_BYTES / sizeof *buf) / width, 1);
    for (int64_t r = 0; r < rows; r += step) {
        int64_t n = MIN(step, rows - r);
        TRY(ckfile_read_rows_f32(k, t, r, n, buf, e));
        TRY(put_f32(be, view_at(p->w, r * width, n * width), buf, e));
    }
    return 0;
}

static int load_all(struct model *m, const struct ckfile *k, struct err *e)
{
    int64_t widest = 1;
    for (size_t i = 0; i < m->params.n; i++)
        widest = MAX(widest, m->params.v[i]->n / m->params.v[i]->dims[0]);
    size_t bytes = MAX((size_t)widest * sizeof(float), (size_t)LOAD_PIECE_BYTES);
    float *buf = malloc(bytes);
    if (!buf)
        return err_nomem(e, bytes, "reading weights");
    int rc = 0;
    for (size_t i = 0; i < m->params.n && rc == 0; i++)
        rc = load_param(m->be, k, m->params.v[i], buf, e);
    free(buf);
    return rc;
}

static int open_from(struct model **out, struct backend *be, struct ckfile *k, const char *path, const struct model_open_opts *o,
                     struct err *e)
{
    const struct mcfg *c = ckfile_cfg(k);
    if (!c)
        return ERR(e, E_INPUT, "no model configuration: %s", ckfile_cfg_why(k));
    TRY(ckfile_match(k, c, e));
    struct model *m;
    unsigned ops[MCFG_MAX_LAYERS];
    TRY(model_alloc(&m, be, c, e));
    cfg_ops(c, ops);
    snprintf(m->path, sizeof m->path, "%s", path);
    snprintf(m->tok_path, sizeof m->tok_path, "%s", o->tokenizer ? o->tokenizer : path);
    int rc = model_build(m, ops, &(struct build_from){0}, o->trainable, e);
    if (rc == 0)
        rc = load_all(m, k, e);
    if (rc == 0 && o->want_tokenizer)
        rc = tok_open(&m->tok, m->tok_path, o->pretok, e);
    if (rc == 0 && m->tok && tok_vocab_size(m->tok) > m->cfg.N)
        rc = ERR(e, E_INPUT, "the tokenizer has %d ids, the embedding only %" PRId64 " rows", (int)tok_vocab_size(m->tok), m->cfg.N);
    if (rc != 0) {
        model_close(m);
        return -1;
    }
    *out = m;
    return 0;
}

int model_open(struct model **out, struct backend *be, const char *path, const struct model_open_opts *o, struct err *e)
{
    static const struct model_open_opts plain = {0};
    struct ckfile *k;
    if (strlen(path) >= sizeof((struct model *)0)->path)
        return ERR(e, E_INPUT, "path of %zu bytes is too long", strlen(path));
    TRY(ckfile_open(&k, path, e));
    int rc = open_from(out, be, k, path, o ? o : &plain, e);
    ckfile_close(k);
    return rc == 0 ? 0 : err_wrap(e, "model '%s'", path);
}

int model_hash(struct model *m, const char **hex, struct err *e)
{
    if (!m->sha256[0]) {
        struct ckfile *k;
        if (!m->path[0])
            return ERR(e, E_USAGE, "a model made in memory has no file to take the hash of");
        TRY(ckfile_open(&k, m->path, e));
        int rc = ckfile_weights_sha256(k, m->sha256, e);
        ckfile_close(k);
        if (rc != 0) {
            m->sha256[0] = 0;
            return -1;
        }
    }
    *hex = m->sha256;
    return 0;
}

int model_new(struct model **out, struct backend *be, const struct mcfg *cfg,
              int (*init)(void *ctx, const struct param *p, float *w, struct err *e), void *ctx, struct err *e)
{
    struct model *m;
    unsigned ops[MCFG_MAX_LAYERS];
    TRY(mcfg_check(cfg, "model", e));
    TRY(model_alloc(&m, be, cfg, e));
    cfg_ops(cfg, ops);
    int rc = model_build(m, ops, &(struct build_from){0}, true, e);
    for (size_t i = 0; init && i < m->params.n && rc == 0; i++) {
        const struct param *p = m->params.v[i];
        float *w = calloc((size_t)p->n, sizeof *w);
        rc = w ? init(ctx, p, w, e) : err_nomem(e, (size_t)p->n * sizeof *w, p->name);
        if (rc == 0)
            rc = put_f32(be, p->w, w, e);
        free(w);
    }
    if (rc != 0) {
        model_close(m);
        return -1;
    }
    *out = m;
    return 0;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

enum { INIT_PIECE = 1 << 16 };
struct init_piece {
    const struct init_normal *o;
    const struct param *p;
    float *w;
};

static void init_piece(void *ctx, int64_t item, int worker)
{
    const struct init_piece *c = ctx;
    const struct init_normal *o = c->o;
    const struct param *p = c->p;
    float *w = c->w;
    uint64_t stream = param_stream(p->name);
    UNUSED(worker);
    for (int64_t i = item * INIT_PIECE; i < MIN((item + 1) * INIT_PIECE, p->n); i++) {
        double u = ctr_uniform(o->seed, stream, (uint64_t)i);
        if (ends_with(p->name, "A_log"))
            w[i] = (float)log(fmax(16 * u, 1e-4));
        else if (ends_with(p->name, "dt_bias")) {
            double dt = exp(log(1e-3) + u * log(100.0));
            w[i] = (float)(dt + log(-expm1(-dt)));
        } else if (ends_with(p->name, "norm.weight"))
            w[i] = 1;
        else if (ends_with(p->name, ".bias"))
            w[i] = 0;
        else
            w[i] = (float)(ctr_normal(o->seed, stream, (uint64_t)i) * o->std);
    }
}

int model_init_normal(void *ctx, const struct param *p, float *w, struct err *e)
{
    const struct init_normal *o = ctx;
    struct init_piece c = {o, p, w};
    UNUSED(e);
    pool_run(o->pool, CEIL_DIV(p->n, (int64_t)INIT_PIECE), init_piece, &c);
    return 0;
}

/* ---- operators ---- */

int model_set_ops(struct model *m, int64_t layer, unsigned ops, const double *p, int64_t window, struct err *e)
{
    struct layer *y = &m->layer[layer];
    const unsigned attn_bits = MIX_BIT(MIX_FULL) | MIX_BIT(MIX_WINDOW);
    if (!ops || ((ops & attn_bits) && !y->attn) || ((ops & ~attn_bits) && !y->lin))
        return ERR(e, E_USAGE, "layer %" PRId64 " does not have the mixers for operators %#x", layer, ops);
    if (window > 0) {
        m->cfg.window[layer] = window;
        if (y->attn)
            y->attn->s.window = window;
    }
    if ((ops & MIX_BIT(MIX_WINDOW)) && y->attn->s.window < 1)
        return ERR(e, E_USAGE, "layer %" PRId64 " needs a window size", layer);
    int n = 0;
    for (int k = 0; k < MIX_N_KINDS; k++)
        n += (ops >> k) & 1;
    if (n > 1 && y->attn && y->attn->s.o_bias)
        return ERR(e, E_USAGE, "layer %" PRId64 ": a mixture of operators with a bias on the output projection is not possible", layer);
    y->ops = ops;
    for (int k = 0; k < MIX_N_KINDS; k++) {
        y->p[k] = p ? p[k] : 1.0 / n;
        if (n == 1 && ops == MIX_BIT(k))
            m->cfg.mixer[layer] = (enum mixer_kind)k;
    }
    if (!(ops & MIX_BIT(MIX_WINDOW)))
        m->cfg.window[layer] = 0;
    else
        m->cfg.window[layer] = y->attn->s.window;
    return 0;
}

/* ---- rotary tables ---- */

void rope_drop(struct backend *be, struct rope *r)
{
    if (r && --r->refs == 0) {
        be_view_free(be, &r->cos);
        be_view_free(be, &r->sin);
        free(r);
    }
}

static int rope_put(struct rope **out, struct backend *be, const double *cos_t, const double *sin_t, int64_t rows, int64_t half,
                    struct err *e)
{
    struct rope *r = calloc(1, sizeof *r);
    int64_t n = rows * half;
    float *tmp = malloc((size_t)n * sizeof *tmp);
    int rc = r && tmp ? 0 : err_nomem(e, (size_t)n * sizeof *tmp, "rotary tables");
    if (rc == 0)
        rc = be_view(be, be->stat, n, &r->cos, e) || be_view(be, be->stat, n, &r->sin, e) ? -1 : 0;
    for (int pass = 0; pass < 2 && rc == 0; pass++) {
        const double *src = pass ? sin_t : cos_t;
        struct view dst = pass ? r->sin : r->cos;
        if (be->stat == DT_F64) {
            be_put(be, dst, src);
            rc = be_sync(be, e);
            continue;
        }
        for (int64_t i = 0; i < n; i++)
            tmp[i] = (float)src[i];
        rc = put_f32(be, dst, tmp, e);
    }
    free(tmp);
    if (r) {
        r->rows = rows;
        r->refs = 1;
    }
    if (rc != 0) {
        rope_drop(be, r);
        return -1;
    }
    *out = r;
    return 0;
}

int model_rope_make(struct rope **out, struct backend *be, const struct mcfg *c, int64_t rows, struct err *e)
{
    int64_t half = c->head_dim / 2;
    float f[MCFG_MAX_HEAD_DIM / 2], factor;
    cfg_inv_freq(c, f, &factor);
    double *t = malloc((size_t)(2 * rows * half) * sizeof *t);
    if (!t)
        return err_nomem(e, (size_t)(2 * rows * half) * sizeof *t, "rotary tables");
    for (int64_t pos = 0; pos < rows; pos++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)((float)pos * f[i]); /* the angle is a float32 product in the reference, and so are cos and sin */
            t[pos * half + i] = (double)((float)cos(angle) * factor);
            t[(rows + pos) * half + i] = (double)((float)sin(angle) * factor);
        }
    int rc = rope_put(out, be, t, t + rows * half, rows, half, e);
    free(t);
    return rc;
}

int model_set_rope(struct model *m, const double *cos_t, const double *sin_t, int64_t rows, struct err *e)
{
    struct rope *r;
    TRY(rope_put(&r, m->be, cos_t, sin_t, rows, m->cfg.head_dim / 2, e));
    rope_drop(m->be, m->rope);
    m->rope = r;
    return 0;
}

int model_need_pos(struct model *m, int64_t rows, struct err *e)
{
    if (rows <= m->rope->rows)
        return 0;
    if (rows > m->cfg.max_pos)
        log_warn_once("max_pos", "position %" PRId64 " is beyond the model's max_position_embeddings of %" PRId64
                      ": it was not trained for such lengths, answers there are likely wrong",
                      rows - 1,
                      m->cfg.max_pos);
    int64_t n = m->rope->rows;
    while (n < rows)
        n *= 2;
    struct rope *r;
    TRY(model_rope_make(&r, m->be, &m->cfg, n, e));
    rope_drop(m->be, m->rope);
    m->rope = r;
    return 0;
}
