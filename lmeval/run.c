/* A whole run: all data read and encoded first, so that what is wrong shows before anything is computed; then task by task, resumable. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/log.h"
#include "core/prov.h"
#include "core/stats.h"
#include "lmeval/results.h"
#include "lmeval/store.h"

struct runner {
    struct model *m;
    const struct lme_run_opts *o;
    struct lme_pick pick;
    unsigned extra;
    struct lme_range range[64];
    size_t n_ranges;
    int shots[LME_N_TASKS];
    int64_t max_length;
    struct lme_encoder *enc;
    struct lme_store store;
    struct lme_run_result *out;
    /* the task in work */
    struct lme_docs docs, pool;
    struct lme_set set;
    const struct lme_task *task;
    unsigned metrics;
    int32_t *doc_of, *left;
    int64_t base, right, seen;
};

int lme_shots_of(const char *spec, const struct lme_pick *pick, const struct lme_task *t, int *out, struct err *e)
{
    *out = 0;
    for (const char *s = spec ? spec : ""; *s; s += strcspn(s, ","), s += *s == ',') {
        char item[96];
        struct lme_pick named;
        int64_t v;
        snprintf(item, sizeof item, "%.*s", (int)MIN(strcspn(s, ","), sizeof item - 1), s);
        char *eq = strchr(item, '=');
        if (!parse_i64(eq ? eq + 1 : item, &v) || v < 0 || v > 1000)
            return ERR(e, E_USAGE, "--shots: '%s' is neither a number nor task=number (0 to 1000)", item);
        if (!eq) {
            *out = (int)v;
            continue;
        }
        *eq = 0;
        TRY(lme_pick_tasks(item, &named, e));
        bool used = false;
        for (int i = 0; i < named.n; i++)
            for (int k = 0; k < pick->n; k++)
                used |= named.task[i] == pick->task[k];
        if (!used)
            return ERR(e, E_USAGE, "--shots: '%s' is not among the tasks of this run", item);
        for (int i = 0; i < named.n; i++)
            if (named.task[i] == t)
                *out = (int)v;
    }
    return 0;
}

int lme_samples_of(const char *spec, struct lme_range *out, size_t cap, size_t *n, struct err *e)
{
    *n = 0;
    for (const char *s = spec ? spec : ""; *s; s += strcspn(s, ","), s += *s == ',') {
        char item[64];
        struct lme_range r;
        snprintf(item, sizeof item, "%.*s", (int)MIN(strcspn(s, ","), sizeof item - 1), s);
        char *dash = strchr(item, '-');
        if (dash)
            *dash = 0;
        if (*n == cap || !parse_i64(item, &r.lo) || !parse_i64(dash ? dash + 1 : item, &r.hi) || r.lo < 0 || r.hi < r.lo)
            return ERR(e, E_USAGE, "--samples: '%s' is not a list of at most %zu document indices or ranges A-B", spec, cap);
        out[(*n)++] = r;
    }
    return 0;
}

static void task_close(struct runner *r)
{
    lme_set_free(&r->set);
    lme_docs_free(&r->docs);
    lme_docs_free(&r->pool);
    free(r->doc_of);
    free(r->left);
    r->doc_of = r->left = NULL;
}

/* Documents, pool and ids of task i. */
static int task_open(struct runner *r, int i, struct err *e)
{
    struct lme_prompts p = r->o->prompts;
    r->task = r->pick.task[i];
    r->metrics = lme_task_metrics(r->task) | r->extra;
    p.shots = r->shots[i];
    p.samples = r->n_ranges ? r->range : NULL;
    p.n_samples = r->n_ranges;
    p.mutual_info = (r->metrics & 1u << LME_MUTUAL_INFO) != 0;
    TRY(lme_load(r->task, LME_EVAL, r->o->data_dir, &r->docs, e));
    if (p.shots)
        TRY(lme_load(r->task, LME_POOL, r->o->data_dir, &r->pool, e));
    TRY(lme_set_make(r->task, &r->docs, p.shots ? &r->pool : NULL, &p, r->enc, &r->set, e));
    return r->set.n_docs ? 0 : ERR(e, E_USAGE, "task '%s': --limit or --samples leave no document", r->task->name);
}

/* ---- before anything is computed ---- */

static void key_line(struct str *key, const struct runner *r, int i)
{
    str_printf(key, "task %s shots %d metrics %u data %s pool %s\n", r->task->name, r->shots[i], r->metrics, r->docs.sha256,
               r->pool.sha256);
}

static int key_head(struct runner *r, struct str *key, const char **model_sha, struct err *e)
{
    const struct lme_run_opts *o = r->o;
    *model_sha = "memory";
    if (r->m->path[0])
        TRY(model_hash(r->m, model_sha, e));
    str_printf(key, "lmeval 1\nmodel %s\ntokenizer %s\nlayers", *model_sha, tok_sha256(r->m->tok));
    for (int64_t l = 0; l < r->m->cfg.L; l++)
        str_printf(key, " %u", r->m->layer[l].ops);
    str_printf(key, "\nlimit %.17g\nsamples %s\nchat %d %d %s\nsystem %s\nmax_length %" PRId64 " %d\nbf16 %d\nseed %" PRIu64 "\n",
               o->prompts.limit, o->samples ? o->samples : "", o->prompts.chat, o->prompts.chat && o->prompts.multiturn,
               o->prompts.chat ? chat_name(o->prompts.template) : "-", o->prompts.system ? o->prompts.system : "", r->max_length,
               o->max_length > 0, o->bf16, o->prompts.seed);
    return 0;
}

static int64_t original_of(const struct runner *r)
{
    return r->docs.n;
}

/* Reads and encodes every task; *total: tokens to compute. */
static int prepare(struct runner *r, char key[65], const char **model_sha, struct err *e)
{
    struct str text = STR_INIT;
    int kept = 0, rc = key_head(r, &text, model_sha, e);
    for (int i = 0; rc == 0 && i < r->pick.n; i++) {
        char path[1024];
        if (r->o->allow_missing && !lme_find(r->pick.task[i], LME_EVAL, r->o->data_dir, path)) {
            log_warn("task '%s': no documents under '%s'; left out", r->pick.task[i]->name, r->o->data_dir);
            continue;
        }
        r->pick.task[kept] = r->pick.task[i];
        rc = lme_shots_of(r->o->shots, &r->pick, r->pick.task[kept], &r->shots[kept], e);
        rc = rc ? rc : task_open(r, kept, e);
        if (rc == 0) {
            struct lme_result *t = &r->out->task[kept];
            *t = (struct lme_result){.task = r->task,
                                     .shots = r->shots[kept],
                                     .n = r->set.n_docs,
                                     .original = original_of(r),
                                     .metrics = r->metrics,
                                     .truncated = r->set.truncated,
                                     .cut = r->set.cut,
                                     .requests = r->set.n};
            snprintf(t->data, sizeof t->data, "%s", r->docs.path);
            snprintf(t->data_sha256, sizeof t->data_sha256, "%s", r->docs.sha256);
            key_line(&text, r, kept);
            rc = lme_count(r->set.req, r->set.n, &t->cost, e);
            r->out->tokens += t->cost.tokens;
            if (t->truncated)
                log_warn("task '%s': %" PRId64 " of %" PRId64 " requests are longer than %" PRId64
                         " tokens and were cut from the left (%" PRId64 " tokens)",
                         r->task->name, t->truncated, r->set.n, r->max_length, t->cut);
        }
        task_close(r);
        kept++;
    }
    r->pick.n = r->out->n_tasks = kept;
    if (rc == 0 && !kept)
        rc = ERR(e, E_INPUT, "no documents of any of the tasks under '%s'", r->o->data_dir);
    rc = rc ? rc : str_ok(&text, "a run's key", e);
    rc = rc ? rc : sha256_buf(str_c(&text), text.len, key, e);
    str_free(&text);
    return rc ? -1 : 0;
}

/* ---- one task ---- */

static void tell(struct runner *r, int64_t done)
{
    char extra[96];
    snprintf(extra, sizeof extra, "%s", r->task->name);
    if (r->seen) {
        double p = (double)r->right / (double)r->seen, lo, hi;
        wilson(p, (double)r->seen, &lo, &hi);
        snprintf(extra, sizeof extra, "%s acc %.1f ±%.1f", r->task->name, 100 * p, 50 * (hi - lo));
    }
    if (r->o->progress)
        r->o->progress(r->o->ctx, r->task->name, r->base + done, r->out->tokens, extra);
}

static void on_progress(void *ctx, int64_t tokens, int64_t total)
{
    UNUSED(total);
    tell(ctx, tokens);
}

/* Requests are complete: into the log, and their documents' running score. */
static int on_done(void *ctx, const int64_t *req, int64_t n, struct err *e)
{
    struct runner *r = ctx;
    for (int64_t i = 0; i < n; i++) {
        int32_t d = r->doc_of[req[i]];
        double ll[LME_MAX_CHOICES];
        if (--r->left[d])
            continue;
        for (int k = 0; k < r->set.doc[d]->n_choice; k++)
            ll[k] = r->set.req[r->set.first[d] + k].ll;
        r->right += lme_argmax(ll, r->set.doc[d]->n_choice) == r->set.doc[d]->gold;
        r->seen++;
    }
    return store_add(&r->store, r->task, &r->set, r->doc_of, req, n, e);
}

static int index_requests(struct runner *r, struct err *e)
{
    r->doc_of = malloc((size_t)r->set.n * sizeof *r->doc_of);
    r->left = calloc((size_t)r->set.n_docs, sizeof *r->left);
    r->right = r->seen = 0;
    if (!r->doc_of || !r->left)
        return err_nomem(e, (size_t)r->set.n * 8, "requests");
    for (int64_t d = 0; d < r->set.n_docs; d++)
        for (int64_t i = r->set.first[d]; i < r->set.first[d + 1]; i++) {
            r->doc_of[i] = (int32_t)d;
            r->left[d] += !r->set.req[i].done;
        }
    return 0;
}

static int score_docs(struct runner *r, struct lme_samples *s, struct lme_result *t, struct err *e)
{
    for (int64_t d = 0; d < r->set.n_docs; d++) {
        double ll[2 * LME_MAX_CHOICES], v[LME_N_METRICS];
        bool greedy[2 * LME_MAX_CHOICES];
        const struct lme_req *q = &r->set.req[r->set.first[d]];
        int n = (int)(r->set.first[d + 1] - r->set.first[d]), best;
        for (int k = 0; k < n; k++) {
            ll[k] = q[k].ll;
            greedy[k] = q[k].greedy;
        }
        TRY(lme_doc_scores(r->task, r->set.doc[d], ll, greedy, r->metrics, v, e));
        best = lme_argmax(ll, r->set.doc[d]->n_choice);
        for (int k = best + 1; k < r->set.doc[d]->n_choice; k++)
            if (ll[k] == ll[best]) {
                t->ties++;
                break;
            }
        for (int m = 0; m < LME_N_METRICS; m++)
            s->score[m][d] = v[m];
    }
    for (int m = 0; m < LME_N_METRICS; m++)
        if (r->metrics & 1u << m)
            lme_mean(s->score[m], r->set.n_docs, &t->v[m]);
    t->v[LME_BRIER].se = -1;
    return 0;
}

static int write_samples(struct runner *r, int i, const char *dir, const char *date, struct err *e)
{
    struct lme_samples s = {.task = r->task, .set = &r->set, .metrics = r->metrics};
    struct lme_result *t = &r->out->task[i];
    struct lme_prompts p = r->o->prompts;
    struct file_out out;
    char name[160], path[1200];
    double *mem = calloc((size_t)r->set.n_docs * LME_N_METRICS, sizeof *mem);
    if (!mem)
        return err_nomem(e, (size_t)r->set.n_docs * LME_N_METRICS * sizeof *mem, "scores");
    for (int m = 0; m < LME_N_METRICS; m++)
        s.score[m] = mem + m * r->set.n_docs;
    p.shots = r->shots[i];
    p.samples = r->n_ranges ? r->range : NULL;
    p.n_samples = r->n_ranges;
    p.mutual_info = (r->metrics & 1u << LME_MUTUAL_INFO) != 0;
    snprintf(name, sizeof name, "samples_%s%s%s.jsonl", r->task->name, date ? "_" : "", date ? date : "");
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int rc = score_docs(r, &s, t, e);
    if (rc == 0 && r->o->log_samples) {
        rc = out_open(&out, path, e);
        s.out = rc == 0 ? &out : NULL;
    }
    rc = rc ? rc : sha256_init(&s.hash, e);
    if (rc == 0) {
        rc = lme_each(r->task, &r->docs, r->shots[i] ? &r->pool : NULL, &p, lme_sample, &s, e);
        sha256_end(&s.hash, t->hash);
    }
    if (s.out)
        rc = rc == 0 ? out_commit(&out, e) : (out_abort(&out), rc);
    free(mem);
    return rc ? -1 : 0;
}

static int run_task(struct runner *r, int i, const char *dir, const char *date, struct err *e)
{
    int64_t tokens = 0;
    struct lme_score_opts so = {.batch = r->o->batch, .bf16 = r->o->bf16, .ctx = r, .done = on_done, .progress = on_progress};
    TRY(task_open(r, i, e));
    TRY(store_fill(&r->store, r->task, &r->set, e));
    TRY(index_requests(r, e));
    int rc = lme_score(r->m, r->set.req, r->set.n, &so, &tokens, e);
    r->out->computed += tokens;
    if (rc != 0)
        return err_wrap(e, "task '%s'", r->task->name);
    r->base += r->out->task[i].cost.tokens;
    tell(r, 0);
    return write_samples(r, i, dir, date, e) || store_keep(&r->store, r->task, &r->set, e) ? -1 : 0;
}

/* ---- ---- */

static double unix_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void add_groups(struct runner *r)
{
    struct lme_run_result *out = r->out;
    out->n = out->n_tasks;
    for (int g = 0; g < LME_N_GROUPS; g++) {
        if (!r->pick.group[g])
            continue;
        if (lme_group_result(g, out->task, out->n_tasks, &out->task[out->n]))
            out->n++;
        else
            log_warn("group '%s': subjects are missing; it is not reported", lme_group_name(g));
    }
}

static int run_all(struct runner *r, struct err *e)
{
    const struct lme_run_opts *o = r->o;
    const char *model_sha;
    char key[65], dir[1024], sane[256], date[48];
    double start = unix_now();
    TRY(prepare(r, key, &model_sha, e));
    lme_sanitize(o->model_name, sane);
    lme_date_name(start, date);
    if (o->harness_names)
        path_join(dir, o->out_dir, sane);
    else
        snprintf(dir, sizeof dir, "%s", o->out_dir);
    TRY(mkdir_p(dir, e));
    TRY(store_open(&r->store, o->out_dir, key, o->force, e));
    for (int i = 0; i < r->pick.n; i++) {
        int rc = run_task(r, i, dir, o->harness_names ? date : NULL, e);
        task_close(r);
        TRY(rc);
    }
    add_groups(r);
    struct lme_about a = {.model_name = o->model_name,
                          .sanitized = sane,
                          .device = r->m->be->ops->name,
                          .system = o->prompts.system,
                          .model_sha256 = model_sha,
                          .key = key,
                          .tok = r->m->tok,
                          .parameters = params_count(&r->m->params, false),
                          .max_length = r->max_length,
                          .limit = o->prompts.limit,
                          .start = start,
                          .seconds = unix_now() - start,
                          .seed = o->prompts.seed,
                          .bf16 = o->bf16,
                          .chat = o->prompts.chat,
                          .multiturn = o->prompts.multiturn,
                          .dates = !o->no_dates,
                          .bundled = o->bundled};
    if (o->harness_names)
        snprintf(r->out->results_path, sizeof r->out->results_path, "%s/results_%s.json", dir, date);
    else
        snprintf(r->out->results_path, sizeof r->out->results_path, "%s/results.json", dir);
    TRY(store_commit(&r->store, e));
    return lme_write_results(r->out->results_path, r->out, &a, e);
}

int lme_run(struct model *m, const struct lme_run_opts *o, struct lme_run_result *out, struct err *e)
{
    struct runner r = {.m = m, .o = o, .out = out};
    *out = (struct lme_run_result){0};
    if (!m->tok)
        return ERR(e, E_INPUT, "the model has no tokenizer; give --tokenizer");
    TRY(lme_pick_tasks(o->tasks, &r.pick, e));
    TRY(lme_metrics_of(o->metrics, &r.extra, e));
    TRY(lme_samples_of(o->samples, r.range, ARRAY_LEN(r.range), &r.n_ranges, e));
    if (r.n_ranges && o->prompts.limit >= 0)
        return ERR(e, E_USAGE, "--limit and --samples exclude each other");
    r.max_length = o->max_length ? o->max_length : m->cfg.max_pos;
    struct lme_encode_opts eo = {.max_length = r.max_length, .truncate = o->max_length > 0, .prefix = -1};
    TRY(lme_encoder_open(&r.enc, m->tok, &eo, e));
    int rc = run_all(&r, e);
    task_close(&r);
    store_close(&r.store);
    lme_encoder_close(r.enc);
    return rc;
}
