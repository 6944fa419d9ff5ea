#include "lmeval/tree.h"

#include <stdlib.h>
#include <string.h>

/* A fork that saves fewer tokens than this is not worth a step and a copy of the state: its branches compute the stretch themselves. */
#define MIN_SAVED 4

struct sorter {
    const struct lme_req *req;
    int32_t *order, *tmp, *lcp, *end_node, *stack;
};

static int32_t common(const struct lme_req *a, const struct lme_req *b)
{
    int32_t n = MIN(lme_input_len(a), lme_input_len(b)), i = a->ctx == b->ctx ? MIN(MIN(a->n_ctx, b->n_ctx), n) : 0;
    while (i < n && lme_input_id(a, i) == lme_input_id(b, i))
        i++;
    return i;
}

static bool before(const struct sorter *s, int32_t x, int32_t y)
{
    const struct lme_req *a = &s->req[x], *b = &s->req[y];
    int32_t i = common(a, b), na = lme_input_len(a), nb = lme_input_len(b);
    if (i < na && i < nb)
        return lme_input_id(a, i) < lme_input_id(b, i);
    return na != nb ? na < nb : x < y;
}

static void sort(struct sorter *s, int32_t n)
{
    for (int32_t width = 1; width < n; width *= 2) {
        for (int32_t lo = 0; lo < n; lo += 2 * width) {
            int32_t mid = MIN(lo + width, n), hi = MIN(lo + 2 * width, n), a = lo, b = mid;
            for (int32_t k = lo; k < hi; k++)
                s->tmp[k] = b == hi || (a < mid && !before(s, s->order[b], s->order[a])) ? s->order[a++] : s->order[b++];
        }
        memcpy(s->order, s->tmp, (size_t)n * sizeof *s->order);
    }
}

static int32_t new_node(struct lme_tree *t, int32_t parent, int32_t begin, int32_t end, int32_t rep)
{
    t->node[t->n_nodes] = (struct lme_node){.parent = parent, .child = -1, .next = -1, .begin = begin, .end = end, .rep = rep};
    return t->n_nodes++;
}

/* Inputs in order; the stack is the path of the last one. */
static void grow(struct lme_tree *t, struct sorter *s, int32_t n)
{
    int32_t depth = 0;
    for (int32_t k = 0; k < n; k++) {
        int32_t r = s->order[k], len = lme_input_len(&s->req[r]), shared = k ? s->lcp[k] : 0, popped = -1;
        while (depth && t->node[s->stack[depth - 1]].end > shared)
            popped = s->stack[--depth];
        if (popped >= 0 && t->node[popped].begin < shared) { /* the last input's stretch forks inside */
            int32_t mid = new_node(t, t->node[popped].parent, t->node[popped].begin, shared, t->node[popped].rep);
            t->node[popped].parent = mid;
            t->node[popped].begin = shared;
            s->stack[depth++] = mid;
        }
        if (len > shared) {
            int32_t parent = depth ? s->stack[depth - 1] : -1;
            s->stack[depth++] = new_node(t, parent, shared, len, r);
        }
        s->end_node[r] = s->stack[depth - 1];
        t->node[s->stack[depth - 1]].ends++;
    }
}

static void link_children(struct lme_tree *t)
{
    t->root = -1;
    for (int32_t i = 0; i < t->n_nodes; i++)
        t->node[i].child = t->node[i].next = -1;
    for (int32_t i = t->n_nodes - 1; i >= 0; i--) {
        struct lme_node *x = &t->node[i];
        if (x->level < 0)
            continue;
        int32_t *head = x->parent < 0 ? &t->root : &t->node[x->parent].child;
        x->next = *head;
        *head = i;
    }
}

/* Forks that save little: their children take the stretch over. Parents before children, so that a stretch taken over counts. */
static void drop_small(struct lme_tree *t, int32_t *queue)
{
    int32_t n = 0;
    for (int32_t i = t->root; i >= 0; i = t->node[i].next)
        queue[n++] = i;
    for (int32_t k = 0; k < n; k++) {
        struct lme_node *x = &t->node[queue[k]];
        int32_t kids = 0;
        for (int32_t c = x->child; c >= 0; c = t->node[c].next) {
            queue[n++] = c;
            kids++;
        }
        if (!kids || x->ends || (int64_t)(x->end - x->begin) * (kids - 1) >= MIN_SAVED)
            continue;
        for (int32_t c = x->child; c >= 0; c = t->node[c].next) {
            t->node[c].begin = x->begin;
            t->node[c].parent = x->parent;
        }
        x->level = -1; /* gone */
    }
    link_children(t);
}

static void count(struct lme_tree *t, const struct sorter *s, int32_t n, int32_t *queue)
{
    struct lme_cost *c = &t->cost;
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t len = lme_input_len(&s->req[s->order[i]]);
        c->no_sharing += len;
        if (!i || s->lcp[i] < len || lme_input_len(&s->req[s->order[i - 1]]) != len)
            c->one_token_cache += len;
    }
    for (int32_t i = t->root; i >= 0; i = t->node[i].next)
        queue[k++] = i;
    for (int32_t i = 0; i < k; i++) {
        struct lme_node *x = &t->node[queue[i]];
        x->level = x->parent < 0 ? 0 : t->node[x->parent].level + 1;
        c->tokens += x->end - x->begin;
        c->levels = MAX(c->levels, x->level + 1);
        c->nodes++;
        for (int32_t y = x->child; y >= 0; y = t->node[y].next)
            queue[k++] = y;
    }
}

static int by_place(const void *a, const void *b)
{
    const struct lme_target *x = a, *y = b;
    const int32_t kx[] = {x->node, x->row, x->token, x->req, x->j}, ky[] = {y->node, y->row, y->token, y->req, y->j};
    for (int i = 0; i < 5; i++)
        if (kx[i] != ky[i])
            return kx[i] < ky[i] ? -1 : 1;
    return 0;
}

static int place_targets(struct lme_tree *t, const struct sorter *s, int32_t n, struct err *e)
{
    int64_t total = 0, k = 0;
    for (int32_t i = 0; i < n; i++)
        total += s->req[i].n_cont;
    t->target = malloc((size_t)(total + 1) * sizeof *t->target);
    if (!t->target)
        return err_nomem(e, (size_t)total * sizeof *t->target, "requests");
    for (int32_t i = 0; i < n; i++) {
        int32_t node = s->end_node[i];
        for (int32_t j = s->req[i].n_cont - 1; j >= 0; j--) {
            int32_t p = s->req[i].n_ctx - 1 + j;
            while (p < t->node[node].begin)
                node = t->node[node].parent;
            t->target[k++] = (struct lme_target){node, p - t->node[node].begin, s->req[i].cont[j], i, j};
        }
        for (node = s->end_node[i]; node >= 0; node = t->node[node].parent)
            t->node[node].pending += !s->req[i].done;
    }
    t->n_targets = total;
    qsort(t->target, (size_t)total, sizeof *t->target, by_place);
    for (k = 0; k < total;) {
        struct lme_node *x = &t->node[t->target[k].node];
        x->t0 = k;
        while (k < total && &t->node[t->target[k].node] == x)
            k++;
        x->t1 = k;
    }
    return 0;
}

int lme_tree_make(struct lme_tree *t, const struct lme_req *req, int64_t n64, bool targets, struct err *e)
{
    *t = (struct lme_tree){.root = -1};
    if (n64 > INT32_MAX / 4)
        return ERR(e, E_USAGE, "%" PRId64 " requests at once; at most %d", n64, INT32_MAX / 4);
    int32_t n = (int32_t)n64;
    size_t bytes = ((size_t)n + 1) * sizeof(int32_t);
    struct sorter s = {req, malloc(bytes), malloc(bytes), malloc(bytes), malloc(bytes), malloc(2 * bytes)};
    t->node = malloc((2 * (size_t)n + 1) * sizeof *t->node);
    int rc = s.order && s.tmp && s.lcp && s.end_node && s.stack && t->node ? 0 : err_nomem(e, 6 * bytes, "requests");
    if (rc == 0) {
        for (int32_t i = 0; i < n; i++)
            s.order[i] = i;
        sort(&s, n);
        for (int32_t k = 1; k < n; k++)
            s.lcp[k] = common(&req[s.order[k - 1]], &req[s.order[k]]);
        grow(t, &s, n);
        link_children(t);
        drop_small(t, s.stack);
        count(t, &s, n, s.stack);
        if (targets)
            rc = place_targets(t, &s, n, e);
    }
    free(s.order);
    free(s.tmp);
    free(s.lcp);
    free(s.end_node);
    free(s.stack);
    if (rc)
        lme_tree_free(t);
    return rc;
}

void lme_tree_free(struct lme_tree *t)
{
    free(t->node);
    free(t->target);
    *t = (struct lme_tree){.root = -1};
}

int lme_count(const struct lme_req *req, int64_t n, struct lme_cost *out, struct err *e)
{
    struct lme_tree t;
    TRY(lme_tree_make(&t, req, n, false, e));
    *out = t.cost;
    lme_tree_free(&t);
    return 0;
}
