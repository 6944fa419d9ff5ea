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
    double x;
    int64_t i;
    const char *s;
    bool flag;
    const json_t *o;
    if (json_is_object(d.root)) {
        const char *key;
        json_t *item;
        json_object_foreach(d.root, key, item)
        {
            (void)jget_f64_opt(&d, d.root, "", key, &x, &e);
            (void)jget_i64_opt(&d, d.root, "", key, -5, 5, &i, &e);
            (void)jget_str_opt(&d, d.root, "", key, &s, &e);
            (void)jget_bool_opt(&d, d.root, "", key, &flag, &e);
            (void)jget_obj(&d, d.root, "", key, &o, &e);
            (void)jget_arr(&d, d.root, "", key, &o, &e);
        }
    }
    jdoc_free(&d);
    return 0;
}
