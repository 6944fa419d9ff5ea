#include <stdlib.h>
#include <string.h>

#include "ruler/ruler.h"
#include "ruler/text.h"

/* The reference's clean-up of a prediction: strip, control characters become newlines, strip. */
static void clean(struct str *out, const char *p, size_t n)
{
    struct str s = STR_INIT;
    py_strip(&p, &n);
    for (size_t i = 0; i < n; i++)
        str_putc(&s, (unsigned char)p[i] < 0x20 ? '\n' : p[i]);
    p = str_c(&s);
    n = s.len;
    py_strip(&p, &n);
    str_add(out, p, n);
    out->failed |= s.failed;
    str_free(&s);
}

double ruler_match(const char *pred, size_t n, const char *const *refs, size_t n_refs, bool part, bool *null)
{
    struct str c = STR_INIT, low = STR_INIT, r = STR_INIT;
    size_t hits = 0;
    clean(&c, pred, n);
    *null = c.len == 0;
    py_lower(&low, str_c(&c), c.len);
    for (size_t i = 0; i < n_refs; i++) {
        str_clear(&r);
        py_lower(&r, refs[i], strlen(refs[i]));
        hits += find_bytes(str_c(&low), low.len, str_c(&r), r.len) >= 0;
    }
    str_free(&c);
    str_free(&low);
    str_free(&r);
    if (part)
        return hits ? 100 : 0;
    return n_refs ? 100.0 * (double)hits / (double)n_refs : 0;
}
