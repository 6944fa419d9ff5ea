/*
 * One op, made runnable from a text: op name and "key=value,key=value". Used by `dashlab bench op` and by the tests, so that what is
 * measured is what is tested. A case and a run hold pointers into themselves: do not copy them. A case owns host values in double for every
 * tensor that the op needs (seeded, reproducible); a backward op brings its forward, which runs first and hands over what it saved. A
 * case_run binds it to one backend: buffers with guards around and between the tensors, values rounded to that backend's types. Lists are
 * joined with '+': lens=5+64+1. Unknown keys are E_USAGE with the keys of the op.
 */
#ifndef KERNELS_OP_CASE_H
#define KERNELS_OP_CASE_H

#include "kernels/op_views.h"

enum op_id {
#define X(op) OP_##op,
    BACKEND_OPS(X)
#undef X
        OP_COUNT
};
extern const char *const op_names[OP_COUNT + 1]; /* NULL-terminated */

union op_any {
#define X(op) struct op_##op op;
    BACKEND_OPS(X)
#undef X
};
void op_views_any(enum op_id id, const union op_any *d, struct op_views *out);
struct cost op_cost_any(enum op_id id, const union op_any *d);
void op_run_any(struct backend *be, enum op_id id, const union op_any *d);

enum { CASE_MAX_TENSORS = 40, CASE_MAX_SEQS = 64 };
struct case_tensor {
    char name[12];
    enum view_class cls;
    enum view_role role;     /* IN: never written; OUT: starts as NaN; INOUT: starts with values, is written */
    enum dtype any_dt;       /* type when cls is VIEW_ANY */
    int64_t rows, width, ld; /* ld in elements of the buffer it lives in */
    int home;                /* tensor whose buffer it shares (itself mostly); off: element offset of its first element there */
    int64_t off;
    bool opaque; /* layout is the backend's own business: never compared */
    double *x;   /* [rows * width], initial values; zeros for OUT */
};
struct op_case {
    enum op_id op;
    char shape[256];
    uint64_t seed;
    int n_ops; /* 1, or 2: forward then backward */
    enum op_id ops[2];
    union op_any d[2]; /* scalars and, in views, which are present */
    bool has_seqs;
    struct seqs seqs;
    int32_t q_off[CASE_MAX_SEQS + 1], kv_off[CASE_MAX_SEQS], kv_len[CASE_MAX_SEQS];
    struct case_tensor t[CASE_MAX_TENSORS];
    int n_t;
    int64_t chain;   /* longest chain of dependent roundings, for tolerances: the reduction length */
    char known[400]; /* keys asked for, " m n k " */
};
int op_case_make(struct op_case *c, const char *op, const char *shape, uint64_t seed, struct err *e);
void op_case_free(struct op_case *c);
int op_case_find(const struct op_case *c, const char *name);        /* tensor index or -1 */
int op_case_by_name(const char *op, enum op_id *id, struct err *e); /* E_USAGE with the nearest name */
/* Cost of the last op (the one asked for). */
struct cost op_case_cost(const struct op_case *c);

/* Type that a tensor has on a backend: EITHER is act for inputs, stat for what accumulates. */
enum dtype op_case_dtype(const struct op_case *c, const struct case_tensor *t, const struct backend *be);
/* Rounds all values to what `be` would hold, so that another backend can be given the very same numbers. */
void op_case_round(struct op_case *c, const struct backend *be);

struct case_run {
    const struct op_case *c;
    struct backend *be;
    union op_any d[2];
    struct seqs seqs;
    struct view d_seqs[3];
    struct view buf[CASE_MAX_TENSORS];  /* whole buffers with guards; absent where the tensor lives elsewhere */
    struct view view[CASE_MAX_TENSORS]; /* as bound */
};
int case_run_open(struct case_run *r, const struct op_case *c, struct backend *be, struct err *e);
void case_run_close(struct case_run *r);
int case_run_fill(struct case_run *r, struct err *e);                         /* initial values and guards */
void case_run_prepare(struct case_run *r);                                    /* all but the last op */
void case_run_last(struct case_run *r);                                       /* the op asked for */
int case_run_all(struct case_run *r, struct err *e);                          /* prepare, last, sync */
int case_run_get(struct case_run *r, int tensor, double *out, struct err *e); /* rows * width values, tight */
/* E_CHECK when anything but the outputs has changed: guards, gaps between rows, inputs. */
int case_run_guards(struct case_run *r, struct err *e);

#endif
