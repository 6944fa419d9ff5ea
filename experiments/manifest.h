/*
 * Manifests: what to run, at which scale, and what to make of it. experiments/README.md describes the YAML; `dashlab check --schema`
 * prints it from the tables below.
 *
 * A stage is an instance of a stage kind; kinds are registered by the caller (cli), so this folder knows no models. Parameter values are
 * typed by the kind's schema and kept in canonical text (integers "%lld", numbers as shortest repr, lists joined by ","), which is also
 * what a run's key hashes.
 */
#ifndef EXPERIMENTS_MANIFEST_H
#define EXPERIMENTS_MANIFEST_H

#include "core/arena.h"
#include "core/yamlx.h"

enum ptype { PT_INT, PT_NUM, PT_BOOL, PT_STR, PT_WORD, PT_INTS, PT_NUMS, PT_STRS, PT_PATH, PT_REF, PT_REFS };

struct param_spec {
    const char *name;
    enum ptype type;
    const char *unit;         /* "tokens", "rows", ...; NULL = none */
    const char *def;          /* canonical default; NULL = must be given; "" = may be absent */
    double lo, hi;            /* bounds of numbers when lo < hi */
    const char *const *words; /* PT_WORD: NULL-terminated */
    const char *help;
    bool fan;                 /* PT_REF(S): one instance for each point of what it refers to (at most one such parameter a kind) */
    bool free;                /* not part of the key: does not change results */
    bool later;               /* its default is not part of the key: runs made before there was a choice keep theirs */
    const char *instead;      /* where this parameter, a PT_REF, is given, its run's value of the same name stands */
    bool files;               /* PT_STRS: files and folders, hashed by the key; those of this repository (experiments/...) stand by name */
    bool whole;               /* PT_REF: all of the run matters (its scores), not the identity that a by_content kind shows */
};

struct node;
struct run;
struct hash_cache;
struct stage_cost {
    int64_t tokens;
    double flops, memory_bytes, seconds; /* seconds 0 = unknown */
    double act_bytes;                    /* of memory_bytes: what lives for a step, activations above all; the rest stays */
    double read_bytes;                   /* by decoding, which the memory bounds: its time is added to that of the FLOPs */
    bool assumed;                        /* the rate behind `seconds` was not measured with runs of this kind */
    int64_t more_runs;                   /* a run of this stage may have to be made so many times more before it is done */
};
struct stage_kind {
    const char *name, *about;
    int version; /* raised when outputs change for the same parameters */
    const struct param_spec *params;
    size_t n_params;
    bool by_content; /* dependants see the identity written to out/identity.txt, not the key: equal layer sets are trained once */
    int (*plan)(void *env, const struct node *n, struct stage_cost *out, struct err *e); /* may be NULL */
    int (*run)(void *env, const struct node *n, struct run *r, struct err *e);           /* r is open; resumable */
    bool (*host)(const struct node *n); /* whether this run computes on the host alone, whatever devices there are; NULL: no run does */
};
struct registry {
    const struct stage_kind *const *kinds;
    size_t n;
    void *env;
    /* Report kinds that the caller can make (names checked in the manifest). */
    const char *const *report_kinds;
    size_t n_report_kinds;
    /* Where a path that a manifest names lies when it is not below the current folder (bundled files): 0 and dst, or -1. May be NULL. */
    int (*locate)(const char *path, char dst[1024]);
    struct hash_cache *hashes; /* of inputs, shared by plans (plan.h); NULL: every plan hashes its own */
};
const struct stage_kind *registry_find(const struct registry *r, const char *name);

struct setting {
    const char *name, *value; /* canonical */
    const struct ynode *at;
};
struct stage {
    const char *id;
    const struct stage_kind *kind;
    struct setting *set; /* one per parameter of the kind, value NULL = absent */
    struct setting *matrix; /* name, value = list joined by "|" */
    size_t n_matrix;
    struct setting *points; /* rows of `points`: each value = "name=value|name=value" */
    size_t n_points;
    const char *label; /* how tables call it; default: id */
    const struct ynode *at;
    bool skipped; /* at this scale */
    bool borrow;  /* never run here: its results are shown when another manifest has made them */
    bool base;    /* of a manifest that this one builds on: run only when something here needs it */
};
struct report {
    const char *kind, *name, *title;
    const struct ynode *node; /* its own parameters: read by the maker of the report */
};
struct input {
    const char *name, *path, *sha256; /* sha256 "" = not pinned */
    const char *get;                  /* how a user comes by it; "" = it is bundled */
    const struct ynode *at;
};
struct check { /* experiments/checks.h says what they mean; "" = not given */
    const char *table, *row, *column, *above, *against;
    const struct ynode *at;
    bool has_min, has_max;
    double min, max, within;
};
struct manifest {
    struct arena arena;
    struct ydoc doc;
    const char *path, *name, *title, *scale, *caption;
    const char *dtype;  /* what a GPU computes in at this scale; "" = not said */
    const char **parts; /* of a collection: the manifests that it holds, in order; it has nothing else */
    size_t n_parts;
    struct input *inputs;
    size_t n_inputs;
    struct stage *stages;
    size_t n_stages;
    struct report *reports;
    size_t n_reports;
    struct check *checks; /* those of this scale */
    size_t n_checks;
};

/* Reads and types a manifest at one scale. All its errors at once (E_USAGE). */
int manifest_load(struct manifest *m, const char *path, const char *scale, const struct registry *reg, struct err *e);
void manifest_free(struct manifest *m);
/* The schema, for people. */
void manifest_schema(struct str *out, const struct registry *reg);

/* Canonical form of one value; on failure says why in `why` and returns NULL. */
const char *param_canon(struct arena *a, const struct param_spec *p, const char *text, char why[256]);

#endif
