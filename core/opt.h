/*
 * Declarative command-line options: `--name VALUE`, `--name=VALUE`, `--flag`, `--no-flag`. Exact spelling; a value that starts with "--"
 * must be attached with '='. Help, errors (with the nearest option) and defaults come from the same table.
 */
#ifndef CORE_OPT_H
#define CORE_OPT_H

#include "core/err.h"

enum opt_type { OPT_BOOL, OPT_I64, OPT_F64, OPT_STR, OPT_LIST /* repeatable: const char *v[16] + count */ };
struct opt_list {
    const char *v[64];
    size_t n;
};
struct opt {
    const char *name; /* without dashes */
    enum opt_type type;
    void *dst;       /* bool *, int64_t *, double *, const char **, struct opt_list *; its value on entry is the default shown in help */
    const char *arg; /* placeholder in help: "N", "PATH"; NULL for bool */
    const char *help;
    const char *group;        /* heading in help */
    double lo, hi;            /* bounds for numbers when lo < hi */
    const char *const *words; /* allowed values of OPT_STR, NULL-terminated, or NULL */
    bool multi;               /* OPT_LIST: takes all following words up to the next option */
};
/* Parses argv[0..argc-1] (no program name). Positionals go to pos (at most max_pos). `--` ends options. Errors are E_USAGE. */
int opt_parse(const struct opt *opts, size_t n_opts, int argc, char **argv, const char **pos, size_t max_pos, size_t *n_pos, struct err *e);
/* Whether the option was given on the command line of the last parse into this table. */
bool opt_given(const struct opt *opts, size_t n_opts, int argc, char **argv, const char *name);
/* Help text into out: synopsis, description, options by group with defaults. */
struct str;
void opt_help(struct str *out, const char *synopsis, const char *about, const char *examples, const struct opt *opts, size_t n_opts);

#endif
