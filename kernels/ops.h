/*
 * One descriptor a op. be_OP(be, &(struct op_OP){...}) checks shapes, counts FLOPs and bytes and calls the backend. Shape letters: R
 * rows (packed tokens), D width, H query heads, G kv heads, K key head dim, V value head dim, F ffn, N vocabulary, C chunk. All
 * row-major, contiguous unless a ld is given. Activations have be->act, "stat" tensors be->stat, weights be->act. Activation gradients
 * are overwritten (=); parameter gradients are accumulated (+=). A view with p NULL is absent. Inputs and outputs do not alias unless
 * said. Equations: spec numbers in brackets are sections of the operator notes ("kernels.md") and of the DASH paper; formulas are
 * restated here so that this file is enough.
 */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include "kernels/backend.h"

/*
 * c[m,n] (=|+=) op(a) op(b) (+ bias[n]).  ta: a stored [k,m] else [m,k];  tb: b stored [n,k] (a weight, out x in) else [k,n].  lda,
 *   ldb, ldc: row strides of the stored
 * matrices, 0 = tight. Each element is one FMA chain over k ascending, started from c (accumulate) or 0; the bias is added after it.
 * Forms used: y = x W^T (tb); dx = dy W (neither); dW += dy^T x (ta, accumulate).
 */
struct op_gemm {
    struct view c, a, b, bias;
    int64_t m, n, k, lda, ldb, ldc;
    bool ta, tb, accumulate;
};
/* y[R,D] = w[id[r], :] */
struct op_embed {
    struct view y, w, ids; /* ids i32 [R] */
    int64_t rows, vocab, dim;
};
/* dw[id[r], :] += dy[r, :], rows in ascending order */
struct op_embed_bwd {
    struct view dw, dy, ids;
    int64_t rows, vocab, dim;
};
/* y = x * rstd * w, rstd[r] = 1/sqrt(mean_d x^2 + eps); rows x dim (per-head norms: rows = R*H, dim = head_dim). rstd stat, may be
 * absent. y may alias x. */
struct op_rmsnorm {
    struct view y, rstd, x, w;
    int64_t rows, dim;
    double eps;
};
/* dx (=, or += when dx_add) ; dw += (absent: skipped). */
struct op_rmsnorm_bwd {
    struct view dx, dw, dy, x, w, rstd;
    int64_t rows, dim;
    bool dx_add;
};
/* In place on x[R, heads, dim] (row stride ld, 0 = heads*dim): halves rotated, y[i] = x[i]c - x[i+dim/2]s, y[i+dim/2] = x[i+dim/2]c +
 * x[i]s with c,s = table[pos[r], i]; inverse: s -> -s. */
struct op_rope {
    struct view x, cos, sin, pos; /* tables stat [max_pos, dim/2]; pos i32 [R] */
    int64_t rows, heads, dim, ld, max_pos;
    bool inverse;
};
/* h = silu(g) * u, each [n]; h may alias g. With ld: gu is [R, 2F] holding g | u. */
struct op_swiglu {
    struct view h, g, u;
    int64_t n;
};
struct op_swiglu_bwd {
    struct view dg, du, dh, g, u; /* dg may alias dh or g; du may alias u */
    int64_t n;
};
/*
 * Causal softmax attention. q[R,H,K], k,v[kv rows,G,K|V]; o[R,H,V] ; lse stat [R,H] natural log of sum exp(scale q.k). window w > 0:
 * query at position t sees keys t-w+1..t (w with itself); 0: all. Query head h uses kv head h/(H/G). ldq, ldk, ldv: row strides in
 * elements (0 = tight), so that q|k|v may be one buffer. ring > 0: key position j of sequence s is stored at row kv_off[s] + j % ring
 * (only windows that fit). Second output (o2 present): the same queries under window2, from the same pass (search; Full + Window in one
 * kernel).
 */
struct op_attn {
    struct view q, k, v, o, lse, o2, lse2;
    const struct seqs *seqs;
    int64_t h, g, kdim, vdim, ldq, ldk, ldv;
    int32_t window, window2, ring;
    double scale;
};
/*
 * Gradient for d_o at the (mixed) output p1*o + p2*o2 (o2 absent: p1 = 1 expected). dq, dk, dv (=) with the strides of q, k, v. dp stat
 * [2] (optional) += {sum d_o.o, sum d_o.o2}, summed in a fixed order. Only for seqs without cache (kv_off NULL).
 */
struct op_attn_bwd {
    struct view dq, dk, dv, d_o, q, k, v, o, lse, o2, lse2, dp;
    const struct seqs *seqs;
    int64_t h, g, kdim, vdim, ldq, ldk, ldv;
    int32_t window, window2;
    double scale, p1, p2;
};
/* Depthwise causal convolution, width W <= 4, then SiLU: y[t,j] = silu(sum_w wt[j,w] x[t-W+1+w, j]). state [n seqs, W-1, dim] (last
 * inputs; absent = zeros) is read, then updated when present. pre: the sum before SiLU (saved). */
struct op_conv {
    struct view y, pre, x, w, state;
    const struct seqs *seqs;
    int64_t dim, width;
};
struct op_conv_bwd {
    struct view dx, dw, dy, pre, x, w; /* no state */
    const struct seqs *seqs;
    int64_t dim, width;
};
/*
 * GDN maps before the recurrence [kernels.md 1.3]. q_lin,k_lin [R,H*K], v_lin [R,HV*V] -> SiLU (silu true; false when a convolution
 * already did it), then q,k divided per head by sqrt(sum x^2 + 1e-6). beta = sigmoid(b_lin) (x2 with neg_eigval); g = -exp(A_log)
 * softplus(a_lin + dt_bias) (softplus linear above 20). a_lin, b_lin act [R,HV]; A_log, dt_bias stat [HV]. q,k,v act; rq,rk stat [R,H];
 * g,beta stat [R,HV]. q,k,v may not alias the inputs (backward needs the inputs). Row strides tight.
 */
struct op_gdn_prep {
    struct view q, k, v, rq, rk, g, beta, q_lin, k_lin, v_lin, a_lin, b_lin, a_log, dt_bias;
    int64_t rows, h, hv, kdim, vdim;
    bool silu, neg_eigval;
};
/* da_log, ddt_bias += (absent: skipped) */
struct op_gdn_prep_bwd {
    struct view dq_lin, dk_lin, dv_lin, da_lin, db_lin, da_log, ddt_bias;
    struct view dq, dk, dv, dg, dbeta, q, k, rq, rk, g, beta, q_lin, k_lin, v_lin, a_lin, a_log, dt_bias;
    int64_t rows, h, hv, kdim, vdim;
    bool silu, neg_eigval;
};
/*
 * Gated delta rule [kernels.md 1.4, 1.7], chunked (C = 64): S' = e^g S; u = beta (v - S'^T k); S = S' + k u^T; o = scale S^T q. Value
 * head hv uses key head hv/(HV/H). State [n seqs, HV, K, V] stat, K-major. s_in absent = zeros; s_out absent = not kept; s_out may be
 * s_in. Saved for the backward when present: ainv [R,HV,C] (unit-lower inverse rows, tight per chunk; for gdn_bwd of the same backend
 * only), hs [chunks,HV,K,V] state at each chunk's start, chunks = gdn_chunks(seqs).
 */
struct op_gdn {
    struct view o, s_out, ainv, hs, q, k, v, g, beta, s_in;
    const struct seqs *seqs;
    int64_t h, hv, kdim, vdim;
    double scale;
};
#define GDN_CHUNK 64
static inline int64_t gdn_chunks(const struct seqs *s)
{
    int64_t n = 0;
    for (int32_t i = 0; i < s->n; i++)
        n += CEIL_DIV(seqs_qlen(s, i), GDN_CHUNK);
    return n;
}
/* No gradient into or out of states (training sequences start at zero). */
struct op_gdn_bwd {
    struct view dq, dk, dv, dg, dbeta; /* dq,dk act [R,H,K]; dv act; dg,dbeta stat [R,HV] */
    struct view d_o, q, k, v, g, beta, ainv, hs;
    const struct seqs *seqs;
    int64_t h, hv, kdim, vdim;
    double scale;
};
/* y = o * rstd_V * w * silu(gate); per head; w [V]; rstd stat [R,HV]. gate absent: factor 1. y may alias o only when there is no backward. */
struct op_gdn_out {
    struct view y, rstd, o, w, gate;
    int64_t rows, hv, vdim;
    double eps;
};
struct op_gdn_out_bwd {
    struct view d_o, dgate, dw, dy, o, w, gate, rstd; /* dw += */
    int64_t rows, hv, vdim;
};
/* y[n] = sum_i p[i] x_i, 1 to 3 inputs; p host scalars. */
struct op_mix {
    struct view y, x[3];
    double p[3];
    int count;
    int64_t n;
};
/* dx_i = p_i dy (absent: skipped; dx_i may alias x_i); dp[i] += <dy, x_i>, stat [count], fixed order. */
struct op_mix_bwd {
    struct view dx[3], dp, dy, x[3];
    double p[3];
    int count;
    int64_t n;
};
/* y = a x + b y (x absent: y = b y) */
struct op_axpby {
    struct view y, x;
    double a, b;
    int64_t n;
};
/* y[n] += sum_r x[r, n] (bias gradients), rows ascending */
struct op_colsum {
    struct view y, x;
    int64_t rows, n, ldx;
};
/*
 * Stage-1 loss between student s and teacher t [R,D] with row weights w stat [R] (0 = masked). squared: loss_r = sum_d (s-t)^2, ds =
 *   2 w (s-t)  [DASH eq. 10];
 * else loss_r = ||s-t||_2 / sqrt(D), ds = w (s-t) / (||s-t|| sqrt(D)), 0 at equality. loss stat [R] is unweighted. ds absent: value only.
 */
struct op_align_loss {
    struct view loss, ds, s, t, w;
    int64_t rows, dim;
    bool squared;
};
/*
 * Linear head fused with cross-entropy, never the whole [R,N] logits: z = h W^T; lp[r] = log softmax(z)[target[r]] (stat [R]); loss
 * gradient of -sum_r w_r lp_r: dh = dz W (=), dw += dz^T h. target i32 [R], < 0 = row ignored (lp 0). dh, dw absent: value only. best
 * i32 [R] (optional): argmax id, lowest id on ties.
 */
struct op_head_ce {
    struct view lp, best, dh, dw, h, w, target, wt; /* wt stat [R] row weights; absent = 1 */
    int64_t rows, dim, vocab;
};
/*
 * Linear head fused with KL(teacher || student) [kernels.md 4, DASH eq. 13]: zs = hs Ws^T, zt = ht Wt^T, x = z/tau - lse, r = xs - xt,
 * kl_r = tau^2 sum_v pt (e^r - 1 - r) (unweighted, stat [R]). Gradient of sum_r wt_r kl_r: dhs = dz Ws (=), dws += dz^T hs, dz = wt tau
 * (ps - pt). Rows of weight 0 are skipped in the gradient (dhs row = 0), kl is still given unless skip_masked (then 0).
 */
struct op_head_kl {
    struct view kl, dhs, dws, hs, ws, ht, wt_head, wt;
    int64_t rows, dim, vocab;
    double tau;
    bool skip_masked;
};
/* The k largest of each row of z[rows, n] with their ids, descending, lower id first on ties. k <= 64. ids i32 [rows,k], vals stat
 * [rows,k] (optional). */
struct op_topk {
    struct view ids, vals, z;
    int64_t rows, n, k;
};
/* AdamW, decoupled decay: m,v,w stat (fp32 master); g stat; gs = g * gscale; w_act (optional, act): rounded copy. bc1 = 1-b1^t, bc2 =
 * 1-b2^t. m = b1 m + (1-b1) gs; v = b2 v + (1-b2) gs^2; w -= lr (m/bc1 / (sqrt(v/bc2) + eps) + wd w) */
struct op_adamw {
    struct view w, w_act, m, v, g;
    int64_t n;
    double lr, b1, b2, eps, wd, bc1, bc2, gscale;
};
/* out[0] (f64) (=|+=) sum x^2, fixed partial sums */
struct op_sumsq {
    struct view out, x;
    int64_t n;
    bool accumulate;
};
/* Row copies: dst[di[r], :] = src[si[r], :] (an index view absent = r); row strides lds/ldd in elements. For caches and for taking rows
 * out. */
struct op_gather {
    struct view dst, src, di, si; /* indices i32 [rows] */
    int64_t rows, dim, ldd, lds;
};
/* dst = src converted between dtypes */
struct op_cast {
    struct view dst, src;
    int64_t n;
};

#define X(op) void be_##op(struct backend *be, const struct op_##op *d);
BACKEND_OPS(X)
#undef X

/* FLOPs (2 per multiply-add; causal halves and windows counted exactly) and bytes moved at least once, of one descriptor. dtype sizes
 * from the views. */
struct cost {
    double flops, bytes;
};
#define X(op) struct cost cost_##op(const struct op_##op *d);
BACKEND_OPS(X)
#undef X

/* Table constructors, used by backend_open and the tests. */
int backend_open_ref_float(struct backend *be, struct err *e);
int backend_open_ref_double(struct backend *be, struct err *e);
int backend_open_cpu(struct backend *be, const char *isa, struct err *e);
int backend_open_cuda(struct backend *be, enum dtype act, struct err *e); /* E_ENV without a build or a device */

#endif
