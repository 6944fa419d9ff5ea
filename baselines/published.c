/* Published: a set from baselines/index_sets.tsv (model, layers, student, selector, K, order, indices, source, note). A set in
 * importance order also serves every smaller K. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/selector.h"
#include "core/fs.h"

enum { COLS = 9 };

/* Splits one line into its columns; missing ones are "". */
static void split(char *line, char *col[COLS])
{
    static char none[1];
    for (int i = 0; i < COLS; i++) {
        col[i] = line ? line : none;
        char *tab = line ? strchr(line, '\t') : NULL;
        if (tab)
            *tab = 0;
        line = tab ? tab + 1 : NULL;
    }
}

/* The selector's name as the table writes it: '-' is '_'. */
static bool same_selector(const char *asked, const char *row)
{
    for (; *asked && *row; asked++, row++)
        if (*asked != *row && !(*asked == '-' && *row == '_'))
            return false;
    return *asked == *row;
}

static int take(char *col[COLS], const struct select_input *in, struct selection *out, struct err *e)
{
    int n = 0;
    for (int l = 0; l < in->layers; l++)
        out->kind[l] = MIX_GDN;
    for (char *p = col[6]; *p && n < in->budget; n++) {
        char *end;
        long l = strtol(p, &end, 10);
        if (end == p || l < 0 || l >= in->layers)
            return ERR(e, E_INPUT, "'%s': published set '%s' of '%s' has an index outside 0..%d", in->sets_path, col[3], col[0],
                       in->layers - 1);
        if (out->kind[l] == MIX_FULL)
            return ERR(e, E_INPUT, "'%s': published set '%s' of '%s' names layer %ld twice", in->sets_path, col[3], col[0], l);
        if (in->exclude && in->exclude[l])
            return ERR(e, E_USAGE, "published set '%s' of '%s' keeps layer %ld, which is excluded", col[3], col[0], l);
        out->kind[l] = MIX_FULL;
        p = end + (*end == ',');
    }
    snprintf(out->variant, sizeof out->variant, "%.24s of %.28s", col[3], col[0]);
    return 0;
}

static void add_word(struct str *s, const char *word)
{
    char spaced[160];
    snprintf(spaced, sizeof spaced, " %.156s,", word);
    if (!strstr(str_c(s), spaced))
        str_puts(s, spaced);
}

/* Whose rows count: the model named, else the one the teacher's folder is called. */
static const char *model_name(const struct select_input *in)
{
    if (in->model && *in->model)
        return in->model;
    return in->teacher ? path_base(in->teacher->path) : "";
}

/* What there is, for the message of what there is not. */
struct offered {
    struct str models, selectors, budgets; /* all; of the model with this many layers; of the selector asked for */
    bool as_deep;                          /* a model has as many layers */
};

static int none_fits(const struct select_input *in, const struct offered *o, struct err *e)
{
    if (!o->selectors.len)
        return ERR(e, E_USAGE, "there is no published set for '%s' with %d layers; there are sets for%.*s%s", model_name(in), in->layers,
                   (int)o->models.len - 1, str_c(&o->models),
                   o->as_deep ? "; --published-model NAME takes those of a model with as many layers" : "");
    if (!o->budgets.len)
        return ERR(e, E_USAGE, "there is no published set of '%s' for '%s'; there are sets of%.*s", in->of, model_name(in),
                   (int)o->selectors.len - 1, str_c(&o->selectors));
    return ERR(e, E_USAGE, "no published set of '%s' for '%s' keeps %d of %d layers; there are sets of%.*s", in->of, model_name(in),
               in->budget, in->layers, (int)o->budgets.len - 1, str_c(&o->budgets));
}

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    struct str text = STR_INIT;
    struct offered there = {STR_INIT, STR_INIT, STR_INIT, false};
    if (!in->of || !*in->of)
        return ERR(e, E_USAGE, "method 'published' needs --of NAME (whose set)");
    TRY(file_read(in->sets_path, 1 << 20, &text, e));
    char *best[COLS] = {0};
    int best_k = 0;
    for (char *line = text.p, *next; line && *line; line = next) {
        char *nl = strchr(line, '\n'), *col[COLS];
        next = nl ? nl + 1 : NULL;
        if (nl)
            *nl = 0;
        split(line, col);
        int k = atoi(col[4]), layers = atoi(col[1]);
        char model[120];
        if (layers <= 0) /* the head, and what stands behind the last line */
            continue;
        snprintf(model, sizeof model, "%.90s (%d layers)", col[0], layers);
        add_word(&there.models, model);
        if (layers != in->layers)
            continue;
        there.as_deep = true;
        if (strcmp(model_name(in), col[0]))
            continue;
        add_word(&there.selectors, col[3]);
        if (!same_selector(in->of, col[3]))
            continue;
        add_word(&there.budgets, col[4]);
        bool exact = k == in->budget, prefix = k > in->budget && !strcmp(col[5], "importance");
        if ((exact || prefix) && (!best_k || (exact && best_k != in->budget) || (best_k != in->budget && k < best_k))) {
            best_k = k;
            memcpy(best, col, sizeof best);
        }
    }
    int rc = best_k ? take(best, in, out, e) : none_fits(in, &there, e);
    str_free(&there.models);
    str_free(&there.selectors);
    str_free(&there.budgets);
    str_free(&text);
    return rc;
}

const struct selector sel_published = {.name = "published", .title = "Published", .about = "a set taken from a publication (--of NAME)",
                                       .needs = "nothing", .cost = "none", .source = "baselines/index_sets.tsv", .certain = true,
                                       .version = 2, .pick = pick};
