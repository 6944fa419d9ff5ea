/*
 * Benchmark files as users bring them. The first byte chooses the task and the file's form; what is read makes requests. No crash; a
 * document has choices and a label; errors say something.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/fs.h"
#include "lmeval/lmeval.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static int look(void *ctx, const struct lme_case *c, struct err *e)
{
    UNUSED(ctx);
    UNUSED(e);
    for (int r = 0; r < c->n_req; r++)
        if (!c->cont[r].len || (r < c->n_choice && !lme_ctx(c, r)->len))
            abort();
    return 0;
}

static void load(const struct lme_task *t, const char *dir)
{
    struct err e = ERR_INIT;
    struct lme_docs d;
    struct lme_prompts p = LME_PROMPTS_INIT;
    char hex[65];
    int rc = lme_load(t, LME_EVAL, dir, &d, &e);
    for (int64_t i = 0; rc == 0 && i < d.n; i++)
        if (d.doc[i].n_choice < 2 || d.doc[i].gold < 0 || d.doc[i].gold >= d.doc[i].n_choice)
            abort();
    p.mutual_info = true;
    if (rc == 0)
        rc = lme_content_sha(t, &d, hex, &e) || lme_each(t, &d, NULL, &p, look, NULL, &e) ? -1 : 0;
    if (rc != 0 && (e.code == E_OK || !e.msg[0]))
        abort();
    lme_docs_free(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    static const char *const files[][2] = {{"mmlu_anatomy", "anatomy_test.csv"},
                                           {"mmlu_anatomy", "anatomy_test.jsonl"},
                                           {"arc_easy", "test.jsonl"},
                                           {"arc_easy", "test.json"},
                                           {"piqa", "valid.jsonl"},
                                           {"piqa", "valid-labels.lst"},
                                           {"winogrande", "dev.jsonl"}};
    static const char row[] = "{\"goal\": \"g\", \"sol1\": \"a\", \"sol2\": \"b\"}\n";
    char dir[] = "/tmp/fuzz_lmeval.XXXXXX", path[1024];
    struct err e = ERR_INIT;
    struct lme_pick pick;
    if (n < 1 || !mkdtemp(dir))
        return 0;
    const char *const *f = files[p[0] % ARRAY_LEN(files)];
    if (file_write(path_join(path, dir, f[1]), p + 1, n - 1, &e) != 0 || lme_pick_tasks(f[0], &pick, &e) != 0)
        abort();
    if (!strcmp(f[1], "valid-labels.lst") && file_write(path_join(path, dir, "valid.jsonl"), row, sizeof row - 1, &e) != 0)
        abort();
    load(pick.task[0], dir);
    remove_tree(dir, &e);
    return 0;
}
