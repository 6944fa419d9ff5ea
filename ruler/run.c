/* Predictions, batch by batch, appended to out_dir/TASK/predictions.jsonl; what is there is kept. */
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/jwrite.h"
#include "core/prog.h"
#include "core/prov.h"
#include "ruler/sample.h"

struct item {
    int64_t line;
    char sha[65];
    int32_t *ids, *ids_full, *out; /* ids_full: prompt and answer */
    int32_t len, len_full, max_new, out_len;
    struct list refs;
    double logprob;
};

struct run {
    const struct ruler_run_opts *o;
    const struct ruler_task *t;
    char path[1024];
    char flavour[16];
    char (*have)[65]; /* prompt hashes of the records that are there */
    size_t n_have, cap_have;
    struct item *item;
    int32_t n;
    int32_t n_bos; /* ids that encode puts before any text: they do not belong between prompt and answer */
    int64_t n_seen;
    struct prog prog; /* samples, those kept from before included */
    int64_t done;
};

static void item_free(struct item *it)
{
    free(it->ids);
    free(it->ids_full);
    free(it->out);
    list_free(&it->refs);
    *it = (struct item){0};
}

static int seen_record(void *ctx, int64_t line, const struct jdoc *d, struct err *e)
{
    struct run *r = ctx;
    const char *sha;
    int64_t l;
    TRY(jget_i64(d, d->root, "", "line", 0, INT64_MAX, &l, e));
    TRY(jget_str(d, d->root, "", "prompt_sha256", &sha, e));
    if (l != line || strlen(sha) != 64)
        return ERR(e, E_INPUT, "'%s': record %" PRId64 " is of line %" PRId64 "; records must be in order", r->path, line, l);
    if (r->n_have == r->cap_have) {
        size_t cap = r->cap_have ? 2 * r->cap_have : 256;
        void *v = realloc(r->have, cap * sizeof *r->have);
        if (!v)
            return err_nomem(e, cap * sizeof *r->have, "records");
        r->have = v;
        r->cap_have = cap;
    }
    memcpy(r->have[r->n_have++], sha, 65);
    return 0;
}

/* Reads the records that are there; a torn last line is cut off. */
static int resume(struct run *r, struct err *e)
{
    size_t good = 0;
    r->n_have = 0;
    if (!file_exists(r->path))
        return 0;
    TRY(jsonl_each(r->path, true, &good, seen_record, r, e));
    if ((int64_t)good == file_size(r->path))
        return 0;
    struct str s = STR_INIT;
    int rc = file_read(r->path, 0, &s, e);
    rc = rc ? rc : file_write(r->path, str_c(&s), MIN(good, s.len), e);
    str_free(&s);
    return rc;
}

static int record(struct run *r, struct item *it, struct str *lines, struct err *e)
{
    struct str pred = STR_INIT;
    struct jw w;
    bool null;
    int rc = it->out_len ? r->o->decode(r->o->ctx, it->out, it->out_len, &pred, e) : 0;
    for (size_t i = 0; i < pred.len; i++)
        if (!pred.p[i])
            pred.p[i] = '\n'; /* the scorer would do that; and JSON readers refuse a zero byte */
    if (!rc) {
        jw_init(&w, lines, false);
        w.ascii = true;
        jw_obj(&w);
        jw_ki64(&w, "line", it->line);
        jw_kstr(&w, "prompt_sha256", it->sha);
        jw_key(&w, "pred");
        jw_strn(&w, str_c(&pred), pred.len);
        jw_key(&w, "outputs");
        jw_arr(&w);
        for (size_t i = 0; i < it->refs.n; i++)
            jw_str(&w, it->refs.v[i]);
        jw_end_arr(&w);
        jw_kf64(&w, "score",
                ruler_match(str_c(&pred), pred.len, (const char *const *)it->refs.v, it->refs.n, ruler_part(r->t, r->flavour), &null));
        jw_key(&w, "answer_nll");
        if (r->o->answer_logprob || r->o->generate_scored)
            jw_f64(&w, -it->logprob);
        else
            jw_null(&w);
        jw_ki64(&w, "answer_tokens", it->len_full - it->len);
        jw_ki64(&w, "prompt_tokens", it->len);
        jw_ki64(&w, "new_tokens", it->out_len);
        jw_end_obj(&w);
        str_putc(lines, '\n');
        rc = jw_ok(&w, r->path, e);
    }
    str_free(&pred);
    return rc;
}

struct arrays {
    const int32_t **ids, **full;
    int32_t *len, *len_full, *max_new, **out, *out_len;
    double *lp;
};

static void arrays_free(struct arrays *a)
{
    free(a->ids);
    free(a->full);
    free(a->len);
    free(a->len_full);
    free(a->max_new);
    free(a->out);
    free(a->out_len);
    free(a->lp);
}

static int call_model(struct run *r, struct arrays *a, struct err *e)
{
    size_t n = (size_t)r->n;
    *a = (struct arrays){calloc(n, sizeof *a->ids),
                         calloc(n, sizeof *a->full),
                         calloc(n, 4),
                         calloc(n, 4),
                         calloc(n, 4),
                         calloc(n, sizeof *a->out),
                         calloc(n, 4),
                         calloc(n, sizeof *a->lp)};
    if (!a->ids || !a->full || !a->len || !a->len_full || !a->max_new || !a->out || !a->out_len || !a->lp)
        return err_nomem(e, n * 64, "a batch");
    for (size_t i = 0; i < n; i++) {
        struct item *it = &r->item[i];
        a->ids[i] = it->ids;
        a->full[i] = it->ids_full;
        a->len[i] = it->len;
        a->len_full[i] = it->len_full;
        a->max_new[i] = it->max_new;
    }
    int rc = r->o->generate_scored
                 ? r->o->generate_scored(r->o->ctx, r->n, a->full, a->len_full, a->len, a->max_new, a->out, a->out_len, a->lp, e)
                 : r->o->generate(r->o->ctx, r->n, a->ids, a->len, a->max_new, a->out, a->out_len, e);
    for (size_t i = 0; i < n; i++) {
        r->item[i].out = a->out[i];
        r->item[i].out_len = a->out_len[i];
    }
    if (!rc && r->o->answer_logprob && !r->o->generate_scored)
        rc = r->o->answer_logprob(r->o->ctx, r->n, a->full, a->len_full, a->len, a->lp, e);
    for (size_t i = 0; i < n; i++)
        r->item[i].logprob = a->lp[i];
    return rc;
}

static int flush_batch(struct run *r, struct err *e)
{
    struct arrays a = {0};
    struct str lines = STR_INIT;
    if (!r->n)
        return 0;
    int rc = interrupted() ? ERR(e, E_INTERRUPTED, "interrupted in task '%s'; run again to go on", r->t->name) : call_model(r, &a, e);
    for (int32_t i = 0; !rc && i < r->n; i++)
        rc = record(r, &r->item[i], &lines, e);
    rc = rc ? rc : file_append(r->path, str_c(&lines), lines.len, true, e);
    if (rc)
        err_wrap(e, "RULER task '%s', lines %" PRId64 " to %" PRId64, r->t->name, r->item[0].line + 1, r->item[r->n - 1].line + 1);
    r->done += rc ? 0 : r->n;
    prog_update(&r->prog, r->done, r->t->name);
    for (int32_t i = 0; i < r->n; i++)
        item_free(&r->item[i]);
    r->n = 0;
    arrays_free(&a);
    str_free(&lines);
    return rc;
}

static int take(void *ctx, const struct ruler_sample *s, struct err *e)
{
    struct run *r = ctx;
    char sha[65];
    TRY(sha256_buf(s->prompt, strlen(s->prompt), sha, e));
    r->n_seen++;
    if (s->line < (int64_t)r->n_have) {
        if (strcmp(sha, r->have[s->line]) != 0)
            return ERR(e, E_INPUT,
                       "'%s': line %" PRId64
                       " is a prediction for another prompt (sha256 %.12s..., the data have %.12s...); use a new folder",
                       r->path, s->line + 1, r->have[s->line], sha);
        return 0;
    }
    struct item *it = &r->item[r->n++];
    int32_t *ans = NULL, n_ans = 0;
    it->line = s->line;
    memcpy(it->sha, sha, 65);
    it->max_new = (int32_t)s->gen_tokens;
    for (size_t i = 0; i < s->n_refs; i++)
        TRY(list_add(&it->refs, s->refs[i], strlen(s->refs[i]), e));
    TRY(r->o->encode(r->o->ctx, s->prompt, strlen(s->prompt), &it->ids, &it->len, e));
    TRY(r->o->encode(r->o->ctx, s->answer, strlen(s->answer), &ans, &n_ans, e));
    n_ans = MAX(0, n_ans - r->n_bos);
    it->ids_full = malloc(((size_t)it->len + (size_t)n_ans + 1) * sizeof *it->ids_full);
    if (!it->ids_full) {
        free(ans);
        return err_nomem(e, (size_t)it->len * 4, "a prompt");
    }
    memcpy(it->ids_full, it->ids, (size_t)it->len * sizeof *it->ids);
    memcpy(it->ids_full + it->len, ans + r->n_bos, (size_t)n_ans * sizeof *ans);
    it->len_full = it->len + n_ans;
    free(ans);
    return r->n == r->o->batch ? flush_batch(r, e) : 0;
}

/* ruler.json: what was predicted. A folder made from other data is refused. */
static int mark_folder(const struct ruler_run_opts *o, char out_flavour[16], struct err *e)
{
    char path[1024], prov[1024], sha[65];
    struct jdoc d = {0}, old = {0};
    const char *flavour, *was;
    TRY(jdoc_load(&d, path_join(prov, o->data_dir, "provenance.json"), 1 << 20, e));
    int rc = jget_str(&d, d.root, "", "flavour", &flavour, e);
    rc = rc ? rc : sha256_file(prov, sha, e);
    if (!rc)
        snprintf(out_flavour, 16, "%s", flavour);
    path_join(path, o->out_dir, "ruler.json");
    if (!rc && file_exists(path)) {
        rc = jdoc_load(&old, path, 1 << 20, e);
        rc = rc ? rc : jget_str(&old, old.root, "", "flavour", &was, e);
        if (!rc && strcmp(was, flavour) != 0)
            rc = ERR(e, E_INPUT, "'%s': holds predictions of flavour '%s', the data are '%s'; use a new folder", o->out_dir, was, flavour);
        jdoc_free(&old);
    } else if (!rc) {
        struct str s = STR_INIT;
        struct jw w;
        jw_init(&w, &s, true);
        jw_obj(&w);
        jw_kstr(&w, "benchmark", "RULER");
        jw_kstr(&w, "flavour", flavour);
        jw_kstr(&w, "data_provenance_sha256", sha);
        jw_end_obj(&w);
        str_putc(&s, '\n');
        rc = jw_ok(&w, "ruler.json", e);
        rc = rc ? rc : file_write(path, str_c(&s), s.len, e);
        str_free(&s);
    }
    jdoc_free(&d);
    return rc;
}

static int run_task(struct run *r, struct err *e)
{
    char dir[1024];
    TRY(mkdir_p(path_join(dir, r->o->out_dir, r->t->name), e));
    path_join(r->path, dir, "predictions.jsonl");
    TRY(resume(r, e));
    r->n_seen = 0;
    TRY(ruler_each_sample(r->o->data_dir, r->t->name, take, r, e));
    if ((int64_t)r->n_have > r->n_seen)
        return ERR(e, E_INPUT, "'%s': %zu predictions for %" PRId64 " samples; use a new folder", r->path, r->n_have, r->n_seen);
    return flush_batch(r, e);
}

/* Lines of a task's file. */
static int count_lines(const char *dir, const struct ruler_task *t, int64_t *n, struct err *e)
{
    char path[1024], sub[64];
    struct file_map m;
    snprintf(sub, sizeof sub, "%s/validation.jsonl", t->name);
    TRY(map_open(&m, path_join(path, dir, sub), e));
    for (size_t i = 0; i < m.len; i++)
        *n += m.p[i] == '\n' || i + 1 == m.len;
    map_close(&m);
    return 0;
}

static int run_tasks(struct run *r, const struct ruler_task *const *t, size_t n, struct err *e)
{
    const struct ruler_run_opts *o = r->o;
    int64_t total = 0;
    int32_t *bos = NULL;
    r->item = calloc((size_t)o->batch, sizeof *r->item);
    if (!r->item)
        return err_nomem(e, (size_t)o->batch * sizeof *r->item, "a batch");
    int rc = o->encode(o->ctx, "", 0, &bos, &r->n_bos, e);
    free(bos);
    for (size_t i = 0; !rc && i < n; i++)
        rc = count_lines(o->data_dir, t[i], &total, e);
    if (rc == 0 && total == 0)
        rc = ERR(e, E_INPUT, "'%s' holds no samples: its TASK/validation.jsonl have no lines", o->data_dir);
    TRY(rc);
    prog_start(&r->prog, "RULER", "samples", total);
    for (size_t i = 0; !rc && i < n; i++) {
        r->t = t[i];
        rc = run_task(r, e);
    }
    prog_end(&r->prog);
    return rc;
}

int ruler_run(const struct ruler_run_opts *o, struct err *e)
{
    const struct ruler_task *t[RULER_MAX_TASKS];
    struct task_set set;
    size_t n;
    struct run r = {.o = o};
    if (o->batch < 1)
        return ERR(e, E_USAGE, "RULER: batch %d; must be at least 1", (int)o->batch);
    TRY(task_set_of(&set, o->data_dir, e));
    int rc = tasks_present(&set, o->data_dir, "validation.jsonl", o->tasks, t, &n, e);
    rc = rc ? rc : mkdir_p(o->out_dir, e);
    rc = rc ? rc : mark_folder(o, r.flavour, e);
    rc = rc ? rc : task_set_keep(&set, o->out_dir, false, e);
    rc = rc ? rc : run_tasks(&r, t, n, e);
    for (int32_t i = 0; r.item && i < r.n; i++)
        item_free(&r.item[i]);
    free(r.item);
    free(r.have);
    task_set_free(&set);
    return rc;
}
