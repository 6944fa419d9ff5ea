#include "core/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define ARENA_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION((p), (n))
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION((p), (n))
enum { RED_ZONE = 64 };
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
enum { RED_ZONE = 0 };
#endif

enum { ALIGN = 64, FIRST_BLOCK = 16 << 10, MAX_BLOCK = 4 << 20 };

/* The header takes one aligned slot, so that data behind it is aligned as the block is. */
struct arena_block {
    struct arena_block *next;
    size_t cap, used; /* bytes behind the header */
};
_Static_assert(sizeof(struct arena_block) <= ALIGN, "block header must fit one slot");

static uint8_t *block_data(struct arena_block *b)
{
    return (uint8_t *)b + ALIGN;
}

static void block_free(struct arena_block *b)
{
    UNPOISON(block_data(b), b->cap);
    free(b);
}

void arena_init(struct arena *a, size_t limit_bytes)
{
    *a = (struct arena){.limit_bytes = limit_bytes};
}

void arena_free(struct arena *a)
{
    while (a->head) {
        struct arena_block *b = a->head;
        a->head = b->next;
        block_free(b);
    }
    *a = (struct arena){.limit_bytes = a->limit_bytes};
}

static struct arena_block *block_new(struct arena *a, size_t need)
{
    size_t cap = a->head ? a->head->cap : FIRST_BLOCK / 2, total;
    cap = MIN(cap * 2, (size_t)MAX_BLOCK);
    if (cap < need)
        cap = need;
    if (!add_size(cap, ALIGN, &total))
        return NULL;
    struct arena_block *b = aligned_alloc(ALIGN, total);
    if (!b)
        return NULL;
    b->next = a->head;
    b->cap = cap;
    b->used = 0;
    POISON(block_data(b), cap);
    a->head = b;
    return b;
}

void *arena_alloc(struct arena *a, size_t bytes)
{
    size_t need, total;
    if (a->failed)
        return NULL;
    if (!add_size(bytes ? bytes : 1, ALIGN - 1 + RED_ZONE, &need))
        goto out;
    need -= need % ALIGN;
    if (!add_size(a->used_bytes, need, &total) || (a->limit_bytes && total > a->limit_bytes))
        goto out;
    struct arena_block *b = a->head;
    if (!b || b->cap - b->used < need)
        b = block_new(a, need);
    if (!b)
        goto out;
    uint8_t *p = block_data(b) + b->used;
    b->used += need;
    a->used_bytes = total;
    UNPOISON(p, bytes); /* the tail of the last slot stays poisoned, and so does the red zone */
    memset(p, 0, bytes);
    return p;
out:
    a->failed = true;
    return NULL;
}

void *arena_array(struct arena *a, size_t n, size_t size)
{
    size_t bytes;
    if (!mul_size(n, size, &bytes)) {
        a->failed = true;
        return NULL;
    }
    return arena_alloc(a, bytes);
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    if (n == SIZE_MAX) {
        a->failed = true;
        return NULL;
    }
    char *p = arena_alloc(a, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
    return arena_strndup(a, s, strlen(s));
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *p = NULL;
    if (n < 0)
        a->failed = true;
    else
        p = arena_alloc(a, (size_t)n + 1);
    if (p)
        vsnprintf(p, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    return p;
}

int arena_ok(const struct arena *a, const char *what, struct err *e)
{
    if (!a->failed)
        return 0;
    if (a->limit_bytes)
        return ERR(e, E_ENV, "out of memory for %s: %zu bytes in use, limit %zu", what, a->used_bytes, a->limit_bytes);
    return ERR(e, E_ENV, "out of memory for %s: %zu bytes in use", what, a->used_bytes);
}

struct arena_mark arena_mark(const struct arena *a)
{
    return (struct arena_mark){a->head, a->head ? a->head->used : 0, a->used_bytes};
}

void arena_release(struct arena *a, struct arena_mark m)
{
    while (a->head && a->head != m.block) {
        struct arena_block *b = a->head;
        a->head = b->next;
        block_free(b);
    }
    if (a->head != m.block)
        BUG("arena_release: the mark belongs to another arena or was released already");
    if (a->head) {
        if (m.block_used > a->head->used)
            BUG("arena_release: the mark lies past what is in use");
        POISON(block_data(a->head) + m.block_used, a->head->cap - m.block_used);
        a->head->used = m.block_used;
    }
    a->used_bytes = m.used_bytes;
}
