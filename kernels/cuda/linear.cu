/*
 * Products of at most 16 rows: kernels/step.h's be_linear_many and be_linear_swiglu for bf16. Every weight is read once for a handful of
 * rows, so what counts is that enough of it is on the way at any time: each thread keeps a ring of 16-byte pieces in flight, which only it
 * fills and empties, across the ends of its tiles; the first of them are asked for before the step's previous kernel has ended.
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tile.cuh"

extern "C" {
#include "kernels/step.h"
}

enum { FEW_WARPS = 8, FEW_THREADS = 32 * FEW_WARPS, FEW_FLIGHT = 16, FEW_STEPS = 144 };
struct few_args {
    const bf16 *x, *w[STEP_LINEAR_MAX], *bias[STEP_LINEAR_MAX];
    void *y[STEP_LINEAR_MAX];
    int first[STEP_LINEAR_MAX + 1]; /* first tile of each weight */
    int n[STEP_LINEAR_MAX], count, rows, k;
    int steps, ld;     /* stretches of 32 k; elements between rows of x in shared memory */
    unsigned f32, add; /* bits: y is float; y += */
};

/* Elements between rows: an odd number of 64 bytes, so that two rows' pieces lie in different banks. */
static int few_ld(int steps)
{
    return 32 * (steps | 1);
}
template <int GROUPS> struct few_smem {
    float sums[2][FEW_WARPS][16][8 * GROUPS + 1];
    uint4 ring[FEW_FLIGHT * FEW_THREADS]; /* [FEW_FLIGHT / GROUPS][GROUPS][FEW_THREADS] */
    bf16 x[8];                            /* [16][ld] */
};

static __device__ __forceinline__ void few_async(void *to, const void *from, bool on)
{
    const int n = on ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(smem_addr(to)), "l"(from), "r"(n) : "memory");
}

/* y as the op stores it: y (+)= sum + bias. */
static __device__ __forceinline__ void few_store(const few_args &a, int m, int r, int col, float sum)
{
    if (a.bias[m])
        sum += ld(a.bias[m] + col);
    const int64_t at = (int64_t)r * a.n[m] + col;
    if (a.f32 >> m & 1) {
        float *y = (float *)a.y[m] + at;
        *y = a.add >> m & 1 ? *y + sum : sum;
    } else {
        bf16 *y = (bf16 *)a.y[m] + at;
        st(y, a.add >> m & 1 ? ld(y) + sum : sum);
    }
}

/* Where a tile's columns begin, for each group of 8: rows of the weights. SWIGLU: group 0 is the gate's, group 1 the same columns of up. */
template <int GROUPS, bool SWIGLU> struct few_tile {
    int m, col;
    const bf16 *w[GROUPS];
    bool on[GROUPS];
    __device__ __forceinline__ void find(const few_args &a, int tile, int from)
    {
        const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
        m = 0;
        while (!SWIGLU && m + 1 < a.count && tile >= a.first[m + 1])
            m++;
        col = (tile - a.first[m]) * (SWIGLU ? 8 : 8 * GROUPS);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            const int c = col + (SWIGLU ? 0 : 8 * i) + g, at = SWIGLU ? i : m;
            on[i] = c < a.n[at];
            w[i] = a.w[at] + (int64_t)(on[i] ? c : 0) * a.k + from + 8 * t;
        }
    }
};

/*
 * A block's warps share K; the block makes 16 rows x 8 GROUPS columns at a time. Which k an mma calls which does not matter as long as both
 * operands agree: lane t's 8 neighbouring k are 2t, 2t+1, 2t+8, 2t+9 of two products. The warps' sums are added in order.
 */
template <int GROUPS, bool SWIGLU> static __global__ void __launch_bounds__(FEW_THREADS, 1) few_kernel(const few_args a)
{
    constexpr int COLS = 8 * GROUPS, RING = FEW_FLIGHT / GROUPS;
    extern __shared__ __align__(16) unsigned char raw[];
    few_smem<GROUPS> &sm = *(few_smem<GROUPS> *)raw;
    const int tid = threadIdx.x, warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3;
    const int each = (a.steps + FEW_WARPS - 1) / FEW_WARPS, k0 = warp * each, mine = max(0, min(each, a.steps - k0)),
              tiles = a.first[a.count];
    let_next_start();
    /* what is asked for next */
    few_tile<GROUPS, SWIGLU> ahead;
    int ahead_tile = blockIdx.x, ahead_step = 0;
    auto ask = [&](int slot) {
        if (ahead_tile < tiles) {
            if (ahead_step == 0)
                ahead.find(a, ahead_tile, 32 * k0);
            const bool in = ahead_step < mine;
#pragma unroll
            for (int i = 0; i < GROUPS; i++)
                few_async(sm.ring + (slot * GROUPS + i) * FEW_THREADS + tid, in ? ahead.w[i] + 32 * ahead_step : a.x, in && ahead.on[i]);
            if (++ahead_step == each)
                ahead_step = 0, ahead_tile += gridDim.x;
        }
        cp_commit();
    };
    for (int i = 0; i < RING - 1; i++)
        ask(i);
    after_previous();
    for (int u = tid; u < 16 * 4 * a.steps; u += FEW_THREADS) {
        const int r = u / (4 * a.steps), c = u % (4 * a.steps) * 8;
        *(uint4 *)(sm.x + r * a.ld + c) = r < a.rows ? *(const uint4 *)(a.x + (int64_t)r * a.k + c) : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    const bf16 *x0 = sm.x + g * a.ld + 32 * k0 + 8 * t, *x1 = x0 + 8 * a.ld;
    int slot = 0, buf = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, buf ^= 1) {
        float acc[GROUPS][4] = {};
        for (int s = 0; s < each; s++) {
            cp_wait<RING - 2>();
            ask((slot + RING - 1) % RING);
            if (s < mine) {
                const uint4 p = *(const uint4 *)(x0 + 32 * s), q = *(const uint4 *)(x1 + 32 * s);
                const unsigned lo[4] = {p.x, q.x, p.y, q.y}, hi[4] = {p.z, q.z, p.w, q.w};
#pragma unroll
                for (int i = 0; i < GROUPS; i++) {
                    const uint4 w = sm.ring[(slot * GROUPS + i) * FEW_THREADS + tid];
                    mma16816(acc[i], lo, w.x, w.y);
                    mma16816(acc[i], hi, w.z, w.w);
                }
            }
            slot = (slot + 1) % RING;
        }
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sm.sums[buf][warp][g + 8 * (e >> 1)][8 * i + 2 * t + (e & 1)] = acc[i][e];
        __syncthreads(); /* the one barrier of a tile: the next tile's sums go to the other buffer */
        auto sum_of = [&](int r, int c) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < FEW_WARPS; i++)
                sum += sm.sums[buf][i][r][c];
            return sum;
        };
        few_tile<GROUPS, SWIGLU> now;
        now.find(a, tile, 0);
        if (SWIGLU) {
            const int r = tid / 8, c = tid % 8;
            if (r < a.rows && now.col + c < a.n[0]) {
                float gate = sum_of(r, c), up = sum_of(r, 8 + c);
                gate = rounded<bf16>(gate + (a.bias[0] ? ld(a.bias[0] + now.col + c) : 0));
                up = rounded<bf16>(up + (a.bias[1] ? ld(a.bias[1] + now.col + c) : 0));
                st((bf16 *)a.y[0] + (int64_t)r * a.n[0] + now.col + c, silu_f(gate) * up);
            }
        } else {
            const int r = tid / COLS, c = tid % COLS;
            if (r < a.rows && now.col + c < a.n[now.m])
                few_store(a, now.m, r, now.col + c, sum_of(r, c));
        }
    }
}

static int few_tiles(const few_args &a, int cols)
{
    int tiles = 0;
    for (int m = 0; m < a.count; m++)
        tiles += CEIL_DIV(a.n[m], cols);
    return tiles;
}

template <int GROUPS, bool SWIGLU> static void few_run(struct backend *be, few_args a)
{
    for (int m = 0; m < a.count; m++)
        a.first[m + 1] = a.first[m] + (SWIGLU && m ? 0 : CEIL_DIV(a.n[m], SWIGLU ? 8 : 8 * GROUPS));
    const size_t smem = sizeof(few_smem<GROUPS>) + sizeof(bf16) * 16 * (size_t)a.ld;
    if (tile_allow_smem(be, few_kernel<GROUPS, SWIGLU>, smem))
        launch_after(be, few_kernel<GROUPS, SWIGLU>, dim3((unsigned)MIN(cuda_of(be)->sms, a.first[a.count])), FEW_THREADS, smem, a);
}

/* Fills what both calls share; false = not for these. A block holds all of x. */
static bool few_prepare(struct backend *be, few_args *a, struct view x, int64_t rows, int64_t k, const struct step_linear *l, int count)
{
    if (!cuda_fused(be) || be->act != DT_BF16 || rows > 16 || rows < 1 || k % 32 || k < 32 || k > 32 * FEW_STEPS || !aligned16(x.p))
        return false;
    for (int i = 0; i < count; i++) {
        if (l[i].n < 1 || l[i].n > 1 << 20 || !aligned16(l[i].w.p) || (l[i].y.dt != DT_BF16 && l[i].y.dt != DT_F32))
            return false;
        a->w[i] = cuda_p<bf16>(l[i].w), a->bias[i] = cuda_p<bf16>(l[i].bias), a->y[i] = l[i].y.p, a->n[i] = (int)l[i].n;
        a->f32 |= (unsigned)(l[i].y.dt == DT_F32) << i;
        a->add |= (unsigned)l[i].add << i;
    }
    a->x = cuda_p<bf16>(x), a->count = count, a->rows = (int)rows, a->k = (int)k, a->steps = (int)(k / 32), a->ld = few_ld(a->steps);
    return sizeof(few_smem<2>) + sizeof(bf16) * 16 * (size_t)a->ld <= cuda_of(be)->smem_optin;
}

bool cuda_linear_many(struct backend *be, struct view x, int64_t rows, int64_t k, const struct step_linear *l, int count)
{
    few_args a = {};
    if (!few_prepare(be, &a, x, rows, k, l, count))
        return false;
    /* Columns at once: the last round of blocks should waste little; a round costs as much as a row by itself. */
    const int sms = cuda_of(be)->sms, one = 9 * CEIL_DIV(few_tiles(a, 8), sms), two = 17 * CEIL_DIV(few_tiles(a, 16), sms);
    cuda_step_begin(be, "linear_many");
    one < two ? few_run<1, false>(be, a) : few_run<2, false>(be, a);
    cuda_step_end(be);
    return true;
}

bool cuda_linear_swiglu(struct backend *be, struct view x, int64_t rows, int64_t k, const struct step_linear *l, struct view h)
{
    few_args a = {};
    if (!few_prepare(be, &a, x, rows, k, l, 2) || h.dt != DT_BF16)
        return false;
    a.y[0] = h.p;
    cuda_step_begin(be, "linear_swiglu");
    few_run<2, true>(be, a);
    cuda_step_end(be);
    return true;
}
