/*
 * Predictions in the references' own layouts, made by hand: NVIDIA's pred folders and lm-evaluation-harness' sample files. Both metrics,
 * standard errors, the mean; chunks, several lengths, answers as text; what cannot be read.
 */
#include <math.h>
#include <unistd.h>

#include "core/fs.h"
#include "ruler/ruler.h"
#include "tests/test.h"

static char root[] = "/tmp/ruler_layouts_XXXXXX";

static void put(const char *folder, const char *name, const char *text)
{
    char dir[1024], path[1024];
    CHECK_OK(mkdir_p(path_join(dir, root, folder), e));
    CHECK_OK(file_write(path_join(path, dir, name), text, strlen(text), e));
}

static void score(const char *folder, const char *flavour, int64_t length, struct ruler_scores *s)
{
    char dir[1024];
    CHECK_OK(ruler_score_at(path_join(dir, root, folder), flavour, length, s, e));
}

static void fails(const char *folder, const char *flavour, int64_t length, enum err_code code, const char *text)
{
    char dir[1024];
    struct ruler_scores s = {0};
    CHECK_ERR(ruler_score_at(path_join(dir, root, folder), flavour, length, &s, e), code, text);
    ruler_scores_free(&s);
}

/* Four samples: 100, 50, 0 and nothing said, 50. */
static const char niah[] = "{\"index\": 17, \"pred\": \" 123 and 456.\", \"input\": \"a\", \"outputs\": [\"123\", \"456\"], \"others\": "
                           "{}, \"truncation\": -1, \"length\": 9}\n"
                           "{\"index\": 17, \"pred\": \"456\", \"input\": \"b\", \"outputs\": [\"123\", \"456\"], \"others\": {}, "
                           "\"truncation\": -1, \"length\": 9}\n"
                           "{\"index\": 4, \"pred\": \"\\u0000 \\n\", \"input\": \"c\", \"outputs\": [\"123\", \"456\"], \"others\": {}, "
                           "\"truncation\": -1, \"length\": 9}\n"
                           "{\"index\": 5, \"pred\": \"It is 123\", \"input\": \"d\", \"outputs\": [\"123\", \"456\"], \"others\": {}, "
                           "\"truncation\": -1, \"length\": 9}\n";
/* Any answer counts: 100, 0; as shares 2 of 4, 0. */
static const char qa[] =
    "{\"index\": 0, \"pred\": \"in FRANCE\", \"input\": \"e\", \"outputs\": [\"France\", \"Gaul\", \"France\", \"x\"], \"length\": 9}\n"
    "{\"index\": 1, \"pred\": \"no\", \"input\": \"f\", \"outputs\": [\"yes\"], \"length\": 9}\n";

static void check_nvidia(const struct ruler_scores *s, double qa_mean)
{
    /* deviations of 100 50 0 50 from 50: 50 0 50 0; variance 5000 / 3; of 100 0: 5000; of 50 0: 1250 */
    double se0 = sqrt(5000.0 / 3 / 4), se1 = sqrt(qa_mean == 50 ? 5000.0 / 2 : 1250.0 / 2);
    CHECK_EQ_I(s->n, 2);
    CHECK_STR(s->task[0].name, "niah_multivalue");
    CHECK_EQ_I(s->task[0].n, 4);
    CHECK_EQ_I(s->task[0].nulls, 1);
    CHECK(s->task[0].mean == 50 && fabs(s->task[0].se - se0) < 1e-12);
    CHECK_STR(s->task[1].name, "qa_1");
    CHECK(s->task[1].mean == qa_mean && fabs(s->task[1].se - se1) < 1e-12);
    CHECK(s->mean == (50 + qa_mean) / 2 && fabs(s->se - sqrt(se0 * se0 + se1 * se1) / 2) < 1e-12);
    CHECK(isnan(s->nll));
}

static void nvidia(void)
{
    struct ruler_scores s = {0};
    put("pred", "niah_multivalue.jsonl", niah);
    put("pred", "qa_1.jsonl", qa);
    put("pred", "summary.csv", "0,1\n");
    score("pred", NULL, 0, &s);
    CHECK_STR(s.flavour, "nvidia");
    check_nvidia(&s, 50);
    ruler_scores_free(&s);
    score("pred", "lm-eval", 0, &s);
    CHECK_STR(s.flavour, "lm-eval");
    check_nvidia(&s, 25);
    ruler_scores_free(&s);

    /* the run's folder holds pred; chunks of a task are one task */
    put("run/pred", "niah_multivalue-0.jsonl", "");
    put("run/pred", "niah_multivalue-1.jsonl", niah);
    put("run/pred", "qa_1.jsonl", qa);
    put("run/data", "notes.txt", "");
    score("run", NULL, 0, &s);
    check_nvidia(&s, 50);
    ruler_scores_free(&s);
    put("run/pred", "niah_multivalue.jsonl", niah);
    fails("run", NULL, 0, E_INPUT, "two files of task 'niah_multivalue'");
    put("run/more", "vt.jsonl", niah);
    fails("run", NULL, 0, E_INPUT, "name one of them");
    fails("pred", NULL, 4096, E_USAGE, "NVIDIA's folders hold one");

    struct ruler_diff d[RULER_MAX_TASKS], all;
    char a[1024], b[1024];
    size_t n;
    CHECK_OK(ruler_compare(path_join(a, root, "pred"), path_join(b, root, "pred"), d, &n, &all, e));
    CHECK(n == 2 && all.diff == 0 && all.p == 1);
    put("other", "niah_multivalue.jsonl", niah);
    put("other", "qa_1.jsonl",
        "{\"pred\": \"in FRANCE\", \"input\": \"another\", \"outputs\": [\"France\"]}\n{\"pred\": \"\", \"input\": \"f\", \"outputs\": "
        "[\"x\"]}\n");
    CHECK_ERR(ruler_compare(a, path_join(b, root, "other"), d, &n, &all, e), E_INPUT, "different prompts");
}

#define DOC(len, out)                                                                                                                      \
    "\"doc\": {\"index\": 0, \"input\": \"p\", \"outputs\": " out ", \"length\": 9, \"max_length\": " len ", \"gen_prefix\": \"is\"}, "

static void harness(void)
{
    struct ruler_scores s = {0};
    put("harness/org__model", "samples_niah_single_1_2026-01-02T03-04-05.678.jsonl",
        "{\"doc_id\": 0, " DOC(
            "4096",
            "[\"77\"]") "\"target\": \"['77']\", \"resps\": [[\" 77.\"]], \"filtered_resps\": [\"77.\"], \"4096\": 1.0}\n"
                        "{\"doc_id\": 1, " DOC(
                            "4096",
                            "[\"77\"]") "\"target\": \"['77']\", \"resps\": [[\" 78.\"]], \"filtered_resps\": [\"78.\"], \"4096\": 0.0}\n");
    put("harness/org__model", "samples_ruler_qa_squad_2026-01-02T03-04-05.678.jsonl",
        "{\"doc_id\": 0, " DOC(
            "4096", "[\"France\", \"Gaul\", \"France\", \"x\"]") "\"resps\": [[\"france\"]], \"filtered_resps\": [\"france\"]}\n");
    /* answers as the template writes them, predictions unfiltered */
    put("harness/org__model", "samples_ruler_vt_2026-01-02T03-04-05.678.jsonl",
        "{\"doc\": {\"input\": \"p\", \"max_length\": 4096}, \"target\": \"['AB', \\\"C'D\\\", 'E\\\\xe9']\", \"resps\": [[\"ab c'd "
        "E\\u00c9\"]]}\n");
    put("harness", "results.json", "{}");
    score("harness", NULL, 0, &s);
    CHECK_STR(s.flavour, "lm-eval");
    CHECK_EQ_I(s.n, 3);
    CHECK(s.task[0].mean == 50 && s.task[1].mean == 100 && s.task[2].mean == 50);
    CHECK_STR(s.task[1].name, "vt");
    CHECK_STR(s.task[2].name, "qa_1");
    CHECK(fabs(s.task[0].se - 50) < 1e-12 && fabs(s.mean - 200.0 / 3) < 1e-12 && fabs(s.se - 50.0 / 3) < 1e-12);
    ruler_scores_free(&s);
    score("harness", "nvidia", 0, &s);
    CHECK(s.task[2].mean == 100);
    ruler_scores_free(&s);

    put("lengths", "samples_niah_single_2_1.jsonl",
        "{" DOC("4096", "[\"1\"]") "\"filtered_resps\": [\"1\"]}\n{" DOC("8192", "[\"1\"]") "\"filtered_resps\": [\"2\"]}\n");
    fails("lengths", NULL, 0, E_INPUT, "choose one with --length");
    score("lengths", NULL, 8192, &s);
    CHECK(s.task[0].n == 1 && s.mean == 0);
    ruler_scores_free(&s);
    fails("lengths", NULL, 1024, E_INPUT, "no prediction of this length");
    put("lengths", "samples_niah_single_2_2.jsonl", "{}\n");
    fails("lengths", NULL, 4096, E_INPUT, "two files of task 'niah_single_2'");
}

static void bad(void)
{
    put("empty", "readme.txt", "");
    fails("empty", NULL, 0, E_INPUT, "no predictions: neither ruler.json");
    put("none", "vt.jsonl", "");
    fails("none", NULL, 0, E_INPUT, "no prediction");
    put("nopred", "vt.jsonl", "{\"index\": 0, \"outputs\": [\"a\"]}\n");
    fails("nopred", NULL, 0, E_INPUT, "vt.jsonl: line 1: no prediction ('pred')");
    put("norefs", "vt.jsonl", "{\"pred\": \"a\", \"outputs\": [\"a\"]}\n{\"pred\": \"a\"}\n");
    fails("norefs", NULL, 0, E_INPUT, "line 2: no list of reference answers");
    put("norefs", "vt.jsonl", "{\"pred\": \"a\", \"outputs\": []}\n");
    fails("norefs", NULL, 0, E_INPUT, "0 outputs");
    put("torn", "vt.jsonl", "{\"pred\": \"a\", \"outputs\": [\"a\"]}\n{\"pred\": \"a");
    fails("torn", NULL, 0, E_INPUT, "line 2");
    put("noresp", "samples_ruler_fwe_1.jsonl", "{" DOC("4096", "[\"1\"]") "\"resps\": []}\n");
    fails("noresp", NULL, 0, E_INPUT, "'filtered_resps' or 'resps'");
}

int main(void)
{
    CHECK(mkdtemp(root) != NULL);
    nvidia();
    harness();
    bad();
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
