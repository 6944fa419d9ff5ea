/* Opening what training stages work on. */
#include "cli/stages_work.h"

#include "cli/stages_cost.h"
#include "core/log.h"

#include <math.h>
#include <string.h>

const char *const positions_words[3] = {"all", "answers", NULL}, *const schedule_words[4] = {"const", "cosine", "linear", NULL};

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
    TRY(stage_fits(env, n, e));
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

int64_t work_steps(const struct work *w, int64_t tokens, int64_t batch)
{
    double sum = 0;
    for (int64_t r = w->row_lo; r < w->row_hi; r++)
        sum += w->data.len[r];
    double per_step = sum / (double)(w->row_hi - w->row_lo) * (double)batch;
    if (tokens > 0 && (double)tokens < 0.5 * per_step)
        log_warn("%" PRId64 " tokens are less than half of one update (batch %" PRId64 ", %.0f tokens): one whole update is made; a smaller "
                 "batch makes smaller ones", tokens, batch, per_step);
    return tokens == 0 ? 0 : MAX((int64_t)1, (int64_t)floor((double)tokens / per_step + 0.5));
}

static bool has_param(const struct node *n, const char *name)
{
    for (size_t i = 0; i < n->kind->n_params; i++)
        if (!strcmp(n->kind->params[i].name, name))
            return true;
    return false;
}

/* From so many steps on the held-out loss is looked at every so many steps or more often, and the best checkpoint stands beside the last
 * one. */
enum { LONG_TRAINING = 200 };

void work_train_opts(struct train_opts *o, const struct node *n, const struct work *w, const struct run *r, const char *stage,
                     int64_t tokens, const char *metrics)
{
    *o = (struct train_opts){.stage = stage,
                             .dir = r->work,
                             .metrics_path = metrics,
                             .batch = node_i64(n, "batch"),
                             .micro = node_i64(n, "micro"),
                             .warmup = node_i64(n, "warmup"),
                             .lr = {node_f64(n, "lr"), node_f64(n, has_param(n, "lr_mixer") ? "lr_mixer" : "lr")},
                             .lr_end = node_f64(n, "lr_end"),
                             .schedule = (enum schedule)word_at(schedule_words, node_str(n, "schedule")),
                             .b1 = node_f64(n, "beta1"),
                             .b2 = node_f64(n, "beta2"),
                             .eps = node_f64(n, "eps"),
                             .wd = node_f64(n, "wd"),
                             .clip = node_f64(n, "clip"),
                             .seed = (uint64_t)node_i64(n, "seed"),
                             .row_lo = w->row_lo,
                             .row_hi = w->row_hi,
                             .ckpt_every = node_i64(n, "ckpt_every"),
                             .log_every = 1};
    o->micro = MIN(o->micro, o->batch);
    o->steps = work_steps(w, tokens, o->batch);
    o->keep_best = o->steps >= LONG_TRAINING;
    o->eval_every = o->keep_best ? MIN(o->steps / 4, LONG_TRAINING) : MAX(o->steps / 4, 1);
}

void work_put_best(struct result *res, const struct train_opts *o, const struct train_result *t)
{
    if (!o->keep_best)
        return;
    jw_ki64(&res->w, "best_step", t->best_step);
    jw_kf64(&res->w, "heldout_best", t->best);
}
