/*
 * Depthwise causal convolution of width <= 4 with SiLU. Lanes are channels; an item is 64 tokens of one sequence. Forward goes along the
 * rows; backward takes strips of 64 channels, so that dc = dy silu'(pre) of the item's tokens and the 3 after them stays in the first
 * cache. dw: one chain over the tokens of an item, items summed in order.
 */
#include "kernels/cpu/isa/tile.h"

enum { MAX_WIDTH = 4, ROWS = 64, STRIP = 64 };

struct job {
    const struct op_conv *fwd;
    const struct op_conv_bwd *bwd;
    const struct seqs *seqs;
    int64_t dim, keep, padded; /* keep: width - 1; padded: dim in whole vectors */
    const int64_t *first;      /* [n + 1] first item of each sequence */
    float *taps;               /* [width][padded] */
    float *dw;                 /* [items][width][padded] */
    float *dc;                 /* [workers][ROWS + 3][STRIP] */
    const float *zeros;        /* [padded] */
};

/* Tables at the start of scratch; returns what follows them. */
static float *job_tables(struct job *j, float *buf, const float *w)
{
    int64_t *first = (int64_t *)(void *)buf, items = 0, width = j->keep + 1;
    for (int32_t s = 0; s < j->seqs->n; s++) {
        first[s] = items;
        items += CEIL_DIV(seqs_qlen(j->seqs, s), ROWS);
    }
    first[j->seqs->n] = items;
    j->first = first;
    j->taps = buf + CEIL_DIV(j->seqs->n + 1, 8) * 16;
    float *zeros = j->taps + width * j->padded;
    memset(j->taps, 0, (size_t)((width + 1) * j->padded) * sizeof(float));
    j->zeros = zeros;
    for (int64_t c = 0; c < j->dim; c++)
        for (int64_t i = 0; i < width; i++)
            j->taps[i * j->padded + c] = w[c * width + i];
    return zeros + j->padded;
}
static size_t job_table_floats(const struct job *j)
{
    return (size_t)(CEIL_DIV(j->seqs->n + 1, 8) * 16 + (j->keep + 2) * j->padded);
}

TILE_INLINE v16 sigmoid(v16 x)
{
    return v16_sigmoid(x);
}
static v16 load(const float *p, int64_t n)
{
    return n >= 16 ? v16_load(p) : v16_load_n(p, (int)n);
}
static void store(float *p, v16 x, int64_t n)
{
    if (n >= 16)
        v16_store(p, x);
    else
        v16_store_n(p, x, (int)n);
}

TILE_INLINE void conv_row(const struct job *j, const int keep, const float *const x[], float *y, float *pre)
{
    for (int64_t c = 0; c < j->dim; c += 16) {
        int64_t n = j->dim - c;
        v16 sum = v16_zero();
        TILE_UNROLL
        for (int i = 0; i <= keep; i++)
            sum = v16_fma(v16_load(j->taps + i * j->padded + c), load(x[i] + c, n), sum);
        if (pre)
            store(pre + c, sum, n);
        store(y + c, v16_mul(sum, sigmoid(sum)), n);
    }
}

static void conv_item(void *ctx, int64_t item, int worker)
{
    UNUSED(worker);
    const struct job *j = ctx;
    const struct op_conv *d = j->fwd;
    int32_t seq = tile_find(j->first, j->seqs->n, item);
    int64_t dim = j->dim, begin = (item - j->first[seq]) * ROWS, end = MIN(begin + ROWS, seqs_qlen(j->seqs, seq)),
        row = j->seqs->q_off[seq];
    for (int64_t t = begin; t < end; t++) {
        const float *x[MAX_WIDTH]; /* inputs under the taps, oldest first */
        for (int64_t i = 0; i <= j->keep; i++) {
            int64_t from = t - j->keep + i;
            x[i] = from >= 0 ? cpu_f(d->x) + (row + from) * dim : d->state.p ? cpu_f(d->state) + (seq * j->keep + from + j->keep) * dim
                : j->zeros;
        }
        float *y = cpu_f(d->y) + (row + t) * dim, *pre = d->pre.p ? cpu_f(d->pre) + (row + t) * dim : NULL;
        switch (j->keep) {
        case 3: conv_row(j, 3, x, y, pre); break;
        case 2: conv_row(j, 2, x, y, pre); break;
        case 1: conv_row(j, 1, x, y, pre); break;
        default: conv_row(j, 0, x, y, pre);
        }
    }
}

/* The last inputs of each sequence, older ones from the old state. */
static void conv_states(const struct job *j)
{
    const struct op_conv *d = j->fwd;
    int64_t dim = j->dim, keep = j->keep;
    for (int32_t s = 0; s < j->seqs->n; s++) {
        int64_t len = seqs_qlen(j->seqs, s);
        float *state = cpu_f(d->state) + s * keep * dim;
        for (int64_t i = 0; i < keep; i++) { /* in ascending order a source row is never one already written */
            int64_t from = len - keep + i;
            if (len)
                memmove(state + i * dim, from >= 0 ? cpu_f(d->x) + (j->seqs->q_off[s] + from) * dim : state + (from + keep) * dim,
                        (size_t)dim * sizeof(float));
        }
    }
}

void ISA_NAME(conv)(struct backend *be, const struct op_conv *d)
{
    struct job j = {.fwd = d, .seqs = d->seqs, .dim = d->dim, .keep = d->width - 1, .padded = CEIL_DIV(d->dim, 16) * 16};
    float *buf = cpu_scratch(be, job_table_floats(&j) * sizeof(float));
    if (!buf)
        return;
    job_tables(&j, buf, cpu_f(d->w));
    pool_run(be->pool, j.first[d->seqs->n], conv_item, &j);
    if (d->state.p)
        conv_states(&j);
}

/* dc of tokens begin..end-1 of a strip, rows of STRIP; 0 beyond the sequence. */
static void strip_dc(const struct job *j, float *dc, int64_t row, int64_t len, int64_t begin, int64_t end, int64_t c0, int64_t n)
{
    const struct op_conv_bwd *d = j->bwd;
    v16 one = v16_set1(1);
    for (int64_t t = begin; t < end; t++)
        for (int64_t c = 0; c < n; c += 16) {
            v16 x = v16_zero();
            if (t < len) {
                int64_t at = (row + t) * j->dim + c0 + c;
                v16 pre = load(cpu_f(d->pre) + at, n - c), sig = sigmoid(pre);
                x = v16_mul(load(cpu_f(d->dy) + at, n - c), v16_mul(sig, v16_fma(pre, v16_sub(one, sig), one)));
            }
            v16_store(dc + (t - begin) * STRIP + c, x);
        }
}

/* 16 channels from c on: dx[s] = sum_i tap_i dc[s + keep - i];  dw_i = sum_t dc[t] x[t - keep + i]. */
TILE_INLINE void strip_grads(const struct job *j, const int keep, const float *dc, int64_t item, int64_t row, int64_t begin, int64_t end,
                             int64_t c)
{
    const struct op_conv_bwd *d = j->bwd;
    int64_t dim = j->dim, n = dim - c;
    v16 taps[MAX_WIDTH], dw[MAX_WIDTH], x[MAX_WIDTH]; /* x: inputs under the taps, oldest first */
    for (int i = 0; i <= keep; i++) {
        taps[i] = v16_load(j->taps + i * j->padded + c);
        dw[i] = v16_zero();
        int64_t t = begin - keep + i;
        x[i] = i < keep && t >= 0 ? load(cpu_f(d->x) + (row + t) * dim + c, n) : v16_zero();
    }
    for (int64_t t = begin; t < end; t++, dc += STRIP) {
        v16 sum = v16_zero(), dct = v16_load(dc);
        x[keep] = load(cpu_f(d->x) + (row + t) * dim + c, n);
        TILE_UNROLL
        for (int i = 0; i <= keep; i++) {
            sum = v16_fma(taps[i], v16_load(dc + (keep - i) * STRIP), sum);
            dw[i] = v16_fma(dct, x[i], dw[i]);
        }
        store(cpu_f(d->dx) + (row + t) * dim + c, sum, n);
        TILE_UNROLL
        for (int i = 0; i < keep; i++)
            x[i] = x[i + 1];
    }
    for (int64_t i = 0; d->dw.p && i <= keep; i++)
        v16_store(j->dw + (item * (keep + 1) + i) * j->padded + c, dw[i]);
}

static void conv_bwd_item(void *ctx, int64_t item, int worker)
{
    const struct job *j = ctx;
    int32_t seq = tile_find(j->first, j->seqs->n, item);
    int64_t dim = j->dim, keep = j->keep, len = seqs_qlen(j->seqs, seq), row = j->seqs->q_off[seq];
    int64_t begin = (item - j->first[seq]) * ROWS, end = MIN(begin + ROWS, len);
    float *dc = j->dc + (int64_t)worker * (ROWS + MAX_WIDTH) * STRIP;
    for (int64_t c0 = 0; c0 < dim; c0 += STRIP) {
        int64_t n = MIN(STRIP, dim - c0);
        strip_dc(j, dc, row, len, begin, end + keep, c0, n);
        for (int64_t c = 0; c < n; c += 16)
            switch (keep) { /* constants, so that taps and sums are registers */
            case 3: strip_grads(j, 3, dc + c, item, row, begin, end, c0 + c); break;
            case 2: strip_grads(j, 2, dc + c, item, row, begin, end, c0 + c); break;
            case 1: strip_grads(j, 1, dc + c, item, row, begin, end, c0 + c); break;
            default: strip_grads(j, 0, dc + c, item, row, begin, end, c0 + c);
            }
    }
}

/* dw += the items' parts, in order; 16 channels. */
static void conv_dw_item(void *ctx, int64_t c, int worker)
{
    UNUSED(worker);
    const struct job *j = ctx;
    int64_t width = j->keep + 1;
    for (int64_t i = 0; i < width; i++) {
        v16 sum = v16_zero();
        for (int64_t k = 0; k < j->first[j->seqs->n]; k++)
            sum = v16_add(sum, v16_load(j->dw + (k * width + i) * j->padded + c * 16));
        float t[16];
        v16_store(t, sum);
        for (int64_t k = 0; k < MIN(16, j->dim - c * 16); k++)
            cpu_f(j->bwd->dw)[(c * 16 + k) * width + i] += t[k];
    }
}

void ISA_NAME(conv_bwd)(struct backend *be, const struct op_conv_bwd *d)
{
    struct job j = {.bwd = d, .seqs = d->seqs, .dim = d->dim, .keep = d->width - 1, .padded = CEIL_DIV(d->dim, 16) * 16};
    int64_t items = 0, dc = (int64_t)cpu_workers(be) * (ROWS + MAX_WIDTH) * STRIP;
    for (int32_t s = 0; s < d->seqs->n; s++)
        items += CEIL_DIV(seqs_qlen(d->seqs, s), ROWS);
    float *buf = cpu_scratch(be, (job_table_floats(&j) + (size_t)dc + (size_t)(d->dw.p ? items * d->width * j.padded : 0)) * sizeof(float));
    if (!buf)
        return;
    j.dc = job_tables(&j, buf, cpu_f(d->w));
    j.dw = j.dc + dc;
    pool_run(be->pool, items, conv_bwd_item, &j);
    if (d->dw.p)
        pool_run(be->pool, CEIL_DIV(d->dim, 16), conv_dw_item, &j);
}
