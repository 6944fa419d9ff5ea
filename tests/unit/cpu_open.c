/* Opening the cpu backend: the default, every instruction set by name, unknown names; scratch memory that grows while ops of several sizes
 * run. */
#include "kernels/cpu/cpu.h"
#include "tests/test.h"

static void test_names(void)
{
    static const char *const isas[] = {"avx512", "avx2", "portable"};
    struct backend *be = NULL;
    struct err er = ERR_INIT;
    CHECK(backend_open(&be, &(struct backend_opts){.name = "cpu", .isa = "avx51"}, &er) == -1);
    CHECK(er.code == E_USAGE && strstr(er.msg, "'avx51'") && strstr(er.msg, "portable"));
    er = (struct err)ERR_INIT;
    CHECK(backend_open(&be, &(struct backend_opts){.name = "cpu", .isa = "neon"}, &er) == -1);
    CHECK(er.code == E_USAGE && strstr(er.msg, "'neon'"));
    int opened = 0;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        er = (struct err)ERR_INIT;
        if (backend_open(&be, &(struct backend_opts){.name = "cpu", .isa = isas[i]}, &er) != 0) {
            CHECK(er.code == E_ENV && strstr(er.msg, isas[i]));
            continue;
        }
        opened++;
        char want[64];
        snprintf(want, sizeof want, "cpu %s, 1 thread", isas[i]);
        CHECK(!strcmp(be->desc, want));
        CHECK(be->act == DT_F32 && be->stat == DT_F32 && !strcmp(be->determinism, "strict"));
        backend_close(be);
    }
    CHECK(opened >= 1); /* portable always */
}

static void test_scratch(void)
{
    struct backend *be = NULL;
    CHECK_OK(backend_open(&be, &(struct backend_opts){.name = "cpu", .isa = "portable"}, e));
    if (!be)
        return;
    float *a = cpu_scratch_slot(be, 0, 100), *b = cpu_scratch_slot(be, 1, 1000);
    CHECK(a && b && (uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
    CHECK(cpu_scratch_slot(be, 0, 50) == a && cpu_scratch_slot(be, 1, 1000) == b); /* kept */
    a = cpu_scratch_slot(be, 0, 1 << 20);
    CHECK(a && (uintptr_t)a % 64 == 0);
    memset(a, 1, 1 << 20);
    CHECK(!be->failed);
    CHECK(cpu_scratch_slot(be, 1, (size_t)1 << 60) == NULL && be->failed);
    struct err er = ERR_INIT;
    CHECK(be_sync(be, &er) == -1 && er.code == E_ENV && strstr(er.msg, "scratch"));
    backend_close(be);
}

int main(void)
{
    test_names();
    test_scratch();
    return test_end();
}
