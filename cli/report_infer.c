/*
 * Report kind "infer": prefill and decoding over context lengths with peak memory (DASH Tables 12 and 13, Figure 3). show: prefill, decode
 * or figure. Every number is of the machine named in the caption.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/report_kinds.h"
#include "core/fs.h"

enum { MAX_MODELS = 6, MAX_CONTEXTS = 32 };
struct timed {
    const struct node *n;
    const char *label;
    struct tsv rows;
    bool have;
};

static size_t gather(struct plan *p, const struct report *rep, struct arena *a, struct timed *out)
{
    const struct node *n[REP_MAX_NODES];
    size_t k = rep_nodes(p, rep, "from", n, ARRAY_LEN(n)), kept = 0;
    for (size_t i = 0; i < k && kept < MAX_MODELS; i++) {
        char path[1024];
        struct err ignored = ERR_INIT;
        const struct node *search = node_of_kind(n[i], "search");
        if (strcmp(n[i]->kind->name, "infer"))
            continue;
        struct timed *t = &out[kept++];
        *t = (struct timed){.n = n[i], .label = n[i]->label};
        if (search)
            t->label = arena_printf(a, "%s, B %g", n[i]->label, rep_number(p, search, "budget"));
        t->have = !rep_missing(n[i]) && tsv_load(&t->rows, a, node_out(path, n[i], "infer.tsv"), &ignored) == 0;
    }
    return kept;
}

/* Contexts of all models, ascending, each once. */
static size_t contexts_of(const struct timed *t, size_t n, double *out)
{
    size_t k = 0;
    for (double last = 0; k < MAX_CONTEXTS; last = out[k - 1]) {
        double next = INFINITY;
        for (size_t i = 0; i < n; i++)
            for (size_t r = 1; t[i].have && r < t[i].rows.n; r++) {
                double c = tsv_number(&t[i].rows, r, "context");
                next = c > last ? fmin(next, c) : next;
            }
        if (!isfinite(next))
            break;
        out[k++] = next;
    }
    return k;
}

static size_t row_at(const struct timed *t, double context)
{
    for (size_t r = 1; t->have && r < t->rows.n; r++)
        if (tsv_number(&t->rows, r, "context") == context)
            return r;
    return 0;
}

/* How the prompts were computed. */
static const char *prefilled(const struct node *n, struct arena *a)
{
    if (node_i64(n, "piece") == 0)
        return "all prompts in one forward";
    return arena_printf(a, "prompts one after another in pieces of at most %s tokens", node_str(n, "piece"));
}

static int table_of(struct plan *p, const struct report *rep, struct arena *a, const struct timed *m, size_t n, bool decode,
                    const char *dir, struct str *text, struct err *e)
{
    double ctx[MAX_CONTEXTS];
    size_t k = contexts_of(m, n, ctx);
    struct table t;
    struct tsv pub;
    TRY(tsv_published(&pub, a, rep_word(rep, "values", rep->name), e));
    table_init(&t, a, rep->name, arena_printf(a, "%s (%s scale)", rep->title, p->m->scale));
    table_col(&t, "model", NULL, true, false);
    for (size_t c = 0; c < k; c++)
        table_col(&t, arena_printf(a, "%g", ctx[c]), decode ? "ours: ms a token / GiB" : "ours: s / GiB", false, true);
    for (size_t i = 0; i < n; i++) {
        size_t r = table_row(&t, i ? NULL : "ours");
        cell_text(table_cell(&t, r, 0), m[i].label);
        if (!m[i].have)
            table_cell(&t, r, 0)->note =
                table_note(&t, "%.300s", rep_missing(m[i].n) ? rep_missing(m[i].n) : "its infer.tsv cannot be read");
        if (!m[i].have && k)
            cell_text(table_cell(&t, r, 1), rep_state(m[i].n));
        for (size_t c = 0; c < k; c++) {
            size_t at = row_at(&m[i], ctx[c]);
            struct cell *cell = table_cell(&t, r, 1 + c);
            if (at && !strcmp(tsv_cell(&m[i].rows, at, "fits"), "no")) {
                cell_text(cell, "OOM");
                cell->note =
                    table_note(&t, "predicted to need %.1f GiB, %s; not tried", tsv_number(&m[i].rows, at, "need_bytes") / 1073741824,
                               node_f64(m[i].n, "memory_gib") > 0 ? arena_printf(a, "memory_gib is %s", node_str(m[i].n, "memory_gib"))
                                                                  : "more than the device has");
            } else if (at) {
                cell_text(cell,
                          arena_printf(a, "%.4g / %.4g", (decode ? 1e3 : 1) * tsv_number(&m[i].rows, at, decode ? "decode_s" : "prefill_s"),
                                       tsv_number(&m[i].rows, at, decode ? "decode_peak" : "prefill_peak") / 1073741824));
            }
        }
    }
    str_puts(text, text->len ? "\n" : "");
    if (n && m[0].have)
        table_note(&t, "%s, %s; %s sequences, %s, %s tokens decoded, median of %s rounds after %s; peaks are what this program allocated",
                   rep_text(p, m[0].n, "device"), rep_text(p, m[0].n, "precision"), node_str(m[0].n, "sequences"), prefilled(m[0].n, a),
                   node_str(m[0].n, "decode"), node_str(m[0].n, "reps"), node_str(m[0].n, "warmup"));
    TRY(rep_emit(p, rep, &t, dir, text, e));
    struct table q;
    table_init(&q, a, arena_printf(a, "%s-published", rep->name), arena_printf(a, "%s, as published", rep->title));
    for (size_t c = 0; c < pub.cols; c++)
        table_col(&q, pub.row[0][c], c ? rep_paper(p) : NULL, c == 0, false);
    for (size_t i = 1; i < pub.n; i++) {
        size_t r = table_row(&q, NULL);
        for (size_t c = 0; c < pub.cols; c++)
            cell_text(table_cell(&q, r, c), pub.row[i][c]);
    }
    if (q.n_rows)
        table_cell(&q, 0, 0)->note = table_note(&q, "%s", pub.source);
    return rep_emit(p, rep, &q, dir, text, e);
}

/* ---- Figure 3 ---- */

static bool panel_of(const struct timed *m, size_t n, const double *ctx, size_t k, const char *column, double factor, const char *title,
                     const char *ylabel, bool bottom, struct arena *a, struct panel *out)
{
    struct series *s = arena_array(a, n + 1, sizeof *s);
    struct tic *xt = arena_array(a, k + 1, sizeof *xt);
    double *v = arena_array(a, 2 * n * k + 1, sizeof *v), top = 0;
    size_t lines = 0;
    if (!s || !xt || !v)
        return false;
    for (size_t c = 0; c < k; c++)
        xt[c] = (struct tic){(double)c, ctx[c] >= 1024 && fmod(ctx[c], 1024) == 0 ? arena_printf(a, "%gK", ctx[c] / 1024)
                                                                                  : arena_printf(a, "%g", ctx[c])};
    for (size_t i = 0; i < n; i++) {
        double *x = v + 2 * i * k, *y = x + k;
        size_t at = 0;
        for (size_t c = 0; c < k; c++) {
            size_t r = row_at(&m[i], ctx[c]);
            double value = r ? factor * tsv_number(&m[i].rows, r, column) : NAN;
            if (!finite_f64(value)) /* out of memory, or not measured: the line ends */
                continue;
            x[at] = (double)c;
            y[at++] = value;
            top = fmax(top, value);
        }
        if (at)
            s[lines++] = (struct series){.label = m[i].label, .x = x, .y = y, .n = at, .style = i == 0 ? 7 : (int)i, .line = true};
    }
    *out = (struct panel){.title = title,
                          .xlabel = bottom ? "context" : NULL,
                          .ylabel = ylabel,
                          .xlo = -0.2,
                          .xhi = (double)k - 0.8,
                          .ylo = 0,
                          .yhi = top * 1.08,
                          .xtic = xt,
                          .n_xtic = k,
                          .s = s,
                          .n_s = lines};
    return lines > 0 && k > 1 && top > 0;
}

static int figure_of(struct plan *p, const struct report *rep, struct arena *a, const struct timed *m, size_t n, const char *dir,
                     struct str *text, struct err *e)
{
    static const struct {
        const char *column, *title, *ylabel;
        double factor;
    } what[] = {{"prefill_s", "prefill", "seconds", 1},
                {"decode_s", "decoding", "ms a token", 1e3},
                {"prefill_peak", "peak memory, prefill", "GiB", 1.0 / 1073741824},
                {"decode_peak", "peak memory, decoding", "GiB", 1.0 / 1073741824}};
    double ctx[MAX_CONTEXTS];
    struct panel pn[4];
    size_t k = contexts_of(m, n, ctx);
    for (size_t i = 0; i < 4; i++)
        if (!panel_of(m, n, ctx, k, what[i].column, what[i].factor, what[i].title, what[i].ylabel, i >= 2, a, &pn[i]))
            return arena_ok(a, "a figure", e);
    struct picture pic = {.name = rep->name,
                          .note = arena_printf(a, "%s scale; %s, %s; batch %s, %s", p->m->scale, rep_text(p, m[0].n, "device"),
                                               rep_text(p, m[0].n, "precision"), node_str(m[0].n, "sequences"), prefilled(m[0].n, a)),
                          .p = pn,
                          .rows = 2,
                          .cols = 2,
                          .width = 6.75,
                          .height = 4.6,
                          .left = 0.85};
    return rep_picture(&pic, dir, text, e);
}

/* NAME.det.tsv of the figure, whose data are times: which lengths each model ran at. */
static int deterministic(const struct report *rep, const struct timed *m, size_t n, const char *dir, struct err *e)
{
    char path[1024], file[300];
    struct str s = STR_INIT;
    str_puts(&s, "model\tcontext\tfits\n");
    for (size_t i = 0; i < n; i++)
        for (size_t r = 1; m[i].have && r < m[i].rows.n; r++)
            str_printf(&s, "%s\t%s\t%s\n", m[i].label, tsv_cell(&m[i].rows, r, "context"), tsv_cell(&m[i].rows, r, "fits"));
    snprintf(file, sizeof file, "%.200s.det.tsv", rep->name);
    int rc = mkdir_p(dir, e) || str_ok(&s, file, e) || file_write(path_join(path, dir, file), str_c(&s), s.len, e) ? -1 : 0;
    str_free(&s);
    return rc;
}

int report_infer(struct plan *p, const struct report *rep, const char *out_dir, struct str *text, struct report_result *res, struct err *e)
{
    struct arena a;
    struct timed m[MAX_MODELS];
    const char *show = rep_word(rep, "show", "prefill");
    arena_init(&a, 0);
    size_t n = gather(p, rep, &a, m);
    for (size_t i = 0; i < n; i++)
        res->missing += !m[i].have;
    res->cells = (int)n;
    str_printf(&res->verdict, "%zu models timed, %d not made", n - (size_t)res->missing, res->missing);
    int rc = arena_ok(&a, "a report", e);
    if (rc == 0)
        rc = !strcmp(show, "figure") ? deterministic(rep, m, n, out_dir, e) || figure_of(p, rep, &a, m, n, out_dir, text, e) ? -1 : 0
                                     : table_of(p, rep, &a, m, n, !strcmp(show, "decode"), out_dir, text, e);
    arena_free(&a);
    return rc;
}
