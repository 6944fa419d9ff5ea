/* Between the cfg_*.c files alone: parts of config.json shared by the Hugging Face and the fla form. */
#ifndef MODEL_CFG_INT_H
#define MODEL_CFG_INT_H

#include "core/jread.h"
#include "model/cfg.h"

#define CFG_MAX_BYTES (16u << 20)

/* 0.1 ln(factor) + 1 for factor > 1, else 1. */
double cfg_yarn_attention_factor(double factor);
void cfg_rope_plain(struct mcfg_rope *r, double theta);
/* An object with rope_type (or type) and its numbers, rope_theta too. NULL or JSON null = plain. */
int cfg_read_rope(struct mcfg *c, const struct jdoc *d, const json_t *obj, const char *where, struct err *e);
/* bos, eos, pad. */
int cfg_read_ids(struct mcfg *c, const struct jdoc *d, const json_t *root, struct err *e);
/* SiLU and nothing else. */
int cfg_read_act(const struct jdoc *d, const json_t *root, struct err *e);
int cfg_read_fla(struct mcfg *c, const struct jdoc *d, struct err *e);
bool cfg_is_set(const json_t *obj, const char *key); /* there and not null */
void cfg_add_eos(struct mcfg *c, int64_t id);        /* once; dropped when the list is full */

#endif
