/*
 * A table: columns (optionally grouped), rows in titled blocks, cells that are numbers with uncertainty, text, or a state. Writers:
 * terminal, Markdown, HTML, LaTeX (booktabs), TSV. A missing or failed cell prints as '-' or its state with a note; nothing is averaged
 * over holes. Columns marked `timing` are left out of the deterministic TSV.
 */
#ifndef REPORTS_TABLE_H
#define REPORTS_TABLE_H

#include "core/arena.h"
#include "core/str.h"

enum cell_kind { CELL_NONE, CELL_NUM, CELL_INT, CELL_TEXT };
struct cell {
    enum cell_kind kind;
    double v, se;      /* se < 0: none */
    int digits;
    const char *text;
    int note;          /* 1-based into table.notes, 0 = none */
};
struct column {
    const char *name, *group;
    bool left, timing;
};
struct table {
    struct arena *a;
    const char *name, *title, *caption, *verdict;
    struct column *cols;
    size_t n_cols;
    struct cell *cells; /* [n_rows, n_cols] */
    const char **block; /* [n_rows]: heading before this row, or NULL */
    size_t n_rows, cap_rows;
    const char *notes[64];
    size_t n_notes;
};

void table_init(struct table *t, struct arena *a, const char *name, const char *title);
void table_col(struct table *t, const char *name, const char *group, bool left, bool timing);
/* Starts a row; the cells are CELL_NONE. block: heading printed before it, NULL = none. Returns the row. */
size_t table_row(struct table *t, const char *block);
struct cell *table_cell(struct table *t, size_t row, size_t col);
void cell_num(struct cell *c, double v, double se, int digits);
void cell_int(struct cell *c, int64_t v);
void cell_text(struct cell *c, const char *text);
/* Note number of a text (equal texts share one). */
int table_note(struct table *t, const char *fmt, ...) PRINTF_LIKE(2, 3);

void table_text(const struct table *t, struct str *out);
void table_md(const struct table *t, struct str *out);
void table_tex(const struct table *t, struct str *out);
void table_html(const struct table *t, struct str *out); /* a fragment: for site.h's page */
/* Header, then one line a row; num columns give NAME and NAME_se. deterministic: without timing columns. */
void table_tsv(const struct table *t, bool deterministic, struct str *out);
/* All of them into DIR/NAME.{txt,md,html,tex,tsv,det.tsv}; det.tsv only with timing columns. */
int table_save(const struct table *t, const char *dir, struct err *e);

#endif
