/* Runs the nodes of a plan that are not complete. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "core/prov.h"
#include "experiments/plan.h"

struct session_run {
    char key[65];
    const char *error; /* NULL: made */
    int code;
    bool declined;
    struct session_run *next;
};

void run_session_open(struct run_session *s)
{
    *s = (struct run_session){0};
    arena_init(&s->arena, (size_t)16 << 20);
}

void run_session_close(struct run_session *s)
{
    arena_free(&s->arena);
    *s = (struct run_session){0};
}

static const struct session_run *session_find(const struct run_session *s, const char *key)
{
    for (const struct session_run *r = s ? s->first : NULL; r; r = r->next)
        if (!strcmp(r->key, key))
            return r;
    return NULL;
}

static void session_add(struct run_session *s, const struct node *n, const struct err *e)
{
    struct session_run *r = s && n->key[0] ? arena_alloc(&s->arena, sizeof *r) : NULL;
    if (!r)
        return;
    *r = (struct session_run){
        .error = e ? arena_strdup(&s->arena, e->msg) : NULL, .code = e ? e->code : 0, .declined = n->declined, .next = s->first};
    memcpy(r->key, n->key, sizeof r->key);
    s->first = r;
}

/* One item of --only: a stage's id, or ID:DIGITS of the planned key of one run. */
static bool takes(const char *item, const struct node *n)
{
    size_t len = strcspn(item, ","), id = MIN(len, strcspn(item, ":"));
    return strlen(n->stage->id) == id && !strncmp(item, n->stage->id, id) &&
           (id == len || (len - id - 1 <= 64 && len > id + 1 && !strncmp(item + id + 1, n->planned, len - id - 1)));
}

/* Whether a node is wanted: its stage is in `only`, or a wanted node needs it. */
static void mark_wanted(const struct plan *p, const char *only, bool *want)
{
    for (size_t i = 0; i < p->n; i++) {
        want[i] = !only || !*only;
        for (const char *s = only; s && *s; s += strcspn(s, ","), s += *s == ',')
            want[i] = want[i] || takes(s, p->nodes[i]);
        want[i] = want[i] && !p->nodes[i]->stage->borrow;
    }
    for (size_t i = p->n; i-- > 0;) {
        const struct node *n = p->nodes[i];
        for (size_t k = 0; want[i] && k < n->kind->n_params; k++)
            for (size_t r = 0; n->ref[k] && n->ref[k][r]; r++)
                for (size_t j = 0; j < i; j++)
                    want[j] = want[j] || p->nodes[j] == n->ref[k][r];
    }
}

/* One that failed, else one that declined. */
static const struct node *failed_dependency(const struct node *n)
{
    const struct node *declined = NULL;
    for (size_t i = 0; i < n->kind->n_params; i++)
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++)
            if (n->ref[i][k]->error && !n->ref[i][k]->declined)
                return n->ref[i][k];
            else if (n->ref[i][k]->error)
                declined = n->ref[i][k];
    return declined;
}

/* *made: by this process; another one may have completed it since it was looked at. */
static int run_node(struct plan *p, struct node *n, bool force, int at, int total, bool *made, struct err *e)
{
    struct str yaml = STR_INIT;
    struct run r;
    node_yaml(n, &yaml);
    int rc = run_open(&r, n->dir, n->lines, str_c(&yaml), force, e);
    str_free(&yaml);
    TRY(rc);
    *made = !r.complete;
    if (r.complete) {
        n->state = RUN_COMPLETE;
        return 0;
    }
    log_info("[%d/%d] %s %s%s%s", at, total, n->stage->id, n->point, n->state == RUN_PARTIAL ? " (resumed)" : "", "");
    if (n->kind->run(p->reg->env, n, &r, e) != 0) {
        n->declined = r.declined;
        run_abort(&r, e->code);
        return -1;
    }
    TRY(run_commit(&r, "OK\n", e));
    n->state = RUN_COMPLETE;
    return 0;
}

int plan_wanted(const struct plan *p, const char *only)
{
    bool *want = calloc(p->n + 1, sizeof *want);
    int n = 0;
    if (!want)
        return 0;
    mark_wanted(p, only, want);
    for (size_t i = 0; i < p->n; i++)
        n += want[i];
    free(want);
    return n;
}

int plan_keep(struct plan *p, const char *only)
{
    bool *want = calloc(p->n + 1, sizeof *want);
    size_t n = 0;
    if (!want)
        return 0;
    mark_wanted(p, only, want);
    for (size_t i = 0; i < p->n; i++)
        if (want[i])
            p->nodes[n++] = p->nodes[i];
    p->n = n;
    free(want);
    return (int)n;
}

/* What a node reads by path and is not there; NULL = all is. */
static const char *lacking(const struct node *n)
{
    for (size_t i = 0; i < n->kind->n_params; i++)
        if (n->path[i] && !n->kind->params[i].free && !file_exists(n->path[i]) && !dir_exists(n->path[i]))
            return n->path[i];
    return NULL;
}

static bool refers_to(const struct node *n, const struct node *other)
{
    for (size_t i = 0; i < n->kind->n_params; i++)
        for (size_t k = 0; n->ref[i] && n->ref[i][k]; k++)
            if (n->ref[i][k] == other)
                return true;
    return false;
}

bool plan_stuck(const struct plan *p, const char *only, const char **path)
{
    bool *want = calloc(p->n + 1, sizeof *want), *stuck = calloc(p->n + 1, sizeof *stuck), any = false, all = want && stuck;
    *path = NULL;
    if (all)
        mark_wanted(p, only, want);
    for (size_t i = 0; all && i < p->n; i++) {
        const char *own = lacking(p->nodes[i]);
        stuck[i] = own != NULL;
        for (size_t k = 0; k < i && !stuck[i]; k++)
            stuck[i] = stuck[k] && refers_to(p->nodes[i], p->nodes[k]);
        if (!want[i] || p->nodes[i]->state == RUN_COMPLETE)
            continue;
        any = true;
        all = stuck[i];
        *path = *path ? *path : own;
    }
    free(want);
    free(stuck);
    return any && all && *path;
}

/* Runs a node; with o->wait, looks again every few seconds while another process is at it: it may complete it, or leave it to be resumed.
 */
static int run_or_wait(struct plan *p, struct node *n, const struct run_options *o, int at, int total, bool *made, struct err *e)
{
    bool known, said = false;
    for (;;) {
        struct err held = ERR_INIT;
        if (run_node(p, n, o->force, at, total, made, &held) == 0)
            return 0;
        if (!o->wait || held.code != E_ENV || !strstr(held.msg, "is locked by process")) {
            *e = held;
            return -1;
        }
        if (!said)
            log_info("stage '%s' %s: %s", n->stage->id, n->point, held.msg);
        said = true;
        for (int s = 0; s < 5 && !interrupted(); s++)
            sleep(1);
        if (interrupted())
            return ERR(e, E_INTERRUPTED, "interrupted; run the same command again to go on");
        TRY(node_resolve(p, n, &known, e));
        *made = n->state != RUN_COMPLETE;
        if (!*made)
            return 0;
    }
}

static void note_failure(struct plan *p, struct node *n, const char *msg, int code, struct plan_summary *s, struct err *first)
{
    n->error = arena_strdup(&p->arena, msg);
    *(n->declined ? &s->declined : &s->failed) += 1;
    if (!n->declined && !first->code)
        (void)ERR(first, code, "%s", msg);
}

static int visit(struct plan *p, struct node *n, const struct run_options *o, struct plan_summary *s, int at, struct err *e)
{
    const struct node *bad = failed_dependency(n);
    if (bad) {
        n->error = arena_printf(&p->arena, "'%s' (%s): %s", bad->stage->id, bad->point, bad->error);
        n->declined = bad->declined;
        *(n->declined ? &s->declined : &s->failed) += 1;
        return 0;
    }
    bool known;
    struct err ne = ERR_INIT;
    int rc = node_resolve(p, n, &known, &ne);
    if (rc == 0 && !known)
        rc = ERR(&ne, E_INPUT, "stage '%s' reads '%s', which does not exist", n->stage->id, lacking(n) ? lacking(n) : "an input");
    const struct session_run *had = rc == 0 ? session_find(o->session, n->key) : NULL;
    if (had && had->error) {
        n->declined = had->declined;
        note_failure(p, n, had->error, had->code, s, e);
        return 0;
    }
    if (rc == 0 && n->state == RUN_COMPLETE && (!o->force || had)) {
        run_tidy(n->dir);
        s->up_to_date++;
        return 0;
    }
    bool made = true;
    bool begun = n->state == RUN_PARTIAL;
    if (rc == 0)
        rc = run_or_wait(p, n, o, at, s->total, &made, &ne);
    if (rc != 0) {
        if (ne.code == E_INTERRUPTED) {
            *e = ne;
            return -1;
        }
        if (n->declined)
            log_info("stage '%s' %s is not made: %s", n->stage->id, n->point, ne.msg);
        else if (!o->single)
            log_msg(LOG_ERROR, "stage '%s'%s%s failed (exit code %d): %s", n->stage->id, *n->point ? " " : "", n->point, ne.code, ne.msg);
        note_failure(p, n, ne.msg, ne.code, s, e);
        session_add(o->session, n, &ne);
        return 0;
    }
    *(made ? &s->ran : &s->up_to_date) += 1;
    s->resumed += made && begun;
    session_add(o->session, n, NULL);
    return 0;
}

int plan_run(struct plan *p, const struct run_options *o, struct plan_summary *s, struct err *e)
{
    *s = (struct plan_summary){0};
    bool *want = calloc(p->n + 1, sizeof *want);
    if (!want)
        return err_nomem(e, p->n, "plan");
    mark_wanted(p, o->only, want);
    for (size_t i = 0; i < p->n; i++)
        s->total += want[i];
    int at = 0, rc = s->total || !o->only || !*o->only ? 0 : ERR(e, E_USAGE, "--only '%s' names no stage of this manifest", o->only);
    struct err first = ERR_INIT;
    for (size_t i = 0; rc == 0 && i < p->n; i++) {
        struct node *n = p->nodes[i];
        bool known;
        struct err ignored = ERR_INIT;
        if (n->stage->borrow)
            node_resolve(p, n, &known, &ignored);
        if (!want[i])
            continue;
        if (interrupted())
            rc = ERR(e, E_INTERRUPTED, "interrupted; run the same command again to go on");
        else
            rc = visit(p, n, o, s, ++at, &first);
        if (rc == 0 && o->on_done)
            o->on_done(o->ctx, p, n);
    }
    if (first.code && (rc == 0 || first.code == E_INTERRUPTED)) /* the first failure: a single stage exits with its code */
        *e = first;
    free(want);
    return rc;
}
