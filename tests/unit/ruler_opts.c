/*
 * The generator's options: chunks, chat templates, further words, questions, what a folder holds already; and the scorer's two ways of
 * counting question answering. The question files are made here.
 */
#include <unistd.h>

#include "core/fs.h"
#include "core/jread.h"
#include "core/pool.h"
#include "ruler/ruler.h"
#include "tests/test.h"

static int64_t bytes4(void *ctx, const char *text, size_t n)
{
    UNUSED(ctx);
    UNUSED(text);
    return (int64_t)((n + 3) / 4);
}

static char root[] = "/tmp/ruler_opts_XXXXXX", squad[1024], hotpot[1024], words[1024];

/* Two articles of three paragraphs; questions 0..3, one impossible one between them; question 1 has two answers. */
static const char squad_json[] =
    "{\"data\": [{\"paragraphs\": ["
    "{\"context\": \"Aa is red.\", \"qas\": [{\"question\": \"q0?\", \"is_impossible\": false, \"answers\": [{\"text\": \"red\"}]},"
    "{\"question\": \"none?\", \"is_impossible\": true, \"answers\": []}]},"
    "{\"context\": \"Bb is \\u00c9t\\u00e9.\", \"qas\": [{\"question\": \"q1?\", \"is_impossible\": false, \"answers\": [{\"text\": "
    "\"\\u00c9t\\u00e9\"}, "
    "{\"text\": \"other\"}]}]},"
    "{\"context\": \"Cc is low.\", \"qas\": []}]},"
    "{\"paragraphs\": [{\"context\": \"Dd is far.\", \"qas\": [{\"question\": \"q2?\", \"is_impossible\": false, \"answers\": [{\"text\": "
    "\"far\"}]},"
    "{\"question\": \"q3?\", \"is_impossible\": false, \"answers\": [{\"text\": \"far\"}]}]},"
    "{\"context\": \"Ee is near.\", \"qas\": []}, {\"context\": \"Ff is new.\", \"qas\": []}]}]}";
/* The same question in both layouts of HotpotQA. */
static const char hotpot_pairs[] =
    "[{\"question\": \"h?\", \"answer\": \"yes\", \"context\": [[\"T1\", [\"One.\", \" Two.\"]], [\"T2\", [\"Three.\"]]]}]";
static const char hotpot_columns[] = "[{\"question\": \"h?\", \"answer\": \"yes\", \"context\": {\"title\": [\"T1\", \"T2\"], "
                                     "\"sentences\": [[\"One.\", \" Two.\"], [\"Three.\"]]}}]";

static struct ruler_gen_opts opts(const char *flavour, const int64_t *len, int64_t samples, const char *tasks)
{
    return (struct ruler_gen_opts){.counter = {bytes4, NULL},
                                   .lengths = len,
                                   .n_lengths = 1,
                                   .samples = samples,
                                   .seed = 5,
                                   .flavour = flavour,
                                   .data_dir = "ruler/data",
                                   .tokenizer_name = "test",
                                   .tasks = tasks};
}

static void load(const char *dir, const char *task, struct str *out)
{
    char path[1024], sub[64];
    str_clear(out);
    snprintf(sub, sizeof sub, "%s/validation.jsonl", task);
    CHECK_OK(file_read(path_join(path, dir, sub), 0, out, e));
}

static char *in(char dst[1024], const char *name)
{
    return path_join(dst, root, name);
}

static void chunks(void)
{
    int64_t len = 1024;
    char dir[1024], whole[1024];
    struct str a = STR_INIT, b = STR_INIT;
    struct ruler_gen_opts o = opts("compact", &len, 4, "fwe,qa_1");
    o.squad = squad;
    o.n_chunks = 3; /* 2 + 1 + 1 samples */
    o.chunk = 1;
    CHECK_OK(ruler_gen(&o, in(dir, "chunk1"), e));
    struct ruler_gen_opts w = opts("compact", &len, 1, "fwe");
    w.seed = 6; /* a chunk is a run of its own with seed + its number */
    CHECK_OK(ruler_gen(&w, in(whole, "seed6"), e));
    load(dir, "fwe", &a);
    load(whole, "fwe", &b);
    CHECK(a.len > 100);
    CHECK_STR(str_c(&a), str_c(&b));
    load(dir, "qa_1", &a); /* but questions go on where the chunk before stopped */
    CHECK(strstr(str_c(&a), "Question: q2?") && !strstr(str_c(&a), "Question: q0?"));
    CHECK(strstr(str_c(&a), "{\"index\": 0, ") == str_c(&a));
    o.chunk = 3;
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "chunk 3 of 3");
    str_free(&a);
    str_free(&b);
}

static void templates(void)
{
    int64_t len = 1024;
    char dir[1024];
    struct str a = STR_INIT, b = STR_INIT;
    struct ruler_gen_opts o = opts("compact", &len, 1, "niah_single_1,vt");
    o.chat = "lwm-chat";
    CHECK_OK(ruler_gen(&o, in(dir, "chat"), e));
    load(dir, "niah_single_1", &a);
    CHECK(strstr(str_c(&a), "\"input\": \"You is a helpful assistant. USER: A special") != NULL); /* the reference's `are` -> `is` */
    CHECK(strstr(str_c(&a), "provided text? ASSISTANT: \"") != NULL);
    load(dir, "vt", &a); /* the example stands behind the header, the header once */
    const char *first = strstr(str_c(&a), "You are a helpful assistant. USER: Memorize");
    CHECK(first && !strstr(first + 1, "You are a helpful"));
    o.chat = "You are a helpful assistant. USER: {task_template} ASSISTANT: ";
    CHECK_OK(ruler_gen(&o, in(dir, "own"), e));
    load(dir, "vt", &b);
    CHECK_STR(str_c(&a), str_c(&b));
    o.chat = "lwm-caht";
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "did you mean 'lwm-chat'");
    str_free(&a);
    str_free(&b);
}

static int64_t bytes4_calls;
static int64_t bytes4_counted(void *ctx, const char *text, size_t n)
{
    bytes4_calls++;
    return bytes4(ctx, text, n);
}

/* A call that was cut short goes on: what is whole stays, what is not is made again. */
static void goes_on(void)
{
    int64_t len = 1024;
    char dir[1024], path[1024];
    struct str whole = STR_INIT, again = STR_INIT;
    struct ruler_gen_opts o = opts("compact", &len, 2, "fwe,vt");
    o.counter.count = bytes4_counted;
    CHECK_OK(ruler_gen(&o, in(dir, "goes-on"), e));
    CHECK(bytes4_calls > 4);
    load(dir, "fwe", &whole);
    bytes4_calls = 0;
    CHECK_OK(ruler_gen(&o, dir, e));
    CHECK_EQ_I(bytes4_calls, 0);
    CHECK_OK(file_write(path_join(path, dir, "fwe/validation.jsonl"), str_c(&whole), whole.len / 2, e));
    CHECK_OK(remove_tree(path_join(path, dir, "vt"), e));
    CHECK_OK(ruler_gen(&o, dir, e));
    CHECK(bytes4_calls > 4);
    load(dir, "fwe", &again);
    CHECK_STR(str_c(&again), str_c(&whole));
    CHECK(file_exists(path_join(path, dir, "vt/validation.jsonl")));
    bytes4_calls = 0;
    o.force = true; /* made anew */
    CHECK_OK(ruler_gen(&o, dir, e));
    CHECK(bytes4_calls > 4);
    str_free(&whole);
    str_free(&again);
}

static void folders(void)
{
    int64_t len = 1024;
    char dir[1024], path[1024];
    struct str s = STR_INIT;
    struct jdoc d = {0};
    struct ruler_gen_opts o = opts("compact", &len, 1, "fwe");
    CHECK_OK(ruler_gen(&o, in(dir, "folder"), e));
    o.tasks = "cwe"; /* same parameters: one folder, both listed */
    CHECK_OK(ruler_gen(&o, dir, e));
    CHECK_OK(jdoc_load(&d, path_join(path, dir, "provenance.json"), 1 << 20, e));
    CHECK_EQ_I(json_object_size(json_object_get(d.root, "validation_sha256")), 2);
    jdoc_free(&d);
    o.samples = 2;
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "other parameters");
    load(dir, "cwe", &s);
    CHECK(strchr(str_c(&s), '\n') == s.p + s.len - 1); /* one line still */
    o.force = true;
    CHECK_OK(ruler_gen(&o, dir, e)); /* fwe of the other parameters goes with it */
    CHECK(!file_exists(path_join(path, dir, "fwe/validation.jsonl")));
    o.tokenizer_name = "another";
    o.force = false;
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "other parameters");
    /* one task that cannot fit does not keep the other from being made */
    len = 300;
    o.tasks = "vt,fwe,cwe";
    struct err two = ERR_INIT;
    CHECK(ruler_gen(&o, in(dir, "some"), &two) == -1 && two.code == E_CHECK);
    CHECK(strstr(two.msg, "error: 2 of 3 tasks could not be made") == two.msg);
    CHECK(strstr(two.msg, "'vt'") && strstr(two.msg, "'cwe'") && strstr(two.msg, "at least"));
    CHECK(file_exists(path_join(path, dir, "fwe/validation.jsonl")) && file_exists(path_join(path, dir, "provenance.json")));
    CHECK(!file_exists(path_join(path, dir, "vt")) && !file_exists(path_join(path, dir, "cwe")));
    str_free(&s);
}

static void questions(void)
{
    int64_t len = 1024;
    char dir[1024], dir2[1024];
    struct str a = STR_INIT, b = STR_INIT;
    struct ruler_gen_opts o = opts("nvidia", &len, 4, "qa_1");
    o.squad = squad; /* 6 documents: the size search goes beyond, and repeats them */
    CHECK_OK(ruler_gen(&o, in(dir, "squad"), e));
    load(dir, "qa_1", &a);
    CHECK(strstr(str_c(&a), "Document 7:") != NULL);
    CHECK(strstr(str_c(&a), "\"outputs\": [\"\\u00c9t\\u00e9\", \"other\"]") != NULL);
    CHECK(!strstr(str_c(&a), "none?"));
    o.samples = 5;
    CHECK_ERR(ruler_gen(&o, dir, e), E_USAGE, "other parameters");
    CHECK_ERR(ruler_gen(&o, in(dir, "many"), e), E_INPUT, "the file holds 4 questions");
    len = 100;
    o.samples = 4;
    o.flavour = "compact";
    CHECK_ERR(ruler_gen(&o, in(dir, "short"), e), E_USAGE, "at least 1");
    o = opts("compact", &len, 1, "qa_2");
    len = 256;
    o.hotpotqa = hotpot;
    CHECK_OK(file_write(hotpot, hotpot_pairs, sizeof hotpot_pairs - 1, e));
    CHECK_OK(ruler_gen(&o, in(dir, "pairs"), e));
    CHECK_OK(file_write(hotpot, hotpot_columns, sizeof hotpot_columns - 1, e));
    CHECK_OK(ruler_gen(&o, in(dir2, "columns"), e));
    load(dir, "qa_2", &a);
    load(dir2, "qa_2", &b);
    CHECK(strstr(str_c(&a), "T1\\nOne. Two.") != NULL);
    CHECK_STR(str_c(&a), str_c(&b));
    CHECK_OK(file_write(hotpot, "[{\"question\": \"h?\", \"answer\": 3}]", 33, e));
    CHECK_ERR(ruler_gen(&o, in(dir, "bad"), e), E_INPUT, "record 0");
    o.hotpotqa = "/nonexistent/hotpot.json";
    CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, "hotpot.json");
    str_free(&a);
    str_free(&b);
}

static void more_words(void)
{
    int64_t len = 96000; /* about 9,000 words: the lists hold 8,169 */
    char dir[1024];
    struct str s = STR_INIT;
    struct ruler_gen_opts o = opts("compact", &len, 1, "cwe");
    str_putc(&s, '{');
    for (int i = 0; i < 20000; i++)
        str_printf(&s, "%s\"%d\": \"zz%d\"", i ? ", " : "", i, i);
    str_putc(&s, '}');
    CHECK_OK(file_write(words, str_c(&s), s.len, e));
    o.words = words;
    o.flavour = "nvidia";
    CHECK_OK(ruler_gen(&o, in(dir, "words"), e));
    load(dir, "cwe", &s);
    CHECK(strstr(str_c(&s), "\"outputs\": [\"zz") != NULL);
    o.words = NULL;
    CHECK_ERR(ruler_gen(&o, in(dir, "nowords"), e), E_INPUT, "english_words.json");
    CHECK_OK(file_write(words, "[1]", 3, e));
    o.words = words;
    CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, "JSON object");
    str_free(&s);
}

static void bad_essay(void)
{
    static const struct {
        const char *text;
        size_t n;
        const char *says;
    } bad[] = {{"One. Two\0 three.", 16, "byte 8 is a zero byte"},
               {"One. Tw\xff three.", 15, "byte 7 is not UTF-8"},
               {"", 0, "holds no text"},
               {" \n\t ", 4, "holds no text"},
               {"word", 4, "one word"},
               {"one two three and no end of it", 30, "without the end of a sentence"}};
    int64_t len = 1024;
    char dir[1024], path[1024];
    struct ruler_gen_opts o = opts("compact", &len, 1, "niah_single_2");
    in(dir, "essay");
    o.essays = in(path, "essay.txt");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        CHECK_OK(file_write(path, bad[i].text, bad[i].n, e));
        CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, bad[i].says);
    }
    o.essays = in(path, "essay.json");
    CHECK_OK(file_write(path, "\n <!DOCTYPE html><p>404</p>", 27, e));
    CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, "an HTML page");
    CHECK_OK(file_write(path, "{\"text\": \"One. Tw\xff three.\"}", 28, e));
    CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, "essay.json");
    CHECK_OK(file_write(path, "{\"txt\": \"One. Two.\"}", 20, e));
    CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, "text");
    CHECK(!dir_exists(dir));
}

/* Question files that a broken download leaves behind. */
static void bad_questions(void)
{
    static const struct {
        const char *text, *says;
    } bad[] = {{"<html><body>moved</body></html>", "an HTML page"},
               {"", "the file is empty"},
               {"[{\"question\": \"h?\", \"answer\": \"yes\", \"context\": [[\"T1\", [\"One.", "hotpot.json:1:"},
               {"[{\"question\": \"h\xff?\"}]", "hotpot.json:1:"},
               {"{\"data\": []}", "array"},
               {"[]", "no answerable question"},
               {"[{\"question\": \"h?\", \"answer\": \"yes\"}]", "no context"},
               {"[{\"question\": \"h?\", \"answer\": \"yes\", \"context\": {\"title\": [\"T\"]}}]", "context[0]"}};
    int64_t len = 1024;
    char dir[1024];
    struct ruler_gen_opts o = opts("compact", &len, 1, "qa_2");
    in(dir, "badq");
    o.hotpotqa = hotpot;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        CHECK_OK(file_write(hotpot, bad[i].text, strlen(bad[i].text), e));
        CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, bad[i].says);
    }
    CHECK(!dir_exists(dir));
}

static void copy(const char *from, const char *to, size_t keep)
{
    struct str s = STR_INIT;
    CHECK_OK(file_read(from, 0, &s, e));
    CHECK_OK(file_write(to, str_c(&s), MIN(keep, s.len), e));
    str_free(&s);
}

/* Sentence parameters missing or cut off: nothing is written, whatever the task. */
static void bad_parameters(void)
{
    static const char *const lists[] = {"nounlist.txt", "adjectivelist.txt", "verblist.txt"};
    static const char *const punkt[] = {"abbrev_types.txt", "sent_starters.txt", "collocations.tab", "ortho_context.tab"};
    int64_t len = 1024;
    char dir[1024], own[1024], sub[1024], from[1024], to[1024];
    struct ruler_gen_opts o = opts("compact", &len, 1, "fwe");
    in(dir, "noparams");
    in(own, "own-data");
    CHECK_OK(mkdir_p(path_join(sub, own, "wonderwords-2.2.0"), e));
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        copy(path_join(from, "ruler/data/wonderwords-2.2.0", lists[i]), path_join(to, sub, lists[i]), SIZE_MAX);
    copy("ruler/data/essay.txt.zst", path_join(to, own, "essay.txt.zst"), SIZE_MAX);
    CHECK_OK(mkdir_p(path_join(sub, own, "punkt_english"), e));
    o.data_dir = own;
    for (size_t i = 0; i < ARRAY_LEN(punkt); i++) {
        CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, punkt[i]); /* missing */
        copy(path_join(from, "ruler/data/punkt_english", punkt[i]), path_join(to, sub, punkt[i]), SIZE_MAX);
    }
    CHECK_OK(ruler_gen(&o, dir, e));
    CHECK_OK(remove_tree(dir, e));
    for (size_t i = 0; i < ARRAY_LEN(punkt); i++) {
        path_join(from, "ruler/data/punkt_english", punkt[i]);
        path_join(to, sub, punkt[i]);
        copy(from, to, (size_t)file_size(from) / 2);
        CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, punkt[i]);
        CHECK(!dir_exists(dir));
        copy(from, to, SIZE_MAX);
    }
}

/* The reference loops for ever; here the task, the sample and the question are named, and nothing is left. */
static void never_fits(void)
{
    struct str s = STR_INIT;
    int64_t len = 2048;
    char dir[1024], sub[1024];
    struct ruler_gen_opts o = opts("nvidia", &len, 2, "qa_2");
    str_puts(&s, "[");
    for (int q = 0; q < 2; q++) { /* question 1 has twelve documents of 3 lines, question 0 ten short ones */
        str_printf(&s, "%s{\"question\": \"h%d?\", \"answer\": \"yes\", \"context\": [", q ? "," : "", q);
        for (int d = 0; d < (q ? 12 : 10); d++)
            str_printf(&s, "%s[\"T%d.%d\", [\"%s\"]]", d ? "," : "", q, d, q ? "Some words of a document that goes on. " : "One.");
        str_puts(&s, "]}");
    }
    str_puts(&s, "]");
    CHECK_OK(file_write(hotpot, str_c(&s), s.len, e));
    o.hotpotqa = hotpot;
    in(dir, "never");
    len = 256;
    struct err got = ERR_INIT;
    CHECK(ruler_gen(&o, dir, &got) == -1 && got.code == E_USAGE);
    printf("%s\n", got.msg);
    CHECK(strstr(got.msg, "task 'qa_2' cannot fit in length 256: sample 1 (question 1) with its 12 documents") != NULL);
    CHECK(!dir_exists(path_join(sub, dir, "qa_2")));
    str_free(&s);
}

static void two_metrics(void)
{
    static const char prov[] = "{\"flavour\": \"nvidia\"}\n";
    static const char pred[] =
        "{\"line\": 0, \"prompt_sha256\": \"0123456789012345678901234567890123456789012345678901234567890123\", \"pred\": \" in "
        "FRANCE\", \"outputs\": [\"France\", \"Gaul\", \"France\", \"x\"], \"answer_nll\": null, \"answer_tokens\": 1}\n";
    char dir[1024], path[1024];
    struct ruler_scores s = {0};
    in(dir, "preds");
    CHECK_OK(mkdir_p(path_join(path, dir, "qa_1"), e));
    CHECK_OK(file_write(path_join(path, dir, "ruler.json"), prov, sizeof prov - 1, e));
    CHECK_OK(file_write(path_join(path, dir, "qa_1/predictions.jsonl"), pred, sizeof pred - 1, e));
    CHECK_OK(ruler_score(dir, &s, e));
    CHECK(s.mean == 100);
    ruler_scores_free(&s);
    CHECK_OK(ruler_score_as(dir, "lm-eval", &s, e)); /* two of four references */
    CHECK(s.mean == 50);
    CHECK_STR(s.flavour, "lm-eval");
    ruler_scores_free(&s);
    CHECK_ERR(ruler_score_as(dir, "lmeval", &s, e), E_USAGE, "'lmeval'");
    ruler_scores_free(&s);
}

static int open_bytes4(void *ctx, struct ruler_gen_opts *o, struct err *e)
{
    int *calls = ctx;
    ++*calls;
    if (*calls == 3)
        return ERR(e, E_INPUT, "no tokenizer today");
    o->counter = (struct ruler_counter){bytes4, NULL};
    o->tokenizer_name = "test";
    return 0;
}

/* A counter that is opened beside the reading, on one thread and on two, is as good as one that is there; of several errors its is told. */
static void counter_opened(void)
{
    char dir[1024], path[1024];
    int64_t len = 700;
    int calls = 0;
    struct str want[3] = {STR_INIT, STR_INIT, STR_INIT}, got = STR_INIT;
    static const char *const tasks[] = {"niah_single_2", "cwe", "qa_1"};
    struct ruler_gen_opts o = opts("compact", &len, 3, "niah_single_2,cwe,qa_1");
    o.squad = squad;
    CHECK_OK(ruler_gen(&o, in(dir, "given"), e));
    for (int i = 0; i < 3; i++)
        load(dir, tasks[i], &want[i]);
    o.counter = (struct ruler_counter){NULL, NULL};
    o.tokenizer_name = NULL;
    o.open = open_bytes4;
    o.open_ctx = &calls;
    for (int threads = 1; threads <= 2; threads++) {
        CHECK_OK(pool_open(&o.pool, threads, e));
        CHECK_OK(ruler_gen(&o, in(dir, threads == 1 ? "opened1" : "opened2"), e));
        pool_close(o.pool);
        for (int i = 0; i < 3; i++) {
            load(dir, tasks[i], &got);
            CHECK(got.len == want[i].len && !memcmp(got.p, want[i].p, got.len));
        }
    }
    CHECK_EQ_I(calls, 2);
    CHECK(o.counter.count == NULL && o.tokenizer_name == NULL); /* the caller's own stay as they are */
    CHECK_OK(pool_open(&o.pool, 2, e));
    o.essays = "/nonexistent/essay.txt";
    CHECK_ERR(ruler_gen(&o, in(dir, "unread"), e), E_INPUT, "no tokenizer today");
    CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, "/nonexistent/essay.txt");
    o.squad = "/nonexistent/squad.json";
    CHECK_ERR(ruler_gen(&o, dir, e), E_INPUT, "/nonexistent/essay.txt"); /* the first in the order of reading */
    pool_close(o.pool);
    CHECK(!file_exists(path_join(path, dir, "provenance.json")) && !dir_exists(dir));
    for (int i = 0; i < 3; i++)
        str_free(&want[i]);
    str_free(&got);
}

int main(void)
{
    CHECK(mkdtemp(root) != NULL);
    CHECK_OK(file_write(in(squad, "squad.json"), squad_json, sizeof squad_json - 1, e));
    in(hotpot, "hotpot.json");
    in(words, "words.json");
    chunks();
    templates();
    folders();
    goes_on();
    questions();
    more_words();
    bad_essay();
    bad_questions();
    bad_parameters();
    never_fits();
    two_metrics();
    counter_opened();
    CHECK_OK(remove_tree(root, e));
    return test_end();
}
