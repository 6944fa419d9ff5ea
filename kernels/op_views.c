#include "kernels/op_views.h"

#include <stdarg.h>
#include <stdio.h>

#define RULE(o, cond, ...)                                                                                                                 \
    do {                                                                                                                                   \
        if (!(cond) && !(o)->bad[0])                                                                                                       \
            rule_broken((o), __VA_ARGS__);                                                                                                 \
    } while (0)

static void rule_broken(struct op_views *o, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void rule_broken(struct op_views *o, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(o->bad, sizeof o->bad, fmt, ap);
    va_end(ap);
}

static void begin(struct op_views *o, const char *op)
{
    o->op = op;
    o->n = 0;
    o->bad[0] = 0;
}

/* rows x width with row stride ld (0 = tight); returns the entry for the rarer fields. */
static struct op_view *put(struct op_views *o, const char *name, const struct view *v, enum view_role role, enum view_class cls,
                           bool required, int64_t rows, int64_t width, int64_t ld)
{
    if (o->n >= (int)ARRAY_LEN(o->v))
        BUG("op '%s' lists too many views", o->op);
    struct op_view *e = &o->v[o->n++];
    *e = (struct op_view){
        .name = name, .v = v, .role = role, .cls = cls, .required = required, .rows = rows, .width = width, .ld = ld ? ld : width};
    int64_t extent;
    RULE(o, rows >= 0 && width >= 0, "view '%s' would be %" PRId64 " x %" PRId64, name, rows, width);
    RULE(o, e->ld >= width, "row stride %" PRId64 " of view '%s' is below its width %" PRId64, e->ld, name, width);
    RULE(o, mul_i64(rows, e->ld, &extent), "view '%s' would be %" PRId64 " x %" PRId64, name, rows, e->ld);
    return e;
}
#define IN(name, cls, rows, width) put(o, #name, &d->name, VIEW_IN, cls, true, rows, width, 0)
#define IN_LD(name, cls, rows, width, ld) put(o, #name, &d->name, VIEW_IN, cls, true, rows, width, ld)
#define IN_OPT(name, cls, rows, width) put(o, #name, &d->name, VIEW_IN, cls, false, rows, width, 0)
#define OUT(name, cls, rows, width) put(o, #name, &d->name, VIEW_OUT, cls, true, rows, width, 0)
#define OUT_LD(name, cls, rows, width, ld) put(o, #name, &d->name, VIEW_OUT, cls, true, rows, width, ld)
#define OUT_OPT(name, cls, rows, width) put(o, #name, &d->name, VIEW_OUT, cls, false, rows, width, 0)
#define INOUT(name, cls, rows, width) put(o, #name, &d->name, VIEW_INOUT, cls, true, rows, width, 0)
#define INOUT_OPT(name, cls, rows, width) put(o, #name, &d->name, VIEW_INOUT, cls, false, rows, width, 0)

static void index_view(struct op_view *v, int64_t limit, bool neg)
{
    v->index_limit = limit;
    v->index_neg = neg;
}

/* Position of a view in the list; -1 when it is absent. */
static int at(const struct op_views *o, const struct view *v)
{
    for (int i = 0; i < o->n; i++)
        if (o->v[i].v == v)
            return i;
    return -1;
}

static void may_alias(struct op_views *o, const struct view *a, const struct view *b)
{
    int i = at(o, a), j = at(o, b);
    if (i >= 0 && j >= 0) {
        o->v[i].may_alias |= 1 << j;
        o->v[j].may_alias |= 1 << i;
    }
}

/* Offsets ascend and end at rows, every sequence has at least as many keys as queries; returns one past the last kv row used. */
static int64_t seqs_rule(struct op_views *o, const struct seqs *s, bool cache_ok, int32_t ring)
{
    RULE(o, s != NULL, "no sequence table");
    if (!s)
        return 0;
    RULE(o, s->n >= 0 && s->rows >= 0 && s->q_off, "sequence table of %d sequences, %" PRId64 " rows without offsets", (int)s->n, s->rows);
    if (o->bad[0])
        return 0;
    RULE(o, s->q_off[0] == 0 && s->q_off[s->n] == s->rows, "sequence offsets span %d to %d, rows are %" PRId64, (int)s->q_off[0],
         (int)s->q_off[s->n], s->rows);
    RULE(o, cache_ok || !s->kv_off, "keys in a cache are not possible here");
    int64_t kv_rows = s->kv_off ? 0 : s->rows;
    for (int32_t i = 0; i < s->n; i++) {
        int32_t nq = seqs_qlen(s, i), nk = seqs_kvlen(s, i);
        RULE(o, nq >= 0, "sequence %d has %d queries", (int)i, (int)nq);
        RULE(o, nk >= nq, "sequence %d has %d keys for %d queries", (int)i, (int)nk, (int)nq);
        RULE(o, s->kv_off || nk == nq, "sequence %d has %d keys for %d queries without a cache", (int)i, (int)nk, (int)nq);
        RULE(o, seqs_kvoff(s, i) >= 0, "sequence %d has its keys at row %d", (int)i, (int)seqs_kvoff(s, i));
        if (s->kv_off)
            kv_rows = MAX(kv_rows, (int64_t)seqs_kvoff(s, i) + (ring > 0 ? MIN(nk, ring) : nk));
    }
    return kv_rows;
}

static int64_t seqs_rows(const struct seqs *s)
{
    return s ? s->rows : 0;
}

void views_gemm(const struct op_gemm *d, struct op_views *o)
{
    begin(o, "gemm");
    put(o, "c", &d->c, d->accumulate ? VIEW_INOUT : VIEW_OUT, VIEW_EITHER, true, d->m, d->n, d->ldc);
    if (d->ta)
        IN_LD(a, VIEW_ACT, d->k, d->m, d->lda);
    else
        IN_LD(a, VIEW_ACT, d->m, d->k, d->lda);
    if (d->tb)
        IN_LD(b, VIEW_ACT, d->n, d->k, d->ldb);
    else
        IN_LD(b, VIEW_ACT, d->k, d->n, d->ldb);
    IN_OPT(bias, VIEW_ACT, 1, d->n);
}

void views_embed(const struct op_embed *d, struct op_views *o)
{
    begin(o, "embed");
    OUT(y, VIEW_ACT, d->rows, d->dim);
    IN(w, VIEW_ACT, d->vocab, d->dim);
    index_view(IN(ids, VIEW_I32, 1, d->rows), d->vocab, false);
}

void views_embed_bwd(const struct op_embed_bwd *d, struct op_views *o)
{
    begin(o, "embed_bwd");
    INOUT(dw, VIEW_EITHER, d->vocab, d->dim);
    IN(dy, VIEW_ACT, d->rows, d->dim);
    index_view(IN(ids, VIEW_I32, 1, d->rows), d->vocab, false);
}

void views_rmsnorm(const struct op_rmsnorm *d, struct op_views *o)
{
    begin(o, "rmsnorm");
    OUT(y, VIEW_ACT, d->rows, d->dim);
    OUT_OPT(rstd, VIEW_STAT, 1, d->rows);
    IN(x, VIEW_ACT, d->rows, d->dim);
    IN(w, VIEW_ACT, 1, d->dim);
    may_alias(o, &d->y, &d->x);
    RULE(o, d->dim > 0 && d->eps >= 0, "dim %" PRId64 ", eps %g", d->dim, d->eps);
}

void views_rmsnorm_bwd(const struct op_rmsnorm_bwd *d, struct op_views *o)
{
    begin(o, "rmsnorm_bwd");
    put(o, "dx", &d->dx, d->dx_add ? VIEW_INOUT : VIEW_OUT, VIEW_ACT, true, d->rows, d->dim, 0);
    INOUT_OPT(dw, VIEW_EITHER, 1, d->dim);
    IN(dy, VIEW_ACT, d->rows, d->dim);
    IN(x, VIEW_ACT, d->rows, d->dim);
    IN(w, VIEW_ACT, 1, d->dim);
    IN(rstd, VIEW_STAT, 1, d->rows);
    RULE(o, d->dim > 0, "dim %" PRId64, d->dim);
}

void views_rope(const struct op_rope *d, struct op_views *o)
{
    begin(o, "rope");
    put(o, "x", &d->x, VIEW_INOUT, VIEW_ACT, true, d->rows, d->heads * d->dim, d->ld);
    IN(cos, VIEW_STAT, d->max_pos, d->dim / 2);
    IN(sin, VIEW_STAT, d->max_pos, d->dim / 2);
    index_view(IN(pos, VIEW_I32, 1, d->rows), d->max_pos, false);
    RULE(o, d->dim % 2 == 0, "head dim %" PRId64 " is odd", d->dim);
}

void views_swiglu(const struct op_swiglu *d, struct op_views *o)
{
    begin(o, "swiglu");
    OUT(h, VIEW_ACT, 1, d->n);
    IN(g, VIEW_ACT, 1, d->n);
    IN(u, VIEW_ACT, 1, d->n);
    may_alias(o, &d->h, &d->g);
}

void views_swiglu_bwd(const struct op_swiglu_bwd *d, struct op_views *o)
{
    begin(o, "swiglu_bwd");
    OUT(dg, VIEW_ACT, 1, d->n);
    OUT(du, VIEW_ACT, 1, d->n);
    IN(dh, VIEW_ACT, 1, d->n);
    IN(g, VIEW_ACT, 1, d->n);
    IN(u, VIEW_ACT, 1, d->n);
    may_alias(o, &d->dg, &d->dh);
    may_alias(o, &d->dg, &d->g);
    may_alias(o, &d->du, &d->u);
}

void views_attn(const struct op_attn *d, struct op_views *o)
{
    begin(o, "attn");
    int64_t kv = seqs_rule(o, d->seqs, true, d->ring), r = seqs_rows(d->seqs);
    IN_LD(q, VIEW_ACT, r, d->h * d->kdim, d->ldq);
    IN_LD(k, VIEW_ACT, kv, d->g * d->kdim, d->ldk);
    IN_LD(v, VIEW_ACT, kv, d->g * d->vdim, d->ldv);
    OUT(o, VIEW_ACT, r, d->h * d->vdim);
    OUT_OPT(lse, VIEW_STAT, r, d->h);
    OUT_OPT(o2, VIEW_ACT, r, d->h * d->vdim);
    OUT_OPT(lse2, VIEW_STAT, r, d->h);
    RULE(o, d->g > 0 && d->h > 0 && d->h % d->g == 0, "%" PRId64 " query heads over %" PRId64 " kv heads", d->h, d->g);
    RULE(o, d->window >= 0 && d->window2 >= 0 && d->ring >= 0, "window %d, window2 %d, ring %d", (int)d->window, (int)d->window2,
         (int)d->ring);
    RULE(o, !d->lse2.p || d->o2.p, "lse2 without o2");
    if (o->bad[0] || !d->ring)
        return;
    for (int32_t i = 0; i < d->seqs->n; i++) { /* the oldest key that the first query sees must not have been overwritten by the last one */
        int32_t nk = seqs_kvlen(d->seqs, i), nq = seqs_qlen(d->seqs, i);
        int64_t w = d->window ? d->window : nk, w2 = !d->o2.p ? 0 : d->window2 ? d->window2 : nk;
        RULE(o, nk <= d->ring || (nq - 1) + MAX(w, w2) <= d->ring, "ring of %d rows cannot hold window %d of %d queries over %d keys",
             (int)d->ring, (int)d->window, (int)nq, (int)nk);
    }
}

void views_attn_bwd(const struct op_attn_bwd *d, struct op_views *o)
{
    begin(o, "attn_bwd");
    seqs_rule(o, d->seqs, false, 0);
    int64_t r = seqs_rows(d->seqs);
    OUT_LD(dq, VIEW_ACT, r, d->h * d->kdim, d->ldq);
    OUT_LD(dk, VIEW_ACT, r, d->g * d->kdim, d->ldk);
    OUT_LD(dv, VIEW_ACT, r, d->g * d->vdim, d->ldv);
    IN(d_o, VIEW_ACT, r, d->h * d->vdim);
    IN_LD(q, VIEW_ACT, r, d->h * d->kdim, d->ldq);
    IN_LD(k, VIEW_ACT, r, d->g * d->kdim, d->ldk);
    IN_LD(v, VIEW_ACT, r, d->g * d->vdim, d->ldv);
    IN(o, VIEW_ACT, r, d->h * d->vdim);
    IN(lse, VIEW_STAT, r, d->h);
    IN_OPT(o2, VIEW_ACT, r, d->h * d->vdim);
    IN_OPT(lse2, VIEW_STAT, r, d->h);
    INOUT_OPT(dp, VIEW_STAT, 1, d->o2.p ? 2 : 1);
    RULE(o, d->g > 0 && d->h > 0 && d->h % d->g == 0, "%" PRId64 " query heads over %" PRId64 " kv heads", d->h, d->g);
    RULE(o, d->window >= 0 && d->window2 >= 0, "window %d, window2 %d", (int)d->window, (int)d->window2);
    RULE(o, !d->o2.p == !d->lse2.p, "o2 and lse2 come together");
}

void views_conv(const struct op_conv *d, struct op_views *o)
{
    begin(o, "conv");
    seqs_rule(o, d->seqs, true, 0);
    int64_t r = seqs_rows(d->seqs);
    OUT(y, VIEW_ACT, r, d->dim);
    OUT_OPT(pre, VIEW_ACT, r, d->dim);
    IN(x, VIEW_ACT, r, d->dim);
    IN(w, VIEW_ACT, d->dim, d->width);
    INOUT_OPT(state, VIEW_EITHER, d->seqs ? d->seqs->n : 0, (d->width - 1) * d->dim);
    RULE(o, d->width >= 1 && d->width <= 4, "width %" PRId64 ", possible are 1 to 4", d->width);
}

void views_conv_bwd(const struct op_conv_bwd *d, struct op_views *o)
{
    begin(o, "conv_bwd");
    seqs_rule(o, d->seqs, true, 0);
    int64_t r = seqs_rows(d->seqs);
    OUT(dx, VIEW_ACT, r, d->dim);
    INOUT_OPT(dw, VIEW_EITHER, d->dim, d->width);
    IN(dy, VIEW_ACT, r, d->dim);
    IN(pre, VIEW_ACT, r, d->dim);
    IN(x, VIEW_ACT, r, d->dim);
    IN(w, VIEW_ACT, d->dim, d->width);
    RULE(o, d->width >= 1 && d->width <= 4, "width %" PRId64 ", possible are 1 to 4", d->width);
}

static void gdn_heads_rule(struct op_views *o, int64_t h, int64_t hv)
{
    RULE(o, h > 0 && hv > 0 && hv % h == 0, "%" PRId64 " value heads over %" PRId64 " key heads", hv, h);
}

void views_gdn_prep(const struct op_gdn_prep *d, struct op_views *o)
{
    begin(o, "gdn_prep");
    int64_t r = d->rows, hk = d->h * d->kdim, hvv = d->hv * d->vdim;
    OUT(q, VIEW_ACT, r, hk);
    OUT(k, VIEW_ACT, r, hk);
    OUT(v, VIEW_ACT, r, hvv);
    OUT_OPT(rq, VIEW_STAT, r, d->h);
    OUT_OPT(rk, VIEW_STAT, r, d->h);
    OUT(g, VIEW_STAT, r, d->hv);
    OUT(beta, VIEW_STAT, r, d->hv);
    IN(q_lin, VIEW_ACT, r, hk);
    IN(k_lin, VIEW_ACT, r, hk);
    IN(v_lin, VIEW_ACT, r, hvv);
    IN(a_lin, VIEW_EITHER, r, d->hv);
    IN(b_lin, VIEW_EITHER, r, d->hv);
    IN(a_log, VIEW_STAT, 1, d->hv);
    IN(dt_bias, VIEW_STAT, 1, d->hv);
    gdn_heads_rule(o, d->h, d->hv);
}

void views_gdn_prep_bwd(const struct op_gdn_prep_bwd *d, struct op_views *o)
{
    begin(o, "gdn_prep_bwd");
    int64_t r = d->rows, hk = d->h * d->kdim, hvv = d->hv * d->vdim;
    OUT(dq_lin, VIEW_ACT, r, hk);
    OUT(dk_lin, VIEW_ACT, r, hk);
    OUT(dv_lin, VIEW_ACT, r, hvv);
    OUT(da_lin, VIEW_EITHER, r, d->hv);
    OUT(db_lin, VIEW_EITHER, r, d->hv);
    INOUT_OPT(da_log, VIEW_STAT, 1, d->hv);
    INOUT_OPT(ddt_bias, VIEW_STAT, 1, d->hv);
    IN(dq, VIEW_ACT, r, hk);
    IN(dk, VIEW_ACT, r, hk);
    IN(dv, VIEW_ACT, r, hvv);
    IN(dg, VIEW_STAT, r, d->hv);
    IN(dbeta, VIEW_STAT, r, d->hv);
    IN(q, VIEW_ACT, r, hk);
    IN(k, VIEW_ACT, r, hk);
    IN(rq, VIEW_STAT, r, d->h);
    IN(rk, VIEW_STAT, r, d->h);
    IN(g, VIEW_STAT, r, d->hv);
    IN(beta, VIEW_STAT, r, d->hv);
    IN(q_lin, VIEW_ACT, r, hk);
    IN(k_lin, VIEW_ACT, r, hk);
    IN(v_lin, VIEW_ACT, r, hvv);
    IN(a_lin, VIEW_EITHER, r, d->hv);
    IN(a_log, VIEW_STAT, 1, d->hv);
    IN(dt_bias, VIEW_STAT, 1, d->hv);
    gdn_heads_rule(o, d->h, d->hv);
}

void views_gdn(const struct op_gdn *d, struct op_views *o)
{
    begin(o, "gdn");
    seqs_rule(o, d->seqs, true, 0);
    int64_t r = seqs_rows(d->seqs), n = d->seqs ? d->seqs->n : 0, state = d->hv * d->kdim * d->vdim;
    OUT(o, VIEW_ACT, r, d->hv * d->vdim);
    OUT_OPT(s_out, VIEW_STAT, n, state);
    OUT_OPT(ainv, VIEW_EITHER, r, d->hv * GDN_CHUNK);
    OUT_OPT(hs, VIEW_EITHER, d->seqs && !o->bad[0] ? gdn_chunks(d->seqs) : 0, state);
    IN(q, VIEW_ACT, r, d->h * d->kdim);
    IN(k, VIEW_ACT, r, d->h * d->kdim);
    IN(v, VIEW_ACT, r, d->hv * d->vdim);
    IN(g, VIEW_STAT, r, d->hv);
    IN(beta, VIEW_STAT, r, d->hv);
    IN_OPT(s_in, VIEW_STAT, n, state);
    may_alias(o, &d->s_out, &d->s_in);
    gdn_heads_rule(o, d->h, d->hv);
}

void views_gdn_bwd(const struct op_gdn_bwd *d, struct op_views *o)
{
    begin(o, "gdn_bwd");
    seqs_rule(o, d->seqs, true, 0);
    int64_t r = seqs_rows(d->seqs);
    OUT(dq, VIEW_ACT, r, d->h * d->kdim);
    OUT(dk, VIEW_ACT, r, d->h * d->kdim);
    OUT(dv, VIEW_ACT, r, d->hv * d->vdim);
    OUT(dg, VIEW_STAT, r, d->hv);
    OUT(dbeta, VIEW_STAT, r, d->hv);
    IN(d_o, VIEW_ACT, r, d->hv * d->vdim);
    IN(q, VIEW_ACT, r, d->h * d->kdim);
    IN(k, VIEW_ACT, r, d->h * d->kdim);
    IN(v, VIEW_ACT, r, d->hv * d->vdim);
    IN(g, VIEW_STAT, r, d->hv);
    IN(beta, VIEW_STAT, r, d->hv);
    IN_OPT(ainv, VIEW_EITHER, r, d->hv * GDN_CHUNK);
    IN_OPT(hs, VIEW_EITHER, d->seqs && !o->bad[0] ? gdn_chunks(d->seqs) : 0, d->hv * d->kdim * d->vdim);
    gdn_heads_rule(o, d->h, d->hv);
}

void views_gdn_out(const struct op_gdn_out *d, struct op_views *o)
{
    begin(o, "gdn_out");
    OUT(y, VIEW_ACT, d->rows, d->hv * d->vdim);
    OUT_OPT(rstd, VIEW_STAT, d->rows, d->hv);
    IN(o, VIEW_ACT, d->rows, d->hv * d->vdim);
    IN(w, VIEW_ACT, 1, d->vdim);
    IN_OPT(gate, VIEW_ACT, d->rows, d->hv * d->vdim);
    may_alias(o, &d->y, &d->o);
    RULE(o, d->vdim > 0 && d->eps >= 0, "vdim %" PRId64 ", eps %g", d->vdim, d->eps);
}

void views_gdn_out_bwd(const struct op_gdn_out_bwd *d, struct op_views *o)
{
    begin(o, "gdn_out_bwd");
    OUT(d_o, VIEW_ACT, d->rows, d->hv * d->vdim);
    put(o, "dgate", &d->dgate, VIEW_OUT, VIEW_ACT, d->gate.p != NULL, d->rows, d->hv * d->vdim, 0);
    INOUT_OPT(dw, VIEW_EITHER, 1, d->vdim);
    IN(dy, VIEW_ACT, d->rows, d->hv * d->vdim);
    IN(o, VIEW_ACT, d->rows, d->hv * d->vdim);
    IN(w, VIEW_ACT, 1, d->vdim);
    IN_OPT(gate, VIEW_ACT, d->rows, d->hv * d->vdim);
    IN(rstd, VIEW_STAT, d->rows, d->hv);
    RULE(o, d->vdim > 0, "vdim %" PRId64, d->vdim);
    RULE(o, d->gate.p || !d->dgate.p, "dgate without gate");
}

static const char *const mix_x[3] = {"x[0]", "x[1]", "x[2]"}, *const mix_dx[3] = {"dx[0]", "dx[1]", "dx[2]"};

void views_mix(const struct op_mix *d, struct op_views *o)
{
    begin(o, "mix");
    OUT(y, VIEW_ACT, 1, d->n);
    RULE(o, d->count >= 1 && d->count <= 3, "%d inputs, possible are 1 to 3", d->count);
    for (int i = 0; i < MIN(d->count, 3); i++)
        put(o, mix_x[i], &d->x[i], VIEW_IN, VIEW_ACT, true, 1, d->n, 0);
}

void views_mix_bwd(const struct op_mix_bwd *d, struct op_views *o)
{
    begin(o, "mix_bwd");
    RULE(o, d->count >= 1 && d->count <= 3, "%d inputs, possible are 1 to 3", d->count);
    for (int i = 0; i < MIN(d->count, 3); i++)
        put(o, mix_dx[i], &d->dx[i], VIEW_OUT, VIEW_ACT, false, 1, d->n, 0);
    INOUT_OPT(dp, VIEW_STAT, 1, d->count);
    IN(dy, VIEW_ACT, 1, d->n);
    for (int i = 0; i < MIN(d->count, 3); i++) {
        put(o, mix_x[i], &d->x[i], VIEW_IN, VIEW_ACT, d->dp.p != NULL, 1, d->n, 0);
        may_alias(o, &d->dx[i], &d->x[i]);
    }
}

void views_axpby(const struct op_axpby *d, struct op_views *o)
{
    begin(o, "axpby");
    INOUT(y, VIEW_EITHER, 1, d->n);
    IN_OPT(x, VIEW_EITHER, 1, d->n);
}

void views_colsum(const struct op_colsum *d, struct op_views *o)
{
    begin(o, "colsum");
    INOUT(y, VIEW_EITHER, 1, d->n);
    IN_LD(x, VIEW_ACT, d->rows, d->n, d->ldx);
}

void views_align_loss(const struct op_align_loss *d, struct op_views *o)
{
    begin(o, "align_loss");
    OUT(loss, VIEW_STAT, 1, d->rows);
    OUT_OPT(ds, VIEW_ACT, d->rows, d->dim);
    IN(s, VIEW_ACT, d->rows, d->dim);
    IN(t, VIEW_ACT, d->rows, d->dim);
    IN_OPT(w, VIEW_STAT, 1, d->rows);
    RULE(o, d->dim > 0, "dim %" PRId64, d->dim);
}

void views_head_ce(const struct op_head_ce *d, struct op_views *o)
{
    begin(o, "head_ce");
    OUT(lp, VIEW_STAT, 1, d->rows);
    OUT_OPT(best, VIEW_I32, 1, d->rows);
    OUT_OPT(dh, VIEW_ACT, d->rows, d->dim);
    INOUT_OPT(dw, VIEW_EITHER, d->vocab, d->dim);
    IN(h, VIEW_ACT, d->rows, d->dim);
    IN(w, VIEW_ACT, d->vocab, d->dim);
    index_view(IN(target, VIEW_I32, 1, d->rows), d->vocab, true);
    IN_OPT(wt, VIEW_STAT, 1, d->rows);
    RULE(o, d->vocab > 0 && d->vocab <= INT32_MAX, "vocabulary of %" PRId64, d->vocab);
}

void views_head_kl(const struct op_head_kl *d, struct op_views *o)
{
    begin(o, "head_kl");
    OUT(kl, VIEW_STAT, 1, d->rows);
    OUT_OPT(dhs, VIEW_ACT, d->rows, d->dim);
    INOUT_OPT(dws, VIEW_EITHER, d->vocab, d->dim);
    IN(hs, VIEW_ACT, d->rows, d->dim);
    IN(ws, VIEW_ACT, d->vocab, d->dim);
    IN(ht, VIEW_ACT, d->rows, d->dim);
    IN(wt_head, VIEW_ACT, d->vocab, d->dim);
    IN_OPT(wt, VIEW_STAT, 1, d->rows);
    RULE(o, d->vocab > 0 && d->tau > 0, "vocabulary of %" PRId64 ", tau %g", d->vocab, d->tau);
}

void views_topk(const struct op_topk *d, struct op_views *o)
{
    begin(o, "topk");
    OUT(ids, VIEW_I32, d->rows, d->k);
    OUT_OPT(vals, VIEW_STAT, d->rows, d->k);
    IN(z, VIEW_EITHER, d->rows, d->n);
    RULE(o, d->k >= 1 && d->k <= 64 && d->k <= d->n && d->n <= INT32_MAX, "k %" PRId64 " of %" PRId64 ", possible are 1 to 64", d->k, d->n);
}

void views_adamw(const struct op_adamw *d, struct op_views *o)
{
    begin(o, "adamw");
    INOUT(w, VIEW_STAT, 1, d->n);
    OUT_OPT(w_act, VIEW_ACT, 1, d->n);
    INOUT(m, VIEW_STAT, 1, d->n);
    INOUT(v, VIEW_STAT, 1, d->n);
    IN(g, VIEW_STAT, 1, d->n);
    RULE(o, d->bc1 > 0 && d->bc2 > 0, "bias corrections %g and %g", d->bc1, d->bc2);
}

void views_sumsq(const struct op_sumsq *d, struct op_views *o)
{
    begin(o, "sumsq");
    put(o, "out", &d->out, d->accumulate ? VIEW_INOUT : VIEW_OUT, VIEW_F64, true, 1, 1, 0);
    IN(x, VIEW_EITHER, 1, d->n);
}

void views_gather(const struct op_gather *d, struct op_views *o)
{
    begin(o, "gather");
    int64_t ldd = d->ldd ? d->ldd : d->dim, lds = d->lds ? d->lds : d->dim;
    int64_t dst_rows = d->di.p && ldd > 0 ? CEIL_DIV(d->dst.n - d->dim + 1, ldd) : d->rows,
            src_rows = d->si.p && lds > 0 ? CEIL_DIV(d->src.n - d->dim + 1, lds) : d->rows;
    OUT_LD(dst, VIEW_ANY, MAX(dst_rows, 0), d->dim, d->ldd);
    IN_LD(src, VIEW_ANY, MAX(src_rows, 0), d->dim, d->lds);
    index_view(IN_OPT(di, VIEW_I32, 1, d->rows), MAX(dst_rows, 0), false);
    index_view(IN_OPT(si, VIEW_I32, 1, d->rows), MAX(src_rows, 0), false);
    RULE(o, d->dst.dt == d->src.dt, "from %s to %s", dtype_name(d->src.dt), dtype_name(d->dst.dt));
}

void views_cast(const struct op_cast *d, struct op_views *o)
{
    begin(o, "cast");
    OUT(dst, VIEW_ANY, 1, d->n);
    IN(src, VIEW_ANY, 1, d->n);
}
