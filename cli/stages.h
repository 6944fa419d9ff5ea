/*
 * The stage kinds: what a manifest's stages and the one-step commands run. Each kind is a schema (parameters with units and bounds), a
 * cost estimate and a run function; flags of the commands are made from the same schema, so a manifest and a command line can say the
 * same things.
 */
#ifndef CLI_STAGES_H
#define CLI_STAGES_H

#include "cli/cli.h"
#include "core/jwrite.h"
#include "experiments/plan.h"
#include "model/model.h"

/* What runs share inside one process: the backend (opened on first use) and the models last opened. */
struct env {
    const struct common *common;
    struct cli_rt rt;
    struct model *teacher;
    char teacher_path[1024];
    struct tok *tok; /* the tokenizer last opened by itself */
    char tok_path[1024];
    bool estimate;  /* plans with FLOPs and memory (dry runs, check) */
    bool by_name;   /* ... also of a checkpoint that is not there, by the shape its folder is called by */
    bool recompute; /* ... as if every stage that can computed its activations again */
    double rate;      /* FLOP/s for their times, 0 = unknown */
    double bandwidth; /* bytes/s that decoding reads its weights and caches at, 0 = unknown */
    struct stage_rate {
        char kind[16]; /* "*": every other */
        double rate;
        bool measured;
    } rates[24]; /* instead: of a named device, by kind of stage */
    size_t n_rates;
    char rates_about[1600]; /* where they come from, what is measured and what is assumed */
};
extern const struct stage_kind kind_ruler_gen, kind_pack, kind_hidden, kind_align, kind_select, kind_search, kind_distill, kind_ruler,
    kind_lmeval, kind_landscape, kind_passkey, kind_infer, kind_train;
extern const struct stage_kind *const stage_kinds[];
extern const size_t n_stage_kinds;
extern const char *const report_kinds[];
extern const size_t n_report_kinds;
void registry_init(struct registry *r, struct env *env);

int env_backend(struct env *env, struct err *e);
/* The teacher at this path, kept open for the next stage. */
int env_teacher(struct env *env, const char *path, struct model **out, struct err *e);
/* The tokenizer of a model, without its weights. */
int env_tok(struct env *env, const char *path, const struct tok **out, struct err *e);
void env_close(struct env *env);
/* A model path as users give it: a folder or file, or a run directory whose out/ holds a model. */
const char *model_path(const char *given, char dst[1024]);

/* The `host` hook of kinds that never use a device. */
bool stage_on_host(const struct node *n);

/* result.json of a run. */
struct result {
    struct str text;
    struct jw w;
};
void result_begin(struct result *r);
int result_save(struct result *r, const struct run *run, struct err *e);

/* Its command, one of `data`. */
int data_passkey(int argc, char **argv, struct err *e);
/* Prints the manifest of one stage, its references as inputs: `dashlab reproduce` makes the run that these values make by flags. */
int stage_manifest(const char *kind, const struct flag_value *v, size_t n, const struct common *c, struct err *e);
/* Runs one kind from flags: options made from its schema, --out RUN, --print-manifest, --dry-run, --force. */
int cli_stage(const struct stage_kind *k, const char *command, const char *about, const char *examples, int argc, char **argv,
              struct err *e);

#endif
