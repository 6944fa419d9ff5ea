/* Sequences packed one after another (no padding) with ids and positions on the device. Made once for the largest batch, set many times. */
#ifndef MODEL_BATCH_H
#define MODEL_BATCH_H

#include "kernels/backend.h"

struct batch {
    struct backend *be;
    int64_t max_rows;
    int32_t max_seqs;
    struct seqs seqs;             /* seqs.rows, seqs.n: what is set now */
    struct view ids, pos;         /* i32 [rows] on the device, cut to the rows in use */
    const int32_t *h_ids, *h_pos; /* the same on the host */
    struct view mem_ids, mem_pos, mem_off;
    int32_t *h_mem;
};
int batch_open(struct batch *b, struct backend *be, int64_t max_rows, int32_t max_seqs, struct err *e);
void batch_close(struct batch *b);
/* n sequences: tok[i][0..len[i]-1], len >= 1, at positions start[i].. (start NULL: 0). Ids outside 0..vocab-1 are E_INPUT; too many rows or
 * sequences BUG. */
int batch_set(struct batch *b, int32_t n, const int32_t *const *tok, const int32_t *len, const int32_t *start, int64_t vocab,
              struct err *e);
/* The worst shape that fits, without data, for measuring (a device of any kind; nothing is uploaded). */
int batch_fake(struct batch *b, struct backend *be, int64_t rows, int32_t seqs, struct err *e);

#endif
