/*
 * The one thread pool. Work is split by item index; which thread runs an item never changes a result: items are independent and reductions
 * are done by the caller in item order. Idle workers sleep on a condition variable. Nested calls run inline.
 */
#ifndef CORE_POOL_H
#define CORE_POOL_H

#include "core/err.h"

struct pool;
int pool_open(struct pool **out, int threads, struct err *e); /* threads >= 1; 0 = all online cores */
void pool_close(struct pool *p);
int pool_threads(const struct pool *p);
/* Calls fn(ctx, item, worker) for item = 0..n-1, worker in 0..threads-1 (for per-thread scratch); returns when all are done.
   p NULL = inline. */
void pool_run(struct pool *p, int64_t n, void (*fn)(void *ctx, int64_t item, int worker), void *ctx);

#endif
