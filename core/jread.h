/*
 * JSON reading over jansson: duplicate keys, NaN, trailing bytes and depth over 64 refused; errors carry file:line:column. Getters name the
 * path ("config.json: rope_scaling.factor: expected a number, found a string"). `struct jdoc` owns the tree; nodes are borrowed jansson
 * values.
 */
#ifndef CORE_JREAD_H
#define CORE_JREAD_H

#include <jansson.h>

#include "core/err.h"

struct jdoc {
    json_t *root;
    char file[256]; /* shown in messages */
};
int jdoc_parse(struct jdoc *d, const char *name, const char *text, size_t n, struct err *e);
int jdoc_load(struct jdoc *d, const char *path, size_t max_bytes, struct err *e);
void jdoc_free(struct jdoc *d);

/* Typed getters on an object node. `where` is the path of obj for messages ("" at the root). The plain form demands the key; _opt leaves
 *out alone and returns 0 when the key is absent or null. */
int jget_i64(const struct jdoc *d, const json_t *obj, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *out,
             struct err *e);
int jget_i64_opt(const struct jdoc *d, const json_t *obj, const char *where, const char *key, int64_t lo, int64_t hi, int64_t *out,
                 struct err *e);
int jget_f64(const struct jdoc *d, const json_t *obj, const char *where, const char *key, double *out, struct err *e);
int jget_f64_opt(const struct jdoc *d, const json_t *obj, const char *where, const char *key, double *out, struct err *e);
int jget_bool_opt(const struct jdoc *d, const json_t *obj, const char *where, const char *key, bool *out, struct err *e);
int jget_str(const struct jdoc *d, const json_t *obj, const char *where, const char *key, const char **out, struct err *e);
int jget_str_opt(const struct jdoc *d, const json_t *obj, const char *where, const char *key, const char **out, struct err *e);
int jget_obj(const struct jdoc *d, const json_t *obj, const char *where, const char *key, const json_t **out, struct err *e);
int jget_arr(const struct jdoc *d, const json_t *obj, const char *where, const char *key, const json_t **out, struct err *e);

#endif
