/*
 * The prefix tree of a set of requests. The input of request r is its context and all but the last id of its continuation; a node is a
 * stretch of ids that all inputs below it share. Private to lmeval.
 */
#ifndef LMEVAL_TREE_H
#define LMEVAL_TREE_H

#include "lmeval/lmeval.h"

struct lme_node {
    int32_t parent, child, next; /* -1 = none; the order of siblings is fixed by the set */
    int32_t begin, end;          /* positions of its ids in the inputs through it */
    int32_t rep;                 /* one request through it */
    int32_t level, slot;
    int32_t ends;    /* inputs that end here */
    int32_t pending; /* requests below that are not done */
    int64_t t0, t1;  /* its targets */
};
/* Position `row` of the node predicts `token` for id j of request req's continuation. */
struct lme_target {
    int32_t node, row, token, req, j;
};
struct lme_tree {
    struct lme_node *node;
    int32_t n_nodes, root;     /* root: first of the top nodes, a list by `next` */
    struct lme_target *target; /* by node, row, token, request */
    int64_t n_targets;
    struct lme_cost cost;
};
/* targets false: shape and cost alone. */
int lme_tree_make(struct lme_tree *t, const struct lme_req *req, int64_t n, bool targets, struct err *e);
void lme_tree_free(struct lme_tree *t);
static inline int32_t lme_input_id(const struct lme_req *r, int32_t p)
{
    return p < r->n_ctx ? r->ctx[p] : r->cont[p - r->n_ctx];
}
static inline int32_t lme_input_len(const struct lme_req *r)
{
    return r->n_ctx + r->n_cont - 1;
}

#endif
