#include "model/batch.h"

#include <stdlib.h>
#include <string.h>

int batch_open(struct batch *b, struct backend *be, int64_t max_rows, int32_t max_seqs, struct err *e)
{
    *b = (struct batch){.be = be, .max_rows = max_rows, .max_seqs = max_seqs};
    b->h_mem = calloc((size_t)(2 * max_rows + max_seqs + 1), sizeof *b->h_mem);
    if (!b->h_mem)
        return err_nomem(e, (size_t)(2 * max_rows + max_seqs + 1) * sizeof *b->h_mem, "a batch");
    if (be_view(be, DT_I32, max_rows, &b->mem_ids, e) != 0 || be_view(be, DT_I32, max_rows, &b->mem_pos, e) != 0 ||
        be_view(be, DT_I32, max_seqs + 1, &b->mem_off, e) != 0) {
        batch_close(b);
        return -1;
    }
    b->h_ids = b->h_mem;
    b->h_pos = b->h_mem + max_rows;
    b->seqs.q_off = b->h_mem + 2 * max_rows;
    return 0;
}

void batch_close(struct batch *b)
{
    if (b->be) {
        be_view_free(b->be, &b->mem_ids);
        be_view_free(b->be, &b->mem_pos);
        be_view_free(b->be, &b->mem_off);
    }
    free(b->h_mem);
    *b = (struct batch){0};
}

int batch_set(struct batch *b, int32_t n, const int32_t *const *tok, const int32_t *len, const int32_t *start, int64_t vocab, struct err *e)
{
    int64_t rows = 0;
    for (int32_t i = 0; i < n; i++)
        rows += len[i];
    if (n < 1 || n > b->max_seqs || rows > b->max_rows)
        BUG("batch of %d sequences, %" PRId64 " rows in one for %d, %" PRId64, (int)n, rows, (int)b->max_seqs, b->max_rows);
    int32_t *ids = b->h_mem, *pos = b->h_mem + b->max_rows, *off = b->h_mem + 2 * b->max_rows;
    int64_t r = 0;
    for (int32_t i = 0; i < n; i++) {
        if (len[i] < 1)
            BUG("sequence %d of a batch has %d tokens", (int)i, (int)len[i]);
        off[i] = (int32_t)r;
        for (int32_t t = 0; t < len[i]; t++, r++) {
            if (tok[i][t] < 0 || tok[i][t] >= vocab)
                return ERR(e, E_INPUT, "token id %d at position %d of sequence %d is outside the vocabulary of %" PRId64, (int)tok[i][t],
                           (int)t, (int)i, vocab);
            ids[r] = tok[i][t];
            pos[r] = (start ? start[i] : 0) + t;
        }
    }
    off[n] = (int32_t)r;
    b->ids = view_at(b->mem_ids, 0, rows);
    b->pos = view_at(b->mem_pos, 0, rows);
    b->seqs.n = n;
    b->seqs.rows = rows;
    b->seqs.d_q_off = view_at(b->mem_off, 0, n + 1);
    be_put(b->be, b->ids, ids);
    be_put(b->be, b->pos, pos);
    be_put(b->be, b->seqs.d_q_off, off);
    return be_sync(b->be, e);
}

int batch_fake(struct batch *b, struct backend *be, int64_t rows, int32_t seqs, struct err *e)
{
    *b = (struct batch){.max_rows = rows, .max_seqs = seqs};
    b->h_mem = calloc((size_t)(2 * rows + seqs + 1), sizeof *b->h_mem);
    if (!b->h_mem)
        return err_nomem(e, (size_t)(2 * rows + seqs + 1) * sizeof *b->h_mem, "a batch");
    UNUSED(be);
    int32_t *off = b->h_mem + 2 * rows;
    for (int32_t i = 0; i < seqs; i++) /* one long sequence after many of one token: the most chunks that so many rows can have */
        off[i] = i;
    off[seqs] = (int32_t)rows;
    b->h_ids = b->h_mem;
    b->h_pos = b->h_mem + rows;
    b->ids = (struct view){b->h_mem, DT_I32, rows}; /* never touched: the backend does nothing */
    b->pos = (struct view){b->h_mem + rows, DT_I32, rows};
    b->seqs = (struct seqs){.n = seqs, .rows = rows, .q_off = off, .d_q_off = {off, DT_I32, seqs + 1}};
    return 0;
}
