/* What is said when the device cannot do what is asked. Skipped (77) where there is no device, after the message for that has been checked.
 */
#include "kernels/ops.h"
#include "tests/test.h"

static int open_cuda(struct backend **be, enum dtype act, struct err *e)
{
    return backend_open(be, &(struct backend_opts){.name = "cuda", .act = act}, e);
}

/* More memory than any device has: refused with the sizes, and the backend goes on. */
static void test_memory(struct backend *be)
{
    void *p;
    struct view v;
    CHECK_ERR(be_alloc(be, (size_t)1 << 46, &p, e), E_ENV, "MiB are free on the device");
    CHECK_OK(be_view(be, DT_F32, 100, &v, e));
    float x[100], y[100];
    for (int i = 0; i < 100; i++)
        x[i] = (float)i;
    be_put(be, v, x);
    be_axpby(be, &(struct op_axpby){.y = v, .b = 2, .n = 100});
    be_get(be, y, v);
    CHECK_OK(be_sync(be, e));
    CHECK_EQ_I(y[99], 198);
    be_view_free(be, &v);
}

/* A limit counts what ops need for themselves too. */
static void test_limit(struct backend *be)
{
    struct view v;
    be->mem_limit_bytes = be->mem_used_bytes + 1000;
    CHECK_ERR(be_view(be, DT_F32, 1000, &v, e), E_ENV, "exceeds the limit");
    be->mem_limit_bytes = 0;
}

/* An index far outside: the device stops; the error is sticky, names ops, and closing does not hang. Last, because nothing works
 * afterwards. */
static void test_sticky(struct backend *be)
{
    struct view dst, src, si;
    const int32_t wild[2] = {0, 2000000000};
    CHECK_OK(be_view(be, DT_F32, 2000, &dst, e));
    CHECK_OK(be_view(be, DT_F32, 2000, &src, e));
    CHECK_OK(be_view(be, DT_I32, 2, &si, e));
    be_put(be, si, wild);
    be_gather(be, &(struct op_gather){.dst = dst, .src = src, .si = si, .rows = 2, .dim = 1000});
    CHECK_ERR(be_sync(be, e), E_ENV, "'gather'");
    CHECK_ERR(be_sync(be, e), E_ENV, "'gather'");
    be_axpby(be, &(struct op_axpby){.y = dst, .b = 2, .n = 100}); /* does nothing */
    CHECK_ERR(be_view(be, DT_F32, 10, &src, e), E_ENV, "'gather'");
}

static bool have_device(void)
{
    struct err e = ERR_INIT;
    struct backend *be;
    if (open_cuda(&be, DT_F32, &e) == 0) {
        backend_close(be);
        return true;
    }
    CHECK_EQ_I(e.code, E_ENV);
    CHECK(strstr(e.msg, "--device cpu") != NULL);
    printf("SKIPPED: %s\n", e.msg);
    return false;
}

int main(void)
{
    struct backend *be;
    if (!have_device())
        return test_failed ? 1 : 77;
    CHECK_ERR(open_cuda(&be, DT_F64, e), E_USAGE, "f64");
    CHECK_OK(open_cuda(&be, DT_BF16, e));
    CHECK_EQ_I(be->act, DT_BF16);
    CHECK_EQ_I(be->stat, DT_F32);
    test_memory(be);
    test_limit(be);
    test_sticky(be);
    backend_close(be);
    return test_end();
}
