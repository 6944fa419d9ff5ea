/*
 * Products of at most 16 rows: kernels/step.h's be_linear_many and be_linear_swiglu for bf16. Every weight is read once for a handful of
 * rows, so what counts is that enough of it is on the way at any time: each warp keeps a ring of 64-k stretches of its rows in flight,
 * which only it fills and empties, across the ends of its tiles; the first of them are asked for before the step's previous kernel has
 * ended. Blocks stand in pairs (clusters): each asks for half of the rows of x, for both, as reading x 132 times is what delays a product
 * most. A warp's share of x then stays in registers. A norm before the products is taken apart: x is weighted there, a row's factor comes
 * to its sums. A long k is split into parts, whose sums the block that comes last adds in order. A step's kernels come one after another,
 * each with code that is cold: one kernel makes all of these products, and what is done once is not unrolled.
 */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tile.cuh"

extern "C" {
#include "kernels/step.h"
}

enum { FEW_WARPS = 8, FEW_THREADS = 32 * FEW_WARPS, FEW_LAST = 3, FEW_STRETCH = 64, FEW_STEPS = 8, FEW_COLS = 16 };
enum { FEW_PART_K = FEW_STRETCH * FEW_WARPS * FEW_STEPS, FEW_PARTS = 16 };
#if __CUDA_ARCH__ >= 900
#define FEW_PAIRS 1
#else
#define FEW_PAIRS 0
#endif
struct few_args {
    const bf16 *x, *norm; /* norm: weights [k], or NULL */
    const bf16 *w[STEP_LINEAR_MAX], *bias[STEP_LINEAR_MAX];
    void *y[STEP_LINEAR_MAX];
    int first[STEP_LINEAR_MAX + 1]; /* first tile of each weight */
    int n[STEP_LINEAR_MAX], count, rows, k, parts;
    int part_at[FEW_PARTS + 1]; /* first stretch of each part */
    unsigned f32, add;          /* bits: y is float; y += */
    bool swiglu;                /* a tile: 8 columns of the gate's, w[0], and the same of up, w[1] */
    float eps, *part;           /* part: [tile][parts][16][FEW_COLS], of parts > 1 */
    unsigned *arrived;          /* [blocks of a part] zeros */
};
/* Stretches on the way, so that they, x and the weights of a norm find room; of them those that are asked for before x is. */
static __host__ __device__ constexpr int few_ring_size(int steps)
{
    return steps <= 4 ? 7 : steps <= 6 ? 6 : 4;
}
enum { FEW_EARLY = 3 };
template <int STEPS> struct few_smem {
    static constexpr int RING = few_ring_size(STEPS);
    uint4 ring[RING][2][FEW_WARPS][8 * 8]; /* a stretch of 8 rows: row r, 16-byte piece c lies at 8 r + (c ^ 4 (r & 1)) */
    float sums[2][FEW_WARPS][16][FEW_COLS + 1];
    float squares[16][FEW_WARPS];
    uint64_t x_there;
    alignas(16) unsigned char more[16]; /* weights of the norm, then x */
};

/* Bytes between rows of x in shared memory: neighbours lie in different banks. */
static __host__ __device__ constexpr int few_x_stride(int k)
{
    return 2 * k + (2 * k % 128 ? 0 : 64);
}

/* Of 16 bytes n, 0 or 16, the others zeros; with none the address is not looked at. */
static __device__ __forceinline__ void few_async(unsigned to, const void *from, int n)
{
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n) : "memory");
}

static __device__ __forceinline__ unsigned bf16_times(unsigned a, unsigned b)
{
    unsigned c;
    asm("{.reg .b32 z; mov.b32 z, 0x80008000; fma.rn.bf16x2 %0, %1, %2, z;}" : "=r"(c) : "r"(a), "r"(b)); /* - 0: keeps the sign of zeros */
    return c;
}

/* What y's sum is added to. */
static __device__ __forceinline__ float few_base(const few_args &a, int m, int r, int col)
{
    const int64_t at = (int64_t)r * a.n[m] + col;
    const float bias = a.bias[m] ? ld(a.bias[m] + col) : 0;
    return a.add >> m & 1 ? bias + (a.f32 >> m & 1 ? ((const float *)a.y[m])[at] : ld((const bf16 *)a.y[m] + at)) : bias;
}
static __device__ __forceinline__ void few_store(const few_args &a, int m, int r, int col, float y)
{
    const int64_t at = (int64_t)r * a.n[m] + col;
    if (a.f32 >> m & 1)
        ((float *)a.y[m])[at] = y;
    else
        st((bf16 *)a.y[m] + at, y);
}

/* A tile's weight and first column. */
struct few_tile {
    int m, col;
    __device__ __forceinline__ few_tile(const few_args &a, int tile)
    {
        m = 0;
#pragma unroll 1
        while (m + 1 < a.count && tile >= a.first[m + 1])
            m++;
        col = (tile - a.first[m]) * (a.swiglu ? 8 : FEW_COLS);
    }
};

/* What a warp asks for: 8 rows of the weights twice, in copies of 4 rows of 128 bytes; this lane's pieces of the tile that is next. */
struct few_ask {
    const bf16 *p[2][2];
    int bytes[2][2], tile, k, mine;
    unsigned to;
    /* first, mine: the warp's stretches; ring: its own part */
    __device__ __forceinline__ few_ask(const few_args &a, int me, int first, int stretches, const uint4 *ring)
    {
        const int lane = threadIdx.x & 31, row = lane >> 3, piece = lane & 7;
        k = FEW_STRETCH * first + 8 * piece;
        mine = min(stretches, (a.k - k + FEW_STRETCH - 1) / FEW_STRETCH); /* the last one may be half there */
        to = smem_addr(ring + 8 * row + (piece ^ (row & 1) << 2));
        find(a, me);
    }
    __device__ __forceinline__ void find(const few_args &a, int next)
    {
        tile = next;
        if (tile >= a.first[a.count])
            return;
        const few_tile at(a, tile);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int m = a.swiglu ? i : at.m, c = at.col + (a.swiglu ? 0 : 8 * i) + (threadIdx.x & 31) / 8;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                p[i][h] = a.w[m] + (int64_t)(c + 4 * h) * a.k + k;
                bytes[i][h] = c + 4 * h < a.n[m] ? 16 : 0;
            }
        }
    }
    /* Stretch `step` of the tile, to byte `at` of the ring. */
    __device__ __forceinline__ void ask(const few_args &a, unsigned at, int step) const
    {
        if (tile < a.first[a.count])
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int h = 0; h < 2; h++)
                    few_async(to + at + (i * FEW_WARPS * 8 + 4 * h) * 8 * 16, p[i][h] + FEW_STRETCH * step, step < mine ? bytes[i][h] : 0);
        cp_commit();
    }
};

/* A lane's share of x: rows g and g + 8, stretches of 32 k, of which it has 8 neighbours; zeros beyond. */
template <int STEPS> struct few_x {
    uint4 v[2][2 * STEPS];
    /* x: the warp's first k of row 0; there: how many k are from it on */
    __device__ __forceinline__ void load(const unsigned char *x, int64_t stride, int rows, int there)
    {
        const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
#pragma unroll
        for (int s = 0; s < 2 * STEPS; s++) /* all on the way at once */
#pragma unroll
            for (int h = 0; h < 2; h++)
                v[h][s] = 32 * s < there && g + 8 * h < rows ? *(const uint4 *)(x + (g + 8 * h) * stride + 64 * s + 16 * t)
                                                             : make_uint4(0, 0, 0, 0);
    }
    /* Sums of squares of row g in lane (g, g / 2), of row g + 8 there too: the diagonals of x x^T, for whose second operand a lane's own
       share serves. */
    __device__ __forceinline__ void squares(float (&sum)[2]) const
    {
        const int g = (threadIdx.x & 31) >> 2;
        float c[2][2][4] = {}; /* two sums each: fewer products wait for one another */
#pragma unroll
        for (int s = 0; s < 2 * STEPS; s++) {
            const unsigned lo[4] = {v[0][s].x, v[1][s].x, v[0][s].y, v[1][s].y}, hi[4] = {v[0][s].z, v[1][s].z, v[0][s].w, v[1][s].w};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mma16816(c[h][0], lo, v[h][s].x, v[h][s].y);
                mma16816(c[h][1], hi, v[h][s].z, v[h][s].w);
            }
        }
        sum[0] = g & 1 ? c[0][0][1] + c[0][1][1] : c[0][0][0] + c[0][1][0];
        sum[1] = g & 1 ? c[1][0][3] + c[1][1][3] : c[1][0][2] + c[1][1][2];
    }
    __device__ __forceinline__ void weigh(const bf16 *w, int there)
    {
#pragma unroll
        for (int s = 0; s < 2 * STEPS; s++)
            if (32 * s < there) {
                const uint4 b = *(const uint4 *)(w + 32 * s);
#pragma unroll
                for (int h = 0; h < 2; h++)
                    v[h][s] = make_uint4(bf16_times(v[h][s].x, b.x), bf16_times(v[h][s].y, b.y), bf16_times(v[h][s].z, b.z),
                                         bf16_times(v[h][s].w, b.w));
            }
    }
};

/*
 * x arrives: on sm_90 in shared memory of both blocks of a pair, half of the rows asked for by each; else each warp reads its own.
 * few_x_ready may come before the previous kernel's end. stride: bytes between rows there.
 */
static __device__ __forceinline__ void few_x_ready(uint64_t *bar, unsigned bytes)
{
#if FEW_PAIRS
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(smem_addr(bar)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_addr(bar)), "r"(bytes) : "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void few_x_ask(uint64_t *bar, unsigned char *to, int stride, const few_args &a, int from, int n)
{
#if FEW_PAIRS
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); /* the other block's barrier is there */
    const int r = 2 * (int)threadIdx.x + ((int)blockIdx.x & 1);
    if (r < a.rows)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
                         smem_addr(to + r * stride)),
                     "l"(a.x + (int64_t)r * a.k + from), "r"(2 * n), "r"(smem_addr(bar)), "h"((short)3)
                     : "memory");
    __syncwarp();
#endif
}
static __device__ __forceinline__ void few_x_wait(uint64_t *bar)
{
#if FEW_PAIRS
    unsigned done;
    do
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(smem_addr(bar))
                     : "memory");
    while (!done);
#endif
}

/* The sums of this block's tiles, of all parts, by the block of its part's counterparts that comes last: a thread has four neighbours. */
static __device__ __forceinline__ void few_finish(const few_args &a, int me, int step)
{
    enum { SIZE = 16 * FEW_COLS, EACH = FEW_THREADS / (SIZE / 4) };
    __shared__ bool last;
    const int tid = threadIdx.x, u = tid % (SIZE / 4) * 4, r = u / FEW_COLS, c = u % FEW_COLS;
    __syncthreads();
    if (tid == 0) {
        __threadfence();
        last = atomicAdd(a.arrived + me, 1) == (unsigned)a.parts - 1;
        if (last)
            a.arrived[me] = 0; /* for the next kernel */
        __threadfence();
    }
    __syncthreads();
    if (!last || r >= a.rows)
        return;
#pragma unroll 1
    for (int tile = me + tid / (SIZE / 4) * step; tile < a.first[a.count]; tile += EACH * step) {
        const float *p = a.part + (int64_t)tile * a.parts * SIZE + u;
        float4 sum = __ldcg((const float4 *)p);
#pragma unroll 4
        for (int i = 1; i < a.parts; i++) {
            const float4 v = __ldcg((const float4 *)(p + i * SIZE));
            sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
        }
        const few_tile at(a, tile);
        const float four[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (at.col + c + e < a.n[at.m])
                few_store(a, at.m, r, at.col + c + e, four[e]);
    }
}

/* A tile's 16 rows and FEW_COLS columns: sum(r, c) of the warps' sums, to where they belong; in part 0 with what they are added to. */
template <typename F> static __device__ __forceinline__ void few_out(const few_args &a, int tile, int part, F sum)
{
    const int tid = threadIdx.x;
    const few_tile at(a, tile);
    if (a.swiglu) {
        const int r = tid / 8, c = tid % 8;
        if (r < a.rows && at.col + c < a.n[0]) {
            float gate = sum(r, c), up = sum(r, 8 + c);
            gate = rounded<bf16>(gate + (a.bias[0] ? ld(a.bias[0] + at.col + c) : 0));
            up = rounded<bf16>(up + (a.bias[1] ? ld(a.bias[1] + at.col + c) : 0));
            st((bf16 *)a.y[0] + (int64_t)r * a.n[0] + at.col + c, silu_f(gate) * up);
        }
        return;
    }
    const int r = tid / FEW_COLS, c = tid % FEW_COLS;
    const bool on = r < a.rows && at.col + c < a.n[at.m];
    const float y = sum(r, c) + (on && part == 0 ? few_base(a, at.m, r, at.col + c) : 0);
    if (a.parts > 1)
        a.part[((int64_t)tile * a.parts + part) * FEW_THREADS + tid] = y;
    else if (on)
        few_store(a, at.m, r, at.col + c, y);
}
static_assert(16 * FEW_COLS == FEW_THREADS, "a thread has an element of a tile");

/* The products of one stretch. Which k an mma calls which does not matter as long as both operands agree: lane t's 8 neighbouring k are 2t,
 * 2t+1, 2t+8, 2t+9 of two products. The halves of the stretch have sums of their own, so that fewer products wait for one another. */
template <int STEPS> static __device__ __forceinline__ void few_mma(float (&acc)[2][2][4], const few_x<STEPS> &x, int s, const uint4 *w)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, at = 8 * g + ((lane & 3) ^ (g & 1) << 2);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint4 b = w[i * FEW_WARPS * 64 + (at ^ 4 * h)], u = x.v[0][2 * s + h], v = x.v[1][2 * s + h];
            const unsigned lo[4] = {u.x, v.x, u.y, v.y}, hi[4] = {u.z, v.z, u.w, v.w};
            mma16816(acc[h][i], lo, b.x, b.y);
            mma16816(acc[h][i], hi, b.z, b.w);
        }
}

/* The sums of squares of x's rows, then x by the weights of the norm. */
template <int STEPS> static __device__ __forceinline__ void few_norm(few_smem<STEPS> &sm, few_x<STEPS> &x, const bf16 *norm, int there)
{
    const int warp = threadIdx.x >> 5, g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    float sum[2];
    x.squares(sum);
    if (t == g / 2) {
        sm.squares[g][warp] = sum[0];
        sm.squares[g + 8][warp] = sum[1];
    }
    x.weigh(norm + 8 * t, there);
}

/*
 * A block's warps share its part's k, STEPS stretches each at most; it makes 16 rows x FEW_COLS columns at a time. Sums of the warps are
 * added in order. The next kernel may come when FEW_LAST tiles are left: earlier, its reading is in the way of this one's.
 */
template <int STEPS> static __global__ void __launch_bounds__(FEW_THREADS, 1) few_kernel(const __grid_constant__ few_args a)
{
    constexpr int RING = few_smem<STEPS>::RING;
    constexpr unsigned SLOT = sizeof(few_smem<STEPS>::ring) / RING;
    extern __shared__ __align__(128) unsigned char raw[];
    few_smem<STEPS> &sm = *(few_smem<STEPS> *)raw;
    const int tid = threadIdx.x, warp = tid >> 5, g = (tid & 31) >> 2, t = tid & 3, tiles = a.first[a.count];
    const int pair = blockIdx.x / 2, part = pair % a.parts, me = pair / a.parts * 2 + blockIdx.x % 2, step = gridDim.x / a.parts;
    const int part0 = a.part_at[part], part1 = a.part_at[part + 1], part_k = min(a.k, FEW_STRETCH * part1) - FEW_STRETCH * part0;
    const int first = part0 + warp * (part1 - part0) / FEW_WARPS, mine = part0 + (warp + 1) * (part1 - part0) / FEW_WARPS - first;
    const int from = FEW_STRETCH * first, there = min(FEW_STRETCH * mine, a.k - from), stride = few_x_stride(part_k);
    bf16 *norm = (bf16 *)sm.more;
    unsigned char *xs = sm.more + (a.norm ? 2 * a.k : 0);
    few_ask next(a, me, first, mine, sm.ring[0][0][warp]);
    few_x_ready(&sm.x_there, 2 * a.rows * part_k);
    if (a.norm)
        for (int i = tid; i < a.k / 8; i += FEW_THREADS)
            few_async(smem_addr(norm + 8 * i), a.norm + 8 * i, 16);
#pragma unroll 1
    for (int i = 0, s = 0; i < RING - 1; i++) {
        if (i == MIN(FEW_EARLY, RING - 2)) {
            if (me + FEW_LAST * step >= tiles)
                let_next_start();
            after_previous();
            few_x_ask(&sm.x_there, xs, stride, a, FEW_STRETCH * part0, part_k);
        }
        next.ask(a, i * SLOT, s);
        if (++s == STEPS)
            s = 0, next.find(a, next.tile + step);
    }
    if (a.norm) { /* its weights came with the first stretch */
        cp_wait<RING - 2>();
        __syncthreads();
    }
    few_x<STEPS> x;
    if (FEW_PAIRS) {
        few_x_wait(&sm.x_there);
        x.load(xs + 2 * FEW_STRETCH * (first - part0), stride, a.rows, there);
    } else
        x.load((const unsigned char *)(a.x + from), 2 * (int64_t)a.k, a.rows, there);
    if (a.norm)
        few_norm(sm, x, norm + from, there);
    float factor = 1;
    unsigned slot = 0, before = (RING - 1) * SLOT; /* bytes */
    int buf = 0;
#pragma unroll 1
    for (int tile = me; tile < tiles; tile += step, buf ^= 1) {
        float acc[2][2][4] = {};
        if (tile + FEW_LAST * step >= tiles)
            let_next_start();
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            cp_wait<RING - 2>();
            __syncwarp();
            next.ask(a, before, (s + RING - 1) % STEPS);
            if ((s + RING - 1) % STEPS == STEPS - 1)
                next.find(a, next.tile + step);
            few_mma<STEPS>(acc, x, s, (const uint4 *)((const unsigned char *)sm.ring[0][0][warp] + slot));
            before = slot;
            slot = slot == (RING - 1) * SLOT ? 0 : slot + SLOT;
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sm.sums[buf][warp][g + 8 * (e >> 1)][8 * i + 2 * t + (e & 1)] = acc[0][i][e] + acc[1][i][e];
        __syncthreads();            /* the one barrier of a tile: the next tile's sums go to the other buffer */
        if (a.norm && tile == me) { /* a thread keeps its row */
            float sq = 0;
#pragma unroll
            for (int i = 0; i < FEW_WARPS; i++)
                sq += sm.squares[tid / (a.swiglu ? 8 : FEW_COLS) % 16][i];
            factor = rsqrtf(sq / (float)a.k + a.eps);
        }
        few_out(a, tile, part, [&](int r, int c) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < FEW_WARPS; i++)
                sum += sm.sums[buf][i][r][c];
            return sum * factor;
        });
    }
    if (a.parts > 1)
        few_finish(a, me, step);
}

/* ---- the calls ---- */

enum { FEW_SMEM = 232448, FEW_SMEM_80 = 160 << 10 }; /* of devices that have it; with and without room for x */
template <int STEPS> static constexpr size_t few_bytes(int k, int part_k, bool norm, bool pairs)
{
    return offsetof(few_smem<STEPS>, more) + (norm ? 2 * (size_t)k : 0) + (pairs ? 16 * (size_t)few_x_stride(part_k) : 0);
}
static_assert(few_bytes<4>(2048, 2048, true, true) <= FEW_SMEM && few_bytes<6>(3072, 3072, true, true) <= FEW_SMEM &&
                  few_bytes<8>(4096, 4096, true, true) <= FEW_SMEM && few_bytes<8>(4096, 4096, true, false) <= FEW_SMEM_80 &&
                  few_bytes<4>(2048, 2048, true, false) <= FEW_SMEM_80,
              "room in shared memory");

template <int STEPS> static void few_launch(struct backend *be, const few_args &a)
{
    const bool pairs = cuda_of(be)->cc >= 90;
    int part_k = 0;
    for (int i = 0; i < a.parts; i++)
        part_k = MAX(part_k, MIN(a.k, FEW_STRETCH * a.part_at[i + 1]) - FEW_STRETCH * a.part_at[i]);
    const size_t bytes = few_bytes<STEPS>(a.k, part_k, a.norm, pairs);
    const int each = MIN(cuda_of(be)->sms / (2 * a.parts), CEIL_DIV(a.first[a.count], 2)) * 2;
    if (tile_allow_smem(be, few_kernel<STEPS>, bytes))
        launch_after(be, few_kernel<STEPS>, dim3((unsigned)(each * a.parts)), FEW_THREADS, bytes, pairs ? 2 : 1, a);
}

/*
 * Into how many parts k goes, so that the longest block takes least. In weights read: a tile's end costs two columns, x 16; the end of
 * parts as much as 48 Ki, and 1.5 Ki for each sum of a tile that the last block adds (measured on an H200 at 2048 x 11008). 0: too long.
 */
static int few_parts(struct backend *be, const few_args &a)
{
    int64_t least = INT64_MAX;
    int best = 0;
    const int all = CEIL_DIV(a.k, (int)FEW_STRETCH);
    for (int parts = CEIL_DIV(a.k, (int)FEW_PART_K); parts <= MIN(all, (int)FEW_PARTS); parts++) {
        const int64_t each = cuda_of(be)->sms / (2 * parts) * 2;
        if (!each || (parts > 1 && (a.norm || a.swiglu)))
            break;
        const int64_t rounds = CEIL_DIV(a.first[a.count], each);
        const int64_t cost = CEIL_DIV(a.k, parts) * (rounds * (FEW_COLS + 2) + 16) + (parts > 1 ? 49152 + 1536 * rounds * parts : 0);
        if (cost < least)
            least = cost, best = parts;
    }
    return best;
}

/* Fills what both calls share; false = not for these. */
static bool few_prepare(struct backend *be, few_args *a, struct view x, const struct step_norm *norm, int64_t rows, int64_t k,
                        const struct step_linear *l, int count)
{
    const size_t smem = cuda_of(be)->cc >= 90 ? FEW_SMEM : FEW_SMEM_80;
    if (!cuda_fused(be) || cuda_of(be)->smem_optin < smem || rows > 16 || rows < 1 || k % 32 || k < 32 || k > FEW_PART_K * FEW_PARTS ||
        !aligned16(x.p) || (norm && norm->w.p && !aligned16(norm->w.p)))
        return false;
    for (int i = 0; i < count; i++) {
        if (l[i].n < 1 || l[i].n > 1 << 20 || !aligned16(l[i].w.p) || (l[i].y.dt != DT_BF16 && l[i].y.dt != DT_F32))
            return false;
        a->w[i] = cuda_p<bf16>(l[i].w), a->bias[i] = cuda_p<bf16>(l[i].bias), a->y[i] = l[i].y.p, a->n[i] = (int)l[i].n;
        a->f32 |= (unsigned)(l[i].y.dt == DT_F32) << i;
        a->add |= (unsigned)l[i].add << i;
        a->first[i + 1] = a->swiglu ? (int)CEIL_DIV(l[0].n, 8) : a->first[i] + (int)CEIL_DIV(l[i].n, FEW_COLS);
    }
    a->x = cuda_p<bf16>(x), a->count = count, a->rows = (int)rows, a->k = (int)k;
    if (norm)
        a->norm = cuda_p<bf16>(norm->w), a->eps = (float)norm->eps;
    return (a->parts = few_parts(be, *a)) > 0;
}

static void few_run(struct backend *be, few_args *a)
{
    const int all = CEIL_DIV(a->k, (int)FEW_STRETCH), steps = CEIL_DIV(CEIL_DIV(all, a->parts), (int)FEW_WARPS);
    for (int i = 0; i <= a->parts; i++)
        a->part_at[i] = i * all / a->parts;
    if (a->parts > 1) {
        a->part = cuda_ws_of<float>(be, (int64_t)a->first[a->count] * a->parts * 16 * FEW_COLS);
        a->arrived = cuda_counters(be);
        if (!a->part || !a->arrived)
            return;
    }
    if (steps <= 2)
        few_launch<2>(be, *a);
    else if (steps <= 4)
        few_launch<4>(be, *a);
    else if (steps <= 6)
        few_launch<6>(be, *a);
    else
        few_launch<FEW_STEPS>(be, *a);
}

bool cuda_linear_many(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k, const struct step_linear *l,
                      int count)
{
    few_args a = {};
    if (!few_prepare(be, &a, x, norm, rows, k, l, count))
        return false;
    cuda_step_begin(be, "linear_many");
    few_run(be, &a);
    cuda_step_end(be);
    return true;
}

bool cuda_linear_swiglu(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k,
                        const struct step_linear *l, struct view h)
{
    few_args a = {};
    a.swiglu = true;
    if (h.dt != DT_BF16 || !few_prepare(be, &a, x, norm, rows, k, l, 2))
        return false;
    a.y[0] = h.p;
    cuda_step_begin(be, "linear_swiglu");
    few_run(be, &a);
    cuda_step_end(be);
    return true;
}
