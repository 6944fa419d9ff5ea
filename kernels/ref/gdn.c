/* Gated DeltaNet: the maps around it, the recurrence token by token, its backward with all states of a chunk replayed, the output norm; the
 * short convolution. */
#include "kernels/ref/ref.h"

void REF(conv)(struct backend *be, const struct op_conv *d)
{
    int64_t n = d->dim, w = d->width, keep = w - 1;
    REAL *tail = ref_scratch(be, keep * n);
    for (int32_t seq = 0; tail && seq < d->seqs->n; seq++) {
        int64_t first = d->seqs->q_off[seq], len = seqs_qlen(d->seqs, seq);
        REAL *state = d->state.p ? ref_p(d->state) + seq * keep * n : NULL;
        for (int64_t t = 0; t < len; t++)
            for (int64_t j = 0; j < n; j++) {
                REAL sum = 0;
                for (int64_t i = 0; i < w; i++) {
                    int64_t src = t - keep + i; /* < 0: before this call, kept in the state */
                    REAL x = src >= 0 ? ref_p(d->x)[(first + src) * n + j] : state ? state[(src + keep) * n + j] : 0;
                    sum += ref_p(d->w)[j * w + i] * x;
                }
                if (d->pre.p)
                    ref_p(d->pre)[(first + t) * n + j] = sum;
                ref_p(d->y)[(first + t) * n + j] = ref_silu(sum);
            }
        if (!state || !keep)
            continue;
        for (int64_t i = 0; i < keep; i++) { /* the last keep rows of (state, x) */
            int64_t src = len - keep + i;
            memcpy(tail + i * n, src >= 0 ? ref_p(d->x) + (first + src) * n : state + (src + keep) * n, (size_t)n * sizeof(REAL));
        }
        memcpy(state, tail, (size_t)(keep * n) * sizeof(REAL));
    }
    free(tail);
}

void REF(conv_bwd)(struct backend *be, const struct op_conv_bwd *d)
{
    UNUSED(be);
    int64_t n = d->dim, w = d->width;
    for (int32_t seq = 0; seq < d->seqs->n; seq++) {
        int64_t first = d->seqs->q_off[seq], len = seqs_qlen(d->seqs, seq);
        for (int64_t t = 0; t < len; t++)
            memset(ref_p(d->dx) + (first + t) * n, 0, (size_t)n * sizeof(REAL));
        for (int64_t t = 0; t < len; t++)
            for (int64_t j = 0; j < n; j++) {
                REAL dc = ref_p(d->dy)[(first + t) * n + j] * ref_silu_d(ref_p(d->pre)[(first + t) * n + j]);
                for (int64_t i = 0; i < w; i++) {
                    int64_t src = t - (w - 1) + i;
                    if (src < 0)
                        continue;
                    ref_p(d->dx)[(first + src) * n + j] += dc * ref_p(d->w)[j * w + i];
                    if (d->dw.p)
                        ref_p(d->dw)[j * w + i] += dc * ref_p(d->x)[(first + src) * n + j];
                }
            }
    }
}

static void prep_qk(REAL *y, REAL *r, const REAL *x, int64_t n, bool silu)
{
    REAL sum = 0;
    for (int64_t i = 0; i < n; i++) {
        y[i] = silu ? ref_silu(x[i]) : x[i];
        sum += y[i] * y[i];
    }
    REAL inv = 1 / ref_sqrt(sum + (REAL)1e-6);
    for (int64_t i = 0; i < n; i++)
        y[i] *= inv;
    if (r)
        *r = inv;
}

static REAL softplus(REAL x)
{
    return x > 20 ? x : (REAL)log1p(exp((double)x));
}

void REF(gdn_prep)(struct backend *be, const struct op_gdn_prep *d)
{
    UNUSED(be);
    for (int64_t i = 0; i < d->rows * d->h; i++) {
        prep_qk(ref_p(d->q) + i * d->kdim, d->rq.p ? ref_p(d->rq) + i : NULL, ref_p(d->q_lin) + i * d->kdim, d->kdim, d->silu);
        prep_qk(ref_p(d->k) + i * d->kdim, d->rk.p ? ref_p(d->rk) + i : NULL, ref_p(d->k_lin) + i * d->kdim, d->kdim, d->silu);
    }
    for (int64_t i = 0; i < d->rows * d->hv * d->vdim; i++)
        ref_p(d->v)[i] = d->silu ? ref_silu(ref_p(d->v_lin)[i]) : ref_p(d->v_lin)[i];
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t h = 0; h < d->hv; h++) {
            int64_t i = r * d->hv + h;
            ref_p(d->beta)[i] = ref_sigmoid(ref_p(d->b_lin)[i]) * (d->neg_eigval ? 2 : 1);
            ref_p(d->g)[i] = -ref_exp(ref_p(d->a_log)[h]) * softplus(ref_p(d->a_lin)[i] + ref_p(d->dt_bias)[h]);
        }
}

/* y = r f(x): dx = r (dy - (dy.y) y) f'(x). */
static void prep_qk_bwd(REAL *dx, const REAL *dy, const REAL *y, REAL r, const REAL *x, int64_t n, bool silu)
{
    REAL dot = 0;
    for (int64_t i = 0; i < n; i++)
        dot += dy[i] * y[i];
    for (int64_t i = 0; i < n; i++)
        dx[i] = r * (dy[i] - dot * y[i]) * (silu ? ref_silu_d(x[i]) : 1);
}

void REF(gdn_prep_bwd)(struct backend *be, const struct op_gdn_prep_bwd *d)
{
    UNUSED(be);
    for (int64_t i = 0; i < d->rows * d->h; i++) {
        int64_t o = i * d->kdim;
        prep_qk_bwd(ref_p(d->dq_lin) + o, ref_p(d->dq) + o, ref_p(d->q) + o, ref_p(d->rq)[i], ref_p(d->q_lin) + o, d->kdim, d->silu);
        prep_qk_bwd(ref_p(d->dk_lin) + o, ref_p(d->dk) + o, ref_p(d->k) + o, ref_p(d->rk)[i], ref_p(d->k_lin) + o, d->kdim, d->silu);
    }
    for (int64_t i = 0; i < d->rows * d->hv * d->vdim; i++)
        ref_p(d->dv_lin)[i] = ref_p(d->dv)[i] * (d->silu ? ref_silu_d(ref_p(d->v_lin)[i]) : 1);
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t h = 0; h < d->hv; h++) {
            int64_t i = r * d->hv + h;
            REAL b = ref_p(d->beta)[i], z = ref_p(d->a_lin)[i] + ref_p(d->dt_bias)[h], dg = ref_p(d->dg)[i];
            /* beta = 2 sig: 2 sig (1 - sig) = beta (1 - beta / 2) */
            ref_p(d->db_lin)[i] = ref_p(d->dbeta)[i] * b * (d->neg_eigval ? 1 - b / 2 : 1 - b);
            REAL da = -ref_exp(ref_p(d->a_log)[h]) * (z > 20 ? 1 : ref_sigmoid(z)) * dg;
            ref_p(d->da_lin)[i] = da;
            if (d->da_log.p)
                ref_p(d->da_log)[h] += dg * ref_p(d->g)[i];
            if (d->ddt_bias.p)
                ref_p(d->ddt_bias)[h] += da;
        }
}

/* One value head of one sequence. */
struct gdn_head {
    int64_t kdim, vdim, h, hv, head, key_head;
    const REAL *q, *k, *v, *g, *beta;
};
static const REAL *head_k(const struct gdn_head *x, const REAL *base, int64_t row)
{
    return base + (row * x->h + x->key_head) * x->kdim;
}
static int64_t head_v(const struct gdn_head *x, int64_t row)
{
    return (row * x->hv + x->head) * x->vdim;
}

/* Fields that op_gdn and op_gdn_bwd share. */
#define GDN_HEAD(d, head_)                                                                                                                 \
    {                                                                                                                                      \
        .kdim = (d)->kdim, .vdim = (d)->vdim, .h = (d)->h, .hv = (d)->hv, .head = (head_), .key_head = (head_) / ((d)->hv / (d)->h),       \
        .q = ref_p((d)->q), .k = ref_p((d)->k), .v = ref_p((d)->v), .g = ref_p((d)->g), .beta = ref_p((d)->beta)                           \
    }

/* S (in place) becomes the state after token row; delta [V] = beta (v - S'^T k). */
static void gdn_token(const struct gdn_head *x, REAL *s, REAL *delta, int64_t row)
{
    const REAL *k = head_k(x, x->k, row), *v = x->v + head_v(x, row);
    REAL alpha = ref_exp(x->g[row * x->hv + x->head]), beta = x->beta[row * x->hv + x->head];
    for (int64_t i = 0; i < x->kdim * x->vdim; i++)
        s[i] *= alpha;
    for (int64_t c = 0; c < x->vdim; c++) {
        REAL u = 0;
        for (int64_t i = 0; i < x->kdim; i++)
            u += s[i * x->vdim + c] * k[i];
        delta[c] = beta * (v[c] - u);
    }
    for (int64_t i = 0; i < x->kdim; i++)
        for (int64_t c = 0; c < x->vdim; c++)
            s[i * x->vdim + c] += k[i] * delta[c];
}

/* Rows of (I + strict_lower(beta_i k_i.k_j))^-1 by forward substitution: row i = e_i - sum_{j<i} L_ij row_j. */
static void gdn_inverse(const struct gdn_head *x, REAL *ainv, int64_t row0, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        REAL *out = ainv + ((row0 + i) * x->hv + x->head) * GDN_CHUNK;
        memset(out, 0, GDN_CHUNK * sizeof *out);
        out[i] = 1;
        for (int64_t j = 0; j < i; j++) {
            REAL l = 0;
            for (int64_t c = 0; c < x->kdim; c++)
                l += head_k(x, x->k, row0 + i)[c] * head_k(x, x->k, row0 + j)[c];
            l *= x->beta[(row0 + i) * x->hv + x->head];
            const REAL *other = ainv + ((row0 + j) * x->hv + x->head) * GDN_CHUNK;
            for (int64_t c = 0; c <= j; c++)
                out[c] -= l * other[c];
        }
    }
}

void REF(gdn)(struct backend *be, const struct op_gdn *d)
{
    int64_t kv = d->kdim * d->vdim, chunk0 = 0;
    REAL *s = ref_scratch(be, kv + d->vdim);
    for (int32_t seq = 0; s && seq < d->seqs->n; seq++) {
        int64_t first = d->seqs->q_off[seq], len = seqs_qlen(d->seqs, seq);
        for (int64_t head = 0; head < d->hv; head++) {
            struct gdn_head x = GDN_HEAD(d, head);
            int64_t at = (seq * d->hv + head) * kv;
            if (d->s_in.p)
                memcpy(s, ref_p(d->s_in) + at, (size_t)kv * sizeof *s);
            else
                memset(s, 0, (size_t)kv * sizeof *s);
            for (int64_t t = 0; t < len; t++) {
                int64_t row = first + t;
                if (t % GDN_CHUNK == 0 && d->hs.p)
                    memcpy(ref_p(d->hs) + ((chunk0 + t / GDN_CHUNK) * d->hv + head) * kv, s, (size_t)kv * sizeof *s);
                if (t % GDN_CHUNK == 0 && d->ainv.p)
                    gdn_inverse(&x, ref_p(d->ainv), row, MIN(len - t, GDN_CHUNK));
                gdn_token(&x, s, s + kv, row);
                const REAL *q = head_k(&x, x.q, row);
                REAL *o = ref_p(d->o) + head_v(&x, row);
                for (int64_t c = 0; c < d->vdim; c++) {
                    REAL sum = 0;
                    for (int64_t i = 0; i < d->kdim; i++)
                        sum += s[i * d->vdim + c] * q[i];
                    o[c] = (REAL)d->scale * sum;
                }
            }
            if (d->s_out.p)
                memcpy(ref_p(d->s_out) + at, s, (size_t)kv * sizeof *s);
        }
        chunk0 += CEIL_DIV(len, GDN_CHUNK);
    }
    free(s);
}

/* Scratch of one head's backward: states before each token of a chunk and after its last, delta of each token, the running dS. */
struct gdn_replay {
    REAL *states, *delta, *ds, *starts, *ddelta;
};

/* The step back over one token; st[0], st[1]: state before and after it. */
static void gdn_token_bwd(const struct op_gdn_bwd *d, const struct gdn_head *x, struct gdn_replay *m, const REAL *before, const REAL *after,
                          const REAL *delta, int64_t row)
{
    int64_t kd = x->kdim, vd = x->vdim, at = row * x->hv + x->head;
    const REAL *q = head_k(x, x->q, row), *k = head_k(x, x->k, row), *g_o = ref_p(d->d_o) + head_v(x, row);
    REAL *dq = ref_p(d->dq) + (row * x->h + x->key_head) * kd, *dk = ref_p(d->dk) + (row * x->h + x->key_head) * kd,
         *dv = ref_p(d->dv) + head_v(x, row);
    REAL alpha = ref_exp(x->g[at]), beta = x->beta[at], scale = (REAL)d->scale, dbeta = 0, dg = 0;
    for (int64_t i = 0; i < kd; i++) {
        REAL sum = 0;
        for (int64_t c = 0; c < vd; c++) {
            m->ds[i * vd + c] += scale * q[i] * g_o[c];
            sum += after[i * vd + c] * g_o[c];
        }
        dq[i] += scale * sum;
    }
    for (int64_t c = 0; c < vd; c++) { /* u = S'^T k again: delta / beta would lose it at beta = 0 */
        REAL dd = 0, u = 0;
        for (int64_t i = 0; i < kd; i++) {
            dd += m->ds[i * vd + c] * k[i];
            u += alpha * before[i * vd + c] * k[i];
        }
        m->ddelta[c] = dd;
        dv[c] = beta * dd;
        dbeta += dd * (x->v[head_v(x, row) + c] - u);
    }
    for (int64_t i = 0; i < kd; i++) {
        REAL sum = 0;
        for (int64_t c = 0; c < vd; c++) {
            REAL du = -beta * m->ddelta[c], sbar = alpha * before[i * vd + c];
            sum += m->ds[i * vd + c] * delta[c] + sbar * du;
            m->ds[i * vd + c] += k[i] * du;
            dg += m->ds[i * vd + c] * sbar;
            m->ds[i * vd + c] *= alpha;
        }
        dk[i] += sum;
    }
    ref_p(d->dbeta)[at] = dbeta;
    ref_p(d->dg)[at] = dg;
}

/* States at chunk starts in one pass forward, then each chunk from the last: its states replayed, its tokens walked backwards. */
static void gdn_head_bwd(const struct op_gdn_bwd *d, const struct gdn_head *x, struct gdn_replay *m, int64_t first, int64_t len)
{
    int64_t kv = x->kdim * x->vdim, chunks = CEIL_DIV(len, GDN_CHUNK);
    size_t bytes = (size_t)kv * sizeof(REAL);
    REAL *s = m->states;
    memset(s, 0, bytes);
    for (int64_t t = 0; t < len; t++) {
        if (t % GDN_CHUNK == 0)
            memcpy(m->starts + t / GDN_CHUNK * kv, s, bytes);
        gdn_token(x, s, m->delta, first + t);
    }
    memset(m->ds, 0, bytes);
    for (int64_t c = chunks - 1; c >= 0; c--) {
        int64_t t0 = c * GDN_CHUNK, n = MIN(len - t0, GDN_CHUNK);
        memcpy(m->states, m->starts + c * kv, bytes);
        for (int64_t i = 0; i < n; i++) {
            memcpy(m->states + (i + 1) * kv, m->states + i * kv, bytes);
            gdn_token(x, m->states + (i + 1) * kv, m->delta + i * x->vdim, first + t0 + i);
        }
        for (int64_t i = n - 1; i >= 0; i--)
            gdn_token_bwd(d, x, m, m->states + i * kv, m->states + (i + 1) * kv, m->delta + i * x->vdim, first + t0 + i);
    }
}

void REF(gdn_bwd)(struct backend *be, const struct op_gdn_bwd *d)
{
    int64_t kv = d->kdim * d->vdim, most = 0;
    for (int32_t seq = 0; seq < d->seqs->n; seq++)
        most = MAX(most, (int64_t)seqs_qlen(d->seqs, seq));
    REAL *buf = ref_scratch(be, (GDN_CHUNK + 1) * kv + GDN_CHUNK * d->vdim + kv + CEIL_DIV(most, GDN_CHUNK) * kv + d->vdim);
    if (!buf)
        return;
    struct gdn_replay m = {.states = buf, .delta = buf + (GDN_CHUNK + 1) * kv};
    m.ds = m.delta + GDN_CHUNK * d->vdim;
    m.ddelta = m.ds + kv;
    m.starts = m.ddelta + d->vdim;
    memset(d->dq.p, 0, (size_t)(d->seqs->rows * d->h * d->kdim) * sizeof(REAL));
    memset(d->dk.p, 0, (size_t)(d->seqs->rows * d->h * d->kdim) * sizeof(REAL));
    for (int32_t seq = 0; seq < d->seqs->n; seq++)
        for (int64_t head = 0; head < d->hv; head++) {
            struct gdn_head x = GDN_HEAD(d, head);
            gdn_head_bwd(d, &x, &m, d->seqs->q_off[seq], seqs_qlen(d->seqs, seq));
        }
    free(buf);
}

void REF(gdn_out)(struct backend *be, const struct op_gdn_out *d)
{
    UNUSED(be);
    for (int64_t i = 0; i < d->rows * d->hv; i++) {
        const REAL *o = ref_p(d->o) + i * d->vdim, *w = ref_p(d->w), *gate = d->gate.p ? ref_p(d->gate) + i * d->vdim : NULL;
        REAL *y = ref_p(d->y) + i * d->vdim, sum = 0;
        for (int64_t c = 0; c < d->vdim; c++)
            sum += o[c] * o[c];
        REAL r = 1 / ref_sqrt(sum / (REAL)d->vdim + (REAL)d->eps);
        for (int64_t c = 0; c < d->vdim; c++)
            y[c] = o[c] * r * w[c] * (gate ? ref_silu(gate[c]) : 1);
        if (d->rstd.p)
            ref_p(d->rstd)[i] = r;
    }
}

/* xh = o r, f = silu(gate):  do = r (w dy f - xh mean(w dy f xh)),  dgate = dy xh w silu'(gate),  dw += dy xh f. */
void REF(gdn_out_bwd)(struct backend *be, const struct op_gdn_out_bwd *d)
{
    UNUSED(be);
    for (int64_t i = 0; i < d->rows * d->hv; i++) {
        int64_t at = i * d->vdim;
        const REAL *o = ref_p(d->o) + at, *dy = ref_p(d->dy) + at, *w = ref_p(d->w), *gate = d->gate.p ? ref_p(d->gate) + at : NULL;
        REAL r = ref_p(d->rstd)[i], mean = 0;
        for (int64_t c = 0; c < d->vdim; c++)
            mean += w[c] * dy[c] * (gate ? ref_silu(gate[c]) : 1) * o[c] * r;
        mean /= (REAL)d->vdim;
        for (int64_t c = 0; c < d->vdim; c++) {
            REAL f = gate ? ref_silu(gate[c]) : 1, xh = o[c] * r;
            ref_p(d->d_o)[at + c] = r * (w[c] * dy[c] * f - xh * mean);
            if (gate)
                ref_p(d->dgate)[at + c] = dy[c] * xh * w[c] * ref_silu_d(gate[c]);
            if (d->dw.p)
                ref_p(d->dw)[c] += dy[c] * xh * f;
        }
    }
}
