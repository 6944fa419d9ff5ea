#include "model/dmem.h"

#include "kernels/ops.h"

#include <string.h>

void dmem_measure(struct dmem *a, int which)
{
    /* Addresses that no host or device memory has, so that the alias checks of be_OP see what they would see in earnest. */
    *a = (struct dmem){.base = (char *)(((uintptr_t)which + 8) << 58), .cap_bytes = (size_t)1 << 56, .measuring = true};
}

int dmem_open(struct dmem *a, struct backend *be, size_t bytes, struct err *e)
{
    *a = (struct dmem){0};
    void *p;
    TRY(be_alloc(be, bytes ? bytes : 64, &p, e));
    *a = (struct dmem){.be = be, .base = p, .cap_bytes = bytes ? bytes : 64};
    return 0;
}

void dmem_close(struct dmem *a)
{
    if (a->be)
        be_free(a->be, a->base, a->cap_bytes);
    *a = (struct dmem){0};
}

struct view dmem_take(struct dmem *a, enum dtype dt, int64_t n)
{
    size_t bytes, padded;
    if (n < 0 || !mul_size((size_t)n, dtype_size(dt), &bytes) || !add_size(bytes, 63, &padded))
        BUG("a tensor of %" PRId64 " elements", n);
    padded &= ~(size_t)63;
    if (padded > a->cap_bytes - a->used_bytes)
        BUG("step memory of %zu bytes is too small: %zu in use, %zu wanted; the plan was made for smaller shapes", a->cap_bytes,
            a->used_bytes, padded);
    struct view v = {(void *)((uintptr_t)a->base + a->used_bytes), dt, n};
    a->used_bytes += padded;
    a->peak_bytes = MAX(a->peak_bytes, a->used_bytes);
    return v;
}

static int null_alloc(struct backend *be, size_t bytes, void **p, struct err *e)
{
    UNUSED(be);
    UNUSED(p);
    return err_nomem(e, bytes, "a backend that only counts");
}
static void null_free(struct backend *be, void *p)
{
    UNUSED(be);
    UNUSED(p);
}
static void null_copy(struct backend *be, void *dst, const void *src, size_t bytes, enum copy_kind kind)
{
    UNUSED(be);
    UNUSED(dst);
    UNUSED(src);
    UNUSED(bytes);
    UNUSED(kind);
}
static void null_zero(struct backend *be, void *p, size_t bytes)
{
    UNUSED(be);
    UNUSED(p);
    UNUSED(bytes);
}
static int null_sync(struct backend *be, struct err *e)
{
    UNUSED(be);
    UNUSED(e);
    return 0;
}
#define X(op)                                                                                                                              \
    static void null_##op(struct backend *be, const struct op_##op *d)                                                                     \
    {                                                                                                                                      \
        UNUSED(be);                                                                                                                        \
        UNUSED(d);                                                                                                                         \
    }
BACKEND_OPS(X)
#undef X

#define X(op) .op = null_##op,
static const struct backend_ops null_ops = {.name = "null",
                                            .close = NULL,
                                            .alloc = null_alloc,
                                            .free = null_free,
                                            .copy = null_copy,
                                            .zero = null_zero,
                                            .sync = null_sync,
                                            BACKEND_OPS(X)};
#undef X

void backend_null(struct backend *be, const struct backend *like)
{
    *be = (struct backend){.ops = &null_ops, .act = like->act, .stat = like->stat, .determinism = like->determinism, .comm = {.size = 1}};
    memcpy(be->desc, "measuring", 10);
}

static int count_alloc(struct backend *be, size_t bytes, void **p, struct err *e)
{
    uintptr_t at = be->impl ? (uintptr_t)be->impl : (uintptr_t)1 << 56; /* below those of measuring arenas */
    if (bytes > (size_t)1 << 52)
        return err_nomem(e, bytes, "a backend that only counts");
    *p = (void *)at;
    be->impl = (void *)(at + ((bytes + 127) & ~(size_t)63));
    return 0;
}

#define X(op) .op = null_##op,
static const struct backend_ops count_ops = {
    .name = "null", .close = NULL, .alloc = count_alloc, .free = null_free, .copy = null_copy, .zero = null_zero, .sync = null_sync,
        BACKEND_OPS(X)};
#undef X

void backend_count(struct backend *be, const struct backend *like)
{
    backend_null(be, like);
    be->ops = &count_ops;
}

bool backend_is_null(const struct backend *be)
{
    return be->ops->copy == null_copy;
}
