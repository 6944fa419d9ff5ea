/*
 * Files that a training keeps: tensors "w.NAME", "m.NAME", "v.NAME" (weights, moments) and counters in the metadata. Between trainer.c and
 * trainer_state.c alone.
 *
 * In one file, DIR/NAME.safetensors, or in parts that are each at most part_bytes large, headers included, so that they pass through
 * channels with a limit: a folder DIR/NAME-STEP with model.safetensors or model-0000k-of-0000n.safetensors and their index, written last. A
 * tensor that is larger than a part is cut into pieces "w.NAME#0", "w.NAME#1", ... The newest complete folder counts; older ones are
 * removed once a newer one is complete.
 */
#ifndef MODEL_TRAINER_STATE_H
#define MODEL_TRAINER_STATE_H

#include "model/param.h"
#include "model/st.h"

enum train_part { TRAIN_W, TRAIN_M, TRAIN_V, TRAIN_PARTS };
#define TRAIN_PART_LEAST (2 << 20) /* smallest part_bytes: room for headers */

struct state_out {
    struct st_out *w;
    struct backend *be;
    char dir[1024], name[32], folder[64]; /* folder: in parts, its name below dir; else "" */
    int64_t piece_bytes;                  /* 0 = tensors are not cut */
};
/* part_bytes 0: one file. After a failure of any call: state_out_abort. */
int state_out_open(struct state_out *o, struct backend *be, const char *dir, const char *name, int64_t step, int64_t part_bytes,
                   struct err *e);
int state_out_f64(struct state_out *o, const char *key, double v, struct err *e);
/* The first `parts` parts of n parameters; then nothing but commit may follow. */
int state_out_params(struct state_out *o, struct param *const *p, size_t n, enum train_part parts, struct err *e);
int state_out_commit(struct state_out *o, struct err *e);
void state_out_abort(struct state_out *o);

struct state_in {
    struct st_file one;
    struct st_shards many;
    const struct st_file *file; /* of the metadata */
    bool parts;
    char path[1024];
};
bool state_there(const char *dir, const char *name);
int state_in_open(struct state_in *s, const char *dir, const char *name, struct err *e); /* E_INPUT also when there is none */
void state_in_close(struct state_in *s);
double state_in_f64(const struct state_in *s, const char *key); /* 0 when absent */
/* One part of a parameter. TRAIN_W without optimiser state goes into the weights themselves. */
int state_in_take(const struct state_in *s, struct backend *be, const struct param *p, enum train_part part, struct err *e);

#endif
