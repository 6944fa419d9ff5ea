/* Writer of safetensors files: layout is fixed by the declarations, so headers go out first and the values stream through a small buffer. */
#include <stdlib.h>
#include <string.h>

#include "core/jwrite.h"
#include "model/st.h"

#define MAX_SHARDS 500 /* all are open at once until commit */

struct entry {
    const char *name;
    enum st_dtype dtype;
    int ndim;
    int64_t shape[ST_MAX_NDIM];
    size_t bytes, begin;
    int shard;
};
struct st_out {
    struct arena mem;
    char path[1024]; /* file, or folder */
    bool dir;
    size_t shard_bytes;
    struct entry **ent;
    size_t n, cap;
    const char **meta;
    size_t n_meta, cap_meta;
    struct file_out *out;
    int n_shards, n_open;
    size_t at;   /* entry whose turn it is */
    size_t done; /* bytes of it written */
    bool begun;
};

/* ---- number formats ---- */

static float f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static uint32_t bits_of_f32(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

uint16_t f32_to_f16(float x)
{
    uint32_t u = bits_of_f32(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x1ffu));
    if (a >= 0x47800000u) /* 65536 and above, infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: multiples of 2^-24. Adding 0.5 makes the float adder round to that grid, to nearest even */
        float r = f32_of_bits(a) + 0.5f;
        return (uint16_t)(sign | (bits_of_f32(r) - 0x3f000000u));
    }
    uint32_t r = a - 0x38000000u;
    r = (r + 0xfffu + (r >> 13 & 1u)) >> 13; /* a carry into the exponent is right, up to infinity */
    return (uint16_t)(sign | r);
}

uint16_t f32_to_bf16(float x)
{
    uint32_t u = bits_of_f32(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

void st_from_f32(enum st_dtype t, const float *src, int64_t n, uint8_t *dst)
{
    if (n <= 0)
        return;
    if (t == ST_F32) {
        memcpy(dst, src, (size_t)n * 4);
        return;
    }
    if (t != ST_F16 && t != ST_BF16)
        BUG("float32 values cannot be written as %s", st_dtype_name(t));
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = t == ST_F16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
        memcpy(dst + 2 * (size_t)i, &h, 2);
    }
}

/* ---- files ---- */

static int open_any(struct st_out **out, const char *path, bool dir, size_t shard_bytes, struct err *e)
{
    if (strlen(path) > 900)
        return ERR(e, E_USAGE, "'%.60s...': the path is too long (limit 900)", path);
    struct st_out *o = calloc(1, sizeof *o);
    if (!o)
        return err_nomem(e, sizeof *o, "safetensors writer");
    arena_init(&o->mem, 0);
    snprintf(o->path, sizeof o->path, "%s", path);
    o->dir = dir;
    o->shard_bytes = shard_bytes;
    *out = o;
    return 0;
}

int st_out_open(struct st_out **out, const char *path, struct err *e)
{
    return open_any(out, path, false, 0, e);
}

int st_out_open_dir(struct st_out **out, const char *dir, size_t shard_bytes, struct err *e)
{
    TRY(mkdir_p(dir, e));
    return open_any(out, dir, true, shard_bytes, e);
}

/* Room for one more pointer; old arrays stay in the arena (sizes double, so at most twice the memory). */
static void *grown(struct arena *a, void *old, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return old;
    size_t want = *cap ? 2 * *cap : 64;
    void *p = arena_array(a, want, size);
    if (p && n)
        memcpy(p, old, n * size);
    if (p)
        *cap = want;
    return p;
}

int st_out_meta(struct st_out *o, const char *key, const char *value, struct err *e)
{
    if (o->begun)
        BUG("metadata after begin");
    const char **v = grown(&o->mem, o->meta, o->n_meta, &o->cap_meta, 2 * sizeof *o->meta);
    if (!v)
        return arena_ok(&o->mem, "safetensors writer", e);
    o->meta = v;
    v[2 * o->n_meta] = arena_strdup(&o->mem, key);
    v[2 * o->n_meta + 1] = arena_strdup(&o->mem, value);
    o->n_meta++;
    return arena_ok(&o->mem, "safetensors writer", e);
}

int st_out_declare(struct st_out *o, const char *name, enum st_dtype t, int ndim, const int64_t *shape, struct err *e)
{
    if (o->begun || ndim < 0 || ndim > ST_MAX_NDIM || strcmp(name, "__metadata__") == 0)
        BUG("declaration of '%s' with %d dimensions", name, ndim);
    for (size_t i = 0; i < o->n; i++)
        if (strcmp(o->ent[i]->name, name) == 0)
            BUG("tensor '%s' declared twice", name);
    struct entry **v = grown(&o->mem, o->ent, o->n, &o->cap, sizeof *o->ent);
    struct entry *x = arena_alloc(&o->mem, sizeof *x);
    if (!v || !x)
        return arena_ok(&o->mem, "safetensors writer", e);
    o->ent = v;
    x->name = arena_strdup(&o->mem, name);
    x->dtype = t;
    x->ndim = ndim;
    int64_t n = 1;
    bool fits = true;
    for (int i = 0; i < ndim; i++) {
        x->shape[i] = shape[i];
        fits = fits && shape[i] >= 0 && mul_i64(n, shape[i], &n);
    }
    if (!fits || !mul_size((size_t)n, st_dtype_bytes(t), &x->bytes))
        return ERR(e, E_USAGE, "tensor '%s': its size does not fit in 63 bits", name);
    v[o->n++] = x;
    return arena_ok(&o->mem, "safetensors writer", e);
}

static void shard_path(const struct st_out *o, int k, char dst[1024])
{
    char name[64];
    snprintf(name, sizeof name, o->n_shards == 1 ? "model.safetensors" : "model-%05d-of-%05d.safetensors", k + 1, o->n_shards);
    if (o->dir)
        path_join(dst, o->path, name);
    else
        snprintf(dst, 1024, "%s", o->path);
}

static int write_header(struct st_out *o, int shard, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    jw_init(&w, &s, false);
    jw_obj(&w);
    jw_key(&w, "__metadata__");
    jw_obj(&w);
    if (!o->n_meta)
        jw_kstr(&w, "format", "pt");
    for (size_t i = 0; i < o->n_meta; i++)
        jw_kstr(&w, o->meta[2 * i], o->meta[2 * i + 1]);
    jw_end_obj(&w);
    for (size_t i = 0; i < o->n; i++) {
        const struct entry *x = o->ent[i];
        if (x->shard != shard)
            continue;
        jw_key(&w, x->name);
        jw_obj(&w);
        jw_kstr(&w, "dtype", st_dtype_name(x->dtype));
        jw_key(&w, "shape");
        jw_arr(&w);
        for (int k = 0; k < x->ndim; k++)
            jw_i64(&w, x->shape[k]);
        jw_end_arr(&w);
        jw_key(&w, "data_offsets");
        jw_arr(&w);
        jw_i64(&w, (int64_t)x->begin);
        jw_i64(&w, (int64_t)(x->begin + x->bytes));
        jw_end_arr(&w);
        jw_end_obj(&w);
    }
    jw_end_obj(&w);
    while (s.len % 8 && !s.failed)
        str_putc(&s, ' ');
    int rc = str_ok(&s, "safetensors header", e);
    if (rc == 0) {
        uint8_t len[8];
        for (int i = 0; i < 8; i++)
            len[i] = (uint8_t)((uint64_t)s.len >> (8 * i));
        out_write(&o->out[shard], len, 8);
        out_write(&o->out[shard], s.p, s.len);
    }
    str_free(&s);
    return rc;
}

int st_out_begin(struct st_out *o, struct err *e)
{
    if (o->begun)
        BUG("begin twice");
    size_t at = 0;
    int shard = 0;
    for (size_t i = 0; i < o->n; i++) {
        struct entry *x = o->ent[i];
        if (o->shard_bytes && at && x->bytes > o->shard_bytes - MIN(at, o->shard_bytes)) {
            shard++;
            at = 0;
        }
        x->shard = shard;
        x->begin = at;
        at += x->bytes;
    }
    o->n_shards = shard + 1;
    if (o->n_shards > MAX_SHARDS)
        return ERR(e, E_USAGE, "%s: %d shards (limit %d); take larger ones than %zu bytes", o->path, o->n_shards, MAX_SHARDS,
                   o->shard_bytes);
    o->out = arena_array(&o->mem, (size_t)o->n_shards, sizeof *o->out);
    if (!o->out)
        return arena_ok(&o->mem, "safetensors writer", e);
    for (int k = 0; k < o->n_shards; k++) {
        char path[1024];
        shard_path(o, k, path);
        TRY(out_open(&o->out[k], path, e));
        o->n_open++;
        TRY(write_header(o, k, e));
    }
    o->begun = true;
    return 0;
}

static void skip_done(struct st_out *o)
{
    while (o->at < o->n && o->done == o->ent[o->at]->bytes) {
        o->at++;
        o->done = 0;
    }
}

int st_out_raw(struct st_out *o, const char *name, const void *p, size_t n_bytes, struct err *e)
{
    UNUSED(e); /* write errors are sticky in the file and reported by commit */
    if (!o->begun)
        BUG("values before begin");
    if (!n_bytes)
        return 0;
    skip_done(o);
    if (o->at >= o->n || strcmp(o->ent[o->at]->name, name) != 0)
        BUG("values of '%s', but it is the turn of '%s'", name, o->at < o->n ? o->ent[o->at]->name : "none");
    struct entry *x = o->ent[o->at];
    if (n_bytes > x->bytes - o->done || n_bytes % st_dtype_bytes(x->dtype))
        BUG("tensor '%s': %zu bytes after %zu of %zu", name, n_bytes, o->done, x->bytes);
    out_write(&o->out[x->shard], p, n_bytes);
    o->done += n_bytes;
    return 0;
}

int st_out_f32(struct st_out *o, const char *name, const float *v, int64_t n, struct err *e)
{
    uint8_t buf[16384];
    if (n <= 0)
        return 0;
    skip_done(o);
    if (o->at >= o->n)
        BUG("values of '%s' after the last tensor", name);
    enum st_dtype t = o->ent[o->at]->dtype;
    const int64_t step = (int64_t)(sizeof buf / 4);
    for (int64_t i = 0; i < n; i += step) {
        int64_t m = MIN(step, n - i);
        st_from_f32(t, v + i, m, buf);
        TRY(st_out_raw(o, name, buf, (size_t)m * st_dtype_bytes(t), e));
    }
    return 0;
}

static int write_index(const struct st_out *o, struct err *e)
{
    struct str s = STR_INIT;
    struct jw w;
    size_t total = 0;
    for (size_t i = 0; i < o->n; i++)
        total += o->ent[i]->bytes;
    jw_init(&w, &s, true);
    jw_obj(&w);
    jw_key(&w, "metadata");
    jw_obj(&w);
    jw_ki64(&w, "total_size", (int64_t)total);
    jw_end_obj(&w);
    jw_key(&w, "weight_map");
    jw_obj(&w);
    for (size_t i = 0; i < o->n; i++) {
        char path[1024];
        shard_path(o, o->ent[i]->shard, path);
        jw_kstr(&w, o->ent[i]->name, path_base(path));
    }
    jw_end_obj(&w);
    jw_end_obj(&w);
    str_putc(&s, '\n');
    char path[1024];
    path_join(path, o->path, "model.safetensors.index.json");
    int rc = str_ok(&s, "shard index", e);
    if (rc == 0)
        rc = file_write(path, s.p, s.len, e);
    str_free(&s);
    return rc;
}

int st_out_commit(struct st_out *o, struct err *e)
{
    int rc = 0;
    skip_done(o);
    if (!o->begun || o->at != o->n)
        BUG("commit, but tensor '%s' is not complete", o->at < o->n ? o->ent[o->at]->name : "none");
    for (int k = 0; k < o->n_shards && rc == 0; k++) {
        rc = out_commit(&o->out[k], e);
        o->n_open--; /* commit closes it either way */
    }
    if (rc == 0 && o->n_shards > 1)
        rc = write_index(o, e);
    for (int k = o->n_shards - o->n_open; k < o->n_shards; k++)
        out_abort(&o->out[k]);
    arena_free(&o->mem);
    free(o);
    return rc;
}

void st_out_abort(struct st_out *o)
{
    if (!o)
        return;
    for (int k = 0; k < o->n_open; k++)
        out_abort(&o->out[k]);
    arena_free(&o->mem);
    free(o);
}
