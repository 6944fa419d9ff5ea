#include "ruler/punkt.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "core/fs.h"
#include "ruler/text.h"

enum { MID_UC = 4, BEG_LC = 16, ANY_UC = 14, ANY_LC = 112 };

struct punkt {
    struct list abbrev, starters, colloc /* "a\tb" */, ortho;
    unsigned char *flags; /* [ortho.n] */
};

void punkt_free(struct punkt *p)
{
    if (!p)
        return;
    list_free(&p->abbrev);
    list_free(&p->starters);
    list_free(&p->colloc);
    list_free(&p->ortho);
    free(p->flags);
    free(p);
}

/* "word\tflags" lines become the sorted list of words and their flags beside them. */
static int split_ortho(struct punkt *p, const char *path, struct err *e)
{
    list_sort_unique(&p->ortho);
    p->flags = malloc(p->ortho.n + 1);
    if (!p->flags)
        return err_nomem(e, p->ortho.n + 1, "sentence parameters");
    /* cutting at the tab keeps the order only where a prefix stays before its longer words: sort "word" and its flag together */
    for (size_t i = 0; i < p->ortho.n; i++) {
        char *tab = strrchr(p->ortho.v[i], '\t');
        int64_t v;
        if (!tab || !parse_i64(tab + 1, &v) || v < 0 || v > 127)
            return ERR(e, E_INPUT, "'%s': record %zu is not 'word, tab, number up to 127'", path, i + 1);
        *tab = 1; /* below every character of a word, as the end of the string is */
        tab[1] = (char)(v + 1);
        tab[2] = 0;
    }
    list_sort_unique(&p->ortho);
    for (size_t i = 0; i < p->ortho.n; i++) {
        size_t n = strlen(p->ortho.v[i]);
        p->flags[i] = (unsigned char)(p->ortho.v[i][n - 1] - 1);
        p->ortho.v[i][n - 2] = 0;
    }
    return 0;
}

/* The English parameters have been the same since 2006; fewer records are a file that was cut off, and other sentences. */
static int check_counts(const struct punkt *p, const char *dir, struct err *e)
{
    const struct {
        const char *file;
        size_t have, want;
    } f[] = {{"abbrev_types.txt", p->abbrev.n, 156},
             {"sent_starters.txt", p->starters.n, 39},
             {"collocations.tab", p->colloc.n, 37},
             {"ortho_context.tab", p->ortho.n, 20366}};
    for (size_t i = 0; i < ARRAY_LEN(f); i++)
        if (f[i].have != f[i].want)
            return ERR(e, E_INPUT,
                       "sentence parameters '%s/%s': %zu records, the English ones have %zu; the file is not whole, or of another language",
                       dir, f[i].file, f[i].have, f[i].want);
    return 0;
}

int punkt_load(struct punkt **out, const char *dir, struct err *e)
{
    struct punkt *p = calloc(1, sizeof *p);
    char path[1024];
    if (!p)
        return err_nomem(e, sizeof *p, "sentence parameters");
    int rc = list_load(&p->abbrev, path_join(path, dir, "abbrev_types.txt"), false, e);
    if (!rc)
        rc = list_load(&p->starters, path_join(path, dir, "sent_starters.txt"), false, e);
    if (!rc)
        rc = list_load(&p->colloc, path_join(path, dir, "collocations.tab"), false, e);
    if (!rc)
        rc = list_load(&p->ortho, path_join(path, dir, "ortho_context.tab"), true, e);
    if (!rc)
        rc = split_ortho(p, path, e);
    list_sort_unique(&p->abbrev);
    list_sort_unique(&p->starters);
    list_sort_unique(&p->colloc);
    if (!rc)
        rc = check_counts(p, dir, e);
    if (rc)
        punkt_free(p);
    else
        *out = p;
    return rc;
}

/* ---- the text as code points ---- */

struct text {
    const uint32_t *c;
    const char *bytes;
    const size_t *at; /* [n+1] byte offset of each code point */
    size_t n;
};

struct token {
    size_t from, to;
    bool brk, abbr, ellipsis;
    struct str type; /* lower-cased, numbers replaced */
};

struct scan {
    const struct punkt *p;
    struct text t;
    struct token *tok;
    size_t n_tok, cap_tok;
    struct str tmp;
};

static bool in_set(uint32_t c, const char *set)
{
    return c && c < 0x80 && strchr(set, (int)c);
}
static bool non_word(uint32_t c)
{
    return in_set(c, ")\";}]*:@'({[!?");
}
static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}
static bool is_digit(uint32_t c)
{
    return c < 0x80 ? c >= '0' && c <= '9' : category(c) == UTF8PROC_CATEGORY_ND;
}
static bool is_upper(uint32_t c)
{
    return c < 0x80 ? c >= 'A' && c <= 'Z' : category(c) == UTF8PROC_CATEGORY_LU;
}
static bool is_lower(uint32_t c)
{
    return c < 0x80 ? c >= 'a' && c <= 'z' : category(c) == UTF8PROC_CATEGORY_LL;
}
/* [^\W\d] */
static bool is_letter(uint32_t c)
{
    utf8proc_category_t k = category(c);
    return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

/* Length of `--+`, `..+` or `. . .` at i, 0 = none. */
static size_t multi_char(const uint32_t *c, size_t i, size_t end)
{
    size_t j = i;
    if (i >= end || (c[i] != '-' && c[i] != '.'))
        return 0;
    while (j < end && c[j] == c[i])
        j++;
    if (j - i >= 2)
        return j - i;
    if (c[i] != '.')
        return 0;
    size_t pairs = 0;
    for (j = i; j + 1 < end && c[j] == '.' && py_isspace(c[j + 1]); j += 2)
        pairs++;
    if (pairs >= 2 && j < end && c[j] == '.')
        return j + 1 - i;
    /* the last pair may have to be given back: then a dot stands where the pair began */
    return pairs >= 3 ? j - 1 - i : 0;
}

/* A word may end before j: white space, the end, a non-word character or a multi-character item follows. */
static bool word_end(const uint32_t *c, size_t j, size_t end)
{
    return j >= end || py_isspace(c[j]) || non_word(c[j]) || multi_char(c, j, end);
}

static size_t token_len(const uint32_t *c, size_t i, size_t end)
{
    size_t m = multi_char(c, i, end);
    if (m)
        return m;
    if (in_set(c[i], "(\"`{[:;&#*@)}]-,"))
        return 1;
    for (size_t j = i + 1; j <= end; j++) {
        if (word_end(c, j, end) || (c[j] == ',' && word_end(c, j + 1, end)))
            return j - i;
        if (py_isspace(c[j]))
            break;
    }
    return 1;
}

static bool is_number(const uint32_t *c, size_t n)
{
    size_t i = 0;
    if (i < n && c[i] == '-')
        i++;
    if (i < n && (c[i] == '.' || c[i] == ','))
        i++;
    if (i >= n || !is_digit(c[i]))
        return false;
    for (; i < n; i++)
        if (!is_digit(c[i]) && !in_set(c[i], ",.-"))
            return false;
    return true;
}

static size_t no_period(const struct token *t)
{
    return t->type.len > 1 && t->type.p[t->type.len - 1] == '.' ? t->type.len - 1 : t->type.len;
}
static size_t no_sent_period(const struct token *t)
{
    return t->brk ? no_period(t) : t->type.len;
}

static int ortho_flags(const struct punkt *p, const struct token *t)
{
    int64_t i = list_find(&p->ortho, str_c(&t->type), no_sent_period(t));
    return i < 0 ? 0 : p->flags[i];
}

static void first_pass(struct scan *s, struct token *t)
{
    const uint32_t *c = s->t.c + t->from;
    size_t n = t->to - t->from, dots = 0;
    str_clear(&t->type);
    str_clear(&s->tmp);
    py_lower(&s->tmp, s->t.bytes + s->t.at[t->from], s->t.at[t->to] - s->t.at[t->from]);
    if (is_number(c, n))
        str_puts(&t->type, "##number##");
    else
        str_add(&t->type, str_c(&s->tmp), s->tmp.len);
    t->brk = t->abbr = t->ellipsis = false;
    while (dots < n && c[dots] == '.')
        dots++;
    if (n == 1 && in_set(c[0], ".?!"))
        t->brk = true;
    else if (dots == n && n >= 2)
        t->ellipsis = true;
    else if (c[n - 1] == '.' && !(n >= 2 && c[n - 2] == '.')) {
        const char *w = str_c(&s->tmp);
        size_t len = s->tmp.len - 1, dash = len;
        while (dash > 0 && w[dash - 1] != '-')
            dash--;
        if (list_find(&s->p->abbrev, w, len) >= 0 || list_find(&s->p->abbrev, w + dash, len - dash) >= 0)
            t->abbr = true;
        else
            t->brk = true;
    }
}

enum verdict { NO, YES, UNKNOWN };
static enum verdict ortho_heuristic(const struct scan *s, const struct token *t)
{
    uint32_t c = s->t.c[t->from];
    if (t->to - t->from == 1 && in_set(c, ";:,.!?"))
        return NO;
    int f = ortho_flags(s->p, t);
    if (is_upper(c) && (f & ANY_LC) && !(f & MID_UC))
        return YES;
    if (is_lower(c) && ((f & ANY_UC) || !(f & BEG_LC)))
        return NO;
    return UNKNOWN;
}

static void second_pass(struct scan *s, struct token *a, const struct token *b)
{
    const uint32_t *c = s->t.c;
    if (c[a->to - 1] != '.')
        return;
    bool initial = a->to - a->from == 2 && is_letter(c[a->from]);
    bool upper = is_upper(c[b->from]);
    size_t an = no_period(a), bn = no_sent_period(b);
    str_clear(&s->tmp);
    str_add(&s->tmp, str_c(&a->type), an);
    str_putc(&s->tmp, '\t');
    str_add(&s->tmp, str_c(&b->type), bn);
    if (list_find(&s->p->colloc, str_c(&s->tmp), s->tmp.len) >= 0) {
        a->brk = false;
        a->abbr = true;
        return;
    }
    if ((a->abbr || a->ellipsis) && !initial) {
        if (ortho_heuristic(s, b) == YES || (upper && list_find(&s->p->starters, str_c(&b->type), bn) >= 0)) {
            a->brk = true;
            return;
        }
    }
    if (initial || (an == 10 && memcmp(a->type.p, "##number##", 10) == 0)) {
        enum verdict v = ortho_heuristic(s, b);
        if (v == NO || (v == UNKNOWN && initial && upper && !(ortho_flags(s->p, b) & ANY_LC))) {
            a->brk = false;
            a->abbr = true;
        }
    }
}

static int push_token(struct scan *s, size_t from, size_t to, struct err *e)
{
    if (s->n_tok == s->cap_tok) {
        size_t cap = s->cap_tok ? 2 * s->cap_tok : 32;
        struct token *t = realloc(s->tok, cap * sizeof *t);
        if (!t)
            return err_nomem(e, cap * sizeof *t, "tokens of a sentence");
        memset(t + s->cap_tok, 0, (cap - s->cap_tok) * sizeof *t);
        s->tok = t;
        s->cap_tok = cap;
    }
    struct token *t = &s->tok[s->n_tok++];
    t->from = from;
    t->to = to;
    first_pass(s, t);
    return 0;
}

/* Does the context [from, to) hold a break that another token follows? Lines are read one by one, as the reference does. */
static int has_break(struct scan *s, size_t from, size_t to, bool *yes, struct err *e)
{
    const uint32_t *c = s->t.c;
    s->n_tok = 0;
    for (size_t i = from; i < to;) {
        size_t end = i;
        while (end < to && c[end] != '\n')
            end++;
        while (i < end) {
            if (py_isspace(c[i])) {
                i++;
                continue;
            }
            size_t len = token_len(c, i, end);
            TRY(push_token(s, i, i + len, e));
            i += len;
        }
        i = end + 1;
    }
    *yes = false;
    for (size_t i = 0; i + 1 < s->n_tok; i++) {
        second_pass(s, &s->tok[i], &s->tok[i + 1]);
        *yes |= s->tok[i].brk;
    }
    return 0;
}

struct spans {
    struct span *v;
    size_t n, cap;
};
static int push_span(struct spans *s, size_t from, size_t to, struct err *e)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        struct span *v = realloc(s->v, cap * sizeof *v);
        if (!v)
            return err_nomem(e, cap * sizeof *v, "sentences");
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = (struct span){from, to};
    return 0;
}

struct cand {
    size_t mark, start, after_end, next; /* next: start of the next token, 0 = none */
    bool set;
};

static bool candidate(const struct text *t, size_t m, struct cand *k)
{
    if (!in_set(t->c[m], ".?!") || m + 1 >= t->n)
        return false;
    size_t j = m + 1;
    *k = (struct cand){.mark = m, .after_end = m + 2, .set = true};
    if (non_word(t->c[j]))
        return true;
    while (j < t->n && py_isspace(t->c[j]))
        j++;
    if (j == m + 1 || j == t->n)
        return false;
    k->next = j;
    while (j < t->n && !py_isspace(t->c[j]))
        j++;
    k->after_end = j;
    return true;
}

static int emit(struct scan *s, const struct cand *k, size_t *last, struct spans *out, struct err *e)
{
    bool yes;
    TRY(has_break(s, k->start, k->after_end, &yes, e));
    if (!yes)
        return 0;
    TRY(push_span(out, *last, k->mark + 1, e));
    *last = k->next ? k->next : k->mark + 1;
    return 0;
}

static int slices(struct scan *s, struct spans *out, struct err *e)
{
    const struct text *t = &s->t;
    struct cand prev = {0}, k;
    size_t last = 0, end = t->n;
    for (size_t m = 0; m < t->n; m++) {
        if (!candidate(t, m, &k))
            continue;
        size_t stop = prev.set ? prev.mark : 0, w = m;
        while (w > stop + 1 && !(t->c[w - 1] < 0x80 && strchr(" \t\n\r\v\f", (int)t->c[w - 1]) && t->c[w - 1]))
            w--;
        k.start = w > stop + 1 ? w : prev.start;
        if (prev.set && stop <= k.start)
            TRY(emit(s, &prev, &last, out, e));
        prev = k;
    }
    if (prev.set)
        TRY(emit(s, &prev, &last, out, e));
    while (end > 0 && py_isspace(t->c[end - 1]))
        end--;
    return push_span(out, last, MAX(last, end), e);
}

/* Closing marks at the start of [from, to): length of the match, 0 = none; *marks without the white space. */
static size_t closing(const uint32_t *c, size_t from, size_t to, size_t *marks)
{
    for (size_t j = from; j < to && in_set(c[j], "\"')]}");) {
        size_t k = ++j;
        while (k < to && py_isspace(c[k]))
            k++;
        if (k > j || j == to || (j + 1 < to && c[j] == '-' && c[j + 1] == '-')) {
            *marks = j - from;
            return k - from;
        }
    }
    return 0;
}

static int realign(const uint32_t *c, const struct spans *in, struct spans *out, struct err *e)
{
    size_t carry = 0;
    for (size_t i = 0; i < in->n; i++) {
        size_t from = in->v[i].from + carry, to = in->v[i].to, marks = 0;
        carry = i + 1 < in->n ? closing(c, in->v[i + 1].from, in->v[i + 1].to, &marks) : 0;
        if (carry)
            TRY(push_span(out, from, in->v[i + 1].from + marks, e));
        else if (from < to)
            TRY(push_span(out, from, to, e));
    }
    return 0;
}

int punkt_split(const struct punkt *p, const char *text, size_t n, struct span **out, size_t *n_out, struct err *e)
{
    uint32_t *c = malloc((n + 1) * sizeof *c);
    size_t *at = malloc((n + 1) * sizeof *at), k = 0;
    struct spans raw = {0}, res = {0};
    struct scan s = {.p = p};
    int rc = c && at ? 0 : err_nomem(e, n * 12, "sentence boundaries");
    for (size_t i = 0; !rc && i < n; k++) {
        int len;
        bool bad = false;
        c[k] = utf8_next(text + i, n - i, &len, &bad);
        at[k] = i;
        i += (size_t)len;
    }
    if (!rc) {
        at[k] = n;
        s.t = (struct text){c, text, at, k};
        rc = slices(&s, &raw, e);
    }
    if (!rc)
        rc = realign(c, &raw, &res, e);
    for (size_t i = 0; !rc && i < res.n; i++)
        res.v[i] = (struct span){at[res.v[i].from], at[res.v[i].to]};
    for (size_t i = 0; i < s.cap_tok; i++)
        str_free(&s.tok[i].type);
    free(s.tok);
    str_free(&s.tmp);
    free(raw.v);
    free(c);
    free(at);
    if (rc) {
        free(res.v);
        return rc;
    }
    *out = res.v;
    *n_out = res.n;
    return 0;
}
