#include "ruler/text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <zstd.h>

#include "core/fs.h"

bool py_isspace(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

void squeeze(struct str *out, const char *p, size_t n)
{
    bool in_space = false;
    for (size_t i = 0; i < n;) {
        int len;
        bool bad = false;
        size_t run = i;
        while (run < n && p[run] > ' ' && p[run] <= '~')
            run++;
        if (run > i) {
            str_add(out, p + i, run - i);
            in_space = false;
            i = run;
            continue;
        }
        uint32_t cp = utf8_next(p + i, n - i, &len, &bad);
        bool sp = py_isspace(cp);
        if (sp && !in_space)
            str_putc(out, ' ');
        else if (!sp)
            str_add(out, p + i, (size_t)len);
        in_space = sp;
        i += (size_t)len;
    }
}

void flatten(struct str *out, const char *p, size_t n)
{
    struct str s = STR_INIT;
    squeeze(&s, p, n);
    size_t a = 0, b = s.len;
    if (b && s.p[0] == ' ')
        a++;
    if (b > a && s.p[b - 1] == ' ')
        b--;
    str_add(out, str_c(&s) + a, b - a);
    out->failed |= s.failed;
    str_free(&s);
}

void py_strip(const char **p, size_t *n)
{
    const char *s = *p;
    size_t a = 0, b = *n;
    int len;
    bool bad = false;
    while (a < b && py_isspace(utf8_next(s + a, b - a, &len, &bad)))
        a += (size_t)len;
    while (b > a) {
        size_t k = b - 1;
        while (k > a && ((unsigned char)s[k] & 0xc0) == 0x80)
            k--;
        if (!py_isspace(utf8_next(s + k, b - k, &len, &bad)))
            break;
        b = k;
    }
    *p = s + a;
    *n = b - a;
}

static bool py_isprintable(uint32_t cp)
{
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return cp == ' ';
    default:
        return true;
    }
}

static void py_repr(struct str *out, const char *p)
{
    static const char plain[] = "\\\n\r\t", code[] = "\\nrt";
    size_t n = strlen(p);
    char quote = strchr(p, '\'') && !strchr(p, '"') ? '"' : '\'';
    str_putc(out, quote);
    for (size_t i = 0; i < n;) {
        int len;
        bool bad = false;
        uint32_t cp = utf8_next(p + i, n - i, &len, &bad);
        const char *special = cp && cp < 0x80 ? strchr(plain, (int)cp) : NULL;
        if (special || cp == (uint32_t)quote) {
            str_putc(out, '\\');
            str_putc(out, special ? code[special - plain] : quote);
        } else if (py_isprintable(cp))
            str_utf8(out, cp);
        else
            str_printf(out, cp < 0x100 ? "\\x%02" PRIx32 : cp < 0x10000 ? "\\u%04" PRIx32 : "\\U%08" PRIx32, cp);
        i += (size_t)len;
    }
    str_putc(out, quote);
}

void py_repr_list(struct str *out, const char *const *v, size_t n)
{
    str_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            str_puts(out, ", ");
        py_repr(out, v[i]);
    }
    str_putc(out, ']');
}

void str_i64(struct str *s, int64_t v)
{
    char buf[24], *p = buf + sizeof buf;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do
        *--p = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        *--p = '-';
    str_add(s, p, (size_t)(buf + sizeof buf - p));
}

int64_t find_bytes(const char *p, size_t n, const char *z, size_t zn)
{
    if (!zn)
        return 0;
    for (size_t i = 0; i + zn <= n;) {
        const char *q = memchr(p + i, z[0], n - i - zn + 1);
        if (!q)
            return -1;
        if (memcmp(q, z, zn) == 0)
            return q - p;
        i = (size_t)(q - p) + 1;
    }
    return -1;
}

void str_replace(struct str *s, const char *from, const char *to)
{
    struct str r = STR_INIT;
    size_t fn = strlen(from), i = 0;
    for (;;) {
        int64_t at = find_bytes(str_c(s) + i, s->len - i, from, fn);
        if (at < 0)
            break;
        str_add(&r, s->p + i, (size_t)at);
        str_puts(&r, to);
        i += (size_t)at + fn;
    }
    str_add(&r, str_c(s) + i, s->len - i);
    r.failed |= s->failed;
    str_free(s);
    *s = r;
}

void py_lower(struct str *out, const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len;
        bool bad = false;
        uint32_t cp = utf8_next(p + i, n - i, &len, &bad);
        if (bad)
            str_add(out, p + i, 1);
        else if (cp < 0x80)
            str_putc(out, (char)(cp >= 'A' && cp <= 'Z' ? cp + 32 : cp));
        else if (cp == 0x130)
            str_puts(out, "i\xcc\x87");
        else
            str_utf8(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
        i += (size_t)len;
    }
}

void list_clear(struct list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i]);
    l->n = 0;
}

void list_free(struct list *l)
{
    list_clear(l);
    free(l->v);
    *l = (struct list){0};
}

int list_add(struct list *l, const char *p, size_t n, struct err *e)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 16;
        char **v = realloc(l->v, cap * sizeof *v);
        if (!v)
            return err_nomem(e, cap * sizeof *v, "a list of words");
        l->v = v;
        l->cap = cap;
    }
    char *s = malloc(n + 1);
    if (!s)
        return err_nomem(e, n + 1, "a word");
    memcpy(s, p, n);
    s[n] = 0;
    l->v[l->n++] = s;
    return 0;
}

int list_load(struct list *l, const char *path, bool strip_right, struct err *e)
{
    struct str s = STR_INIT;
    int rc = file_read(path, 64u << 20, &s, e);
    if (!rc && memchr(str_c(&s), 0, s.len))
        rc = ERR(e, E_INPUT, "'%s': holds a zero byte, expected lines of text", path);
    for (size_t i = 0; !rc && i < s.len;) {
        const char *nl = memchr(s.p + i, '\n', s.len - i);
        size_t end = nl ? (size_t)(nl - s.p) : s.len, b = end;
        while (strip_right && b > i && (unsigned char)s.p[b - 1] <= ' ')
            b--;
        if (b > i || !strip_right)
            rc = list_add(l, s.p + i, b - i, e);
        i = end + 1;
    }
    str_free(&s);
    return rc;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void list_sort_unique(struct list *l)
{
    if (!l->n)
        return;
    qsort(l->v, l->n, sizeof *l->v, by_bytes);
    size_t k = 1;
    for (size_t i = 1; i < l->n; i++) {
        if (strcmp(l->v[i], l->v[k - 1]) == 0)
            free(l->v[i]);
        else
            l->v[k++] = l->v[i];
    }
    l->n = k;
}

int64_t list_find(const struct list *l, const char *p, size_t n)
{
    size_t lo = 0, hi = l->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        size_t m = strlen(l->v[mid]); /* p may hold zero bytes */
        int c = memcmp(l->v[mid], p, MIN(m, n));
        if (c == 0)
            c = (m > n) - (m < n);
        if (c == 0)
            return (int64_t)mid;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

static int unpack(const char *path, const struct str *in, size_t max_bytes, struct str *out, struct err *e)
{
    ZSTD_DStream *d = ZSTD_createDStream();
    char *buf = malloc(1u << 16);
    ZSTD_inBuffer src = {in->p, in->len, 0};
    int rc = d && buf ? 0 : err_nomem(e, 1u << 16, "unpacking");
    size_t left = 1;
    while (!rc && (src.pos < src.size || left)) {
        ZSTD_outBuffer dst = {buf, 1u << 16, 0};
        size_t before = src.pos;
        left = ZSTD_decompressStream(d, &dst, &src);
        if (ZSTD_isError(left))
            rc = ERR(e, E_INPUT, "'%s': not a whole zstd file: %s", path, ZSTD_getErrorName(left));
        else if (out->len + dst.pos > max_bytes)
            rc = ERR(e, E_INPUT, "'%s': unpacks to more than %zu bytes", path, max_bytes);
        else if (!dst.pos && before == src.pos) {
            if (left)
                rc = ERR(e, E_INPUT, "'%s': the zstd file ends too early", path);
            break;
        } else
            str_add(out, buf, dst.pos);
    }
    ZSTD_freeDStream(d);
    free(buf);
    return rc;
}

int text_load(const char *path, size_t max_bytes, struct str *out, struct err *e)
{
    size_t n = strlen(path);
    if (n < 4 || strcmp(path + n - 4, ".zst") != 0)
        return file_read(path, max_bytes, out, e);
    struct str in = STR_INIT;
    int rc = file_read(path, max_bytes, &in, e);
    if (!rc && !in.len)
        rc = ERR(e, E_INPUT, "'%s': empty, expected a zstd file", path);
    if (!rc)
        rc = unpack(path, &in, max_bytes, out, e);
    str_free(&in);
    return rc ? rc : str_ok(out, "a text file", e);
}
