/*
 * Device memory for one step: a bump arena over one allocation. A measuring arena hands out addresses that nobody may touch and only
 * counts; run with backend_null (a backend whose ops do nothing but count FLOPs) the model's own code sizes its memory before the real
 * allocation is made.
 */
#ifndef MODEL_DMEM_H
#define MODEL_DMEM_H

#include "kernels/backend.h"

struct dmem {
    struct backend *be; /* NULL while measuring */
    char *base;
    size_t cap_bytes, used_bytes, peak_bytes;
    bool measuring;
};
void dmem_measure(struct dmem *a, int which); /* arenas in use together need different numbers, 0..7 */
/* bytes from an earlier measurement; E_ENV when the device has not enough. */
int dmem_open(struct dmem *a, struct backend *be, size_t bytes, struct err *e);
void dmem_close(struct dmem *a);
/* n elements, not zeroed, 64-byte aligned. Running over is BUG: the plan was for other shapes. */
struct view dmem_take(struct dmem *a, enum dtype dt, int64_t n);
static inline size_t dmem_mark(const struct dmem *a)
{
    return a->used_bytes;
}
static inline void dmem_release(struct dmem *a, size_t mark)
{
    a->used_bytes = mark;
}
/* A backend with the data types of `like` whose ops do nothing; be->flops and be->bytes count as usual. Needs no closing. */
void backend_null(struct backend *be, const struct backend *like);
/* The same, but allocations succeed: addresses that nobody may touch, counted in mem_used_bytes and mem_peak_bytes. So whole models and
 * stages can be sized. */
void backend_count(struct backend *be, const struct backend *like);
bool backend_is_null(const struct backend *be);

#endif
