/*
 * Bump allocator. Everything in it dies with it. Memory is zeroed, 64-byte aligned. Allocation past the limit or without memory returns
 * NULL and leaves the arena failed for good (sticky), so that a phase may be checked once at its end with arena_ok. Not thread-safe.
 */
#ifndef CORE_ARENA_H
#define CORE_ARENA_H

#include "core/err.h"

struct arena {
    struct arena_block *head; /* newest block first */
    size_t limit_bytes;       /* 0 = none */
    size_t used_bytes;
    bool failed;
};
struct arena_mark {
    struct arena_block *block;
    size_t block_used, used_bytes;
};

void arena_init(struct arena *a, size_t limit_bytes);
void arena_free(struct arena *a);
void *arena_alloc(struct arena *a, size_t bytes);
/* n elements of `size` bytes, the product checked. */
void *arena_array(struct arena *a, size_t n, size_t size);
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t n);
char *arena_printf(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
int arena_ok(const struct arena *a, const char *what, struct err *e);
struct arena_mark arena_mark(const struct arena *a);
void arena_release(struct arena *a, struct arena_mark m);

#endif
