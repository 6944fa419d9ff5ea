/* One tokenizer shared by threads gives each the ids it gives alone. tests.cmake: tsan */
#include "tests/test.h"

#include "core/fs.h"
#include "core/pool.h"
#include "model/tok.h"

enum { TEXTS = 64 };
struct shared {
    const struct tok *t;
    int64_t count[TEXTS];
    struct tok_ids ids[TEXTS];
    int failed[TEXTS];
};

static void make_text(int64_t k, char *p, size_t n)
{
    uint32_t x = (uint32_t)k * 2654435761u + 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        p[i] = " etaoinshrdlu.\n0"[x >> 28];
    }
}

static void one(void *ctx, int64_t item, int worker)
{
    struct shared *s = ctx;
    struct err e = ERR_INIT;
    char text[2000];
    UNUSED(worker);
    make_text(item, text, sizeof text);
    s->failed[item] = tok_encode(s->t, text, sizeof text, true, &s->ids[item], &e) != 0 ||
                      tok_count(s->t, text, sizeof text, true, &s->count[item], &e) != 0;
}

int main(void)
{
    const char *path = test_data("models/tiny-teacher/tokenizer.json");
    struct tok *t = NULL;
    struct pool *pool = NULL;
    static struct shared a, b;
    if (!path)
        return test_skip("models/tiny-teacher is not in the test data (set DASHLAB_TEST_DATA)");
    CHECK_OK(tok_load(&t, path, NULL, e));
    CHECK_OK(pool_open(&pool, 4, e));
    if (!t || !pool)
        return test_end();
    a.t = b.t = t;
    pool_run(pool, TEXTS, one, &a);
    pool_run(NULL, TEXTS, one, &b);
    for (int i = 0; i < TEXTS; i++) {
        CHECK(!a.failed[i] && !b.failed[i] && a.count[i] == (int64_t)a.ids[i].n && a.count[i] == b.count[i]);
        CHECK(a.ids[i].n == b.ids[i].n && !memcmp(a.ids[i].v, b.ids[i].v, a.ids[i].n * sizeof *a.ids[i].v));
        tok_ids_free(&a.ids[i]);
        tok_ids_free(&b.ids[i]);
    }
    pool_close(pool);
    tok_free(t);
    return test_end();
}
