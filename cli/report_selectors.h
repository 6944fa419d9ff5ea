/* The report kind "selectors": selectors at matched budgets, and budget against RULER. Its YAML: {kind: selectors, name, title, from:
 * [ruler stages], reference: STAGE, budgets: [2, 3, 6], published: {2: 5, 3: 9, 6: 18}}. */
#ifndef CLI_REPORT_SELECTORS_H
#define CLI_REPORT_SELECTORS_H

#include "experiments/plan.h"
#include "reports/table.h"

struct report_result {
    int cells, missing;
    struct str verdict;
};
int report_selectors(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res,
                     struct err *e);
/* What lies behind a cell "SELECTOR@BUDGET" ("SELECTOR": all its budgets), "LABEL:B=BUDGET" or "LABEL"; manifest: its path, for the
 * commands. E_USAGE for an unknown one; out then lists the cells. */
int report_explain(struct plan *p, const struct report *rep, const char *manifest, const char *cell, struct str *out, struct err *e);
/* One line for a finished evaluation, "" for other nodes. */
void selectors_line(struct plan *p, const struct node *n, struct str *out);

#endif
