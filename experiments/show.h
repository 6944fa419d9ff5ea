/*
 * Plans for people: the list of runs that --dry-run prints, the graph, and why a run has to be made. Several plans (of a collection) are
 * shown as one: a run that an earlier one has, too, is `shared`.
 */
#ifndef EXPERIMENTS_SHOW_H
#define EXPERIMENTS_SHOW_H

#include "experiments/plan.h"

/* The key lines of every run in a folder; a folder that does not exist holds none. */
struct run_entry {
    const char *name, *lines; /* the folder, its key.txt */
    bool complete;
};
struct runs_index {
    struct arena arena;
    struct run_entry *v;
    size_t n;
};
int runs_index_open(struct runs_index *ix, const char *runs, struct err *e);
void runs_index_close(struct runs_index *ix);

/* Whether a run's key.txt can be that of a node with these lines, in which "?" stands for what is not known yet. */
bool key_matches(const char *lines, const char *key_text);
/* Why a node is not complete, in a few words: what differs from the run that is most like it, what it waits for. "" for a complete one. ix
 * may be NULL. */
void plan_why(const struct plan *p, const struct node *n, const struct runs_index *ix, struct str *out);

/* A line a run: state, key, tokens, FLOPs, memory, time, why; then sums, by kind of stage and in all. ix may be NULL (nothing is said of
 * the reasons). */
void plans_print(const struct plan *const *p, size_t n, const struct runs_index *ix, struct str *out);
/* The same as a graph (Graphviz): one box a run, shared ones once. */
void plans_dot(const struct plan *const *p, size_t n, const char *name, struct str *out);
/* One plan, without reasons. */
void plan_print(const struct plan *p, bool dot, struct str *out);

#endif
