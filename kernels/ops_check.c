/*
 * be_OP: shape, type, absence and alias checks, index checks where the device is the host, FLOP and byte counts, then the backend's kernel.
 * A broken rule sets the sticky error and nothing runs, so a wrong descriptor never reaches memory.
 */
#include "kernels/host.h"
#include "kernels/op_views.h"

#include <math.h>
#include <stdlib.h>

static bool class_ok(const struct backend *be, const struct op_view *v)
{
    enum dtype dt = v->v->dt;
    switch (v->cls) {
    case VIEW_ACT:
        return dt == be->act;
    case VIEW_STAT:
        return dt == be->stat;
    case VIEW_EITHER:
        return dt == be->act || dt == be->stat;
    case VIEW_I32:
        return dt == DT_I32;
    case VIEW_F64:
        return dt == DT_F64;
    case VIEW_ANY:
        return true;
    }
    return false;
}

static const char *class_name(const struct backend *be, enum view_class c)
{
    switch (c) {
    case VIEW_ACT:
        return dtype_name(be->act);
    case VIEW_STAT:
        return dtype_name(be->stat);
    case VIEW_EITHER:
        return be->act == be->stat ? dtype_name(be->act) : "the activations' or the statistics' type";
    case VIEW_I32:
        return "i32";
    case VIEW_F64:
        return "f64";
    case VIEW_ANY:
        return "any";
    }
    return "?";
}

/* Whether two views share an element. Views of one buffer with the same row stride (q | k | v) are apart when their columns are. */
static bool overlap(const struct op_view *a, const struct op_view *b)
{
    int64_t ea = op_view_extent(a), eb = op_view_extent(b);
    if (!a->v->p || !b->v->p || !ea || !eb)
        return false;
    size_t sa = dtype_size(a->v->dt), sb = dtype_size(b->v->dt);
    uintptr_t pa = (uintptr_t)a->v->p, pb = (uintptr_t)b->v->p;
    if (pa + (size_t)ea * sa <= pb || pb + (size_t)eb * sb <= pa)
        return false;
    if (sa == sb && a->ld == b->ld) {
        int64_t diff = ((int64_t)pb - (int64_t)pa) / (int64_t)sa % a->ld;
        if (diff < 0)
            diff += a->ld;
        return !(diff >= a->width && diff + b->width <= a->ld);
    }
    return true;
}

static bool index_ok(struct backend *be, const char *op, const struct op_view *v)
{
    const int32_t *x = v->v->p;
    for (int64_t i = 0; i < v->width; i++)
        if (x[i] >= v->index_limit || (x[i] < 0 && !v->index_neg)) {
            be_fail(be, E_CHECK, "op '%s': index %d at %" PRId64 " of view '%s' is outside 0..%" PRId64, op, (int)x[i], i, v->name,
                    v->index_limit - 1);
            return false;
        }
    return true;
}

static bool views_ok(struct backend *be, const struct op_views *o)
{
    if (o->bad[0]) {
        be_fail(be, E_CHECK, "op '%s': %s", o->op, o->bad);
        return false;
    }
    for (int i = 0; i < o->n; i++) {
        const struct op_view *v = &o->v[i];
        int64_t want = op_view_extent(v);
        if (!v->v->p) {
            if (!v->required || !want)
                continue;
            be_fail(be, E_CHECK, "op '%s': view '%s' is absent; it needs %" PRId64 " elements", o->op, v->name, want);
            return false;
        }
        if (!class_ok(be, v)) {
            be_fail(be, E_CHECK, "op '%s': view '%s' is %s; on %s it must be %s", o->op, v->name, dtype_name(v->v->dt), be->ops->name,
                    class_name(be, v->cls));
            return false;
        }
        if (v->v->n < want) {
            be_fail(be, E_CHECK,
                    "op '%s': view '%s' has %" PRId64 " elements; %" PRId64 " x %" PRId64 " with row stride %" PRId64 " need %" PRId64,
                    o->op, v->name, v->v->n, v->rows, v->width, v->ld, want);
            return false;
        }
        if (v->index_limit && be_is_host(be) && !index_ok(be, o->op, v))
            return false;
        if (v->role == VIEW_IN)
            continue;
        for (int j = 0; j < o->n; j++) {
            if (j == i || (j < i && o->v[j].role != VIEW_IN) || !overlap(v, &o->v[j]))
                continue;
            if ((v->may_alias >> j & 1) && v->v->p == o->v[j].v->p)
                continue;
            be_fail(be, E_CHECK, "op '%s': output '%s' shares memory with '%s'", o->op, v->name, o->v[j].name);
            return false;
        }
    }
    return true;
}

static double element(const void *p, enum dtype dt, int64_t i)
{
    switch (dt) {
    case DT_F32:
        return (double)((const float *)p)[i];
    case DT_F64:
        return ((const double *)p)[i];
    case DT_I32:
        return 0;
    case DT_BF16: { /* only whether it is finite matters: all exponent bits set in either format */
        uint16_t h = ((const uint16_t *)p)[i];
        return (h & 0x7f80u) == 0x7f80u ? (double)INFINITY : 0;
    }
    case DT_F16: {
        uint16_t h = ((const uint16_t *)p)[i];
        return (h & 0x7c00u) == 0x7c00u ? (double)INFINITY : 0;
    }
    }
    return 0;
}

/* Debugging: every output element of the op that has just run. */
static void scan_outputs(struct backend *be, const struct op_views *o)
{
    struct err e = ERR_INIT;
    if (be_sync(be, &e) != 0)
        return;
    for (int i = 0; i < o->n && !be->failed; i++) {
        const struct op_view *v = &o->v[i];
        int64_t n = op_view_extent(v);
        if (v->role == VIEW_IN || !v->v->p || !n || v->v->dt == DT_I32)
            continue;
        size_t bytes = (size_t)n * dtype_size(v->v->dt);
        void *host = malloc(bytes);
        if (!host) {
            be_fail(be, E_ENV, "op '%s': no memory to scan output '%s' (%zu bytes)", o->op, v->name, bytes);
            return;
        }
        be->ops->copy(be, host, v->v->p, bytes, COPY_TO_HOST);
        for (int64_t r = 0; r < v->rows && !be->failed; r++)
            for (int64_t c = 0; c < v->width; c++)
                if (!finite_f64(element(host, v->v->dt, r * v->ld + c))) {
                    be_fail(be, E_NUMERIC, "op '%s': output '%s' is not finite at row %" PRId64 ", column %" PRId64, o->op, v->name, r, c);
                    break;
                }
        free(host);
    }
}

#define X(op)                                                                                                                              \
    void be_##op(struct backend *be, const struct op_##op *d)                                                                              \
    {                                                                                                                                      \
        struct op_views o;                                                                                                                 \
        if (be->failed)                                                                                                                    \
            return;                                                                                                                        \
        views_##op(d, &o);                                                                                                                 \
        if (!views_ok(be, &o))                                                                                                             \
            return;                                                                                                                        \
        be->flops += flops_##op(d);                                                                                                        \
        be->bytes += views_bytes(&o);                                                                                                      \
        be->ops->op(be, d);                                                                                                                \
        if (be->check_finite && !be->failed)                                                                                               \
            scan_outputs(be, &o);                                                                                                          \
    }
BACKEND_OPS(X)
#undef X
