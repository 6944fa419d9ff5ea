/*
 * Parameters. A `struct param` belongs to one list (of a model or of a set of mixers); the memory of its weights (struct wmem) is counted
 * by references, so that a teacher, a search supernet and hybrids share frozen weights. Training state (master, m, v, g) is made on demand.
 */
#ifndef MODEL_PARAM_H
#define MODEL_PARAM_H

#include "kernels/backend.h"

enum param_group { PG_REST, PG_MIXER /* the mixer and the norm before it */ };
#define PG_COUNT 2

struct wmem { /* weights of one tensor */
    struct backend *be;
    struct view v;
    int refs;
};
struct param {
    char name[128];      /* canonical: "model.layers.3.self_attn.q_proj.weight"; unique in its list */
    struct view w;       /* act; A_log and dt_bias: stat */
    struct view master;  /* stat; the same memory as w when w has that dtype (then w_act of op_adamw is absent) */
    struct view m, v, g; /* stat */
    int64_t n;           /* elements */
    int ndim;
    int64_t dims[3];
    enum param_group group;
    int64_t layer; /* -1: none */
    bool decay;    /* false for A_log, dt_bias and norms */
    bool trainable;
    struct wmem *mem;
};
struct params {
    struct backend *be;
    struct param **v;
    size_t n, cap;
};
/* New parameter with its own zeroed weights (share NULL) or those of `share` (same shape; BUG otherwise). */
int params_add(struct params *l, const struct param *like, const struct param *share, struct param **out, struct err *e);
void params_free(struct params *l);
struct param *params_find(const struct params *l, const char *name);
/* Gradients (zeroed) and optimiser state for every trainable parameter that lacks them. Master weights start as the weights. Training
   weights that are shared changes them in every model that has them. */
int params_alloc(struct params *l, bool grads, bool opt, struct err *e);
void params_drop(struct params *l, bool grads, bool opt);
void params_zero_grads(struct params *l);
int64_t params_count(const struct params *l, bool trainable_only);
/* trainable = on for all of a group (group < 0: every group). */
void params_set_trainable(struct params *l, int group, bool on);

/* Host float32 <-> device of any float dtype, converted in pieces (synchronous). Offsets in elements of the view. */
int put_f32(struct backend *be, struct view dst, const float *src, struct err *e);
int get_f32(struct backend *be, float *dst, struct view src, struct err *e);
int get_f64(struct backend *be, double *dst, struct view src, struct err *e);
/* Stream of the counter RNG for a parameter: FNV-1a of its name. */
uint64_t param_stream(const char *name);

#endif
