/* Checks on finished tables. */
#include "experiments/checks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/jwrite.h"

enum { MAX_FIELDS = 128 };

/* A TSV in memory: the text is cut up in place. */
struct grid {
    struct str text;
    char **field; /* [rows * cols], row 0 = header; short rows are filled with "" */
    size_t rows, cols;
};

static void grid_free(struct grid *g)
{
    str_free(&g->text);
    free(g->field);
    *g = (struct grid){0};
}

static int grid_load(struct grid *g, const char *path, struct err *e)
{
    static char nothing[] = "";
    *g = (struct grid){0};
    TRY(file_read(path, (size_t)16 << 20, &g->text, e));
    size_t lines = 0;
    for (const char *p = str_c(&g->text); *p; p += strcspn(p, "\n"), p += *p == '\n')
        lines++;
    char *p = g->text.p;
    g->cols = 1;
    for (size_t i = 0; p && p[i] && p[i] != '\n'; i++)
        g->cols += p[i] == '\t';
    if (g->cols > MAX_FIELDS || lines == 0) {
        grid_free(g);
        return ERR(e, E_INPUT, "'%s': a table of %zu lines and %zu columns; allowed are 1 and more lines, 1 to %d columns", path, lines,
                   g->cols, MAX_FIELDS);
    }
    g->field = calloc(lines * g->cols, sizeof *g->field);
    if (!g->field) {
        grid_free(g);
        return err_nomem(e, lines * sizeof *g->field, "a table");
    }
    for (g->rows = 0; p && *p; g->rows++) {
        char *end = p + strcspn(p, "\n"), *next = *end ? end + 1 : end;
        *end = 0;
        for (size_t c = 0; c < g->cols; c++) {
            g->field[g->rows * g->cols + c] = p ? p : nothing;
            p = p ? strchr(p, '\t') : NULL;
            if (p)
                *p++ = 0;
        }
        p = next;
    }
    return 0;
}

static const char *grid_at(const struct grid *g, size_t row, size_t col)
{
    return g->field[row * g->cols + col];
}

static bool row_is(const struct grid *g, size_t row, const char *name)
{
    const char *first = grid_at(g, row, 0);
    size_t n = strlen(first);
    return !strcmp(name, first) || (g->cols > 1 && !strncmp(name, first, n) && name[n] == '/' && !strcmp(name + n + 1, grid_at(g, row, 1)));
}

/* A cell's number; why not, in line. */
static bool number_at(const struct grid *g, const struct check *c, const char *row, double *v, struct str *line)
{
    size_t col = 0, r = 1;
    while (col < g->cols && strcmp(grid_at(g, 0, col), c->column))
        col++;
    if (col == g->cols) {
        str_printf(line, "the table has no column '%s'", c->column);
        return false;
    }
    while (r < g->rows && !row_is(g, r, row))
        r++;
    if (r == g->rows) {
        str_printf(line, "the table has no row '%s'", row);
        return false;
    }
    if (parse_f64(grid_at(g, r, col), v))
        return true;
    str_printf(line, "'%s' %s is '%s', no number", row, c->column, grid_at(g, r, col));
    return false;
}

static bool cell_check(const struct grid *g, const struct check *c, struct str *line)
{
    double v, other = 0;
    if (!number_at(g, c, c->row, &v, line))
        return false;
    if (*c->above) {
        if (!number_at(g, c, c->above, &other, line))
            return false;
        double least = c->has_min ? c->min : 0;
        str_printf(line, "'%s' %s = %g, '%s' %g, difference %g (at least %g", c->row, c->column, v, c->above, other, v - other, least);
        if (c->has_max)
            str_printf(line, ", at most %g", c->max);
        str_puts(line, ")");
        return v - other >= least && (!c->has_max || v - other <= c->max);
    }
    str_printf(line, "'%s' %s = %g (", c->row, c->column, v);
    if (c->has_min)
        str_printf(line, "at least %g%s", c->min, c->has_max ? ", " : "");
    if (c->has_max)
        str_printf(line, "at most %g", c->max);
    str_puts(line, ")");
    return (!c->has_min || v >= c->min) && (!c->has_max || v <= c->max);
}

/* Every number of the reference whose row and column the table has. */
static int against_check(const struct grid *g, const struct check *c, struct str *line, bool *held, struct err *e)
{
    struct grid ref;
    int cells = 0, off = 0;
    TRY(grid_load(&ref, c->against, e));
    for (size_t r = 1; r < ref.rows; r++)
        for (size_t k = 1; k < ref.cols; k++) {
            double want, got;
            char name[512];
            struct check one = *c;
            struct str why = STR_INIT;
            if (!parse_f64(grid_at(&ref, r, k), &want))
                continue;
            snprintf(name, sizeof name, "%s/%s", grid_at(&ref, r, 0), grid_at(&ref, r, 1));
            one.column = grid_at(&ref, 0, k);
            const char *row = ref.cols > 2 && k > 1 ? name : grid_at(&ref, r, 0);
            bool have = number_at(g, &one, row, &got, &why);
            cells++;
            bool near = have && fabs(got - want) <= c->within;
            if (!near && off < 5 && have)
                str_printf(line, "%s'%s' %s = %g, expected %g", off ? "; " : "", row, one.column, got, want);
            else if (!near && off < 5)
                str_printf(line, "%s%s", off ? "; " : "", str_c(&why));
            off += !near;
            str_free(&why);
        }
    str_printf(line, "%s%d of %d numbers of '%s' within %g", off ? "; " : "", cells - off, cells, c->against, c->within);
    *held = off == 0 && cells > 0;
    grid_free(&ref);
    return 0;
}

/* NAME.det.tsv, or NAME.tsv where the table has no times; false: neither is there. */
static bool table_path(const struct check *c, const char *dir, char path[1024])
{
    static const char *const forms[] = {"%.250s.det.tsv", "%.250s.tsv"};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        char name[300];
        snprintf(name, sizeof name, forms[i], c->table);
        if (file_exists(path_join(path, dir, name)))
            return true;
    }
    return false;
}

static bool column_known(const struct grid *g, const char *column)
{
    size_t n = strlen(column);
    for (size_t i = 0; i < g->cols; i++) {
        size_t have = strlen(grid_at(g, 0, i));
        if (!strncmp(grid_at(g, 0, i), column, have) && (n == have || !strcmp(column + have, " se")))
            return true;
    }
    return false;
}

static bool row_known(const struct grid *g, const struct check_shape *s, const char *row)
{
    const char *slash = strrchr(row, '/'), *name = slash ? slash + 1 : row;
    for (size_t r = 1; r < g->rows; r++)
        if (row_is(g, r, row))
            return true;
    for (size_t i = 0; !s->rows && i < s->n_labels; i++)
        if (*s->labels[i] && !strncmp(name, s->labels[i], strlen(s->labels[i])))
            return true;
    return false;
}

static void unknown_row(const struct grid *g, const struct check *c, const char *row, struct str *why)
{
    const char *slash = strrchr(row, '/');
    str_printf(why, "%stable '%s' will have no row '%s'", why->len ? "; " : "", c->table, row);
    for (size_t r = 1; r < g->rows; r++) {
        const char *name[] = {grid_at(g, r, 0), g->cols > 1 ? grid_at(g, r, 1) : ""};
        if (!nearest_word(slash ? slash + 1 : row, name, 2))
            continue;
        str_printf(why, *name[1] ? "; did you mean '%s/%s'?" : "; did you mean '%s'?", name[0], name[1]);
        return;
    }
}

int check_known(const struct check *c, const char *dir, const struct check_shape *s, struct str *why, struct err *e)
{
    char path[1024];
    struct grid g;
    if (*c->against && !file_exists(c->against))
        str_printf(why, "'against': '%s' does not exist", c->against);
    if (*c->against || !table_path(c, dir, path))
        return 0;
    TRY(grid_load(&g, path, e));
    if (s->columns && !column_known(&g, c->column)) {
        const char *near = nearest_word(c->column, (const char *const *)g.field, g.cols);
        str_printf(why, "table '%s' has no column '%s'", c->table, c->column);
        for (size_t i = 0; near ? i < 1 : i < g.cols; i++)
            str_printf(why, near ? "; did you mean '%s'?" : i ? ", '%s'" : "; it has '%s'", near ? near : grid_at(&g, 0, i));
    }
    if (!row_known(&g, s, c->row))
        unknown_row(&g, c, c->row, why);
    if (*c->above && !row_known(&g, s, c->above))
        unknown_row(&g, c, c->above, why);
    grid_free(&g);
    return 0;
}

int check_run(const struct check *c, const char *dir, struct str *line, bool *held, struct err *e)
{
    char path[1024];
    struct grid g;
    *held = false;
    str_printf(line, "check %s: ", c->table);
    if (!table_path(c, dir, path)) {
        str_printf(line, "the table was not made: FAILED");
        return 0;
    }
    TRY(grid_load(&g, path, e));
    int rc = 0;
    if (*c->against)
        rc = against_check(&g, c, line, held, e);
    else
        *held = cell_check(&g, c, line);
    grid_free(&g);
    str_puts(line, *held ? ": holds" : ": FAILED");
    return rc ? -1 : 0;
}
