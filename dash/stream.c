/* Teacher hidden rows and the KL between student and teacher. */
#include "dash/stream.h"

#include <stdlib.h>
#include <string.h>

#include "core/jread.h"
#include "core/jwrite.h"
#include "core/prog.h"
#include "core/prov.h"
#include "kernels/ops.h"

/* ---- cache ---- */

int hcache_make(const char *dir, struct model *teacher, const struct shard *s, int64_t micro, struct err *e)
{
    struct stream st;
    struct file_out f;
    char path[1024];
    const char *hash;
    int64_t D = teacher->cfg.d;
    TRY(model_hash(teacher, &hash, e));
    TRY(stream_open(&st, teacher->be, s, teacher, NULL, micro, 1, e));
    if (out_open(&f, path_join(path, dir, "hidden.f32"), e) != 0) {
        stream_close(&st);
        return -1;
    }
    static const float zero[256];
    struct prog bar;
    prog_start(&bar, "teacher hidden rows", "tok", s->rows * s->seq);
    int rc = 0;
    for (int64_t r = 0; rc == 0 && r < s->rows; r += micro) {
        int64_t rows[64], n = MIN(MIN(micro, 64), s->rows - r);
        for (int64_t i = 0; i < n; i++)
            rows[i] = r + i;
        rc = stream_set(&st, rows, (int)n, e);
        if (rc == 0)
            rc = get_f32(st.be, st.host, view_at(st.t_hidden, 0, st.batch.seqs.rows * D), e);
        for (int64_t i = 0; rc == 0 && i < n; i++) {
            out_write(&f, st.host + (int64_t)st.batch.seqs.q_off[i] * D, (size_t)s->len[r + i] * (size_t)D * sizeof(float));
            for (int64_t left = (s->seq - s->len[r + i]) * D; left > 0; left -= 256)
                out_write(&f, zero, (size_t)MIN(left, 256) * sizeof(float));
        }
        prog_update(&bar, (r + n) * s->seq, NULL);
        if (rc == 0 && interrupted())
            rc = ERR(e, E_INTERRUPTED, "interrupted while computing the teacher's hidden rows");
    }
    prog_end(&bar);
    stream_close(&st);
    if (rc != 0) {
        out_abort(&f);
        return -1;
    }
    TRY(out_commit(&f, e));
    struct str j = STR_INIT;
    struct jw w;
    jw_init(&w, &j, true);
    jw_obj(&w);
    jw_ki64(&w, "rows", s->rows);
    jw_ki64(&w, "seq", s->seq);
    jw_ki64(&w, "dim", D);
    jw_kstr(&w, "shard_sha256", s->sha256);
    jw_kstr(&w, "teacher_sha256", hash);
    jw_end_obj(&w);
    str_putc(&j, '\n');
    rc = file_write(path_join(path, dir, "hidden.json"), str_c(&j), j.len, e);
    str_free(&j);
    return rc;
}

int hcache_open(struct hcache *h, const char *dir, const struct shard *s, const struct model *teacher, struct err *e)
{
    char path[1024];
    struct jdoc d;
    const char *sh = NULL, *th = NULL;
    *h = (struct hcache){0};
    TRY(jdoc_load(&d, path_join(path, dir, "hidden.json"), 1 << 16, e));
    int rc = jget_i64(&d, d.root, "", "rows", 1, INT32_MAX, &h->rows, e) || jget_i64(&d, d.root, "", "seq", 1, INT32_MAX, &h->seq, e) ||
             jget_i64(&d, d.root, "", "dim", 1, INT32_MAX, &h->dim, e) || jget_str(&d, d.root, "", "shard_sha256", &sh, e) ||
             jget_str(&d, d.root, "", "teacher_sha256", &th, e);
    if (rc == 0 && (strcmp(sh, s->sha256) || h->rows != s->rows || h->seq != s->seq))
        rc = ERR(e, E_INPUT, "'%s': the hidden rows were made from another token shard (sha256 %.12s..., here %.12s...)", dir, sh,
                 s->sha256);
    if (rc == 0 && (h->dim != teacher->cfg.d || (teacher->sha256[0] && strcmp(th, teacher->sha256))))
        rc = ERR(e, E_INPUT, "'%s': the hidden rows were made by another teacher (sha256 %.12s..., width %" PRId64 ")", dir, th, h->dim);
    jdoc_free(&d);
    if (rc == 0)
        rc = map_open(&h->map, path_join(path, dir, "hidden.f32"), e);
    size_t want = (size_t)h->rows * (size_t)h->seq * (size_t)h->dim * sizeof(float);
    if (rc == 0 && h->map.len != want) {
        rc = ERR(e, E_INPUT, "'%s': %zu bytes, expected %zu", path, h->map.len, want);
        map_close(&h->map);
    }
    return rc ? -1 : 0;
}

void hcache_close(struct hcache *h)
{
    if (h->map.p)
        map_close(&h->map);
    *h = (struct hcache){0};
}

/* ---- stream ---- */

int stream_open(struct stream *s, struct backend *be, const struct shard *shard, struct model *teacher, const struct hcache *cache,
                int64_t micro, double tau, struct err *e)
{
    *s = (struct stream){.be = be, .shard = shard, .teacher = teacher, .cache = cache, .tau = tau, .max_rows = micro * shard->seq};
    int64_t R = s->max_rows, D = teacher->cfg.d;
    if (shard->vocab > teacher->cfg.N)
        return ERR(e, E_INPUT, "'%s' was made for a vocabulary of %" PRId64 ", the model has %" PRId64, shard->dir, shard->vocab,
                   teacher->cfg.N);
    s->host = malloc((size_t)R * (size_t)D * sizeof *s->host);
    s->host_kl = malloc((size_t)R * sizeof *s->host_kl);
    if (!s->host || !s->host_kl) {
        stream_close(s);
        return err_nomem(e, (size_t)R * (size_t)D * sizeof *s->host, "staging rows");
    }
    struct acts_opts ao = {.rows = R, .seqs = (int32_t)micro};
    if (batch_open(&s->batch, be, R, (int32_t)micro, e) || be_view(be, be->act, R * D, &s->t_hidden, e) ||
        be_view(be, be->stat, R, &s->w, e) || be_view(be, be->stat, R, &s->kl, e) || be_view(be, be->act, R * D, &s->dh, e) ||
        (!cache && acts_open(&s->t_acts, teacher, &ao, e))) {
        stream_close(s);
        return -1;
    }
    return 0;
}

void stream_close(struct stream *s)
{
    free(s->host);
    free(s->host_kl);
    if (s->be) {
        be_view_free(s->be, &s->t_hidden);
        be_view_free(s->be, &s->w);
        be_view_free(s->be, &s->kl);
        be_view_free(s->be, &s->dh);
        if (s->t_acts.layer)
            acts_close(&s->t_acts);
        if (s->batch.be)
            batch_close(&s->batch);
    }
    *s = (struct stream){0};
}

static bool answer_next(const struct shard *s, int64_t row, int64_t t)
{
    return t + 1 < s->len[row] && (s->mask[row * s->seq + t + 1] & TOK_ANSWER);
}

bool stream_counts(const struct shard *s, int64_t row, int64_t t, enum positions pos)
{
    return pos == POS_ALL || answer_next(s, row, t);
}

double stream_weight(const struct shard *s, int64_t row, enum positions pos)
{
    if (pos == POS_ALL)
        return s->len[row];
    double n = 0;
    for (int64_t t = 0; t < s->len[row]; t++)
        n += answer_next(s, row, t);
    return n;
}

int stream_set(struct stream *s, const int64_t *rows, int n, struct err *e)
{
    const int32_t *tok[64];
    int32_t len[64];
    int64_t D = s->teacher->cfg.d;
    if (n < 1 || n > 64)
        BUG("%d rows in a micro-batch (1..64)", n);
    for (int i = 0; i < n; i++) {
        tok[i] = s->shard->ids + rows[i] * s->shard->seq;
        len[i] = s->shard->len[rows[i]];
    }
    TRY(batch_set(&s->batch, n, tok, len, NULL, s->teacher->cfg.N, e));
    s->fwd_tokens += (double)s->batch.seqs.rows;
    if (s->cache) {
        for (int i = 0; i < n; i++)
            memcpy(s->host + (int64_t)s->batch.seqs.q_off[i] * D, s->cache->map.p + (size_t)(rows[i] * s->shard->seq * D) * sizeof(float),
                   (size_t)len[i] * (size_t)D * sizeof(float));
        TRY(put_f32(s->be, view_at(s->t_hidden, 0, s->batch.seqs.rows * D), s->host, e));
    } else {
        struct view h;
        double f0 = s->be->flops;
        TRY(model_fwd(s->teacher, &s->t_acts, &s->batch, NULL, &h, e));
        s->flops_forward += s->be->flops - f0;
        be_copy(s->be, view_at(s->t_hidden, 0, s->batch.seqs.rows * D), view_at(h, 0, s->batch.seqs.rows * D));
        s->teacher_tokens += (double)s->batch.seqs.rows;
    }
    /* answer flags of each packed row, for the sums */
    for (int i = 0; i < n; i++)
        for (int32_t t = 0; t < len[i]; t++)
            s->host_kl[s->batch.seqs.q_off[i] + t] = answer_next(s->shard, rows[i], t);
    return 0;
}

int stream_kl(struct stream *s, const struct model *student, struct view hidden, enum positions pos, bool grad, bool head_grad,
              double scale, struct kl_sums *out, struct err *e)
{
    int64_t R = s->batch.seqs.rows, D = s->teacher->cfg.d;
    float *w = malloc((size_t)R * 2 * sizeof *w);
    if (!w)
        return err_nomem(e, (size_t)R * 2 * sizeof *w, "loss weights");
    float *kl = w + R;
    for (int64_t r = 0; r < R; r++)
        w[r] = (float)(pos == POS_ALL || s->host_kl[r] != 0 ? scale : 0);
    int rc = put_f32(s->be, view_at(s->w, 0, R), w, e);
    const struct param *hs = model_head(student), *ht = model_head(s->teacher);
    struct op_head_kl op = {.kl = view_at(s->kl, 0, R), .hs = view_at(hidden, 0, R * D), .ws = hs->w, .ht = view_at(s->t_hidden, 0, R * D),
                            .wt_head = ht->w, .wt = view_at(s->w, 0, R), .rows = R, .dim = D, .vocab = s->teacher->cfg.N, .tau = s->tau};
    s->flops_forward += cost_head_kl(&op).flops;
    if (grad)
        op.dhs = view_at(s->dh, 0, R * D);
    if (grad && head_grad)
        op.dws = hs->g;
    be_head_kl(s->be, &op);
    if (rc == 0)
        rc = get_f32(s->be, kl, view_at(s->kl, 0, R), e) || be_sync(s->be, e);
    for (int64_t r = 0; rc == 0 && r < R; r++) {
        bool a = s->host_kl[r] != 0;
        out->all += (double)kl[r];
        out->n_all += 1;
        out->answers += a ? (double)kl[r] : 0;
        out->n_answers += a;
    }
    free(w);
    return rc ? -1 : 0;
}

int stream_eval(struct stream *s, struct model *student, struct acts *acts, int64_t lo, int64_t hi, int64_t micro, struct kl_sums *out,
                struct err *e)
{
    for (int64_t r = lo; r < hi; r += micro) {
        int64_t rows[64];
        int n = (int)MIN(MIN(micro, 64), hi - r);
        for (int i = 0; i < n; i++)
            rows[i] = r + i;
        struct view h;
        TRY(stream_set(s, rows, n, e));
        double f0 = s->be->flops;
        TRY(model_fwd(student, acts, &s->batch, NULL, &h, e));
        s->flops_forward += s->be->flops - f0;
        TRY(stream_kl(s, student, h, POS_ALL, false, false, 1, out, e));
    }
    return 0;
}
