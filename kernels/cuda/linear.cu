/*
 * Products of at most 16 rows: kernels/step.h's be_linear_many and be_linear_swiglu for bf16. Every weight is read once for a handful of
 * rows, so what counts is that enough of it is on the way at any time: each thread keeps a ring of 16-byte pieces in flight, which only it
 * fills and empties, across the ends of its tiles; the first of them are asked for before the step's previous kernel has ended. A warp's
 * share of x stays in registers. A norm before the products is taken apart: x is weighted there, a row's factor comes to its sums.
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tile.cuh"

extern "C" {
#include "kernels/step.h"
}

enum { FEW_WARPS = 8, FEW_THREADS = 32 * FEW_WARPS, FEW_FLIGHT = 28, FEW_LAST = 2, FEW_STEPS = 16, FEW_ALL_K = 32 * FEW_WARPS * FEW_STEPS };
struct few_args {
    const bf16 *x, *norm; /* norm: weights [k], or NULL */
    const bf16 *w[STEP_LINEAR_MAX], *bias[STEP_LINEAR_MAX];
    void *y[STEP_LINEAR_MAX];
    int first[STEP_LINEAR_MAX + 1]; /* first tile of each weight */
    int n[STEP_LINEAR_MAX], count, rows, k;
    unsigned f32, add; /* bits: y is float; y += */
    float eps;
};
template <int GROUPS> struct few_smem {
    float sums[2][FEW_WARPS][16][8 * GROUPS + 1];
    uint4 ring[FEW_FLIGHT * FEW_THREADS]; /* [FEW_FLIGHT / GROUPS][GROUPS][FEW_THREADS] */
    float squares[16][FEW_WARPS];
    bf16 norm[FEW_ALL_K]; /* not allocated without a norm */
};

static __device__ __forceinline__ void few_async(void *to, const void *from, bool on)
{
    const int n = on ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(smem_addr(to)), "l"(from), "r"(n) : "memory");
}

static __device__ __forceinline__ unsigned bf16_times(unsigned a, unsigned b)
{
    unsigned c;
    asm("{.reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 %0, %1, %2, z;}" : "=r"(c) : "r"(a), "r"(b)); /* - 0: keeps the sign of zeros */
    return c;
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
    __device__ __forceinline__ void find(const few_args &a, int tile, int64_t from)
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

/* A lane's share of x: rows g and g + 8, stretches of 32 k from `from` on, of which it has 8 neighbours; zeros beyond. */
template <int STEPS> struct few_x {
    uint4 v[2][STEPS];
    __device__ __forceinline__ void load(const few_args &a, int64_t from, int mine)
    {
        const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
        for (int s = 0; s < STEPS; s++) /* all on the way at once */
#pragma unroll
            for (int h = 0; h < 2; h++)
                v[h][s] = s < mine && g + 8 * h < a.rows ? *(const uint4 *)(a.x + (int64_t)(g + 8 * h) * a.k + from + 8 * t + 32 * s)
                                                         : make_uint4(0, 0, 0, 0);
    }
    /* Sums of squares of row g in lane (g, g / 2), of row g + 8 there too: the diagonals of x x^T, for whose second operand a lane's own
       share serves. */
    __device__ __forceinline__ void squares(float (&sum)[2]) const
    {
        const int g = (threadIdx.x & 31) >> 2;
        float c[2][4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const unsigned lo[4] = {v[0][s].x, v[1][s].x, v[0][s].y, v[1][s].y}, hi[4] = {v[0][s].z, v[1][s].z, v[0][s].w, v[1][s].w};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mma16816(c[h], lo, v[h][s].x, v[h][s].y);
                mma16816(c[h], hi, v[h][s].z, v[h][s].w);
            }
        }
        sum[0] = g & 1 ? c[0][1] : c[0][0];
        sum[1] = g & 1 ? c[1][3] : c[1][2];
    }
    __device__ __forceinline__ void weigh(const bf16 *w, int mine)
    {
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            if (s < mine) {
                const uint4 b = *(const uint4 *)(w + 32 * s);
#pragma unroll
                for (int h = 0; h < 2; h++)
                    v[h][s] = make_uint4(bf16_times(v[h][s].x, b.x), bf16_times(v[h][s].y, b.y), bf16_times(v[h][s].z, b.z),
                                         bf16_times(v[h][s].w, b.w));
            }
    }
};

/*
 * A norm before the products: here the share of x is weighted, and the sums of the squares of its rows go to shared memory, for the factors
 * of the products' rows.
 */
template <int STEPS, int GROUPS>
static __device__ __forceinline__ void few_norm(few_smem<GROUPS> &sm, few_x<STEPS> &x, int64_t from, int mine)
{
    const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    float sum[2];
    x.squares(sum);
    if (t == g / 2) {
        sm.squares[g][warp] = sum[0];
        sm.squares[g + 8][warp] = sum[1];
    }
    x.weigh(sm.norm + from + 8 * t, mine);
}

/*
 * A block's warps share K, STEPS stretches of 32 each at most; it makes 16 rows x 8 GROUPS columns at a time. Which k an mma calls which
 * does not matter as long as both operands agree: lane t's 8 neighbouring k are 2t, 2t+1, 2t+8, 2t+9 of two products. Sums of the warps are
 * added in order. The next kernel may come when FEW_LAST tiles are left: earlier, its reading is in the way of this one's.
 */
template <int GROUPS, int STEPS, bool SWIGLU>
static __global__ void __launch_bounds__(FEW_THREADS, STEPS > 8 ? 1 : 2) few_kernel(const __grid_constant__ few_args a)
{
    constexpr int COLS = 8 * GROUPS, RING = FEW_FLIGHT / GROUPS;
    extern __shared__ __align__(16) unsigned char raw[];
    few_smem<GROUPS> &sm = *(few_smem<GROUPS> *)raw;
    const int tid = threadIdx.x, warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3, tiles = a.first[a.count];
    const int each = (a.k / 32 + FEW_WARPS - 1) / FEW_WARPS, k0 = warp * each, mine = max(0, min(each, a.k / 32 - k0)), step = gridDim.x;
    const int64_t from = 32 * k0;
    few_tile<GROUPS, SWIGLU> ahead; /* what is asked for next */
    int ahead_tile = blockIdx.x, ahead_step = 0;
    auto ask = [&](int slot) {
        if (ahead_tile < tiles) {
            if (ahead_step == 0)
                ahead.find(a, ahead_tile, from);
            const bool in = ahead_step < mine;
#pragma unroll
            for (int i = 0; i < GROUPS; i++)
                few_async(sm.ring + (slot * GROUPS + i) * FEW_THREADS + tid, in ? ahead.w[i] + 32 * ahead_step : a.w[0], in && ahead.on[i]);
            if (++ahead_step == STEPS)
                ahead_step = 0, ahead_tile += step;
        }
        cp_commit();
    };
    if (a.norm)
        for (int i = tid; i < a.k / 8; i += FEW_THREADS)
            few_async(sm.norm + 8 * i, a.norm + 8 * i, true);
#pragma unroll
    for (int i = 0; i < RING - 1; i++)
        ask(i);
    if ((int)blockIdx.x + FEW_LAST * step >= tiles)
        let_next_start();
    if (a.norm) { /* its weights came with the first pieces */
        cp_wait<RING - 2>();
        __syncthreads();
    }
    after_previous();
    few_x<STEPS> x;
    x.load(a, from, mine);
    if (a.norm)
        few_norm<STEPS, GROUPS>(sm, x, from, mine);
    float factor = 1;
    int slot = 0, buf = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += step, buf ^= 1) {
        float acc[GROUPS][4] = {};
        if (tile + FEW_LAST * step >= tiles)
            let_next_start();
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            cp_wait<RING - 2>();
            ask((slot + RING - 1) % RING);
            const unsigned lo[4] = {x.v[0][s].x, x.v[1][s].x, x.v[0][s].y, x.v[1][s].y},
                           hi[4] = {x.v[0][s].z, x.v[1][s].z, x.v[0][s].w, x.v[1][s].w};
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                const uint4 w = sm.ring[(slot * GROUPS + i) * FEW_THREADS + tid];
                mma16816(acc[i], lo, w.x, w.y);
                mma16816(acc[i], hi, w.z, w.w);
            }
            slot = (slot + 1) % RING;
        }
#pragma unroll
        for (int i = 0; i < GROUPS; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sm.sums[buf][warp][g + 8 * (e >> 1)][8 * i + 2 * t + (e & 1)] = acc[i][e];
        __syncthreads();                         /* the one barrier of a tile: the next tile's sums go to the other buffer */
        if (a.norm && tile == (int)blockIdx.x) { /* a thread keeps its row */
            float sq = 0;
#pragma unroll
            for (int i = 0; i < FEW_WARPS; i++)
                sq += sm.squares[tid / (SWIGLU ? 8 : COLS) % 16][i];
            factor = rsqrtf(sq / (float)a.k + a.eps);
        }
        auto sum_of = [&](int r, int c) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < FEW_WARPS; i++)
                sum += sm.sums[buf][i][r][c];
            return sum * factor;
        };
        few_tile<GROUPS, SWIGLU> now;
        now.find(a, tile, 0);
        if constexpr (SWIGLU) {
            const int r = tid / 8, c = tid % 8;
            if (r < a.rows && now.col + c < a.n[0]) {
                float gate = sum_of(r, c), up = sum_of(r, 8 + c);
                gate = rounded<bf16>(gate + (a.bias[0] ? ld(a.bias[0] + now.col + c) : 0));
                up = rounded<bf16>(up + (a.bias[1] ? ld(a.bias[1] + now.col + c) : 0));
                st((bf16 *)a.y[0] + (int64_t)r * a.n[0] + now.col + c, silu_f(gate) * up);
            }
        } else if (tid < 16 * COLS) {
            const int r = tid / COLS, c = tid % COLS;
            if (r < a.rows && now.col + c < a.n[now.m])
                few_store(a, now.m, r, now.col + c, sum_of(r, c));
        }
    }
}

/* ---- the calls ---- */

template <int GROUPS, int STEPS, bool SWIGLU> static void few_launch(struct backend *be, few_args a)
{
    const size_t bytes = offsetof(few_smem<GROUPS>, norm) + (a.norm ? sizeof(bf16) * (size_t)a.k : 0);
    for (int m = 0; m < a.count; m++)
        a.first[m + 1] = a.first[m] + (SWIGLU && m ? 0 : CEIL_DIV(a.n[m], SWIGLU ? 8 : 8 * GROUPS));
    if (tile_allow_smem(be, few_kernel<GROUPS, STEPS, SWIGLU>, bytes))
        launch_after(be, few_kernel<GROUPS, STEPS, SWIGLU>, dim3((unsigned)MIN(cuda_of(be)->sms, a.first[a.count])), FEW_THREADS, bytes, 1,
                     a);
}
template <int GROUPS, bool SWIGLU> static void few_run(struct backend *be, const few_args &a)
{
    const int each = CEIL_DIV(a.k / 32, (int)FEW_WARPS);
    if (each <= 4)
        few_launch<GROUPS, 4, SWIGLU>(be, a);
    else if (each <= 8)
        few_launch<GROUPS, 8, SWIGLU>(be, a);
    else
        few_launch<GROUPS, FEW_STEPS, SWIGLU>(be, a);
}

/* Columns in groups of 8: how many to a tile, so that the longest block reads least; a tile's end counts as 2 columns. */
static int few_groups(struct backend *be, const few_args &a)
{
    int64_t cost[2];
    for (int groups = 1; groups <= 2; groups++) {
        int64_t tiles = 0;
        for (int m = 0; m < a.count; m++)
            tiles += CEIL_DIV(a.n[m], 8 * groups);
        cost[groups - 1] = CEIL_DIV(tiles, (int64_t)cuda_of(be)->sms) * (8 * groups + 2);
    }
    return cost[1] <= cost[0] ? 2 : 1;
}

/* Fills what both calls share; false = not for these. */
static bool few_prepare(struct backend *be, few_args *a, struct view x, const struct step_norm *norm, int64_t rows, int64_t k,
                        const struct step_linear *l, int count)
{
    if (!cuda_fused(be) || sizeof(few_smem<2>) > cuda_of(be)->smem_optin)
        return false;
    if (rows > 16 || rows < 1 || k % 32 || k < 32 || k > FEW_ALL_K || !aligned16(x.p))
        return false;
    if (norm && norm->w.p && !aligned16(norm->w.p))
        return false;
    for (int i = 0; i < count; i++) {
        if (l[i].n < 1 || l[i].n > 1 << 20 || !aligned16(l[i].w.p) || (l[i].y.dt != DT_BF16 && l[i].y.dt != DT_F32))
            return false;
        a->w[i] = cuda_p<bf16>(l[i].w), a->bias[i] = cuda_p<bf16>(l[i].bias), a->y[i] = l[i].y.p, a->n[i] = (int)l[i].n;
        a->f32 |= (unsigned)(l[i].y.dt == DT_F32) << i;
        a->add |= (unsigned)l[i].add << i;
    }
    a->x = cuda_p<bf16>(x), a->count = count, a->rows = (int)rows, a->k = (int)k;
    if (norm)
        a->norm = cuda_p<bf16>(norm->w), a->eps = (float)norm->eps;
    return true;
}

bool cuda_linear_many(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k, const struct step_linear *l,
                      int count)
{
    few_args a = {};
    if (!few_prepare(be, &a, x, norm, rows, k, l, count))
        return false;
    cuda_step_begin(be, "linear_many");
    few_groups(be, a) == 1 ? few_run<1, false>(be, a) : few_run<2, false>(be, a);
    cuda_step_end(be);
    return true;
}

bool cuda_linear_swiglu(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k,
                        const struct step_linear *l, struct view h)
{
    few_args a = {};
    if (!few_prepare(be, &a, x, norm, rows, k, l, 2) || h.dt != DT_BF16)
        return false;
    a.y[0] = h.p;
    cuda_step_begin(be, "linear_swiglu");
    few_run<2, true>(be, a);
    cuda_step_end(be);
    return true;
}
