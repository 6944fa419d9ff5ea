/* GGUF: block decoders against the gguf package's, values and checks of the reader. */
#include "model/gguf.h"
#include "model/st.h"
#include "tests/test.h"

#define DATA "tests/data/readers/"

/* One rounding a product and one a sum, in both programs: equal bits can be asked for. */
static void test_quants(void)
{
    static const char *const types[] = {"F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"};
    struct gguf g;
    struct st_file f;
    CHECK_OK(gguf_open(&g, DATA "quants.gguf", e));
    CHECK_OK(st_open(&f, DATA "quants.safetensors", e));
    CHECK_EQ_I(g.n_t, ARRAY_LEN(types));
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        const struct gguf_tensor *t = gguf_find(&g, types[i]);
        const struct st_tensor *w = st_find(&f, types[i]);
        CHECK(t && w && t->n == w->n && t->n > 0);
        if (!t || !w || t->n != w->n)
            continue;
        CHECK_STR(ggml_type_name(t->type), types[i]);
        CHECK(ggml_can_read(t->type));
        float *y = malloc((size_t)t->n * sizeof *y);
        CHECK_OK(ggml_to_f32(t->type, t->data, 0, t->n, y, e));
        int64_t bad = 0;
        for (int64_t k = 0; k < t->n; k++)
            bad += memcmp(y + k, w->data + 4 * (size_t)k, 4) != 0;
        if (bad)
            printf("%s: %lld of %lld values differ\n", types[i], (long long)bad, (long long)t->n);
        CHECK_EQ_I(bad, 0);
        /* the second row alone */
        CHECK_OK(ggml_to_f32(t->type, t->data, t->ne[0], t->ne[0], y, e));
        CHECK(memcmp(y, w->data + 4 * (size_t)t->ne[0], 4 * (size_t)t->ne[0]) == 0);
        free(y);
    }
    float one;
    CHECK_ERR(ggml_to_f32(GGML_Q2_K, g.t[0].data, 0, 0, &one, e), E_INPUT, "no decoder");
    st_close(&f);
    gguf_close(&g);
}

static void test_metadata(void)
{
    struct gguf g;
    int64_t v = 0;
    double x = 0;
    bool flag = false;
    struct gguf_str s = {0};
    CHECK_OK(gguf_open(&g, "tests/fuzz/seeds/gguf/quants", e));
    CHECK_OK(gguf_string(&g, "general.architecture", &s, e));
    CHECK(gguf_str_eq(s, "llama") && !gguf_str_eq(s, "llam"));
    CHECK_OK(gguf_bool_opt(&g, "x.flag", &flag, e));
    CHECK(flag);
    CHECK_OK(gguf_f64(&g, "x.f", &x, e));
    CHECK(x == 0.5);
    CHECK_ERR(gguf_i64(&g, "x.list", 0, 9, &v, e), E_INPUT, "not one number");
    CHECK_ERR(gguf_i64(&g, "x.f", 0, 9, &v, e), E_INPUT, "expected an integer");
    CHECK_ERR(gguf_i64(&g, "x.none", 0, 9, &v, e), E_INPUT, "missing");
    CHECK_ERR(gguf_f64(&g, "x.flag", &x, e), E_INPUT, "finite number");
    CHECK_OK(gguf_i64_opt(&g, "x.none", 0, 9, &v, e));
    struct gguf_iter it = gguf_iter(gguf_key(&g, "x.words"));
    CHECK(gguf_next_str(&it, &s) && gguf_str_eq(s, "a"));
    CHECK(gguf_next_str(&it, &s) && s.n == 0);
    CHECK(!gguf_next_i64(&it, &v));
    CHECK(gguf_next_str(&it, &s) && gguf_str_eq(s, "bc"));
    CHECK(!gguf_next_str(&it, &s));
    it = gguf_iter(gguf_key(&g, "x.list"));
    int64_t sum = 0;
    while (gguf_next_i64(&it, &v))
        sum += v;
    CHECK_EQ_I(sum, 6);
    gguf_close(&g);
    CHECK_OK(gguf_open(&g, "tests/data/readers/llama/model.gguf", e));
    CHECK_ERR(gguf_i64(&g, "llama.block_count", 3, 9, &v, e), E_INPUT, "llama.block_count is 2 (limits 3 to 9)");
    gguf_close(&g);
}

/* Every cut of a good file is refused; no cut may crash (the sanitizer build watches). */
static void test_cuts(void)
{
    struct str s = STR_INIT;
    struct gguf g;
    CHECK_OK(file_read("tests/fuzz/seeds/gguf/quants", 0, &s, e));
    int taken = 0;
    for (size_t n = 0; n + 32 < s.len; n++) { /* the last bytes may be padding */
        struct err e = ERR_INIT;
        char *copy = malloc(n + 1);
        memcpy(copy, s.p, n);
        if (gguf_open_mem(&g, "cut", copy, n, &e) == 0) {
            taken++;
            gguf_close(&g);
        } else {
            taken += e.code != E_INPUT;
        }
        free(copy);
    }
    CHECK_EQ_I(taken, 0);
    str_free(&s);
}

int main(void)
{
    test_quants();
    test_metadata();
    test_cuts();
    return test_end();
}
