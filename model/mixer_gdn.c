/*
 * Gated DeltaNet [kernels.md 1; fla's GatedDeltaNet]: q, k, v = silu(conv?(h W^T)), q and k normalised per head, beta = sigmoid(h W_b), g =
 * -exp(A_log) softplus(h W_a + dt_bias), gated delta rule, per-head RMSNorm times silu(h W_g), output projection. No positions. Initialised
 * from attention as GA-S2 does [selectors.md A.2, A.3].
 */
#include "model/mixer.h"

#include <math.h>
#include <stdlib.h>

#include "core/rng.h"
#include "kernels/ops.h"
#include "kernels/step.h"

enum { P_Q, P_K, P_V, P_O, P_A, P_B, P_ALOG, P_DT, P_QC, P_KC, P_VC, P_G, P_ONORM, P_COUNT };
/* S_QL..: projections; S_QP..: sums before the convolution's SiLU; S_QC..: after; S_Q..: what the recurrence takes. */
enum {
    S_QL,
    S_KL,
    S_VL,
    S_QP,
    S_KP,
    S_VP,
    S_QC,
    S_KC,
    S_VC,
    S_Q,
    S_K,
    S_V,
    S_RQ,
    S_RK,
    S_G,
    S_BETA,
    S_A,
    S_B,
    S_GATE,
    S_O,
    S_RSTD,
    S_AINV,
    S_HS,
    S_COUNT
};
_Static_assert(S_COUNT <= MIXER_MAX_SAVE, "room for what the backward needs");

static void gdn_shape(const struct mcfg *c, int64_t layer, struct mixer_shape *s)
{
    UNUSED(layer);
    *s = (struct mixer_shape){.d = c->d,
                              .h = c->gdn.heads,
                              .g = c->gdn.v_heads,
                              .kdim = c->gdn.head_k_dim,
                              .vdim = c->gdn.head_v_dim,
                              .conv = c->gdn.conv_size,
                              .eps = c->gdn.norm_eps,
                              .gate = c->gdn.use_gate,
                              .neg_eigval = c->gdn.allow_neg_eigval};
}

static int gdn_params(const struct mixer_shape *s, struct mixer_param out[MIXER_MAX_PARAMS])
{
    const int64_t k = s->h * s->kdim, v = s->g * s->vdim;
    const bool conv = s->conv > 0;
    const struct mixer_param list[P_COUNT] = {
        [P_Q] = {"q_proj.weight", 2, {k, s->d}, true, false, true},
        [P_K] = {"k_proj.weight", 2, {k, s->d}, true, false, true},
        [P_V] = {"v_proj.weight", 2, {v, s->d}, true, false, true},
        [P_O] = {"o_proj.weight", 2, {s->d, v}, true, false, true},
        [P_A] = {"a_proj.weight", 2, {s->g, s->d}, true, false, true},
        [P_B] = {"b_proj.weight", 2, {s->g, s->d}, true, false, true},
        [P_ALOG] = {"A_log", 1, {s->g}, true, true, false},
        [P_DT] = {"dt_bias", 1, {s->g}, true, true, false},
        [P_QC] = {"q_conv1d.weight", 3, {k, 1, s->conv}, conv, false, true},
        [P_KC] = {"k_conv1d.weight", 3, {k, 1, s->conv}, conv, false, true},
        [P_VC] = {"v_conv1d.weight", 3, {v, 1, s->conv}, conv, false, true},
        [P_G] = {"g_proj.weight", 2, {v, s->d}, s->gate, false, true},
        [P_ONORM] = {"o_norm.weight", 1, {s->vdim}, true, false, false},
    };
    for (int i = 0; i < P_COUNT; i++)
        out[i] = list[i];
    return P_COUNT;
}

static int64_t k_width(const struct mixer *x)
{
    return x->s.h * x->s.kdim;
}
static int64_t v_width(const struct mixer *x)
{
    return x->s.g * x->s.vdim;
}

static struct op_gdn_prep prep_of(const struct mx *c, const struct mixer *x, const struct view *v)
{
    const bool conv = x->s.conv > 0;
    return (struct op_gdn_prep){.q = v[S_Q],
                                .k = v[S_K],
                                .v = v[S_V],
                                .rq = v[S_RQ],
                                .rk = v[S_RK],
                                .g = v[S_G],
                                .beta = v[S_BETA],
                                .q_lin = v[conv ? S_QC : S_QL],
                                .k_lin = v[conv ? S_KC : S_KL],
                                .v_lin = v[conv ? S_VC : S_VL],
                                .a_lin = v[S_A],
                                .b_lin = v[S_B],
                                .a_log = x->p[P_ALOG]->w,
                                .dt_bias = x->p[P_DT]->w,
                                .rows = c->seqs->rows,
                                .h = x->s.h,
                                .hv = x->s.g,
                                .kdim = x->s.kdim,
                                .vdim = x->s.vdim,
                                .silu = !conv,
                                .neg_eigval = x->s.neg_eigval};
}

/* The projections of new tokens, in one call: q, k, v, a, b and the gate. v[S_QL] is there. */
static void project_new(const struct mx *c, struct dmem *a, const struct mixer *x, struct view h, struct view *v)
{
    static const int to[6] = {S_QL, S_QL + 1, S_QL + 2, S_A, S_B, S_GATE}, from[6] = {P_Q, P_K, P_V, P_A, P_B, P_G};
    struct step_linear l[6];
    int n = x->s.gate ? 6 : 5;
    for (int i = 0; i < n; i++) {
        const struct param *w = x->p[from[i]];
        if (!v[to[i]].p)
            v[to[i]] = dmem_take(a, to[i] == S_A || to[i] == S_B ? c->be->stat : c->be->act, c->seqs->rows * w->dims[0]);
        l[i] = (struct step_linear){.y = v[to[i]], .w = w->w, .n = w->dims[0]};
    }
    be_linear_many(c->be, h, &c->norm, c->seqs->rows, x->s.d, l, n);
}

/* Everything up to the recurrence's inputs. state: the convolutions' last inputs (views of the sequences in the batch), or NULL. */
static void gdn_maps(const struct mx *c, struct dmem *a, const struct mixer *x, struct view h, const struct view *state, struct view *v)
{
    int64_t rows = c->seqs->rows;
    struct backend *be = c->be;
    for (int i = 0; i < 3; i++) {
        int64_t n = i < 2 ? k_width(x) : v_width(x);
        if (!v[S_QL + i].p)
            v[S_QL + i] = dmem_take(a, be->act, rows * n);
        v[S_Q + i] = dmem_take(a, be->act, rows * n);
        if (!c->rows)
            linear_fwd(be, rows, v[S_QL + i], h, x->p[P_Q + i], NULL, false);
        else if (i == 0)
            project_new(c, a, x, h, v); /* all of them */
        if (x->s.conv) {
            v[S_QC + i] = dmem_take(a, be->act, rows * n);
            if (c->save)
                v[S_QP + i] = dmem_take(a, be->act, rows * n);
            be_conv(be, &(struct op_conv){.y = v[S_QC + i],
                                          .pre = v[S_QP + i],
                                          .x = v[S_QL + i],
                                          .w = x->p[P_QC + i]->w,
                                          .state = state ? state[i] : NO_VIEW,
                                          .seqs = c->seqs,
                                          .dim = n,
                                          .width = x->s.conv});
        }
    }
    v[S_RQ] = dmem_take(a, be->stat, rows * x->s.h);
    v[S_RK] = dmem_take(a, be->stat, rows * x->s.h);
    for (int i = S_G; i <= S_B; i++) /* g, beta and their projections stay in the statistics' type: a rounded a moves the decay */
        if (!v[i].p)
            v[i] = dmem_take(a, be->stat, rows * x->s.g);
    if (!c->rows) {
        linear_fwd(be, rows, v[S_A], h, x->p[P_A], NULL, false);
        linear_fwd(be, rows, v[S_B], h, x->p[P_B], NULL, false);
    }
    if (x->s.gate && !c->rows) {
        v[S_GATE] = dmem_take(a, be->act, rows * v_width(x));
        linear_fwd(be, rows, v[S_GATE], h, x->p[P_G], NULL, false);
    }
    v[S_O] = dmem_take(a, be->act, rows * v_width(x));
}

static double gdn_scale(const struct mixer *x)
{
    return 1 / sqrt((double)x->s.kdim);
}

/* To the normed and gated heads in new memory; rstd may be absent. */
static struct op_gdn_out out_of(const struct mx *c, const struct mixer *x, const struct view *v, struct view rstd)
{
    return (struct op_gdn_out){.y = dmem_take(c->tmp, c->be->act, c->seqs->rows * v_width(x)),
                               .rstd = rstd,
                               .o = v[S_O],
                               .w = x->p[P_ONORM]->w,
                               .gate = v[S_GATE],
                               .rows = c->seqs->rows,
                               .hv = x->s.g,
                               .vdim = x->s.vdim,
                               .eps = x->s.eps};
}
static struct view gdn_heads(const struct mx *c, const struct mixer *x, const struct view *v, struct view rstd)
{
    struct op_gdn_out d = out_of(c, x, v, rstd);
    be_gdn_out(c->be, &d);
    return d.y;
}

static struct view weighted(const struct mx *c, struct view y)
{
    if (!c->scaled)
        return y;
    struct view z = dmem_take(c->tmp, c->be->act, y.n);
    be_mix(c->be, &(struct op_mix){.y = z, .x = {y}, .p = {c->p[MIX_GDN]}, .count = 1, .n = y.n});
    return z;
}

static void gdn_fwd(const struct mx *c, const struct mixer *x, struct view h, struct view y, bool add, struct mixer_save *sv)
{
    size_t mark = dmem_mark(c->tmp);
    struct dmem *a = c->save ? c->keep : c->tmp;
    struct view v[MIXER_MAX_SAVE] = {0};
    int64_t rows = c->seqs->rows;
    gdn_maps(c, a, x, h, NULL, v);
    struct op_gdn_prep prep = prep_of(c, x, v);
    be_gdn_prep(c->be, &prep);
    if (c->save) {
        v[S_RSTD] = dmem_take(a, c->be->stat, rows * x->s.g);
        v[S_AINV] = dmem_take(a, c->be->act, rows * x->s.g * GDN_CHUNK);
        v[S_HS] = dmem_take(a, c->be->act, gdn_chunks(c->seqs) * x->s.g * x->s.kdim * x->s.vdim);
    }
    be_gdn(c->be, &(struct op_gdn){.o = v[S_O],
                                   .ainv = v[S_AINV],
                                   .hs = v[S_HS],
                                   .q = v[S_Q],
                                   .k = v[S_K],
                                   .v = v[S_V],
                                   .g = v[S_G],
                                   .beta = v[S_BETA],
                                   .seqs = c->seqs,
                                   .h = x->s.h,
                                   .hv = x->s.g,
                                   .kdim = x->s.kdim,
                                   .vdim = x->s.vdim,
                                   .scale = gdn_scale(x)});
    linear_fwd(c->be, rows, y, weighted(c, gdn_heads(c, x, v, v[S_RSTD])), x->p[P_O], NULL, add);
    if (c->save)
        for (int i = 0; i < MIXER_MAX_SAVE; i++)
            sv->v[i] = v[i];
    dmem_release(c->tmp, mark);
}

static struct view grad_of(const struct mx *c, const struct param *p)
{
    return param_wants(p, c->wgrad) ? p->g : NO_VIEW;
}

static bool wants_any(const struct mx *c, const struct mixer *x)
{
    for (int i = 0; i < P_COUNT; i++)
        if (i != P_O && param_wants(x->p[i], c->wgrad))
            return true;
    return false;
}

/* From the gradient of the recurrence's output back to h and to the parameters before it. */
static void gdn_maps_bwd(const struct mx *c, const struct mixer *x, struct view h, struct view d_o, struct view dgate, struct view dh,
                         bool add, const struct view *s)
{
    struct backend *be = c->be;
    int64_t rows = c->seqs->rows, nk = rows * k_width(x), nv = rows * v_width(x);
    struct view d[3], dl[3], dg = dmem_take(c->tmp, be->stat, rows * x->s.g), dbeta = dmem_take(c->tmp, be->stat, rows * x->s.g);
    struct view da = dmem_take(c->tmp, be->act, rows * x->s.g), db = dmem_take(c->tmp, be->act, rows * x->s.g);
    for (int i = 0; i < 3; i++) {
        d[i] = dmem_take(c->tmp, be->act, i < 2 ? nk : nv);
        dl[i] = dmem_take(c->tmp, be->act, i < 2 ? nk : nv);
    }
    be_gdn_bwd(be, &(struct op_gdn_bwd){.dq = d[0],
                                        .dk = d[1],
                                        .dv = d[2],
                                        .dg = dg,
                                        .dbeta = dbeta,
                                        .d_o = d_o,
                                        .q = s[S_Q],
                                        .k = s[S_K],
                                        .v = s[S_V],
                                        .g = s[S_G],
                                        .beta = s[S_BETA],
                                        .ainv = s[S_AINV],
                                        .hs = s[S_HS],
                                        .seqs = c->seqs,
                                        .h = x->s.h,
                                        .hv = x->s.g,
                                        .kdim = x->s.kdim,
                                        .vdim = x->s.vdim,
                                        .scale = gdn_scale(x)});
    struct op_gdn_prep f = prep_of(c, x, s);
    be_gdn_prep_bwd(be, &(struct op_gdn_prep_bwd){.dq_lin = dl[0],
                                                  .dk_lin = dl[1],
                                                  .dv_lin = dl[2],
                                                  .da_lin = da,
                                                  .db_lin = db,
                                                  .da_log = grad_of(c, x->p[P_ALOG]),
                                                  .ddt_bias = grad_of(c, x->p[P_DT]),
                                                  .dq = d[0],
                                                  .dk = d[1],
                                                  .dv = d[2],
                                                  .dg = dg,
                                                  .dbeta = dbeta,
                                                  .q = f.q,
                                                  .k = f.k,
                                                  .rq = f.rq,
                                                  .rk = f.rk,
                                                  .g = f.g,
                                                  .beta = f.beta,
                                                  .q_lin = f.q_lin,
                                                  .k_lin = f.k_lin,
                                                  .v_lin = f.v_lin,
                                                  .a_lin = f.a_lin,
                                                  .a_log = f.a_log,
                                                  .dt_bias = f.dt_bias,
                                                  .rows = rows,
                                                  .h = f.h,
                                                  .hv = f.hv,
                                                  .kdim = f.kdim,
                                                  .vdim = f.vdim,
                                                  .silu = f.silu,
                                                  .neg_eigval = f.neg_eigval});
    for (int i = 0; i < 3; i++) {
        if (x->s.conv) { /* d[i] is free again */
            be_conv_bwd(be, &(struct op_conv_bwd){.dx = d[i],
                                                  .dw = grad_of(c, x->p[P_QC + i]),
                                                  .dy = dl[i],
                                                  .pre = s[S_QP + i],
                                                  .x = s[S_QL + i],
                                                  .w = x->p[P_QC + i]->w,
                                                  .seqs = c->seqs,
                                                  .dim = i < 2 ? k_width(x) : v_width(x),
                                                  .width = x->s.conv});
            dl[i] = d[i];
        }
        linear_bwd(be, rows, dh, add || i > 0, dl[i], h, x->p[P_Q + i], NULL, c->wgrad);
    }
    linear_bwd(be, rows, dh, true, da, h, x->p[P_A], NULL, c->wgrad);
    linear_bwd(be, rows, dh, true, db, h, x->p[P_B], NULL, c->wgrad);
    if (x->s.gate)
        linear_bwd(be, rows, dh, true, dgate, h, x->p[P_G], NULL, c->wgrad);
}

static void gdn_bwd(const struct mx *c, const struct mixer *x, struct view h, struct view dy, struct view dh, bool add, struct view dp,
                    const struct mixer_save *sv)
{
    size_t mark = dmem_mark(c->tmp);
    struct backend *be = c->be;
    const struct view *s = sv->v;
    const bool deeper = dh.p || wants_any(c, x);
    int64_t rows = c->seqs->rows, n = rows * v_width(x);
    struct view dheads = dmem_take(c->tmp, be->act, n), heads = NO_VIEW, projected = NO_VIEW;
    if ((c->scaled && dp.p) || param_wants(x->p[P_O], c->wgrad))
        heads = gdn_heads(c, x, s, NO_VIEW);
    if (param_wants(x->p[P_O], c->wgrad))
        projected = weighted(c, heads);
    linear_bwd(be, rows, dheads, false, dy, projected, x->p[P_O], NULL, c->wgrad);
    if (c->scaled) {
        struct view scaled = deeper ? dmem_take(c->tmp, be->act, n) : NO_VIEW;
        be_mix_bwd(be, &(struct op_mix_bwd){.dx = {scaled},
                                            .dp = dp.p ? view_at(dp, MIX_GDN, 1) : NO_VIEW,
                                            .dy = dheads,
                                            .x = {heads},
                                            .p = {c->p[MIX_GDN]},
                                            .count = 1,
                                            .n = n});
        dheads = scaled;
    }
    if (deeper) {
        struct view d_o = dmem_take(c->tmp, be->act, n), dgate = x->s.gate ? dmem_take(c->tmp, be->act, n) : NO_VIEW;
        be_gdn_out_bwd(be, &(struct op_gdn_out_bwd){.d_o = d_o,
                                                    .dgate = dgate,
                                                    .dw = grad_of(c, x->p[P_ONORM]),
                                                    .dy = dheads,
                                                    .o = s[S_O],
                                                    .w = x->p[P_ONORM]->w,
                                                    .gate = s[S_GATE],
                                                    .rstd = s[S_RSTD],
                                                    .rows = rows,
                                                    .hv = x->s.g,
                                                    .vdim = x->s.vdim});
        gdn_maps_bwd(c, x, h, d_o, dgate, dh, add, s);
    }
    dmem_release(c->tmp, mark);
}

/* ---- decoding: the state matrix [HV, K, V] and the last inputs of the convolutions ---- */

static int gdn_state(const struct mixer *x, unsigned ops, struct mixer_state out[MIXER_MAX_STATE])
{
    UNUSED(ops);
    out[0] = (struct mixer_state){.name = "state", .stat = true, .fixed = x->s.g * x->s.kdim * x->s.vdim};
    if (!x->s.conv)
        return 1;
    static const char *const names[3] = {"conv_q", "conv_k", "conv_v"};
    for (int i = 0; i < 3; i++)
        out[1 + i] = (struct mixer_state){.name = names[i], .fixed = (x->s.conv - 1) * (i < 2 ? k_width(x) : v_width(x))};
    return 4;
}

static void gdn_step(const struct mx *c, const struct mixer *x, struct view h, struct view y, bool add, struct mixer_cache *cache)
{
    size_t mark = dmem_mark(c->tmp);
    struct view v[MIXER_MAX_SAVE] = {0}, state[MIXER_MAX_STATE];
    for (int i = 0; i < (x->s.conv ? 4 : 1); i++)
        state[i] = view_at(cache->v[i], c->slot0 * cache->elems[i], c->seqs->n * cache->elems[i]);
    gdn_maps(c, c->tmp, x, h, state + 1, v);
    struct step_gdn d = {.prep = prep_of(c, x, v),
                         .gdn = {.o = v[S_O],
                                 .s_out = state[0],
                                 .q = v[S_Q],
                                 .k = v[S_K],
                                 .v = v[S_V],
                                 .g = v[S_G],
                                 .beta = v[S_BETA],
                                 .s_in = state[0],
                                 .seqs = c->seqs,
                                 .h = x->s.h,
                                 .hv = x->s.g,
                                 .kdim = x->s.kdim,
                                 .vdim = x->s.vdim,
                                 .scale = gdn_scale(x)},
                         .out = out_of(c, x, v, NO_VIEW)};
    be_gdn_token(c->be, &d);
    linear_fwd(c->be, c->seqs->rows, y, weighted(c, d.out.y), x->p[P_O], NULL, add);
    dmem_release(c->tmp, mark);
}

static double gdn_cost(const struct mixer *x, enum mixer_kind k, int64_t T)
{
    UNUSED(x);
    UNUSED(k);
    UNUSED(T);
    return 0;
}

/* ---- initialisation from attention ---- */

static void init_uniform(float *w, const struct param *p, uint64_t seed, double bound)
{
    uint64_t stream = param_stream(p->name);
    for (int64_t i = 0; i < p->n; i++)
        w[i] = (float)((2 * ctr_uniform(seed, stream, (uint64_t)i) - 1) * bound);
}

/* Values of parameters that no attention has. */
static void init_fresh(float *w, const struct param *p, int which, const struct mixer *x, const struct mixer_init *o)
{
    uint64_t stream = param_stream(p->name);
    double bound = 1 / sqrt((double)x->s.d);
    switch (which) {
    case P_A:
    case P_B:
        init_uniform(w, p, o->seed, bound * o->a_scale);
        break;
    case P_G:
        init_uniform(w, p, o->seed, bound * o->gate_scale);
        break;
    case P_QC:
    case P_KC:
    case P_VC:
        init_uniform(w, p, o->seed, 1 / sqrt((double)x->s.conv));
        break;
    case P_ONORM:
        for (int64_t i = 0; i < p->n; i++)
            w[i] = 1;
        break;
    case P_ALOG: /* log of U(0, 16); an exact 0 would be a decay of 1 for ever */
        for (int64_t i = 0; i < p->n; i++)
            w[i] = (float)log(fmax(16 * ctr_uniform(o->seed, stream, (uint64_t)i), 1e-4));
        break;
    case P_DT: /* inverse softplus of a step drawn log-uniformly from 0.001 to 0.1 */
        for (int64_t i = 0; i < p->n; i++) {
            double dt = fmax(exp(log(1e-3) + ctr_uniform(o->seed, stream, (uint64_t)i) * (log(1e-1) - log(1e-3))), 1e-4);
            w[i] = (float)(dt + log(-expm1(-dt)));
        }
        break;
    default:
        BUG("parameter %d of a GDN mixer has no fresh value", which);
    }
}

/* Row r of the wide matrix comes from this row of the teacher's [groups*K, d]. */
static int64_t source_row(int64_t r, int64_t dim, int64_t repeat, enum kv_expand how)
{
    if (how == KV_EXPAND_ROW)
        return r / repeat;
    return r / dim / repeat * dim + r % dim;
}

static int copy_attn(struct backend *be, float *w, float *src, const struct mixer *x, const struct mixer *t, int which,
                     const struct mixer_init *o, struct err *e)
{
    static const char *const names[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
    const struct param *p = x->p[which], *q = t->p[which]; /* P_Q..P_O stand in the same places in both lists */
    TRY(get_f32(be, src, q->w, e));
    int64_t d = p->dims[1], rows = p->dims[0], have = q->dims[0];
    if (q->dims[1] != d || rows % have != 0 || (rows != have && (which == P_Q || which == P_O)))
        return ERR(e, E_USAGE,
                   "layer %" PRId64 ": linear %s is %" PRId64 " x %" PRId64 ", which the teacher's %" PRId64 " x %" PRId64
                   " cannot fill; choose %" PRId64 " heads of %" PRId64,
                   x->layer, names[which], rows, d, have, q->dims[1], t->s.h, t->s.kdim);
    int64_t dim = which == P_V ? x->s.vdim : x->s.kdim, repeat = rows / have;
    for (int64_t r = 0; r < rows; r++) {
        int64_t from = repeat == 1 ? r : source_row(r, dim, repeat, o->kv_expand);
        for (int64_t j = 0; j < d; j++)
            w[r * d + j] = src[from * d + j];
    }
    return 0;
}

static int gdn_init_from(struct backend *be, struct mixer *x, const struct mixer *teacher, const struct mixer_init *o, struct err *e)
{
    int64_t most = 1;
    for (int i = 0; i < P_COUNT; i++)
        most = MAX(most, x->p[i] ? x->p[i]->n : 0);
    for (int i = P_Q; i <= P_O; i++)
        most = MAX(most, teacher->p[i]->n);
    float *w = malloc((size_t)most * sizeof *w), *src = malloc((size_t)most * sizeof *src);
    int rc = w && src ? 0 : err_nomem(e, 2 * (size_t)most * sizeof *w, "initial weights");
    for (int i = 0; i < P_COUNT && rc == 0; i++) {
        if (!x->p[i])
            continue;
        if (i <= P_O)
            rc = copy_attn(be, w, src, x, teacher, i, o, e);
        else
            init_fresh(w, x->p[i], i, x, o);
        if (rc == 0)
            rc = put_f32(be, x->p[i]->w, w, e);
    }
    free(w);
    free(src);
    return rc;
}

const struct mixer_type mixer_gdn = {.name = "gdn",
                                     .kinds = MIX_BIT(MIX_GDN),
                                     .shape = gdn_shape,
                                     .params = gdn_params,
                                     .init_from = gdn_init_from,
                                     .fwd = gdn_fwd,
                                     .bwd = gdn_bwd,
                                     .step = gdn_step,
                                     .state = gdn_state,
                                     .cost = gdn_cost};
