#include "core/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_THREADS = 1024 };

struct worker {
    struct pool *pool;
    pthread_t thread;
    int id; /* 1..threads-1; the caller of pool_run is 0 */
};

struct pool {
    int threads;
    struct worker *w;
    pthread_mutex_t callers; /* held for a whole pool_run: jobs of different threads queue up */
    pthread_mutex_t lock;    /* guards what follows */
    pthread_cond_t start, done;
    uint64_t job; /* counts jobs; a worker sleeps until it changes */
    int busy;     /* workers that have not finished the current job */
    bool stop;
    void (*fn)(void *ctx, int64_t item, int worker);
    void *ctx;
    int64_t n;
    _Atomic int64_t next;
};

/* Which worker of which pool this thread is at the moment: nested calls run inline under that worker's number. */
static _Thread_local struct {
    const struct pool *pool;
    int worker;
} inside;

static void work(struct pool *p, int worker)
{
    inside.pool = p;
    inside.worker = worker;
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed);
        if (i >= p->n)
            break;
        p->fn(p->ctx, i, worker);
    }
    inside.pool = NULL;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *p = w->pool;
    uint64_t seen = 0;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->job == seen && !p->stop)
            pthread_cond_wait(&p->start, &p->lock);
        if (p->stop)
            break;
        seen = p->job;
        pthread_mutex_unlock(&p->lock);
        work(p, w->id);
        pthread_mutex_lock(&p->lock);
        if (--p->busy == 0)
            pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Ends the workers 1..n and frees everything. */
static void shut(struct pool *p, int n)
{
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
    for (int i = 1; i <= n; i++)
        pthread_join(p->w[i].thread, NULL);
    pthread_cond_destroy(&p->start);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->callers);
    free(p->w);
    free(p);
}

int pool_open(struct pool **out, int threads, struct err *e)
{
    if (threads == 0) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        threads = n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : (int)n;
    }
    if (threads < 0 || threads > MAX_THREADS)
        return ERR(e, E_USAGE, "%d threads asked for, allowed are 1 to %d (0 = all cores)", threads, MAX_THREADS);
    struct pool *p = calloc(1, sizeof *p);
    struct worker *w = calloc((size_t)threads, sizeof *w);
    if (!p || !w) {
        free(p);
        free(w);
        return err_nomem(e, sizeof *p + (size_t)threads * sizeof *w, "the thread pool");
    }
    p->threads = threads;
    p->w = w;
    if (pthread_mutex_init(&p->callers, NULL) != 0 || pthread_mutex_init(&p->lock, NULL) != 0 || pthread_cond_init(&p->start, NULL) != 0 ||
        pthread_cond_init(&p->done, NULL) != 0) {
        free(w);
        free(p);
        return ERR(e, E_ENV, "cannot create the locks of the thread pool");
    }
    /* Signals go to the main thread. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int made = 0, rc = 0;
    for (int i = 1; i < threads && rc == 0; i++) {
        w[i] = (struct worker){.pool = p, .id = i};
        rc = pthread_create(&w[i].thread, NULL, worker_main, &w[i]);
        made += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        shut(p, made);
        return ERR(e, E_ENV, "cannot start thread %d of %d; try fewer threads", made + 2, threads);
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (p)
        shut(p, p->threads - 1);
}

int pool_threads(const struct pool *p)
{
    return p ? p->threads : 1;
}

static void run_inline(int64_t n, int worker, void (*fn)(void *ctx, int64_t item, int worker), void *ctx)
{
    for (int64_t i = 0; i < n; i++)
        fn(ctx, i, worker);
}

void pool_run(struct pool *p, int64_t n, void (*fn)(void *ctx, int64_t item, int worker), void *ctx)
{
    if (n <= 0)
        return;
    if (!p || inside.pool == p) {
        run_inline(n, p ? inside.worker : 0, fn, ctx);
        return;
    }
    if (p->threads == 1 || n == 1) {
        /* Still one caller at a time: worker 0's scratch belongs to one. */
        pthread_mutex_lock(&p->callers);
        const struct pool *outer = inside.pool;
        int outer_worker = inside.worker;
        inside.pool = p;
        inside.worker = 0;
        run_inline(n, 0, fn, ctx);
        inside.pool = outer;
        inside.worker = outer_worker;
        pthread_mutex_unlock(&p->callers);
        return;
    }
    pthread_mutex_lock(&p->callers);
    const struct pool *outer = inside.pool;
    int outer_worker = inside.worker;
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    p->busy = p->threads - 1;
    p->job++;
    pthread_cond_broadcast(&p->start);
    pthread_mutex_unlock(&p->lock);
    work(p, 0);
    pthread_mutex_lock(&p->lock);
    while (p->busy > 0)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    inside.pool = outer;
    inside.worker = outer_worker;
    pthread_mutex_unlock(&p->callers);
}
