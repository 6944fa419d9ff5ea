/* Tables in their four forms, and the checks of figure data. */
#include <math.h>
#include <unistd.h>

#include "core/fs.h"
#include "reports/plot.h"
#include "reports/site.h"
#include "reports/table.h"
#include "tests/test.h"

static void fill(struct table *t, struct arena *a)
{
    table_init(t, a, "demo", "50% of_it");
    t->caption = "a & b";
    table_col(t, "method", NULL, true, false);
    table_col(t, "all", "KL", false, false);
    table_col(t, "answers", "KL", false, false);
    table_col(t, "s", NULL, false, true);
    size_t r = table_row(t, "references");
    cell_text(table_cell(t, r, 0), "A|B");
    cell_num(table_cell(t, r, 1), 1.26, 0.5, 1);
    cell_int(table_cell(t, r, 2), 12);
    cell_num(table_cell(t, r, 3), 7.25, -1, 0);
    r = table_row(t, "K = 3");
    cell_text(table_cell(t, r, 0), "x_1 {λ<2} ~\\^$#");
    cell_num(table_cell(t, r, 1), NAN, 0.5, 1); /* not a number: no cell */
    table_cell(t, r, 1)->note = table_note(t, "failed: %d %%", 5);
    cell_num(table_cell(t, r, 2), -2, -1, 2);
    r = table_row(t, NULL);
    cell_text(table_cell(t, r, 0), "tab\there");
    CHECK_EQ_I(table_note(t, "failed: 5 %%"), 1); /* equal texts share a number */
    table_cell(t, r, 2)->note = 1;
}

static void test_writers(void)
{
    struct arena a;
    struct table t;
    struct str s = STR_INIT;
    arena_init(&a, 0);
    fill(&t, &a);
    table_text(&t, &s);
    CHECK_STR(str_c(&s), "50% of_it\n"
                         "                 KL                  \n"
                         "method                all  answers  s\n"
                         "-- references\n"
                         "A|B              1.3 ±0.5       12  7\n"
                         "-- K = 3\n"
                         "x_1 {λ<2} ~\\^$#     - [1]    -2.00  -\n"
                         "tab\there                -    - [1]  -\n"
                         "[1] failed: 5 %\n"
                         "a & b\n");
    str_clear(&s);
    table_md(&t, &s);
    CHECK(strstr(str_c(&s),
                 "| method | KL: all | KL: answers | s |\n| --- | ---: | ---: | ---: |\n| *references* | | | |\n| A\\|B | 1.3 ±0.5 | 12 | "
                 "7 |\n"));
    str_clear(&s);
    table_tex(&t, &s);
    CHECK(strstr(str_c(&s), "\\caption{50\\% of\\_it. a \\& b}"));
    CHECK(strstr(str_c(&s), "\\begin{tabular}{lrrr}"));
    CHECK(strstr(str_c(&s), " & \\multicolumn{2}{c}{KL} &  \\\\\n"));
    CHECK(strstr(str_c(&s), "A$|$B & 1.3 $\\pm$0.5 & 12 & 7 \\\\\n"));
    CHECK(strstr(str_c(&s),
                 "x\\_1 \\{$\\lambda$$<$2\\} \\textasciitilde{}\\textbackslash{}\\textasciicircum{}\\$\\# & -$^{1}$ & -2.00 & - \\\\\n"));
    CHECK(strstr(str_c(&s), "\\multicolumn{4}{l}{\\emph{K = 3}} \\\\\n"));
    CHECK(strstr(str_c(&s), "$^{1}$ failed: 5 \\%\n"));
    str_clear(&s);
    table_tsv(&t, false, &s);
    CHECK_STR(str_c(&s), "block\tmethod\tKL: all\tKL: all se\tKL: answers\ts\n"
                         "references\tA|B\t1.26\t0.5\t12\t7.25\n"
                         "K = 3\tx_1 {λ<2} ~\\^$#\t-\t-\t-2.0\t-\n"
                         "K = 3\ttab here\t-\t-\t-\t-\n");
    str_clear(&s);
    table_tsv(&t, true, &s); /* without the timing column */
    CHECK(strstr(str_c(&s), "block\tmethod\tKL: all\tKL: all se\tKL: answers\n") == str_c(&s));
    CHECK(strstr(str_c(&s), "references\tA|B\t1.26\t0.5\t12\n") && !strstr(str_c(&s), "7.25"));
    str_free(&s);
    arena_free(&a);
}

static void test_save(const char *dir)
{
    struct arena a;
    struct table t;
    char path[1024];
    arena_init(&a, 0);
    fill(&t, &a);
    CHECK_OK(table_save(&t, dir, e));
    CHECK(file_size(path_join(path, dir, "demo.txt")) > 0 && file_size(path_join(path, dir, "demo.md")) > 0 &&
          file_size(path_join(path, dir, "demo.tex")) > 0);
    int64_t det = file_size(path_join(path, dir, "demo.det.tsv")), full = file_size(path_join(path, dir, "demo.tsv"));
    CHECK(det > 0 && det < full);
    struct table many;
    table_init(&many, &a, "many", "many rows"); /* rows grow, contents stay */
    table_col(&many, "i", NULL, false, false);
    for (int64_t i = 0; i < 100; i++)
        cell_int(table_cell(&many, table_row(&many, NULL), 0), i);
    bool same = true;
    for (size_t i = 0; i < 100; i++)
        same = same && table_cell(&many, i, 0)->v == (double)i;
    CHECK(same);
    CHECK_OK(table_save(&many, dir, e));
    CHECK(!file_exists(path_join(path, dir, "many.det.tsv"))); /* no timing column: one TSV */
    struct str tex = STR_INIT;
    size_t floats = 0;
    table_tex(&many, &tex); /* a float holds no more than a page */
    for (const char *q = str_c(&tex); (q = strstr(q, "\\begin{table}")); q++)
        floats++;
    CHECK(floats == 4 && strstr(str_c(&tex), "\\caption{many rows, continued}"));
    str_free(&tex);
    arena_free(&a);
}

static void figure_refused(struct figure f, const char *dir, const char *text)
{
    bool drawn = true;
    char path[1024];
    CHECK_ERR(figure_save(&f, dir, "reports/style.gp", &drawn, e), E_INPUT, text);
    CHECK(!drawn && !file_exists(path_join(path, dir, "fig.tsv"))); /* nothing is written */
}

static void test_figure(const char *dir)
{
    double x[] = {1, 2, 3}, y[] = {10, 20, 15}, se[] = {1, 1, 1};
    struct series s = {.label = "demo \"q\"", .x = x, .y = y, .se = se, .n = 3, .style = 1, .line = true};
    struct hline h = {12, "floor"};
    struct figure f = {.name = "fig", .xlabel = "x", .ylabel = "y_1", .note = "tiny scale", .xlo = 0, .xhi = 4, .s = &s, .n = 1,
                       .hlines = &h, .n_hlines = 1};
    struct figure none = f;
    none.n = 0;
    figure_refused(none, dir, "has no series");
    s.n = 0;
    figure_refused(f, dir, "has no points");
    s.n = 3;
    y[1] = NAN;
    figure_refused(f, dir, "point 1 is not finite");
    y[1] = 20;
    x[2] = INFINITY;
    figure_refused(f, dir, "point 2 is not finite");
    x[2] = 3;
    se[0] = NAN;
    figure_refused(f, dir, "point 0 is not finite");
    se[0] = 1;
    h.y = NAN;
    figure_refused(f, dir, "line 'floor' is not finite");
    h.y = 12;
    f.xhi = NAN;
    figure_refused(f, dir, "range");
    f.xhi = 4;
    f.xlog = true;
    figure_refused(f, dir, "a logarithmic axis begins at 0");
    f.xlog = false;
    bool drawn;
    char path[1024];
    struct str tsv = STR_INIT, svg = STR_INIT;
    CHECK_OK(figure_save(&f, dir, "reports/style.gp", &drawn, e));
    CHECK_OK(file_read(path_join(path, dir, "fig.tsv"), 0, &tsv, e));
    CHECK(strstr(str_c(&tsv), "1.0\t10.0\t1.0\n2.0\t20.0\t1.0\n3.0\t15.0\t1.0\n"));
    CHECK(file_size(path_join(path, dir, "fig.gp")) > 0);
    if (drawn) {
        CHECK(file_size(path_join(path, dir, "fig.pdf")) > 500 && file_size(path_join(path, dir, "fig.png")) > 500);
        CHECK_OK(file_read(path_join(path, dir, "fig.svg"), 0, &svg, e));
        CHECK(strstr(str_c(&svg), "<svg") && strstr(str_c(&svg), "tiny scale"));
    } else {
        printf("gnuplot is not installed: the picture itself is not checked\n");
    }
    str_free(&tsv);
    str_free(&svg);
}

static void picture_refused(const struct picture *f, const char *dir, const char *text)
{
    bool drawn = true;
    char path[1024];
    CHECK_ERR(picture_save(f, dir, "reports/style.gp", &drawn, e), E_INPUT, text);
    CHECK(!drawn && !file_exists(path_join(path, dir, "pic.tsv")));
}

static void test_picture(const char *dir)
{
    static const char *const parts[] = {"Full", "Window", "Linear"};
    struct rect r[] = {{0, 1, 0, 0.25, 0}, {0, 1, 0.25, 1, 2}, {1, 2, 0, 0, 1}};
    struct tic t = {0.5, "layer \"0\""};
    double x[] = {0.5, 1.5}, y[] = {10, 20}, se[] = {1, 2};
    struct series line = {.label = "RULER", .x = x, .y = y, .se = se, .n = 2};
    struct panel p = {.title = "a_b", .xlo = 0, .xhi = 2, .ylo = 0, .yhi = 1, .y2lo = 0, .y2hi = 30, .r = r, .n = 3, .xtic = &t,
                      .n_xtic = 1, .line = &line};
    struct picture f = {.name = "pic", .note = "tiny scale", .parts = parts, .n_parts = 3, .p = &p, .rows = 1, .cols = 1, .width = 4.2,
                        .height = 2.6, .left = 0.6};
    p.n = 0;
    picture_refused(&f, dir, "has no rectangles");
    p.n = 3;
    p.r = r + 2;
    p.n = 1;
    picture_refused(&f, dir, "has no area");
    p.r = r;
    p.n = 3;
    r[0].y1 = 2;
    picture_refused(&f, dir, "rectangle 0 of panel 0");
    r[0].y1 = NAN;
    picture_refused(&f, dir, "rectangle 0 of panel 0");
    r[0].y1 = 0.25;
    r[1].part = 3;
    picture_refused(&f, dir, "rectangle 1 of panel 0");
    r[1].part = 2;
    y[1] = NAN;
    picture_refused(&f, dir, "point 1 of the line");
    y[1] = 20;
    p.xhi = 0;
    picture_refused(&f, dir, "a range of panel 0");
    p.xhi = 2;
    bool drawn;
    char path[1024];
    struct str s = STR_INIT;
    CHECK_OK(picture_save(&f, dir, "reports/style.gp", &drawn, e));
    CHECK_OK(file_read(path_join(path, dir, "pic.tsv"), 0, &s, e));
    CHECK(strstr(str_c(&s), "panel 0 \"a_b\": Full\n0.0\t1.0\t0.0\t0.25\n") && strstr(str_c(&s), "0.5\t10.0\t1.0\n1.5\t20.0\t2.0\n"));
    CHECK(!strstr(str_c(&s), "Window")); /* no rectangle of it has an area */
    str_clear(&s);
    if (drawn) {
        CHECK_OK(file_read(path_join(path, dir, "pic.svg"), 0, &s, e));
        CHECK(strstr(str_c(&s), "Linear") && strstr(str_c(&s), "tiny scale") && strstr(str_c(&s), "layer") && !strstr(str_c(&s), "Window"));
        str_clear(&s);
        CHECK_OK(file_read(path_join(path, dir, "pic.pdf"), 0, &s, e));
        double w = 0, h = 0;
        for (size_t i = 0; i + 9 < s.len && w == 0; i++)
            if (!memcmp(s.p + i, "/MediaBox", 9))
                CHECK(sscanf(s.p + i, "/MediaBox [ 0 0 %lf %lf ]", &w, &h) == 2);
        CHECK(fabs(w - 72 * f.width) < 1 && fabs(h - 72 * f.height) < 1); /* points: as large as it was asked for */
        bool embedded = false;
        for (size_t i = 0; i + 9 < s.len; i++)
            embedded = embedded || !memcmp(s.p + i, "/FontFile", 9);
        CHECK(embedded);
    }
    str_free(&s);
}

static void test_site(const char *dir)
{
    char root[1024], base[1024], sub[1024], path[1024];
    struct arena a;
    struct table t;
    struct str first = STR_INIT, again = STR_INIT;
    static const char runs[] = "stage\tkind\na<b\tselect\n";
    static const char *const names[] = {"demo10", "demo2"};
    struct site_report r = {"demo", "a title", "1 < 2 \"q\""};
    path_join(root, dir, "site");
    arena_init(&a, 0);
    fill(&t, &a);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        path_join(sub, path_join(base, root, names[i]), "tiny");
        CHECK_OK(table_save(&t, sub, e));
        CHECK_OK(site_note(sub, names[i], "tiny", "T & U", "dashlab x", &r, 1, e));
        CHECK_OK(file_write(path_join(path, sub, "runs.tsv"), runs, sizeof runs - 1, e));
    }
    CHECK_OK(site_write(root, e));
    CHECK_OK(file_read(path_join(path, root, "index.html"), 0, &first, e));
    const char *verdict = strstr(str_c(&first), "1 &lt; 2 &quot;q&quot;"), *table = strstr(str_c(&first), "<td>1.3 ±0.5</td>"),
        *two = strstr(str_c(&first), "id=\"demo2-tiny\""), *ten = strstr(str_c(&first), "id=\"demo10-tiny\"");
    CHECK(verdict && table && two && ten && verdict < two && two < table && two < ten); /* verdicts first, 2 before 10 */
    CHECK(strstr(str_c(&first), "T &amp; U") && strstr(str_c(&first), "<td class=\"l\">a&lt;b</td>") &&
          strstr(str_c(&first), "<details>") && !strstr(str_c(&first), "<script"));
    CHECK_OK(site_write(root, e));
    CHECK_OK(file_read(path, 0, &again, e));
    CHECK_STR(str_c(&again), str_c(&first));
    str_clear(&first);
    CHECK_OK(file_read(path_join(path, root, "index.md"), 0, &first, e));
    CHECK(strstr(str_c(&first), "| [demo](demo2/tiny/) | tiny | 1 < 2"));
    str_free(&first);
    str_free(&again);
    arena_free(&a);
}

int main(void)
{
    char dir[] = "/tmp/dashlab-reports-XXXXXX";
    CHECK(mkdtemp(dir) != NULL);
    test_writers();
    test_save(dir);
    test_figure(dir);
    test_picture(dir);
    test_site(dir);
    CHECK_OK(remove_tree(dir, e));
    return test_end();
}
