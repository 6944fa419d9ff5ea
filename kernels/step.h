/*
 * What decoding is made of (linear layers anywhere come here too). A step over a few tokens is hundreds of small ops, so that the time
 * between them counts. Every call below has the value of the table ops named with it, and is those ops on a backend without something
 * better; FLOPs and bytes are counted as theirs.
 *
 * CUDA has something better in bf16: products of up to 16 rows (k a multiple of 32, at most 65536, with a norm 4096), attention and
 * recurrence of one token a sequence are single kernels, and a step's launches are recorded once and replayed. They read weights, and keys
 * and states of earlier steps, before the kernel just before them has ended: that one must not write those. DASHLAB_CUDA_STEP=ops leaves
 * both out, =fused the recording: for finding an error, and for the tests that compare.
 */
#ifndef KERNELS_STEP_H
#define KERNELS_STEP_H

#include "kernels/backend.h"
#include "kernels/ops.h"

/*
 * What stands before products: be_rmsnorm of their input x [rows, k] by w, to h. w absent (or no struct): nothing. h is memory for it; what
 * it holds afterwards is not said.
 */
struct step_norm {
    struct view w, h;
    double eps;
};
/* y [rows, n] (=|+=) x W^T (+ bias): one be_gemm for each of `count` weights w [n, k] on the same x [rows, k] or its norm. */
struct step_linear {
    struct view y, w, bias;
    int64_t n;
    bool add;
};
enum { STEP_LINEAR_MAX = 8 };
void be_linear_many(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k, const struct step_linear *l,
                    int count);

/* h [rows, l[0].n] = silu(l[0]'s product) times l[1]'s: be_linear_many, be_swiglu. Whether l[].y are written is not said;
 * h may be l[0].y. */
void be_linear_swiglu(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k,
                      const struct step_linear l[2], struct view h);

/*
 * Attention of new rows, which go into the cache first: attn.q [rows, h, kdim] is rotated, k [rows, g, kdim] rotated to rows di of attn.k,
 * v [rows, g, vdim] to rows di of attn.v: be_rope twice, be_gather twice, be_attn. What attn.q and k hold afterwards is not said.
 */
struct step_attn {
    struct op_attn attn;
    struct view k, v, di, cos, sin, pos;
    int64_t max_pos;
};
void be_attn_new(struct backend *be, const struct step_attn *d);

/* be_gdn_prep, be_gdn, be_gdn_out on one new token a sequence, with states. Of what they write only the states and out.y are said. */
struct step_gdn {
    struct op_gdn_prep prep;
    struct op_gdn gdn;
    struct op_gdn_out out;
};
void be_gdn_token(struct backend *be, const struct step_gdn *d);

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

/* Whether a product of so many rows adds to what is there before it rounds, at no cost: a residual stream is then best added to in place.
 */
bool be_adds_in_place(const struct backend *be, int64_t rows);

/* The CUDA backend's part (stubs in a build without it). False: not for these, nothing done. */
bool cuda_linear_many(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k, const struct step_linear *l,
                      int count);
bool cuda_linear_swiglu(struct backend *be, struct view x, const struct step_norm *norm, int64_t rows, int64_t k,
                        const struct step_linear *l, struct view h);
bool cuda_attn_new(struct backend *be, const struct step_attn *d);
bool cuda_gdn_token(struct backend *be, const struct step_gdn *d);
bool cuda_replay_begin(struct backend *be, const struct replay_key *key, struct view *kept);
void cuda_replay_end(struct backend *be, struct view kept);
bool cuda_fused(const struct backend *be); /* bf16, and not with DASHLAB_CUDA_STEP=ops */

#endif
