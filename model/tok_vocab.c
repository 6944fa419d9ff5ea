/*
 * vocab.json: one flat object {"token": id, ..}. Its 150,000 members go into the tables as they are read, where a tree of them would cost
 * ten times the file's length and most of the time of loading. What is refused is what jread.h refuses, and whatever is not this form.
 */
#include <stdio.h>
#include <string.h>

#include "core/cur.h"
#include "model/tok_int.h"

struct scan {
    struct tok *t;
    const char *name;
    struct cur c;
    struct str key; /* a token with escapes, written out */
};

/* Puts "FILE:LINE:COL: " of the byte at `at` before the message; columns count characters. */
static int wrap_at(const struct scan *s, size_t at, struct err *e)
{
    size_t line = 1, col = 1;
    for (size_t i = 0; i < at; i++) {
        col = s->c.p[i] == '\n' ? 1 : col + ((s->c.p[i] & 0xc0) != 0x80);
        line += s->c.p[i] == '\n';
    }
    return err_wrap(e, "%s:%zu:%zu", s->name, line, col);
}

static int bad_at(const struct scan *s, size_t at, struct err *e, const char *fmt, ...) PRINTF_LIKE(4, 5);
static int bad_at(const struct scan *s, size_t at, struct err *e, const char *fmt, ...)
{
    char why[320];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    ERR(e, E_INPUT, "%s", why);
    return wrap_at(s, at, e);
}

/* What stands at the cursor, for messages. */
static const char *found(const struct scan *s, char buf[24])
{
    int c = cur_peek(&s->c);
    if (c < 0)
        return "the end of the file";
    snprintf(buf, 24, c > ' ' && c < 0x7f ? "'%c'" : "byte 0x%02x", (unsigned)c);
    return buf;
}

static int expected(const struct scan *s, const char *what, struct err *e)
{
    char buf[24];
    return bad_at(s, s->c.pos, e, "expected %s, found %s", what, found(s, buf));
}

static void skip_space(struct cur *c)
{
    for (int b = cur_peek(c); b == ' ' || b == '\t' || b == '\n' || b == '\r'; b = cur_peek(c))
        c->pos++;
}

/* Takes the byte when it is there. */
static bool take(struct cur *c, int byte)
{
    bool there = cur_peek(c) == byte;
    c->pos += there;
    return there;
}

/* ---- strings ---- */

/* The four hex digits of \uXXXX. */
static int hex4(struct scan *s, uint32_t *cp, struct err *e)
{
    *cp = 0;
    for (int i = 0; i < 4; i++) {
        int c = cur_peek(&s->c), low = c | 0x20;
        if (!(c >= '0' && c <= '9') && !(low >= 'a' && low <= 'f'))
            return expected(s, "four hexadecimal digits after '\\u'", e);
        *cp = *cp << 4 | (uint32_t)(c <= '9' ? c - '0' : low - 'a' + 10);
        s->c.pos++;
    }
    return 0;
}

/* Behind "\u"; `at` is where the backslash stands. */
static int unicode_escape(struct scan *s, size_t at, struct err *e)
{
    uint32_t cp, low = 0;
    TRY(hex4(s, &cp, e));
    bool high = cp >= 0xd800 && cp < 0xdc00;
    if (high && take(&s->c, '\\') && take(&s->c, 'u'))
        TRY(hex4(s, &low, e));
    if (high && low >= 0xdc00 && low < 0xe000)
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
    else if (cp >= 0xd800 && cp < 0xe000)
        return bad_at(s, at, e, "escape '\\u%04" PRIx32 "' is half of a surrogate pair, without its other half", cp);
    if (!cp)
        return bad_at(s, at, e, "escape '\\u0000': a token cannot hold a zero byte");
    str_utf8(&s->key, cp);
    return 0;
}

static int escape(struct scan *s, struct err *e)
{
    static const char code[] = "\"\\/bfnrt", byte[] = "\"\\/\b\f\n\r\t";
    size_t at = s->c.pos++;
    int c = cur_peek(&s->c);
    const char *k = c > 0 ? memchr(code, c, sizeof code - 1) : NULL;
    if (c != 'u' && !k)
        return expected(s, "one of \"\\/bfnrtu after '\\'", e);
    s->c.pos++;
    if (c == 'u')
        return unicode_escape(s, at, e);
    str_putc(&s->key, byte[k - code]);
    return 0;
}

/* A token; *p is inside the file, or in s->key when there are escapes. */
static int string(struct scan *s, const char **p, size_t *n, struct err *e)
{
    size_t open = s->c.pos;
    bool plain = true;
    if (!take(&s->c, '"'))
        return expected(s, "a token in double quotes", e);
    str_clear(&s->key);
    for (size_t from = s->c.pos;; from = s->c.pos) {
        int c;
        while ((c = cur_peek(&s->c)) >= ' ' && c != '"' && c != '\\')
            s->c.pos++;
        *p = (const char *)s->c.p + from;
        *n = s->c.pos - from;
        if (c < 0)
            return bad_at(s, open, e, "the file ends inside the token that begins here");
        if (c < ' ')
            return bad_at(s, s->c.pos, e, "byte 0x%02x inside a token; control characters must be written as escapes", (unsigned)c);
        if (c == '"' && plain)
            break;
        str_add(&s->key, *p, *n);
        if (c == '"')
            break;
        plain = false;
        TRY(escape(s, e));
    }
    s->c.pos++;
    if (!plain) {
        *p = str_c(&s->key);
        *n = s->key.len;
    }
    return str_ok(&s->key, "vocabulary", e);
}

/* ---- members ---- */

static const char *kind_of(int c)
{
    return c == '"'                           ? "a string"
           : c == '{'                         ? "an object"
           : c == '['                         ? "an array"
           : c == 't' || c == 'f' || c == 'n' ? "true, false or null"
                                              : NULL;
}

static int id_of(struct scan *s, const char *key, size_t n_key, int64_t *id, struct err *e)
{
    enum { MOST_DIGITS = 18 }; /* fit an int64_t */
    size_t at = s->c.pos, digits = 0;
    const char *kind = kind_of(cur_peek(&s->c));
    int n = (int)MIN(n_key, 60u), c;
    if (kind)
        return bad_at(s, at, e, "the id of '%.*s' is %s, expected an integer", n, key, kind);
    bool minus = take(&s->c, '-');
    *id = 0;
    for (; (c = cur_peek(&s->c)) >= '0' && c <= '9'; s->c.pos++, digits++)
        if (digits < MOST_DIGITS)
            *id = *id * 10 + (c - '0');
    const char *text = (const char *)s->c.p + at;
    if (!digits)
        return expected(s, "the token's id, an integer", e);
    if (c == '.' || c == 'e' || c == 'E')
        return bad_at(s, at, e, "the id of '%.*s' has a fraction or an exponent, expected an integer", n, key);
    if (digits > 1 && text[minus] == '0')
        return bad_at(s, at, e, "the id of '%.*s' begins with a zero, which JSON does not allow", n, key);
    if (digits > MOST_DIGITS)
        return bad_at(s, at, e, "the id of '%.*s' is %.*s (limit 0..%d)", n, key, (int)MIN(s->c.pos - at, 40u), text, TOK_MAX_IDS - 1);
    if (minus)
        *id = -*id;
    return 0;
}

static int member(struct scan *s, struct err *e)
{
    const char *p = NULL;
    size_t n = 0, at = s->c.pos;
    int64_t id = 0;
    TRY(string(s, &p, &n, e));
    skip_space(&s->c);
    if (!take(&s->c, ':'))
        return expected(s, "':' between a token and its id", e);
    skip_space(&s->c);
    TRY(id_of(s, p, n, &id, e));
    return tokb_token(s->t, id, p, n, e) == 0 ? 0 : wrap_at(s, at, e);
}

static int object(struct scan *s, struct err *e)
{
    skip_space(&s->c);
    if (!take(&s->c, '{'))
        return expected(s, "'{': an object of \"token\": id", e);
    skip_space(&s->c);
    if (!take(&s->c, '}'))
        for (;;) {
            skip_space(&s->c);
            TRY(member(s, e));
            skip_space(&s->c);
            if (take(&s->c, '}'))
                break;
            if (!take(&s->c, ','))
                return expected(s, "',' or '}' behind an id", e);
        }
    skip_space(&s->c);
    return cur_left(&s->c) ? expected(s, "the end of the file behind the object", e) : 0;
}

int tok_vocab_text(struct tok *t, const char *name, const char *text, size_t n, struct err *e)
{
    struct scan s = {.t = t, .name = name, .c = cur_of(text, n)};
    bool ascii;
    size_t good = utf8_check(text, n, &ascii), quotes = 0;
    if (good < n)
        return bad_at(&s, good, e, "byte 0x%02x is not UTF-8", (unsigned)s.c.p[good]);
    for (size_t i = 0; i < n; i++)
        quotes += text[i] == '"';
    TRY(tokb_reserve(t, MIN(quotes / 2, (size_t)TOK_MAX_IDS), e));
    int rc = object(&s, e);
    str_free(&s.key);
    for (char *p = e->msg; rc != 0 && *p; p++) /* a token in the message may hold any character */
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    return rc;
}
