/* Runs the nodes of a plan that are not complete, and prints plans. */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/prov.h"
#include "experiments/plan.h"

/* Whether a node is wanted: its stage is in `only`, or a wanted node needs it. */
static void mark_wanted(const struct plan *p, const char *only, bool *want)
{
    for (size_t i = 0; i < p->n; i++) {
        const char *id = p->nodes[i]->stage->id;
        size_t n = strlen(id);
        want[i] = !only || !*only;
        for (const char *s = only; s && *s; s += strcspn(s, ","), s += *s == ',')
            want[i] = want[i] || (strcspn(s, ",") == n && !strncmp(s, id, n));
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

static int run_node(struct plan *p, struct node *n, bool force, int at, int total, struct err *e)
{
    struct str yaml = STR_INIT;
    struct run r;
    node_yaml(n, &yaml);
    int rc = run_open(&r, n->dir, n->inputs_text, str_c(&yaml), force, e);
    str_free(&yaml);
    TRY(rc);
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
        rc = ERR(&ne, E_INPUT, "an input of stage '%s' does not exist (see 'dashlab check')", n->stage->id);
    if (rc == 0 && n->state == RUN_COMPLETE && !o->force) {
        run_tidy(n->dir);
        s->up_to_date++;
        return 0;
    }
    if (rc == 0) {
        s->resumed += n->state == RUN_PARTIAL;
        rc = run_node(p, n, o->force, at, s->total, &ne);
    }
    if (rc != 0) {
        if (ne.code == E_INTERRUPTED) {
            *e = ne;
            return -1;
        }
        n->error = arena_strdup(&p->arena, ne.msg);
        if (n->declined) {
            s->declined++;
            log_info("stage '%s' %s is not made: %s", n->stage->id, n->point, ne.msg);
            return 0;
        }
        s->failed++;
        if (!o->single)
            log_msg(LOG_ERROR, "stage '%s'%s%s failed (exit code %d): %s", n->stage->id, *n->point ? " " : "", n->point, ne.code, ne.msg);
        if (!e->code)
            *e = ne;
        return 0;
    }
    s->ran++;
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
    int at = 0, rc = s->total ? 0 : ERR(e, E_USAGE, "--only '%s' names no stage of this manifest", o->only);
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

/* ---- printing ---- */

static const char *state_word(const struct node *n)
{
    if (!n->key[0])
        return "waits"; /* its key depends on a run that is not done */
    switch (n->state) {
    case RUN_NEW:
        return "to run";
    case RUN_PARTIAL:
        return "resumes";
    case RUN_COMPLETE:
        return "done";
    case RUN_OTHER:
        return "other";
    }
    return "";
}

static bool first_with_key(const struct plan *p, size_t at)
{
    for (size_t i = 0; p->nodes[at]->key[0] && i < at; i++)
        if (!strcmp(p->nodes[i]->key, p->nodes[at]->key))
            return false;
    return true;
}

static void print_dot(const struct plan *p, struct str *out)
{
    str_printf(out, "digraph \"%s\" {\n  rankdir=LR; node [shape=box, fontname=\"sans\"];\n", p->m->name);
    for (size_t i = 0; i < p->n; i++) {
        const struct node *n = p->nodes[i];
        str_printf(out, "  n%zu [label=\"%s\\n%s\\n%s\"];\n", i, n->stage->id, n->point, state_word(n));
        for (size_t k = 0; k < n->kind->n_params; k++)
            for (size_t r = 0; n->ref[k] && n->ref[k][r]; r++)
                for (size_t j = 0; j < i; j++)
                    if (p->nodes[j] == n->ref[k][r])
                        str_printf(out, "  n%zu -> n%zu;\n", j, i);
    }
    str_puts(out, "}\n");
}

/* What is not estimated is a dash. */
static void print_cost(const struct stage_cost *c, struct str *out)
{
    if (c->tokens)
        str_printf(out, " %10" PRId64, c->tokens);
    else
        str_puts(out, "          -");
    if (c->flops > 0)
        str_printf(out, " %12.3g", c->flops);
    else
        str_puts(out, "            -");
    if (c->memory_bytes > 0)
        str_printf(out, " %6.2f GiB", c->memory_bytes / (1 << 30));
    else
        str_puts(out, "          -");
    if (c->seconds > 0)
        str_printf(out, " %8.0fs\n", c->seconds);
    else
        str_puts(out, "         -\n");
}

void plan_print(const struct plan *p, bool dot, struct str *out)
{
    if (dot) {
        print_dot(p, out);
        return;
    }
    double flops = 0, tokens = 0, seconds = 0, mem = 0;
    int done = 0, shared = 0, todo = 0;
    str_printf(out, "%-20s %-34s %-8s %-12s %10s %12s %10s %9s\n", "stage", "point", "state", "key", "tokens", "FLOP", "memory", "time");
    for (size_t i = 0; i < p->n; i++) {
        const struct node *n = p->nodes[i];
        bool own = first_with_key(p, i);
        str_printf(out, "%-20s %-34.34s %-8s %-12.12s", n->stage->id, n->point, own ? state_word(n) : "shared", n->key[0] ? n->key : "-");
        print_cost(&n->cost, out);
        shared += !own;
        done += own && n->state == RUN_COMPLETE;
        mem = MAX(mem, n->cost.memory_bytes);
        if (own && n->state != RUN_COMPLETE) {
            todo++;
            flops += n->cost.flops;
            tokens += (double)n->cost.tokens;
            seconds += n->cost.seconds;
        }
    }
    str_printf(out, "%zu stages: %d done, %d shared, %d to run: %.0f tokens, %.3g FLOP, at most %.2f GiB", p->n, done, shared, todo, tokens,
               flops, mem / (1 << 30));
    if (seconds > 0)
        str_printf(out, ", about %.0f min", seconds / 60);
    str_puts(out, "\n");
}
