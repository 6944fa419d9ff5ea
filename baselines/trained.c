/* What the trained selectors share. */
#include "baselines/trained.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

int64_t train_steps(const struct shard *s, int64_t lo, int64_t hi, int64_t tokens, int64_t batch)
{
    double sum = 0;
    for (int64_t r = lo; r < hi; r++)
        sum += s->len[r];
    double per_step = sum / (double)(hi - lo) * (double)batch;
    return tokens == 0 ? 0 : MAX((int64_t)1, (int64_t)floor((double)tokens / per_step + 0.5));
}

double kl_of(const struct kl_sums *k, enum positions pos)
{
    return pos == POS_ALL ? k->all / fmax(k->n_all, 1) : k->answers / fmax(k->n_answers, 1);
}

int select_train_check(const struct select_input *in, int64_t *row_hi, struct err *e)
{
    const struct select_train *t = in->train;
    if (!t)
        return ERR(e, E_USAGE, "select: this method trains and needs its training parameters");
    if (t->batch < 1 || in->micro < 1 || in->micro > 64)
        return ERR(e, E_USAGE, "select: batch %" PRId64 " must be positive, micro-batch %" PRId64 " in 1..64", t->batch, in->micro);
    *row_hi = in->data->rows - t->heldout;
    if (t->heldout < 1 || *row_hi < 1)
        return ERR(e, E_USAGE, "select: %" PRId64 " held-out rows of %" PRId64 " leave none to train on, or are none", t->heldout,
                   in->data->rows);
    if (in->positions == POS_ANSWERS && in->data->answer_tokens == 0)
        return ERR(e, E_USAGE, "select: positions 'answers', but '%s' has no answer tokens", in->data->dir);
    return 0;
}

void variant_add(struct selection *s, const char *text)
{
    size_t n = strlen(s->variant);
    snprintf(s->variant + n, sizeof s->variant - n, "%s%s", n ? ", " : "", text);
}
