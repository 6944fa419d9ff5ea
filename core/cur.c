#include "core/cur.h"

#include <string.h>

const uint8_t *cur_bytes(struct cur *c, uint64_t n)
{
    if (c->bad || n > cur_left(c)) {
        c->bad = true;
        return NULL;
    }
    const uint8_t *p = c->p + c->pos;
    c->pos += (size_t)n;
    return p;
}

static uint64_t little(struct cur *c, unsigned n)
{
    const uint8_t *p = cur_bytes(c, n);
    uint64_t v = 0;
    for (unsigned i = 0; p && i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

uint8_t cur_u8(struct cur *c)
{
    return (uint8_t)little(c, 1);
}

uint16_t cur_u16(struct cur *c)
{
    return (uint16_t)little(c, 2);
}

uint32_t cur_u32(struct cur *c)
{
    return (uint32_t)little(c, 4);
}

uint64_t cur_u64(struct cur *c)
{
    return little(c, 8);
}

float cur_f32(struct cur *c)
{
    uint32_t u = cur_u32(c);
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

double cur_f64(struct cur *c)
{
    uint64_t u = cur_u64(c);
    double f;
    memcpy(&f, &u, sizeof f);
    return f;
}

int cur_ok(const struct cur *c, const char *file, const char *what, struct err *e)
{
    if (!c->bad)
        return 0;
    return ERR(e, E_INPUT, "%s: ends at byte %zu while reading %s (at byte %zu)", file, c->len, what, c->pos);
}
