#include "core/jwrite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void jw_init(struct jw *w, struct str *out, bool pretty)
{
    *w = (struct jw){.out = out, .pretty = pretty};
    w->first[0] = true;
}

static void new_line(struct jw *w, int depth)
{
    str_putc(w->out, '\n');
    for (int i = 0; i < depth; i++)
        str_puts(w->out, "  ");
}

/* What stands between the last thing and the next value or key. */
static void separate(struct jw *w)
{
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->depth == 0)
        return;
    if (!w->first[w->depth])
        str_puts(w->out, w->pretty ? "," : ", ");
    w->first[w->depth] = false;
    if (w->pretty)
        new_line(w, w->depth);
}

static void begin(struct jw *w, char c)
{
    separate(w);
    str_putc(w->out, c);
    if (w->depth + 1 >= (int)ARRAY_LEN(w->first))
        BUG("JSON nested more than %d levels deep", w->depth);
    w->first[++w->depth] = true;
}

static void end(struct jw *w, char c)
{
    if (w->depth == 0 || w->after_key)
        BUG("JSON '%c' without its beginning or behind a key", c);
    bool empty = w->first[w->depth--];
    if (w->pretty && !empty)
        new_line(w, w->depth);
    str_putc(w->out, c);
}

void jw_obj(struct jw *w)
{
    begin(w, '{');
}

void jw_end_obj(struct jw *w)
{
    end(w, '}');
}

void jw_arr(struct jw *w)
{
    begin(w, '[');
}

void jw_end_arr(struct jw *w)
{
    end(w, ']');
}

static void escape_u(struct str *out, uint32_t cp)
{
    if (cp < 0x10000) {
        str_printf(out, "\\u%04" PRIx32, cp);
        return;
    }
    cp -= 0x10000;
    str_printf(out, "\\u%04" PRIx32 "\\u%04" PRIx32, 0xd800 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
}

/* As Python's json module escapes. Bytes that are not UTF-8 become U+FFFD: the file must stay readable. */
static void quoted(struct jw *w, const char *p, size_t n)
{
    static const char plain[] = "\"\\\n\r\t\f\b", code[] = "\"\\nrtfb";
    struct str *out = w->out;
    str_putc(out, '"');
    for (size_t i = 0; i < n;) {
        int len;
        bool bad = false;
        size_t from = i;
        while (i < n && (unsigned char)(p[i] - 0x20) < 0x5f && p[i] != '"' && p[i] != '\\')
            i++;
        str_add(out, p + from, i - from);
        if (i == n)
            break;
        uint32_t cp = utf8_next(p + i, n - i, &len, &bad);
        const char *special = cp && cp < 0x80 ? strchr(plain, (int)cp) : NULL;
        if (special) {
            str_putc(out, '\\');
            str_putc(out, code[special - plain]);
        } else if (cp < 0x20 || (w->ascii && cp > 0x7e))
            escape_u(out, cp);
        else
            str_utf8(out, cp);
        i += (size_t)len;
    }
    str_putc(out, '"');
}

void jw_key(struct jw *w, const char *key)
{
    if (w->after_key || w->depth == 0)
        BUG("JSON key '%s' out of place", key);
    separate(w);
    quoted(w, key, strlen(key));
    str_puts(w->out, ": ");
    w->after_key = true;
}

void jw_strn(struct jw *w, const char *p, size_t n)
{
    separate(w);
    quoted(w, p, n);
}

void jw_str(struct jw *w, const char *z)
{
    jw_strn(w, z, strlen(z));
}

void jw_i64(struct jw *w, int64_t v)
{
    separate(w);
    str_printf(w->out, "%" PRId64, v);
}

void jw_f64(struct jw *w, double v)
{
    char buf[32];
    separate(w);
    if (!finite_f64(v)) {
        w->bad = true;
        str_puts(w->out, "null");
        return;
    }
    fmt_f64(buf, v);
    str_puts(w->out, buf);
}

void jw_bool(struct jw *w, bool v)
{
    separate(w);
    str_puts(w->out, v ? "true" : "false");
}

void jw_null(struct jw *w)
{
    separate(w);
    str_puts(w->out, "null");
}

void jw_kstr(struct jw *w, const char *k, const char *z)
{
    jw_key(w, k);
    jw_str(w, z);
}

void jw_ki64(struct jw *w, const char *k, int64_t v)
{
    jw_key(w, k);
    jw_i64(w, v);
}

void jw_kf64(struct jw *w, const char *k, double v)
{
    jw_key(w, k);
    jw_f64(w, v);
}

void jw_kbool(struct jw *w, const char *k, bool v)
{
    jw_key(w, k);
    jw_bool(w, v);
}

int jw_ok(const struct jw *w, const char *what, struct err *e)
{
    TRY(str_ok(w->out, what, e));
    if (w->bad)
        return ERR(e, E_NUMERIC, "%s: holds a number that is not finite", what);
    return 0;
}

/* ---- shortest decimal ---- */

enum { MAX_DIGITS = 17 };
struct decimal {
    char digit[MAX_DIGITS + 1];
    int n, exp10; /* value = d.ddd x 10^exp10 */
};

/* v > 0, correctly rounded to n significant digits. */
static void to_decimal(double v, int n, struct decimal *d)
{
    char buf[40];
    snprintf(buf, sizeof buf, "%.*e", n - 1, v);
    const char *p = buf;
    d->n = 0;
    for (; *p != 'e'; p++)
        if (*p != '.')
            d->digit[d->n++] = *p;
    d->exp10 = (int)strtol(p + 1, NULL, 10);
}

static bool reads_back(const struct decimal *d, double v)
{
    char buf[40];
    snprintf(buf, sizeof buf, "%.*se%d", d->n, d->digit, d->exp10 - (d->n - 1));
    return strtod(buf, NULL) == v;
}

/* The next n-digit number; false when a digit would have to be added. */
static bool step_up(struct decimal *d)
{
    for (int i = d->n - 1; i >= 0; i--) {
        if (d->digit[i] != '9') {
            d->digit[i]++;
            return true;
        }
        d->digit[i] = '0';
    }
    return false;
}

static bool try_digits(double v, int n, struct decimal *d)
{
    to_decimal(v, n, d);
    if (reads_back(d, v))
        return true;
    /*
     * Below a power of two the doubles lie twice as dense as above it. There the n-digit number nearest to v may fall just outside what
     * reads back as v while its upper neighbour falls inside (2^-44: 5.684341886080801e-14 fails, ...802e-14 works).
     */
    union {
        double f;
        uint64_t u;
    } bits = {v};
    return !(bits.u & 0xfffffffffffffull) && step_up(d) && reads_back(d, v);
}

static void shortest(double v, struct decimal *d)
{
    int n = 15;
    if (try_digits(v, n, d)) {
        /* Most such numbers were written by people and are much shorter: search upwards. */
        for (n = 1; !try_digits(v, n, d); n++)
            ;
    } else
        for (n = 16; n < MAX_DIGITS && !try_digits(v, n, d); n++)
            ;
    if (n == MAX_DIGITS)
        to_decimal(v, n, d);
    while (d->n > 1 && d->digit[d->n - 1] == '0')
        d->n--;
}

void fmt_f64(char dst[32], double v)
{
    struct decimal d;
    union {
        double f;
        uint64_t u;
    } bits = {v};
    const char *sign = bits.u >> 63 ? "-" : "";
    if (!finite_f64(v)) {
        snprintf(dst, 32, "%s", bits.u << 12 ? "nan" : *sign ? "-inf" : "inf");
        return;
    }
    if (v == 0) {
        snprintf(dst, 32, "%s0.0", sign);
        return;
    }
    shortest(*sign ? -v : v, &d);
    /* Python's rule: plain notation for 1e-4 <= |v| < 1e16. */
    if (d.exp10 < -4 || d.exp10 >= 16)
        snprintf(dst, 32, "%s%c%s%.*se%c%02d", sign, d.digit[0], d.n > 1 ? "." : "", d.n - 1, d.digit + 1, d.exp10 < 0 ? '-' : '+',
                 abs(d.exp10));
    else if (d.exp10 < 0)
        snprintf(dst, 32, "%s0.%.*s%.*s", sign, -d.exp10 - 1, "000", d.n, d.digit);
    else if (d.n <= d.exp10 + 1)
        snprintf(dst, 32, "%s%.*s%.*s.0", sign, d.n, d.digit, d.exp10 + 1 - d.n, "000000000000000");
    else
        snprintf(dst, 32, "%s%.*s.%.*s", sign, d.exp10 + 1, d.digit, d.n - d.exp10 - 1, d.digit + d.exp10 + 1);
}
