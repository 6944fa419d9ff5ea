/* be_OP refuses wrong descriptors before anything runs; errors stick; memory is accounted; FLOP and byte counts are those of the operator
 * notes. */
#include "kernels/half.h"
#include "kernels/ops.h"
#include "tests/test.h"

static struct backend *open_ref(int64_t limit)
{
    struct backend *be = NULL;
    CHECK_OK(backend_open(&be, &(struct backend_opts){.name = "ref64", .mem_limit_bytes = limit}, e));
    return be;
}

/* Expects the sticky error to hold `text`, then clears it. */
static void expect_fail(struct backend *be, const char *text)
{
    CHECK_ERR(be_sync(be, e), E_CHECK, text);
    be->failed = false;
}

static double cells[256];
static int32_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7};
static struct view f64(int at, int64_t n)
{
    return (struct view){cells + at, DT_F64, n};
}

static void test_shapes(void)
{
    struct backend *be = open_ref(0);
    struct op_gemm g = {.c = f64(0, 4), .a = f64(10, 6), .b = f64(20, 6), .m = 2, .n = 2, .k = 3};
    be_gemm(be, &g);
    CHECK_OK(be_sync(be, e));
    CHECK(be->flops == 2 * 2 * 2 * 3 && be->bytes == 8 * (4 + 6 + 6));
    struct op_gemm bad = g;
    bad.a = f64(10, 5);
    be_gemm(be, &bad);
    expect_fail(be, "view 'a' has 5 elements; 2 x 3 with row stride 3 need 6");
    bad = g;
    bad.b = NO_VIEW;
    be_gemm(be, &bad);
    expect_fail(be, "view 'b' is absent; it needs 6 elements");
    bad = g;
    bad.a.dt = DT_F32;
    be_gemm(be, &bad);
    expect_fail(be, "view 'a' is f32; on ref64 it must be f64");
    bad = g;
    bad.lda = 2;
    be_gemm(be, &bad);
    expect_fail(be, "row stride 2 of view 'a' is below its width 3");
    bad = g;
    bad.m = -1;
    be_gemm(be, &bad);
    expect_fail(be, "would be -1 x 2");
    bad = g;
    bad.m = INT64_MAX / 2;
    be_gemm(be, &bad);
    expect_fail(be, "op 'gemm'");
    be_topk(be, &(struct op_topk){.ids = {ids, DT_I32, 8}, .z = f64(0, 8), .rows = 1, .n = 8, .k = 65});
    expect_fail(be, "k 65 of 8");
    be_rope(
        be,
        &(struct op_rope){
            .x = f64(0, 3), .cos = f64(10, 1), .sin = f64(20, 1), .pos = {ids, DT_I32, 1}, .rows = 1, .heads = 1, .dim = 3, .max_pos = 1});
    expect_fail(be, "head dim 3 is odd");
    be_embed(be, &(struct op_embed){.y = f64(0, 8), .w = f64(10, 7), .ids = {ids, DT_I32, 8}, .rows = 8, .vocab = 7, .dim = 1});
    expect_fail(be, "index 7 at 7 of view 'ids' is outside 0..6");
    backend_close(be);
}

static void test_alias(void)
{
    struct backend *be = open_ref(0);
    be_mix(be, &(struct op_mix){.y = f64(0, 8), .x = {f64(4, 8)}, .p = {1}, .count = 1, .n = 8});
    expect_fail(be, "output 'y' shares memory with 'x[0]'");
    struct op_rmsnorm n = {.y = f64(0, 8), .x = f64(0, 8), .w = f64(20, 4), .rows = 2, .dim = 4};
    be_rmsnorm(be, &n); /* in place is permitted */
    CHECK_OK(be_sync(be, e));
    n.y = f64(1, 8); /* shifted is not */
    be_rmsnorm(be, &n);
    expect_fail(be, "output 'y' shares memory with 'x'");
    /* gradients side by side in one buffer are apart; overlapping columns are not */
    const int32_t off[2] = {0, 2};
    struct seqs s = {.n = 1, .rows = 2, .q_off = off};
    struct op_attn_bwd a = {.dq = f64(0, 6),
                            .dk = f64(2, 5),
                            .dv = f64(3, 5),
                            .q = f64(100, 6),
                            .k = f64(102, 5),
                            .v = f64(103, 5),
                            .d_o = f64(20, 4),
                            .o = f64(30, 4),
                            .lse = f64(40, 4),
                            .seqs = &s,
                            .h = 2,
                            .g = 1,
                            .kdim = 1,
                            .vdim = 1,
                            .ldq = 4,
                            .ldk = 4,
                            .ldv = 4,
                            .scale = 1,
                            .p1 = 1};
    a.d_o.n = a.o.n = a.lse.n = 4;
    be_attn_bwd(be, &a);
    CHECK_OK(be_sync(be, e));
    a.dk = f64(1, 5);
    be_attn_bwd(be, &a);
    expect_fail(be, "shares memory with");
    backend_close(be);
}

static void test_seqs(void)
{
    struct backend *be = open_ref(0);
    const int32_t good[3] = {0, 1, 3}, down[3] = {0, 2, 1}, kv[2] = {0, 4}, len[2] = {4, 4}, shorter[2] = {4, 1};
    struct seqs s = {.n = 2, .rows = 3, .q_off = good};
    struct op_attn a = {
        .q = f64(0, 3), .k = f64(10, 8), .v = f64(20, 8), .o = f64(30, 3), .seqs = &s, .h = 1, .g = 1, .kdim = 1, .vdim = 1, .scale = 1};
    be_attn(be, &a);
    CHECK_OK(be_sync(be, e));
    CHECK(be->flops == 2 * 2 * (1 + 3)); /* 1 + (1 + 2) pairs, q.k and p v */
    s.kv_off = kv;
    s.kv_len = len;
    be->flops = 0;
    be_attn(be, &a);
    CHECK_OK(be_sync(be, e));
    CHECK(be->flops == 2 * 2 * (4 + 3 + 4));
    a.k.n = 7;
    be_attn(be, &a);
    expect_fail(be, "view 'k' has 7 elements");
    a.k.n = 8;
    s.kv_len = shorter;
    be_attn(be, &a);
    expect_fail(be, "sequence 1 has 1 keys for 2 queries");
    s.kv_len = len;
    a.ring = 2;
    a.window = 2;
    be_attn(be, &a); /* two queries of sequence 1 need 3 rows */
    expect_fail(be, "ring of 2 rows cannot hold window 2");
    s = (struct seqs){.n = 2, .rows = 1, .q_off = down};
    be_attn(be, &a);
    expect_fail(be, "sequence 1 has -1 queries");
    backend_close(be);
}

static void test_sticky_and_memory(void)
{
    struct backend *be = open_ref(4096);
    struct view v, w;
    CHECK_OK(be_view(be, DT_F64, 256, &v, e));
    CHECK_EQ_I(be->mem_used_bytes, 2048);
    CHECK_EQ_I((uintptr_t)v.p % 64, 0);
    CHECK_ERR(be_view(be, DT_F64, 257, &w, e), E_ENV, "exceeds the limit");
    CHECK(w.p == NULL);
    double host[256], back[256];
    for (int i = 0; i < 256; i++)
        host[i] = i;
    be_put(be, v, host);
    be_get(be, back, v);
    CHECK(!memcmp(host, back, sizeof host));
    be_fail(be, E_NUMERIC, "first %d", 1);
    be_fail(be, E_ENV, "second");
    CHECK_ERR(be_sync(be, e), E_NUMERIC, "first 1");
    be_zero(be, v); /* nothing runs after an error */
    CHECK(((double *)v.p)[255] == 255);
    CHECK_ERR(be_alloc(be, 8, &w.p, e), E_NUMERIC, "first 1");
    be_view_free(be, &v);
    CHECK_EQ_I(be->mem_used_bytes, 0);
    CHECK_EQ_I(be->mem_peak_bytes, 2048);
    backend_close(be);
    struct backend *none = NULL;
    CHECK_ERR(backend_open(&none, &(struct backend_opts){.name = "reff64"}, e), E_USAGE, "did you mean 'ref64'");
}

static void test_check_finite(void)
{
    struct backend *be = open_ref(0);
    be->check_finite = true;
    for (int i = 0; i < 256; i++)
        cells[i] = 1e200;
    be_swiglu(be, &(struct op_swiglu){.h = f64(0, 2), .g = f64(10, 2), .u = f64(20, 2), .n = 2});
    CHECK_ERR(be_sync(be, e), E_NUMERIC, "op 'swiglu': output 'h' is not finite at row 0, column 0");
    backend_close(be);
}

static double pairs_by_hand(int nq, int nk, int w)
{
    double n = 0;
    for (int i = 0; i < nq; i++) {
        int sight = nk - nq + i + 1;
        n += w && w < sight ? w : sight;
    }
    return n;
}

/* Causal pairs counted one by one, and the numbers of the operator notes: table 5.1 and 1.11. */
static void test_flops(void)
{
    for (int nq = 0; nq < 9; nq++)
        for (int past = 0; past < 7; past++)
            for (int w = 0; w < 12; w++) {
                int32_t off[2] = {0, nq}, kv = 0, len = nq + past;
                struct seqs s = {.n = 1, .rows = nq, .q_off = off, .kv_off = &kv, .kv_len = &len};
                struct op_attn a = {.seqs = &s, .h = 1, .g = 1, .kdim = 1, .vdim = 1, .window = w};
                if (cost_attn(&a).flops != 4 * pairs_by_hand(nq, nq + past, w)) {
                    printf("pairs of %d queries after %d, window %d\n", nq, past, w);
                    CHECK(!"pairs");
                }
            }
    int32_t off[2] = {0, 4096};
    struct seqs s = {.n = 1, .rows = 4096, .q_off = off};
    struct op_attn a = {.seqs = &s, .h = 16, .g = 2, .kdim = 128, .vdim = 128};
    double fwd = cost_attn(&a).flops / 4096;
    CHECK(fwd > 16.77e6 && fwd < 16.79e6); /* 16.78 MFLOP a token */
    a.window = 512;
    double win = cost_attn(&a).flops / 4096;
    CHECK(win > 3.92e6 && win < 3.94e6); /* 3.93 */
    a.window = 0;
    a.window2 = 512;
    a.o2 = f64(0, 1);
    CHECK(cost_attn(&a).flops / 4096 == fwd); /* both masks in one pass */
    struct op_attn_bwd b = {.seqs = &s, .h = 16, .g = 2, .kdim = 128, .vdim = 128};
    CHECK(cost_attn_bwd(&b).flops / 4096 == 2.5 * fwd);
    struct op_gdn g = {.seqs = &s, .h = 16, .hv = 16, .kdim = 128, .vdim = 128};
    double per = cost_gdn(&g).flops / 4096 / 16;
    CHECK(per > 166.5e3 && per < 166.7e3); /* 166.6 k */
    struct op_gdn_bwd gb = {.seqs = &s, .h = 16, .hv = 16, .kdim = 128, .vdim = 128, .hs = f64(0, 1), .ainv = f64(0, 1)};
    per = cost_gdn_bwd(&gb).flops / 4096 / 16;
    CHECK(per > 409.5e3 && per < 409.7e3); /* 409.6 k */
    gb.hs = NO_VIEW;
    per = cost_gdn_bwd(&gb).flops / 4096 / 16;
    CHECK(per > 491.4e3 && per < 491.6e3); /* 491.5 k with the states replayed */
}

/* Every half goes to float and back unchanged; every midpoint between neighbours rounds to the even one, a little more or less to the near
 * one. */
static void test_half(void)
{
    for (uint32_t i = 0; i < 0x10000; i++) {
        uint16_t h = (uint16_t)i;
        bool bf_nan = (h & 0x7fffu) > 0x7f80u, f_nan = (h & 0x7fffu) > 0x7c00u;
        if (bf_nan ? !((f32_to_bf16(bf16_to_f32(h)) & 0x7fffu) > 0x7f80u) : f32_to_bf16(bf16_to_f32(h)) != h)
            CHECK(!"bf16 round trip");
        if (f_nan ? !((f32_to_f16(f16_to_f32(h)) & 0x7fffu) > 0x7c00u) : f32_to_f16(f16_to_f32(h)) != h)
            CHECK(!"f16 round trip");
        if ((h & 0x7fffu) < 0x7c00u - 1) { /* finite with a finite neighbour above in magnitude */
            double mid = ((double)f16_to_f32(h) + (double)f16_to_f32((uint16_t)(h + 1))) / 2;
            uint16_t even = (uint16_t)(h + (h & 1));
            if (f32_to_f16((float)mid) != even || f32_to_f16((float)(mid * (1 + 1e-6))) != h + 1 ||
                f32_to_f16((float)(mid * (1 - 1e-6))) != h)
                CHECK(!"f16 rounding");
        }
        if ((h & 0x7fffu) < 0x7f80u - 1) {
            float mid = f32_from_bits((uint32_t)h << 16 | 0x8000u);
            if (f32_to_bf16(mid) != (uint16_t)(h + (h & 1)) || f32_to_bf16(f32_from_bits(f32_bits(mid) + 1)) != h + 1 ||
                f32_to_bf16(f32_from_bits(f32_bits(mid) - 1)) != h)
                CHECK(!"bf16 rounding");
        }
    }
    CHECK(f32_to_f16(65519.0f) == 0x7bff && f32_to_f16(65520.0f) == 0x7c00 && f32_to_f16(1e30f) == 0x7c00 && f32_to_f16(-1e30f) == 0xfc00);
    CHECK(f32_to_f16(0x1p-25f) == 0 && f32_to_f16(0x1.000002p-25f) == 1 && f32_to_f16(-0.0f) == 0x8000 && f32_to_bf16(3.4e38f) == 0x7f80);
}

int main(void)
{
    test_shapes();
    test_alias();
    test_seqs();
    test_sticky_and_memory();
    test_check_finite();
    test_flops();
    test_half();
    return test_end();
}
