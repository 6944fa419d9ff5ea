/* Table model and writers. */
#include "reports/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/fs.h"
#include "core/jwrite.h"
#include "reports/site.h"

enum { MAX_COLS = 64 };

void table_init(struct table *t, struct arena *a, const char *name, const char *title)
{
    *t = (struct table){.a = a, .name = name, .title = title, .caption = "", .verdict = ""};
    t->cols = arena_array(a, MAX_COLS, sizeof *t->cols);
}

void table_col(struct table *t, const char *name, const char *group, bool left, bool timing)
{
    if (t->n_rows || t->n_cols == MAX_COLS)
        BUG("table '%s': columns come before rows, at most %d", t->name, MAX_COLS);
    t->cols[t->n_cols++] = (struct column){name, group, left, timing};
}

size_t table_row(struct table *t, const char *block)
{
    if (t->n_rows == t->cap_rows) {
        size_t cap = t->cap_rows ? 2 * t->cap_rows : 32;
        struct cell *c = arena_array(t->a, cap * t->n_cols, sizeof *c);
        const char **b = arena_array(t->a, cap, sizeof *b);
        if (!c || !b)
            BUG("no memory for a table of %zu rows", cap);
        if (t->n_rows) {
            memcpy(c, t->cells, t->n_rows * t->n_cols * sizeof *c);
            memcpy(b, t->block, t->n_rows * sizeof *b);
        }
        t->cells = c;
        t->block = b;
        t->cap_rows = cap;
    }
    t->block[t->n_rows] = block;
    return t->n_rows++;
}

struct cell *table_cell(struct table *t, size_t row, size_t col)
{
    if (row >= t->n_rows || col >= t->n_cols)
        BUG("table '%s' has no cell %zu,%zu", t->name, row, col);
    return &t->cells[row * t->n_cols + col];
}

void cell_num(struct cell *c, double v, double se, int digits)
{
    *c = (struct cell){.kind = finite_f64(v) ? CELL_NUM : CELL_NONE, .v = v, .se = se, .digits = digits, .note = c->note};
}

void cell_int(struct cell *c, int64_t v)
{
    *c = (struct cell){.kind = CELL_INT, .v = (double)v, .se = -1, .note = c->note};
}

void cell_text(struct cell *c, const char *text)
{
    *c = (struct cell){.kind = text && *text ? CELL_TEXT : CELL_NONE, .text = text, .note = c->note};
}

int table_note(struct table *t, const char *fmt, ...)
{
    char buf[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf, sizeof buf, fmt, ap);
    va_end(ap);
    for (size_t i = 0; i < t->n_notes; i++)
        if (!strcmp(t->notes[i], buf))
            return (int)i + 1;
    if (t->n_notes == ARRAY_LEN(t->notes))
        return 0;
    t->notes[t->n_notes++] = arena_strdup(t->a, buf);
    return (int)t->n_notes;
}

/* The words of a cell; pm separates value and standard error. */
static void cell_words(const struct cell *c, const char *pm, struct str *s)
{
    str_clear(s);
    switch (c->kind) {
    case CELL_NONE:
        str_puts(s, "-");
        break;
    case CELL_NUM:
        str_printf(s, "%.*f", c->digits, c->v);
        if (c->se >= 0)
            str_printf(s, "%s%.*f", pm, c->digits, c->se);
        break;
    case CELL_INT:
        str_printf(s, "%.0f", c->v);
        break;
    case CELL_TEXT:
        str_puts(s, c->text);
        break;
    }
}

static void pad(struct str *out, const char *text, size_t width, bool left)
{
    size_t n = utf8_count(text, strlen(text)), fill = width > n ? width - n : 0;
    if (left)
        str_puts(out, text);
    for (size_t i = 0; i < fill; i++)
        str_putc(out, ' ');
    if (!left)
        str_puts(out, text);
}

static void plain_cell(const struct table *t, size_t r, size_t c, struct str *s)
{
    const struct cell *cell = &t->cells[r * t->n_cols + c];
    cell_words(cell, " ±", s);
    if (cell->note)
        str_printf(s, " [%d]", cell->note);
}

void table_text(const struct table *t, struct str *out)
{
    size_t width[MAX_COLS];
    struct str s = STR_INIT;
    bool groups = false;
    for (size_t c = 0; c < t->n_cols; c++) {
        width[c] = utf8_count(t->cols[c].name, strlen(t->cols[c].name));
        groups = groups || t->cols[c].group;
        for (size_t r = 0; r < t->n_rows; r++) {
            plain_cell(t, r, c, &s);
            width[c] = MAX(width[c], utf8_count(str_c(&s), s.len));
        }
    }
    str_printf(out, "%s\n", t->title);
    for (size_t c = 0; groups && c < t->n_cols;) {
        size_t end = c, w = 0;
        const char *g = t->cols[c].group;
        for (; end < t->n_cols && ((g && t->cols[end].group && !strcmp(g, t->cols[end].group)) || (!g && end == c)); end++)
            w += width[end] + (end > c ? 2 : 0);
        pad(out, g ? g : "", w, true);
        str_puts(out, end < t->n_cols ? "  " : "\n");
        c = end;
    }
    for (size_t c = 0; c < t->n_cols; c++) {
        pad(out, t->cols[c].name, width[c], t->cols[c].left);
        str_puts(out, c + 1 < t->n_cols ? "  " : "\n");
    }
    for (size_t r = 0; r < t->n_rows; r++) {
        if (t->block[r])
            str_printf(out, "-- %s\n", t->block[r]);
        for (size_t c = 0; c < t->n_cols; c++) {
            plain_cell(t, r, c, &s);
            pad(out, str_c(&s), width[c], t->cols[c].left);
            str_puts(out, c + 1 < t->n_cols ? "  " : "\n");
        }
    }
    for (size_t i = 0; i < t->n_notes; i++)
        str_printf(out, "[%zu] %s\n", i + 1, t->notes[i]);
    if (*t->caption)
        str_printf(out, "%s\n", t->caption);
    str_free(&s);
}

static void md_escape(struct str *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '|')
            str_putc(out, '\\');
        str_putc(out, *s == '\n' ? ' ' : *s);
    }
}

void table_md(const struct table *t, struct str *out)
{
    struct str s = STR_INIT;
    str_printf(out, "**%s**\n\n|", t->title);
    for (size_t c = 0; c < t->n_cols; c++) {
        str_puts(out, " ");
        if (t->cols[c].group) {
            md_escape(out, t->cols[c].group);
            str_puts(out, ": ");
        }
        md_escape(out, t->cols[c].name);
        str_puts(out, " |");
    }
    str_puts(out, "\n|");
    for (size_t c = 0; c < t->n_cols; c++)
        str_puts(out, t->cols[c].left ? " --- |" : " ---: |");
    str_puts(out, "\n");
    for (size_t r = 0; r < t->n_rows; r++) {
        if (t->block[r]) {
            str_puts(out, "| *");
            md_escape(out, t->block[r]);
            str_puts(out, "* |");
            for (size_t c = 1; c < t->n_cols; c++)
                str_puts(out, " |");
            str_puts(out, "\n");
        }
        str_puts(out, "|");
        for (size_t c = 0; c < t->n_cols; c++) {
            plain_cell(t, r, c, &s);
            str_puts(out, " ");
            md_escape(out, str_c(&s));
            str_puts(out, " |");
        }
        str_puts(out, "\n");
    }
    str_puts(out, "\n");
    for (size_t i = 0; i < t->n_notes; i++)
        str_printf(out, "[%zu] %s  \n", i + 1, t->notes[i]);
    if (*t->caption)
        str_printf(out, "\n%s\n", t->caption);
    str_free(&s);
}

static void html_header(const struct table *t, struct str *out)
{
    bool groups = false;
    for (size_t c = 0; c < t->n_cols; c++)
        groups = groups || t->cols[c].group;
    str_puts(out, groups ? "<tr>" : "");
    for (size_t c = 0, end; groups && c < t->n_cols; c = end) {
        const char *g = t->cols[c].group;
        for (end = c + 1; g && end < t->n_cols && t->cols[end].group && !strcmp(g, t->cols[end].group);)
            end++;
        str_printf(out, "<th colspan=\"%zu\" style=\"text-align:center\">", end - c);
        html_escape(out, g ? g : "");
        str_puts(out, "</th>");
    }
    str_puts(out, groups ? "</tr>\n<tr>" : "<tr>");
    for (size_t c = 0; c < t->n_cols; c++) {
        str_puts(out, t->cols[c].left ? "<th class=\"l\">" : "<th>");
        html_escape(out, t->cols[c].name);
        str_puts(out, "</th>");
    }
    str_puts(out, "</tr>\n");
}

void table_html(const struct table *t, struct str *out)
{
    struct str s = STR_INIT;
    str_puts(out, "<h3>");
    html_escape(out, t->title);
    str_puts(out, "</h3>\n<table>\n");
    html_header(t, out);
    for (size_t r = 0; r < t->n_rows; r++) {
        if (t->block[r]) {
            str_printf(out, "<tr class=\"b\"><td class=\"l\" colspan=\"%zu\">", t->n_cols);
            html_escape(out, t->block[r]);
            str_puts(out, "</td></tr>\n");
        }
        str_puts(out, "<tr>");
        for (size_t c = 0; c < t->n_cols; c++) {
            plain_cell(t, r, c, &s);
            str_puts(out, t->cols[c].left ? "<td class=\"l\">" : "<td>");
            html_escape(out, str_c(&s));
            str_puts(out, "</td>");
        }
        str_puts(out, "</tr>\n");
    }
    str_puts(out, "</table>\n");
    for (size_t i = 0; i < t->n_notes; i++) {
        str_printf(out, "<p class=\"n\">[%zu] ", i + 1);
        html_escape(out, t->notes[i]);
        str_puts(out, "</p>\n");
    }
    if (*t->caption) {
        str_puts(out, "<p class=\"n\">");
        html_escape(out, t->caption);
        str_puts(out, "</p>\n");
    }
    str_free(&s);
}

static void tex_escape(struct str *out, const char *s)
{
    for (; *s; s++) {
        if (strchr("&%$#_{}", *s))
            str_printf(out, "\\%c", *s);
        else if (*s == '\\')
            str_puts(out, "\\textbackslash{}");
        else if (*s == '~')
            str_puts(out, "\\textasciitilde{}");
        else if (*s == '^')
            str_puts(out, "\\textasciicircum{}");
        else if (*s == '<' || *s == '>' || *s == '|')
            str_printf(out, "$%c$", *s == '|' ? '|' : *s);
        else if (!strncmp(s, "±", 2)) {
            str_puts(out, "$\\pm$");
            s++;
        } else if (!strncmp(s, "λ", 2)) {
            str_puts(out, "$\\lambda$");
            s++;
        } else
            str_putc(out, *s);
    }
}

static void tex_header(const struct table *t, struct str *out)
{
    bool groups = false;
    for (size_t c = 0; c < t->n_cols; c++)
        groups = groups || t->cols[c].group;
    for (size_t c = 0; groups && c < t->n_cols;) {
        size_t end = c + 1;
        const char *g = t->cols[c].group;
        while (g && end < t->n_cols && t->cols[end].group && !strcmp(g, t->cols[end].group))
            end++;
        if (g) {
            str_printf(out, "\\multicolumn{%zu}{c}{", end - c);
            tex_escape(out, g);
            str_puts(out, "}");
        }
        str_puts(out, end < t->n_cols ? " & " : " \\\\\n");
        c = end;
    }
    for (size_t c = 0; c < t->n_cols; c++) {
        tex_escape(out, t->cols[c].name);
        str_puts(out, c + 1 < t->n_cols ? " & " : " \\\\\n\\midrule\n");
    }
}

enum { TEX_ROWS = 32, TEX_LINE = 110 }; /* rows of a float, characters of a line of notes: what a page of 10 pt article holds */

/* Where the float that begins at `from` ends: before the last block that does not fit whole, if that leaves enough. */
static size_t tex_end(const struct table *t, size_t from)
{
    size_t end = MIN(from + TEX_ROWS, t->n_rows);
    if (end == t->n_rows)
        return end;
    for (size_t r = end; r > from + TEX_ROWS / 2; r--)
        if (t->block[r])
            return r;
    return end;
}

static size_t tex_note_lines(const struct table *t)
{
    size_t lines = 0;
    for (size_t i = 0; i < t->n_notes; i++)
        lines += 1 + strlen(t->notes[i]) / TEX_LINE;
    return lines;
}

static void tex_notes(const struct table *t, struct str *out)
{
    for (size_t i = 0; i < t->n_notes; i++) {
        str_printf(out, "\\par\\footnotesize $^{%zu}$ ", i + 1);
        tex_escape(out, t->notes[i]);
        str_puts(out, "\n");
    }
}

/* Rows from..to as one float; wider ones than the line are made smaller, narrower ones keep their size. */
static void tex_float(const struct table *t, size_t from, size_t to, struct str *out)
{
    struct str s = STR_INIT;
    bool last = to == t->n_rows, inside = last && to - from + tex_note_lines(t) <= TEX_ROWS + 10;
    str_puts(out, "\\begin{table}\n\\centering\n\\caption{");
    tex_escape(out, t->title);
    str_puts(out, from ? ", continued" : ". ");
    tex_escape(out, from ? "" : t->caption);
    str_puts(out, "}\n\\sbox0{%\n\\begin{tabular}{");
    for (size_t c = 0; c < t->n_cols; c++)
        str_putc(out, t->cols[c].left ? 'l' : 'r');
    str_puts(out, "}\n\\toprule\n");
    tex_header(t, out);
    for (size_t r = from; r < to; r++) {
        if (t->block[r]) {
            str_printf(out, "%s\\multicolumn{%zu}{l}{\\emph{", r > from ? "\\midrule\n" : "", t->n_cols);
            tex_escape(out, t->block[r]);
            str_puts(out, "}} \\\\\n");
        }
        for (size_t c = 0; c < t->n_cols; c++) {
            const struct cell *cell = &t->cells[r * t->n_cols + c];
            cell_words(cell, " ±", &s);
            tex_escape(out, str_c(&s));
            if (cell->note)
                str_printf(out, "$^{%d}$", cell->note);
            str_puts(out, c + 1 < t->n_cols ? " & " : " \\\\\n");
        }
    }
    str_puts(out, "\\bottomrule\n\\end{tabular}}%\n\\ifdim\\wd0>\\linewidth\\resizebox{\\linewidth}{!}{\\usebox0}\\else\\usebox0\\fi\n");
    if (inside)
        tex_notes(t, out);
    str_puts(out, "\\end{table}\n");
    if (last && !inside && t->n_notes) { /* too much for one float */
        str_puts(out, "\\begin{flushleft}\n");
        tex_notes(t, out);
        str_puts(out, "\\end{flushleft}\n");
    }
    str_free(&s);
}

void table_tex(const struct table *t, struct str *out)
{
    size_t from = 0;
    str_puts(out, "% needs \\usepackage{booktabs,graphicx}\n");
    do {
        size_t to = tex_end(t, from);
        tex_float(t, from, to, out);
        from = to;
    } while (from < t->n_rows);
}

static void tsv_escape(struct str *out, const char *s)
{
    for (; *s; s++)
        str_putc(out, *s == '\t' || *s == '\n' ? ' ' : *s);
}

void table_tsv(const struct table *t, bool deterministic, struct str *out)
{
    bool has_se[MAX_COLS] = {0};
    for (size_t c = 0; c < t->n_cols; c++)
        for (size_t r = 0; r < t->n_rows; r++) {
            const struct cell *cell = &t->cells[r * t->n_cols + c];
            has_se[c] = has_se[c] || (cell->kind == CELL_NUM && cell->se >= 0);
        }
    str_puts(out, "block");
    for (size_t c = 0; c < t->n_cols; c++) {
        if (deterministic && t->cols[c].timing)
            continue;
        const struct column *col = &t->cols[c];
        str_puts(out, "\t");
        if (col->group)
            str_printf(out, "%s: ", col->group);
        tsv_escape(out, col->name);
        if (has_se[c])
            str_printf(out, "\t%s%s%s se", col->group ? col->group : "", col->group ? ": " : "", col->name);
    }
    str_puts(out, "\n");
    const char *block = "";
    for (size_t r = 0; r < t->n_rows; r++) {
        block = t->block[r] ? t->block[r] : block;
        tsv_escape(out, block);
        for (size_t c = 0; c < t->n_cols; c++) {
            if (deterministic && t->cols[c].timing)
                continue;
            const struct cell *cell = &t->cells[r * t->n_cols + c];
            str_putc(out, '\t');
            char buf[32];
            if (cell->kind == CELL_NUM) {
                fmt_f64(buf, cell->v);
                str_puts(out, buf);
            } else if (cell->kind == CELL_INT)
                str_printf(out, "%.0f", cell->v);
            else
                tsv_escape(out, cell->kind == CELL_TEXT ? cell->text : "-");
            if (has_se[c]) {
                if (cell->kind == CELL_NUM && cell->se >= 0)
                    fmt_f64(buf, cell->se);
                str_printf(out, "\t%s", cell->kind == CELL_NUM && cell->se >= 0 ? buf : "-");
            }
        }
        str_puts(out, "\n");
    }
}

static int save(const struct table *t, const char *dir, const char *ext, void (*writer)(const struct table *, struct str *), bool det,
                struct err *e)
{
    char path[1024], name[256];
    struct str s = STR_INIT;
    snprintf(name, sizeof name, "%s.%s", t->name, ext);
    if (writer)
        writer(t, &s);
    else
        table_tsv(t, det, &s);
    int rc = str_ok(&s, name, e) || file_write(path_join(path, dir, name), str_c(&s), s.len, e);
    str_free(&s);
    return rc ? -1 : 0;
}

int table_save(const struct table *t, const char *dir, struct err *e)
{
    bool timing = false;
    for (size_t c = 0; c < t->n_cols; c++)
        timing = timing || t->cols[c].timing;
    TRY(mkdir_p(dir, e));
    TRY(save(t, dir, "txt", table_text, false, e));
    TRY(save(t, dir, "md", table_md, false, e));
    TRY(save(t, dir, "html", table_html, false, e));
    TRY(save(t, dir, "tex", table_tex, false, e));
    TRY(save(t, dir, "tsv", NULL, false, e));
    return timing ? save(t, dir, "det.tsv", NULL, true, e) : 0;
}
