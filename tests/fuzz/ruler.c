/*
 * What the RULER generator and runner read from users. The first byte chooses: a haystack split into sentences, a SQuAD or HotpotQA file
 * (questions are then asked), samples or predictions of a folder. No crash; sentences lie in the text and in order; errors say something.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fs.h"
#include "ruler/gen.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct punkt *punkt; /* loaded once; the fuzzer runs from the source folder */

static int64_t bytes4(void *ctx, const char *text, size_t n)
{
    UNUSED(ctx);
    UNUSED(text);
    return (int64_t)((n + 3) / 4);
}

static void sentences(const char *text, size_t n)
{
    struct err e = ERR_INIT;
    struct span *s = NULL;
    size_t n_s = 0;
    if (!punkt && punkt_load(&punkt, "ruler/data/punkt_english", &e))
        abort();
    if (punkt_split(punkt, text, n, &s, &n_s, &e))
        abort();
    for (size_t i = 0; i < n_s; i++)
        if (s[i].from >= s[i].to || s[i].to > n || (i && s[i].from < s[i - 1].to))
            abort();
    free(s);
    bool null;
    const char *refs[] = {"a", "\xc3\xa9"};
    double m = ruler_match(text, n, refs, 2, false, &null);
    if (m != 0 && m != 50 && m != 100)
        abort();
}

static void questions(const char *path, int which)
{
    struct ruler_res r = {0};
    struct err e = ERR_INIT;
    if (ruler_qa_load(&r, which, path, &e)) {
        if (e.code == E_OK || !e.msg[0])
            abort();
        return;
    }
    for (int flavour = 0; flavour < 3; flavour++) {
        struct gen g = {.task = ruler_task_find(which ? "qa_2" : "qa_1", 4),
                        .res = &r,
                        .counter = {bytes4, NULL},
                        .compact = flavour == 0,
                        .harness = flavour == 2,
                        .max_len = 300,
                        .seed = 1};
        struct str out = STR_INIT;
        py_seed(&g.py, 1);
        struct err ge = ERR_INIT;
        if (gen_task(&g, 1, &out, &ge) == 0 && !out.len)
            abort();
        str_free(&out);
    }
    ruler_res_free(&r);
}

static int sample(void *ctx, const struct ruler_sample *s, struct err *e)
{
    UNUSED(e);
    *(size_t *)ctx += strlen(s->prompt) + strlen(s->answer) + s->n_refs;
    return 0;
}

/* The same bytes as samples and as predictions of a task. */
static void folder(const char *dir, const char *task, const void *p, size_t n)
{
    struct err e = ERR_INIT;
    struct ruler_scores s = {0};
    char sub[1024], path[1024];
    size_t seen = 0;
    path_join(sub, dir, task);
    if (mkdir_p(sub, &e) || file_write(path_join(path, sub, "validation.jsonl"), p, n, &e) ||
        file_write(path_join(path, sub, "predictions.jsonl"), p, n, &e) ||
        file_write(path_join(path, dir, "ruler.json"), "{\"flavour\": \"nvidia\"}", 21, &e))
        abort();
    if (ruler_each_sample(dir, task, sample, &seen, &e) && !e.msg[0])
        abort();
    e = (struct err)ERR_INIT;
    if (ruler_score(dir, &s, &e) && !e.msg[0])
        abort();
    ruler_scores_free(&s);
    if (remove_tree(sub, &e))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char *const tasks[] = {"niah_multivalue", "cwe", "vt"};
    char dir[] = "/tmp/fuzz_ruler_XXXXXX", path[1024];
    struct err e = ERR_INIT;
    if (n < 1)
        return 0;
    int mode = p[0] % 6;
    p++;
    n--;
    if (mode == 0) {
        sentences((const char *)p, n);
        return 0;
    }
    if (!mkdtemp(dir))
        abort();
    if (mode <= 2) {
        if (file_write(path_join(path, dir, "q.json"), p, n, &e))
            abort();
        questions(path, mode - 1);
    } else
        folder(dir, tasks[mode - 3], p, n);
    if (remove_tree(dir, &e))
        abort();
    return 0;
}
