/*
 * Every op on every backend against the double reference, given the very same numbers (inputs are rounded to the tested backend's types
 * first). Guards around and between all tensors must stay as they were, inputs too. ref32 is always among the tested: it shows what plain
 * float arithmetic reaches.
 *
 * Tolerance of an element: L (S + u |ref|), u the unit roundoff. S: how much this output tensor moves (maximum over elements and 4 draws)
 * when every input is changed by a random relative u, measured on the double reference, so that ill-conditioned cases get what they need
 * and no more. L = 4 sqrt(n) + 8 with n the op's longest chain of dependent additions: rounding errors of a chain act like relative input
 * changes of lambda sqrt(n) u (probabilistic backward error, lambda = 4), and 8 for exp, log, division. On bf16 backends u = 2^-9 and L =
 * 8: sums are float, a handful of operands are rounded to bf16. Integers and conversions are compared exactly.
 *
 * Usage: parity_ops [-o OP] [-b BACKEND] [-n INDEX]; backends: ref32, cpu:avx512, cpu:avx2, cpu:portable, cuda:f32, cuda:bf16
 */
#include <math.h>

#include "core/rng.h"
#include "kernels/op_case.h"
#include "tests/parity/shapes.h"
#include "tests/test.h"

#if defined(__x86_64__)
#define TEST_X86 1
#else
#define TEST_X86 0
#endif

static const struct {
    const char *label, *name, *isa;
    enum dtype act;
} tested[] = {
    {"ref32", "ref32", NULL, DT_F32},    {"cpu:avx512", "cpu", "avx512", DT_F32},
    {"cpu:avx2", "cpu", "avx2", DT_F32}, {"cpu:portable", "cpu", "portable", DT_F32},
    {"cuda:f32", "cuda", NULL, DT_F32},  {"cuda:bf16", "cuda", NULL, DT_BF16},
};

struct outputs {
    double *y[CASE_MAX_TENSORS]; /* NULL where not compared */
};

static void outputs_free(struct outputs *o)
{
    for (int i = 0; i < CASE_MAX_TENSORS; i++)
        free(o->y[i]);
    memset(o, 0, sizeof *o);
}

static int evaluate(const struct op_case *c, struct backend *be, struct outputs *o, bool guards, struct err *e)
{
    static struct case_run r;
    memset(o, 0, sizeof *o);
    TRY(case_run_open(&r, c, be, e));
    int rc = case_run_all(&r, e);
    for (int i = 0; rc == 0 && i < c->n_t; i++) {
        if (c->t[i].role == VIEW_IN || c->t[i].opaque)
            continue;
        o->y[i] = malloc((size_t)(c->t[i].rows * c->t[i].width + 1) * sizeof(double));
        rc = o->y[i] ? case_run_get(&r, i, o->y[i], e) : err_nomem(e, 0, "outputs");
    }
    if (rc == 0 && guards)
        rc = case_run_guards(&r, e);
    case_run_close(&r);
    return rc;
}

/* Outputs that are zero throughout by definition: KL of equal heads, log-probability of the only word, states at the start of sequences of
 * one chunk. */
static bool zero_is_right(const struct op_case *c, const char *tensor)
{
    const char *near = strstr(c->shape, "near=0");
    if (c->op == OP_head_kl)
        return near && (near[6] == ',' || near[6] == 0);
    if (c->op == OP_head_ce)
        return c->d->head_ce.vocab == 1;
    return !strcmp(tensor, "hs") && gdn_chunks(&c->seqs) == c->seqs.n && op_case_find(c, "s_in") < 0;
}

static bool exact(const struct op_case *c, const struct case_tensor *t)
{
    return t->cls == VIEW_I32 || t->cls == VIEW_ANY || c->op == OP_embed || c->op == OP_topk ||
           (c->op == OP_head_kl && zero_is_right(c, t->name));
}

/* S for every output: the largest move over draws of relative input changes of size u. */
static int sensitivity(struct op_case *c, struct backend *ref, const struct outputs *base, double u, double s[CASE_MAX_TENSORS],
                       struct err *e)
{
    double *keep[CASE_MAX_TENSORS];
    int rc = 0;
    for (int t = 0; t < c->n_t; t++) {
        size_t bytes = (size_t)(c->t[t].rows * c->t[t].width + 1) * sizeof(double);
        s[t] = 0;
        keep[t] = malloc(bytes);
        if (!keep[t])
            abort();
        memcpy(keep[t], c->t[t].x, bytes - sizeof(double));
    }
    for (uint64_t draw = 0; rc == 0 && draw < 4; draw++) {
        struct outputs moved;
        for (int t = 0; t < c->n_t; t++)
            for (int64_t i = 0; c->t[t].cls != VIEW_I32 && c->t[t].cls != VIEW_ANY && i < c->t[t].rows * c->t[t].width; i++)
                c->t[t].x[i] = keep[t][i] * (1 + u * (2 * ctr_uniform(draw, 100 + (uint64_t)t, (uint64_t)i) - 1));
        rc = evaluate(c, ref, &moved, false, e);
        for (int t = 0; rc == 0 && t < c->n_t; t++)
            for (int64_t i = 0; base->y[t] && i < c->t[t].rows * c->t[t].width; i++)
                s[t] = fmax(s[t], fabs(moved.y[t][i] - base->y[t][i]));
        outputs_free(&moved);
    }
    for (int t = 0; t < c->n_t; t++) {
        memcpy(c->t[t].x, keep[t], (size_t)(c->t[t].rows * c->t[t].width) * sizeof(double));
        free(keep[t]);
    }
    return rc;
}

struct worst {
    double share, err, got, ref;
    const char *tensor, *doubtful; /* doubtful: an output whose reference is nearly all zeros */
    int64_t at;
    bool bad;
};

static void compare(const struct op_case *c, int t, const double *got, const double *ref, double s, double u, double l, struct worst *w)
{
    int64_t n = c->t[t].rows * c->t[t].width, zeros = 0;
    bool kept = c->op == OP_gather; /* rows that nothing is copied to keep their NaN */
    for (int64_t i = 0; i < n; i++) {
        zeros += ref[i] == 0;
        if (kept && !finite_f64(ref[i]) && !finite_f64(got[i]))
            continue;
        double limit = exact(c, &c->t[t]) ? 0 : l * (s + u * fabs(ref[i])), err = fabs(got[i] - ref[i]);
        double share = !finite_f64(got[i]) || !finite_f64(ref[i]) ? INFINITY : err == 0 ? 0 : limit > 0 ? err / limit : INFINITY;
        if (share > w->share || !w->tensor)
            *w = (struct worst){share, err, got[i], ref[i], c->t[t].name, w->doubtful, i, w->bad || share > 1};
    }
    if (n > 8 && zeros * 10 > n * 9)
        w->doubtful = c->t[t].name;
}

static void test_one(const char *label, struct backend *be, struct backend *ref, size_t index)
{
    static struct op_case c;
    struct err e_ = ERR_INIT, *e = &e_;
    struct outputs want = {0}, got = {0};
    double s[CASE_MAX_TENSORS], u = be->act == DT_BF16 ? 0x1p-9 : be->act == DT_F64 ? 0x1p-53 : 0x1p-24;
    struct worst w = {0};
    const char *op = parity_shapes[index].op, *shape = parity_shapes[index].shape;
    int rc = op_case_make(&c, op, shape, 42, e);
    bool made = rc == 0;
    if (made)
        op_case_round(&c, be);
    if (rc == 0)
        rc = evaluate(&c, ref, &want, true, e);
    if (rc == 0)
        rc = sensitivity(&c, ref, &want, u, s, e);
    if (rc == 0)
        rc = evaluate(&c, be, &got, true, e);
    double l = be->act == DT_BF16 ? 8 : 4 * sqrt((double)c.chain) + 8;
    for (int t = 0; rc == 0 && t < c.n_t; t++)
        if (want.y[t])
            compare(&c, t, got.y[t], want.y[t], s[t], u, l, &w);
    char remark[80] = "";
    if (w.doubtful)
        snprintf(remark, sizeof remark,
                 zero_is_right(&c, w.doubtful) ? "  ('%s' is zero by definition)" : "  MISTRUSTED: reference '%s' nearly all zeros",
                 w.doubtful);
    bool ok = rc == 0 && !w.bad && (!w.doubtful || zero_is_right(&c, w.doubtful));
    test_checks++;
    if (!ok)
        test_failed++;
    if (rc != 0)
        printf("FAIL %-12s %-12s %s: %s\n", label, op, shape, e->msg);
    else
        printf("%s %-12s %-12s %-52s max err %.3g (%s[%lld] got %.9g, ref %.9g) = %.2f of limit%s\n", ok ? "ok  " : "FAIL", label, op,
               shape, w.err, w.tensor ? w.tensor : "-", (long long)w.at, w.got, w.ref, w.share, remark);
    if (!ok)
        printf("     repro: parity_ops -b %s -n %zu   (seed 42)\n", label, index);
    outputs_free(&want);
    outputs_free(&got);
    if (made)
        op_case_free(&c);
    be->failed = ref->failed = false; /* the next case is judged on its own */
}

int main(int argc, char **argv)
{
    struct err e_ = ERR_INIT, *e = &e_;
    const char *op = NULL, *backend = NULL;
    long index = -1;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "-o"))
            op = argv[i + 1];
        else if (!strcmp(argv[i], "-b"))
            backend = argv[i + 1];
        else if (!strcmp(argv[i], "-n"))
            index = strtol(argv[i + 1], NULL, 10);
    }
    struct pool *pool;
    struct backend *ref, *be;
    if (pool_open(&pool, 2, e) != 0 || backend_open(&ref, &(struct backend_opts){.name = "ref64", .pool = pool}, e) != 0) {
        printf("FAIL: %s\n", e->msg);
        return 1;
    }
    for (size_t b = 0; b < ARRAY_LEN(tested); b++) {
        if (backend && strncmp(tested[b].label, backend, strlen(backend)))
            continue;
        if (backend_open(&be, &(struct backend_opts){.name = tested[b].name, .isa = tested[b].isa, .act = tested[b].act, .pool = pool},
                         e) != 0) {
            printf("SKIPPED: %s: %s\n", tested[b].label, e->msg);
            bool absent = e->code == E_ENV || (e->code == E_USAGE && !TEST_X86 && strstr(tested[b].label, "avx"));
            if (!absent || backend) /* asked for by name: not there is a failure */
                test_failed++;
            continue;
        }
        printf("---- %s: %s\n", tested[b].label, be->desc);
        for (size_t i = 0; i < ARRAY_LEN(parity_shapes); i++)
            if ((!op || !strcmp(op, parity_shapes[i].op)) && (index < 0 || (size_t)index == i))
                test_one(tested[b].label, be, ref, i);
        backend_close(be);
    }
    backend_close(ref);
    pool_close(pool);
    return test_end();
}
