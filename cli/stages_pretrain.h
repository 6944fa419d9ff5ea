/* Stage kind `train`: what others need of it. */
#ifndef CLI_STAGES_PRETRAIN_H
#define CLI_STAGES_PRETRAIN_H

#include "cli/stages.h"

/* Configuration of the model that a train stage makes; opens its tokenizer for the vocabulary and the end-of-text id. mcfg_free it. */
int pretrain_cfg(const struct node *n, struct mcfg *c, struct err *e);

#endif
