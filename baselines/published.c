/* Published: a set from baselines/index_sets.tsv (model, layers, student, selector, K, order, indices, source, note). A set in importance order also serves every smaller K. */
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
            return ERR(e, E_INPUT, "'%s': published set '%s' of '%s' has an index outside 0..%d", in->sets_path, col[3], col[0], in->layers - 1);
        out->kind[l] = MIX_FULL;
        p = end + (*end == ',');
    }
    snprintf(out->variant, sizeof out->variant, "%.30s of %.28s", col[3], col[0]);
    return 0;
}

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    struct str text = STR_INIT, known = STR_INIT;
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
        int k = atoi(col[4]);
        bool model_ok = in->model && *in->model ? !strcmp(in->model, col[0]) : atoi(col[1]) == in->layers;
        if (!model_ok || atoi(col[1]) != in->layers)
            continue;
        if (!same_selector(in->of, col[3])) {
            if (!strstr(str_c(&known), col[3]))
                str_printf(&known, " %s", col[3]);
            continue;
        }
        bool exact = k == in->budget, prefix = k > in->budget && !strcmp(col[5], "importance");
        if ((exact || prefix) && (!best_k || (exact && best_k != in->budget) || (best_k != in->budget && k < best_k))) {
            best_k = k;
            memcpy(best, col, sizeof best);
        }
    }
    int rc = best_k ? take(best, in, out, e)
                    : ERR(e, E_USAGE, "no published set of '%s' with %d of %d layers%s%s; other selectors published for such models:%s", in->of, in->budget, in->layers, in->model && *in->model ? " for " : "",
                          in->model && *in->model ? in->model : "", known.len ? str_c(&known) : " none");
    str_free(&text);
    str_free(&known);
    return rc;
}

const struct selector sel_published = {.name = "published", .title = "Published", .about = "a set taken from a publication (--of NAME)", .needs = "nothing", .cost = "none", .source = "baselines/index_sets.tsv",
                                       .certain = true, .version = 1, .pick = pick};
