/*
 * The thread pool: every item once, worker numbers in range and never shared at one time, nesting, several callers. Also run under
 * ThreadSanitizer: tests.cmake: tsan
 */
#include "tests/test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/log.h"
#include "core/pool.h"

enum { THREADS = 4 };

struct job {
    struct pool *pool;
    int64_t n;
    unsigned char *hits; /* plain bytes: two threads on one item would be a race */
    int in_use[THREADS]; /* plain: two threads under one worker number would be a race */
    atomic_int bad;
    int64_t inner;
};

static void visit(void *ctx, int64_t item, int worker)
{
    struct job *j = ctx;
    if (worker < 0 || worker >= THREADS || item < 0 || item >= j->n) {
        atomic_fetch_add(&j->bad, 1);
        return;
    }
    if (j->in_use[worker]++ != 0)
        atomic_fetch_add(&j->bad, 1);
    j->hits[item]++;
    j->in_use[worker]--;
}

static void check_job(struct pool *p, int64_t n)
{
    struct job j = {.pool = p, .n = n, .hits = calloc((size_t)n + 1, 1)};
    if (!j.hits)
        abort();
    pool_run(p, n, visit, &j);
    int64_t once = 0;
    for (int64_t i = 0; i < n; i++)
        once += j.hits[i] == 1;
    CHECK_EQ_I(once, n);
    CHECK_EQ_I(atomic_load(&j.bad), 0);
    free(j.hits);
}

/* A nested call runs in the same thread under the same worker number, items in order. */
struct nest {
    struct pool *pool;
    int outer_worker;
    pthread_t self;
    int64_t next;
    bool bad;
};

static void inner(void *ctx, int64_t item, int worker)
{
    struct nest *n = ctx;
    if (worker != n->outer_worker || !pthread_equal(pthread_self(), n->self) || item != n->next++)
        n->bad = true;
}

struct outer_job {
    struct pool *pool;
    bool bad[64];
};

static void outer(void *ctx, int64_t item, int worker)
{
    struct outer_job *o = ctx;
    struct nest n = {.pool = o->pool, .outer_worker = worker, .self = pthread_self()};
    pool_run(o->pool, 10, inner, &n);
    pool_run(o->pool, 1, inner, &(struct nest){.pool = o->pool, .outer_worker = worker, .self = n.self});
    o->bad[item] = n.bad || n.next != 10;
}

static void nesting(struct pool *p)
{
    struct outer_job o = {.pool = p};
    pool_run(p, 64, outer, &o);
    for (int i = 0; i < 64; i++)
        CHECK(!o.bad[i]);
    o.bad[0] = true;
    pool_run(p, 1, outer, &o);
    CHECK(!o.bad[0]);
}

static void *caller(void *arg)
{
    struct pool *p = arg;
    struct job j = {.pool = p, .n = 50, .hits = calloc(50, 1)};
    if (!j.hits)
        abort();
    long wrong = 0;
    for (int round = 1; round <= 100; round++) {
        pool_run(p, round % 10 ? 50 : 1, visit, &j);
        wrong += atomic_load(&j.bad);
    }
    for (int i = 1; i < 50; i++)
        wrong += j.hits[i] != 90;
    wrong += j.hits[0] != 100;
    free(j.hits);
    return (void *)(intptr_t)wrong;
}

/* Threads that call at the same time queue up; none gets the other's items. */
static void callers(struct pool *p)
{
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
        if (pthread_create(&t[i], NULL, caller, p) != 0)
            abort();
    for (int i = 0; i < 3; i++) {
        void *wrong;
        pthread_join(t[i], &wrong);
        CHECK_EQ_I((intptr_t)wrong, 0);
    }
}

/* Sums of products in a fixed order per item: the same bits with any number of threads. */
static void dot(void *ctx, int64_t item, int worker)
{
    double *out = ctx, s = 0;
    UNUSED(worker);
    for (int i = 1; i < 200; i++)
        s += 1.0 / (double)(i + item * 7);
    out[item] = s;
}

static void log_one(void *ctx, int64_t item, int worker)
{
    UNUSED(ctx);
    UNUSED(worker);
    log_warn_once("core_pool", "this line appears once (item %" PRId64 ")", item);
    log_debug("never shown");
}

int main(void)
{
    struct pool *p = NULL;
    double a[300], b[300];
    CHECK_OK(pool_open(&p, THREADS, e));
    CHECK_EQ_I(pool_threads(p), THREADS);
    CHECK_EQ_I(pool_threads(NULL), 1);
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 100, 10000};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        check_job(p, sizes[i]);
        check_job(NULL, sizes[i]);
    }
    pool_run(p, -5, visit, NULL); /* nothing to do */
    for (int i = 0; i < 2000; i++)
        check_job(p, 3); /* fewer items than threads, again and again: no worker may miss or repeat a job */
    nesting(p);
    callers(p);
    pool_run(p, 300, dot, a);
    pool_run(NULL, 300, dot, b);
    CHECK(memcmp(a, b, sizeof a) == 0);
    pool_run(p, 50, log_one, NULL);
    pool_close(p);
    CHECK_OK(pool_open(&p, 1, e));
    check_job(p, 100);
    nesting(p);
    pool_close(p);
    CHECK_OK(pool_open(&p, 0, e));
    CHECK(pool_threads(p) >= 1);
    pool_close(p);
    pool_close(NULL);
    CHECK_ERR(pool_open(&p, -1, e), E_USAGE, "-1 threads");
    CHECK_ERR(pool_open(&p, 100000, e), E_USAGE, "allowed are 1 to 1024");
    return test_end();
}
