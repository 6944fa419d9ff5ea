/*
 * A plan: the stages of a manifest expanded into nodes (one for each point of their matrix and of what they refer to), in an order in
 * which dependencies come first. Equal nodes (same key) share one run.
 */
#ifndef EXPERIMENTS_PLAN_H
#define EXPERIMENTS_PLAN_H

#include "experiments/manifest.h"
#include "experiments/rundir.h"

struct node {
    const struct stage *stage;
    const struct stage_kind *kind;
    const char **value;        /* per parameter of the kind, canonical; refs hold the stage id */
    struct node ***ref;        /* per parameter: NULL-terminated nodes it refers to, or NULL */
    const char **path;         /* per parameter: where an input, a path or a run given by flag lies; NULL otherwise */
    const char *label;         /* "uniform budget=3 seed=1": the settings that vary, own and inherited */
    const char *point;         /* inherited and own varying settings, "k=v k=v" */
    char key[65], dir[1024];   /* key "" until its inputs are known */
    const char *lines;         /* what the key is the hash of; "?" stands for an input or a run that is not known yet */
    char planned[65]; /* the same over what the node is planned from, whatever selectors will choose: equal ones are one run; for good */
    enum run_state state;
    const char *error;         /* failed in this session, or a dependency did */
    bool declined;             /* error is a reason not to make it (an uninformative probe), not a failure */
    struct stage_cost cost;
};
/* Hashes of inputs and costs of runs, each made once for all plans of a command: a checkpoint is read through once. */
struct hash_cache {
    struct arena arena;
    struct hash_entry *first;
    struct cost_entry *cost;
};
void hash_cache_open(struct hash_cache *c);
void hash_cache_close(struct hash_cache *c);

struct plan {
    struct arena arena;
    const struct manifest *m;
    const struct registry *reg;
    struct node **nodes;
    size_t n;
    char runs[1024];
};

int plan_make(struct plan *p, const struct manifest *m, const struct registry *reg, const char *runs, struct err *e);
void plan_free(struct plan *p);
/* Computes key, directory and state of a node when every node it refers to is complete (or keyed without content); *known says whether. */
int node_resolve(struct plan *p, struct node *n, bool *known, struct err *e);

const char *node_str(const struct node *n, const char *param); /* "" when absent; BUG for an unknown name */
int64_t node_i64(const struct node *n, const char *param);
double node_f64(const struct node *n, const char *param);
bool node_bool(const struct node *n, const char *param);
struct node *node_ref(const struct node *n, const char *param); /* first, or NULL */
bool node_has(const struct node *n, const char *param);
/* "  1,2,3" lists */
size_t node_list_i64(const struct node *n, const char *param, int64_t *out, size_t cap);
size_t node_list_f64(const struct node *n, const char *param, double *out, size_t cap);

/* Where what a reference or path parameter names can be read: the out folder of a run, or the path of an input. "" when absent. */
const char *node_path(const struct node *n, const char *param, char dst[1024]);
/* Path of an artifact of a complete node: DIR/out/REL */
char *node_out(char dst[1024], const struct node *n, const char *rel);

/* A node built from flags instead of a manifest: values as given (canonical), refs are run directories (their key.txt is read) or inputs
 * (paths). */
struct flag_value {
    const char *name, *value;
};
int plan_single(struct plan *p, const struct registry *reg, const char *kind, const struct flag_value *v, size_t n, const char *out_dir,
                struct err *e);
/* The YAML stage that says the same as a node. */
void node_yaml(const struct node *n, struct str *out);

/* What earlier plans of the same command did: a run that failed is not tried again, one that was made is not made again by --force. */
struct run_session {
    struct arena arena;
    struct session_run *first;
};
void run_session_open(struct run_session *s);
void run_session_close(struct run_session *s);
struct run_options {
    const char *only; /* comma-separated stage ids, or ID:PLANNED for one run (first digits of its planned key); "" = all. What they need
                       * runs too. */
    bool dry_run, force;
    bool single;                 /* one stage: the caller tells its error, so it is not logged */
    bool wait;                   /* for a run that another process is at, instead of failing */
    struct run_session *session; /* may be NULL */
    void (*on_done)(void *ctx, const struct plan *p, const struct node *n); /* after each node: tables are printed as cells become ready */
    void *ctx;
};
/* How many runs --only takes, with what they need; plan_keep: the plan has no others from here on. */
int plan_wanted(const struct plan *p, const char *only);
int plan_keep(struct plan *p, const char *only);
/* Whether there are runs to make and none of them can be made, because what they read, or what their dependencies read, is not there;
 * *path is the first such file or folder. */
bool plan_stuck(const struct plan *p, const char *only, const char **path);
struct plan_summary {
    int total, up_to_date, resumed, ran, failed, unknown, declined;
};
/* Runs what is missing. A failed node fails its dependants only; the rest is made. Interrupted: E_INTERRUPTED at once. Failures: 0 is
 * returned, summary.failed says how many, and e holds the first one. Nodes that decline, and those that need them, are counted in
 * summary.declined alone. */
int plan_run(struct plan *p, const struct run_options *o, struct plan_summary *s, struct err *e);

/* The record of a complete node: its result.json and those of everything it refers to, as "kind.name" -> text, nearest first; NULL when
 * absent. Arena-owned by the plan. */
const char *node_result(struct plan *p, const struct node *n, const char *name);
const char *node_setting(const struct node *n, const char *name); /* parameter of n or of an ancestor, nearest first; NULL when none */
/* Runs of a stage as reports name them: STAGE, or STAGE@name=value with settings of a run or of what it refers to. */
bool node_named(const struct node *n, const char *text);
size_t plan_named(const struct plan *p, const char *text, const struct node **out, size_t cap);
/* The nearest ancestor-or-self of a kind, or NULL. */
const struct node *node_of_kind(const struct node *n, const char *kind);

#endif
