/* Raw WikiText as the harness' task `wikitext` reads it [lmeval.md 2.5]: pages, detokenizer, word counts, rolling windows. */
#include <stdlib.h>
#include <string.h>

#include "lmeval/lmeval.h"

/* Every `from` becomes `to`, from left to right. */
static void replace(struct str *s, const char *from, const char *to)
{
    struct str out = STR_INIT;
    const char *p = str_c(s), *end = p + s->len, *q;
    size_t k = strlen(from);
    while ((q = strstr(p, from)) != NULL) {
        str_add(&out, p, (size_t)(q - p));
        str_puts(&out, to);
        p = q + k;
    }
    str_add(&out, p, (size_t)(end - p));
    out.failed |= s->failed;
    str_free(s);
    *s = out;
}

/* /' D/ with a digit D becomes the literal /'[0-9]/: what the harness' pattern does. */
static void slash_digit(struct str *s)
{
    struct str out = STR_INIT;
    const char *p = str_c(s);
    for (size_t i = 0; i < s->len;) {
        if (s->len - i >= 5 && !memcmp(p + i, "/' ", 3) && p[i + 3] >= '0' && p[i + 3] <= '9' && p[i + 4] == '/') {
            str_puts(&out, "/'[0-9]/");
            i += 5;
        } else
            str_putc(&out, p[i++]);
    }
    out.failed |= s->failed;
    str_free(s);
    *s = out;
}

/* White space just inside a pair goes: OPEN \s* ([^CLOSE]*?) \s* CLOSE. */
static void strip_inside(struct str *s, char open, char close)
{
    struct str out = STR_INIT;
    const char *p = str_c(s), *end = p + s->len;
    while (p < end) {
        const char *q = *p == open ? memchr(p + 1, close, (size_t)(end - p - 1)) : NULL;
        if (!q) {
            str_putc(&out, *p++);
            continue;
        }
        size_t n = py_rstrip(p + 1, (size_t)(q - p - 1)), from = py_lspaces(p + 1, n);
        str_putc(&out, open);
        str_add(&out, p + 1 + from, n - from);
        str_putc(&out, close);
        p = q + 1;
    }
    out.failed |= s->failed;
    str_free(s);
    *s = out;
}

int wikitext_detokenize(const char *page, size_t n, struct str *out, struct err *e)
{
    static const char *const numbers[][2] = {{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}, {" : ", ": "}, {" ; ", "; "},
                                             {" . ", ". "},  {" ! ", "! "},  {" ? ", "? "},  {" , ", ", "}},
                             *const rest[][2] = {{"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},  {" \xc2\xb0 ", "\xc2\xb0"},
                                                 {" \n", "\n"},       {"\n ", "\n"},    {" N ", " 1 "}, {" 's", "'s"}};
    struct str s = STR_INIT;
    if (memchr(page, 0, n))
        return ERR(e, E_INPUT, "a zero byte in WikiText");
    str_add(&s, page, n);
    replace(&s, "s '", "s'");
    slash_digit(&s);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        replace(&s, numbers[i][0], numbers[i][1]);
    strip_inside(&s, '(', ')');
    strip_inside(&s, '[', ']');
    strip_inside(&s, '{', '}');
    strip_inside(&s, '"', '"');
    strip_inside(&s, '\'', '\'');
    for (size_t i = 0; i < ARRAY_LEN(rest); i++)
        replace(&s, rest[i][0], rest[i][1]);
    int rc = str_ok(&s, "WikiText", e);
    if (rc == 0)
        str_add(out, str_c(&s), s.len);
    str_free(&s);
    return rc ? rc : str_ok(out, "WikiText", e);
}

int64_t wikitext_words(const char *page, size_t n)
{
    int64_t words = 1;
    for (size_t i = 0; i < n;) {
        size_t k = py_lspaces(page + i, n - i);
        int len = 1;
        bool bad = false;
        words += k > 0;
        i += k;
        if (i < n) {
            utf8_next(page + i, n - i, &len, &bad);
            i += (size_t)len;
        }
    }
    return words;
}

/* A level-one heading: "= Title =", once "= = =" is written "===" and "= =" "==". */
static bool is_title(const char *line, size_t n)
{
    struct str s = STR_INIT;
    str_add(&s, line, n);
    replace(&s, "= = =", "===");
    replace(&s, "= =", "==");
    size_t end = py_rstrip(str_c(&s), s.len), from = py_lspaces(str_c(&s), end);
    const char *p = str_c(&s) + from;
    bool yes = end - from >= 2 && p[0] == '=' && p[1] == ' ' && str_c(&s)[end - 1] == '=' && str_c(&s)[end - 2] == ' ';
    str_free(&s);
    return yes;
}

int wikitext_pages(const char *text, size_t n, int (*fn)(void *ctx, const char *page, size_t n, struct err *e), void *ctx, struct err *e)
{
    const char *end = text + n, *page = text, *p = text;
    while (p < end) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((eol ? eol : end) - p);
        if (is_title(p, len) && p > page) {
            size_t k = (size_t)(p - page) - 1; /* the line end between pages belongs to neither */
            if (py_lspaces(page, k) < k)
                TRY(fn(ctx, page, k, e));
            page = p;
        }
        p += len + (eol != NULL);
    }
    size_t k = (size_t)(end - page);
    return py_lspaces(page, k) < k ? fn(ctx, page, k, e) : 0;
}

int lme_rolling(const int32_t *ids, int64_t n, int32_t prefix, int64_t max_length,
                int (*fn)(void *ctx, const int32_t *input, int64_t n_in, const int32_t *pred, int64_t n_pred, struct err *e), void *ctx,
                struct err *e)
{
    if (max_length < 1)
        return ERR(e, E_USAGE, "windows of %" PRId64 " tokens", max_length);
    int64_t first = MIN(max_length, n);
    int32_t *mem = malloc((size_t)(max_length + 1) * sizeof *mem);
    if (!mem)
        return err_nomem(e, (size_t)(max_length + 1) * sizeof *mem, "a window");
    int rc = 0;
    if (n > 0) {
        mem[0] = prefix;
        memcpy(mem + 1, ids, (size_t)(first - 1) * sizeof *ids);
        rc = fn(ctx, mem, first, ids, first, e);
    }
    for (int64_t done = first; rc == 0 && done < n;) {
        int64_t k = MIN(n - done, max_length), end = done + k;
        rc = fn(ctx, ids + end - max_length - 1, max_length, ids + done, k, e);
        done = end;
    }
    free(mem);
    return rc ? -1 : 0;
}
