#include "core/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void str_free(struct str *s)
{
    free(s->p);
    *s = (struct str)STR_INIT;
}

void str_clear(struct str *s)
{
    s->len = 0;
    s->failed = false;
    if (s->p)
        s->p[0] = 0;
}

/* Room for n more bytes and the NUL. */
static bool grow(struct str *s, size_t n)
{
    size_t need;
    if (s->failed)
        return false;
    if (!add_size(s->len, n, &need) || !add_size(need, 1, &need)) {
        s->failed = true;
        return false;
    }
    if (need <= s->cap)
        return true;
    size_t cap = s->cap < 32 ? 32 : s->cap;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *p = realloc(s->p, cap);
    if (!p) {
        s->failed = true;
        return false;
    }
    s->p = p;
    s->cap = cap;
    return true;
}

void str_add(struct str *s, const char *bytes, size_t n)
{
    if (!grow(s, n))
        return;
    if (n)
        memcpy(s->p + s->len, bytes, n);
    s->len += n;
    s->p[s->len] = 0;
}

void str_puts(struct str *s, const char *z)
{
    str_add(s, z, strlen(z));
}

void str_putc(struct str *s, char c)
{
    str_add(s, &c, 1);
}

void str_vprintf(struct str *s, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n < 0)
        s->failed = true;
    else if (grow(s, (size_t)n)) {
        vsnprintf(s->p + s->len, (size_t)n + 1, fmt, again);
        s->len += (size_t)n;
    }
    va_end(again);
}

void str_printf(struct str *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    str_vprintf(s, fmt, ap);
    va_end(ap);
}

void str_utf8(struct str *s, uint32_t cp)
{
    char b[4];
    size_t n;
    if (cp < 0x80) {
        b[0] = (char)cp;
        n = 1;
    } else if (cp < 0x800) {
        b[0] = (char)(0xc0 | cp >> 6);
        b[1] = (char)(0x80 | (cp & 0x3f));
        n = 2;
    } else if (cp < 0x10000) {
        b[0] = (char)(0xe0 | cp >> 12);
        b[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        b[2] = (char)(0x80 | (cp & 0x3f));
        n = 3;
    } else if (cp <= 0x10ffff) {
        b[0] = (char)(0xf0 | cp >> 18);
        b[1] = (char)(0x80 | (cp >> 12 & 0x3f));
        b[2] = (char)(0x80 | (cp >> 6 & 0x3f));
        b[3] = (char)(0x80 | (cp & 0x3f));
        n = 4;
    } else
        BUG("str_utf8: %" PRIu32 " is past 0x10FFFF", cp);
    str_add(s, b, n);
}

const char *str_c(const struct str *s)
{
    return s->p ? s->p : "";
}

int str_ok(const struct str *s, const char *what, struct err *e)
{
    return s->failed ? err_nomem(e, s->len, what) : 0;
}

uint32_t utf8_next(const char *p, size_t n, int *len, bool *bad)
{
    const unsigned char *u = (const unsigned char *)p;
    uint32_t cp = u[0], min;
    int need;
    *len = 1;
    if (cp < 0x80)
        return cp;
    if (cp >= 0xc2 && cp < 0xe0) {
        need = 1;
        min = 0x80;
        cp &= 0x1f;
    } else if (cp >= 0xe0 && cp < 0xf0) {
        need = 2;
        min = 0x800;
        cp &= 0x0f;
    } else if (cp >= 0xf0 && cp < 0xf5) {
        need = 3;
        min = 0x10000;
        cp &= 0x07;
    } else {
        *bad = true;
        return 0xfffd;
    }
    bool ok = (size_t)need < n;
    for (int i = 1; ok && i <= need; i++) {
        ok = (u[i] & 0xc0) == 0x80;
        cp = cp << 6 | (u[i] & 0x3f);
    }
    if (!ok || cp < min || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) {
        *bad = true;
        return 0xfffd;
    }
    *len = need + 1;
    return cp;
}

size_t utf8_count(const char *p, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; count++) {
        int len;
        bool bad = false;
        utf8_next(p + i, n - i, &len, &bad);
        i += (size_t)len;
    }
    return count;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/*
 * Decimal syntax only ([+-]digits[.digits][e[+-]digits]): strtod alone would also take "nan", "inf", hexadecimal and leading blanks.
 * *end is behind the number.
 */
static bool decimal_syntax(const char *s, const char **end, bool *integer)
{
    const char *p = s;
    size_t digits = 0;
    *integer = true;
    if (*p == '+' || *p == '-')
        p++;
    for (; is_digit(*p); p++)
        digits++;
    if (*p == '.') {
        *integer = false;
        for (p++; is_digit(*p); p++)
            digits++;
    }
    if (!digits)
        return false;
    if (*p == 'e' || *p == 'E') {
        const char *q = p + 1;
        if (*q == '+' || *q == '-')
            q++;
        if (!is_digit(*q))
            return false;
        while (is_digit(*q))
            q++;
        p = q;
        *integer = false;
    }
    *end = p;
    return true;
}

/* 1 for no suffix, 0 for an unknown one. */
static int64_t suffix_of(const char *s)
{
    if (!*s)
        return 1;
    if (s[1])
        return 0;
    return *s == 'k' ? 1000 : *s == 'M' ? 1000000 : *s == 'G' ? 1000000000 : 0;
}

bool parse_f64(const char *s, double *out)
{
    const char *end;
    char *stop;
    bool integer;
    if (!decimal_syntax(s, &end, &integer))
        return false;
    int64_t mul = suffix_of(end);
    if (!mul)
        return false;
    double v = strtod(s, &stop);
    if (stop != end)
        return false; /* a locale with another decimal point */
    v *= (double)mul;
    if (!finite_f64(v))
        return false;
    *out = v;
    return true;
}

/* "1.5M" and "1e6": mantissa digits times a power of ten, exactly, without going through a double. */
static bool parse_scaled(const char *s, const char *end, int64_t mul, int64_t *out)
{
    bool neg = *s == '-';
    const char *p = s + (*s == '-' || *s == '+');
    int64_t v = 0;
    long exp10 = 0;
    bool point = false;
    int zeros = 0; /* zeros not yet multiplied in: trailing ones of "1.000000" cost nothing */
    for (; p < end && *p != 'e' && *p != 'E'; p++) {
        if (*p == '.') {
            point = true;
            continue;
        }
        if (point)
            exp10--;
        if (*p == '0') {
            if (zeros < 1000)
                zeros++;
            else
                exp10++;
            continue;
        }
        for (; v && zeros > 0; zeros--)
            if (!mul_i64(v, 10, &v))
                return false;
        zeros = 0;
        if (!mul_i64(v, 10, &v) || __builtin_add_overflow(v, *p - '0', &v))
            return false;
    }
    exp10 += zeros;
    if (p < end) {
        errno = 0;
        long x = strtol(p + 1, NULL, 10);
        if (errno || x > 10000 || x < -10000)
            return false;
        exp10 += x;
    }
    for (; mul > 1; mul /= 10)
        exp10++;
    for (; v && exp10 > 0; exp10--)
        if (!mul_i64(v, 10, &v))
            return false;
    for (; v && exp10 < 0; exp10++) {
        if (v % 10)
            return false;
        v /= 10;
    }
    *out = neg ? -v : v;
    return true;
}

bool number_meant(const char *s, char dst[64])
{
    static const char wrong[] = "KmgbB", right[] = "kMGGG";
    double v;
    size_t n = strlen(s);
    const char *at = n ? strchr(wrong, s[n - 1]) : NULL;
    if (!at || n >= 64)
        return false;
    memcpy(dst, s, n + 1);
    dst[n - 1] = right[at - wrong];
    return parse_f64(dst, &v);
}

bool parse_i64(const char *s, int64_t *out)
{
    const char *end;
    bool integer;
    if (!decimal_syntax(s, &end, &integer))
        return false;
    int64_t mul = suffix_of(end);
    if (!mul)
        return false;
    if (!integer || mul > 1)
        return parse_scaled(s, end, mul, out);
    char *stop;
    errno = 0;
    long long v = strtoll(s, &stop, 10);
    if (errno || stop != end)
        return false;
    *out = v;
    return true;
}
