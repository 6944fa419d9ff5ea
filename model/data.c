/* The order of training rows, and texts for packing. */
#include "model/data.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "core/jread.h"
#include "core/rng.h"

static const size_t MAX_TEXT = (size_t)1 << 32;

/* ---- order ---- */

int order_init(struct row_order *o, uint64_t seed, int64_t lo, int64_t hi, struct err *e)
{
    *o = (struct row_order){.seed = seed, .lo = lo, .hi = hi, .epoch = -1};
    if (lo < 0 || hi <= lo)
        return ERR(e, E_USAGE, "row range %" PRId64 "..%" PRId64 " is empty", lo, hi);
    o->perm = malloc((size_t)(hi - lo) * sizeof *o->perm);
    return o->perm ? 0 : err_nomem(e, (size_t)(hi - lo) * sizeof *o->perm, "data order");
}

int64_t order_row(struct row_order *o, int64_t sample)
{
    int64_t n = o->hi - o->lo, epoch = sample / n;
    if (epoch != o->epoch) {
        ctr_permutation(o->seed, 0x6461746100000000ull + (uint64_t)epoch, o->perm, (size_t)n);
        o->epoch = epoch;
    }
    return o->lo + o->perm[sample % n];
}

void order_free(struct row_order *o)
{
    free(o->perm);
    *o = (struct row_order){0};
}

/* ---- text ---- */

static int unzstd(const char *path, const struct file_map *m, struct str *out, struct err *e)
{
    ZSTD_DStream *z = ZSTD_createDStream();
    if (!z)
        return err_nomem(e, 0, "zstd stream");
    ZSTD_inBuffer in = {m->p, m->len, 0};
    char buf[1 << 16];
    size_t left = 1;
    int rc = 0;
    while (rc == 0 && (in.pos < in.size || left != 0)) {
        ZSTD_outBuffer ob = {buf, sizeof buf, 0};
        size_t in_before = in.pos;
        left = ZSTD_decompressStream(z, &ob, &in);
        if (ZSTD_isError(left))
            rc = ERR(e, E_INPUT, "'%s': byte %zu: not a zstd stream: %s", path, in.pos, ZSTD_getErrorName(left));
        else if (ob.pos == 0 && in.pos == in_before)
            rc = ERR(e, E_INPUT, "'%s': the zstd stream ends early at byte %zu", path, in.pos);
        else if (out->len + ob.pos > MAX_TEXT)
            rc = ERR(e, E_INPUT, "'%s': unpacks to more than %zu bytes", path, MAX_TEXT);
        else
            str_add(out, buf, ob.pos);
        if (in.pos == in.size && left == 0)
            break;
    }
    ZSTD_freeDStream(z);
    return rc != 0 ? -1 : str_ok(out, "unpacked text", e);
}

static int jsonl_documents(const char *path, const char *key, const char *p, size_t n, int (*doc)(void *, const char *, size_t,
                               struct err *), void *ctx, struct err *e)
{
    int64_t line = 0;
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(p + at, '\n', n - at);
        size_t len = nl ? (size_t)(nl - (p + at)) : n - at;
        line++;
        if (len > 0) {
            char name[512];
            snprintf(name, sizeof name, "%.400s (line %" PRId64 ")", path, line);
            struct jdoc d;
            TRY(jdoc_parse(&d, name, p + at, len, e));
            const char *text = NULL;
            int rc = jget_str(&d, d.root, "", key, &text, e);
            if (rc == 0)
                rc = doc(ctx, text, strlen(text), e);
            jdoc_free(&d);
            TRY(rc);
        }
        at += len + 1;
    }
    return 0;
}

int text_documents(const char *path, const char *key, int (*doc)(void *, const char *, size_t, struct err *), void *ctx, struct err *e)
{
    struct file_map m = {0};
    struct str s = STR_INIT;
    TRY(map_open(&m, path, e));
    size_t pl = strlen(path);
    bool zst = pl > 4 && !strcmp(path + pl - 4, ".zst");
    char stem[1024];
    snprintf(stem, sizeof stem, "%.*s", (int)(zst ? pl - 4 : pl), path);
    const char *p = (const char *)m.p;
    size_t n = m.len;
    int rc = 0;
    if (zst) {
        rc = unzstd(path, &m, &s, e);
        p = str_c(&s);
        n = s.len;
    }
    size_t sl = strlen(stem);
    if (rc == 0 && sl > 6 && !strcmp(stem + sl - 6, ".jsonl"))
        rc = jsonl_documents(path, key ? key : "text", p, n, doc, ctx, e);
    else if (rc == 0 && ((sl > 4 && !strcmp(stem + sl - 4, ".txt")) || (sl > 3 && !strcmp(stem + sl - 3, ".md"))))
        rc = doc(ctx, p, n, e);
    else if (rc == 0)
        rc = ERR(e, E_USAGE, "'%s': unknown text format; allowed are .txt, .md, .jsonl, each also with .zst", path);
    str_free(&s);
    map_close(&m);
    return rc;
}
