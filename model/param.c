#include "model/param.h"

#include <stdlib.h>
#include <string.h>

#include "model/dmem.h"
#include "model/st.h"

#define PIECE 1048576 /* elements converted at a time */

static void wmem_drop(struct wmem *w)
{
    if (w && --w->refs == 0) {
        be_view_free(w->be, &w->v);
        free(w);
    }
}

static int wmem_make(struct wmem **out, struct backend *be, enum dtype dt, int64_t n, struct err *e)
{
    struct wmem *w = calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w, "a parameter");
    if (be_view(be, dt, n, &w->v, e) != 0) {
        free(w);
        return -1;
    }
    w->be = be;
    w->refs = 1;
    *out = w;
    return 0;
}

int params_add(struct params *l, const struct param *like, const struct param *share, struct param **out, struct err *e)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        struct param **v = realloc(l->v, cap * sizeof *v);
        if (!v)
            return err_nomem(e, cap * sizeof *v, "the parameter list");
        l->v = v;
        l->cap = cap;
    }
    if (share && (share->n != like->n || share->w.dt != like->w.dt))
        BUG("parameter '%s' of %" PRId64 " elements cannot share those of '%s' (%" PRId64 ")", like->name, like->n, share->name, share->n);
    struct param *p = malloc(sizeof *p);
    if (!p)
        return err_nomem(e, sizeof *p, "a parameter");
    *p = *like;
    p->master = p->m = p->v = p->g = NO_VIEW;
    if (share) {
        p->mem = share->mem;
        p->mem->refs++;
    } else if (wmem_make(&p->mem, l->be, like->w.dt, like->n, e) != 0) {
        free(p);
        return err_wrap(e, "parameter '%s'", like->name);
    }
    p->w = p->mem->v;
    l->v[l->n++] = p;
    *out = p;
    return 0;
}

static void drop_state(struct backend *be, struct param *p, bool grads, bool opt)
{
    if (grads)
        be_view_free(be, &p->g);
    if (opt) {
        if (p->master.p != p->w.p)
            be_view_free(be, &p->master);
        p->master = NO_VIEW;
        be_view_free(be, &p->m);
        be_view_free(be, &p->v);
    }
}

void params_free(struct params *l)
{
    for (size_t i = 0; i < l->n; i++) {
        drop_state(l->be, l->v[i], true, true);
        wmem_drop(l->v[i]->mem);
        free(l->v[i]);
    }
    free(l->v);
    *l = (struct params){.be = l->be};
}

struct param *params_find(const struct params *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->v[i]->name, name))
            return l->v[i];
    return NULL;
}

static int alloc_opt(struct backend *be, struct param *p, struct err *e)
{
    if (p->w.dt == be->stat)
        p->master = p->w;
    else {
        TRY(be_view(be, be->stat, p->n, &p->master, e));
        float *host = malloc((size_t)p->n * sizeof *host);
        if (!host)
            return err_nomem(e, (size_t)p->n * sizeof *host, "master weights");
        int rc = get_f32(be, host, p->w, e) || put_f32(be, p->master, host, e);
        free(host);
        if (rc != 0)
            return -1;
    }
    TRY(be_view(be, be->stat, p->n, &p->m, e));
    return be_view(be, be->stat, p->n, &p->v, e);
}

int params_alloc(struct params *l, bool grads, bool opt, struct err *e)
{
    for (size_t i = 0; i < l->n; i++) {
        struct param *p = l->v[i];
        if (!p->trainable)
            continue;
        if (grads && !p->g.p && be_view(l->be, l->be->stat, p->n, &p->g, e) != 0)
            return err_wrap(e, "gradient of '%s'", p->name);
        if (opt && !p->m.p && alloc_opt(l->be, p, e) != 0)
            return err_wrap(e, "optimiser state of '%s'", p->name);
    }
    return 0;
}

void params_drop(struct params *l, bool grads, bool opt)
{
    for (size_t i = 0; i < l->n; i++)
        drop_state(l->be, l->v[i], grads, opt);
}

void params_zero_grads(struct params *l)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->v[i]->g.p)
            be_zero(l->be, l->v[i]->g);
}

int64_t params_count(const struct params *l, bool trainable_only)
{
    int64_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        if (!trainable_only || l->v[i]->trainable)
            n += l->v[i]->n;
    return n;
}

void params_set_trainable(struct params *l, int group, bool on)
{
    for (size_t i = 0; i < l->n; i++)
        if (group < 0 || (int)l->v[i]->group == group)
            l->v[i]->trainable = on;
}

int put_f32(struct backend *be, struct view dst, const float *src, struct err *e)
{
    if (backend_is_null(be))
        return 0;
    if (dst.dt == DT_F32) {
        be_put(be, dst, src);
        return be_sync(be, e);
    }
    int64_t piece = MIN(dst.n, (int64_t)PIECE);
    void *buf = malloc((size_t)MAX(piece, 1) * dtype_size(dst.dt));
    if (!buf)
        return err_nomem(e, (size_t)piece * dtype_size(dst.dt), "a conversion buffer");
    int rc = 0;
    for (int64_t at = 0; at < dst.n && rc == 0; at += piece) {
        int64_t n = MIN(piece, dst.n - at);
        if (dst.dt == DT_F64)
            for (int64_t i = 0; i < n; i++)
                ((double *)buf)[i] = (double)src[at + i];
        else if (dst.dt == DT_BF16)
            st_from_f32(ST_BF16, src + at, n, buf);
        else if (dst.dt == DT_F16)
            st_from_f32(ST_F16, src + at, n, buf);
        else
            BUG("float values for a tensor of type %s", dtype_name(dst.dt));
        be_put(be, view_at(dst, at, n), buf);
        rc = be_sync(be, e); /* the buffer is used again */
    }
    free(buf);
    return rc;
}

int get_f32(struct backend *be, float *dst, struct view src, struct err *e)
{
    if (backend_is_null(be))
        return 0;
    if (src.dt == DT_F32) {
        be_get(be, dst, src);
        return be_sync(be, e);
    }
    int64_t piece = MIN(src.n, (int64_t)PIECE);
    void *buf = malloc((size_t)MAX(piece, 1) * dtype_size(src.dt));
    if (!buf)
        return err_nomem(e, (size_t)piece * dtype_size(src.dt), "a conversion buffer");
    for (int64_t at = 0; at < src.n; at += piece) {
        int64_t n = MIN(piece, src.n - at);
        be_get(be, buf, view_at(src, at, n));
        if (src.dt == DT_F64)
            for (int64_t i = 0; i < n; i++)
                dst[at + i] = (float)((double *)buf)[i];
        else if (src.dt == DT_BF16 || src.dt == DT_F16)
            st_to_f32(src.dt == DT_BF16 ? ST_BF16 : ST_F16, buf, 0, n, dst + at);
        else
            BUG("float values of a tensor of type %s", dtype_name(src.dt));
    }
    free(buf);
    return be_sync(be, e);
}

int get_f64(struct backend *be, double *dst, struct view src, struct err *e)
{
    if (src.dt == DT_F64) {
        be_get(be, dst, src);
        return be_sync(be, e);
    }
    float *tmp = malloc((size_t)MAX(src.n, 1) * sizeof *tmp);
    if (!tmp)
        return err_nomem(e, (size_t)src.n * sizeof *tmp, "a conversion buffer");
    int rc = get_f32(be, tmp, src, e);
    for (int64_t i = 0; i < src.n; i++)
        dst[i] = (double)tmp[i];
    free(tmp);
    return rc;
}

uint64_t param_stream(const char *name)
{
    uint64_t h = 14695981039346656037ull;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 1099511628211ull;
    return h;
}
