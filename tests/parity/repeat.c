/*
 * Whether a device gives the same bits again: every shape of the parity tests three times in one process, in memory allocated anew, then
 * one hash over all outputs, which another process must print too (tests/device.sh compares three). Skipped (77) without a device. Guards
 * are looked at by parity_ops; under compute-sanitizer this program is the faster one, because it asks no reference.
 *
 * Usage: parity_repeat [-b cuda:f32|cuda:bf16|cpu] [-o OP] [-r TIMES]
 */
#include "core/hash.h"
#include "kernels/op_case.h"
#include "tests/parity/shapes.h"
#include "tests/test.h"

/* Hash of the outputs of one run. */
static int run_once(struct backend *be, const struct op_case *c, char hex[65], struct err *e)
{
    static struct case_run r;
    struct sha256 h;
    TRY(case_run_open(&r, c, be, e));
    int rc = case_run_all(&r, e);
    if (sha256_init(&h, e) != 0) {
        case_run_close(&r);
        return -1;
    }
    for (int t = 0; rc == 0 && t < c->n_t; t++) {
        size_t n = (size_t)(c->t[t].rows * c->t[t].width);
        if (c->t[t].role == VIEW_IN)
            continue;
        double *y = calloc(n + 1, sizeof *y);
        rc = y ? case_run_get(&r, t, y, e) : err_nomem(e, n * sizeof *y, "outputs");
        if (rc == 0)
            sha256_add(&h, y, n * sizeof *y);
        free(y);
    }
    case_run_close(&r);
    sha256_end(&h, hex);
    return rc;
}

static void test_backend(const char *label, const char *op, int times)
{
    struct err e_ = ERR_INIT, *e = &e_;
    static struct op_case c;
    struct backend *be;
    struct sha256 all;
    struct backend_opts o = {.name = strcmp(label, "cpu") ? "cuda" : "cpu", .act = strcmp(label, "cuda:bf16") ? DT_F32 : DT_BF16};
    char first[65], again[65], total[65];
    if (backend_open(&be, &o, e) != 0) {
        printf("SKIPPED: %s: %s\n", label, e->msg);
        exit(77);
    }
    if (sha256_init(&all, e) != 0) {
        printf("FAIL: %s\n", e->msg);
        exit(1);
    }
    for (size_t i = 0; i < ARRAY_LEN(parity_shapes); i++) {
        const char *name = parity_shapes[i].op, *shape = parity_shapes[i].shape;
        if (op && strcmp(op, name))
            continue;
        int rc = op_case_make(&c, name, shape, 42, e);
        bool made = rc == 0;
        if (made)
            op_case_round(&c, be);
        for (int k = 0; k < times && rc == 0; k++) {
            rc = run_once(be, &c, k ? again : first, e);
            if (rc == 0 && k && strcmp(first, again)) {
                printf("FAIL %s %s %s: run %d gives other bits\n", label, name, shape, k + 1);
                test_failed++;
            }
        }
        test_checks++;
        if (rc != 0) {
            printf("FAIL %s %s %s: %s\n", label, name, shape, e->msg);
            test_failed++;
            be->failed = false;
        } else
            sha256_add(&all, first, 64);
        if (made)
            op_case_free(&c);
    }
    sha256_end(&all, total);
    printf("hash %s %s\n", label, total);
    backend_close(be);
}

int main(int argc, char **argv)
{
    const char *label = "cuda:f32", *op = NULL;
    int times = 3;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "-b"))
            label = argv[i + 1];
        else if (!strcmp(argv[i], "-o"))
            op = argv[i + 1];
        else if (!strcmp(argv[i], "-r"))
            times = (int)strtol(argv[i + 1], NULL, 10);
    }
    test_backend(label, op, times);
    return test_end();
}
