/* What the training kinds share: common parameters, and the things a stage works on, opened from a node's references. */
#ifndef CLI_STAGES_WORK_H
#define CLI_STAGES_WORK_H

#include "cli/stages.h"
#include "dash/selection.h"
#include "dash/stream.h"
#include "model/trainer.h"

extern const char *const positions_words[3], *const schedule_words[4];
int word_at(const char *const *words, const char *s); /* index; 0 when it is none of them */

#define P_MODEL {.name = "model", .type = PT_REF, .help = "the teacher: a model folder, .gguf file or input"}
#define P_DATA {.name = "data", .type = PT_REF, .help = "token shard (data pack)"}
#define P_HIDDEN {.name = "hidden", .type = PT_REF, .def = "", .help = "teacher hidden rows of this shard (computed on the fly without)", .free = true}
#define P_LINEAR {.name = "linear", .type = PT_REF, .help = "a Stage-1 run"}
#define P_ROWS                                                                                                                                            \
    {.name = "row_lo", .type = PT_INT, .unit = "rows", .def = "0", .lo = 0, .hi = 1e9, .help = "first row of the shard in use"},                        \
    {.name = "row_hi", .type = PT_INT, .unit = "rows", .def = "0", .lo = 0, .hi = 1e9, .help = "end of the rows in use; 0 = all but the held-out ones"}, \
    {.name = "heldout", .type = PT_INT, .unit = "rows", .def = "16", .lo = 1, .hi = 1e6, .help = "the shard's last rows, never trained on"}
#define P_ADAM(lr_rest, lr_mixer, wd_def)                                                                                                                 \
    {.name = "lr", .type = PT_NUM, .def = lr_rest, .lo = 0, .hi = 10, .help = "learning rate, parameters outside the mixers"},                           \
    {.name = "lr_mixer", .type = PT_NUM, .def = lr_mixer, .lo = 0, .hi = 10, .help = "learning rate of the mixers and the norms before them"},          \
    {.name = "beta1", .type = PT_NUM, .def = "0.9", .lo = 0, .hi = 0.9999, .help = "AdamW"},                                                              \
    {.name = "beta2", .type = PT_NUM, .def = "0.95", .lo = 0, .hi = 0.99999, .help = "AdamW"},                                                            \
    {.name = "eps", .type = PT_NUM, .def = "1e-08", .lo = 0, .hi = 1, .help = "AdamW"},                                                                   \
    {.name = "wd", .type = PT_NUM, .def = wd_def, .lo = 0, .hi = 1, .help = "weight decay (not on norms, A_log, dt_bias)"},                               \
    {.name = "clip", .type = PT_NUM, .def = "1.0", .lo = 0, .hi = 1e6, .help = "gradient norm clip, 0 = none"},                                           \
    {.name = "warmup", .type = PT_INT, .unit = "steps", .def = "0", .lo = 0, .hi = 1e6, .help = "linear warm-up"},                                        \
    {.name = "lr_end", .type = PT_NUM, .def = "0.0", .lo = 0, .hi = 1, .help = "end of a falling schedule, as a factor of the peak"}
#define P_BATCH(b)                                                                                                                                        \
    {.name = "batch", .type = PT_INT, .unit = "rows", .def = b, .lo = 1, .hi = 65536, .help = "rows of one update"},                                      \
    {.name = "micro", .type = PT_INT, .unit = "rows", .def = "4", .lo = 1, .hi = 64, .help = "rows computed at once"}
#define P_SEED {.name = "seed", .type = PT_INT, .def = "42", .lo = 0, .hi = 4294967295.0, .help = "data order and initialisation"}
#define P_CKPT {.name = "ckpt_every", .type = PT_INT, .unit = "steps", .def = "20", .lo = 0, .hi = 1e9, .help = "checkpoint interval", .free = true}
#define P_RECOMPUTE                                                                                                                                      \
    {.name = "recompute", .type = PT_BOOL, .def = "", \
     .help = "activations are computed again in the backward instead of kept: less memory, the same results", .free = true}
#define P_POSITIONS {.name = "positions", .type = PT_WORD, .def = "all", .words = positions_words, .help = "positions whose KL counts (all: the paper's)"}

struct work {
    struct model *teacher;
    struct shard data;
    struct hcache cache, *hidden;
    struct linset *lin;
    int64_t row_lo, row_hi, heldout;
};
/* data, hidden, lin: which of them the stage takes. */
int work_open(struct work *w, struct env *env, const struct node *n, bool data, bool hidden, bool lin, struct err *e);
/* Rows in use and held out, from row_lo, row_hi, heldout. */
int work_rows(struct work *w, const struct node *n, struct err *e);
void work_close(struct work *w);
/* Updates for a number of tokens, by the mean row length of the rows in use; at least one (0 for no tokens). */
int64_t work_steps(const struct work *w, int64_t tokens, int64_t batch);
/* What a training stage's parameters say; both learning rates are `lr` unless the kind has `lr_mixer`. Long trainings keep the best. */
void work_train_opts(struct train_opts *o, const struct node *n, const struct work *w, const struct run *r, const char *stage,
                     int64_t tokens, const char *metrics);
/* result.json: the best checkpoint's step and held-out loss, where one is kept. */
void work_put_best(struct result *res, const struct train_opts *o, const struct train_result *t);
/* out/selection.json and out/identity.txt, and what result.json says of them; res is begun, and saved here. */
int save_selection(const struct selection *s, struct run *r, struct result *res, struct err *e);

#endif
