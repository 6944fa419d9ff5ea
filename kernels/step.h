/*
 * What only decoding uses. A step over a few tokens is hundreds of small ops, so that the time between them counts. Every call below has
 * the value of the table ops named with it, and is those ops on a backend without something better; FLOPs and bytes are counted as theirs.
 *
 * CUDA has something better, off by default until tests/device.sh has run with it on: with DASHLAB_CUDA_FUSED=1 the calls are single kernels for
 * bf16 and up to 16 rows (2: also products with more than 12288 outputs, which are cuBLASLt's else); with DASHLAB_CUDA_GRAPH=1 a step's
 * launches are recorded once and replayed.
 */
#ifndef KERNELS_STEP_H
#define KERNELS_STEP_H

#include "kernels/backend.h"

/* y [rows, n] (=|+=) x W^T (+ bias): one be_gemm for each of `count` weights w [n, k] on the same x [rows, k]. */
struct step_linear {
    struct view y, w, bias;
    int64_t n;
    bool add;
};
enum { STEP_LINEAR_MAX = 8 };
void be_linear_many(struct backend *be, struct view x, int64_t rows, int64_t k, const struct step_linear *l, int count);

/* u = x + y, h = norm of u: be_mix, be_rmsnorm. All [rows, dim]; u is neither x nor y, h may be x or y. */
struct step_add_norm {
    struct view u, h, x, y, w;
    int64_t rows, dim;
    double eps;
};
void be_add_norm(struct backend *be, const struct step_add_norm *d);

/*
 * q [rows, h, kdim] rotated in place; k [rows, g, kdim] rotated to rows di of keys, v [rows, g, vdim] to rows di of values: be_rope twice,
 * be_gather twice. What k holds afterwards is not said.
 */
struct step_rope_put {
    struct view q, k, v, keys, values, di, cos, sin, pos;
    int64_t rows, h, g, kdim, vdim, max_pos;
};
void be_rope_put(struct backend *be, const struct step_rope_put *d);

/*
 * Replaying. A caller that is about to make the same op calls as before, on the same addresses and with the same host values (what differs
 * lies in device memory that was put there before), says so by a key, which must hold all that the calls depend on. True: they have been
 * replayed, and *kept is what the caller gave to be_replay_end then. False: the caller makes the calls, then ends with be_replay_end (also
 * when it failed). Nothing may be put, got, allocated or freed in between. What was recorded is forgotten when memory of the backend is
 * freed.
 */
enum { REPLAY_KEY_MAX = 24 };
struct replay_key {
    uint64_t v[REPLAY_KEY_MAX];
    int n;
};
bool be_replay_begin(struct backend *be, const struct replay_key *key, struct view *kept);
void be_replay_end(struct backend *be, struct view kept);

/* The CUDA backend's part (stubs in a build without it). False: not for these, nothing done. */
bool cuda_linear_many(struct backend *be, struct view x, int64_t rows, int64_t k, const struct step_linear *l, int count);
bool cuda_add_norm(struct backend *be, const struct step_add_norm *d);
bool cuda_rope_put(struct backend *be, const struct step_rope_put *d);
bool cuda_replay_begin(struct backend *be, const struct replay_key *key, struct view *kept);
void cuda_replay_end(struct backend *be, struct view kept);
int cuda_fused(const struct backend *be); /* $DASHLAB_CUDA_FUSED of when it was opened */

#endif
