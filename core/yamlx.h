/*
 * YAML reading over libyaml into a node tree with positions. No anchors, aliases, tags, merges, multi-documents; duplicate keys are errors.
 * Scalars stay strings with their quoting style: the schema types them, not YAML.
 */
#ifndef CORE_YAMLX_H
#define CORE_YAMLX_H

#include "core/arena.h"
#include "core/str.h"

enum ynode_kind { Y_SCALAR, Y_SEQ, Y_MAP };
struct ynode {
    enum ynode_kind kind;
    int line, col;          /* 1-based */
    const char *s;          /* scalar text */
    bool quoted;
    size_t n;               /* items of a sequence, pairs of a map */
    struct ynode **item;    /* sequence items, or map values */
    struct ynode **key;     /* map keys (scalars) */
};
struct ydoc {
    struct ynode *root;
    const char *file;
    const char *text;       /* for the source excerpt in messages */
    size_t text_len;
};
int ydoc_parse(struct ydoc *d, struct arena *a, const char *name, const char *text, size_t n, struct err *e);
int ydoc_load(struct ydoc *d, struct arena *a, const char *path, struct err *e);
/* Value of key in a map, or NULL. */
const struct ynode *y_get(const struct ynode *map, const char *key);

/* Collects up to 20 problems and reports them in one error, each "FILE:LINE:COL: error: MSG" with the source line and a caret under it. */
struct yproblems {
    const struct ydoc *doc;
    struct str *out; /* owned by the caller */
    int n;
};
void y_problem(struct yproblems *p, const struct ynode *at, const char *fmt, ...) PRINTF_LIKE(3, 4);
int y_finish(struct yproblems *p, struct err *e); /* E_USAGE when n > 0 */

#endif
