/*
 * Softmax attention with rotary positions: full and windowed, one set of weights. o_F and o_W come out of one pass; both are mixed before
 * the output projection [kernels.md 3.3]: y = (p_F o_F + p_W o_W) W_o^T. Backward: D = dy W_o, dp_F = <D, o_F>, dp_W = <D, o_W>.
 */
#include "model/cache.h"
#include "model/mixer.h"

#include <math.h>

#include "kernels/ops.h"
#include "kernels/step.h"

enum { P_Q, P_K, P_V, P_O, P_QB, P_KB, P_VB, P_OB, P_QN, P_KN, P_COUNT };
enum { S_Q, S_K, S_V, S_O1, S_O2, S_LSE1, S_LSE2, S_QPRE, S_KPRE, S_RQ, S_RK };

static void attn_shape(const struct mcfg *c, int64_t layer, struct mixer_shape *s)
{
    *s = (struct mixer_shape){.d = c->d,
                              .h = c->H,
                              .g = c->G,
                              .kdim = c->head_dim,
                              .vdim = c->head_dim,
                              .window = c->window[layer],
                              .eps = c->eps,
                              .qkv_bias = c->qkv_bias,
                              .o_bias = c->o_bias,
                              .qk_norm = c->qk_norm};
}

static int attn_params(const struct mixer_shape *s, struct mixer_param out[MIXER_MAX_PARAMS])
{
    const int64_t q = s->h * s->kdim, k = s->g * s->kdim, v = s->g * s->vdim, o = s->h * s->vdim;
    const struct mixer_param list[P_COUNT] = {
        [P_Q] = {"q_proj.weight", 2, {q, s->d}, true, false, true},
        [P_K] = {"k_proj.weight", 2, {k, s->d}, true, false, true},
        [P_V] = {"v_proj.weight", 2, {v, s->d}, true, false, true},
        [P_O] = {"o_proj.weight", 2, {s->d, o}, true, false, true},
        [P_QB] = {"q_proj.bias", 1, {q}, s->qkv_bias, false, true},
        [P_KB] = {"k_proj.bias", 1, {k}, s->qkv_bias, false, true},
        [P_VB] = {"v_proj.bias", 1, {v}, s->qkv_bias, false, true},
        [P_OB] = {"o_proj.bias", 1, {s->d}, s->o_bias, false, true},
        [P_QN] = {"q_norm.weight", 1, {s->kdim}, s->qk_norm, false, false},
        [P_KN] = {"k_norm.weight", 1, {s->kdim}, s->qk_norm, false, false},
    };
    for (int i = 0; i < P_COUNT; i++)
        out[i] = list[i];
    return P_COUNT;
}

static double attn_scale(const struct mixer *x)
{
    return 1 / sqrt((double)x->s.kdim);
}

static struct view rotate(const struct mx *c, struct view x, int64_t heads, int64_t dim, bool inverse)
{
    be_rope(c->be, &(struct op_rope){.x = x,
                                     .cos = c->rope->cos,
                                     .sin = c->rope->sin,
                                     .pos = c->pos,
                                     .rows = c->seqs->rows,
                                     .heads = heads,
                                     .dim = dim,
                                     .max_pos = c->rope->rows,
                                     .inverse = inverse});
    return x;
}

/* Projection, norm and rotation of q or k; the projection before the norm and its rstd are kept in *pre, *rstd. */
static struct view project(const struct mx *c, struct dmem *a, const struct mixer *x, struct view h, int which, int64_t heads,
                           struct view *pre, struct view *rstd)
{
    int64_t n = heads * x->s.kdim, rows = c->seqs->rows;
    struct view y = dmem_take(a, c->be->act, rows * n);
    linear_fwd(c->be, rows, y, h, x->p[which], x->p[which + P_QB], false);
    const struct param *norm = which == P_Q ? x->p[P_QN] : x->p[P_KN];
    if (norm) {
        *pre = y;
        *rstd = dmem_take(a, c->be->stat, rows * heads);
        y = dmem_take(a, c->be->act, rows * n);
        be_rmsnorm(c->be, &(struct op_rmsnorm){
                              .y = y, .rstd = *rstd, .x = *pre, .w = norm->w, .rows = rows * heads, .dim = x->s.kdim, .eps = x->s.eps});
    }
    return rotate(c, y, heads, x->s.kdim, false);
}

/* The mixed heads: o1 or o2 themselves, or their sum with p in new memory. */
static struct view mixed(const struct mx *c, const struct mixer *x, struct view o1, struct view o2)
{
    if (!c->scaled)
        return o1;
    bool both = o2.p != NULL;
    int64_t n = c->seqs->rows * x->s.h * x->s.vdim;
    struct view y = dmem_take(c->tmp, c->be->act, n);
    be_mix(c->be, &(struct op_mix){.y = y,
                                   .x = {o1, o2},
                                   .p = {both || c->ops & MIX_BIT(MIX_FULL) ? c->p[MIX_FULL] : c->p[MIX_WINDOW], c->p[MIX_WINDOW]},
                                   .count = both ? 2 : 1,
                                   .n = n});
    return y;
}

static bool has_both(const struct mx *c)
{
    return (c->ops & MIX_BIT(MIX_FULL)) && (c->ops & MIX_BIT(MIX_WINDOW));
}

/* First output: full when it is among the operators, else the window. */
static int32_t window1(const struct mx *c, const struct mixer *x)
{
    return c->ops & MIX_BIT(MIX_FULL) ? 0 : (int32_t)x->s.window;
}

static void attn_fwd(const struct mx *c, const struct mixer *x, struct view h, struct view y, bool add, struct mixer_save *sv)
{
    size_t mark = dmem_mark(c->tmp);
    struct dmem *a = c->save ? c->keep : c->tmp;
    int64_t rows = c->seqs->rows, no = rows * x->s.h * x->s.vdim;
    struct view v[MIXER_MAX_SAVE] = {0};
    v[S_Q] = project(c, a, x, h, P_Q, x->s.h, &v[S_QPRE], &v[S_RQ]);
    v[S_K] = project(c, a, x, h, P_K, x->s.g, &v[S_KPRE], &v[S_RK]);
    v[S_V] = dmem_take(a, c->be->act, rows * x->s.g * x->s.vdim);
    linear_fwd(c->be, rows, v[S_V], h, x->p[P_V], x->p[P_VB], false);
    v[S_O1] = dmem_take(a, c->be->act, no);
    if (has_both(c))
        v[S_O2] = dmem_take(a, c->be->act, no);
    if (c->save) {
        v[S_LSE1] = dmem_take(a, c->be->stat, rows * x->s.h);
        if (has_both(c))
            v[S_LSE2] = dmem_take(a, c->be->stat, rows * x->s.h);
    }
    be_attn(c->be, &(struct op_attn){.q = v[S_Q],
                                     .k = v[S_K],
                                     .v = v[S_V],
                                     .o = v[S_O1],
                                     .lse = v[S_LSE1],
                                     .o2 = v[S_O2],
                                     .lse2 = v[S_LSE2],
                                     .seqs = c->seqs,
                                     .h = x->s.h,
                                     .g = x->s.g,
                                     .kdim = x->s.kdim,
                                     .vdim = x->s.vdim,
                                     .window = window1(c, x),
                                     .window2 = has_both(c) ? (int32_t)x->s.window : 0,
                                     .scale = attn_scale(x)});
    linear_fwd(c->be, rows, y, mixed(c, x, v[S_O1], v[S_O2]), x->p[P_O], x->p[P_OB], add);
    if (c->save)
        for (int i = 0; i < MIXER_MAX_SAVE; i++)
            sv->v[i] = v[i];
    dmem_release(c->tmp, mark);
}

static bool wants_any(const struct mx *c, const struct mixer *x)
{
    for (int i = 0; i < P_COUNT; i++)
        if (i != P_O && i != P_OB && param_wants(x->p[i], c->wgrad))
            return true;
    return false;
}

/* Gradient of a projection's output back through rotation and norm; returns it at the linear layer's output. */
static struct view unproject(const struct mx *c, const struct mixer *x, struct view d, int which, int64_t heads, struct view pre,
                             struct view rstd)
{
    struct param *norm = which == P_Q ? x->p[P_QN] : x->p[P_KN];
    rotate(c, d, heads, x->s.kdim, true);
    if (!norm)
        return d;
    struct view dx = dmem_take(c->tmp, c->be->act, c->seqs->rows * heads * x->s.kdim);
    be_rmsnorm_bwd(c->be, &(struct op_rmsnorm_bwd){.dx = dx,
                                                   .dw = param_wants(norm, c->wgrad) ? norm->g : NO_VIEW,
                                                   .dy = d,
                                                   .x = pre,
                                                   .w = norm->w,
                                                   .rstd = rstd,
                                                   .rows = c->seqs->rows * heads,
                                                   .dim = x->s.kdim});
    return dx;
}

static void attn_bwd(const struct mx *c, const struct mixer *x, struct view h, struct view dy, struct view dh, bool add, struct view dp,
                     const struct mixer_save *sv)
{
    size_t mark = dmem_mark(c->tmp);
    struct backend *be = c->be;
    const struct view *s = sv->v;
    const bool both = has_both(c), deeper = dh.p || wants_any(c, x);
    int64_t rows = c->seqs->rows, no = rows * x->s.h * x->s.vdim, nkv = rows * x->s.g;
    struct view d_o = dmem_take(c->tmp, be->act, no), heads = NO_VIEW;
    if (param_wants(x->p[P_O], c->wgrad))
        heads = mixed(c, x, s[S_O1], s[S_O2]);
    linear_bwd(be, rows, d_o, false, dy, heads, x->p[P_O], x->p[P_OB], c->wgrad);
    const int k1 = c->ops & MIX_BIT(MIX_FULL) ? MIX_FULL : MIX_WINDOW;
    struct view dp1 = dp.p ? view_at(dp, k1, both ? 2 : 1) : NO_VIEW;
    if (c->scaled && !both) { /* one operator with a weight: scale here */
        struct view scaled = deeper ? dmem_take(c->tmp, be->act, no) : NO_VIEW;
        be_mix_bwd(be, &(struct op_mix_bwd){.dx = {scaled}, .dp = dp1, .dy = d_o, .x = {s[S_O1]}, .p = {c->p[k1]}, .count = 1, .n = no});
        d_o = scaled;
        dp1 = NO_VIEW;
    } else if (!deeper && dp1.p) { /* only the weights' gradients are wanted */
        be_mix_bwd(
            be,
            &(struct op_mix_bwd){
                .dp = dp1, .dy = d_o, .x = {s[S_O1], s[S_O2]}, .p = {c->p[MIX_FULL], c->p[MIX_WINDOW]}, .count = both ? 2 : 1, .n = no});
    }
    if (deeper) {
        struct view dq = dmem_take(c->tmp, be->act, rows * x->s.h * x->s.kdim), dk = dmem_take(c->tmp, be->act, nkv * x->s.kdim),
                    dv = dmem_take(c->tmp, be->act, nkv * x->s.vdim);
        be_attn_bwd(be, &(struct op_attn_bwd){.dq = dq,
                                              .dk = dk,
                                              .dv = dv,
                                              .d_o = d_o,
                                              .q = s[S_Q],
                                              .k = s[S_K],
                                              .v = s[S_V],
                                              .o = s[S_O1],
                                              .lse = s[S_LSE1],
                                              .o2 = s[S_O2],
                                              .lse2 = s[S_LSE2],
                                              .dp = dp1,
                                              .seqs = c->seqs,
                                              .h = x->s.h,
                                              .g = x->s.g,
                                              .kdim = x->s.kdim,
                                              .vdim = x->s.vdim,
                                              .window = window1(c, x),
                                              .window2 = both ? (int32_t)x->s.window : 0,
                                              .scale = attn_scale(x),
                                              .p1 = both ? c->p[MIX_FULL] : 1,
                                              .p2 = both ? c->p[MIX_WINDOW] : 0});
        dq = unproject(c, x, dq, P_Q, x->s.h, s[S_QPRE], s[S_RQ]);
        dk = unproject(c, x, dk, P_K, x->s.g, s[S_KPRE], s[S_RK]);
        linear_bwd(be, rows, dh, add, dq, h, x->p[P_Q], x->p[P_QB], c->wgrad);
        linear_bwd(be, rows, dh, true, dk, h, x->p[P_K], x->p[P_KB], c->wgrad);
        linear_bwd(be, rows, dh, true, dv, h, x->p[P_V], x->p[P_VB], c->wgrad);
    }
    dmem_release(c->tmp, mark);
}

/* ---- decoding ---- */

static int attn_state(const struct mixer *x, unsigned ops, struct mixer_state out[MIXER_MAX_STATE])
{
    int64_t k = x->s.g * x->s.kdim, v = x->s.g * x->s.vdim;
    bool ring = !(ops & MIX_BIT(MIX_FULL)); /* the window alone needs the last w rows */
    out[0] = (struct mixer_state){.name = "k", .per_token = ring ? 0 : k, .fixed = ring ? k * x->s.window : 0};
    out[1] = (struct mixer_state){.name = "v", .per_token = ring ? 0 : v, .fixed = ring ? v * x->s.window : 0};
    return 2;
}

static void put_rows(const struct mx *c, struct view dst, struct view di, struct view src, struct view si, int64_t rows, int64_t dim)
{
    if (rows)
        be_gather(c->be, &(struct op_gather){.dst = dst, .src = src, .di = di, .si = si, .rows = rows, .dim = dim});
}

/* Projections of new tokens, q and k not yet rotated. */
static void project_new(const struct mx *c, const struct mixer *x, struct view h, struct view out[3])
{
    const int which[3] = {P_Q, P_K, P_V};
    struct step_linear l[3];
    for (int i = 0; i < 3; i++) {
        const struct param *w = x->p[which[i]], *bias = x->p[which[i] + P_QB];
        out[i] = dmem_take(c->tmp, c->be->act, c->seqs->rows * w->dims[0]);
        l[i] = (struct step_linear){.y = out[i], .w = w->w, .bias = bias ? bias->w : NO_VIEW, .n = w->dims[0]};
    }
    be_linear_many(c->be, h, &c->norm, c->seqs->rows, x->s.d, l, 3);
}

/* Attention of new tokens whose keys and values go to rows di of the cache and are read from there; d lacks q. */
static void attn_new(const struct mx *c, const struct mixer *x, struct view h, struct view di, struct op_attn *d)
{
    int64_t rows = c->seqs->rows;
    struct view p[3], pre, rstd;
    if (x->p[P_QN] || x->p[P_KN]) {
        h = mx_normed(c, h);
        d->q = project(c, c->tmp, x, h, P_Q, x->s.h, &pre, &rstd);
        struct view k = project(c, c->tmp, x, h, P_K, x->s.g, &pre, &rstd), v = dmem_take(c->tmp, c->be->act, rows * x->s.g * x->s.vdim);
        linear_fwd(c->be, rows, v, h, x->p[P_V], x->p[P_VB], false);
        put_rows(c, d->k, di, k, NO_VIEW, rows, x->s.g * x->s.kdim);
        put_rows(c, d->v, di, v, NO_VIEW, rows, x->s.g * x->s.vdim);
        be_attn(c->be, d);
        return;
    }
    project_new(c, x, h, p);
    d->q = p[0];
    be_attn_new(
        c->be,
        &(struct step_attn){
            .attn = *d, .k = p[1], .v = p[2], .di = di, .cos = c->rope->cos, .sin = c->rope->sin, .pos = c->pos, .max_pos = c->rope->rows});
}

/* What the window still sees of the past, then the new rows, in one stretch a sequence: q; keys and values become the stretch. */
static struct view lay_out(const struct mx *c, const struct mixer *x, struct view h, const struct ring_rows *w, struct mixer_cache *cache,
                           struct view *keys, struct view *values, struct view fresh[2])
{
    struct view pre, rstd;
    int64_t rows = c->seqs->rows, nk = x->s.g * x->s.kdim, nv = x->s.g * x->s.vdim;
    struct view q = project(c, c->tmp, x, h, P_Q, x->s.h, &pre, &rstd), k = project(c, c->tmp, x, h, P_K, x->s.g, &pre, &rstd);
    struct view v = dmem_take(c->tmp, c->be->act, rows * nv);
    linear_fwd(c->be, rows, v, h, x->p[P_V], x->p[P_VB], false);
    *keys = dmem_take(c->tmp, c->be->act, w->line_rows * nk);
    *values = dmem_take(c->tmp, c->be->act, w->line_rows * nv);
    put_rows(c, *keys, w->tail_di, cache->v[0], w->tail_si, w->n_tail, nk);
    put_rows(c, *values, w->tail_di, cache->v[1], w->tail_si, w->n_tail, nv);
    put_rows(c, *keys, w->new_di, k, NO_VIEW, rows, nk);
    put_rows(c, *values, w->new_di, v, NO_VIEW, rows, nv);
    fresh[0] = k;
    fresh[1] = v;
    return q;
}

static void attn_step(const struct mx *c, const struct mixer *x, struct view h, struct view y, bool add, struct mixer_cache *cache)
{
    size_t mark = dmem_mark(c->tmp);
    int64_t rows = c->seqs->rows, no = rows * x->s.h * x->s.vdim, nk = x->s.g * x->s.kdim, nv = x->s.g * x->s.vdim;
    const struct ring_rows *w = c->ops & MIX_BIT(MIX_FULL) ? NULL : cache_ring(c->rows, (int32_t)x->s.window);
    struct op_attn d = {.k = cache->v[0],
                        .v = cache->v[1],
                        .o = dmem_take(c->tmp, c->be->act, no),
                        .o2 = has_both(c) ? dmem_take(c->tmp, c->be->act, no) : NO_VIEW,
                        .seqs = w ? &w->seqs : &c->rows->full,
                        .h = x->s.h,
                        .g = x->s.g,
                        .kdim = x->s.kdim,
                        .vdim = x->s.vdim,
                        .window = window1(c, x),
                        .window2 = has_both(c) ? (int32_t)x->s.window : 0,
                        .ring = w && w->single ? w->window : 0,
                        .scale = attn_scale(x)};
    if (!w || w->single) { /* into the cache first, then look at it; a ring takes one new token a sequence */
        attn_new(c, x, h, w ? w->put_di : c->rows->full_di, &d);
    } else {
        struct view fresh[2];
        d.q = lay_out(c, x, mx_normed(c, h), w, cache, &d.k, &d.v, fresh);
        be_attn(c->be, &d);
        put_rows(c, cache->v[0], w->put_di, fresh[0], w->put_si, w->n_put, nk);
        put_rows(c, cache->v[1], w->put_di, fresh[1], w->put_si, w->n_put, nv);
    }
    linear_fwd(c->be, rows, y, mixed(c, x, d.o, d.o2), x->p[P_O], x->p[P_OB], add);
    dmem_release(c->tmp, mark);
}

static double attn_cost(const struct mixer *x, enum mixer_kind k, int64_t T)
{
    return k == MIX_FULL ? 1 : (double)MIN(x->s.window, T) / (double)T;
}

const struct mixer_type mixer_attn = {.name = "attention",
                                      .kinds = MIX_BIT(MIX_FULL) | MIX_BIT(MIX_WINDOW),
                                      .shape = attn_shape,
                                      .params = attn_params,
                                      .fwd = attn_fwd,
                                      .bwd = attn_bwd,
                                      .step = attn_step,
                                      .state = attn_state,
                                      .cost = attn_cost};
