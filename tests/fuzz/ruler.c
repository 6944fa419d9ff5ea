/*
 * What the RULER generator and runner read from users. The first byte, '0' to '8', chooses: a haystack split into sentences, a SQuAD or
 * HotpotQA file (questions are then asked), samples or predictions of a folder, predictions of NVIDIA's or lm-evaluation-harness' folders,
 * a task file (a sample of each of its tasks is then made). No crash; sentences lie in the text and in order; errors say something.
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

static void foreign(const char *dir, const char *name, const void *p, size_t n)
{
    struct err e = ERR_INIT;
    struct ruler_scores s = {0};
    char path[1024];
    if (file_write(path_join(path, dir, name), p, n, &e))
        abort();
    if (ruler_score(dir, &s, &e) ? !e.msg[0] : !(s.n == 1 && s.task[0].n > 0 && s.mean >= 0 && s.mean <= 100))
        abort();
    ruler_scores_free(&s);
}

static void task_file(const char *dir, const void *p, size_t n)
{
    struct err e = ERR_INIT;
    char path[1024], out[1024];
    int64_t len = 700;
    path_join(out, dir, "out");
    if (file_write(path_join(path, dir, "tasks.yaml"), p, n, &e))
        abort();
    struct ruler_gen_opts o = {.counter = {bytes4, NULL},
                               .lengths = &len,
                               .n_lengths = 1,
                               .samples = 1,
                               .seed = 1,
                               .flavour = "compact",
                               .data_dir = "ruler/data",
                               .task_file = path};
    struct task_set set;
    if (task_set_load(&set, path, o.flavour, &e)) {
        if (e.code == E_OK || !e.msg[0])
            abort();
        return;
    }
    bool small = set.n < ruler_n_tasks + 3; /* lengths and budgets of a file are free: only small ones are made */
    for (size_t i = 0; i < set.n; i++)
        for (size_t k = 0; k < set.task[i].n_lengths; k++)
            small = small && set.task[i].lengths[k] <= 1000;
    task_set_free(&set);
    if (small && ruler_gen(&o, out, &e) && !e.msg[0])
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char *const tasks[] = {"niah_multivalue", "cwe", "vt"};
    char dir[] = "/tmp/fuzz_ruler_XXXXXX", path[1024];
    struct err e = ERR_INIT;
    if (n < 1)
        return 0;
    int mode = p[0] >= '0' && p[0] <= '8' ? p[0] - '0' : p[0] % 9;
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
    } else if (mode <= 5)
        folder(dir, tasks[mode - 3], p, n);
    else if (mode == 8)
        task_file(dir, p, n);
    else
        foreign(dir, mode == 6 ? "qa_1-0.jsonl" : "samples_ruler_qa_squad_2026.jsonl", p, n);
    if (remove_tree(dir, &e))
        abort();
    return 0;
}
