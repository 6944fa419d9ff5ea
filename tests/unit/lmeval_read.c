/* Readers of benchmark files: the forms they come in, and what is wrong with bad ones, by file and line. */
#include "tests/test.h"

#include <unistd.h>

#include "core/fs.h"
#include "lmeval/lmeval.h"

static char root[64] = "/tmp/lmeval_read.XXXXXX";

static void put(const char *rel, const char *text)
{
    char path[1024], dir[1024];
    snprintf(path, sizeof path, "%s/%s", root, rel);
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    CHECK_OK(mkdir_p(dir, e));
    CHECK_OK(file_write(path, text, strlen(text), e));
}

static void drop(const char *rel)
{
    char path[1024];
    struct err ignored = ERR_INIT;
    snprintf(path, sizeof path, "%s/%s", root, rel);
    remove_tree(path, &ignored);
}

static const struct lme_task *task(const char *name)
{
    struct lme_pick p;
    struct err e = ERR_INIT;
    return lme_pick_tasks(name, &p, &e) == 0 ? p.task[0] : NULL;
}

static int load(const char *name, struct lme_docs *d, struct err *e)
{
    return lme_load(task(name), LME_EVAL, root, d, e);
}

#define BAD(name, file, text, said)                                                                                                        \
    do {                                                                                                                                   \
        struct lme_docs bad_;                                                                                                              \
        put(file, text);                                                                                                                   \
        CHECK_ERR(load(name, &bad_, e), E_INPUT, said);                                                                                    \
        lme_docs_free(&bad_);                                                                                                              \
    } while (0)
#define GOOD "Q one,a,b,c,d,B\n"

static void mmlu(void)
{
    static const char file[] = "mmlu/test/anatomy_test.csv";
    struct lme_docs d;
    char sha[3][65];
    put(file, "\xef\xbb\xbf" GOOD "\"two, \"\"quoted\"\"\nand long\",1,2,3,4,D\r\n\nthree,x,y,z,w,A");
    CHECK_OK(load("mmlu_anatomy", &d, e));
    CHECK_EQ_I(d.n, 3);
    CHECK_STR(d.doc[1].question, "two, \"quoted\"\nand long");
    CHECK_EQ_I(d.doc[1].gold, 3);
    CHECK_EQ_I(d.doc[1].line, 2);
    CHECK_EQ_I(d.doc[2].line, 5);
    CHECK_OK(lme_content_sha(task("mmlu_anatomy"), &d, sha[0], e));
    lme_docs_free(&d);
    put(file, "question,A,B,C,D,answer\n" GOOD "\"two, \"\"quoted\"\"\nand long\",1,2,3,4,D\nthree,x,y,z,w,A\n");
    CHECK_OK(load("mmlu_anatomy", &d, e));
    CHECK_OK(lme_content_sha(task("mmlu_anatomy"), &d, sha[1], e));
    lme_docs_free(&d);
    drop("mmlu");
    put("mmlu/anatomy/test.jsonl",
        "{\"question\": \"Q one\", \"subject\": \"anatomy\", \"choices\": [\"a\", \"b\", \"c\", \"d\"], \"answer\": 1}\n"
        "{\"question\": \"two, \\\"quoted\\\"\\nand long\", \"choices\": [\"1\", \"2\", \"3\", \"4\"], \"answer\": 3}\n"
        "{\"question\": \"three\", \"choices\": [\"x\", \"y\", \"z\", \"w\"], \"answer\": 0}\n");
    CHECK_OK(load("mmlu_anatomy", &d, e));
    CHECK_OK(lme_content_sha(task("mmlu_anatomy"), &d, sha[2], e));
    lme_docs_free(&d);
    CHECK_STR(sha[1], sha[0]);
    CHECK_STR(sha[2], sha[0]);
    BAD("mmlu_anatomy", "mmlu/anatomy/test.jsonl", "{\"question\": \"q\", \"choices\": [\"a\", \"b\", \"c\"], \"answer\": 1}\n",
        "test.jsonl:1: 3 choices");
    BAD("mmlu_anatomy", "mmlu/anatomy/test.jsonl", "\n{\"question\": \"q\", \"choices\": [\"a\", \"b\"]\n", "test.jsonl:2:");
    drop("mmlu");
    BAD("mmlu_anatomy", file, GOOD "short,row\n", "anatomy_test.csv:2: 2 columns");
    BAD("mmlu_anatomy", file, GOOD GOOD "x,a,b,c,d,E\n", "anatomy_test.csv:3: answer 'E'");
    BAD("mmlu_anatomy", file, GOOD "x,a,b,c,d,1\n", "anatomy_test.csv:2: answer '1' in a file whose other answers are letters");
    BAD("mmlu_anatomy", file, GOOD "x,a,,c,d,A\n", "anatomy_test.csv:2: choice B is empty");
    BAD("mmlu_anatomy", file, GOOD "\"x,a,b,c,d,A\n", "anatomy_test.csv:2: the quoted field that begins here has no end");
    BAD("mmlu_anatomy", file, GOOD "\"x\"y,a,b,c,d,A\n", "anatomy_test.csv:2: a closing quote is followed by 'y'");
    BAD("mmlu_anatomy", file, GOOD "x,a,\xff,c,d,A\n", "anatomy_test.csv:2: byte 0xff");
    BAD("mmlu_anatomy", file, "\n", "holds no document");
    drop("mmlu");
    CHECK_ERR(load("mmlu_anatomy", &d, e), E_INPUT, "task 'mmlu_anatomy': no evaluation documents under");
    lme_docs_free(&d);
}

#define ARC(key)                                                                                                                           \
    "{\"id\": \"x\", \"question\": {\"stem\": \"why\", \"choices\": [{\"text\": \"p\", \"label\": \"1\"}, {\"text\": \"q\", \"label\": "   \
    "\"2\"}]}, \"answerKey\": \"" key "\"}\n"

static void arc(void)
{
    static const char file[] = "arc/ARC-Easy/ARC-Easy-Test.jsonl";
    struct lme_docs d;
    char a[65], b[65];
    put(file, ARC("2"));
    CHECK_OK(load("arc_easy", &d, e));
    CHECK_EQ_I(d.doc[0].gold, 1);
    CHECK_OK(lme_content_sha(task("arc_easy"), &d, a, e));
    lme_docs_free(&d);
    drop("arc");
    put("arc_easy/test.json", "{\"rows\": [{\"row_idx\": 0, \"row\": {\"id\": \"x\", \"question\": \"why\", \"choices\": {\"text\": "
                              "[\"p\", \"q\"], \"label\": [\"1\", \"2\"]}, \"answerKey\": \"2\"}}]}");
    CHECK_OK(load("arc_easy", &d, e));
    CHECK_OK(lme_content_sha(task("arc_easy"), &d, b, e));
    CHECK_STR(b, a);
    lme_docs_free(&d);
    drop("arc_easy");
    BAD("arc_easy", file, ARC("1") ARC("B"), "ARC-Easy-Test.jsonl:2: answerKey 'B' is not among the labels 1, 2");
    BAD("arc_easy", file, ARC("1") "{\"id\": 1}\n", "ARC-Easy-Test.jsonl:2: id");
    BAD("arc_easy", file, ARC("1") "[1]\n", "ARC-Easy-Test.jsonl:2: expected an object");
    BAD("arc_easy", file,
        "{\"id\": \"x\", \"question\": {\"stem\": \"why\", \"choices\": [{\"text\": \"\", \"label\": \"1\"}]}, \"answerKey\": \"1\"}\n",
        ":1: choice 1 is empty");
    drop("arc");
}

static void labels(void)
{
    static const char row[] = "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}\n{\"goal\": \"h\", \"sol1\": \"c\", \"sol2\": \"d\"}\n";
    struct lme_docs d;
    put("piqa/valid-labels.lst", "1\n0\n");
    put("piqa/valid.jsonl", row);
    CHECK_OK(load("piqa", &d, e));
    CHECK_EQ_I(d.doc[0].gold, 1);
    CHECK_EQ_I(d.doc[1].gold, 0);
    lme_docs_free(&d);
    put("piqa/valid-labels.lst", "1\n");
    BAD("piqa", "piqa/valid.jsonl", row, "valid-labels.lst:2: 1 labels for the 2 rows");
    put("piqa/valid-labels.lst", "1\n0\n0\n");
    BAD("piqa", "piqa/valid.jsonl", row, "valid-labels.lst:3: 3 labels for the 2 rows");
    put("piqa/valid-labels.lst", "1\n2\n");
    BAD("piqa", "piqa/valid.jsonl", row, "valid-labels.lst:2: label '2'; expected 0 or 1");
    drop("piqa/valid-labels.lst");
    BAD("piqa", "piqa/valid.jsonl", row, "valid.jsonl:1: the row has no label and there is no");
    BAD("piqa", "piqa/valid.jsonl", "{\"goal\": \"g\", \"sol1\": \"\", \"sol2\": \"b\", \"label\": 0}\n", "valid.jsonl:1: sol1 is empty");
    drop("piqa");
    BAD("winogrande", "winogrande/dev.jsonl", "{\"sentence\": \"no blank\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"1\"}\n",
        "dev.jsonl:1: the sentence has no '_'");
    BAD("winogrande", "winogrande/dev.jsonl", "{\"sentence\": \"ends _ \", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"1\"}\n",
        "dev.jsonl:1: nothing follows");
    BAD("winogrande", "winogrande/dev.jsonl", "{\"sentence\": \"a _ b\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"3\"}\n",
        "dev.jsonl:1: answer '3'");
    put("winogrande/dev-labels.lst", "2\n");
    BAD("winogrande", "winogrande/dev.jsonl", "{\"sentence\": \"a _ b\", \"option1\": \"a\", \"option2\": \"b\", \"answer\": \"1\"}\n",
        "dev-labels.lst:1: label 2, but the row");
    drop("winogrande");
}

static void names(void)
{
    struct lme_pick p;
    int shots;
    CHECK_OK(lme_pick_tasks("mmlu", &p, e));
    CHECK_EQ_I(p.n, 57);
    CHECK_STR(p.task[0]->name, "mmlu_abstract_algebra");
    CHECK_STR(p.task[19]->name, "mmlu_business_ethics");
    CHECK(p.group[4] && p.group[0]);
    CHECK_OK(lme_pick_tasks("piqa,mmlu_stem,mmlu_anatomy,piqa", &p, e));
    CHECK_EQ_I(p.n, 20);
    CHECK(p.group[0] && !p.group[4]);
    CHECK_ERR(lme_pick_tasks("arc_esay", &p, e), E_USAGE, "did you mean 'arc_easy'?");
    CHECK_ERR(lme_pick_tasks("", &p, e), E_USAGE, "no task");
    CHECK_OK(lme_pick_tasks("mmlu,piqa", &p, e));
    CHECK_OK(lme_shots_of("2,mmlu=5", &p, task("piqa"), &shots, e));
    CHECK_EQ_I(shots, 2);
    CHECK_OK(lme_shots_of("2,mmlu=5", &p, task("mmlu_virology"), &shots, e));
    CHECK_EQ_I(shots, 5);
    CHECK_ERR(lme_shots_of("arc_easy=5", &p, task("piqa"), &shots, e), E_USAGE, "'arc_easy' is not among the tasks");
    CHECK_ERR(lme_shots_of("five", &p, task("piqa"), &shots, e), E_USAGE, "'five'");
}

int main(void)
{
    struct err e = ERR_INIT;
    if (!mkdtemp(root))
        return test_skip("no temporary folder");
    mmlu();
    arc();
    labels();
    names();
    remove_tree(root, &e);
    return test_end();
}
