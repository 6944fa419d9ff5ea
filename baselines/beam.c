/* Beam search over layer sets. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/trained.h"

struct cand {
    bool full[MAX_LAYERS];
    double cost;
};
struct beam {
    const struct beam_problem *p;
    struct cand *now, *next; /* now: the beam; next: all its children */
    int n, n_next, cap;
};

/* Sets of one size in order: cost, then the set whose first differing layer is in it. */
static int by_cost(const void *a, const void *b)
{
    const struct cand *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    for (int l = 0; l < MAX_LAYERS; l++)
        if (x->full[l] != y->full[l])
            return x->full[l] ? -1 : 1;
    return 0;
}

static bool seen(const struct beam *b, const bool *full)
{
    for (int i = 0; i < b->n_next; i++)
        if (!memcmp(b->next[i].full, full, sizeof b->next[i].full))
            return true;
    return false;
}

static int expand(struct beam *b, struct beam_result *out, struct err *e)
{
    const struct beam_problem *p = b->p;
    b->n_next = 0;
    for (int i = 0; i < b->n; i++)
        for (int l = 0; l < p->layers; l++) {
            struct cand c = b->now[i];
            if (c.full[l] || (p->exclude && p->exclude[l]))
                continue;
            c.full[l] = true;
            if (seen(b, c.full))
                continue;
            TRY(p->cost(p->ctx, c.full, &c.cost, e));
            if (!finite_f64(c.cost))
                return ERR(e, E_NUMERIC, "beam search: the cost of a set of layers is not finite");
            out->evaluated++;
            b->next[b->n_next++] = c;
        }
    qsort(b->next, (size_t)b->n_next, sizeof *b->next, by_cost);
    return 0;
}

static int search(struct beam *b, struct beam_result *out, struct err *e)
{
    const struct beam_problem *p = b->p;
    TRY(p->cost(p->ctx, b->now[0].full, &b->now[0].cost, e));
    out->evaluated = 1;
    out->cost[0] = b->now[0].cost;
    b->n = 1;
    for (int k = 1; k <= p->k; k++) {
        TRY(expand(b, out, e));
        if (b->n_next == 0)
            return 0;
        out->k = k;
        memcpy(out->best[k], b->next[0].full, sizeof out->best[k]);
        out->cost[k] = b->next[0].cost;
        for (int l = 0; l < p->layers; l++) {
            out->with[l] = INFINITY;
            for (int i = 0; i < b->n_next; i++)
                if (b->next[i].full[l])
                    out->with[l] = fmin(out->with[l], b->next[i].cost);
        }
        b->n = MIN(b->n_next, p->width);
        memcpy(b->now, b->next, sizeof *b->now * (size_t)b->n);
    }
    return 0;
}

int beam_search(const struct beam_problem *p, struct beam_result *out, struct err *e)
{
    struct beam b = {.p = p, .cap = p->width * p->layers};
    *out = (struct beam_result){0};
    if (p->width < 1 || p->width > 4096 || p->layers < 1 || p->layers > MAX_LAYERS || p->k < 0 || p->k > p->layers)
        return ERR(e, E_USAGE, "beam search: width %d (1..4096), %d of %d layers (1..%d)", p->width, p->k, p->layers, MAX_LAYERS);
    b.now = calloc((size_t)p->width, sizeof *b.now);
    b.next = calloc((size_t)b.cap, sizeof *b.next);
    int rc = b.now && b.next ? search(&b, out, e) : err_nomem(e, (size_t)b.cap * sizeof *b.next, "a beam");
    free(b.now);
    free(b.next);
    return rc;
}
