/* report and regress: what is made of runs that are there, and whether it is as it was. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/report_selectors.h"
#include "cli/repro.h"

static int report_part(struct repro *r, struct part *t, struct err *e)
{
    int missing = 0, broken = 0;
    struct str verdict = STR_INIT;
    int rc = repro_reports(r, t, true, &missing, &verdict, e) || repro_checks(r, t, true, &broken, &verdict, e) ? -1 : 0;
    if (rc == 0)
        printf("RESULT (%s scale): %s\n", t->m.scale, str_c(&verdict));
    str_free(&verdict);
    if (rc == 0 && broken)
        rc = ERR(e, E_CHECK, "%d of %zu checks of '%s' do not hold", broken, t->m.n_checks, t->m.path);
    return rc;
}

/* The cell is looked for in every report; the first that has it answers. */
static int explain(struct repro *r, const char *cell, struct err *e)
{
    struct part *t;
    int rc = 0;
    TRY(repro_single(r, "--explain", &t, e));
    if (!t->m.n_reports)
        return ERR(e, E_USAGE, "'%s' has no report to explain", t->path);
    for (size_t i = 0; i < t->m.n_reports; i++) {
        struct str text = STR_INIT;
        struct err own = ERR_INIT;
        rc = report_explain(&t->p, &t->m.reports[i], t->path, cell, &text, &own);
        if (rc == 0 || i + 1 == t->m.n_reports)
            fputs(str_c(&text), stdout);
        str_free(&text);
        *e = own;
        if (rc == 0)
            break;
    }
    return rc;
}

int cmd_report(int argc, char **argv, struct err *e)
{
    struct repro r = REPRO_INIT;
    const char *cell = NULL;
    const struct opt opts[] = {
        REPRO_OPTS(&r),
        {.name = "explain",
         .type = OPT_STR,
         .dst = &cell,
         .arg = "CELL",
         .help = "the runs, keys, seeds, commands and files behind SELECTOR@BUDGET, LABEL:B=BUDGET, or a row's LABEL",
         .group = "Manifest"},
        COMMON_OPTS(&r.c)};
    const struct cmd_spec spec = {
        .synopsis = "dashlab report MANIFEST [OPTIONS]",
        .about = "Tables and figures from the runs that are complete; computes nothing.",
        .examples = "  dashlab report experiments/table1.yaml\n  dashlab report experiments/table1.yaml --explain dash-2@3",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .min_pos = 1,
        .max_pos = 1};
    size_t n;
    bool done;
    int rc = 0;
    TRY(cli_parse(&spec, &r.c, argc, argv, &r.manifest, &n, &done, e));
    if (done)
        return 0;
    TRY(repro_open(&r, e));
    if (cell)
        rc = explain(&r, cell, e);
    struct err first = ERR_INIT;
    for (size_t i = 0; !cell && i < r.n_parts; i++) {
        struct err own = ERR_INIT;
        if (r.all.n_parts)
            printf("== %s\n", r.part[i].m.name);
        if (report_part(&r, &r.part[i], &own) != 0 && !first.code)
            first = own;
    }
    if (first.code) {
        *e = first;
        rc = -1;
    }
    repro_close(&r);
    return rc;
}

/* ---- regress ---- */

enum { MAX_FIELDS = 128, MAX_TSV = 1 << 22 };
struct compared {
    double atol, rtol;
    int cells, moved, files;
};

/* Fields of a TSV line. */
static size_t fields(char *line, char **f, size_t cap)
{
    size_t n = 0;
    for (char *p = line; p && n < cap;) {
        f[n++] = p;
        p = strchr(p, '\t');
        if (p)
            *p++ = 0;
    }
    return n;
}

static char *cut_line(char *line)
{
    char *next = line ? strchr(line, '\n') : NULL;
    if (next)
        *next++ = 0;
    return next;
}

/* Cell by cell: numbers within atol + rtol |ref|, other text equal. Prints what moved. */
static void compare_tsv(const char *name, char *got, char *want, struct compared *c)
{
    char *gl = got, *wl = want, *head[MAX_FIELDS];
    size_t nh = 0;
    for (int line = 0; (gl && *gl) || (wl && *wl); line++) {
        char *gn = cut_line(gl), *wn = cut_line(wl), *gf[MAX_FIELDS], *wf[MAX_FIELDS];
        size_t ng = gl && *gl ? fields(gl, gf, MAX_FIELDS) : 0, nw = wl && *wl ? fields(wl, wf, MAX_FIELDS) : 0;
        if (ng != nw) {
            printf("%s line %d: %zu fields, stored %zu\n", name, line + 1, ng, nw);
            c->moved++;
        }
        for (size_t i = 0; i < MIN(ng, nw); i++) {
            double a, b;
            bool num = parse_f64(gf[i], &a) && parse_f64(wf[i], &b);
            bool same = num ? fabs(a - b) <= c->atol + c->rtol * fabs(b) : !strcmp(gf[i], wf[i]);
            c->cells++;
            if (same)
                continue;
            /* the row: its block, where the table has blocks, and its name */
            printf("%s%s%-28s %-20s now %s, stored %s\n", i > 1 && line ? gf[0] : "", i > 1 && line ? ": " : "", ng > 1 && i != 1 ? gf[1] : "",
                   line && i < nh ? head[i] : "header", gf[i], wf[i]);
            c->moved++;
        }
        if (line == 0) {
            nh = nw;
            memcpy(head, wf, sizeof(char *) * nw);
        }
        gl = gn;
        wl = wn;
    }
}

static int stored_values(const char *path, struct str *text, struct err *e)
{
    TRY(file_read(path, MAX_TSV, text, e));
    if (text->len == 0 || memchr(text->p, 0, text->len) || !memchr(text->p, '\t', text->len))
        return ERR(e, E_INPUT,
                   "'%s' holds no tab-separated values (give what an earlier run made under results/NAME/SCALE: NAME.det.tsv, or "
                   "the NAME.tsv of a table or figure without times)",
                   path);
    return 0;
}

static int compare_files(const char *got_path, const char *want_path, struct compared *c, struct err *e)
{
    struct str got = STR_INIT, want = STR_INIT;
    int rc = file_read(got_path, MAX_TSV, &got, e) || file_read(want_path, MAX_TSV, &want, e) ? -1 : 0;
    if (rc == 0)
        compare_tsv(path_base(want_path), got.p, want.p, c);
    c->files += rc == 0;
    str_free(&got);
    str_free(&want);
    return rc;
}

static bool ends(const char *s, const char *with)
{
    size_t a = strlen(s), b = strlen(with);
    return a >= b && !strcmp(s + a - b, with);
}

/* The table of the first report: NAME.det.tsv; NAME.tsv where it has no times; or the NAME-points.tsv of a figure that has one; else the
 * figure's data. */
static int first_table(const struct part *t, const char *dir, char out[1024], struct err *e)
{
    const char *name = t->m.reports[0].name;
    static const char *const forms[] = {"%s.det.tsv", "%s-points.det.tsv", "%s-points.tsv", "%s.tsv"};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        char file[300];
        snprintf(file, sizeof file, forms[i], name);
        if (file_exists(path_join(out, dir, file)))
            return 0;
    }
    return ERR(e, E_INPUT, "report '%s' made nothing in '%s' that could be compared: too little is there for its table or figure", name,
               dir);
}

/* Every stored TSV of a folder with the one of its name. */
static int compare_folder(const char *dir, const char *stored, struct compared *c, struct err *e)
{
    struct names names;
    char got[1024], want[1024];
    TRY(dir_list(stored, &names, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < names.n; i++)
        if (ends(names.v[i], ".tsv"))
            rc = compare_files(path_join(got, dir, names.v[i]), path_join(want, stored, names.v[i]), c, e);
    names_free(&names);
    if (rc == 0 && !c->files)
        rc = ERR(e, E_USAGE, "--against '%s': the folder holds no .tsv file", stored);
    return rc;
}

int cmd_regress(int argc, char **argv, struct err *e)
{
    struct repro r = REPRO_INIT;
    struct compared c = {.atol = 1e-6, .rtol = 1e-6};
    const char *against = NULL;
    r.scale = "ci";
    const struct opt opts[] = {REPRO_OPTS(&r),
                               {.name = "against",
                                .type = OPT_STR,
                                .dst = &against,
                                .arg = "FILE",
                                .help = "stored table of the first report, or a folder of stored tables",
                                .group = "Manifest"},
                               {.name = "atol",
                                .type = OPT_F64,
                                .dst = &c.atol,
                                .arg = "X",
                                .lo = 0,
                                .hi = 1e9,
                                .help = "absolute tolerance of numbers",
                                .group = "Manifest"},
                               {.name = "rtol",
                                .type = OPT_F64,
                                .dst = &c.rtol,
                                .arg = "X",
                                .lo = 0,
                                .hi = 1e9,
                                .help = "relative tolerance of numbers",
                                .group = "Manifest"},
                               COMMON_OPTS(&r.c)};
    const struct cmd_spec spec = {.synopsis = "dashlab regress MANIFEST --against FILE|FOLDER [--scale ci]",
                                  .about = "Reproduces a manifest and compares its first table with stored values, or every table of a "
                                           "folder of them. On the CPU results have the same bits for any thread count "
                                           "and instruction set, so the tolerances are tight. Tables with times: store NAME.det.tsv.",
                                  .examples = "  dashlab regress experiments/table1.yaml --scale ci --against experiments/table1.ci.tsv",
                                  .opts = opts,
                                  .n_opts = ARRAY_LEN(opts),
                                  .min_pos = 1,
                                  .max_pos = 1};
    size_t n;
    bool done;
    struct part *t;
    char dir[1024], table[1024];
    TRY(cli_parse(&spec, &r.c, argc, argv, &r.manifest, &n, &done, e));
    if (done)
        return 0;
    if (!against)
        return ERR(e, E_USAGE, "--against FILE is needed");
    struct str stored = STR_INIT;
    int rc = dir_exists(against) ? 0 : stored_values(against, &stored, e); /* before anything is computed */
    str_free(&stored);
    TRY(rc);
    TRY(repro_open(&r, e));
    rc = repro_single(&r, "regress", &t, e);
    if (rc == 0 && !t->m.n_reports)
        rc = ERR(e, E_USAGE, "'%s' has no report to compare", r.manifest);
    if (rc == 0)
        rc = repro_run(&r, t, &(struct repro_how){0}, e);
    if (rc == 0) {
        repro_results(dir, &r, t);
        rc = dir_exists(against)                                                     ? compare_folder(dir, against, &c, e)
             : first_table(t, dir, table, e) || compare_files(table, against, &c, e) ? -1
                                                                                     : 0;
    }
    if (rc == 0)
        printf("regress: %d cells of %d table%s compared with %s (atol %g, rtol %g), %d moved\n", c.cells, c.files, c.files == 1 ? "" : "s",
               against, c.atol, c.rtol, c.moved);
    if (rc == 0 && c.moved)
        rc = ERR(e, E_CHECK, "%d of %d cells moved", c.moved, c.cells);
    repro_close(&r);
    return rc ? -1 : 0;
}
