/* Depthwise causal convolution of width <= 4 with SiLU. Lanes are channels; an item is 64 channels (all tokens), so that weights and the last inputs stay in registers. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/tile.h"

enum { MAX_WIDTH = 4, ITEM_CHANNELS = 64, ITEM_ROWS = 256 };

struct job {
    const struct op_conv *fwd;
    const struct op_conv_bwd *bwd;
};

/* Taps of n channels from w [dim][width] to lanes. */
static void load_taps(v16 taps[MAX_WIDTH], const float *w, int64_t width, int n)
{
    for (int64_t i = 0; i < width; i++) {
        float t[16] = {0};
        for (int c = 0; c < n; c++)
            t[c] = w[c * width + i];
        taps[i] = v16_load(t);
    }
}

/* y and pre of n channels over one sequence. x[0..width-2]: inputs before token t, oldest first. */
static void conv_lanes(const struct op_conv *d, int32_t seq, int64_t j, int n)
{
    int64_t dim = d->dim, keep = d->width - 1, first = d->seqs->q_off[seq], len = seqs_qlen(d->seqs, seq);
    float *state = d->state.p ? (float *)d->state.p + seq * keep * dim + j : NULL;
    v16 taps[MAX_WIDTH], x[MAX_WIDTH];
    load_taps(taps, (const float *)d->w.p + j * d->width, d->width, n);
    for (int64_t i = 0; i < keep; i++)
        x[i] = state ? v16_load_n(state + i * dim, n) : v16_zero();
    for (int64_t t = 0; t < len; t++) {
        int64_t at = (first + t) * dim + j;
        x[keep] = v16_load_n((const float *)d->x.p + at, n);
        v16 sum = v16_zero();
        for (int64_t i = 0; i <= keep; i++)
            sum = v16_fma(taps[i], x[i], sum);
        if (d->pre.p)
            v16_store_n((float *)d->pre.p + at, sum, n);
        v16_store_n((float *)d->y.p + at, v16_mul(sum, v16_sigmoid(sum)), n);
        for (int64_t i = 0; i < keep; i++)
            x[i] = x[i + 1];
    }
    for (int64_t i = 0; state && i < keep; i++)
        v16_store_n(state + i * dim, x[i], n);
}

static void conv_item(void *ctx, int64_t item, int worker)
{
    UNUSED(worker);
    const struct op_conv *d = ((const struct job *)ctx)->fwd;
    int64_t blocks = CEIL_DIV(d->dim, ITEM_CHANNELS), j0 = item % blocks * ITEM_CHANNELS, end = MIN(j0 + ITEM_CHANNELS, d->dim);
    for (int64_t j = j0; j < end; j += 16)
        conv_lanes(d, (int32_t)(item / blocks), j, (int)MIN(end - j, 16));
}

void ISA_NAME(conv)(struct backend *be, const struct op_conv *d)
{
    struct job j = {.fwd = d};
    pool_run(be->pool, d->seqs->n * CEIL_DIV(d->dim, ITEM_CHANNELS), conv_item, &j);
}

/* dc = dy silu'(pre); dx[s] = sum_i dc[s + keep - i] tap_i, newest token first; dw_i += dc[t] x[t - keep + i]: all tokens of all sequences, one chain. */
static void conv_bwd_lanes(const struct op_conv_bwd *d, int64_t j, int n)
{
    int64_t dim = d->dim, width = d->width, keep = width - 1;
    const float *x = (const float *)d->x.p + j;
    v16 taps[MAX_WIDTH], dw[MAX_WIDTH], one = v16_set1(1);
    load_taps(taps, (const float *)d->w.p + j * width, width, n);
    for (int i = 0; i < MAX_WIDTH; i++)
        dw[i] = v16_zero();
    for (int32_t seq = 0; seq < d->seqs->n; seq++) {
        int64_t first = d->seqs->q_off[seq], len = seqs_qlen(d->seqs, seq);
        v16 dc[MAX_WIDTH]; /* dc[i]: of token s + i */
        for (int i = 0; i < MAX_WIDTH; i++)
            dc[i] = v16_zero();
        for (int64_t s = len - 1; s >= 0; s--) {
            int64_t at = (first + s) * dim;
            v16 pre = v16_load_n((const float *)d->pre.p + at + j, n), sig = v16_sigmoid(pre), sum = v16_zero();
            v16 slope = v16_mul(sig, v16_fma(pre, v16_sub(one, sig), one));
            for (int64_t i = keep; i > 0; i--)
                dc[i] = dc[i - 1];
            dc[0] = v16_mul(v16_load_n((const float *)d->dy.p + at + j, n), slope);
            for (int64_t i = 0; i <= keep; i++)
                sum = v16_fma(taps[i], dc[keep - i], sum);
            v16_store_n((float *)d->dx.p + at + j, sum, n);
            for (int64_t i = MAX(keep - s, 0); d->dw.p && i <= keep; i++)
                dw[i] = v16_fma(dc[0], v16_load_n(x + at - (keep - i) * dim, n), dw[i]);
        }
    }
    for (int64_t i = 0; d->dw.p && i < width; i++) {
        float t[16];
        v16_store(t, dw[i]);
        for (int c = 0; c < n; c++)
            ((float *)d->dw.p)[(j + c) * width + i] += t[c];
    }
}

static void conv_bwd_item(void *ctx, int64_t item, int worker)
{
    UNUSED(worker);
    const struct op_conv_bwd *d = ((const struct job *)ctx)->bwd;
    conv_bwd_lanes(d, item * 16, (int)MIN(d->dim - item * 16, 16));
}

void ISA_NAME(conv_bwd)(struct backend *be, const struct op_conv_bwd *d)
{
    struct job j = {.bwd = d};
    pool_run(be->pool, CEIL_DIV(d->dim, 16), conv_bwd_item, &j);
}
