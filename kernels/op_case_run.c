#include "kernels/op_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/host.h"

enum { GUARD = 64 }; /* elements on each side; keeps 64-byte alignment for every type of 4 bytes or less */

/* A NaN (or a wild index) that no op computes: reading a guard shows, and so does writing one. */
static void store_guard(void *p, enum dtype dt, int64_t i)
{
    static const uint64_t nan64 = 0x7ff8deaddeadbeefull;
    static const uint32_t nan32 = 0x7fc0dead, idx = 0x7fffdead;
    static const uint16_t bf = 0x7fc5, hf = 0x7e05;
    switch (dt) {
    case DT_F64:
        memcpy((char *)p + i * 8, &nan64, 8);
        break;
    case DT_F32:
        memcpy((char *)p + i * 4, &nan32, 4);
        break;
    case DT_I32:
        memcpy((char *)p + i * 4, &idx, 4);
        break;
    case DT_BF16:
        memcpy((char *)p + i * 2, &bf, 2);
        break;
    case DT_F16:
        memcpy((char *)p + i * 2, &hf, 2);
        break;
    }
}

static void store_value(void *p, enum dtype dt, int64_t i, double x)
{
    switch (dt) {
    case DT_F64:
        ((double *)p)[i] = x;
        break;
    case DT_F32:
        ((float *)p)[i] = (float)x;
        break;
    case DT_I32:
        ((int32_t *)p)[i] = (int32_t)x;
        break;
    case DT_BF16:
        ((uint16_t *)p)[i] = f32_to_bf16((float)x);
        break;
    case DT_F16:
        ((uint16_t *)p)[i] = f32_to_f16((float)x);
        break;
    }
}

static double load_value(const void *p, enum dtype dt, int64_t i)
{
    switch (dt) {
    case DT_F64:
        return ((const double *)p)[i];
    case DT_F32:
        return (double)((const float *)p)[i];
    case DT_I32:
        return (double)((const int32_t *)p)[i];
    case DT_BF16:
        return (double)bf16_to_f32(((const uint16_t *)p)[i]);
    case DT_F16:
        return (double)f16_to_f32(((const uint16_t *)p)[i]);
    }
    return 0;
}

enum dtype op_case_dtype(const struct op_case *c, const struct case_tensor *t, const struct backend *be)
{
    switch (t->cls) {
    case VIEW_ACT:
        return be->act;
    case VIEW_STAT:
        return be->stat;
    case VIEW_I32:
        return DT_I32;
    case VIEW_F64:
        return DT_F64;
    case VIEW_ANY:
        return t->any_dt;
    case VIEW_EITHER:
        break;
    }
    if (t->opaque || !strcmp(t->name, "hs"))
        return be->stat;
    bool sum = t->role == VIEW_INOUT && c->op != OP_axpby && strcmp(t->name, "state") != 0;
    return sum ? be->stat : be->act;
}

void op_case_round(struct op_case *c, const struct backend *be)
{
    for (int i = 0; i < c->n_t; i++) {
        struct case_tensor *t = &c->t[i];
        enum dtype dt = op_case_dtype(c, t, be);
        for (int64_t k = 0; k < t->rows * t->width; k++) {
            double cell;
            store_value(&cell, dt, 0, t->x[k]);
            t->x[k] = load_value(&cell, dt, 0);
        }
    }
}

/* Elements from the start of a home buffer's payload to the end of its last tensor. */
static int64_t home_extent(const struct op_case *c, int home)
{
    int64_t n = 0;
    for (int i = 0; i < c->n_t; i++) {
        const struct case_tensor *t = &c->t[i];
        if (t->home == home && t->rows > 0 && t->width > 0)
            n = MAX(n, t->off + (t->rows - 1) * t->ld + t->width);
    }
    return n;
}

/* A buffer as it is before the op; mask (optional): 1 where an op may write. */
static void image(const struct case_run *r, int home, void *bytes, uint8_t *mask)
{
    const struct op_case *c = r->c;
    enum dtype dt = r->buf[home].dt;
    for (int64_t i = 0; i < r->buf[home].n; i++)
        store_guard(bytes, dt, i);
    if (mask)
        memset(mask, 0, (size_t)r->buf[home].n);
    for (int i = 0; i < c->n_t; i++) {
        const struct case_tensor *t = &c->t[i];
        bool alias = i != home && t->off == 0; /* begins as what it overlays */
        if (t->home != home)
            continue;
        for (int64_t row = 0; row < t->rows; row++)
            for (int64_t k = 0; k < t->width; k++) {
                int64_t at = GUARD + t->off + row * t->ld + k;
                if (t->role != VIEW_OUT && !alias)
                    store_value(bytes, dt, at, t->x[row * t->width + k]);
                if (mask && t->role != VIEW_IN)
                    mask[at] = 1;
            }
    }
}

static void bind(struct case_run *r, int op)
{
    const struct op_case *c = r->c;
    struct op_views o;
    op_views_any(c->ops[op], &c->d[op], &o);
    r->d[op] = c->d[op];
    for (int i = 0; i < o.n; i++) {
        struct view *v = (struct view *)((char *)&r->d[op] + ((const char *)o.v[i].v - (const char *)&c->d[op]));
        if (o.v[i].v->p)
            *v = r->view[op_case_find(c, o.v[i].name)];
        else
            *v = NO_VIEW;
    }
    switch (c->ops[op]) {
    case OP_attn:
        r->d[op].attn.seqs = &r->seqs;
        break;
    case OP_attn_bwd:
        r->d[op].attn_bwd.seqs = &r->seqs;
        break;
    case OP_conv:
        r->d[op].conv.seqs = &r->seqs;
        break;
    case OP_conv_bwd:
        r->d[op].conv_bwd.seqs = &r->seqs;
        break;
    case OP_gdn:
        r->d[op].gdn.seqs = &r->seqs;
        break;
    case OP_gdn_bwd:
        r->d[op].gdn_bwd.seqs = &r->seqs;
        break;
    default:
        break;
    }
}

static int device_seqs(struct case_run *r, struct err *e)
{
    r->seqs = r->c->seqs;
    const int32_t *host[3] = {r->seqs.q_off, r->seqs.kv_off, r->seqs.kv_len};
    struct view *dev[3] = {&r->seqs.d_q_off, &r->seqs.d_kv_off, &r->seqs.d_kv_len};
    for (int i = 0; i < 3; i++) {
        int64_t n = r->seqs.n + (i == 0);
        if (!host[i])
            continue;
        if (be_is_host(r->be)) {
            *dev[i] = (struct view){(void *)host[i], DT_I32, n};
            continue;
        }
        TRY(be_view(r->be, DT_I32, n, &r->d_seqs[i], e));
        be_put(r->be, r->d_seqs[i], host[i]);
        *dev[i] = r->d_seqs[i];
    }
    return 0;
}

int case_run_open(struct case_run *r, const struct op_case *c, struct backend *be, struct err *e)
{
    memset(r, 0, sizeof *r);
    r->c = c;
    r->be = be;
    for (int i = 0; i < c->n_t; i++)
        if (c->t[i].home == i && be_view(be, op_case_dtype(c, &c->t[i], be), home_extent(c, i) + 2 * GUARD, &r->buf[i], e) != 0) {
            case_run_close(r);
            return -1;
        }
    for (int i = 0; i < c->n_t; i++) {
        const struct case_tensor *t = &c->t[i];
        int64_t n = t->rows > 0 && t->width > 0 ? (t->rows - 1) * t->ld + t->width : 0;
        r->view[i] = view_at(r->buf[t->home], GUARD + t->off, n);
    }
    if (c->has_seqs && device_seqs(r, e) != 0) {
        case_run_close(r);
        return -1;
    }
    for (int k = 0; k < c->n_ops; k++)
        bind(r, k);
    if (case_run_fill(r, e) != 0) {
        case_run_close(r);
        return -1;
    }
    return 0;
}

void case_run_close(struct case_run *r)
{
    for (int i = 0; i < CASE_MAX_TENSORS; i++)
        if (r->buf[i].p)
            be_view_free(r->be, &r->buf[i]);
    for (int i = 0; i < 3; i++)
        if (r->d_seqs[i].p)
            be_view_free(r->be, &r->d_seqs[i]);
}

int case_run_fill(struct case_run *r, struct err *e)
{
    for (int i = 0; i < r->c->n_t; i++) {
        if (!r->buf[i].p)
            continue;
        size_t bytes = (size_t)r->buf[i].n * dtype_size(r->buf[i].dt);
        void *host = malloc(bytes);
        if (!host)
            return err_nomem(e, bytes, "the values of a case");
        image(r, i, host, NULL);
        be_put(r->be, r->buf[i], host);
        int rc = be_sync(r->be, e);
        free(host);
        TRY(rc);
    }
    return 0;
}

void case_run_prepare(struct case_run *r)
{
    for (int k = 0; k + 1 < r->c->n_ops; k++)
        op_run_any(r->be, r->c->ops[k], &r->d[k]);
}

void case_run_last(struct case_run *r)
{
    int k = r->c->n_ops - 1;
    op_run_any(r->be, r->c->ops[k], &r->d[k]);
}

int case_run_all(struct case_run *r, struct err *e)
{
    case_run_prepare(r);
    case_run_last(r);
    return be_sync(r->be, e);
}

int case_run_get(struct case_run *r, int tensor, double *out, struct err *e)
{
    const struct case_tensor *t = &r->c->t[tensor];
    struct view v = r->view[tensor];
    size_t bytes = (size_t)v.n * dtype_size(v.dt);
    void *host = malloc(bytes + 1);
    if (!host)
        return err_nomem(e, bytes, "the values of a case");
    be_get(r->be, host, v);
    int rc = be_sync(r->be, e);
    for (int64_t row = 0; rc == 0 && row < t->rows; row++)
        for (int64_t k = 0; k < t->width; k++)
            out[row * t->width + k] = load_value(host, v.dt, row * t->ld + k);
    free(host);
    return rc;
}

static int guards_of(struct case_run *r, int home, char *was, char *is, uint8_t *mask, struct err *e)
{
    size_t size = dtype_size(r->buf[home].dt);
    image(r, home, was, mask);
    be_get(r->be, is, r->buf[home]);
    TRY(be_sync(r->be, e));
    for (int64_t i = 0; i < r->buf[home].n; i++) {
        if (mask[i] || !memcmp(was + (size_t)i * size, is + (size_t)i * size, size))
            continue;
        return ERR(e, E_CHECK, "op '%s' (%s) wrote outside its outputs: buffer of '%s', element %" PRId64 " of %" PRId64,
                   op_names[r->c->op], r->c->shape, r->c->t[home].name, i - GUARD, r->buf[home].n - 2 * GUARD);
    }
    return 0;
}

int case_run_guards(struct case_run *r, struct err *e)
{
    int rc = 0;
    for (int i = 0; i < r->c->n_t && rc == 0; i++) {
        if (!r->buf[i].p)
            continue;
        size_t bytes = (size_t)r->buf[i].n * dtype_size(r->buf[i].dt);
        char *two = malloc(2 * bytes + (size_t)r->buf[i].n);
        if (!two)
            return err_nomem(e, bytes, "the values of a case");
        rc = guards_of(r, i, two, two + bytes, (uint8_t *)two + 2 * bytes, e);
        free(two);
    }
    return rc;
}
