#include "cli/ids.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/jread.h"
#include "model/st.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n > k && !strcmp(s + n - k, end);
}

int text_read(const char *path, struct str *out, struct err *e)
{
    if (strcmp(path, "-") != 0)
        return file_read(path, 0, out, e);
    char buf[65536];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, stdin)) > 0)
        str_add(out, buf, n);
    if (ferror(stdin))
        return err_sys(e, "read", "standard input");
    return str_ok(out, "standard input", e);
}

static int ids_binary(const char *path, size_t size, struct tok_ids *out, struct err *e)
{
    struct file_map m;
    TRY(map_open(&m, path, e));
    int rc = m.len % size ? ERR(e, E_INPUT, "'%s' has %zu bytes, not a multiple of %zu", path, m.len, size) : 0;
    for (size_t i = 0; i + size <= m.len && rc == 0; i += size) {
        uint32_t v = (uint32_t)m.p[i] | (uint32_t)m.p[i + 1] << 8;
        if (size == 4)
            v |= (uint32_t)m.p[i + 2] << 16 | (uint32_t)m.p[i + 3] << 24;
        rc = tok_ids_add(out, (int32_t)v, e);
    }
    map_close(&m);
    return rc;
}

static int ids_tensor(const char *path, struct tok_ids *out, struct err *e)
{
    struct st_file f;
    TRY(st_open(&f, path, e));
    const struct st_tensor *t = st_find(&f, "input_ids");
    int rc = t && (t->dtype == ST_I32 || t->dtype == ST_I64) ? 0 : ERR(e, E_INPUT, "'%s' has no integer tensor 'input_ids'", path);
    for (int64_t i = 0; rc == 0 && i < t->n; i++) {
        int32_t v;
        memcpy(&v, t->data + (size_t)i * st_dtype_bytes(t->dtype), 4); /* the low half of an I64 */
        rc = tok_ids_add(out, v, e);
    }
    st_close(&f);
    return rc;
}

static int ids_json(const char *name, const struct str *s, struct tok_ids *out, struct err *e)
{
    struct jdoc d;
    TRY(jdoc_parse(&d, name, str_c(s), s->len, e));
    const json_t *a = json_is_object(d.root) ? json_object_get(d.root, "ids") : d.root;
    int rc = json_is_array(a) ? 0 : ERR(e, E_INPUT, "%s: neither an array of ids nor an object with \"ids\"", name);
    for (size_t i = 0; rc == 0 && i < json_array_size(a); i++) {
        const json_t *v = json_array_get(a, i);
        json_int_t x = json_integer_value(v);
        if (!json_is_integer(v) || x < 0 || x > INT32_MAX)
            rc = ERR(e, E_INPUT, "%s: entry %zu is not a token id", name, i);
        else
            rc = tok_ids_add(out, (int32_t)x, e);
    }
    jdoc_free(&d);
    return rc;
}

static int ids_words(const char *name, const struct str *s, struct tok_ids *out, struct err *e)
{
    const char *p = str_c(s), *end = p + s->len;
    while (p < end) {
        if (*p == ' ' || *p == ',' || *p == '\n' || *p == '\r' || *p == '\t') {
            p++;
            continue;
        }
        char *after;
        long v = strtol(p, &after, 10);
        if (after == p || v < 0 || v > INT32_MAX)
            return ERR(e, E_INPUT, "%s: byte %td: '%.*s' is not a token id", name, p - str_c(s), (int)MIN(end - p, 20), p);
        TRY(tok_ids_add(out, (int32_t)v, e));
        p = after;
    }
    return 0;
}

int ids_parse(const char *name, const char *text, struct tok_ids *out, struct err *e)
{
    const char *p = text;
    while (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')
        p++;
    struct str s = STR_INIT;
    str_puts(&s, text);
    int rc = str_ok(&s, name, e);
    if (rc == 0)
        rc = *p == '[' || *p == '{' ? ids_json(name, &s, out, e) : ids_words(name, &s, out, e);
    str_free(&s);
    return rc;
}

int ids_read(const char *path, struct tok_ids *out, struct err *e)
{
    if (ends_with(path, ".u16"))
        return ids_binary(path, 2, out, e);
    if (ends_with(path, ".i32"))
        return ids_binary(path, 4, out, e);
    if (ends_with(path, ".safetensors"))
        return ids_tensor(path, out, e);
    struct str s = STR_INIT;
    int rc = text_read(path, &s, e);
    if (rc == 0)
        rc = ids_parse(path, str_c(&s), out, e);
    str_free(&s);
    return rc;
}

int ids_from(const struct tok *t, const char *text, const char *file, const char *ids, bool special, struct tok_ids *out, struct err *e)
{
    int given = (text != NULL) + (file != NULL) + (ids != NULL);
    if (given != 1)
        return ERR(e, E_USAGE, "give one of a text (--text or --prompt), --file and --ids (%d given)", given);
    if (ids)
        return ids_read(ids, out, e);
    if (!t)
        return ERR(e, E_USAGE, "a text needs a tokenizer; give --tokenizer or ids");
    struct str s = STR_INIT;
    const int32_t *fix;
    int rc = 0;
    if (file)
        rc = text_read(file, &s, e);
    else
        str_puts(&s, text);
    size_t n = tok_prefix(t, &fix);
    for (size_t i = 0; i < n && special && rc == 0; i++)
        rc = tok_ids_add(out, fix[i], e);
    if (rc == 0)
        rc = tok_encode(t, str_c(&s), s.len, true, out, e);
    n = tok_suffix(t, &fix);
    for (size_t i = 0; i < n && special && rc == 0; i++)
        rc = tok_ids_add(out, fix[i], e);
    str_free(&s);
    return rc == 0 || !file ? rc : err_wrap(e, "%s", file);
}

void print_str(const struct str *s)
{
    fwrite(str_c(s), 1, s->len, stdout);
}
