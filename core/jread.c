#include "core/jread.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"

enum { MAX_DEPTH = 64 };
/* What a text may grow to as a tree: "{}," costs jansson a hundred times its length. */
#define MAX_TREE_BYTES ((size_t)2 << 30)

/*
 * jansson overlooks some failed allocations: it then calls good text invalid, or even drops characters from a string (its scanner ignores a
 * buffer that cannot grow). So its allocator is ours, and a failure during a parse makes the parse fail.
 */
static _Thread_local bool out_of_memory;

static void *note_malloc(size_t n)
{
    void *p = malloc(n);
    if (!p)
        out_of_memory = true;
    return p;
}

static void set_allocator(void)
{
    json_set_alloc_funcs(note_malloc, free);
}

static const char *kind_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number with a fraction or exponent";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    BUG("json type %d", (int)json_typeof(v));
}

static void set_name(struct jdoc *d, const char *name)
{
    size_t n = strlen(name), cap = sizeof d->file;
    if (n < cap)
        memcpy(d->file, name, n + 1);
    else
        snprintf(d->file, cap, "...%s", name + n - (cap - 4)); /* the end of a path says more than its start */
}

/*
 * One pass before jansson sees the text: nesting depth and an upper estimate of the tree's memory, so that a hostile text can neither
 * recurse deeply nor fill the memory. It does not judge the syntax.
 */
static int prescan(const struct jdoc *d, const char *text, size_t n, struct err *e)
{
    size_t bytes = n, line = 1, col = 1;
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\' && i + 1 < n) {
                i++;
                col++;
            } else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
            bytes += 96;
        } else if (c == '{' || c == '[') {
            bytes += c == '{' ? 320 : 160;
            if (++depth > MAX_DEPTH)
                return ERR(e, E_INPUT, "%s:%zu:%zu: nested more than %d levels deep", d->file, line, col, MAX_DEPTH);
        } else if (c == '}' || c == ']')
            depth -= depth > 0;
        else if (c == ',')
            bytes += 48;
        if (text[i] == '\n') {
            line++;
            col = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80)
            col++;
        if (bytes > MAX_TREE_BYTES)
            return ERR(e, E_INPUT, "%s:%zu:%zu: needs more than %zu MiB as a tree", d->file, line, col, MAX_TREE_BYTES >> 20);
    }
    return 0;
}

int jdoc_parse(struct jdoc *d, const char *name, const char *text, size_t n, struct err *e)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    json_error_t je;
    pthread_once(&once, set_allocator);
    d->root = NULL;
    set_name(d, name);
    if (n == 0)
        return ERR(e, E_INPUT, "%s:1:1: is empty; expected JSON", d->file);
    TRY(prescan(d, text, n, e));
    out_of_memory = false;
    d->root = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (out_of_memory) {
        jdoc_free(d);
        return err_nomem(e, 0, d->file);
    }
    if (d->root)
        return 0;
    /* jansson quotes the text near the error: keep control bytes off the terminal. */
    for (char *p = je.text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    return ERR(e, E_INPUT, "%s:%d:%d: %s", d->file, MAX(je.line, 1), MAX(je.column, 1), je.text);
}

int jdoc_load(struct jdoc *d, const char *path, size_t max_bytes, struct err *e)
{
    struct str s = STR_INIT;
    d->root = NULL;
    int rc = file_read(path, max_bytes, &s, e);
    if (rc == 0)
        rc = jdoc_parse(d, path, str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

void jdoc_free(struct jdoc *d)
{
    json_decref(d->root);
    d->root = NULL;
}

static int bad(const struct jdoc *d, const char *where, const char *key, struct err *e, const char *fmt, ...) PRINTF_LIKE(5, 6);
static int bad(const struct jdoc *d, const char *where, const char *key, struct err *e, const char *fmt, ...)
{
    char why[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return ERR(e, E_INPUT, "%s: %s%s%s: %s", d->file, where, *where ? "." : "", key, why);
}

/* The value of key, or NULL when it is absent or null and that is allowed (`want` NULL). */
static int lookup(const struct jdoc *d, const json_t *obj, const char *where, const char *key, const char *want, const json_t **v,
                  struct err *e)
{
    *v = NULL;
    if (!json_is_object(obj))
        return ERR(e, E_INPUT, "%s: %s: expected an object, found %s", d->file, *where ? where : "top level",
                   obj ? kind_name(obj) : "nothing");
    *v = json_object_get(obj, key);
    if (json_is_null(*v) && !want)
        *v = NULL;
    if (!*v && want)
        return bad(d, where, key, e, "missing; expected %s", want);
    return 0;
}

static int as_i64(const struct jdoc *d, const json_t *v, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *out,
                  struct err *e)
{
    if (!json_is_integer(v))
        return bad(d, where, key, e, "expected an integer, found %s", kind_name(v));
    json_int_t x = json_integer_value(v);
    if (x < lo || x > hi)
        return bad(d, where, key, e, "%" JSON_INTEGER_FORMAT " is out of range %" PRId64 " to %" PRId64, x, lo, hi);
    *out = x;
    return 0;
}

static int as_f64(const struct jdoc *d, const json_t *v, const char *where, const char *key, double *out, struct err *e)
{
    if (!json_is_number(v))
        return bad(d, where, key, e, "expected a number, found %s", kind_name(v));
    *out = json_number_value(v);
    return 0;
}

static int as_str(const struct jdoc *d, const json_t *v, const char *where, const char *key, const char **out, struct err *e)
{
    if (!json_is_string(v))
        return bad(d, where, key, e, "expected a string, found %s", kind_name(v));
    *out = json_string_value(v);
    return 0;
}

int jget_i64(const struct jdoc *d, const json_t *obj, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *out,
             struct err *e)
{
    const json_t *v;
    TRY(lookup(d, obj, where, key, "an integer", &v, e));
    return as_i64(d, v, where, key, lo, hi, out, e);
}

int jget_i64_opt(const struct jdoc *d, const json_t *obj, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *out,
                 struct err *e)
{
    const json_t *v;
    TRY(lookup(d, obj, where, key, NULL, &v, e));
    return v ? as_i64(d, v, where, key, lo, hi, out, e) : 0;
}

int jget_f64(const struct jdoc *d, const json_t *obj, const char *where, const char *key, double *out, struct err *e)
{
    const json_t *v;
    TRY(lookup(d, obj, where, key, "a number", &v, e));
    return as_f64(d, v, where, key, out, e);
}

int jget_f64_opt(const struct jdoc *d, const json_t *obj, const char *where, const char *key, double *out, struct err *e)
{
    const json_t *v;
    TRY(lookup(d, obj, where, key, NULL, &v, e));
    return v ? as_f64(d, v, where, key, out, e) : 0;
}

int jget_bool_opt(const struct jdoc *d, const json_t *obj, const char *where, const char *key, bool *out, struct err *e)
{
    const json_t *v;
    TRY(lookup(d, obj, where, key, NULL, &v, e));
    if (v && !json_is_boolean(v))
        return bad(d, where, key, e, "expected true or false, found %s", kind_name(v));
    if (v)
        *out = json_is_true(v);
    return 0;
}

int jget_str(const struct jdoc *d, const json_t *obj, const char *where, const char *key, const char **out, struct err *e)
{
    const json_t *v;
    TRY(lookup(d, obj, where, key, "a string", &v, e));
    return as_str(d, v, where, key, out, e);
}

int jget_str_opt(const struct jdoc *d, const json_t *obj, const char *where, const char *key, const char **out, struct err *e)
{
    const json_t *v;
    TRY(lookup(d, obj, where, key, NULL, &v, e));
    return v ? as_str(d, v, where, key, out, e) : 0;
}

int jget_obj(const struct jdoc *d, const json_t *obj, const char *where, const char *key, const json_t **out, struct err *e)
{
    const json_t *v;
    TRY(lookup(d, obj, where, key, "an object", &v, e));
    if (!json_is_object(v))
        return bad(d, where, key, e, "expected an object, found %s", kind_name(v));
    *out = v;
    return 0;
}

int jget_arr(const struct jdoc *d, const json_t *obj, const char *where, const char *key, const json_t **out, struct err *e)
{
    const json_t *v;
    TRY(lookup(d, obj, where, key, "an array", &v, e));
    if (!json_is_array(v))
        return bad(d, where, key, e, "expected an array, found %s", kind_name(v));
    *out = v;
    return 0;
}
