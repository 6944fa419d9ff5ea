/* What a training keeps on disk. */
#include "model/trainer_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"

static const char *const prefix[TRAIN_PARTS] = {"w.", "m.", "v."};
#define ONE_FILE "model.safetensors"
#define INDEX_FILE "model.safetensors.index.json"

static struct view part_of(const struct param *p, enum train_part part)
{
    return part == TRAIN_W ? p->master : part == TRAIN_M ? p->m : p->v;
}

static bool in_pieces(const struct param *p, enum dtype stat, int64_t piece_bytes)
{
    return piece_bytes > 0 && p->n * (int64_t)dtype_size(stat) > piece_bytes;
}

/* ---- folders of parts ---- */

/* Step of a folder NAME-STEP; -1 when it is none. */
static int64_t step_of(const char *entry, const char *name)
{
    int64_t step;
    size_t n = strlen(name);
    return !strncmp(entry, name, n) && entry[n] == '-' && parse_i64(entry + n + 1, &step) && step >= 0 ? step : -1;
}

static bool complete(const char *dir, const char *folder)
{
    char at[1024], path[1024];
    path_join(at, dir, folder);
    return file_exists(path_join(path, at, INDEX_FILE)) || file_exists(path_join(path, at, ONE_FILE));
}

/* The newest complete folder's name; "" = none. */
static void newest(const char *dir, const char *name, char folder[64])
{
    struct names names = {0};
    struct err ignored = ERR_INIT;
    int64_t best = -1;
    folder[0] = 0;
    if (!dir_exists(dir) || dir_list(dir, &names, &ignored) != 0)
        return;
    for (size_t i = 0; i < names.n; i++) {
        int64_t step = step_of(names.v[i], name);
        if (step > best && complete(dir, names.v[i])) {
            best = step;
            snprintf(folder, 64, "%s", names.v[i]);
        }
    }
    names_free(&names);
}

static int drop_others(const char *dir, const char *name, const char *keep, struct err *e)
{
    struct names names = {0};
    char path[1024];
    TRY(dir_list(dir, &names, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < names.n; i++)
        if (step_of(names.v[i], name) >= 0 && strcmp(names.v[i], keep))
            rc = remove_tree(path_join(path, dir, names.v[i]), e);
    names_free(&names);
    return rc;
}

/* ---- writing ---- */

int state_out_open(struct state_out *o, struct backend *be, const char *dir, const char *name, int64_t step, int64_t part_bytes,
                   struct err *e)
{
    char path[1024], file[64];
    *o = (struct state_out){.be = be};
    snprintf(o->dir, sizeof o->dir, "%s", dir);
    snprintf(o->name, sizeof o->name, "%s", name);
    TRY(mkdir_p(dir, e));
    if (!part_bytes) {
        snprintf(file, sizeof file, "%s.safetensors", name);
        return st_out_open(&o->w, path_join(path, dir, file), e);
    }
    if (part_bytes < TRAIN_PART_LEAST)
        return ERR(e, E_USAGE, "checkpoint parts of %" PRId64 " bytes are too small (at least %d)", part_bytes, TRAIN_PART_LEAST);
    o->piece_bytes = part_bytes - (1 << 20);
    snprintf(o->folder, sizeof o->folder, "%s-%" PRId64, name, step);
    path_join(path, dir, o->folder);
    TRY(remove_tree(path, e)); /* of a process that was killed while it wrote */
    return st_out_open_dir(&o->w, path, (size_t)o->piece_bytes, e);
}

int state_out_f64(struct state_out *o, const char *key, double v, struct err *e)
{
    char buf[40];
    snprintf(buf, sizeof buf, "%.17g", v);
    return st_out_meta(o->w, key, buf, e);
}

/* Calls fn for every piece of a part: its name, first element and length. */
static int each_piece(const struct param *p, enum train_part part, enum dtype stat, int64_t piece_bytes,
                      int (*fn)(void *ctx, const char *name, const struct param *p, enum train_part part, int64_t at, int64_t n,
                                struct err *e),
                      void *ctx, struct err *e)
{
    char name[352];
    bool cut = in_pieces(p, stat, piece_bytes);
    int64_t step = cut ? piece_bytes / (int64_t)dtype_size(stat) : p->n;
    for (int64_t at = 0, k = 0; at < p->n; at += step, k++) {
        snprintf(name, sizeof name, "%s%s", prefix[part], p->name);
        if (cut)
            snprintf(name + strlen(name), sizeof name - strlen(name), "#%" PRId64, k);
        TRY(fn(ctx, name, p, part, at, MIN(step, p->n - at), e));
    }
    return 0;
}

static int declare_piece(void *ctx, const char *name, const struct param *p, enum train_part part, int64_t at, int64_t n, struct err *e)
{
    struct state_out *o = ctx;
    UNUSED(p);
    UNUSED(part);
    UNUSED(at);
    return st_out_declare(o->w, name, o->be->stat == DT_F64 ? ST_F64 : ST_F32, 1, &n, e);
}

static int write_piece(void *ctx, const char *name, const struct param *p, enum train_part part, int64_t at, int64_t n, struct err *e)
{
    struct state_out *o = ctx;
    size_t bytes = (size_t)n * dtype_size(o->be->stat);
    void *host = malloc(bytes);
    if (!host)
        return err_nomem(e, bytes, "a checkpoint tensor");
    be_get(o->be, host, view_at(part_of(p, part), at, n));
    int rc = be_sync(o->be, e) || st_out_raw(o->w, name, host, bytes, e);
    free(host);
    return rc ? -1 : 0;
}

int state_out_params(struct state_out *o, struct param *const *p, size_t n, enum train_part parts, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        for (enum train_part k = 0; k < parts; k++)
            TRY(each_piece(p[i], k, o->be->stat, o->piece_bytes, declare_piece, o, e));
    TRY(st_out_begin(o->w, e));
    for (size_t i = 0; i < n; i++)
        for (enum train_part k = 0; k < parts; k++)
            TRY(each_piece(p[i], k, o->be->stat, o->piece_bytes, write_piece, o, e));
    return 0;
}

int state_out_commit(struct state_out *o, struct err *e)
{
    struct st_out *w = o->w;
    o->w = NULL; /* commit frees it, also on failure */
    TRY(st_out_commit(w, e));
    return o->folder[0] ? drop_others(o->dir, o->name, o->folder, e) : 0;
}

void state_out_abort(struct state_out *o)
{
    char path[1024];
    struct err ignored = ERR_INIT;
    if (!o->w)
        return;
    st_out_abort(o->w);
    o->w = NULL;
    if (o->folder[0])
        (void)remove_tree(path_join(path, o->dir, o->folder), &ignored);
}

/* ---- reading ---- */

static void one_path(const char *dir, const char *name, char path[1024])
{
    char file[64];
    snprintf(file, sizeof file, "%s.safetensors", name);
    path_join(path, dir, file);
}

bool state_there(const char *dir, const char *name)
{
    char path[1024], folder[64];
    one_path(dir, name, path);
    if (file_exists(path))
        return true;
    newest(dir, name, folder);
    return folder[0] != 0;
}

int state_in_open(struct state_in *s, const char *dir, const char *name, struct err *e)
{
    char folder[64], at[1024], index[1024];
    *s = (struct state_in){0};
    one_path(dir, name, s->path);
    newest(dir, name, folder);
    if (!file_exists(s->path) && folder[0]) {
        path_join(at, dir, folder);
        path_join(index, at, INDEX_FILE);
        s->parts = file_exists(index);
        path_join(s->path, at, s->parts ? INDEX_FILE : ONE_FILE);
    }
    if (!s->parts) {
        TRY(st_open(&s->one, s->path, e));
        s->file = &s->one;
        return 0;
    }
    TRY(st_shards_open(&s->many, s->path, e));
    s->file = &s->many.file[0];
    for (size_t i = 1; i < s->many.n_file; i++) {
        const char *a = st_meta(s->file, "step"), *b = st_meta(&s->many.file[i], "step");
        if (!a || !b || strcmp(a, b)) {
            state_in_close(s);
            return ERR(e, E_INPUT, "checkpoint '%s': its parts are of different steps ('%s' and '%s'); remove that folder", s->path,
                       a ? a : "none", b ? b : "none");
        }
    }
    return 0;
}

void state_in_close(struct state_in *s)
{
    if (s->parts)
        st_shards_close(&s->many);
    else if (s->file)
        st_close(&s->one);
    s->file = NULL;
}

double state_in_f64(const struct state_in *s, const char *key)
{
    const char *text = st_meta(s->file, key);
    double v = 0;
    if (text && parse_f64(text, &v))
        return v;
    return text && !strcmp(text, "inf") ? INFINITY : 0;
}

static const struct st_tensor *find(const struct state_in *s, const char *name)
{
    const struct st_tensor *t = NULL;
    if (!s->parts)
        return st_find(&s->one, name);
    for (size_t i = 0; !t && i < s->many.n_file; i++)
        t = st_find(&s->many.file[i], name);
    return t;
}

/* A tensor, whole or from its pieces, into host memory of `bytes`. */
static int gather(const struct state_in *s, const char *name, uint8_t *host, size_t bytes, struct err *e)
{
    const struct st_tensor *t = find(s, name);
    size_t have = 0;
    char piece[352];
    if (t) {
        if (t->bytes == bytes)
            memcpy(host, t->data, bytes);
        have = t->bytes;
    } else
        for (int k = 0; have < bytes; k++) {
            snprintf(piece, sizeof piece, "%s#%d", name, k);
            t = find(s, piece);
            if (!t || t->bytes > bytes - have)
                break;
            memcpy(host + have, t->data, t->bytes);
            have += t->bytes;
        }
    if (have != bytes)
        return ERR(e, E_INPUT, "checkpoint '%s': tensor '%s' is %s; remove the run's folder to start again", s->path, name,
                   have ? "of another size" : "missing");
    return 0;
}

int state_in_take(const struct state_in *s, struct backend *be, const struct param *q, enum train_part part, struct err *e)
{
    char name[320];
    struct view v = part_of(q, part);
    bool bare = part == TRAIN_W && !v.p; /* no optimiser state (any more): into the weights themselves */
    if (bare)
        v = (struct view){q->w.dt == be->stat ? q->w.p : NULL, be->stat, q->n};
    snprintf(name, sizeof name, "%s%s", prefix[part], q->name);
    size_t bytes = (size_t)v.n * dtype_size(v.dt);
    void *host = malloc(bytes);
    if (!host)
        return err_nomem(e, bytes, "a checkpoint tensor");
    int rc = gather(s, name, host, bytes, e);
    if (rc == 0 && v.p)
        be_put(be, v, host);
    if (rc == 0)
        rc = v.p ? be_sync(be, e) : put_f32(be, q->w, host, e);
    free(host);
    if (rc == 0 && part == TRAIN_W && !bare && q->w.p != q->master.p)
        be_cast(be, &(struct op_cast){.dst = q->w, .src = q->master, .n = q->w.n});
    return rc;
}
