#include "lmeval/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/hash.h"
#include "core/jread.h"
#include "core/jwrite.h"

struct lme_record {
    const struct lme_task *task;
    int64_t doc, choice;
    char ids[17];
    double ll;
    bool greedy;
};

/* What a record is of: the first 16 digits of the SHA-256 over the request's ids. */
static int ids_hash(const struct lme_req *r, char out[17], struct err *e)
{
    struct sha256 h;
    char hex[65];
    int32_t len[2] = {r->n_ctx, r->n_cont};
    TRY(sha256_init(&h, e));
    sha256_add(&h, len, sizeof len);
    sha256_add(&h, r->ctx, (size_t)r->n_ctx * sizeof *r->ctx);
    sha256_add(&h, r->cont, (size_t)r->n_cont * sizeof *r->cont);
    sha256_end(&h, hex);
    snprintf(out, 17, "%.16s", hex);
    return 0;
}

static int by_request(const void *a, const void *b)
{
    const struct lme_record *x = a, *y = b;
    if (x->task != y->task)
        return x->task < y->task ? -1 : 1;
    if (x->doc != y->doc)
        return x->doc < y->doc ? -1 : 1;
    return (x->choice > y->choice) - (x->choice < y->choice);
}

static int read_record(struct lme_store *s, const struct jdoc *d, struct err *e)
{
    const char *task, *ids;
    struct lme_record r = {0};
    struct lme_pick pick;
    bool greedy = false;
    TRY(jget_str(d, d->root, "", "task", &task, e));
    TRY(jget_i64(d, d->root, "", "doc", 0, INT64_MAX, &r.doc, e));
    TRY(jget_i64(d, d->root, "", "choice", 0, 2 * LME_MAX_CHOICES, &r.choice, e));
    TRY(jget_str(d, d->root, "", "ids", &ids, e));
    TRY(jget_f64(d, d->root, "", "ll", &r.ll, e));
    TRY(jget_bool_opt(d, d->root, "", "greedy", &greedy, e));
    TRY(lme_pick_tasks(task, &pick, e));
    r.task = pick.task[0];
    r.greedy = greedy;
    snprintf(r.ids, sizeof r.ids, "%s", ids);
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 1024;
        struct lme_record *v = realloc(s->rec, cap * sizeof *v);
        if (!v)
            return err_nomem(e, cap * sizeof *v, "records");
        s->rec = v;
        s->cap = cap;
    }
    s->rec[s->n++] = r;
    return 0;
}

static int head_of(const char *path, const char *p, size_t n, char key[65], struct err *e)
{
    struct jdoc d;
    const char *v;
    TRY(jdoc_parse(&d, path, p, n, e));
    int rc = jget_str(&d, d.root, "", "lmeval", &v, e);
    if (rc == 0)
        snprintf(key, 65, "%s", v);
    jdoc_free(&d);
    return rc;
}

/* Reads what is there; *good: bytes of whole lines. */
static int read_all(struct lme_store *s, const struct str *text, size_t *good, struct err *e)
{
    const char *p = str_c(text), *end = p + text->len;
    *good = 0;
    for (int64_t line = 1; p < end; line++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        struct jdoc d = {0};
        char name[300];
        if (!eol)
            return 0;
        snprintf(name, sizeof name, "%.250s:%" PRId64, s->path, line);
        if (line > 1) {
            TRY(jdoc_parse(&d, name, p, (size_t)(eol - p), e));
            int rc = read_record(s, &d, e);
            jdoc_free(&d);
            TRY(rc);
        }
        p = eol + 1;
        *good = (size_t)(p - str_c(text));
    }
    return 0;
}

static int begin_file(struct lme_store *s, struct err *e)
{
    char line[128];
    int n = snprintf(line, sizeof line, "{\"lmeval\": \"%s\"}\n", s->key);
    return file_append(s->path, line, (size_t)n, true, e);
}

static int other_run(const struct lme_store *s, const char *dir, bool force, struct err *e)
{
    char path[1400];
    struct names names;
    if (!force)
        return ERR(e, E_USAGE, "'%s' holds results of a run with other parameters, data or model; give another --out or --force", dir);
    TRY(dir_list(dir, &names, e));
    for (size_t i = 0; i < names.n; i++)
        if (!strcmp(names.v[i], "results.json") || !strncmp(names.v[i], "samples_", 8)) {
            snprintf(path, sizeof path, "%s/%s", dir, names.v[i]);
            remove(path);
        }
    names_free(&names);
    remove(s->path);
    return 0;
}

int store_open(struct lme_store *s, const char *dir, const char *key, bool force, struct err *e)
{
    struct str text = STR_INIT;
    char was[65] = "";
    size_t good = 0;
    snprintf(s->path, sizeof s->path, "%s/loglikelihoods.jsonl", dir);
    snprintf(s->lock, sizeof s->lock, "%s/LOCK", dir);
    snprintf(s->key, sizeof s->key, "%s", key);
    str_printf(&s->all, "{\"lmeval\": \"%s\"}\n", key);
    TRY(lock_take(s->lock, e));
    s->locked = true;
    if (!file_exists(s->path)) {
        char path[1200];
        snprintf(path, sizeof path, "%s/results.json", dir);
        if (file_exists(path))
            TRY(other_run(s, dir, force, e));
        return begin_file(s, e);
    }
    TRY(file_read(s->path, (size_t)1 << 32, &text, e));
    const char *eol = memchr(str_c(&text), '\n', text.len);
    int rc = eol ? head_of(s->path, str_c(&text), (size_t)(eol - str_c(&text)), was, e) : 0;
    if (rc == 0 && strcmp(was, key) != 0) {
        rc = eol ? other_run(s, dir, force, e) : (remove(s->path), 0);
        rc = rc ? rc : begin_file(s, e);
    } else if (rc == 0) {
        rc = read_all(s, &text, &good, e);
        if (rc == 0 && good != text.len)
            rc = file_write(s->path, str_c(&text), good, e);
        if (s->n)
            qsort(s->rec, s->n, sizeof *s->rec, by_request);
    }
    str_free(&text);
    return rc ? -1 : 0;
}

int store_fill(const struct lme_store *s, const struct lme_task *t, struct lme_set *set, struct err *e)
{
    for (int64_t d = 0; d < set->n_docs && s->n; d++)
        for (int64_t i = set->first[d]; i < set->first[d + 1]; i++) {
            struct lme_record want = {.task = t, .doc = set->id[d], .choice = i - set->first[d]};
            const struct lme_record *r = bsearch(&want, s->rec, s->n, sizeof *s->rec, by_request);
            char ids[17];
            if (!r)
                continue;
            TRY(ids_hash(&set->req[i], ids, e));
            if (strcmp(ids, r->ids) != 0)
                return ERR(e, E_INPUT,
                           "'%s': the record of task '%s', document %" PRId64 ", choice %" PRId64
                           " is of other ids; use a new folder or --force",
                           s->path, t->name, want.doc, want.choice);
            set->req[i].ll = r->ll;
            set->req[i].greedy = r->greedy;
            set->req[i].done = true;
        }
    return 0;
}

static int write_record(struct str *out, const struct lme_task *t, const struct lme_set *set, int64_t d, int64_t i, struct err *e)
{
    char ids[17], ll[32];
    TRY(ids_hash(&set->req[i], ids, e));
    fmt_f64(ll, set->req[i].ll);
    str_printf(out, "{\"task\": \"%s\", \"doc\": %" PRId64 ", \"choice\": %" PRId64 ", \"ids\": \"%s\", \"ll\": %s, \"greedy\": %s}\n",
               t->name, set->id[d], i - set->first[d], ids, ll, set->req[i].greedy ? "true" : "false");
    return 0;
}

int store_add(struct lme_store *s, const struct lme_task *t, const struct lme_set *set, const int32_t *doc_of, const int64_t *req,
              int64_t n, struct err *e)
{
    struct str lines = STR_INIT;
    int rc = 0;
    for (int64_t i = 0; i < n && rc == 0; i++)
        rc = write_record(&lines, t, set, doc_of[req[i]], req[i], e);
    rc = rc ? rc : str_ok(&lines, "records", e);
    rc = rc ? rc : file_append(s->path, str_c(&lines), lines.len, false, e);
    str_free(&lines);
    return rc;
}

int store_keep(struct lme_store *s, const struct lme_task *t, const struct lme_set *set, struct err *e)
{
    for (int64_t d = 0; d < set->n_docs; d++)
        for (int64_t i = set->first[d]; i < set->first[d + 1]; i++)
            TRY(write_record(&s->all, t, set, d, i, e));
    return str_ok(&s->all, "records", e);
}

int store_commit(struct lme_store *s, struct err *e)
{
    return file_write(s->path, str_c(&s->all), s->all.len, e);
}

void store_close(struct lme_store *s)
{
    if (s->locked)
        lock_drop(s->lock);
    free(s->rec);
    str_free(&s->all);
    *s = (struct lme_store){0};
}
