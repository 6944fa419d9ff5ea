/* Any bytes as JSON: no crash; what was read is written and read again to the same tree and the same bytes, in all four styles. */
#include <stdlib.h>
#include <string.h>

#include "core/jread.h"
#include "core/jwrite.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void write_tree(struct jw *w, json_t *v)
{
    size_t i;
    json_t *item;
    const char *key;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        jw_obj(w);
        json_object_foreach(v, key, item)
        {
            jw_key(w, key);
            write_tree(w, item);
        }
        jw_end_obj(w);
        break;
    case JSON_ARRAY:
        jw_arr(w);
        json_array_foreach(v, i, item) write_tree(w, item);
        jw_end_arr(w);
        break;
    case JSON_STRING:
        jw_strn(w, json_string_value(v), json_string_length(v));
        break;
    case JSON_INTEGER:
        jw_i64(w, json_integer_value(v));
        break;
    case JSON_REAL:
        jw_f64(w, json_real_value(v));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        jw_bool(w, json_is_true(v));
        break;
    case JSON_NULL:
        jw_null(w);
        break;
    }
}

/* The getter that demands a key and the one that does not agree on every value but null, and tell absent keys apart. */
static void getters(const struct jdoc *d)
{
    const char *key, *s = NULL, *s2 = NULL;
    json_t *item;
    double x = 0, x2 = 0;
    int64_t i = 0, i2 = 0;
    bool flag = false;
    const json_t *o = NULL;
    struct err e = ERR_INIT;
    json_object_foreach(d->root, key, item)
    {
        bool null = json_is_null(item);
        int a = jget_f64(d, d->root, "", key, &x, &e), b = jget_f64_opt(d, d->root, "", key, &x2, &e);
        if (null ? a == 0 || b != 0 : a != b || (a == 0 && x != x2))
            abort();
        a = jget_i64(d, d->root, "at", key, -5, 5, &i, &e);
        b = jget_i64_opt(d, d->root, "at", key, -5, 5, &i2, &e);
        if (null ? a == 0 || b != 0 : a != b || (a == 0 && (i != i2 || i < -5 || i > 5)))
            abort();
        a = jget_str(d, d->root, "", key, &s, &e);
        b = jget_str_opt(d, d->root, "", key, &s2, &e);
        if (null ? a == 0 || b != 0 : a != b || (a == 0 && s != s2))
            abort();
        if ((jget_bool_opt(d, d->root, "", key, &flag, &e) == 0) != (null || json_is_boolean(item)))
            abort();
        if ((jget_obj(d, d->root, "", key, &o, &e) == 0) != json_is_object(item) || (jget_arr(d, d->root, "", key, &o, &e) == 0) != json_is_array(item))
            abort();
    }
    if (jget_str(d, d->root, "", "no such key \n", &s, &e) == 0 || jget_i64(d, json_object_get(d->root, "a"), "a", "no such key \n", 0, 1, &i, &e) == 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct jdoc d, again;
    struct err e = ERR_INIT;
    if (jdoc_parse(&d, "fuzz.json", (const char *)p, n, &e) != 0) {
        if (e.code == E_OK || e.msg[0] == 0 || d.root)
            abort();
        return 0;
    }
    for (int style = 0; style < 4; style++) {
        struct str a = STR_INIT, b = STR_INIT;
        struct jw w;
        jw_init(&w, &a, style & 1);
        w.ascii = style & 2;
        write_tree(&w, d.root);
        if (jw_ok(&w, "tree", &e) != 0 || jdoc_parse(&again, "again.json", str_c(&a), a.len, &e) != 0 || !json_equal(d.root, again.root))
            abort();
        jw_init(&w, &b, style & 1);
        w.ascii = style & 2;
        write_tree(&w, again.root);
        if (a.len != b.len || memcmp(a.p, b.p, a.len) != 0)
            abort();
        jdoc_free(&again);
        str_free(&a);
        str_free(&b);
    }
    if (json_is_object(d.root))
        getters(&d);
    jdoc_free(&d);
    return 0;
}
