#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/pretok.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "core/str.h"

struct step {
    enum pretok_kind kind;
    enum pretok_behavior behavior;
    pcre2_code *re;
    bool jit;
    int digits; /* of a known rule: most digits in a piece; 0 = another expression */
};
enum { DIGITS_ALL = INT32_MAX };
struct pretok {
    struct step step[PRETOK_MAX_STEPS];
    int n;
    struct str text;
    const char *name;
};
struct pretok_work {
    pcre2_match_data *md[PRETOK_MAX_STEPS];
    pcre2_match_context *ctx;
};

/* Split expressions as their tokenizer.json files spell them. */
#define RE_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define RE_CL100K(digits)                                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

struct family {
    struct pretok_family pub;
    bool digits; /* a Digits(individual) step first */
    enum pretok_behavior behavior;
    const char *re;
    const char *aliases[8]; /* names in tokenizer.ggml.pre with the same rule, normaliser and merge rule */
};
static const struct family families[] = {
    {{"gpt2", false, false}, false, PRETOK_ISOLATED, RE_GPT2, {"gpt-2", "phi-2", "mpt", "olmo"}},
    {{"qwen2", true, false}, false, PRETOK_ISOLATED, RE_CL100K("\\p{N}"), {"qwen3", "qwen2.5"}},
    {{"llama-bpe", false, true}, false, PRETOK_ISOLATED, RE_CL100K("\\p{N}{1,3}"), {"llama3", "llama-v3"}},
    {{"smollm", false, false}, true, PRETOK_ISOLATED, RE_GPT2, {"smollm2", "starcoder", "refact", "command-r"}},
    {{"dolma2", false, false}, false, PRETOK_MATCHES_ONLY, RE_CL100K("\\p{N}{1,3}"), {"dbrx"}},
};

const struct pretok_family *pretok_family_at(size_t i)
{
    return i < ARRAY_LEN(families) ? &families[i].pub : NULL;
}

static const struct family *family_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        if (!strcmp(families[i].pub.name, name))
            return &families[i];
        for (size_t k = 0; k < ARRAY_LEN(families[i].aliases) && families[i].aliases[k]; k++)
            if (!strcmp(families[i].aliases[k], name))
                return &families[i];
    }
    return NULL;
}

const struct pretok_family *pretok_family(const char *name)
{
    const struct family *f = family_find(name);
    return f ? &f->pub : NULL;
}

const char *pretok_family_list(void)
{
    return "gpt2, qwen2, llama-bpe, smollm, dolma2";
}

/* ---- Oniguruma expression -> PCRE2 expression ---- */

#define WHITE "\\t-\\r\\x{85}\\p{Z}" /* Unicode White_Space, inside a class */

struct xlate {
    const char *p, *start;
    struct str *out;
    const char *where;
    struct err *e;
};

static int refuse(struct xlate *x, const char *what)
{
    return ERR(x->e, E_INPUT, "%s: %s at byte %zu of the regular expression '%.200s' is not supported", x->where, what,
               (size_t)(x->p - x->start), x->start);
}

/* \p{..}, \P{..}: two letters at most are a general category; longer names are scripts, which PCRE2 would take as Script_Extensions. */
static int xlate_property(struct xlate *x)
{
    bool neg = *x->p == 'P';
    const char *q = x->p + 1;
    if (*q++ != '{')
        return refuse(x, "a property without braces");
    if (*q == '^') {
        neg = !neg;
        q++;
    }
    const char *end = strchr(q, '}');
    if (!end || end == q || end - q > 40)
        return refuse(x, "a malformed property");
    for (const char *c = q; c < end; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '_'))
            return refuse(x, "this property");
    str_printf(x->out, "\\%c{%s%.*s}", neg ? 'P' : 'p', end - q > 2 ? "sc:" : "", (int)(end - q), q);
    x->p = end + 1;
    return 0;
}

/* After a backslash, x->p at the letter. */
static int xlate_escape(struct xlate *x, bool in_class)
{
    char c = *x->p;
    switch (c) {
    case 's':
        str_puts(x->out, in_class ? WHITE : "[" WHITE "]");
        break;
    case 'S':
        if (in_class)
            return refuse(x, "\\S inside a class");
        str_puts(x->out, "[^" WHITE "]");
        break;
    case 'd':
        str_puts(x->out, "\\p{Nd}");
        break;
    case 'D':
        str_puts(x->out, "\\P{Nd}");
        break;
    case 'p':
    case 'P':
        return xlate_property(x);
    case 'r':
    case 'n':
    case 't':
    case 'f':
        str_printf(x->out, "\\%c", c);
        break;
    case 'v': /* a vertical tab in Oniguruma, a class in PCRE2 */
        str_puts(x->out, "\\x0b");
        break;
    default:
        if (c <= ' ' || c >= 127 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
            return refuse(x, "this escape");
        str_printf(x->out, "\\%c", c);
    }
    x->p++;
    return 0;
}

static int xlate_class(struct xlate *x)
{
    str_putc(x->out, *x->p++);
    if (*x->p == '^')
        str_putc(x->out, *x->p++);
    if (*x->p == ']')
        return refuse(x, "']' as the first character of a class");
    while (*x->p != ']') {
        if (!*x->p)
            return refuse(x, "an unclosed class");
        if (*x->p == '[')
            return refuse(x, "a class inside a class");
        if (x->p[0] == '&' && x->p[1] == '&')
            return refuse(x, "an intersection of classes");
        if (*x->p == '\\') {
            x->p++;
            TRY(xlate_escape(x, true));
        } else {
            str_putc(x->out, *x->p++);
        }
    }
    str_putc(x->out, *x->p++);
    return 0;
}

/* {n}, {n,}, {n,m}, where neither dialect has a suffix of its own. */
static int xlate_interval(struct xlate *x)
{
    const char *q = x->p + 1;
    if (*q < '0' || *q > '9')
        return refuse(x, "'{' without a number");
    while ((*q >= '0' && *q <= '9') || *q == ',')
        q++;
    if (*q != '}' || q[1] == '?' || q[1] == '+')
        return refuse(x, "this repetition");
    str_add(x->out, x->p, (size_t)(q + 1 - x->p));
    x->p = q + 1;
    return 0;
}

static int xlate_group(struct xlate *x)
{
    static const char *const forms[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (x->p[1] != '?' && x->p[1] != '*') {
        str_putc(x->out, *x->p++);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        size_t n = strlen(forms[i]);
        if (!strncmp(x->p, forms[i], n)) {
            str_puts(x->out, forms[i]);
            x->p += n;
            return 0;
        }
    }
    return refuse(x, "this kind of group");
}

static int translate(const char *pattern, struct str *out, const char *where, struct err *e)
{
    struct xlate x = {.p = pattern, .start = pattern, .out = out, .where = where, .e = e};
    while (*x.p) {
        switch (*x.p) {
        case '\\':
            x.p++;
            TRY(xlate_escape(&x, false));
            break;
        case '[':
            TRY(xlate_class(&x));
            break;
        case '(':
            TRY(xlate_group(&x));
            break;
        case '{':
            TRY(xlate_interval(&x));
            break;
        case '^':
        case '$':
            return refuse(&x, "a line anchor");
        default:
            str_putc(out, *x.p++);
        }
    }
    return str_ok(out, "regular expression", e);
}

/* ---- building ---- */

int pretok_new(struct pretok **out, struct err *e)
{
    *out = calloc(1, sizeof **out);
    return *out ? 0 : err_nomem(e, sizeof **out, "pre-tokenizer");
}

void pretok_free(struct pretok *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n; i++)
        pcre2_code_free(p->step[i].re);
    str_free(&p->text);
    free(p);
}

static int new_step(struct pretok *p, struct step **s, const char *where, struct err *e)
{
    if (p->n == PRETOK_MAX_STEPS)
        return ERR(e, E_INPUT, "%s: more than %d splitting steps", where, PRETOK_MAX_STEPS);
    *s = &p->step[p->n];
    return 0;
}

int pretok_add_digits(struct pretok *p, bool each, const char *where, struct err *e)
{
    struct step *s = NULL;
    TRY(new_step(p, &s, where, e));
    *s = (struct step){.kind = each ? PRETOK_DIGITS_EACH : PRETOK_DIGITS_RUN};
    p->n++;
    str_puts(&p->text, each ? "digits each\n" : "digits run\n");
    return 0;
}

static int compile(const char *pattern, struct step *s, const char *where, struct err *e)
{
    int code = 0;
    uint32_t empty = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *cc = pcre2_compile_context_create(NULL);
    if (!cc)
        return err_nomem(e, 0, "regular expression");
    pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(cc, 50);
    s->re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &at, cc);
    pcre2_compile_context_free(cc);
    if (!s->re) {
        char msg[200] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)msg, sizeof msg);
        return ERR(e, E_INPUT, "%s: bad regular expression '%.200s': %s", where, pattern, msg);
    }
    pcre2_pattern_info(s->re, PCRE2_INFO_MATCHEMPTY, &empty);
    if (empty) {
        pcre2_code_free(s->re);
        s->re = NULL;
        return ERR(e, E_INPUT, "%s: the regular expression '%.200s' can match nothing at all, so it does not split", where, pattern);
    }
    /* Without JIT (hardened kernels) the interpreter gives the same matches. */
    s->jit = pcre2_jit_compile(s->re, PCRE2_JIT_COMPLETE) == 0;
    return 0;
}

static int known_digits(const char *pattern)
{
    return !strcmp(pattern, RE_GPT2)                    ? DIGITS_ALL
           : !strcmp(pattern, RE_CL100K("\\p{N}"))      ? 1
           : !strcmp(pattern, RE_CL100K("\\p{N}{1,3}")) ? 3
                                                        : 0;
}

int pretok_add_regex(struct pretok *p, const char *pattern, enum pretok_behavior b, const char *where, struct err *e)
{
    struct step *s = NULL;
    TRY(new_step(p, &s, where, e));
    if (strlen(pattern) > 4096)
        return ERR(e, E_INPUT, "%s: regular expression of %zu bytes (limit 4096)", where, strlen(pattern));
    struct str re = STR_INIT;
    *s = (struct step){.kind = PRETOK_REGEX, .behavior = b, .digits = known_digits(pattern)};
    int rc = translate(pattern, &re, where, e);
    if (rc == 0)
        rc = compile(str_c(&re), s, where, e);
    str_free(&re);
    if (rc != 0)
        return -1;
    p->n++;
    str_printf(&p->text, "%s %s\n", b == PRETOK_ISOLATED ? "split" : "matches", pattern);
    return 0;
}

int pretok_add_gpt2(struct pretok *p, const char *where, struct err *e)
{
    return pretok_add_regex(p, RE_GPT2, PRETOK_ISOLATED, where, e);
}

int pretok_finish(struct pretok *p, struct err *e)
{
    TRY(str_ok(&p->text, "pre-tokenizer", e));
    p->name = p->n ? "custom" : "none";
    for (size_t i = 0; i < ARRAY_LEN(families); i++) {
        const struct family *f = &families[i];
        const char *want = str_c(&p->text);
        if (f->digits) {
            if (strncmp(want, "digits each\n", 12) != 0)
                continue;
            want += 12;
        }
        const char *verb = f->behavior == PRETOK_ISOLATED ? "split " : "matches ";
        size_t nv = strlen(verb), nr = strlen(f->re);
        if (!strncmp(want, verb, nv) && !strncmp(want + nv, f->re, nr) && !strcmp(want + nv + nr, "\n"))
            p->name = f->pub.name;
    }
    return 0;
}

int pretok_named(struct pretok **out, const char *name, struct err *e)
{
    const struct family *f = family_find(name);
    if (!f)
        return ERR(e, E_USAGE, "unknown pre-tokenizer '%s': the known ones are %s", name, pretok_family_list());
    struct pretok *p;
    TRY(pretok_new(&p, e));
    if ((f->digits && pretok_add_digits(p, true, name, e) != 0) || pretok_add_regex(p, f->re, f->behavior, name, e) != 0 ||
        pretok_finish(p, e) != 0) {
        pretok_free(p);
        return -1;
    }
    *out = p;
    return 0;
}

const char *pretok_name(const struct pretok *p)
{
    return p->name;
}

const char *pretok_text(const struct pretok *p)
{
    return str_c(&p->text);
}

/* ---- splitting ---- */

int pretok_work_new(struct pretok_work **out, const struct pretok *p, struct err *e)
{
    struct pretok_work *w = calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, sizeof *w, "pre-tokenizer");
    bool ok = (w->ctx = pcre2_match_context_create(NULL)) != NULL;
    for (int i = 0; ok && i < p->n; i++)
        if (p->step[i].re)
            ok = (w->md[i] = pcre2_match_data_create_from_pattern(p->step[i].re, NULL)) != NULL;
    if (!ok) {
        pretok_work_free(w);
        return err_nomem(e, 0, "pre-tokenizer");
    }
    *out = w;
    return 0;
}

void pretok_work_free(struct pretok_work *w)
{
    if (!w)
        return;
    for (int i = 0; i < PRETOK_MAX_STEPS; i++)
        pcre2_match_data_free(w->md[i]);
    pcre2_match_context_free(w->ctx);
    free(w);
}

struct split {
    const struct pretok *p;
    struct pretok_work *w;
    int (*fn)(void *ctx, const char *piece, size_t n, struct err *e);
    void *ctx;
    struct err *e;
};
static int split_from(const struct split *s, int k, const char *text, size_t n);

static bool is_digit_at(const char *p, size_t n, size_t *len)
{
    unsigned char c = (unsigned char)*p;
    *len = 1;
    if (c < 0x80)
        return c >= '0' && c <= '9';
    utf8proc_int32_t cp = 0;
    utf8proc_ssize_t l = utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)n, &cp);
    if (l < 1)
        return false;
    *len = (size_t)l;
    utf8proc_category_t cat = utf8proc_category(cp);
    return cat == UTF8PROC_CATEGORY_ND || cat == UTF8PROC_CATEGORY_NL || cat == UTF8PROC_CATEGORY_NO;
}

static int split_digits(const struct split *s, int k, const char *text, size_t n)
{
    bool each = s->p->step[k].kind == PRETOK_DIGITS_EACH, was = false;
    size_t from = 0, len;
    for (size_t i = 0; i < n; i += len) {
        bool digit = is_digit_at(text + i, n - i, &len);
        if (i > from && (digit != was || (digit && each))) {
            TRY(split_from(s, k + 1, text + from, i - from));
            from = i;
        }
        was = digit;
    }
    return from < n ? split_from(s, k + 1, text + from, n - from) : 0;
}

static bool ascii_letter(unsigned char c)
{
    return (unsigned)(c | 0x20) - 'a' < 26;
}

static bool ascii_digit(unsigned char c)
{
    return (unsigned)c - '0' < 10;
}

/*
 * The end of the piece at pos where the known rules agree on it by ASCII alone, else 0 (the expression decides): letters with the space
 * before them, digits, one mark with a space behind it. Behind a run there must stand another ASCII character or the end: the run may go on
 * in others.
 */
static size_t plain_end(const struct step *st, const unsigned char *t, size_t n, size_t pos)
{
    size_t i = pos + (t[pos] == ' ');
    if (i < n && ascii_letter(t[i])) {
        while (i < n && ascii_letter(t[i]))
            i++;
        return i == n || t[i] < 0x80 ? i : 0;
    }
    if (i < n && ascii_digit(t[i]) && (i == pos || st->digits == DIGITS_ALL)) {
        size_t most = st->digits == DIGITS_ALL ? n : MIN(n, i + (size_t)st->digits);
        while (i < most && ascii_digit(t[i]))
            i++;
        return i == n || t[i] < 0x80 ? i : 0;
    }
    return i == pos && i + 1 < n && t[i + 1] == ' ' && t[i] > ' ' && t[i] < 0x7f ? i + 1 : 0;
}

static int split_regex(const struct split *s, int k, const char *text, size_t n)
{
    const struct step *st = &s->p->step[k];
    pcre2_match_data *md = s->w->md[k];
    const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(md);
    size_t pos = 0;
    while (pos < n) {
        size_t plain = st->digits ? plain_end(st, (const unsigned char *)text, n, pos) : 0;
        if (plain) {
            TRY(split_from(s, k + 1, text + pos, plain - pos));
            pos = plain;
            continue;
        }
        int rc = st->jit ? pcre2_jit_match(st->re, (PCRE2_SPTR)text, n, pos, PCRE2_NO_UTF_CHECK, md, s->w->ctx)
                         : pcre2_match(st->re, (PCRE2_SPTR)text, n, pos, PCRE2_NO_UTF_CHECK, md, s->w->ctx);
        if (st->jit && rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(st->re, (PCRE2_SPTR)text, n, pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, md, s->w->ctx);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0) {
            char msg[200] = "";
            pcre2_get_error_message(rc, (PCRE2_UCHAR *)msg, sizeof msg);
            return ERR(s->e, E_INPUT, "the split expression failed at byte %zu of a text of %zu bytes: %s", pos, n, msg);
        }
        size_t a = ov[0], b = ov[1];
        if (b <= a || a < pos || b > n)
            return ERR(s->e, E_INPUT, "the split expression matched nothing at byte %zu of a text of %zu bytes", pos, n);
        if (a > pos && st->behavior == PRETOK_ISOLATED)
            TRY(split_from(s, k + 1, text + pos, a - pos));
        TRY(split_from(s, k + 1, text + a, b - a));
        pos = b;
    }
    return pos < n && st->behavior == PRETOK_ISOLATED ? split_from(s, k + 1, text + pos, n - pos) : 0;
}

static int split_from(const struct split *s, int k, const char *text, size_t n)
{
    if (k == s->p->n)
        return s->fn(s->ctx, text, n, s->e);
    return s->p->step[k].kind == PRETOK_REGEX ? split_regex(s, k, text, n) : split_digits(s, k, text, n);
}

int pretok_split(const struct pretok *p, struct pretok_work *w, const char *text, size_t n,
                 int (*fn)(void *ctx, const char *piece, size_t n, struct err *e), void *ctx, struct err *e)
{
    struct split s = {.p = p, .w = w, .fn = fn, .ctx = ctx, .e = e};
    return n ? split_from(&s, 0, text, n) : 0;
}

size_t utf8_check(const char *text, size_t n, bool *ascii)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0;
    *ascii = true;
    for (;;) {
        uint64_t w;
        while (n - i >= 8 && (memcpy(&w, p + i, 8), !(w & 0x8080808080808080ull)))
            i += 8;
        while (i < n && p[i] < 0x80)
            i++;
        if (i == n)
            return n;
        *ascii = false;
        unsigned c = p[i];
        size_t len = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : 2;
        if (c < 0xC2 || c > 0xF4 || n - i < len)
            return i;
        /* Second byte: no overlong forms, no surrogates, nothing above U+10FFFF. */
        unsigned lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
        if (p[i + 1] < lo || p[i + 1] > hi)
            return i;
        for (size_t k = 2; k < len; k++)
            if ((p[i + k] & 0xC0) != 0x80)
                return i;
        i += len;
    }
}
