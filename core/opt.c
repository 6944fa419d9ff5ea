#include "core/opt.h"

#include <stdio.h>
#include <string.h>

#include "core/jwrite.h"
#include "core/str.h"

enum { MAX_OPTS = 256 };

/* ---- walking over the words: shared by opt_parse and opt_given, so that they cannot disagree ---- */

struct walk {
    const struct opt *opts;
    size_t n_opts;
    int argc, at;
    char **argv;
    const struct opt *list; /* a multi list that takes words until the next option */
    bool only_pos;          /* behind "--" */
};
struct word {
    const struct opt *o; /* NULL: positional */
    const char *value;   /* NULL for a flag */
    bool off;            /* --no-flag */
    bool begins;         /* the option itself stood here: false for the later words of a multi list */
};

static bool is_option(const char *w)
{
    return w[0] == '-' && w[1] == '-';
}

static const struct opt *find(const struct opt *opts, size_t n_opts, const char *name, size_t len)
{
    for (size_t i = 0; i < n_opts; i++)
        if (strlen(opts[i].name) == len && memcmp(opts[i].name, name, len) == 0)
            return &opts[i];
    return NULL;
}

static int unknown(const struct walk *w, const char *name, size_t len, struct err *e)
{
    const char *names[MAX_OPTS];
    char word[128];
    size_t n = MIN(w->n_opts, (size_t)MAX_OPTS);
    snprintf(word, sizeof word, "%.*s", (int)MIN(len, (size_t)100), name);
    for (size_t i = 0; i < n; i++)
        names[i] = w->opts[i].name;
    const char *near = nearest_word(word, names, n);
    if (near)
        return ERR(e, E_USAGE, "unknown option '--%s'; did you mean '--%s'?", word, near);
    return ERR(e, E_USAGE, "unknown option '--%s'; --help lists the options", word);
}

/* "-h" where the table has "help"; other single-dash words are options nowhere, and only numbers and "-" are words. */
static int short_word(const struct walk *w, const char *a, struct word *out, struct err *e)
{
    double number;
    *out = (struct word){.value = a};
    if (a[1] == 0 || parse_f64(a, &number))
        return 1;
    if (strcmp(a, "-h") == 0 && (out->o = find(w->opts, w->n_opts, "help", 4)) != NULL) {
        *out = (struct word){.o = out->o, .begins = true};
        return 1;
    }
    return ERR(e, E_USAGE, "unknown option '%s'; options are written with two dashes (put -- before a file name that starts with one)", a);
}

/* 1 = one word in *out, 0 = the end, -1 = error. */
static int next_word(struct walk *w, struct word *out, struct err *e)
{
    if (w->at >= w->argc)
        return 0;
    const char *a = w->argv[w->at++];
    if (w->only_pos || !is_option(a)) {
        if (w->list && !w->only_pos) {
            *out = (struct word){.o = w->list, .value = a};
            return 1;
        }
        if (!w->only_pos && a[0] == '-')
            return short_word(w, a, out, e);
        *out = (struct word){.value = a};
        return 1;
    }
    w->list = NULL;
    if (a[2] == 0) {
        w->only_pos = true;
        return next_word(w, out, e);
    }
    const char *name = a + 2, *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    const struct opt *o = find(w->opts, w->n_opts, name, len);
    bool off = false;
    if (!o && len > 3 && memcmp(name, "no-", 3) == 0) {
        o = find(w->opts, w->n_opts, name + 3, len - 3);
        off = true;
        if (o && o->type != OPT_BOOL)
            return ERR(e, E_USAGE, "'--%s' is no flag: there is no '--no-%s'", o->name, o->name);
    }
    if (!o)
        return unknown(w, name, len, e);
    *out = (struct word){.o = o, .off = off, .begins = true, .value = eq ? eq + 1 : NULL};
    if (o->type == OPT_BOOL)
        return eq ? ERR(e, E_USAGE, "'--%s' takes no value; write --%s or --no-%s", o->name, o->name, o->name) : 1;
    if (eq)
        return 1;
    const char *arg = o->arg ? o->arg : "VALUE";
    if (w->at >= w->argc)
        return ERR(e, E_USAGE, "'--%s' needs a value: --%s %s", o->name, o->name, arg);
    if (is_option(w->argv[w->at]))
        return ERR(e, E_USAGE, "'--%s' needs a value: --%s %s (a value that starts with -- is attached: --%s=%.60s)", o->name, o->name, arg,
                   o->name, w->argv[w->at]);
    out->value = w->argv[w->at++];
    w->list = o->type == OPT_LIST && o->multi ? o : NULL;
    return 1;
}

/* ---- values ---- */

static int out_of_range(const struct opt *o, const char *v, struct err *e)
{
    char lo[32], hi[32];
    snprintf(lo, sizeof lo, "%.15g", o->lo);
    snprintf(hi, sizeof hi, "%.15g", o->hi);
    return ERR(e, E_USAGE, "'--%s %s': out of range %s to %s", o->name, v, lo, hi);
}

static int no_number(const struct opt *o, const char *v, const char *expected, struct err *e)
{
    char meant[64];
    if (number_meant(v, meant))
        return ERR(e, E_USAGE, "'--%s %s': did you mean %s? k is 1000, M is 1000k, G is 1000M", o->name, v, meant);
    return ERR(e, E_USAGE, "'--%s %s': expected %s", o->name, v, expected);
}

static int set_word(const struct opt *o, const char *v, struct err *e)
{
    size_t n = 0;
    struct str s = STR_INIT;
    for (; o->words[n]; n++) {
        if (strcmp(o->words[n], v) == 0) {
            str_free(&s);
            *(const char **)o->dst = v;
            return 0;
        }
        str_printf(&s, "%s%s", n ? ", " : "", o->words[n]);
    }
    const char *near = nearest_word(v, o->words, n);
    ERR(e, E_USAGE, "'--%s %s': expected one of %s%s%s%s", o->name, v, str_c(&s), near ? "; did you mean '" : "", near ? near : "",
        near ? "'?" : "");
    str_free(&s);
    return -1;
}

static int set_value(const struct opt *o, const struct word *w, bool first, struct err *e)
{
    bool bounded = o->lo < o->hi;
    const char *v = w->value;
    switch (o->type) {
    case OPT_BOOL:
        *(bool *)o->dst = !w->off;
        return 0;
    case OPT_I64: {
        int64_t x;
        if (!parse_i64(v, &x))
            return no_number(o, v, "an integer (such as 12, 20k, 600M, 1e6)", e);
        if (bounded && ((double)x < o->lo || (double)x > o->hi))
            return out_of_range(o, v, e);
        *(int64_t *)o->dst = x;
        return 0;
    }
    case OPT_F64: {
        double x;
        if (!parse_f64(v, &x))
            return no_number(o, v, "a number (such as 0.5, 1e-3)", e);
        if (bounded && (x < o->lo || x > o->hi))
            return out_of_range(o, v, e);
        *(double *)o->dst = x;
        return 0;
    }
    case OPT_STR:
        if (o->words)
            return set_word(o, v, e);
        *(const char **)o->dst = v;
        return 0;
    case OPT_LIST: {
        struct opt_list *l = o->dst;
        if (first)
            l->n = 0; /* what stood there was the default */
        if (l->n == ARRAY_LEN(l->v))
            return ERR(e, E_USAGE, "'--%s': more than %zu values", o->name, ARRAY_LEN(l->v));
        l->v[l->n++] = v;
        return 0;
    }
    }
    BUG("option type %d", (int)o->type);
}

int opt_parse(const struct opt *opts, size_t n_opts, int argc, char **argv, const char **pos, size_t max_pos, size_t *n_pos, struct err *e)
{
    struct walk w = {.opts = opts, .n_opts = n_opts, .argc = argc, .argv = argv};
    bool seen[MAX_OPTS] = {false};
    struct word word;
    int rc;
    if (n_opts > MAX_OPTS)
        BUG("%zu options in one table", n_opts);
    *n_pos = 0;
    while ((rc = next_word(&w, &word, e)) == 1) {
        if (word.o) {
            size_t i = (size_t)(word.o - opts);
            TRY(set_value(word.o, &word, !seen[i], e));
            seen[i] = true;
        } else if (*n_pos == max_pos) {
            return max_pos == 0 ? ERR(e, E_USAGE, "unexpected argument '%s'; this command takes options only", word.value)
                                : ERR(e, E_USAGE, "unexpected argument '%s'; at most %zu expected", word.value, max_pos);
        } else
            pos[(*n_pos)++] = word.value;
    }
    return rc;
}

bool opt_given(const struct opt *opts, size_t n_opts, int argc, char **argv, const char *name)
{
    struct walk w = {.opts = opts, .n_opts = n_opts, .argc = argc, .argv = argv};
    struct word word;
    struct err ignored = ERR_INIT;
    while (next_word(&w, &word, &ignored) == 1)
        if (word.o && strcmp(word.o->name, name) == 0)
            return true;
    return false;
}

/* ---- help ---- */

static void put_default(struct str *out, const struct opt *o)
{
    char num[32];
    switch (o->type) {
    case OPT_BOOL:
        if (*(const bool *)o->dst)
            str_printf(out, " [on; --no-%s]", o->name);
        break;
    case OPT_I64:
        str_printf(out, " [%" PRId64 "]", *(const int64_t *)o->dst);
        break;
    case OPT_F64:
        fmt_f64(num, *(const double *)o->dst);
        str_printf(out, " [%s]", num);
        break;
    case OPT_STR:
        if (*(const char *const *)o->dst)
            str_printf(out, " [%s]", *(const char *const *)o->dst);
        break;
    case OPT_LIST: {
        const struct opt_list *l = o->dst;
        for (size_t i = 0; i < l->n; i++)
            str_printf(out, "%s%s%s", i ? " " : " [", l->v[i], i + 1 == l->n ? "]" : "");
        break;
    }
    }
}

/* Words of `text` from column `indent` on, wrapped at 100 columns; the cursor stands at column `col`. */
static void wrap(struct str *out, const char *text, size_t indent, size_t col)
{
    enum { WIDTH = 100 };
    while (*text) {
        size_t len = strcspn(text, " \n"), shown = utf8_count(text, len);
        if (col > indent && col + 1 + shown > WIDTH) {
            str_printf(out, "\n%*s", (int)indent, "");
            col = indent;
        } else if (col > indent) {
            str_putc(out, ' ');
            col++;
        }
        str_add(out, text, len);
        col += shown;
        text += len;
        text += strspn(text, " \n");
    }
    str_putc(out, '\n');
}

static void put_option(struct str *out, const struct opt *o)
{
    enum { INDENT = 28 };
    struct str left = STR_INIT, right = STR_INIT;
    str_printf(&left, "  --%s", o->name);
    if (o->type != OPT_BOOL)
        str_printf(&left, " %s%s", o->arg ? o->arg : "VALUE", o->type == OPT_LIST && o->multi ? "..." : "");
    str_puts(&right, o->help ? o->help : "");
    for (size_t i = 0; o->words && o->words[i]; i++)
        str_printf(&right, "%s%s", i ? "|" : right.len ? ": " : "", o->words[i]);
    if (o->type == OPT_LIST && !o->multi)
        str_puts(&right, " (may be repeated)");
    put_default(&right, o);
    str_puts(out, str_c(&left));
    if (left.len + 2 > INDENT)
        str_printf(out, "\n%*s", INDENT, "");
    else
        str_printf(out, "%*s", (int)(INDENT - left.len), "");
    wrap(out, str_c(&right), INDENT, INDENT);
    str_free(&left);
    str_free(&right);
}

static bool same_group(const struct opt *a, const struct opt *b)
{
    return strcmp(a->group ? a->group : "Options", b->group ? b->group : "Options") == 0;
}

void opt_help(struct str *out, const char *synopsis, const char *about, const char *examples, const struct opt *opts, size_t n_opts)
{
    str_printf(out, "usage: %s\n", synopsis);
    if (about && *about)
        str_printf(out, "\n%s\n", about);
    if (examples && *examples)
        str_printf(out, "\nExamples:\n%s%s", examples, examples[strlen(examples) - 1] == '\n' ? "" : "\n");
    /* Groups in the order of their first option. */
    for (size_t i = 0; i < n_opts; i++) {
        bool shown = false;
        for (size_t j = 0; j < i && !shown; j++)
            shown = same_group(&opts[i], &opts[j]);
        if (shown)
            continue;
        str_printf(out, "\n%s:\n", opts[i].group ? opts[i].group : "Options");
        for (size_t j = i; j < n_opts; j++)
            if (same_group(&opts[i], &opts[j]))
                put_option(out, &opts[j]);
    }
}
