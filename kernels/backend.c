#include "kernels/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/host.h"
#include "kernels/memory.h"
#include "kernels/ops.h"

const char *dtype_name(enum dtype dt)
{
    switch (dt) {
    case DT_F32:
        return "f32";
    case DT_F64:
        return "f64";
    case DT_BF16:
        return "bf16";
    case DT_F16:
        return "f16";
    case DT_I32:
        return "i32";
    }
    return "?";
}

int host_alloc(struct backend *be, size_t bytes, void **p, struct err *e)
{
    UNUSED(be);
    size_t padded;
    if (!add_size(bytes ? bytes : 1, 63, &padded))
        return err_nomem(e, bytes, "a tensor");
    padded &= ~(size_t)63;
    void *q = NULL;
    if (posix_memalign(&q, 64, padded) != 0)
        return err_nomem(e, bytes, "a tensor");
    memset(q, 0, padded);
    *p = q;
    return 0;
}

void host_free(struct backend *be, void *p)
{
    UNUSED(be);
    free(p);
}

void host_copy(struct backend *be, void *dst, const void *src, size_t bytes, enum copy_kind kind)
{
    UNUSED(be);
    UNUSED(kind);
    if (bytes)
        memmove(dst, src, bytes);
}

void host_zero(struct backend *be, void *p, size_t bytes)
{
    UNUSED(be);
    if (bytes)
        memset(p, 0, bytes);
}

int host_sync(struct backend *be, struct err *e)
{
    UNUSED(be);
    UNUSED(e);
    return 0;
}

/* RAM, or less where the control group of this process allows less. */
int64_t host_memory_bytes(void)
{
    static const char *const files[] = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    int64_t bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        FILE *f = fopen(files[i], "r");
        long long limit;
        if (f && fscanf(f, "%lld", &limit) == 1 && limit > 0)
            bytes = MIN(bytes, (int64_t)limit);
        if (f)
            fclose(f);
    }
    return MAX(bytes, (int64_t)0);
}

int64_t backend_device_bytes(const struct backend *be)
{
    return be_is_host(be) ? host_memory_bytes() : cuda_free_bytes(be) + be->mem_used_bytes;
}

bool be_is_host(const struct backend *be)
{
    return be->ops->copy == host_copy || strcmp(be->ops->name, "cpu") == 0;
}

int backend_open(struct backend **out, const struct backend_opts *o, struct err *e)
{
    static const char *const names[] = {"cpu", "ref32", "ref64", "cuda", NULL};
    const char *name = o->name ? o->name : "cpu";
    struct backend *be = calloc(1, sizeof *be);
    if (!be)
        return err_nomem(e, sizeof *be, "a backend");
    be->pool = o->pool;
    be->comm.size = 1;
    be->mem_limit_bytes = o->mem_limit_bytes;
    int rc;
    if (!strcmp(name, "cpu"))
        rc = backend_open_cpu(be, o->isa ? o->isa : getenv("DASHLAB_ISA"), e);
    else if (!strcmp(name, "ref32"))
        rc = backend_open_ref_float(be, e);
    else if (!strcmp(name, "ref64"))
        rc = backend_open_ref_double(be, e);
    else if (!strcmp(name, "cuda"))
        rc = backend_open_cuda(be, o->act, e);
    else {
        const char *near = nearest_word(name, names, 4);
        rc = ERR(e, E_USAGE, "unknown backend '%s' (cpu, ref32, ref64, cuda)%s%s%s", name, near ? "; did you mean '" : "", near ? near : "",
                 near ? "'?" : "");
    }
    if (rc != 0) {
        free(be);
        return -1;
    }
    *out = be;
    return 0;
}

void backend_close(struct backend *be)
{
    if (!be)
        return;
    if (be->ops && be->ops->close)
        be->ops->close(be);
    free(be);
}

int be_alloc(struct backend *be, size_t bytes, void **p, struct err *e)
{
    *p = NULL;
    if (be->failed) {
        *e = be->sticky;
        return -1;
    }
    if (bytes > (size_t)INT64_MAX - (size_t)be->mem_used_bytes)
        return err_nomem(e, bytes, be->desc);
    if (be->mem_limit_bytes && be->mem_used_bytes + (int64_t)bytes > be->mem_limit_bytes)
        return ERR(e, E_ENV,
                   "%s: %.1f MiB wanted with %.1f MiB in use exceeds the limit of %.1f MiB; use a smaller batch or sequence length, or "
                   "raise the limit",
                   be->desc, (double)bytes / 1048576.0, (double)be->mem_used_bytes / 1048576.0, (double)be->mem_limit_bytes / 1048576.0);
    if (be->ops->alloc(be, bytes, p, e) != 0)
        return err_wrap(e, "%s with %.1f MiB in use", be->desc, (double)be->mem_used_bytes / 1048576.0);
    be->mem_used_bytes += (int64_t)bytes;
    be->mem_peak_bytes = MAX(be->mem_peak_bytes, be->mem_used_bytes);
    return 0;
}

void be_free(struct backend *be, void *p, size_t bytes)
{
    if (!p)
        return;
    be->ops->free(be, p);
    be->mem_used_bytes -= (int64_t)bytes;
    if (be->mem_used_bytes < 0)
        BUG("%s: more memory freed than allocated (%" PRId64 " bytes)", be->desc, be->mem_used_bytes);
}

int be_view(struct backend *be, enum dtype dt, int64_t n, struct view *out, struct err *e)
{
    size_t bytes;
    *out = NO_VIEW;
    if (n < 0 || !mul_size((size_t)n, dtype_size(dt), &bytes))
        return ERR(e, E_ENV, "%s: a tensor of %" PRId64 " %s elements has no size", be->desc, n, dtype_name(dt));
    void *p;
    TRY(be_alloc(be, bytes, &p, e));
    *out = (struct view){p, dt, n};
    return 0;
}

void be_view_free(struct backend *be, struct view *v)
{
    be_free(be, v->p, (size_t)v->n * dtype_size(v->dt));
    *v = NO_VIEW;
}

static size_t view_bytes(struct view v)
{
    return (size_t)v.n * dtype_size(v.dt);
}

void be_put(struct backend *be, struct view dst, const void *host)
{
    if (!be->failed && dst.n)
        be->ops->copy(be, dst.p, host, view_bytes(dst), COPY_TO_DEVICE);
}

void be_get(struct backend *be, void *host, struct view src)
{
    if (be->failed) { /* defined contents, so that a caller who looks before be_sync sees no old memory */
        if (src.n)
            memset(host, 0, view_bytes(src));
        return;
    }
    if (src.n)
        be->ops->copy(be, host, src.p, view_bytes(src), COPY_TO_HOST);
}

void be_copy(struct backend *be, struct view dst, struct view src)
{
    if (be->failed)
        return;
    if (dst.dt != src.dt || dst.n != src.n) {
        be_fail(be, E_CHECK, "be_copy: from %" PRId64 " %s to %" PRId64 " %s elements", src.n, dtype_name(src.dt), dst.n,
                dtype_name(dst.dt));
        return;
    }
    if (src.n)
        be->ops->copy(be, dst.p, src.p, view_bytes(src), COPY_ON_DEVICE);
}

void be_zero(struct backend *be, struct view v)
{
    if (!be->failed && v.p && v.n)
        be->ops->zero(be, v.p, view_bytes(v));
}

int be_sync(struct backend *be, struct err *e)
{
    if (!be->failed && be->ops->sync(be, e) != 0) {
        be->failed = true;
        be->sticky = *e;
        return -1;
    }
    if (be->failed) {
        *e = be->sticky;
        return -1;
    }
    return 0;
}

void be_fail(struct backend *be, enum err_code code, const char *fmt, ...)
{
    if (be->failed)
        return;
    char msg[sizeof be->sticky.msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    err_set(&be->sticky, code, __FILE__, __LINE__, "%s", msg);
    be->failed = true;
}
