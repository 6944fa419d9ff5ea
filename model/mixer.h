/*
 * Token mixers. A mixer type is one struct of functions and one file (mixer_attn.c: full and window attention, which share their weights;
 * mixer_gdn.c: Gated DeltaNet). A new operator is one more file and one more entry in mixer_types. Everything runs through be_* only.
 * Shapes: h (input, normed) and y [R, D].
 *
 * Mixing [DASH eq. 12]: out = sum_o p_o op_o(h) after the output projections, p host scalars. The operators of one mixer share one
 * projection applied to the mixed heads, and every mixer scales before it projects, so that no projected operator output is stored; the
 * second mixer of a layer accumulates into y.
 */
#ifndef MODEL_MIXER_H
#define MODEL_MIXER_H

#include "kernels/step.h"
#include "model/batch.h"
#include "model/cfg.h"
#include "model/dmem.h"
#include "model/param.h"

#define MIXER_MAX_PARAMS 16
#define MIXER_MAX_SAVE 24
#define MIXER_MAX_STATE 4
#define MIX_BIT(k) (1u << (k))

struct mixer_shape {
    int64_t d; /* model width */
    int64_t h; /* query heads; GDN: key heads */
    int64_t g; /* KV heads; GDN: value heads */
    int64_t kdim, vdim;
    int64_t conv;   /* taps of the short convolutions, 0 = none */
    int64_t window; /* of MIX_WINDOW, with itself */
    double eps;     /* qk norm; GDN: output norm */
    bool qkv_bias, o_bias, qk_norm, gate, neg_eigval;
};
struct rope { /* tables stat [rows, head_dim/2]; shared by models */
    struct view cos, sin;
    int64_t rows;
    int refs;
};
struct mixer {
    const struct mixer_type *type;
    int64_t layer;
    struct mixer_shape s;
    struct param *p[MIXER_MAX_PARAMS]; /* in the order of type->params; NULL = the shape has none */
};
struct mixer_param {    /* one tensor of a mixer */
    const char *suffix; /* "q_proj.weight" */
    int ndim;
    int64_t dims[3];
    bool present;
    bool stat; /* kept in the statistics' dtype */
    bool decay;
};
struct mixer_save { /* what bwd needs, in the keep arena */
    struct view v[MIXER_MAX_SAVE];
};
struct mixer_state { /* one tensor of a decoding state, for one sequence */
    const char *name;
    bool stat;                /* else act */
    int64_t per_token, fixed; /* elements: capacity * per_token + fixed */
};
struct mixer_cache { /* views [slots, elements of one sequence] */
    struct view v[MIXER_MAX_STATE];
    int64_t elems[MIXER_MAX_STATE];
};
struct cache_rows; /* cache.h: where new rows go */

/* All that a call needs besides the mixer. */
struct mx {
    struct backend *be;
    struct dmem *keep, *tmp;
    const struct seqs *seqs;
    struct view pos; /* i32 [R] */
    const struct rope *rope;
    bool save;    /* fwd fills the save struct */
    bool wgrad;   /* bwd: gradients of parameters that are trainable and have g */
    unsigned ops; /* MIX_BIT set of the operators in use, all of this mixer's type */
    double p[MIX_N_KINDS];
    bool scaled;                   /* false: one operator, p = 1, nothing is scaled */
    const struct cache_rows *rows; /* decoding only */
    int32_t slot0;
    struct step_norm norm; /* decoding: what is given as h is still to be normed by it; w absent: it is normed */
};
struct mixer_init {
    uint64_t seed;
    enum kv_expand kv_expand;
    double gate_scale; /* factor on the fresh g_proj; 1 = as fla */
    double a_scale;    /* factor on the fresh a_proj and b_proj; 1 */
};
struct mixer_type {
    const char *name;
    unsigned kinds; /* MIX_BITs it implements */
    void (*shape)(const struct mcfg *c, int64_t layer, struct mixer_shape *s);
    int (*params)(const struct mixer_shape *s, struct mixer_param out[MIXER_MAX_PARAMS]); /* the count */
    int (*init_from)(struct backend *be, struct mixer *x, const struct mixer *teacher, const struct mixer_init *o,
                     struct err *e); /* NULL: none */
    /* y (= or += when add) = mixed output of h. Fills sv when c->save. */
    void (*fwd)(const struct mx *c, const struct mixer *x, struct view h, struct view y, bool add, struct mixer_save *sv);
    /* From dy: dh (=, += when add; absent: not wanted), parameter gradients (+=), dp stat [MIX_N_KINDS] (+=; absent: not wanted). */
    void (*bwd)(const struct mx *c, const struct mixer *x, struct view h, struct view dy, struct view dh, bool add, struct view dp,
                const struct mixer_save *sv);
    /* As fwd for the next tokens of sequences slot0.. of a cache, which is read and brought forward. */
    void (*step)(const struct mx *c, const struct mixer *x, struct view h, struct view y, bool add, struct mixer_cache *cache);
    int (*state)(const struct mixer *x, unsigned ops, struct mixer_state out[MIXER_MAX_STATE]);
    /* DASH's cost of an operator at length T: 1 full, w/T window, 0 linear. */
    double (*cost)(const struct mixer *x, enum mixer_kind k, int64_t T);
};
extern const struct mixer_type mixer_attn, mixer_gdn;
const struct mixer_type *mixer_type_of(enum mixer_kind k);

/*
 * A mixer alone (Stage 1, teacher-forced): h given, output y; then dy in, parameter gradients out, no gradient to h (dh may be given all
 * the same). The arenas in c must be large enough: mixer_plan measures keep and tmp for rows x seqs.
 */
void mixer_fwd(const struct mx *c, const struct mixer *x, struct view h, struct view y, struct mixer_save *sv);
void mixer_bwd(const struct mx *c, const struct mixer *x, struct view h, struct view dy, struct view dh, const struct mixer_save *sv);
int mixer_plan(const struct mixer *x, const struct backend *like, int64_t rows, int32_t seqs, size_t *keep_bytes, size_t *tmp_bytes,
               struct err *e);
/* FLOPs of the mixer alone over one sequence of T tokens: forward and backward to its parameters, none to h (a teacher-forced step of
 * Stage 1). */
int mixer_flops(const struct mixer *x, const struct backend *like, int64_t T, double *flops, struct err *e);
/* A context for a mixer alone over a batch. */
struct mx mixer_ctx(struct backend *be, struct dmem *keep, struct dmem *tmp, const struct batch *b);

/* y (=|+=) x W^T (+ bias), rows of x; and its backward: dx (=|+=; absent: skipped), dW and dbias += when wanted. Used by mixers and FFNs.
 */
void linear_fwd(struct backend *be, int64_t rows, struct view y, struct view x, const struct param *w, const struct param *bias, bool add);
void linear_bwd(struct backend *be, int64_t rows, struct view dx, bool add, struct view dy, struct view x, const struct param *w,
                const struct param *bias, bool wgrad);
/* h, normed if it is still to be; asked for once. */
struct view mx_normed(const struct mx *c, struct view h);
/* Whether bwd is to compute this parameter's gradient. */
static inline bool param_wants(const struct param *p, bool wgrad)
{
    return p && wgrad && p->trainable;
}

/* Its gradient; while measuring, before gradients exist, a view that nobody touches. */
struct view param_grad(const struct backend *be, const struct param *p);

#endif
