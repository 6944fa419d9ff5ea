/* Opening what training stages work on. */
#include "cli/stages_work.h"

#include <string.h>

const char *const positions_words[3] = {"all", "answers", NULL};

int word_at(const char *const *words, const char *s)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(words[i], s))
            return i;
    return 0;
}

void work_close(struct work *w)
{
    if (w->hidden)
        hcache_close(&w->cache);
    if (w->lin)
        linset_close(w->lin);
    if (w->data.ids)
        shard_close(&w->data);
}

/* Mixers aligned with other weights imitate another model. */
static int check_teacher(const struct work *w, const char *path, struct err *e)
{
    const char *made = w->lin->cfg.dashlab.teacher_sha256;
    if (*made && strcmp(made, w->teacher->sha256))
        return ERR(e, E_INPUT, "'%s': this Stage 1 was made from another teacher ('%s', weights %.12s...; '%s' has %.12s...); align again",
                   path, w->lin->cfg.dashlab.teacher, made, w->teacher->path, w->teacher->sha256);
    return 0;
}

int work_open(struct work *w, struct env *env, const struct node *n, bool data, bool hidden, bool lin, struct err *e)
{
    char path[1024], mp[1024];
    *w = (struct work){0};
    TRY(env_teacher(env, model_path(node_path(n, "model", path), mp), &w->teacher, e));
    int rc = 0;
    if (data)
        rc = shard_open(&w->data, node_path(n, "data", path), false, e);
    if (rc == 0 && hidden && node_has(n, "hidden")) {
        rc = hcache_open(&w->cache, node_path(n, "hidden", path), &w->data, w->teacher, e);
        w->hidden = rc == 0 ? &w->cache : NULL;
    }
    if (rc == 0 && lin)
        rc = linset_load(&w->lin, env->rt.be, node_path(n, "linear", path), e) || linset_alike(w->lin, &w->teacher->cfg, e) ||
            check_teacher(w, path, e);
    if (rc != 0)
        work_close(w);
    return rc ? -1 : 0;
}

int work_rows(struct work *w, const struct node *n, struct err *e)
{
    w->row_lo = node_i64(n, "row_lo");
    w->row_hi = node_i64(n, "row_hi");
    w->heldout = node_i64(n, "heldout");
    if (w->row_hi == 0)
        w->row_hi = w->data.rows - w->heldout;
    if (w->row_lo >= w->row_hi || w->row_hi + w->heldout > w->data.rows)
        return ERR(e, E_USAGE,
                   "stage '%s': rows %" PRId64 "..%" PRId64 " and %" PRId64 " held-out rows do not fit the shard's %" PRId64 " rows",
                   n->stage->id, w->row_lo, w->row_hi, w->heldout, w->data.rows);
    return 0;
}
