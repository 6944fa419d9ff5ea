#include "dash/landscape.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/prog.h"
#include "core/prov.h"

struct walk {
    struct model *super;
    struct acts acts;
    struct stream st;
    struct view saved[MAX_LAYERS + 1]; /* input stream of each layer for the set before */
    const bool (*set)[MAX_LAYERS];
    size_t n_sets;
    int layers;
    struct kl_sums *sum; /* [n_sets] */
};

static void keep_stream(void *ctx, int64_t i, struct view x)
{
    struct walk *w = ctx;
    if (i < w->layers && x.p != w->saved[i].p)
        be_copy(w->st.be, view_at(w->saved[i], 0, x.n), x);
}

/* All masks with `full` bits, in the order of the masks read as numbers. */
static size_t list_sets(bool (*set)[MAX_LAYERS], int layers, int full)
{
    int at[MAX_LAYERS];
    size_t n = 0;
    for (int i = 0; i < full; i++)
        at[i] = i;
    for (;;) {
        memset(set[n], 0, sizeof set[n]);
        for (int i = 0; i < full; i++)
            set[n][at[i]] = true;
        n++;
        int i = full - 1;
        while (i >= 0 && at[i] == layers - full + i)
            i--;
        if (i < 0)
            return n;
        at[i]++;
        for (int k = i + 1; k < full; k++)
            at[k] = at[k - 1] + 1;
    }
}

static double count_sets(int layers, int full)
{
    double c = 1;
    for (int i = 1; i <= full; i++)
        c = c * (layers - full + i) / i;
    return c;
}

/* Every set on the rows that the stream has now. */
static int one_batch(struct walk *w, struct err *e)
{
    int64_t n = w->st.batch.seqs.rows * w->super->cfg.d;
    for (size_t s = 0; s < w->n_sets; s++) {
        int first = 0;
        while (s > 0 && w->set[s][first] == w->set[s - 1][first])
            first++;
        for (int l = first; l < w->layers; l++)
            TRY(model_set_ops(w->super, l, MIX_BIT(w->set[s][l] ? MIX_FULL : MIX_GDN), NULL, 0, e));
        struct fwd_opts fo = {.first = first, .x0 = first ? view_at(w->saved[first], 0, n) : NO_VIEW, .ctx = w, .on_stream = keep_stream};
        struct view hidden;
        TRY(model_fwd(w->super, &w->acts, &w->st.batch, &fo, &hidden, e));
        TRY(stream_kl(&w->st, w->super, hidden, POS_ALL, false, false, 1, &w->sum[s], e));
    }
    return 0;
}

static int walk_open(struct walk *w, struct model *teacher, const struct linset *lin, const struct shard *data, const struct hcache *cache,
                     const struct landscape_opts *o, struct err *e)
{
    unsigned ops[MAX_LAYERS];
    for (int l = 0; l < w->layers; l++)
        ops[l] = MIX_BIT(MIX_FULL) | MIX_BIT(MIX_GDN);
    struct assemble_opts as = {.ops = ops, .copy = false};
    struct acts_opts ao = {.rows = o->micro * data->seq, .seqs = (int32_t)o->micro};
    TRY(model_assemble(&w->super, teacher, lin, &as, e));
    TRY(acts_open(&w->acts, w->super, &ao, e));
    TRY(stream_open(&w->st, teacher->be, data, teacher, cache, o->micro, o->tau, e));
    for (int l = 0; l < w->layers; l++)
        TRY(be_view(teacher->be, teacher->be->act, ao.rows * teacher->cfg.d, &w->saved[l], e));
    return 0;
}

static void walk_close(struct walk *w)
{
    for (int l = 0; l < w->layers; l++)
        if (w->saved[l].p)
            be_view_free(w->super->be, &w->saved[l]);
    if (w->st.be)
        stream_close(&w->st);
    if (w->acts.layer)
        acts_close(&w->acts);
    if (w->super)
        model_close(w->super);
}

/* The sums so far: row reached, then the sums as bytes. A file of another length is another run's and is not used. */
static int64_t load_sums(const char *path, struct walk *w, int64_t from)
{
    struct str s = STR_INIT;
    struct err ignored = ERR_INIT;
    int64_t row = from;
    size_t bytes = w->n_sets * sizeof *w->sum;
    if (file_exists(path) && file_read(path, bytes + sizeof row, &s, &ignored) == 0 && s.len == bytes + sizeof row) {
        memcpy(&row, s.p, sizeof row);
        memcpy(w->sum, s.p + sizeof row, bytes);
    }
    str_free(&s);
    return row;
}

static int save_sums(const char *path, const struct walk *w, int64_t row, struct err *e)
{
    struct str s = STR_INIT;
    str_add(&s, (const char *)&row, sizeof row);
    str_add(&s, (const char *)w->sum, w->n_sets * sizeof *w->sum);
    int rc = s.failed ? err_nomem(e, w->n_sets * sizeof *w->sum, "sums") : file_write(path, str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

static int write_table(const struct walk *w, const char *dir, struct err *e)
{
    char path[1024], mask[MAX_LAYERS + 1];
    enum mixer_kind kind[MAX_LAYERS];
    struct str s = STR_INIT;
    str_puts(&s, "mask\tkl\tkl_answers\n");
    for (size_t i = 0; i < w->n_sets; i++) {
        for (int l = 0; l < w->layers; l++)
            kind[l] = w->set[i][l] ? MIX_FULL : MIX_GDN;
        layers_mask(kind, w->layers, mask);
        const struct kl_sums *k = &w->sum[i];
        str_printf(&s, "%s\t%.9g\t%.9g\n", mask, k->n_all > 0 ? k->all / k->n_all : 0, k->n_answers > 0 ? k->answers / k->n_answers : 0);
    }
    int rc = s.failed ? err_nomem(e, s.len, "landscape") : file_write(path_join(path, dir, "landscape.tsv"), str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

int landscape_run(struct model *teacher, const struct linset *lin, const struct shard *data, const struct hcache *cache,
                  const struct landscape_opts *o, const char *dir, const char *state, int64_t *sets, struct err *e)
{
    struct walk w = {.layers = (int)teacher->cfg.L};
    if (o->full < 0 || o->full > w.layers)
        return ERR(e, E_USAGE, "landscape: budget %d is outside 0..%d", o->full, w.layers);
    double c = count_sets(w.layers, o->full);
    if (c > LANDSCAPE_MAX_SETS)
        return ERR(e, E_USAGE, "landscape: %d of %d layers have %.4g sets, at most %d are visited", o->full, w.layers, c,
                   LANDSCAPE_MAX_SETS);
    bool(*set)[MAX_LAYERS] = calloc((size_t)(c + 1.5), sizeof *set);
    w.sum = calloc((size_t)(c + 1.5), sizeof *w.sum);
    char path[1024];
    path_join(path, state, "sums.bin");
    int rc = set && w.sum ? 0 : err_nomem(e, (size_t)c * (sizeof *set + sizeof *w.sum), "landscape");
    if (rc == 0) {
        w.n_sets = list_sets(set, w.layers, o->full);
        w.set = (const bool(*)[MAX_LAYERS])set;
        rc = walk_open(&w, teacher, lin, data, cache, o, e);
    }
    struct prog bar;
    prog_start(&bar, "landscape", "row", o->row_hi - o->row_lo);
    for (int64_t r = rc == 0 ? load_sums(path, &w, o->row_lo) : o->row_hi; rc == 0 && r < o->row_hi;) {
        int64_t rows[64];
        int n = (int)MIN(MIN(o->micro, 64), o->row_hi - r);
        for (int i = 0; i < n; i++)
            rows[i] = r + i;
        rc = stream_set(&w.st, rows, n, e) || one_batch(&w, e) || save_sums(path, &w, r + n, e) ? -1 : 0;
        r += n;
        prog_update(&bar, r - o->row_lo, NULL);
        if (rc == 0 && interrupted())
            rc = ERR(e, E_INTERRUPTED, "interrupted at row %" PRId64 "; run the same command again to go on", r);
    }
    prog_end(&bar);
    if (rc == 0)
        rc = write_table(&w, dir, e);
    *sets = (int64_t)w.n_sets;
    walk_close(&w);
    free(set);
    free(w.sum);
    return rc;
}
