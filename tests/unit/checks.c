/* A manifest's checks: how they are read, and what they say about tables. */
#include <unistd.h>

#include "core/fs.h"
#include "experiments/checks.h"
#include "tests/test.h"

static const struct param_spec params[] = {{.name = "n", .type = PT_INT, .def = "1", .help = "a number"}};
static const struct stage_kind kind = {.name = "make", .about = "", .version = 1, .params = params, .n_params = 1};
static const struct stage_kind *const kinds[] = {&kind};
static const char *const reports[] = {"table"};
static const struct registry reg = {.kinds = kinds, .n = 1, .report_kinds = reports, .n_report_kinds = 1};
static char root[] = "/tmp/dashlab-checks-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[1024];
    CHECK_OK(file_write(path_join(path, root, name), text, strlen(text), e));
}

/* The lines of `checks:` in a manifest that is right but for them. */
static int load(struct manifest *m, const char *checks, const char *scale, struct err *e)
{
    struct str s = STR_INIT;
    char path[1024];
    str_printf(&s, "dash: 1\nname: m\nstages:\n  - {id: a, kind: make}\nreports:\n  - {kind: table, name: t}\nchecks:\n%s", checks);
    put("m.yaml", str_c(&s));
    str_free(&s);
    return manifest_load(m, path_join(path, root, "m.yaml"), scale, &reg, e);
}

static void refused(const char *checks, const char *text)
{
    struct manifest m;
    CHECK_ERR(load(&m, checks, "ci", e), E_USAGE, text);
}

/* Whether the first check holds, and that its line says `text`. */
static bool holds(const char *checks, const char *text)
{
    struct manifest m;
    struct str line = STR_INIT;
    bool held = false;
    CHECK_OK(load(&m, checks, "ci", e));
    CHECK_EQ_I(m.n_checks, 1);
    CHECK_OK(check_run(&m.checks[0], root, &line, &held, e));
    if (!strstr(str_c(&line), text) || !strstr(str_c(&line), held ? ": holds" : ": FAILED")) {
        test_failed++;
        printf("'%s' lacks '%s'\n", str_c(&line), text);
    }
    str_free(&line);
    manifest_free(&m);
    return held;
}

static void test_reading(void)
{
    struct manifest m;
    CHECK_OK(load(&m, "  - {table: t, row: x, column: c, min: 1, scale: tiny}\n  - {table: t, row: x, column: c, max: 2}\n", "ci", e));
    CHECK_EQ_I(m.n_checks, 1); /* the other is of another scale */
    CHECK(m.checks[0].has_max && !m.checks[0].has_min && m.checks[0].max == 2);
    manifest_free(&m);
    refused("  - {row: x, column: c, min: 1}\n", "a check needs 'table'");
    refused("  - {table: t, row: x, min: 1}\n", "a check is {table, row, column");
    refused("  - {table: t, row: x, column: c}\n", "a check is {table, row, column");
    refused("  - {table: t, row: x, column: c, min: 1, within: 2}\n", "a check is {table, row, column");
    refused("  - {table: t, against: f.tsv}\n", "a check is {table, row, column");
    refused("  - {table: t, row: x, column: c, min: lots}\n", "'lots' is not a finite number");
    refused("  - {table: t, row: x, column: c, min: 3, max: 2}\n", "'min' 3 is above 'max' 2");
    refused("  - {table: t, row: x, colum: c, min: 3}\n", "did you mean 'column'?");
    refused("  - {table: t, row: x, column: c, min: 3, scale: huge}\n", "unknown scale 'huge'");
    refused("  - 3\n", "a check must be a map");
    refused("  a: 3\n", "'checks' must be a list");
}

static void test_cells(void)
{
    put("t.det.tsv", "block\tname\tscore\tse\nb1\tx\t50.5\t1\nb1\ty\t40\t2\nb2\tx\t-\t3\n");
    CHECK(holds("  - {table: t, row: b1/x, column: score, min: 50, max: 51}\n", "'b1/x' score = 50.5"));
    CHECK(holds("  - {table: t, row: b1/x, column: score, min: 50.5, max: 50.5}\n", "50.5"));
    CHECK(!holds("  - {table: t, row: b1/x, column: score, min: 50.6}\n", "at least 50.6"));
    CHECK(!holds("  - {table: t, row: b1/x, column: score, max: 50.4}\n", "at most 50.4"));
    CHECK(holds("  - {table: t, row: b1, column: se, max: 1}\n", "= 1")); /* the first row of that name */
    CHECK(holds("  - {table: t, row: b1/x, column: score, above: b1/y}\n", "difference 10.5"));
    CHECK(holds("  - {table: t, row: b1/x, column: score, above: b1/y, min: 10, max: 11}\n", "difference 10.5"));
    CHECK(!holds("  - {table: t, row: b1/y, column: score, above: b1/x}\n", "difference -10.5"));
    CHECK(!holds("  - {table: t, row: b2/x, column: score, min: 0}\n", "'-', no number"));
    CHECK(!holds("  - {table: t, row: b3/x, column: score, min: 0}\n", "no row 'b3/x'"));
    CHECK(!holds("  - {table: t, row: b1/x, column: scores, min: 0}\n", "no column 'scores'"));
}

static void test_against(void)
{
    char line[1200], path[1024];
    put("ref.tsv", "block\tname\tscore\nb1\tx\t51\nb1\ty\t-\n");
    path_join(path, root, "ref.tsv");
    snprintf(line, sizeof line, "  - {table: t, against: %s, within: 0.5}\n", path);
    CHECK(holds(line, "1 of 1 numbers"));
    snprintf(line, sizeof line, "  - {table: t, against: %s, within: 0.4}\n", path);
    CHECK(!holds(line, "'b1/x' score = 50.5, expected 51"));
    put("ref.tsv", "block\tname\tscore\nb9\tx\t51\n");
    CHECK(!holds(line, "no row 'b9/x'"));
    put("ref.tsv", "block\tname\tscore\n");
    CHECK(!holds(line, "0 of 0 numbers")); /* nothing compared is nothing shown */
}

/* Before any run: what `why` says of a check of table `shape`, "" for nothing. */
static void known(const char *row, const char *column, bool fixed, const char *text)
{
    static const char *const labels[] = {"Teacher", "DASH-3"};
    struct check c = {.table = "shape", .row = row, .column = column, .above = "", .against = "", .has_min = true};
    struct check_shape s = {.rows = fixed, .columns = fixed, .labels = labels, .n_labels = ARRAY_LEN(labels)};
    struct str why = STR_INIT;
    CHECK_OK(check_known(&c, root, &s, &why, e));
    if (*text ? !strstr(str_c(&why), text) : why.len > 0) {
        test_failed++;
        printf("%s, %s: '%s' lacks '%s'\n", row, column, str_c(&why), text);
    }
    str_free(&why);
}

static void test_known(void)
{
    put("shape.tsv", "block\tname\tscore\nb1\tDASH-2\t-\n");
    known("b1/DASH-2", "score", true, "");
    known("b1/DASH-2", "score se", true, ""); /* stands beside it once there are numbers */
    known("b1/DASH-2", "scor", true, "no column 'scor'; did you mean 'score'?");
    known("b1/DASH-3", "score", true, "will have no row 'b1/DASH-3'; did you mean 'b1/DASH-2'?");
    known("b1/DASH-3 (budget not filled)", "score", false, ""); /* a row that may come: it begins with a run's label */
    known("b1/DASH3", "other", false, "will have no row 'b1/DASH3'");
    struct check gone = {.table = "shape", .row = "", .column = "", .above = "", .against = "/nowhere/x.tsv"};
    struct check_shape s = {0};
    struct str why = STR_INIT;
    CHECK_OK(check_known(&gone, root, &s, &why, e));
    CHECK(strstr(str_c(&why), "'/nowhere/x.tsv' does not exist"));
    str_free(&why);
}

static void test_files(void)
{
    struct check c = {.table = "none", .row = "x", .column = "c", .above = "", .against = "", .has_min = true};
    struct str line = STR_INIT;
    bool held;
    CHECK_OK(check_run(&c, root, &line, &held, e));
    CHECK(!held && strstr(str_c(&line), "the table was not made"));
    c.table = "plain"; /* a table without times has no .det.tsv */
    put("plain.tsv", "x\tc\nx\t1\n");
    CHECK_OK(check_run(&c, root, &line, &held, e));
    CHECK(held);
    put("empty.tsv", "");
    c.table = "empty";
    CHECK_ERR(check_run(&c, root, &line, &held, e), E_INPUT, "empty.tsv");
    put("short.tsv", "x\tc\td\nx\n");
    c.table = "short";
    CHECK_OK(check_run(&c, root, &line, &held, e)); /* a row that ends early has no number there */
    CHECK(!held);
    str_free(&line);
}

int main(void)
{
    if (!mkdtemp(root)) {
        printf("no temporary folder\n");
        return 1;
    }
    test_reading();
    test_cells();
    test_against();
    test_known();
    test_files();
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
