/* Report kind "selectors-list": the published selector tags (DASH Table 7), which of them can be run here, and what else the registry has.
 */
#include <string.h>

#include "baselines/selector.h"
#include "cli/report_kinds.h"

enum { C_TAG, C_TYPE, C_ABOUT, C_OURS, C_DEFINITION, C_NEEDS, C_COST };

static void registry_cells(struct table *t, size_t row, const struct selector *s)
{
    cell_text(table_cell(t, row, C_OURS), s->name);
    cell_text(table_cell(t, row, C_DEFINITION), s->certain ? "published" : "proposed here");
    cell_text(table_cell(t, row, C_NEEDS), s->needs);
    cell_text(table_cell(t, row, C_COST), s->cost);
}

int report_selectors_list(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                          struct err *e)
{
    static const char *const names[] = {"tag", "type", "what it does", "name here", "definition", "needs", "cost"};
    struct arena a;
    struct tsv pub;
    struct table t;
    arena_init(&a, 0);
    int rc = tsv_published(&pub, &a, rep_word(rep, "values", "dash_table7"), e), have = 0;
    if (rc == 0) {
        table_init(&t, &a, rep->name, rep->title);
        for (size_t i = 0; i < ARRAY_LEN(names); i++)
            table_col(&t, names[i], NULL, true, false);
        for (size_t i = 1; i < pub.n; i++) {
            const char *name = tsv_cell(&pub, i, "name");
            const struct selector *s = selector_find(name);
            size_t r = table_row(&t, i == 1 ? "tags of the paper" : NULL);
            cell_text(table_cell(&t, r, C_TAG), tsv_cell(&pub, i, "tag"));
            cell_text(table_cell(&t, r, C_TYPE), tsv_cell(&pub, i, "type"));
            cell_text(table_cell(&t, r, C_ABOUT), tsv_cell(&pub, i, "description"));
            if (s)
                registry_cells(&t, r, s);
            else
                cell_text(table_cell(&t, r, C_OURS), !strncmp(name, "dash-", 5) ? "search" : "not yet");
            have += s != NULL;
        }
        for (size_t i = 0, shown = 0; i < n_selectors; i++) {
            bool listed = false;
            for (size_t k = 1; k < pub.n; k++)
                listed = listed || !strcmp(tsv_cell(&pub, k, "name"), selectors[i]->name);
            if (listed)
                continue;
            size_t r = table_row(&t, shown++ ? NULL : "others here");
            cell_text(table_cell(&t, r, C_TAG), selectors[i]->title);
            cell_text(table_cell(&t, r, C_ABOUT), selectors[i]->about);
            registry_cells(&t, r, selectors[i]);
        }
        table_cell(&t, 0, C_TAG)->note = table_note(&t, "%s", pub.source);
        res->cells = (int)pub.n - 1;
        str_printf(&res->verdict, "%d of the paper's %d selector tags can be run here", have, res->cells);
        rc = rep_emit(p, rep, &t, out_dir, text, e);
    }
    arena_free(&a);
    return rc;
}
