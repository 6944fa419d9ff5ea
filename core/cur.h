/* Bounds-checked little-endian byte cursor. A read past the end sets `bad` (sticky) and yields 0; check once per record with cur_ok. */
#ifndef CORE_CUR_H
#define CORE_CUR_H

#include "core/err.h"

struct cur {
    const uint8_t *p;
    size_t len, pos;
    bool bad;
};

static inline struct cur cur_of(const void *p, size_t len)
{
    return (struct cur){(const uint8_t *)p, len, 0, false};
}
static inline size_t cur_left(const struct cur *c)
{
    return c->len - c->pos;
}
/* The next byte, not taken; -1 at the end. For texts, where the end is found by looking. */
static inline int cur_peek(const struct cur *c)
{
    return c->pos < c->len ? c->p[c->pos] : -1;
}
uint8_t cur_u8(struct cur *c);
uint16_t cur_u16(struct cur *c);
uint32_t cur_u32(struct cur *c);
uint64_t cur_u64(struct cur *c);
float cur_f32(struct cur *c);
double cur_f64(struct cur *c);
/* n bytes, borrowed; NULL (and bad) when fewer are left. */
const uint8_t *cur_bytes(struct cur *c, uint64_t n);
/* E_INPUT "FILE: ends at byte POS while reading WHAT" when bad. */
int cur_ok(const struct cur *c, const char *file, const char *what, struct err *e);

#endif
