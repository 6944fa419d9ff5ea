/* The corpus of malformed and edge-case files: verdicts, the values of the valid ones, time and memory. Tokenizer files have a test of
 * their own. */
#define _GNU_SOURCE 1
#include <math.h>
#include <sys/resource.h>
#include <time.h>

#include "model/ckfile.h"
#include "tests/test.h"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static long peak_kb(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_maxrss;
}

/* Opens, checks and, where tensors come out, decodes every one: what a hostile file would meet in the program. */
static int use_all(const char *path, struct err *e)
{
    struct ckfile_summary s;
    struct ckfile *k;
    char hex[65];
    TRY(ckfile_check(path, &s, e));
    if (s.kind == CK_CONFIG || s.kind == CK_TOKENIZER)
        return 0;
    TRY(ckfile_open(&k, path, e));
    int rc = 0;
    for (size_t i = 0; i < ckfile_count(k) && rc == 0; i++)
        if (ckfile_at(k, i)->readable)
            rc = ckfile_sha256(k, ckfile_at(k, i), hex, e);
    ckfile_close(k);
    return rc;
}

static void run_one(const char *path, const char *name, const char *verdict, int counts[3])
{
    struct err e = ERR_INIT;
    double t = now_s();
    int rc = use_all(path, &e);
    t = now_s() - t;
    bool ok;
    if (strcmp(verdict, "valid") == 0)
        ok = rc == 0, counts[0]++;
    else if (strcmp(verdict, "invalid") == 0)
        ok = rc != 0 && e.code == E_INPUT && e.msg[0], counts[1]++;
    else
        ok = rc == 0 || e.code == E_INPUT, counts[2]++;
    if (!ok || t > 1)
        printf("%s: %s, got %d (code %d, %.3f s): %s\n", name, verdict, rc, e.code, t, e.msg);
    else if (getenv("DASHLAB_TEST_VERBOSE"))
        printf("%-45s %s\n", name, rc ? e.msg : "read");
    CHECK(ok);
    CHECK(t <= 1);
}

static void check_tensor(const char *file, const char *tensor, int ndim, const int64_t *shape, const float *want, int64_t n)
{
    struct ckfile *k = NULL;
    float got[64] = {0};
    char rel[256];
    snprintf(rel, sizeof rel, "oracle/model/bad/%s", file);
    CHECK_OK(ckfile_open(&k, test_data(rel), e));
    if (!k)
        return;
    const struct ck_tensor *t = ckfile_find(k, tensor);
    bool same = t && t->ndim == ndim && t->n == n;
    for (int i = 0; same && i < ndim; i++)
        same = t->shape[i] == shape[i];
    if (!same)
        printf("%s: tensor '%s' missing or of another shape\n", file, tensor);
    CHECK(same);
    if (same && n) {
        CHECK_OK(ckfile_read_f32(k, t, got, e));
        CHECK(memcmp(got, want, (size_t)n * sizeof *got) == 0);
    }
    ckfile_close(k);
}

#define SHAPE(...) (const int64_t[]){__VA_ARGS__}
#define VALUES(...) (const float[]){__VA_ARGS__}

static void test_values(void)
{
    float q[32], r[32];
    for (int i = 0; i < 32; i++) {
        q[i] = 0.5f * (float)(i < 16 ? i : 0) - 1;
        r[i] = 0.25f * (float)i;
    }
    check_tensor("safetensors/v_minimal.safetensors", "a", 2, SHAPE(2, 3), VALUES(1, 2, 3, 4, 5, 6), 6);
    check_tensor("safetensors/v_padded_header.safetensors", "a", 2, SHAPE(2, 3), VALUES(1, 2, 3, 4, 5, 6), 6);
    check_tensor("safetensors/v_whitespace.safetensors", "a", 2, SHAPE(2, 3), VALUES(1, 2, 3, 4, 5, 6), 6);
    check_tensor("safetensors/v_zero_size.safetensors", "z", 2, SHAPE(0, 4), NULL, 0);
    check_tensor("safetensors/v_zero_size_first.safetensors", "z", 2, SHAPE(3, 0), NULL, 0);
    check_tensor("safetensors/v_zero_size_first.safetensors", "a", 1, SHAPE(2), VALUES(1, 2), 2);
    check_tensor("safetensors/v_scalar.safetensors", "s", 0, NULL, VALUES(7), 1);
    check_tensor("safetensors/v_order.safetensors", "b", 1, SHAPE(2), VALUES(5, 6), 2);
    check_tensor("safetensors/v_order.safetensors", "a", 1, SHAPE(4), VALUES(1, 2, 3, 4), 4);
    check_tensor("safetensors/v_mixed.safetensors", "i", 1, SHAPE(1), VALUES(-5), 1);
    check_tensor("safetensors/v_mixed.safetensors", "h", 1, SHAPE(2), VALUES(1, -2), 2);
    check_tensor("safetensors/v_mixed.safetensors", "b", 1, SHAPE(2), VALUES(1, -2), 2);
    check_tensor("safetensors/v_mixed.safetensors", "u", 1, SHAPE(3), VALUES(1, 2, 3), 3);
    check_tensor("safetensors/v_mixed.safetensors", "g", 1, SHAPE(1), VALUES(9), 1);
    check_tensor("safetensors/v_escapes.safetensors", "a.b/\"\xf0\x9f\x98\x80", 1, SHAPE(1), VALUES(3), 1);
    check_tensor("gguf/v_minimal.gguf", "a", 2, SHAPE(2, 4), VALUES(0, 1, 2, 3, 4, 5, 6, 7), 8);
    check_tensor("gguf/v_version2.gguf", "a", 2, SHAPE(2, 4), VALUES(0, 1, 2, 3, 4, 5, 6, 7), 8);
    check_tensor("gguf/v_align64.gguf", "b", 1, SHAPE(1), VALUES(5), 1);
    check_tensor("gguf/v_align8.gguf", "b", 1, SHAPE(1), VALUES(5), 1);
    check_tensor("gguf/v_align8.gguf", "a", 2, SHAPE(2, 4), VALUES(0, 1, 2, 3, 4, 5, 6, 7), 8);
    check_tensor("gguf/v_quant.gguf", "q", 2, SHAPE(1, 32), q, 32);
    check_tensor("gguf/v_quant.gguf", "r", 1, SHAPE(32), r, 32);
    check_tensor("gguf/v_quant.gguf", "s", 1, SHAPE(1), VALUES(2), 1);
}

static void test_all_types(void)
{
    struct gguf g;
    int64_t v = 0;
    double x = 0;
    bool flag = false;
    struct gguf_str s = {0};
    const char *path = test_data("oracle/model/bad/gguf/v_all_types.gguf");
    static const struct {
        const char *key;
        int64_t want;
    } ints[] = {{"u8", 255}, {"i8", -1}, {"u16", 65535}, {"i16", -2}, {"u32", 4294967295ll}, {"i32", -3}, {"i64", INT64_MIN}};
    CHECK_OK(gguf_open(&g, path, e));
    for (size_t i = 0; i < ARRAY_LEN(ints); i++) {
        CHECK_OK(gguf_i64(&g, ints[i].key, INT64_MIN, INT64_MAX, &v, e));
        CHECK_EQ_I(v, ints[i].want);
    }
    CHECK_ERR(gguf_i64(&g, "u64", 0, INT64_MAX, &v, e), E_INPUT, "expected an integer"); /* 2^64-1 does not fit */
    CHECK_OK(gguf_f64(&g, "f32", &x, e));
    CHECK(x == 1.5);
    CHECK_OK(gguf_f64(&g, "f64", &x, e));
    CHECK(x == 0.1);
    CHECK_OK(gguf_bool_opt(&g, "b", &flag, e));
    CHECK(flag);
    CHECK_OK(gguf_string(&g, "s", &s, e));
    CHECK(gguf_str_eq(s, "h\xc3\xa9"));
    CHECK(gguf_key(&g, "e")->count == 0 && gguf_key(&g, "as")->count == 2);
    struct gguf_iter it = gguf_iter(gguf_key(&g, "ai"));
    CHECK(gguf_next_i64(&it, &v) && v == 1 && gguf_next_i64(&it, &v) && v == -1 && !gguf_next_i64(&it, &v));
    gguf_close(&g);
}

static void test_configs(void)
{
    struct mcfg base, c;
    CHECK_OK(mcfg_load(&base, test_data("oracle/model/bad/config/v_base.json"), e));
    CHECK(base.arch == ARCH_LLAMA && base.d == 64 && base.F == 48 && base.L == 2 && base.H == 4 && base.G == 2 && base.N == 32 &&
          base.eps == 1e-5 && base.max_pos == 128 && base.tie_embeddings && base.rope.theta == 1e4 && base.head_dim == 16 &&
          base.n_eos == 0);
    CHECK_OK(mcfg_load(&c, test_data("oracle/model/bad/config/v_no_kv_heads.json"), e));
    CHECK(c.G == 4);
    CHECK_OK(mcfg_load(&c, test_data("oracle/model/bad/config/v_eos_list.json"), e));
    CHECK(c.n_eos == 2 && c.eos[0] == 1 && c.eos[1] == 2);
    CHECK_OK(mcfg_load(&c, test_data("oracle/model/bad/config/v_int_theta.json"), e));
    CHECK(mcfg_equal(&c, &base));
    CHECK_OK(mcfg_load(&c, test_data("oracle/model/bad/config/v_unknown_key.json"), e));
    CHECK(mcfg_equal(&c, &base));
}

int main(void)
{
    const char *tsv = test_data("oracle/model/bad/expected.tsv");
    char line[1024], path[1024];
    int counts[3] = {0};
    if (!tsv)
        return test_skip("no oracle/model/bad in the data folder");
    FILE *f = fopen(tsv, "r");
    if (!f || !fgets(line, sizeof line, f))
        return 1;
    int dir = (int)(strlen(tsv) - strlen("expected.tsv"));
    while (fgets(line, sizeof line, f)) {
        char *save = NULL, *name = strtok_r(line, "\t", &save), *verdict = strtok_r(NULL, "\t", &save);
        if (!name || !verdict || strncmp(name, "tokenizer/", 10) == 0)
            continue;
        snprintf(path, sizeof path, "%.*s%s", dir, tsv, name);
        run_one(path, name, verdict, counts);
    }
    fclose(f);
    printf("%d valid, %d invalid, %d either; peak memory %ld KiB\n", counts[0], counts[1], counts[2], peak_kb());
    CHECK_EQ_I(counts[0] + counts[1] + counts[2], 157);
    CHECK(peak_kb() < 100 * 1024);
    test_values();
    test_all_types();
    test_configs();
    return test_end();
}
