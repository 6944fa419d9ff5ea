/*
 * The cpu backend's promise "strict": every op gives identical bits with AVX-512, AVX2 and portable code, with 1 and 2 threads, and a
 * sequence (or row) gives the same bits alone and packed with others. No tolerance: values are compared as bytes. Usage: parity_isa_bits
 * [-o OP]          tests.cmake: tsan
 */
#include <stdlib.h>

#include "core/rng.h"
#include "kernels/op_case.h"
#include "tests/parity/shapes.h"
#include "tests/test.h"

#if defined(__x86_64__)
#define TEST_X86 1
#else
#define TEST_X86 0
#endif

enum { CONFIGS = 6 };
static const struct {
    const char *isa;
    int threads;
} configs[CONFIGS] = {{"portable", 1}, {"portable", 2}, {"avx2", 1}, {"avx2", 2}, {"avx512", 1}, {"avx512", 2}};

struct result {
    double *y[CASE_MAX_TENSORS];
};

static void result_free(struct result *r)
{
    for (int i = 0; i < CASE_MAX_TENSORS; i++)
        free(r->y[i]);
    memset(r, 0, sizeof *r);
}

/* All outputs, ainv too: between instruction sets even the saved tensors agree. */
static int evaluate(const struct op_case *c, struct backend *be, struct result *o, struct err *e)
{
    static struct case_run r;
    memset(o, 0, sizeof *o);
    TRY(case_run_open(&r, c, be, e));
    int rc = case_run_all(&r, e);
    for (int i = 0; rc == 0 && i < c->n_t; i++) {
        if (c->t[i].role == VIEW_IN)
            continue;
        o->y[i] = malloc((size_t)(c->t[i].rows * c->t[i].width + 1) * sizeof(double));
        rc = o->y[i] ? case_run_get(&r, i, o->y[i], e) : err_nomem(e, 0, "outputs");
    }
    case_run_close(&r);
    return rc;
}

/* Not compared: parts of ainv that no one writes keep their NaN guard, which memcmp treats as equal. */
static void same_bits(const struct op_case *c, const struct result *a, const struct result *b, const char *la, const char *lb,
                      const char *repro)
{
    for (int t = 0; t < c->n_t; t++) {
        size_t n = (size_t)(c->t[t].rows * c->t[t].width);
        if (!a->y[t])
            continue;
        test_checks++;
        if (!memcmp(a->y[t], b->y[t], n * sizeof(double)))
            continue;
        size_t i = 0, differ = 0, first = 0;
        for (; i < n; i++)
            if (memcmp(&a->y[t][i], &b->y[t][i], sizeof(double)) && !differ++)
                first = i;
        test_failed++;
        printf("FAIL %s %s: '%s' differs in %zu of %zu elements, first %zu: %s %.9g, %s %.9g\n     repro: %s\n", op_names[c->op], c->shape,
               c->t[t].name, differ, n, first, la, a->y[t][first], lb, b->y[t][first], repro);
    }
}

static void test_configs(struct backend *const be[CONFIGS], size_t index)
{
    static struct op_case c;
    struct err e_ = ERR_INIT, *e = &e_;
    struct result first = {0}, other;
    char repro[80];
    int base = -1;
    snprintf(repro, sizeof repro, "parity_isa_bits -o %s   (seed 43)", parity_shapes[index].op);
    if (op_case_make(&c, parity_shapes[index].op, parity_shapes[index].shape, 43, e) != 0) {
        printf("FAIL %s\n", e->msg);
        test_failed++;
        return;
    }
    for (int k = 0; k < CONFIGS; k++) {
        if (!be[k])
            continue;
        if (evaluate(&c, be[k], base < 0 ? &first : &other, e) != 0) {
            printf("FAIL %s %s on %s: %s\n", parity_shapes[index].op, parity_shapes[index].shape, be[k]->desc, e->msg);
            test_failed++;
            be[k]->failed = false;
            result_free(base < 0 ? &first : &other);
            continue;
        }
        if (base < 0) {
            base = k;
            continue;
        }
        same_bits(&c, &first, &other, be[base]->desc, be[k]->desc, repro);
        result_free(&other);
    }
    result_free(&first);
    op_case_free(&c);
}

/* ---- batch composition ---- */

/* A part of a packed case: rows r0.. (or sequence s, whose chunks begin at chunk0). `key` is the shape key that counts rows. */
static const struct {
    const char *op, *key, *rest;
} batches[] = {
    {"gemm", "m", "n=70,k=130"},
    {"gemm", "m", "n=33,k=70,tb=0,bias=1"},
    {"embed", "rows", "dim=19"},
    {"rmsnorm", "rows", "dim=67"},
    {"rmsnorm_bwd", "rows", "dim=67"},
    {"rope", "rows", "heads=2,dim=16,max=50"},
    {"gdn_prep", "rows", "h=2,hv=4,k=17,v=24"},
    {"gdn_prep_bwd", "rows", "h=2,hv=4,k=17,v=24"},
    {"gdn_out", "rows", "hv=2,v=33"},
    {"gdn_out_bwd", "rows", "hv=2,v=33"},
    {"align_loss", "rows", "dim=67"},
    {"head_ce", "rows", "dim=33,vocab=300"},
    {"head_kl", "rows", "dim=33,vocab=300"},
    {"topk", "rows", "n=300,k=5"},
    {"attn", "lens", "h=4,g=2,k=24,v=24"},
    {"attn", "lens", "h=4,g=1,k=16,v=16,window=9"},
    {"attn", "lens", "h=2,g=2,k=16,v=16,two=1,window2=9"},
    {"attn_bwd", "lens", "h=4,g=2,k=24,v=24"},
    {"attn_bwd", "lens", "h=2,g=2,k=16,v=16,two=1,window2=9"},
    {"conv", "lens", "dim=35"},
    {"conv_bwd", "lens", "dim=35"},
    {"gdn", "lens", "h=2,hv=2,k=24,v=17"},
    {"gdn", "lens", "h=1,hv=3,k=32,v=32,spike=1"},
    {"gdn_bwd", "lens", "h=2,hv=4,k=24,v=17"},
};
static const int64_t batch_lens[] = {29, 67, 2, 131}; /* sum 229: no other extent in the shapes above */
enum { BATCH_SEQS = 4, BATCH_ROWS = 229 };

struct part {
    int64_t row, rows, seq, chunk, chunks; /* seq < 0: rows only */
};

/* Where tensor `part` of the small case lies in `whole`: first row and column; false when it is not a slice (parameters: equal extents). */
static bool slice(const struct case_tensor *whole, const struct case_tensor *part, const struct part *p, int64_t *row0, int64_t *col0)
{
    *row0 = *col0 = 0;
    if (whole->rows == BATCH_ROWS)
        *row0 = p->row;
    else if (whole->width == BATCH_ROWS && whole->rows == 1)
        *col0 = p->row;
    else if (p->seq >= 0 && whole->rows == BATCH_SEQS)
        *row0 = p->seq;
    else if (p->seq >= 0 && !strcmp(whole->name, "hs"))
        *row0 = p->chunk;
    else
        return false;
    return *row0 + part->rows <= whole->rows && *col0 + part->width <= whole->width;
}

static void take_inputs(struct op_case *small, const struct op_case *whole, const struct part *p)
{
    for (int t = 0; t < small->n_t; t++) {
        struct case_tensor *d = &small->t[t];
        const struct case_tensor *s = &whole->t[op_case_find(whole, d->name)];
        int64_t row0, col0;
        slice(s, d, p, &row0, &col0);
        for (int64_t r = 0; r < d->rows; r++)
            for (int64_t k = 0; k < d->width; k++)
                d->x[r * d->width + k] = s->x[(row0 + r) * s->width + col0 + k];
    }
}

static void test_part(struct backend *be, const struct op_case *whole, const struct result *all, size_t index, const struct part *p)
{
    static struct op_case c;
    struct err er = ERR_INIT;
    struct result alone;
    char shape[128];
    snprintf(shape, sizeof shape, "%s=%lld,%s", batches[index].key, (long long)p->rows, batches[index].rest);
    CHECK_OK(op_case_make(&c, batches[index].op, shape, 44, e));
    take_inputs(&c, whole, p);
    if (evaluate(&c, be, &alone, &er) != 0) {
        printf("FAIL %s %s: %s\n", batches[index].op, shape, er.msg);
        test_failed++;
        be->failed = false;
    }
    for (int t = 0; t < c.n_t; t++) {
        int w = op_case_find(whole, c.t[t].name);
        int64_t row0, col0, bad = 0;
        if (!alone.y[t] || !slice(&whole->t[w], &c.t[t], p, &row0, &col0))
            continue;
        for (int64_t r = 0; r < c.t[t].rows; r++)
            bad += memcmp(alone.y[t] + r * c.t[t].width, all->y[w] + (row0 + r) * whole->t[w].width + col0,
                          (size_t)c.t[t].width * sizeof(double)) != 0;
        test_checks++;
        if (bad) {
            test_failed++;
            printf("FAIL %s %s on %s: %lld rows of '%s' differ from the same rows in a batch of %d (rows %lld..)\n     repro: "
                   "parity_isa_bits -o %s   (seed 44)\n",
                   batches[index].op, shape, be->desc, (long long)bad, c.t[t].name, BATCH_ROWS, (long long)p->row, batches[index].op);
        }
    }
    result_free(&alone);
    op_case_free(&c);
}

static void test_batch(struct backend *be, size_t index)
{
    static struct op_case whole;
    struct err er = ERR_INIT;
    struct result all;
    bool seqs = !strcmp(batches[index].key, "lens");
    char shape[128];
    snprintf(shape, sizeof shape, "%s=%s,%s", batches[index].key, seqs ? "29+67+2+131" : "229", batches[index].rest);
    CHECK_OK(op_case_make(&whole, batches[index].op, shape, 44, e));
    if (evaluate(&whole, be, &all, &er) != 0) {
        printf("FAIL %s %s: %s\n", batches[index].op, shape, er.msg);
        test_failed++;
        be->failed = false;
    } else if (seqs) {
        struct part p = {0};
        for (int s = 0; s < BATCH_SEQS; s++) {
            p = (struct part){p.row, batch_lens[s], s, p.chunk, CEIL_DIV(batch_lens[s], GDN_CHUNK)};
            test_part(be, &whole, &all, index, &p);
            p.row += p.rows;
            p.chunk += p.chunks;
        }
    } else {
        static const int64_t parts[][2] = {{0, 1}, {228, 1}, {100, 7}, {3, 64}, {31, 150}};
        for (size_t k = 0; k < ARRAY_LEN(parts); k++)
            test_part(be, &whole, &all, index, &(struct part){parts[k][0], parts[k][1], -1, 0, 0});
    }
    result_free(&all);
    op_case_free(&whole);
}

int main(int argc, char **argv)
{
    struct err er = ERR_INIT;
    const char *op = argc == 3 && !strcmp(argv[1], "-o") ? argv[2] : NULL;
    struct pool *pool[3] = {NULL};
    struct backend *be[CONFIGS] = {NULL};
    int isas = 0;
    CHECK_OK(pool_open(&pool[1], 1, e));
    CHECK_OK(pool_open(&pool[2], 2, e));
    for (int k = 0; k < CONFIGS; k++) {
        if (backend_open(&be[k], &(struct backend_opts){.name = "cpu", .isa = configs[k].isa, .pool = pool[configs[k].threads]}, &er) ==
            0) {
            isas += k % 2;
            continue;
        }
        be[k] = NULL;
        printf("SKIPPED: cpu %s, %d threads: %s\n", configs[k].isa, configs[k].threads, er.msg);
        if (er.code != E_ENV && !strstr(er.msg, "this build has portable") && /* DASH_PORTABLE */
            !(er.code == E_USAGE && !TEST_X86 && configs[k].isa[0] == 'a')) /* a build for another processor knows only "portable" */
            test_failed++;
    }
    for (size_t i = 0; i < ARRAY_LEN(parity_shapes); i++)
        if (!op || !strcmp(op, parity_shapes[i].op))
            test_configs(be, i);
    for (int k = CONFIGS - 1; k >= 0; k -= 2) /* the widest instruction set is the one with tiles to get wrong; all agree by now */
        for (size_t i = 0; be[k] && i < ARRAY_LEN(batches); i++)
            if (!op || !strcmp(op, batches[i].op))
                test_batch(be[k], i);
    printf("%d instruction sets, 1 and 2 threads\n", isas);
    for (int k = 0; k < CONFIGS; k++)
        backend_close(be[k]);
    pool_close(pool[1]);
    pool_close(pool[2]);
    if (!isas && !test_failed)
        return test_skip("the cpu backend does not open here");
    return test_end();
}
