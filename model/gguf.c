#include "model/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/cur.h"

#define MAX_KEYS 65536    /* real files have below a thousand keys and a few thousand tensors; the limits bound the memory of a lying header */
#define MAX_TENSORS 262144
#define MAX_TENSOR_NAME 64

/* How a name stands in a message: at most 80 bytes. */
#define SHOW(s) (int)MIN((s).n, 80), (s).p

static const size_t scalar_bytes[] = {
    [GV_U8] = 1, [GV_I8] = 1, [GV_U16] = 2, [GV_I16] = 2, [GV_U32] = 4, [GV_I32] = 4, [GV_F32] = 4, [GV_BOOL] = 1, [GV_STR] = 0,
        [GV_ARR] = 0,
    [GV_U64] = 8, [GV_I64] = 8, [GV_F64] = 8,
};
#define N_VALUES ARRAY_LEN(scalar_bytes)

bool gguf_str_eq(struct gguf_str s, const char *z)
{
    size_t n = strlen(z);
    return s.n == n && memcmp(s.p, z, n) == 0;
}

static struct gguf_str read_str(struct cur *c)
{
    uint64_t n = cur_u64(c);
    const uint8_t *p = cur_bytes(c, n);
    return p ? (struct gguf_str){(const char *)p, (size_t)n} : (struct gguf_str){"", 0};
}

/* Steps over `count` elements of a type. Nested arrays may stand in one array, not deeper. */
static int skip_elems(struct gguf *g, struct cur *c, uint32_t type, uint64_t count, int depth, struct err *e)
{
    if (type >= N_VALUES)
        return ERR(e, E_INPUT, "%s: byte %zu: unknown value type %" PRIu32 " (limit %zu)", g->path, c->pos, type, N_VALUES - 1);
    if (type == GV_ARR) {
        if (depth >= 2)
            return ERR(e, E_INPUT, "%s: byte %zu: arrays nested more than two deep", g->path, c->pos);
        for (uint64_t i = 0; i < count && !c->bad; i++) {
            uint32_t sub = cur_u32(c);
            uint64_t n = cur_u64(c);
            if (!c->bad)
                TRY(skip_elems(g, c, sub, n, depth + 1, e));
        }
    } else if (type == GV_STR) {
        for (uint64_t i = 0; i < count && !c->bad; i++)
            read_str(c);
    } else if (count > cur_left(c) / scalar_bytes[type]) {
        c->bad = true;
    } else {
        const uint8_t *p = cur_bytes(c, count * scalar_bytes[type]);
        for (uint64_t i = 0; type == GV_BOOL && p && i < count; i++)
            if (p[i] > 1)
                return ERR(e, E_INPUT, "%s: byte %zu: bool with value %d", g->path, c->pos, p[i]);
    }
    return 0;
}

static int read_kv(struct gguf *g, struct cur *c, struct gguf_kv *kv, struct err *e)
{
    kv->key = read_str(c);
    uint32_t type = cur_u32(c);
    TRY(cur_ok(c, g->path, "a key", e));
    if (type >= N_VALUES)
        return ERR(e, E_INPUT, "%s: key '%.*s': unknown value type %" PRIu32 " (limit %zu)", g->path, SHOW(kv->key), type, N_VALUES - 1);
    kv->type = (enum gguf_value)type;
    kv->count = 1;
    if (type == GV_ARR) {
        uint32_t elem = cur_u32(c);
        kv->count = cur_u64(c);
        TRY(cur_ok(c, g->path, "an array's header", e));
        if (elem >= N_VALUES)
            return ERR(e, E_INPUT, "%s: key '%.*s': unknown element type %" PRIu32 " (limit %zu)", g->path, SHOW(kv->key), elem,
                       N_VALUES - 1);
        kv->elem = (enum gguf_value)elem;
        type = elem;
    }
    size_t from = c->pos;
    kv->data = c->p + from;
    if (skip_elems(g, c, type, kv->count, kv->type == GV_ARR ? 1 : 0, e) != 0 || cur_ok(c, g->path, "a value", e) != 0)
        return err_wrap(e, "key '%.*s'", SHOW(kv->key));
    kv->bytes = c->pos - from;
    return 0;
}

static int tensor_size(struct gguf *g, struct gguf_tensor *t, struct err *e)
{
    int elems, bytes;
    if (!ggml_type_layout(t->type, &elems, &bytes))
        return ERR(e, E_INPUT, "%s: tensor '%.*s': unknown type %" PRIu32, g->path, SHOW(t->name), t->type);
    t->n = 1;
    for (int i = 0; i < 4; i++)
        if (t->ne[i] < 1 || !mul_i64(t->n, t->ne[i], &t->n))
            return ERR(e, E_INPUT, "%s: tensor '%.*s': dimension %d is %" PRIu64 " (from 1 on, the product below 2^63)", g->path,
                       SHOW(t->name), i, (uint64_t)t->ne[i]);
    if (t->ne[0] % elems)
        return ERR(e, E_INPUT, "%s: tensor '%.*s': rows of %" PRId64 " values are not whole blocks of %d (%s)", g->path, SHOW(t->name),
                   t->ne[0], elems, ggml_type_name(t->type));
    if (!mul_size((size_t)(t->n / elems), (size_t)bytes, &t->bytes))
        return ERR(e, E_INPUT, "%s: tensor '%.*s': its bytes do not fit in 64 bits", g->path, SHOW(t->name));
    return 0;
}

/* Into t; the offset is checked later, when the data area is known. */
static int read_tensor(struct gguf *g, struct cur *c, struct gguf_tensor *t, uint64_t *offset, struct err *e)
{
    t->name = read_str(c);
    uint32_t nd = cur_u32(c);
    TRY(cur_ok(c, g->path, "a tensor's name", e));
    if (t->name.n > MAX_TENSOR_NAME)
        return ERR(e, E_INPUT, "%s: a tensor's name has %zu bytes (limit %d)", g->path, t->name.n, MAX_TENSOR_NAME);
    if (nd > 4)
        return ERR(e, E_INPUT, "%s: tensor '%.*s': %" PRIu32 " dimensions (limit 4)", g->path, SHOW(t->name), nd);
    for (uint32_t i = 0; i < 4; i++)
        t->ne[i] = i < nd ? (int64_t)cur_u64(c) : 1;
    t->ndim = nd ? (int)nd : 1;
    t->type = cur_u32(c);
    *offset = cur_u64(c);
    TRY(cur_ok(c, g->path, "a tensor's description", e));
    return tensor_size(g, t, e);
}

static int cmp_str(struct gguf_str a, struct gguf_str b)
{
    int r = memcmp(a.p, b.p, MIN(a.n, b.n));
    return r ? r : a.n < b.n ? -1 : a.n > b.n;
}

static int cmp_kv(const void *a, const void *b)
{
    return cmp_str((*(const struct gguf_kv *const *)a)->key, (*(const struct gguf_kv *const *)b)->key);
}

static int cmp_tensor(const void *a, const void *b)
{
    return cmp_str((*(const struct gguf_tensor *const *)a)->name, (*(const struct gguf_tensor *const *)b)->name);
}

static int cmp_data(const void *a, const void *b)
{
    const uint8_t *x = (*(const struct gguf_tensor *const *)a)->data, *y = (*(const struct gguf_tensor *const *)b)->data;
    return x < y ? -1 : x > y;
}

static int read_keys(struct gguf *g, struct cur *c, struct err *e)
{
    g->kv = arena_array(&g->mem, g->n_kv + 1, sizeof *g->kv);
    g->kv_sorted = arena_array(&g->mem, g->n_kv + 1, sizeof *g->kv_sorted);
    TRY(arena_ok(&g->mem, "GGUF keys", e));
    for (size_t i = 0; i < g->n_kv; i++) {
        TRY(read_kv(g, c, &g->kv[i], e));
        g->kv_sorted[i] = &g->kv[i];
    }
    qsort(g->kv_sorted, g->n_kv, sizeof *g->kv_sorted, cmp_kv);
    for (size_t i = 1; i < g->n_kv; i++)
        if (cmp_kv(&g->kv_sorted[i - 1], &g->kv_sorted[i]) == 0)
            return ERR(e, E_INPUT, "%s: key '%.*s' stands twice", g->path, SHOW(g->kv_sorted[i]->key));
    const struct gguf_kv *al = gguf_key(g, "general.alignment");
    int64_t a = 32;
    if (al && al->type == GV_STR)
        return ERR(e, E_INPUT, "%s: general.alignment is a string (expected a power of two)", g->path);
    TRY(gguf_i64_opt(g, "general.alignment", 4, UINT32_MAX, &a, e));
    if (a & (a - 1))
        return ERR(e, E_INPUT, "%s: general.alignment is %" PRId64 " (expected a power of two)", g->path, a);
    g->alignment = (uint32_t)a;
    return 0;
}

static int read_tensors(struct gguf *g, struct cur *c, struct err *e)
{
    g->t = arena_array(&g->mem, g->n_t + 1, sizeof *g->t);
    g->t_sorted = arena_array(&g->mem, g->n_t + 1, sizeof *g->t_sorted);
    uint64_t *off = arena_array(&g->mem, g->n_t + 1, sizeof *off);
    TRY(arena_ok(&g->mem, "GGUF tensors", e));
    for (size_t i = 0; i < g->n_t; i++) {
        TRY(read_tensor(g, c, &g->t[i], &off[i], e));
        g->t_sorted[i] = &g->t[i];
    }
    qsort(g->t_sorted, g->n_t, sizeof *g->t_sorted, cmp_tensor);
    for (size_t i = 1; i < g->n_t; i++)
        if (cmp_tensor(&g->t_sorted[i - 1], &g->t_sorted[i]) == 0)
            return ERR(e, E_INPUT, "%s: tensor '%.*s' stands twice", g->path, SHOW(g->t_sorted[i]->name));
    if (!g->n_t)
        return 0;
    size_t pad = (g->alignment - c->pos % g->alignment) % g->alignment;
    if (pad > cur_left(c))
        return ERR(e, E_INPUT, "%s: the data should start at byte %zu, the file has %zu bytes (truncated?)", g->path, c->pos + pad, c->len);
    const uint8_t *data = c->p + c->pos + pad;
    size_t area = cur_left(c) - pad;
    for (size_t i = 0; i < g->n_t; i++) {
        struct gguf_tensor *t = &g->t[i];
        if (off[i] % g->alignment)
            return ERR(e, E_INPUT, "%s: tensor '%.*s': offset %" PRIu64 " is not a multiple of the alignment %" PRIu32, g->path,
                       SHOW(t->name), off[i], g->alignment);
        if (off[i] > area || t->bytes > area - off[i])
            return ERR(e, E_INPUT,
                       "%s: tensor '%.*s': %zu bytes at offset %" PRIu64 " pass the end of the file's %zu data bytes (truncated?)", g->path,
                       SHOW(t->name), t->bytes, off[i], area);
        t->data = data + off[i];
    }
    return 0;
}

static int check_overlap(struct gguf *g, struct err *e)
{
    struct gguf_tensor **v = arena_array(&g->mem, g->n_t + 1, sizeof *v);
    if (!v)
        return arena_ok(&g->mem, "GGUF tensors", e);
    for (size_t i = 0; i < g->n_t; i++)
        v[i] = &g->t[i];
    qsort(v, g->n_t, sizeof *v, cmp_data);
    for (size_t i = 1; i < g->n_t; i++)
        if ((size_t)(v[i]->data - v[i - 1]->data) < v[i - 1]->bytes)
            return ERR(e, E_INPUT, "%s: tensors '%.*s' and '%.*s' overlap", g->path, SHOW(v[i - 1]->name), SHOW(v[i]->name));
    return 0;
}

static int open_bytes(struct gguf *g, const uint8_t *p, size_t len, struct err *e)
{
    struct cur c = cur_of(p, len);
    const uint8_t *magic = cur_bytes(&c, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return ERR(e, E_INPUT, "%s: not a GGUF file (its first bytes are not 'GGUF')", g->path);
    g->version = cur_u32(&c);
    uint64_t n_t = cur_u64(&c), n_kv = cur_u64(&c);
    TRY(cur_ok(&c, g->path, "the header", e));
    if (g->version == 0x03000000u || g->version == 0x02000000u)
        return ERR(e, E_INPUT, "%s: a big-endian GGUF file; only little-endian ones are read", g->path);
    if (g->version != 2 && g->version != 3)
        return ERR(e, E_INPUT, "%s: GGUF version %" PRIu32 " (versions 2 and 3 are read)", g->path, g->version);
    /* shortest key: 8 + 4 + 1 bytes; shortest tensor: 8 + 4 + 4 + 8 */
    if (n_kv > cur_left(&c) / 13 || n_kv > MAX_KEYS)
        return ERR(e, E_INPUT, "%s: %" PRIu64 " keys in %zu bytes (limit %d)", g->path, n_kv, len, MAX_KEYS);
    if (n_t > cur_left(&c) / 24 || n_t > MAX_TENSORS)
        return ERR(e, E_INPUT, "%s: %" PRIu64 " tensors in %zu bytes (limit %d)", g->path, n_t, len, MAX_TENSORS);
    g->n_kv = (size_t)n_kv;
    g->n_t = (size_t)n_t;
    TRY(read_keys(g, &c, e));
    TRY(read_tensors(g, &c, e));
    return check_overlap(g, e);
}

int gguf_open_mem(struct gguf *g, const char *name, const void *p, size_t len, struct err *e)
{
    *g = (struct gguf){0};
    snprintf(g->path, sizeof g->path, "%s", name);
    g->map = (struct file_map){p, len, false};
    arena_init(&g->mem, 0);
    if (open_bytes(g, p, len, e) != 0) {
        gguf_close(g);
        return -1;
    }
    return 0;
}

int gguf_open(struct gguf *g, const char *path, struct err *e)
{
    struct file_map m;
    *g = (struct gguf){0};
    TRY(map_open(&m, path, e));
    if (gguf_open_mem(g, path, m.p, m.len, e) != 0) {
        map_close(&m);
        return -1;
    }
    g->map = m;
    g->owns_map = true;
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (g->owns_map)
        map_close(&g->map);
    arena_free(&g->mem);
    *g = (struct gguf){0};
}

/* ---- look-up ---- */

const struct gguf_kv *gguf_key(const struct gguf *g, const char *key)
{
    struct gguf_kv probe = {.key = {key, strlen(key)}}, *k = &probe;
    struct gguf_kv *const *hit = g->n_kv ? bsearch(&k, g->kv_sorted, g->n_kv, sizeof *g->kv_sorted, cmp_kv) : NULL;
    return hit ? *hit : NULL;
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    struct gguf_tensor probe = {.name = {name, strlen(name)}}, *k = &probe;
    struct gguf_tensor *const *hit = g->n_t ? bsearch(&k, g->t_sorted, g->n_t, sizeof *g->t_sorted, cmp_tensor) : NULL;
    return hit ? *hit : NULL;
}

/* One scalar at p. False when the type is no number, or an unsigned one above int64. */
static bool scalar_i64(enum gguf_value type, const uint8_t *p, int64_t *v)
{
    struct cur c = cur_of(p, scalar_bytes[type]);
    switch (type) {
    case GV_U8: *v = cur_u8(&c); return true;
    case GV_I8: *v = (int8_t)cur_u8(&c); return true;
    case GV_U16: *v = cur_u16(&c); return true;
    case GV_I16: *v = (int16_t)cur_u16(&c); return true;
    case GV_U32: *v = cur_u32(&c); return true;
    case GV_I32: *v = (int32_t)cur_u32(&c); return true;
    case GV_I64: *v = (int64_t)cur_u64(&c); return true;
    case GV_U64: {
        uint64_t u = cur_u64(&c);
        *v = (int64_t)u;
        return u <= INT64_MAX;
    }
    case GV_F32:
    case GV_F64:
    case GV_BOOL:
    case GV_STR:
    case GV_ARR: return false;
    }
    return false;
}

static bool scalar_f64(enum gguf_value type, const uint8_t *p, double *v)
{
    struct cur c = cur_of(p, scalar_bytes[type]);
    int64_t i;
    if (type == GV_F32)
        *v = (double)cur_f32(&c);
    else if (type == GV_F64)
        *v = cur_f64(&c);
    else if (scalar_i64(type, p, &i))
        *v = (double)i;
    else
        return false;
    return true;
}

/* An array of equal numbers stands for that number. */
static bool kv_i64(const struct gguf_kv *kv, int64_t *v)
{
    if (kv->type != GV_ARR)
        return scalar_i64(kv->type, kv->data, v);
    struct gguf_iter it = gguf_iter(kv);
    int64_t x;
    if (!gguf_next_i64(&it, v))
        return false;
    while (gguf_next_i64(&it, &x))
        if (x != *v)
            return false;
    return it.left == 0;
}

int gguf_i64_opt(const struct gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_key(g, key);
    int64_t v;
    if (!kv)
        return 0;
    if (!kv_i64(kv, &v))
        return ERR(e, E_INPUT, "%s: %s: expected an integer%s", g->path, key, kv->type == GV_ARR
                   ? ", found an array whose entries are not one number" : "");
    if (v < lo || v > hi)
        return ERR(e, E_INPUT, "%s: %s is %" PRId64 " (limits %" PRId64 " to %" PRId64 ")", g->path, key, v, lo, hi);
    *out = v;
    return 0;
}

int gguf_f64_opt(const struct gguf *g, const char *key, double *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_key(g, key);
    double v;
    if (!kv)
        return 0;
    if (!scalar_f64(kv->type, kv->data, &v) || !finite_f64(v))
        return ERR(e, E_INPUT, "%s: %s: expected a finite number", g->path, key);
    *out = v;
    return 0;
}

int gguf_bool_opt(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_key(g, key);
    if (!kv)
        return 0;
    if (kv->type != GV_BOOL)
        return ERR(e, E_INPUT, "%s: %s: expected true or false", g->path, key);
    *out = kv->data[0] != 0;
    return 0;
}

int gguf_string_opt(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e)
{
    const struct gguf_kv *kv = gguf_key(g, key);
    if (!kv)
        return 0;
    if (kv->type != GV_STR)
        return ERR(e, E_INPUT, "%s: %s: expected a string", g->path, key);
    struct cur c = cur_of(kv->data, kv->bytes);
    *out = read_str(&c);
    return 0;
}

static int need(const struct gguf *g, const char *key, struct err *e)
{
    return gguf_key(g, key) ? 0 : ERR(e, E_INPUT, "%s: key '%s' is missing", g->path, key);
}

int gguf_i64(const struct gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out, struct err *e)
{
    TRY(need(g, key, e));
    return gguf_i64_opt(g, key, lo, hi, out, e);
}

int gguf_f64(const struct gguf *g, const char *key, double *out, struct err *e)
{
    TRY(need(g, key, e));
    return gguf_f64_opt(g, key, out, e);
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e)
{
    TRY(need(g, key, e));
    return gguf_string_opt(g, key, out, e);
}

struct gguf_iter gguf_iter(const struct gguf_kv *kv)
{
    return (struct gguf_iter){kv, kv->data, kv->type == GV_ARR ? kv->count : 0};
}

bool gguf_next_str(struct gguf_iter *it, struct gguf_str *s)
{
    if (!it->left || it->kv->elem != GV_STR)
        return false;
    struct cur c = cur_of(it->p, it->kv->bytes - (size_t)(it->p - it->kv->data));
    *s = read_str(&c);
    it->p += c.pos;
    it->left--;
    return true;
}

bool gguf_next_i64(struct gguf_iter *it, int64_t *v)
{
    if (!it->left || !scalar_i64(it->kv->elem, it->p, v))
        return false;
    it->p += scalar_bytes[it->kv->elem];
    it->left--;
    return true;
}

bool gguf_next_f64(struct gguf_iter *it, double *v)
{
    if (!it->left || !scalar_f64(it->kv->elem, it->p, v))
        return false;
    it->p += scalar_bytes[it->kv->elem];
    it->left--;
    return true;
}
