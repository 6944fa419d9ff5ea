/* Reader of safetensors files and of folders of them by their index. The writer is st_out.c. */
#include "model/st.h"

#include <stdlib.h>
#include <string.h>

#include "core/cur.h"
#include "core/jread.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[ST_N_DTYPES] = {
    [ST_BOOL] = {"BOOL", 1}, [ST_U8] = {"U8", 1},     [ST_I8] = {"I8", 1},   [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_F8_E5M2] = {"F8_E5M2", 1},
    [ST_I16] = {"I16", 2},   [ST_U16] = {"U16", 2},   [ST_F16] = {"F16", 2}, [ST_BF16] = {"BF16", 2},       [ST_I32] = {"I32", 4},
    [ST_U32] = {"U32", 4},   [ST_F32] = {"F32", 4},   [ST_I64] = {"I64", 8}, [ST_U64] = {"U64", 8},         [ST_F64] = {"F64", 8},
};

const char *st_dtype_name(enum st_dtype t)
{
    return dtypes[t].name;
}

size_t st_dtype_bytes(enum st_dtype t)
{
    return dtypes[t].bytes;
}

bool st_dtype_parse(const char *name, enum st_dtype *out)
{
    for (int i = 0; i < ST_N_DTYPES; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *out = (enum st_dtype)i;
            return true;
        }
    return false;
}

/* ---- number formats ---- */

static float f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, ex = (h >> 10) & 31u, man = h & 0x3ffu;
    if (ex == 31)
        return f32_of_bits(sign | 0x7f800000u | man << 13);
    if (ex)
        return f32_of_bits(sign | (ex + 112) << 23 | man << 13);
    float x = (float)man * 0x1p-24f; /* zero and subnormals: exact */
    return sign ? -x : x;
}

float bf16_to_f32(uint16_t h)
{
    return f32_of_bits((uint32_t)h << 16);
}

static float e4m3_to_f32(uint8_t b) /* no infinities; S.1111.111 is NaN */
{
    uint32_t sign = (uint32_t)(b & 0x80u) << 24, ex = b >> 3 & 15u, man = b & 7u;
    if (ex == 15 && man == 7)
        return f32_of_bits(sign | 0x7fc00000u);
    if (ex)
        return f32_of_bits(sign | (ex + 120) << 23 | man << 20);
    float x = (float)man * 0x1p-9f;
    return sign ? -x : x;
}

#define CONVERT(type, expr)                               \
    for (int64_t i = 0; i < n; i++) {                     \
        type x;                                           \
        memcpy(&x, src + (size_t)i * sizeof x, sizeof x); \
        dst[i] = (expr);                                  \
    }                                                     \
    return

void st_to_f32(enum st_dtype t, const uint8_t *src, int64_t first, int64_t n, float *dst)
{
    if (n <= 0)
        return;
    src += (size_t)first * dtypes[t].bytes;
    switch (t) {
    case ST_BOOL: CONVERT(uint8_t, x ? 1.0f : 0.0f);
    case ST_U8: CONVERT(uint8_t, (float)x);
    case ST_I8: CONVERT(int8_t, (float)x);
    case ST_F8_E4M3: CONVERT(uint8_t, e4m3_to_f32(x));
    case ST_F8_E5M2: CONVERT(uint8_t, f16_to_f32((uint16_t)((unsigned)x << 8)));
    case ST_I16: CONVERT(int16_t, (float)x);
    case ST_U16: CONVERT(uint16_t, (float)x);
    case ST_F16: CONVERT(uint16_t, f16_to_f32(x));
    case ST_BF16: CONVERT(uint16_t, bf16_to_f32(x));
    case ST_I32: CONVERT(int32_t, (float)x);
    case ST_U32: CONVERT(uint32_t, (float)x);
    case ST_F32: memcpy(dst, src, (size_t)n * 4); return;
    case ST_I64: CONVERT(int64_t, (float)x);
    case ST_U64: CONVERT(uint64_t, (float)x);
    case ST_F64: CONVERT(double, (float)x);
    }
    BUG("dtype %d", (int)t);
}

/* ---- reading ---- */

static int read_shape(struct st_file *f, struct st_tensor *t, const json_t *shape, struct err *e)
{
    size_t nd = json_array_size(shape);
    if (nd > ST_MAX_NDIM)
        return ERR(e, E_INPUT, "%s: tensor '%s': %zu dimensions (limit %d)", f->path, t->name, nd, ST_MAX_NDIM);
    int64_t *dim = arena_array(&f->mem, nd ? nd : 1, sizeof *dim);
    if (!dim)
        return arena_ok(&f->mem, "safetensors header", e);
    t->n = 1;
    for (size_t i = 0; i < nd; i++) {
        const json_t *v = json_array_get(shape, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return ERR(e, E_INPUT, "%s: tensor '%s': shape[%zu] is not an integer from 0 on", f->path, t->name, i);
        dim[i] = json_integer_value(v);
        if (!mul_i64(t->n, dim[i], &t->n))
            return ERR(e, E_INPUT, "%s: tensor '%s': the product of its dimensions does not fit in 63 bits", f->path, t->name);
    }
    t->ndim = (int)nd;
    t->shape = dim;
    return 0;
}

/* One header entry into t. `area` is the number of data bytes. */
static int read_entry(struct st_file *f, const struct jdoc *d, struct st_tensor *t, const json_t *ent, const uint8_t *data, size_t area,
                      struct err *e)
{
    const char *dtype;
    const json_t *shape, *off;
    if (!json_is_object(ent))
        return ERR(e, E_INPUT, "%s: tensor '%s': its entry is not an object", f->path, t->name);
    TRY(jget_str(d, ent, t->name, "dtype", &dtype, e));
    TRY(jget_arr(d, ent, t->name, "shape", &shape, e));
    TRY(jget_arr(d, ent, t->name, "data_offsets", &off, e));
    if (!st_dtype_parse(dtype, &t->dtype))
        return ERR(e, E_INPUT, "%s: tensor '%s': unknown dtype '%.40s'", f->path, t->name, dtype);
    TRY(read_shape(f, t, shape, e));
    const json_t *b = json_array_get(off, 0), *z = json_array_get(off, 1);
    if (json_array_size(off) != 2 || !json_is_integer(b) || !json_is_integer(z))
        return ERR(e, E_INPUT, "%s: tensor '%s': data_offsets is not a pair of integers", f->path, t->name);
    json_int_t begin = json_integer_value(b), end = json_integer_value(z);
    if (begin < 0 || end < begin || (uint64_t)end > area)
        return ERR(e, E_INPUT, "%s: tensor '%s': data_offsets [%" PRId64 ", %" PRId64 "] are not a range within the %zu data bytes",
                   f->path, t->name, (int64_t)begin, (int64_t)end, area);
    size_t want;
    if (!mul_size((size_t)t->n, dtypes[t->dtype].bytes, &want) || want != (size_t)(end - begin))
        return ERR(e, E_INPUT, "%s: tensor '%s': %" PRId64 " bytes at data_offsets, but its shape has %" PRId64 " elements of %s", f->path,
                   t->name, (int64_t)(end - begin), t->n, dtype);
    t->data = data + begin;
    t->bytes = want;
    return 0;
}

static int read_meta(struct st_file *f, const json_t *m, struct err *e)
{
    if (!json_is_object(m))
        return ERR(e, E_INPUT, "%s: __metadata__ is not an object", f->path);
    f->meta = arena_array(&f->mem, 2 * json_object_size(m) + 1, sizeof *f->meta);
    if (!f->meta)
        return arena_ok(&f->mem, "safetensors header", e);
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)m, key, v)
    {
        if (!json_is_string(v))
            return ERR(e, E_INPUT, "%s: __metadata__ '%.80s' is not a string", f->path, key);
        f->meta[2 * f->n_meta] = arena_strdup(&f->mem, key);
        f->meta[2 * f->n_meta + 1] = arena_strdup(&f->mem, json_string_value(v));
        f->n_meta++;
    }
    return arena_ok(&f->mem, "safetensors header", e);
}

static int by_data(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct st_tensor *const *)a)->name, (*(const struct st_tensor *const *)b)->name);
}

/* Tensors tile the data area: sorted by begin, each starts where the one before ends. */
static int check_tiling(struct st_file *f, const uint8_t *data, size_t area, struct err *e)
{
    qsort(f->t, f->n, sizeof *f->t, by_data);
    size_t at = 0;
    for (size_t i = 0; i < f->n; i++) {
        size_t begin = (size_t)(f->t[i].data - data);
        if (begin < at)
            return ERR(e, E_INPUT, "%s: tensors '%s' and '%s' overlap at data byte %zu", f->path, f->t[i - 1].name, f->t[i].name, begin);
        if (begin > at)
            return ERR(e, E_INPUT, "%s: data bytes %zu to %zu, before tensor '%s', belong to no tensor", f->path, at, begin, f->t[i].name);
        at = begin + f->t[i].bytes;
    }
    if (at != area)
        return ERR(e, E_INPUT, "%s: the file has %zu data bytes, its tensors end at %zu", f->path, area, at);
    f->by_name = arena_array(&f->mem, f->n + 1, sizeof *f->by_name);
    if (!f->by_name)
        return arena_ok(&f->mem, "safetensors header", e);
    for (size_t i = 0; i < f->n; i++)
        f->by_name[i] = &f->t[i];
    qsort(f->by_name, f->n, sizeof *f->by_name, by_name);
    return 0;
}

static int read_header(struct st_file *f, const struct jdoc *d, const uint8_t *data, size_t area, struct err *e)
{
    if (!json_is_object(d->root))
        return ERR(e, E_INPUT, "%s: the header is not a JSON object", f->path);
    f->t = arena_array(&f->mem, json_object_size(d->root) + 1, sizeof *f->t);
    if (!f->t)
        return arena_ok(&f->mem, "safetensors header", e);
    const char *key;
    json_t *v;
    json_object_foreach(d->root, key, v)
    {
        if (strcmp(key, "__metadata__") == 0) {
            TRY(read_meta(f, v, e));
            continue;
        }
        struct st_tensor *t = &f->t[f->n];
        t->name = arena_strdup(&f->mem, key);
        TRY(arena_ok(&f->mem, "safetensors header", e));
        TRY(read_entry(f, d, t, v, data, area, e));
        f->n++;
    }
    return check_tiling(f, data, area, e);
}

static int open_bytes(struct st_file *f, const uint8_t *p, size_t len, struct err *e)
{
    struct cur c = cur_of(p, len);
    uint64_t n = cur_u64(&c);
    if (c.bad)
        return ERR(e, E_INPUT, "%s: %zu bytes are too few for a safetensors file (8 bytes of header length first)", f->path, len);
    if (n > cur_left(&c))
        return ERR(e, E_INPUT, "%s: header length %" PRIu64 ", but only %zu bytes follow (truncated, or not a safetensors file)", f->path,
                   n, cur_left(&c));
    if (n > ST_MAX_HEADER_BYTES)
        return ERR(e, E_INPUT, "%s: header length %" PRIu64 " (limit %u)", f->path, n, ST_MAX_HEADER_BYTES);
    const char *text = (const char *)p + 8;
    size_t end = (size_t)n;
    while (end && text[end - 1] == ' ')
        end--;
    if (end < 2 || text[0] != '{' || text[end - 1] != '}')
        return ERR(e, E_INPUT, "%s: the header is not a JSON object padded with spaces alone (it must begin with '{' and end with '}')",
                   f->path);
    struct jdoc d = {0};
    if (jdoc_parse(&d, f->path, text, end, e) != 0)
        return err_wrap(e, "safetensors header");
    const uint8_t *data = p + 8 + (size_t)n;
    int rc = read_header(f, &d, data, len - 8 - (size_t)n, e);
    jdoc_free(&d);
    return rc;
}

int st_open_mem(struct st_file *f, const char *name, const void *p, size_t len, struct err *e)
{
    *f = (struct st_file){0};
    snprintf(f->path, sizeof f->path, "%s", name);
    f->map = (struct file_map){p, len, false};
    arena_init(&f->mem, 0);
    if (open_bytes(f, p, len, e) != 0) {
        st_close(f);
        return -1;
    }
    return 0;
}

int st_open(struct st_file *f, const char *path, struct err *e)
{
    struct file_map m;
    *f = (struct st_file){0};
    TRY(map_open(&m, path, e));
    if (st_open_mem(f, path, m.p, m.len, e) != 0) {
        map_close(&m);
        return -1;
    }
    f->map = m;
    f->owns_map = true;
    return 0;
}

void st_close(struct st_file *f)
{
    if (f->owns_map)
        map_close(&f->map);
    arena_free(&f->mem);
    *f = (struct st_file){0};
}

const struct st_tensor *st_find(const struct st_file *f, const char *name)
{
    struct st_tensor probe = {.name = name}, *key = &probe;
    const struct st_tensor *const *hit = f->n ? bsearch(&key, f->by_name, f->n, sizeof *f->by_name, by_name) : NULL;
    return hit ? *hit : NULL;
}

const char *st_meta(const struct st_file *f, const char *key)
{
    for (size_t i = 0; i < f->n_meta; i++)
        if (strcmp(f->meta[2 * i], key) == 0)
            return f->meta[2 * i + 1];
    return NULL;
}

/* ---- shards ---- */

static int cmp_str(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A shard is named by a plain file name: no folder, no way out of the index' own folder. */
static bool plain_name(const char *s)
{
    return *s && strlen(s) < 256 && !strchr(s, '/') && !strchr(s, '\\') && strcmp(s, ".") != 0 && strcmp(s, "..") != 0;
}

static int index_map(const struct jdoc *d, struct arena *mem, const json_t **map, const char ***files, size_t *n_files, struct err *e)
{
    if (!json_is_object(d->root))
        return ERR(e, E_INPUT, "%s: not a JSON object", d->file);
    TRY(jget_obj(d, d->root, "", "weight_map", map, e));
    const char **v = arena_array(mem, json_object_size(*map) + 1, sizeof *v);
    if (!v)
        return arena_ok(mem, "shard index", e);
    size_t n = 0;
    const char *key;
    json_t *x;
    json_object_foreach((json_t *)*map, key, x)
    {
        const char *s = json_string_value(x);
        if (!s)
            return ERR(e, E_INPUT, "%s: weight_map '%.200s': expected a file name", d->file, key);
        if (!plain_name(s))
            return ERR(e, E_INPUT, "%s: weight_map '%.200s': '%.200s' is not a plain file name in the folder of the index", d->file, key,
                       s);
        v[n++] = arena_strdup(mem, s);
    }
    if (!n)
        return ERR(e, E_INPUT, "%s: weight_map is empty", d->file);
    TRY(arena_ok(mem, "shard index", e));
    qsort(v, n, sizeof *v, cmp_str);
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (!m || strcmp(v[m - 1], v[i]) != 0)
            v[m++] = v[i];
    *files = v;
    *n_files = m;
    return 0;
}

int st_index_parse(const char *name, const char *text, size_t len, struct arena *mem, const char ***files, size_t *n_files, struct err *e)
{
    struct jdoc d = {0};
    const json_t *map;
    TRY(jdoc_parse(&d, name, text, len, e));
    int rc = index_map(&d, mem, &map, files, n_files, e);
    jdoc_free(&d);
    return rc;
}

static int check_shards(const struct st_shards *s, const struct jdoc *d, const json_t *map, struct err *e)
{
    size_t total = 0;
    const char *key;
    json_t *x;
    json_object_foreach((json_t *)map, key, x)
    {
        const struct st_tensor *t = NULL;
        for (size_t i = 0; i < s->n_file; i++)
            if (strcmp(path_base(s->file[i].path), json_string_value(x)) == 0)
                t = st_find(&s->file[i], key);
        if (!t)
            return ERR(e, E_INPUT, "%s: weight_map says tensor '%.200s' is in '%s', which has no such tensor", d->file, key,
                       json_string_value(x));
    }
    for (size_t i = 0; i < s->n_file; i++) {
        total += s->file[i].n;
        for (size_t j = 0; j < s->file[i].n; j++) {
            const char *name = s->file[i].t[j].name;
            const json_t *to = json_object_get(map, name);
            if (!to || strcmp(json_string_value(to), path_base(s->file[i].path)) != 0)
                return ERR(e, E_INPUT, "%s: tensor '%.200s' of '%s' is %s", d->file, name, path_base(s->file[i].path),
                           to ? "mapped to another file" : "not in weight_map");
        }
    }
    if (total != json_object_size(map))
        return ERR(e, E_INPUT, "%s: weight_map has %zu tensors, the files have %zu", d->file, json_object_size(map), total);
    return 0;
}

static int open_shards(struct st_shards *s, const struct jdoc *d, const char *index_path, struct err *e)
{
    const json_t *map;
    const char **files;
    size_t n;
    TRY(index_map(d, &s->mem, &map, &files, &n, e));
    s->file = arena_array(&s->mem, n, sizeof *s->file);
    if (!s->file)
        return arena_ok(&s->mem, "shard index", e);
    char dir[1024], path[1024];
    size_t dl = (size_t)(path_base(index_path) - index_path);
    if (dl + 256 >= sizeof dir)
        return ERR(e, E_INPUT, "%s: the path is too long (limit %zu)", d->file, sizeof dir - 256);
    memcpy(dir, index_path, dl);
    dir[dl] = '\0';
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s%s", dir, files[i]);
        if (st_open(&s->file[i], path, e) != 0)
            return err_wrap(e, "%s: shard %zu of %zu", d->file, i + 1, n);
        s->n_file++;
    }
    return check_shards(s, d, map, e);
}

int st_shards_open(struct st_shards *s, const char *index_path, struct err *e)
{
    struct jdoc d = {0};
    *s = (struct st_shards){0};
    TRY(jdoc_load(&d, index_path, ST_MAX_HEADER_BYTES, e));
    arena_init(&s->mem, 0);
    int rc = open_shards(s, &d, index_path, e);
    jdoc_free(&d);
    if (rc != 0)
        st_shards_close(s);
    return rc;
}

void st_shards_close(struct st_shards *s)
{
    for (size_t i = 0; i < s->n_file; i++)
        st_close(&s->file[i]);
    arena_free(&s->mem);
    *s = (struct st_shards){0};
}
