/*
 * What the commands on whole manifests share: a manifest, or a collection of them, read at one scale and planned over one folder of runs
 * with one backend; and the making of reports.
 */
#ifndef CLI_REPRO_H
#define CLI_REPRO_H

#include "cli/stages.h"

struct part { /* one manifest */
    const char *path;
    struct manifest m;
    struct plan p;
};
struct repro {
    struct common c;
    char named[96]; /* what a bare name stands for */
    const char *manifest, *scale, *only, *out, *runs, *limit; /* limit: --memory-limit, NULL = none */
    bool estimate;   /* plans with FLOPs and memory */
    double gflops;   /* rate of the estimated times; 0 = measured now */
    const char *gpu; /* or the rates that were measured on this device (experiments/rates.tsv); NULL = none */
    struct env env;
    struct registry reg;
    struct hash_cache hashes;
    struct manifest all; /* the collection itself; without one, empty */
    struct part *part;
    const struct plan **plans; /* [n_parts] */
    size_t n_parts;
};
extern const char *const scale_words[];

#define REPRO_OPTS(r)                                                                                                                      \
    {.name = "scale",                                                                                                                      \
     .type = OPT_STR,                                                                                                                      \
     .dst = &(r)->scale,                                                                                                                   \
     .arg = "SCALE",                                                                                                                       \
     .words = scale_words,                                                                                                                 \
     .help = "ci, tiny, small or paper",                                                                                                   \
     .group = "Manifest"},                                                                                                                 \
        {.name = "runs",                                                                                                                   \
         .type = OPT_STR,                                                                                                                  \
         .dst = &(r)->runs,                                                                                                                \
         .arg = "DIR",                                                                                                                     \
         .help = "run directories, shared by all manifests",                                                                               \
         .group = "Manifest"},                                                                                                             \
    {                                                                                                                                      \
        .name = "out", .type = OPT_STR, .dst = &(r)->out, .arg = "DIR", .help = "tables and figures", .group = "Manifest"                  \
    }
#define MEMORY_OPT(r)                                                                                                                      \
    {.name = "memory-limit", .type = OPT_STR, .dst = &(r)->limit, .arg = "SIZE",                                                           \
     .help = "refuse a stage that needs more, e.g. 40GiB; default: what the device has", .group = "Manifest"}
#define REPRO_INIT                                                                                                                         \
    {                                                                                                                                      \
        .c = COMMON_INIT, .scale = "tiny", .only = "", .out = "results", .runs = "runs"                                                    \
    }

/* r's first fields are set by options. On failure nothing stays open. */
int repro_open(struct repro *r, struct err *e);
void repro_close(struct repro *r);
const char *repro_name(const struct repro *r); /* of the manifest or the collection */
/* The only manifest, for commands that take no collection; E_USAGE names them. */
int repro_single(struct repro *r, const char *command, struct part **out, struct err *e);

/* results/NAME/SCALE of a manifest */
char *repro_results(char dst[1024], const struct repro *r, const struct part *t);
/* The reports of one manifest and the page over all results; *missing: cells that are not there; the verdicts, joined, into verdict. */
int repro_reports(struct repro *r, struct part *t, bool print, int *missing, struct str *verdict, struct err *e);
/* Its checks on the finished tables: a line each, the count into the verdict, *broken how many do not hold. */
int repro_checks(struct repro *r, struct part *t, bool print, int *broken, struct str *verdict, struct err *e);
/* Whether repro_open failed because the manifest, or every one of the collection, has no such scale. */
bool repro_lacks_scale(const struct err *e);
/* E_INPUT, with the path and how to come by it, when no run that is to be made can be made for want of an input. */
int repro_stuck(const struct repro *r, const struct part *t, struct err *e);
/* Runs what is missing of one manifest and makes its reports; prints both, or one JSON object into `json` when that is not NULL. Errors:
 * the first failed stage's, or E_CHECK; session may be NULL. */
struct repro_how {
    bool force, wait, no_reports;
    struct run_session *session;
    struct jw *json;
};
int repro_run(struct repro *r, struct part *t, const struct repro_how *how, struct err *e);
/* The summary of a command that ran stages alone, as JSON on stdout. */
void repro_print_json(const struct part *t, const struct plan_summary *s, const char *verdict);

#endif
