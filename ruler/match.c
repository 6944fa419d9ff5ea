#include <stdlib.h>
#include <string.h>

#include "ruler/ruler.h"
#include "ruler/text.h"

/* The reference's clean-up of a prediction: strip, control characters become newlines, strip. */
static void clean(struct str *out, const char *p, size_t n)
{
    struct str s = STR_INIT;
    size_t a = 0, b = n;
    for (int round = 0; round < 2; round++) {
        while (a < b) {
            int len;
            bool bad = false;
            if (!py_isspace(utf8_next(p + a, b - a, &len, &bad)))
                break;
            a += (size_t)len;
        }
        while (b > a) {
            size_t k = b - 1;
            int len;
            bool bad = false;
            while (k > a && ((unsigned char)p[k] & 0xc0) == 0x80)
                k--;
            if (!py_isspace(utf8_next(p + k, b - k, &len, &bad)))
                break;
            b = k;
        }
        if (round)
            break;
        for (size_t i = a; i < b; i++)
            str_putc(&s, (unsigned char)p[i] < 0x20 ? '\n' : p[i]);
        p = str_c(&s);
        a = 0;
        b = s.len;
    }
    str_add(out, p + a, b - a);
    out->failed |= s.failed;
    str_free(&s);
}

double ruler_match(const char *pred, size_t n, const char *const *refs, size_t n_refs, bool part, bool *null)
{
    struct str c = STR_INIT, low = STR_INIT, r = STR_INIT;
    size_t hits = 0;
    clean(&c, pred, n);
    *null = c.len == 0;
    if (!part)
        py_lower(&low, str_c(&c), c.len);
    for (size_t i = 0; i < n_refs; i++) {
        str_clear(&r);
        py_lower(&r, refs[i], strlen(refs[i]));
        hits +=
            part ? find_bytes(str_c(&c), c.len, refs[i], strlen(refs[i])) >= 0 : find_bytes(str_c(&low), low.len, str_c(&r), r.len) >= 0;
    }
    str_free(&c);
    str_free(&low);
    str_free(&r);
    if (part)
        return hits ? 100 : 0;
    return n_refs ? 100.0 * (double)hits / (double)n_refs : 0;
}
